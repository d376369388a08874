"""Physical functions of the machine, and the virtual ones that tests make of them."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

from .kernel import run, text

BUS = Path("/sys/bus/pci")
DEVICES = BUS / "devices"
NOTED = Path("/run/devhost/virtual-functions.json")
"""What devhost has made, for its next start."""

GROUP_STATUS = 0x3B67
"""``VFIO_GROUP_GET_STATUS`` (kernel, include/uapi/linux/vfio.h): ``_IO(';', 103)``."""
VIABLE = 1


class Physical:
    """A function that can have virtual ones.

    Args:
        driver: the one of its kind that the machine has.
    """

    def __init__(self, driver: str) -> None:
        self.driver = driver

    @property
    def path(self) -> Path:
        """Its directory in sysfs; another one after it was pulled and plugged."""
        (found,) = (p.parent for p in DEVICES.glob("*/driver") if p.resolve().name == self.driver)
        return found.resolve()

    @property
    def address(self) -> str:
        return self.path.name

    @property
    def interface(self) -> str:
        """Its network interface."""
        (found,) = (self.path / "net").iterdir()
        return found.name

    @property
    def link(self) -> Path:
        """The directory of its network interface."""
        return self.path / "net" / self.interface

    @property
    def count(self) -> int:
        return int(text(self.path / "sriov_numvfs"))

    @property
    def virtual(self) -> list[str]:
        """The addresses of its virtual functions, by number."""
        links = sorted(self.path.glob("virtfn*"), key=lambda link: int(link.name.removeprefix("virtfn")))
        return [link.resolve().name for link in links]

    def make(self, count: int, *, bound: bool = True) -> None:
        """Creates virtual functions, or removes all of them.

        Args:
            bound: whether the kernel binds them to their driver.
        """
        (self.path / "sriov_drivers_autoprobe").write_text("1" if bound else "0")
        (self.path / "sriov_numvfs").write_text(str(count))

    def reset(self) -> None:
        """No virtual functions, and nothing known of any."""
        with suppress(ValueError):  # it was pulled
            self.make(0)
            (self.path / "sriov_drivers_autoprobe").write_text("1")
        NOTED.unlink(missing_ok=True)


def bind(address: str, driver: str) -> None:
    """Gives a function to a driver; to its own if that is empty."""
    if driver:
        run("modprobe", driver)
    function = DEVICES / address
    (function / "driver_override").write_text(driver or "\n")
    if (function / "driver").exists():
        (function / "driver/unbind").write_text(address)
    (BUS / "drivers_probe").write_text(address)


def driver_of(address: str) -> str:
    """The driver of a function; empty if it has none."""
    link = DEVICES / address / "driver"
    return link.resolve().name if link.exists() else ""


def remove(address: str) -> None:
    """Takes a function away from the kernel, as if it were pulled out: for devices that QEMU cannot pull."""
    (DEVICES / address / "remove").write_text("1")


def rescan() -> None:
    """Has the kernel find the functions again that were removed, and give them to their drivers."""
    (BUS / "rescan").write_text("1")


def is_viable(node: str) -> bool:
    """Whether a program that opens this IOMMU group may use all of its functions."""
    group = os.open(node, os.O_RDWR)
    try:
        status = fcntl.ioctl(group, GROUP_STATUS, struct.pack("=II", 8, 0))
    finally:
        os.close(group)
    return bool(struct.unpack("=II", status)[1] & VIABLE)
