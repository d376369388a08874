"""What a configuration can say of an FPGA: its attributes, and those that any PCI function has."""

from __future__ import annotations

from collections.abc import Mapping

from devhost.backend import Attribute, AttributeValue
from devhost.backend.sysfs import PciFunction

from .model import Kind

INTEL, XILINX, OTHER = "intel", "xilinx", "other"
"""Whose FPGA it is, whoever made the board: attribute ``vendor``. Altera's are Intel's, AMD's Xilinx's."""

READY, BUSY, RECONFIGURING, FAILED = "ready", "busy", "reconfiguring", "failed"
"""What the attribute ``regionState`` can be."""

ATTRIBUTES: Mapping[str, Attribute] = {
    "vendor": Attribute(
        str, "whose FPGA it is: `intel`, `xilinx` or `other`", INTEL, words=(INTEL, XILINX, OTHER)
    ),
    "kind": Attribute(str, "`af`, `region` or `card`", "af", words=tuple(kind.value for kind in Kind)),
    "interfaceId": Attribute(
        str,
        "id of the interface that images for the region are made for: 32 digits",
        "69528db6eb31577a8c3668f9faa081f6",
        hex=True,
    ),
    "afuId": Attribute(
        str,
        "id of the accelerator function in a port: 32 digits",
        "d8424dc4a4a3c413f89e433683f9040b",
        hex=True,
    ),
    "intelName": Attribute(
        str,
        "what stands behind `fpga.intel.com/` in resources of Intel's plugin",
        "af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs",
    ),
    "shell": Attribute(str, "XRT: name of the card's base platform", "xilinx_u250_gen3x16_xdma_shell_3_1"),
    "shellTimestamp": Attribute(str, "XRT: when that was built", "1599254400"),
    "shellId": Attribute(str, "XRT: id of that", "12c8fafb0632499db1c0c6676271b8a6", hex=True),
    "xilinxName": Attribute(
        str,
        "what stands behind `amd.com/` in resources of Xilinx's plugin",
        "xilinx_u250_gen3x16_xdma_shell_3_1-0",
    ),
    "bitstreamId": Attribute(str, "id of the static region's image", "23000010a0d1b2c", hex=True),
    "manager": Attribute(
        str, "name of the kernel's FPGA manager, as its driver calls it", "Xilinx Zynq FPGA Manager"
    ),
    "managerState": Attribute(str, "state of the kernel's FPGA manager, in its words", "operating"),
    "regionState": Attribute(
        str, "`ready`, `busy`, `reconfiguring` or `failed`", READY, words=(READY, BUSY, RECONFIGURING, FAILED)
    ),
    "pciBusID": Attribute(str, "PCI address", "0000:3b:00.0", hex=True),
    "numaNode": Attribute(int, "NUMA node it is near", 0),
    "driver": Attribute(str, "kernel driver of its PCI function or platform device", "dfl-pci"),
    "serial": Attribute(str, "serial number of the card", "2130048AK02K"),
    "ports": Attribute(int, "how many ports a region has", 2),
    "isVf": Attribute(bool, "whether it lies on an SR-IOV virtual function", False),
    "vendorID": Attribute(str, "PCI vendor id", "8086", hex=True),
    "deviceID": Attribute(str, "PCI device id", "0b30", hex=True),
    "subsystemVendorID": Attribute(str, "PCI vendor id of the board", "8086", hex=True),
    "subsystemDeviceID": Attribute(str, "PCI device id of the board", "0000", hex=True),
}
"""The declaration of the backend's attributes."""


def present(values: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """The attributes that there are: what is empty or ``None`` is left out."""
    return {name: value for name, value in values.items() if value not in (None, "", ())}


def of_pci(function: PciFunction | None) -> dict[str, AttributeValue | None]:
    """What sysfs tells of any PCI function; nothing of what is on no PCI bus."""
    if function is None:
        return {}
    return {
        "pciBusID": function.address,
        "numaNode": function.numa_node,
        "driver": function.driver,
        "isVf": function.is_virtual,
        "vendorID": function.vendor,
        "deviceID": function.device,
        "subsystemVendorID": function.subsystem_vendor,
        "subsystemDeviceID": function.subsystem_device,
    }
