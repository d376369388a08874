"""One PCI function of an XRT card: its role, its shell, its nodes.

XRT's drivers create a platform device for each part of a card below the PCI function, named
``<part>.u.<number>`` by xocl and ``<part>.m.<number>`` by xclmgmt (``XOCL_DEVNAME``, xocl_subdev.c of XRT):
``rom.u.28672``, ``xmc.m.20971520``. The numbers differ from load to load.
"""

from __future__ import annotations

from enum import Enum, auto

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import PciFunction, Sysfs

from . import model, pci_ids


class Role(Enum):
    """The role of a function."""

    USER = auto()
    """Runs the kernels of applications; unprivileged."""
    MANAGEMENT = auto()
    """Resets, flashes and monitors the card; for root."""
    CONTROL = auto()
    """The control function of a card with AMD's ``ami`` driver (AVED: Alveo V80)."""


@frozen
class Identity:
    """The identity of a card; unknown texts are empty.

    ``was_asked`` is whether the user function was asked for the serial number.
    """

    shell: str = ""
    timestamp: str = ""
    shell_id: str = ""
    interface_id: str = ""
    serial: str = ""
    was_asked: bool = False


@frozen
class XrtFunction:
    """A function of a card."""

    role: Role
    pci: PciFunction

    @property
    def path(self) -> str:
        """Its directory, ``/sys/devices/…``."""
        return self.pci.path

    @property
    def slot(self) -> str:
        """Its address without the number of the function, which both functions of a card share."""
        return self.pci.address.rpartition(".")[0]


def function(sysfs: Sysfs, path: str) -> XrtFunction | None:
    """The XRT function at ``path``; ``None`` if it is another function, or gone."""
    if sysfs.hexadecimal(f"{path}/vendor") not in pci_ids.VENDORS:
        return None
    pci = sysfs.pci(path)
    if pci is None or not pci.vendor:
        return None
    # the driver decides first: the numbers of functions differ between versions of XRT
    if sysfs.exists(f"{path}/{pci_ids.USER_FILE}") or pci.driver == pci_ids.USER_DRIVER:
        return XrtFunction(Role.USER, pci)
    if sysfs.exists(f"{path}/{pci_ids.MANAGEMENT_FILE}") or pci.driver == pci_ids.MANAGEMENT_DRIVER:
        return XrtFunction(Role.MANAGEMENT, pci)
    if pci.driver == pci_ids.AMI_DRIVER:
        return XrtFunction(Role.CONTROL, pci)
    if pci_ids.is_user(pci.vendor, pci.device):
        return XrtFunction(Role.USER, pci)
    if pci_ids.is_management(pci.vendor, pci.device):
        return XrtFunction(Role.MANAGEMENT, pci)
    return None


def part(sysfs: Sysfs, path: str, *names: str) -> str:
    """The directory of the first part of a function with one of these names; empty if there is none."""
    found = sysfs.names(path)
    for name in names:
        for entry in found:
            if entry.split(".")[0] == name:
                return f"{path}/{entry}"
    return ""


def identity(sysfs: Sysfs, path: str) -> Identity:
    """The identity of the card by the function at ``path``, without its serial number: xocl need not ask."""
    rom = part(sysfs, path, "rom")
    stamp = sysfs.text(f"{rom}/timestamp") if rom else ""
    return Identity(
        shell=sysfs.text(f"{rom}/VBNV") if rom else "",
        timestamp=stamp if stamp.isdigit() else "",
        shell_id=next(reversed(_ids(sysfs, f"{path}/logic_uuids")), ""),
        interface_id=next(iter(_ids(sysfs, f"{path}/interface_uuids")), ""),
    )


def serial(sysfs: Sysfs, path: str) -> str:
    """The serial number of the card, from the satellite controller, or on a Versal from its sensors.

    On a user function, xocl asks xclmgmt for it through a mailbox (``xmc_get_data``), so avoid that in each
    scan.
    """
    place = part(sysfs, path, "xmc", "hwmon_sdm")
    return sysfs.text(f"{place}/serial_num") if place else ""


def render(sysfs: Sysfs, path: str) -> str:
    """The directory of the DRM render node of a device; empty if there is none."""
    for name in sysfs.names(f"{path}/drm"):
        if name.startswith("renderD"):
            return f"{path}/drm/{name}"
    return ""


def queues(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """The directories of the nodes ``/dev/xfpga/dma.qdma…``, for streams of a shell with QDMA.

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


def _ids(sysfs: Sysfs, path: str) -> list[str]:
    """The UUIDs in a file with one in each line; other lines are ignored."""
    readings = (model.Reading(line) for line in sysfs.text(path).splitlines())
    return [reading.id for reading in readings if reading.id]
