"""Changes AMD's partition modes through sysfs.

Files of a GPU: ``current_compute_partition``, ``available_compute_partition`` and the same of the memory
(drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c, amdgpu_gmc.c). A compute mode is in effect when the write returns,
which fails while a process uses the GPU. A memory mode is only noted, and takes effect when the driver is
loaded again, for all GPUs that XGMI connects. The driver then also chooses the compute mode.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from devhost.backend import NotYet
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs, refusal
from devhost_gpu.discovery import Adapter
from devhost_gpu.options import Layout
from devhost_gpu.vendor import Change

DRIVER = "amdgpu"

COMPUTE, MEMORY = "compute", "memory"

_MODE = re.compile(r"(?!UNKNOWN)[A-Z]{2,8}\d{0,2}")

_READ_ONLY = "devhost needs a writable /sys"
_HINTS = {
    errno.EACCES: _READ_ONLY,
    errno.EROFS: _READ_ONLY,
    errno.EPERM: "the GPU is being reset, or devhost may not write to /sys",
    errno.EBUSY: "a process outside the pods of devhost uses a GPU of this driver",
    errno.EINVAL: "the GPU does not have it, or not with its other mode",
    errno.EIO: "this version of the driver cannot change it",
}
"""Likely causes of a refusal."""


class Modes:
    """The partition modes of GPUs. Used by one thread. ``write`` writes to a file in sysfs."""

    def __init__(self, sysfs: Sysfs, write: Callable[[Path, str], None]) -> None:
        self._sysfs = sysfs
        self._write = write
        self._noted: dict[str, tuple[int, str]] = {}

    def change(self, gpu: Adapter, layout: Layout) -> Change | None:
        """What has to be done to give a GPU these modes; ``None`` if it has them, or another driver.

        Raises ``NotYet`` if its driver must be loaded again, ``BackendError`` if it does not have such a
        mode.
        """
        if gpu.driver != DRIVER or not self._sysfs.exists(gpu.path):
            return None
        if layout.memory and (change := self._change(gpu, MEMORY, layout.memory)):
            if self._noted.get(gpu.address) == (self._identity(gpu), layout.memory):
                raise _reload(gpu, layout.memory)
            return change
        self._noted.pop(gpu.address, None)
        return self._change(gpu, COMPUTE, layout.compute) if layout.compute else None

    def _change(self, gpu: Adapter, kind: str, wanted: str) -> Change | None:
        present = self._sysfs.text(_file(gpu, kind))
        if present == wanted:
            return None
        if not self._sysfs.exists(_file(gpu, kind)):
            raise BackendError(f"{gpu.id} has no {kind} modes (its driver has no current_{kind}_partition)")
        if not _MODE.fullmatch(present):
            raise NotYet(f"the driver does not report the {kind} mode of {gpu.id} now")
        has = re.findall(r"\w+", self._sysfs.text(f"{gpu.path}/available_{kind}_partition"))
        if has and wanted not in has:
            raise BackendError(f"{gpu.id} cannot change from {present} to {wanted}, only to {', '.join(has)}")
        make = self._note if kind == MEMORY else self._switch
        return Change(present, wanted, partial(make, gpu, wanted), replaces=kind == COMPUTE)

    def _switch(self, gpu: Adapter, wanted: str) -> None:
        self._set(gpu, COMPUTE, wanted)
        if (present := self._sysfs.text(_file(gpu, COMPUTE))) != wanted:
            raise BackendError(f"{gpu.id} stays in {present}, not {wanted} (see the kernel's log)")

    def _note(self, gpu: Adapter, wanted: str) -> None:
        self._set(gpu, MEMORY, wanted)
        self._noted[gpu.address] = self._identity(gpu), wanted
        raise _reload(gpu, wanted)

    def _set(self, gpu: Adapter, kind: str, wanted: str) -> None:
        try:
            self._write(Path(self._sysfs.prefix + _file(gpu, kind)), wanted)
        except OSError as error:
            text = f"the kernel refuses {wanted} for {gpu.id}: {refusal(error, _HINTS)}"
            raise BackendError(text) from error

    def _identity(self, gpu: Adapter) -> int:
        """Identifies one loading of the driver, which creates the file."""
        return self._sysfs.inode(_file(gpu, MEMORY))


def _file(gpu: Adapter, kind: str) -> str:
    return f"{gpu.path}/current_{kind}_partition"


def _reload(gpu: Adapter, wanted: str) -> NotYet:
    return NotYet(
        f"{gpu.id} changes to {wanted} when its driver is loaded again (drain the node, run modprobe -r "
        f"{DRIVER}, then modprobe {DRIVER})"
    )
