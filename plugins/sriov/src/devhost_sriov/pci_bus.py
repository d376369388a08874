"""One physical function and its virtual functions, as the kernel lets them be changed through sysfs.

The files are those of Documentation/ABI/testing/sysfs-bus-pci: ``sriov_numvfs``, ``sriov_totalvfs``,
``sriov_drivers_autoprobe`` and ``virtfn<N>`` of a physical function, ``driver_override`` of any, and
``drivers_probe`` of the bus. What the kernel refuses is told in one sentence.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from devhost.backend.errors import BackendError
from devhost.backend.sysfs import BDF, prefix_of, read_line

BUS = "/sys/bus/pci"
INTERFACES = "/sys/class/net"

_VIRTUAL = re.compile(r"virtfn([0-9]+)")

_HINTS = {
    errno.EACCES: "devhost needs a writable /sys",
    errno.EPERM: "devhost needs a writable /sys",
    errno.EROFS: "devhost needs a writable /sys",
    errno.EBUSY: "somebody uses one of them, or the adapter's mode does not allow it",
    errno.ENOENT: "the physical function has no driver that can make any",
    errno.ENOSYS: "its driver makes none",
    errno.EOPNOTSUPP: "its driver makes none, or its firmware has them switched off",
    errno.ENOMEM: "the firmware of the machine gave the adapter too little address space",
    errno.ENOSPC: "the firmware of the machine gave the adapter too few bus numbers",
}
"""What the kernel means by refusing a number of virtual functions (drivers/pci/iov.c and drivers')."""

Write = Callable[[Path, str], None]
"""Writes a text to an existing file with one system call; raises OSError."""


def write(path: Path, text: str) -> None:
    """Writes to a file of sysfs, which takes each ``write`` for a whole.

    Raises:
        OSError: the kernel refuses, or there is no such file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Bus:
    """The PCI bus below a root."""

    def __init__(self, root: Path, write: Write = write) -> None:
        self.write = write
        self._bus = Path(f"{prefix_of(root)}{BUS}")
        self._interfaces = Path(f"{prefix_of(root)}{INTERFACES}")

    def address(self, name: str) -> str:
        """The address of the function that has this interface or this address; empty if there is none."""
        if BDF.fullmatch(name):
            return name if self.path(name).is_dir() else ""
        found = (self._interfaces / name / "device").resolve().name
        return found if BDF.fullmatch(found) else ""

    def has_driver(self, name: str) -> bool:
        """Whether the kernel has a driver of this name for the bus, loaded and ready."""
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
        """Gives a function to ``driver``, or to whichever the kernel prefers if it is empty.

        Raises:
            BackendError: the function did not go there.
        """
        what = f"to bind {address} to {driver}" if driver else f"to give {address} back to its own driver"
        self._write(self.path(address) / "driver_override", driver or "\n", what)
        if self.driver(address):
            self._write(self.path(address) / "driver/unbind", address, what)
        self._write(self._bus / "drivers_probe", address, what)
        if driver and self.driver(address) != driver:
            raise BackendError(f"{address} does not bind to {driver}: the kernel's log says why")

    def _write(self, path: Path, text: str, what: str) -> None:
        try:
            self.write(path, text)
        except OSError as error:
            hint = _HINTS[errno.EROFS] if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else ""
            raise BackendError(f"the kernel refuses {what}: {_said(error, hint)}") from error


class PhysicalFunction:
    """A function that can have virtual ones.

    Args:
        name: what a user calls it.
    """

    def __init__(self, bus: Bus, address: str, name: str) -> None:
        self.address = address
        self.label = address if name in ("", address) else f"{name} ({address})"
        self._bus = bus
        self._path = bus.path(address)

    @property
    def exists(self) -> bool:
        """Whether it is there."""
        return self._path.is_dir()

    @property
    def most(self) -> int | None:
        """How many virtual functions it can have; ``None`` without the capability."""
        text = read_line(str(self._path / "sriov_totalvfs"))
        return int(text) if text.isdecimal() else None

    @property
    def count(self) -> int:
        """How many virtual functions it has. Waits while somebody else changes that."""
        text = read_line(str(self._path / "sriov_numvfs"))
        return int(text) if text.isdecimal() else 0

    @property
    def virtual(self) -> tuple[str, ...]:
        """The addresses of its virtual functions, by their number."""
        try:
            links = list(self._path.glob("virtfn*"))
        except OSError:
            return ()
        found = {int(n[1]): link.resolve().name for link in links if (n := _VIRTUAL.fullmatch(link.name))}
        return tuple(found[number] for number in sorted(found))

    @property
    def mark(self) -> tuple[int, ...]:
        """Differs as soon as its virtual functions are others, even of the same number.

        The inode of a directory in sysfs is never given to a second one (kernel, fs/kernfs/dir.c).
        """
        return tuple(_inode(self._bus.path(address)) for address in (self.address, *self.virtual[:1]))

    def make(self, count: int, *, bound: bool) -> None:
        """Makes virtual functions where there are none; removes all of them with 0.

        Args:
            bound: whether the kernel may give them to their own driver.

        Raises:
            BackendError: the kernel refuses.
        """
        automatic = self._path / "sriov_drivers_autoprobe"
        restored = "" if bound else read_line(str(automatic))  # there is none before Linux 4.12
        try:
            if restored:
                self._bus.write(automatic, "0")
            self._bus.write(self._path / "sriov_numvfs", str(count))
        except OSError as error:
            what = f"{count} virtual functions to" if count else "to remove those of"
            hint = _HINTS.get(error.errno or 0, "")
            raise BackendError(f"the kernel refuses {what} {self.label}: {_said(error, hint)}") from error
        finally:
            if restored:
                self._bus.write(automatic, restored)


def _said(error: OSError, hint: str) -> str:
    words = error.strerror or str(error)
    return f"{words} ({hint})" if hint else words


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0
