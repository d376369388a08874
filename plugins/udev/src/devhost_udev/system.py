"""Which disks the node itself runs on, so that a configuration can leave them alone.

Decided by mount points that exist before any pod does: what pods mount later never changes the answer.
Inside a container the files that the kubelet binds into it (``/etc/hosts`` and others) lead to the disk
that carries the kubelet's directory.
"""

from __future__ import annotations

import re
from pathlib import Path

from devhost.backend.disks import disks
from devhost.backend.sysfs import Sysfs

_MOUNTED = re.compile(
    r"/|/(boot|efi|usr|var|etc|home)(/efi)?|/var/lib(/(kubelet|containerd|docker|containers|rancher))?"
    r"|/var/lib/kubelet/device-plugins|/etc/(hosts|hostname|resolv\.conf)|/dev/termination-log"
)
"""Mount points of the node; the last ones are what the kubelet binds into every container."""


def system_disks(root: Path) -> frozenset[str] | None:
    """The sysfs directories of block devices that the node runs on, down to the physical ones.

    ``None`` when that cannot be told: a recorded tree without ``/proc``, a diskless node, a container
    that sees nothing of its host, or a ZFS pool, which does not name its disks.
    """
    found = disks(Sysfs(root), lambda point: _MOUNTED.fullmatch(point) is not None)
    return frozenset(found.carried) or None if found.is_complete else None
