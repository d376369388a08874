"""Changes to a physical function and its virtual functions through sysfs.

Files: Documentation/ABI/testing/sysfs-bus-pci: ``sriov_numvfs``, ``sriov_totalvfs``,
``sriov_drivers_autoprobe`` and ``virtfn<N>`` of a physical function, ``driver_override`` of any, and
``drivers_probe`` of the bus.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

from devhost.backend.errors import BackendError
from devhost.backend.netlink import NETWORK
from devhost.backend.sysfs import BDF, PCI_BUS, Sysfs, refusal, write

_BUS = "/sys/bus/pci"

_VIRTUAL = re.compile(r"virtfn[0-9]+")

_READ_ONLY = dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "devhost needs a writable /sys")

_HINTS = _READ_ONLY | {
    errno.EBUSY: "one of them is in use, or the mode of the adapter does not allow it",
    errno.ENOENT: "the driver of the physical function cannot create any",
    errno.ENOSYS: "its driver does not support them",
    errno.EOPNOTSUPP: "its driver does not support them, or its firmware disables them",
    errno.ENOMEM: "the firmware of the machine gave the adapter too little address space",
    errno.ENOSPC: "the firmware of the machine gave the adapter too few bus numbers",
}
"""Likely causes of a refused number of virtual functions (drivers/pci/iov.c and drivers)."""

Write = Callable[[Path, str], None]
"""Writes a text to an existing file with one system call. Raises OSError."""


class Bus:
    """The PCI bus below a root."""

    def __init__(self, root: Path, write: Write = write) -> None:
        self.sysfs = Sysfs(root)
        self._write = write

    def address(self, name: str) -> str:
        """The address of the function with this interface or address; empty if there is none."""
        if BDF.fullmatch(name):
            return name if self.sysfs.exists(f"{PCI_BUS}/{name}") else ""
        found = self.sysfs.device(f"{NETWORK}/{name}/device").rpartition("/")[2]
        return found if BDF.fullmatch(found) else ""

    def has_driver(self, name: str) -> bool:
        return self.sysfs.exists(f"{_BUS}/drivers/{name}")

    def driver(self, address: str) -> str:
        """The driver of a function; empty if it has none."""
        return self.sysfs.target(f"{PCI_BUS}/{address}/driver")

    def write(self, path: str, text: str) -> None:
        """Writes to a file of the kernel. Raises ``OSError``."""
        self._write(Path(self.sysfs.prefix + path), text)

    def bind(self, address: str, driver: str) -> None:
        """Binds a function to ``driver``, or if that is empty to the driver that the kernel chooses.

        Raises ``BackendError`` if the function could not be bound.
        """
        path = f"{PCI_BUS}/{address}"
        try:
            self.write(f"{path}/driver_override", driver or "\n")
            # the override counts only in a probe, and a function that has a driver is not probed
            if self.driver(address):
                self.write(f"{path}/driver/unbind", address)
            self.write(f"{_BUS}/drivers_probe", address)
        except OSError as error:
            what = f"to bind {address} to {driver or 'its default driver'}"
            raise BackendError(f"the kernel refuses {what}: {refusal(error, _READ_ONLY)}") from error
        if driver and self.driver(address) != driver:
            raise BackendError(f"{address} did not bind to {driver} (see the kernel log)")


class PhysicalFunction:
    """A function that can have virtual ones; ``name`` is its name in the configuration."""

    def __init__(self, bus: Bus, address: str, name: str) -> None:
        self.address = address
        self.label = address if name in ("", address) else f"{name} ({address})"
        self._bus = bus
        self._path = f"{PCI_BUS}/{address}"

    @property
    def max_count(self) -> int | None:
        """The largest number of virtual functions; ``None`` without the capability."""
        return self._bus.sysfs.integer(f"{self._path}/sriov_totalvfs")

    @property
    def count(self) -> int:
        """The current number of virtual functions. Blocks while another process changes it."""
        return self._bus.sysfs.integer(f"{self._path}/sriov_numvfs") or 0

    @property
    def virtual(self) -> tuple[str, ...]:
        """The addresses of its virtual functions in the order of their numbers."""
        sysfs = self._bus.sysfs
        links = filter(_VIRTUAL.fullmatch, sysfs.names(self._path))
        return tuple(filter(BDF.fullmatch, (sysfs.target(f"{self._path}/{link}") for link in links)))

    @property
    def mark(self) -> tuple[int, ...]:
        """Identifies its current virtual functions, not only their number.

        The inode of a directory in sysfs is never used again (kernel, fs/kernfs/dir.c).
        """
        paths = (f"{PCI_BUS}/{address}" for address in (self.address, *self.virtual[:1]))
        return tuple(map(self._bus.sysfs.inode, paths))

    def create(self, count: int, *, bound: bool) -> None:
        """Creates virtual functions if there are none; 0 removes all of them.

        With ``bound``, the kernel binds them to their default driver. Raises ``BackendError`` if it refuses.
        """
        automatic = f"{self._path}/sriov_drivers_autoprobe"
        restored = "" if bound else self._bus.sysfs.text(automatic)  # does not exist before Linux 4.12
        try:
            if restored:
                self._bus.write(automatic, "0")
            self._bus.write(f"{self._path}/sriov_numvfs", str(count))
        except OSError as error:
            what = f"to create {count} virtual functions" if count else "to remove the virtual functions"
            text = f"the kernel refuses {what} of {self.label}: {refusal(error, _HINTS)}"
            raise BackendError(text) from error
        finally:
            if restored:
                self._bus.write(automatic, restored)
