"""Whether the driver of a DRM card answers, found out by asking it for its version.

It is the plainest request there is, it needs no rights but those to open the node, and a card that cannot
work refuses it: xe blocks every request while the device is wedged (Documentation/gpu/xe, "Xe Device
Wedging"), and the DRM core those of a device that was unplugged (drivers/gpu/drm/drm_ioctl.c). i915 refuses
others; of these the one that asks for nothing is the throttle (drivers/gpu/drm/i915/gem/i915_gem_throttle.c).

Only render nodes are asked: whoever opens a card node first becomes its master. They are closed at once, so
that the driver can be unbound.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from devhost.backend.sysfs import Sysfs, is_live

from .adapter import Adapter
from .asking import DEADLINE, Asking

_LONGS = struct.Struct("=iii4xQQQQQQ" if struct.calcsize("P") == 8 else "=iiiIIIIII")
"""``struct drm_version`` (include/uapi/drm/drm.h): three ints, then three pairs of length and pointer."""

VERSION = 3 << 30 | _LONGS.size << 16 | ord("d") << 8
"""``DRM_IOCTL_VERSION``: ``_IOWR('d', 0x00, struct drm_version)``."""

I915_THROTTLE = ord("d") << 8 | 0x58
"""``DRM_IOCTL_I915_GEM_THROTTLE``: ``_IO('d', DRM_COMMAND_BASE + 0x18)``; it fails on a wedged GPU."""

_DEAD = {
    errno.ECANCELED: "is wedged: bind it to its driver again, or reset it",
    errno.EIO: "is wedged: bind it to its driver again, or reset it",
    errno.ENODEV: "is gone, though its node is still there",
    errno.ENXIO: "is gone, though its node is still there",
}
"""What refusals mean. Any other one is about us: a permission, a limit."""


class Answers:
    """Asks the cards of one machine. A recorded tree has nodes that nobody stands behind: they are well."""

    def __init__(self, root: Path) -> None:
        self._sysfs = Sysfs(root)
        self._is_live = is_live(root)
        self._asking = Asking()

    def lacking(self, adapters: Mapping[str, Adapter], deadline: float = DEADLINE) -> dict[str, str]:
        """Why each of these adapters cannot work, as far as that can be asked; who can is not named.

        Args:
            adapters: by any name for them.
            deadline: seconds that all of them together have to answer.
        """
        lacks = {
            name: "its PCI function answers no more: it has failed, or lost its link"
            for name, adapter in adapters.items()
            if adapter.address and self._sysfs.is_dead(adapter.path)
        }
        if not self._is_live:
            return lacks
        questions = {
            name: partial(refusal, f"{self._sysfs.prefix}{adapter.render_node}", adapter.driver)
            for name, adapter in adapters.items()
            if name not in lacks and adapter.render and self._is_awake(adapter)
        }
        answers = self._asking.ask(questions, deadline)
        for name in questions:
            if name not in answers:
                lacks[name] = "its driver does not answer"
            elif answers[name]:
                lacks[name] = f"it {answers[name]}"
        return lacks

    def _is_awake(self, adapter: Adapter) -> bool:
        """Whether asking wakes nothing up (sysfs-devices-power, ``runtime_status``)."""
        return self._sysfs.text(f"{adapter.path}/power/runtime_status") not in ("suspended", "suspending")


def refusal(node: str, driver: str) -> str:
    """What a driver's refusal to answer means; empty if it answered, or that means nothing."""
    try:
        descriptor = os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    try:
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            fcntl.ioctl(descriptor, VERSION, bytearray(_LONGS.size))
            if driver == "i915":
                fcntl.ioctl(descriptor, I915_THROTTLE)
    except OSError as error:
        return _DEAD.get(error.errno or 0, "")
    finally:
        os.close(descriptor)
    return ""
