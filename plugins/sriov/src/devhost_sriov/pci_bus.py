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
from devhost.backend.sysfs import BDF, prefix_of, read_line, write

BUS = "/sys/bus/pci"
INTERFACES = "/sys/class/net"

_VIRTUAL = re.compile(r"virtfn([0-9]+)")

_HINTS = {
    errno.EACCES: "devhost needs a writable /sys",
    errno.EPERM: "devhost needs a writable /sys",
    errno.EROFS: "devhost needs a writable /sys",
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
        self.write = write
        self._bus = Path(f"{prefix_of(root)}{BUS}")
        self._interfaces = Path(f"{prefix_of(root)}{INTERFACES}")

    def address(self, name: str) -> str:
        """The address of the function with this interface or address; empty if there is none."""
        if BDF.fullmatch(name):
            return name if self.path(name).is_dir() else ""
        found = (self._interfaces / name / "device").resolve().name
        return found if BDF.fullmatch(found) else ""

    def has_driver(self, name: str) -> bool:
        return (self._bus / "drivers" / name).is_dir()

    def path(self, address: str) -> Path:
        """The directory of a function."""
        return self._bus / "devices" / address

    def driver(self, address: str) -> str:
        """The driver of a function; empty if it has none."""
        try:
            return (self.path(address) / "driver").readlink().name
        except OSError:
            return ""

    def bind(self, address: str, driver: str) -> None:
        """Binds a function to ``driver``, or if that is empty to the driver that the kernel chooses.

        Raises ``BackendError`` if the function could not be bound.
        """
        what = f"to bind {address} to {driver}" if driver else f"to bind {address} to its default driver"
        self._write(self.path(address) / "driver_override", driver or "\n", what)
        # the override counts only in a probe, and a function that has a driver is not probed
        if self.driver(address):
            self._write(self.path(address) / "driver/unbind", address, what)
        self._write(self._bus / "drivers_probe", address, what)
        if driver and self.driver(address) != driver:
            raise BackendError(f"{address} did not bind to {driver} (see the kernel log)")

    def _write(self, path: Path, text: str, what: str) -> None:
        try:
            self.write(path, text)
        except OSError as error:
            hint = _HINTS[errno.EROFS] if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else ""
            raise BackendError(f"the kernel refuses {what}: {_reason(error, hint)}") from error


class PhysicalFunction:
    """A function that can have virtual ones; ``name`` is its name in the configuration."""

    def __init__(self, bus: Bus, address: str, name: str) -> None:
        self.address = address
        self.label = address if name in ("", address) else f"{name} ({address})"
        self._bus = bus
        self._path = bus.path(address)

    @property
    def exists(self) -> bool:
        return self._path.is_dir()

    @property
    def max_count(self) -> int | None:
        """The largest number of virtual functions; ``None`` without the capability."""
        text = read_line(str(self._path / "sriov_totalvfs"))
        return int(text) if text.isdecimal() else None

    @property
    def count(self) -> int:
        """The current number of virtual functions. Blocks while another process changes it."""
        text = read_line(str(self._path / "sriov_numvfs"))
        return int(text) if text.isdecimal() else 0

    @property
    def virtual(self) -> tuple[str, ...]:
        """The addresses of its virtual functions in the order of their numbers."""
        try:
            links = list(self._path.glob("virtfn*"))
        except OSError:
            return ()
        found = {int(n[1]): link.resolve().name for link in links if (n := _VIRTUAL.fullmatch(link.name))}
        return tuple(found[number] for number in sorted(found) if BDF.fullmatch(found[number]))

    @property
    def mark(self) -> tuple[int, ...]:
        """Identifies its current virtual functions, not only their number.

        The inode of a directory in sysfs is never used again (kernel, fs/kernfs/dir.c).
        """
        return tuple(_inode(self._bus.path(address)) for address in (self.address, *self.virtual[:1]))

    def create(self, count: int, *, bound: bool) -> None:
        """Creates virtual functions if there are none; 0 removes all of them.

        With ``bound``, the kernel binds them to their default driver. Raises ``BackendError`` if it refuses.
        """
        automatic = self._path / "sriov_drivers_autoprobe"
        restored = "" if bound else read_line(str(automatic))  # does not exist before Linux 4.12
        try:
            if restored:
                self._bus.write(automatic, "0")
            self._bus.write(self._path / "sriov_numvfs", str(count))
        except OSError as error:
            what = (
                f"to create {count} virtual functions of" if count else "to remove the virtual functions of"
            )
            hint = _HINTS.get(error.errno or 0, "")
            raise BackendError(f"the kernel refuses {what} {self.label}: {_reason(error, hint)}") from error
        finally:
            if restored:
                self._bus.write(automatic, restored)


def _reason(error: OSError, hint: str) -> str:
    reason = error.strerror or str(error)
    return f"{reason} ({hint})" if hint else reason


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
