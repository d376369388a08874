"""Which nodes hang on the same hardware, so that a group never gets the node of another chip.

A node's *unit* is what it is part of: the PCI function, the USB device, the platform device. Drivers put
devices of their own between a unit and its nodes (an interface of a USB device, a device on the auxiliary
bus, a sound card), which do not count; a disk, or a chip on an I2C bus, is a unit of its own wherever it
is plugged in (Documentation/driver-api/driver-model of the Linux kernel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .sysfs import Kobject, SysTree

_OF_A_UNIT = frozenset({"auxiliary", "hdaudio", "hid", "serial-base", "soundwire", "usb-serial"})
"""Buses whose devices are functions of the unit they hang on."""

_PLUGGED = frozenset({"i2c", "mdev", "mmc", "spi"})
"""Buses whose devices are units, also below a PCI function or a USB device."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a node hangs on.

    ``unit`` is the directory of its unit in sysfs. ``chip`` is the nearest PCI function or USB device, which
    may be the unit; empty where it hangs on neither. ``chain`` is the node's device and all above it.
    """

    unit: str
    chip: str
    chain: frozenset[str]

    @property
    def name(self) -> str:
        """The kernel's name of the unit."""
        return self.unit.rpartition("/")[2]


class Hardware:
    """Finds what nodes hang on. What was read is remembered until :meth:`forget`."""

    def __init__(self, root: Path) -> None:
        self._tree = SysTree(root)

    def forget(self) -> None:
        """Forgets what was read."""
        self._tree.forget()

    def place(self, sys_path: str) -> Place | None:
        """What the device at ``sys_path`` hangs on; ``None`` for one that hangs on no hardware.

        Such are devices of a class below ``/sys/devices/virtual``, and nodes that sysfs does not know.
        """
        chain = self._tree.chain(sys_path) if sys_path else ()
        unit = _unit(chain)
        if unit is None:
            return None
        chip = next((k.path for k in chain if _is_chip(k)), "")
        return Place(unit.path, chip, frozenset(k.path for k in chain))


def closeness(one: Place | None, other: Place | None) -> int:
    """How much of the device tree two nodes of the same hardware share; 0 for nodes of different hardware.

    One unit may be part of the other: an I2C bus of a graphics card. Units beside each other are different
    hardware, and so are the ports of one hub or switch.
    """
    if one is None or other is None or one.chip != other.chip:
        return 0
    if one.unit not in other.chain and other.unit not in one.chain:
        return 0
    return len(one.chain & other.chain)


def _unit(chain: Sequence[Kobject]) -> Kobject | None:
    part = function = None
    for depth, kobject in enumerate(chain):
        if _is_chip(kobject) or kobject.dev_type == "scsi_device":
            return kobject
        if depth == 0:
            continue  # some device nodes are on a bus themselves: /dev/media0, /dev/iio:device0
        if kobject.subsystem in _PLUGGED:
            return kobject
        if kobject.is_class:
            continue
        if kobject.subsystem in _OF_A_UNIT:
            function = function or kobject
        else:
            part = part or kobject
    return part or function


def _is_chip(kobject: Kobject) -> bool:
    return kobject.subsystem == "pci" or kobject.dev_type == "usb_device"
