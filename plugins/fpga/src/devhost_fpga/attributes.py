"""The attributes of an FPGA, and those of any PCI function."""

from __future__ import annotations

from collections.abc import Mapping

from devhost.backend import Attribute, AttributeValue, Device, Health
from devhost.backend.model import present
from devhost.backend.sysfs import PciFunction

from .model import DeviceKind, ParentDevice

INTEL, XILINX, OTHER = "intel", "xilinx", "other"
"""Vendor of the FPGA chip, not of the board: attribute ``vendor``. Altera counts as Intel, AMD as Xilinx."""

READY, BUSY, RECONFIGURING, FAILED = "ready", "busy", "reconfiguring", "failed"
"""Values of the attribute ``regionState``."""

ATTRIBUTES: Mapping[str, Attribute] = {
    "vendor": Attribute(
        str, "vendor of the chip: `intel`, `xilinx` or `other`", INTEL, words=(INTEL, XILINX, OTHER)
    ),
    "kind": Attribute(str, "`af`, `region` or `card`", "af", words=tuple(kind.value for kind in DeviceKind)),
    "interfaceId": Attribute(
        str,
        "interface id of the region, which images must match: 32 digits",
        "69528db6eb31577a8c3668f9faa081f6",
        hex=True,
    ),
    "afuId": Attribute(
        str,
        "id of the accelerator function: 32 digits",
        "d8424dc4a4a3c413f89e433683f9040b",
        hex=True,
    ),
    "intelName": Attribute(
        str,
        "name after `fpga.intel.com/` in resource names of the Intel device plugin",
        "af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs",
    ),
    "shell": Attribute(
        str, "XRT: name of the shell, the card's base platform", "xilinx_u250_gen3x16_xdma_shell_3_1"
    ),
    "shellTimestamp": Attribute(str, "XRT: build time of the shell", "1599254400"),
    "shellId": Attribute(str, "XRT: id of the shell", "12c8fafb0632499db1c0c6676271b8a6", hex=True),
    "xilinxName": Attribute(
        str,
        "name after `amd.com/` in resource names of the Xilinx device plugin",
        "xilinx_u250_gen3x16_xdma_shell_3_1-0",
    ),
    "bitstreamId": Attribute(str, "id of the image in the static region", "23000010a0d1b2c", hex=True),
    "manager": Attribute(
        str, "name that the driver of the FPGA manager gives it", "Xilinx Zynq FPGA Manager"
    ),
    "managerState": Attribute(str, "state of the FPGA manager, as the kernel names it", "operating"),
    "regionState": Attribute(
        str, "`ready`, `busy`, `reconfiguring` or `failed`", READY, words=(READY, BUSY, RECONFIGURING, FAILED)
    ),
    "pciBusID": Attribute(str, "PCI address", "0000:3b:00.0", hex=True),
    "numaNode": Attribute(int, "NUMA node", 0),
    "driver": Attribute(str, "kernel driver of its PCI function or platform device", "dfl-pci", plain=True),
    "serial": Attribute(str, "serial number of the card", "2130048AK02K"),
    "ports": Attribute(int, "number of ports of a region", 2),
    "isVf": Attribute(bool, "whether it is on an SR-IOV virtual function", False),
    "vendorID": Attribute(str, "PCI vendor id", "8086", hex=True),
    "deviceID": Attribute(str, "PCI device id", "0b30", hex=True),
    "subsystemVendorID": Attribute(str, "PCI vendor id of the board", "8086", hex=True),
    "subsystemDeviceID": Attribute(str, "PCI device id of the board", "0000", hex=True),
}
"""The attributes of the backend."""


def _of_pci(function: PciFunction | None) -> dict[str, AttributeValue | None]:
    """Attributes that every PCI function has; none for a device that is not on a PCI bus."""
    if function is None:
        return {}
    return {
        "pciBusID": function.address,
        "driver": function.driver,
        "isVf": function.is_virtual,
        "vendorID": function.vendor,
        "deviceID": function.device,
        "subsystemVendorID": function.subsystem_vendor,
        "subsystemDeviceID": function.subsystem_device,
    }


def device(
    place: ParentDevice,
    facts: Mapping[str, AttributeValue | None],
    claims: frozenset[str],
    health: Health,
    *,
    name: str = "",
    outer: frozenset[str] = frozenset(),
    withheld: str | None = None,
) -> Device:
    """The device at a place, with the attributes of its PCI function.

    Args:
        name: its id, if that is not the place's.
        outer: claims of what it is part of, besides the place.
    """
    return Device(
        id=name or place.name,
        attributes=present({**_of_pci(place.function), "numaNode": place.numa_node, **facts}),
        claims=claims,
        part_of=(outer | place.parts) - claims,
        numa_nodes=() if place.numa_node is None else (place.numa_node,),
        pcie_path=place.pcie_path,
        health=health,
        withheld=withheld,
    )
