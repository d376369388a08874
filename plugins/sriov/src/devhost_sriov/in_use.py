"""Functions that the node itself uses for mounted file systems.

Controllers that can have virtual functions are devices of this backend, including the one with the node's
root file system. A container may bind its function to another driver, so the node would lose it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from devhost.backend.disks import SWAP, disks
from devhost.backend.sysfs import Sysfs

from .model import Function

UNKNOWN = "it is unknown whether "
"""Begins a clause about a function that may be in use."""

BLOCK = "/sys/class/block"

_CONTROLLER = re.compile(r"nvme[0-9]+")
_SUBSYSTEM = "/sys/devices/virtual/nvme-subsystem/"
"""The disks of NVMe controllers with native multipath (drivers/nvme/host/multipath.c)."""


def in_use(sysfs: Sysfs, functions: Iterable[Function]) -> dict[str, str]:
    """What the node uses controllers for, as a clause, by the id of the function.

    Reads nothing if no function is a controller with a driver for disks.
    """
    controllers = [one for one in functions if _is_controller(one)]
    if not controllers:
        return {}
    known = disks(sysfs)
    found: dict[str, str] = {}
    for path in _block_devices(sysfs):
        name = path.rpartition("/")[2]
        if not (why := _why(sysfs, path, known.carried) or ("" if known.is_complete else _unknown(name))):
            continue
        ways = [f"{way}/" for way in _ways(sysfs, path)]
        for function in controllers:
            if any(way.startswith(f"{function.path}/") for way in ways):
                found.setdefault(function.id, why)
    return found


def _is_controller(function: Function) -> bool:
    """Whether it may have disks: PCI base class 01, and a driver that is not for programs."""
    return function.pci_class.startswith("01") and bool(function.driver) and not function.is_passed_on


def _block_devices(sysfs: Sysfs) -> Iterator[str]:
    """The directories of all disks and partitions."""
    return filter(None, (sysfs.device(f"{BLOCK}/{name}") for name in sysfs.names(BLOCK)))


def _why(sysfs: Sysfs, path: str, carried: Mapping[str, str]) -> str:
    name = path.rpartition("/")[2]
    if what := carried.get(path):
        return f"it carries {what if what == SWAP else f'the file system at {what}'}, on {name}"
    if holders := sysfs.names(f"{path}/holders"):  # sysfs-block: devices on top of it
        return f"it carries {holders[0]}, on {name}"
    return ""


def _unknown(name: str) -> str:
    return f"{UNKNOWN}{name} is in a ZFS pool of the node"


def _ways(sysfs: Sysfs, path: str) -> list[str]:
    """The directories that show the functions of a block device: its own, or those of its controllers."""
    if not path.startswith(_SUBSYSTEM):
        return [path]
    subsystem = "/".join(path.split("/")[:6])
    names = filter(_CONTROLLER.fullmatch, sysfs.names(subsystem))
    return [sysfs.device(f"{subsystem}/{name}") for name in names]
