"""One PCI function of a card that XRT drives: what it is, which shell it runs, which nodes it has.

XRT's drivers give each part of a card a platform device of its own below the PCI function, named
``<part>.u.<number>`` by xocl and ``<part>.m.<number>`` by xclmgmt (``XOCL_DEVNAME``, xocl_subdev.c of XRT):
``rom.u.28672``, ``xmc.m.20971520``. The numbers differ from load to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from devhost.backend.sysfs import PciFunction, Sysfs

from . import model, pci_ids


class Role(Enum):
    """What a function is for."""

    USER = auto()
    """Applications load their kernels and run them here; unprivileged."""
    MANAGEMENT = auto()
    """Resets and flashes the card, and watches over it; for root."""
    CONTROL = auto()
    """The control function of a card with AMD's ``ami`` driver (AVED: Alveo V80)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a card is; empty where it does not say. ``was_asked``: the user function, for its serial."""

    shell: str = ""
    timestamp: str = ""
    shell_id: str = ""
    interface_id: str = ""
    serial: str = ""
    was_asked: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a card. ``slot`` is its address without the number of the function."""

    role: Role
    pci: PciFunction

    @property
    def path(self) -> str:
        """Its directory, ``/sys/devices/…``."""
        return self.pci.path

    @property
    def slot(self) -> str:
        """What both functions of one card have in common."""
        return self.pci.address.rpartition(".")[0]


def function(sysfs: Sysfs, path: str) -> Function | None:
    """The function at ``path`` if it is one of XRT's; ``None`` for any other, and for one that is gone."""
    if sysfs.hexadecimal(f"{path}/vendor") not in pci_ids.VENDORS:
        return None
    pci = sysfs.pci(path)
    if pci is None or not pci.vendor:
        return None
    # the driver's word counts most: which number is which function differs between versions of XRT
    if sysfs.exists(f"{path}/{pci_ids.USER_FILE}") or pci.driver == pci_ids.USER_DRIVER:
        return Function(Role.USER, pci)
    if sysfs.exists(f"{path}/{pci_ids.MANAGEMENT_FILE}") or pci.driver == pci_ids.MANAGEMENT_DRIVER:
        return Function(Role.MANAGEMENT, pci)
    if pci.driver == pci_ids.AMI_DRIVER:
        return Function(Role.CONTROL, pci)
    if pci_ids.is_user(pci.vendor, pci.device):
        return Function(Role.USER, pci)
    if pci_ids.is_management(pci.vendor, pci.device):
        return Function(Role.MANAGEMENT, pci)
    return None


def part(sysfs: Sysfs, path: str, *names: str) -> str:
    """The directory of the first part of a function with one of these names; empty if it has none."""
    found = sysfs.names(path)
    for name in names:
        for entry in found:
            if entry.split(".")[0] == name:
                return f"{path}/{entry}"
    return ""


def identity(sysfs: Sysfs, path: str) -> Identity:
    """What the function at ``path`` says of its card, without its serial number: nothing leaves xocl."""
    rom = part(sysfs, path, "rom")
    stamp = sysfs.text(f"{rom}/timestamp") if rom else ""
    return Identity(
        shell=sysfs.text(f"{rom}/VBNV") if rom else "",
        timestamp=stamp if stamp.isdigit() else "",
        shell_id=_last_id(sysfs, f"{path}/logic_uuids"),
        interface_id=_first_id(sysfs, f"{path}/interface_uuids"),
    )


def serial(sysfs: Sysfs, path: str) -> str:
    """The card's serial number: of the satellite controller, on a Versal of its sensors.

    On a user function xocl asks xclmgmt for it through a mailbox (``xmc_get_data``): not for each scan.
    """
    place = part(sysfs, path, "xmc", "hwmon_sdm")
    return sysfs.text(f"{place}/serial_num") if place else ""


def render(sysfs: Sysfs, path: str) -> str:
    """The directory of a device's DRM render node; empty while its driver has made none."""
    for name in sysfs.names(f"{path}/drm"):
        if name.startswith("renderD"):
            return f"{path}/drm/{name}"
    return ""


def queues(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """The directories of the nodes ``/dev/xfpga/dma.qdma…``: streams of a shell with QDMA go through them.

    Such a node is a device of the class ``xrt_user`` below the part, named ``xfpga!dma.qdma.u.<n>.0``.
    """
    found = []
    for entry in sysfs.names(path):
        if entry.startswith("dma.qdma"):
            below = f"{path}/{entry}/xrt_user"
            found += [f"{below}/{name}" for name in sysfs.names(below) if sysfs.exists(f"{below}/{name}/dev")]
    return tuple(found)


def manager(sysfs: Sysfs, path: str) -> str:
    """The directory of the node ``/dev/xclmgmt<n>`` of a management function (class ``xrt_mgmt``)."""
    for name in sysfs.names(f"{path}/xrt_mgmt"):
        if name.startswith("xclmgmt") and sysfs.exists(f"{path}/xrt_mgmt/{name}/dev"):
            return f"{path}/xrt_mgmt/{name}"
    return ""


def _first_id(sysfs: Sysfs, path: str) -> str:
    lines = _ids(sysfs, path)
    return lines[0] if lines else ""


def _last_id(sysfs: Sysfs, path: str) -> str:
    lines = _ids(sysfs, path)
    return lines[-1] if lines else ""


def _ids(sysfs: Sysfs, path: str) -> list[str]:
    """The UUIDs in a file that has one in each line; what is none is left out."""
    readings = (model.Reading(line) for line in sysfs.text(path).splitlines())
    return [reading.id for reading in readings if reading.id]
