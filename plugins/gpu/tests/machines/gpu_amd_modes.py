"""Plays AMD's driver for writes to the files of partition modes, which in a tree change nothing else.

The rules are those of drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c (``amdgpu_gfx_set_compute_partition``),
amdgpu_gmc.c (``current_memory_partition_store``) and aqua_vanjaram.c: an unknown mode, or one that does not
fit the memory mode, is EINVAL; a process that uses any GPU is EBUSY; a GPU in reset is EPERM. A memory mode
is noted, and takes effect when the driver is loaded again, which also chooses the compute mode.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from gpu_amd import mi300x, partition
from gpu_tree import GpuTree

FITTING = {"NPS1": ("SPX", "DPX", "QPX", "CPX"), "NPS4": ("QPX", "CPX")}
"""The compute modes of an MI300X in each memory mode (``__aqua_vanjaram_get_px_mode_info``)."""

CHOSEN = {"NPS1": "SPX", "NPS4": "QPX"}
"""The compute mode of the driver in each memory mode (``__aqua_vanjaram_get_auto_mode``)."""


class AmdDriver:
    """A machine with MI300X, and its driver; ``written`` are all writes that it accepted."""

    def __init__(self, root: Path, compute: str = "SPX", count: int = 2) -> None:
        self.tree: GpuTree = mi300x(root, compute, count=count)
        self.addresses = [f"0000:{0x0C + index * 0x10:02x}:00.0" for index in range(count)]
        self.compute = [compute] * count
        self.memory = ["NPS1"] * count
        self.refuses: dict[str, int] = {}
        """The error of every write for a GPU, by its address."""
        self.written: list[tuple[str, str]] = []
        self.tried = 0
        self.ignores = False
        """Whether it ignores what is written."""
        self._noted: dict[int, str] = {}
        self._show()

    def path(self, address: str) -> str:
        """The directory of a GPU below ``/sys/devices``."""
        root = self.tree.root
        return f"/{(root / 'sys/bus/pci/devices' / address).resolve().relative_to(root.resolve())}"

    def write(self, path: Path, text: str) -> None:
        """A write to a file of a mode."""
        self.tried += 1
        address = path.parent.name
        index = self.addresses.index(address)
        if path.name not in ("current_compute_partition", "current_memory_partition"):
            raise AssertionError(f"nothing else is written: {path}")
        if address in self.refuses:
            number = self.refuses[address]
            raise OSError(number, os.strerror(number), str(path))
        modes = FITTING[self.memory[index]] if "compute" in path.name else FITTING
        if text not in modes:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        self.written.append((address, text))
        if self.ignores:
            return
        if "memory" in path.name:
            self._noted[index] = text
        else:
            self.compute[index] = text
            self._show()

    def forget(self) -> None:
        """The noted memory modes are lost."""
        self._noted.clear()

    def reload(self) -> None:
        """The driver is removed and loaded again."""
        for index, mode in self._noted.items():
            self.memory[index], self.compute[index] = mode, CHOSEN[mode]
        self._noted.clear()
        for path in self.tree.root.rglob("current_memory_partition"):
            shutil.copy(path, fresh := path.with_suffix(".new"))  # the old inode must not be used again
            fresh.replace(path)
        self._show()

    def _show(self) -> None:
        partition(self.tree, self.compute)
        for address, memory in zip(self.addresses, self.memory, strict=True):
            place = f"/sys/bus/pci/devices/{address}"
            self.tree.file(f"{place}/current_memory_partition", memory)
            self.tree.file(f"{place}/available_compute_partition", ", ".join(FITTING[memory]))
