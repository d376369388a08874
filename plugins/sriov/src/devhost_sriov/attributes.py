"""What a configuration can say of a function: the declaration of its attributes, and their values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from devhost.backend import Attribute, AttributeValue

from .model import ETHERNET, INFINIBAND, VDPA_TYPES, Facts, Function, Interface, Kind, Snapshot
from .netlink import MODES

LINK_TYPES = {ETHERNET: "ether", INFINIBAND: "infiniband"}
"""Words for the kinds of interface, as ``ip link`` writes them."""

OPERATIONAL_STATES = ("up", "down", "lowerlayerdown", "dormant", "testing", "notpresent", "unknown")
"""What ``operstate`` can say (RFC 2863; kernel, net/core/net-sysfs.c)."""

ATTRIBUTES = {
    "kind": Attribute(
        str, "physical, virtual or scalable function", "vf", words=tuple(kind.value for kind in Kind)
    ),
    "vendor": Attribute(str, "vendor id of the PCI function", "8086", hex=True),
    "device": Attribute(str, "device id of the PCI function", "1889", hex=True),
    "subsystemVendor": Attribute(
        str, "vendor id of the subsystem, mostly the board's maker", "8086", hex=True
    ),
    "subsystemDevice": Attribute(str, "device id of the subsystem", "0000", hex=True),
    "pciClass": Attribute(str, "class, subclass and interface, six hex digits", "020000", hex=True),
    "driver": Attribute(str, "driver it is bound to", "vfio-pci"),
    "pciBusID": Attribute(str, "address of the PCI function it is or lies on", "0000:3b:02.3", hex=True),
    "pcieRoot": Attribute(str, "PCI root complex it is below", "pci0000:3a", hex=True),
    "numaNode": Attribute(int, "NUMA node it is near", 0),
    "iommuGroup": Attribute(int, "number of its IOMMU group", 42),
    "acpiIndex": Attribute(int, "number that the firmware gives to a device of the board", 1),
    "pfName": Attribute(
        str,
        "network interface of the physical function that it is a part of; kept while in a pod",
        "ens1f0np0",
    ),
    "pfNames": Attribute(
        list, "all network interfaces of that function, one for each of its ports", ("ens1f0np0",)
    ),
    "pfPciBusID": Attribute(
        str, "address of the physical function it is a part of", "0000:3b:00.0", hex=True
    ),
    "vfIndex": Attribute(int, "number of a virtual function, from 0", 3),
    "sfNum": Attribute(int, "number that a scalable function was given by whoever made it", 88),
    "totalVfs": Attribute(int, "how many virtual functions a physical one can have", 64),
    "numVfs": Attribute(int, "how many virtual functions a physical one has", 8),
    "netDevs": Attribute(
        list, "its own network interfaces, without representors; kept while in a pod", ("ens1f0v3",)
    ),
    "mac": Attribute(
        str,
        "hardware address of the first interface, else the one set for a virtual function",
        "02:00:5e:10:00:01",
        hex=True,
    ),
    "linkType": Attribute(
        str,
        "of its interface, else of its physical function",
        "ether",
        words=tuple(LINK_TYPES.values()),
    ),
    "linkState": Attribute(str, "operational state of its first interface", "up", words=OPERATIONAL_STATES),
    "mtu": Attribute(int, "bytes in one packet of its first interface; kept while in a pod", 1500),
    "eswitchMode": Attribute(
        str, "mode of the embedded switch it belongs to", "switchdev", words=tuple(MODES.values())
    ),
    "representor": Attribute(str, "interface that stands for it in the embedded switch", "ens1f0npf0vf3"),
    "isRdma": Attribute(bool, "whether it has RDMA devices", True),
    "rdmaDevices": Attribute(list, "names of its RDMA devices", ("mlx5_3",)),
    "pKey": Attribute(str, "partition key of index 0 on its first InfiniBand port", "0x7fff", hex=True),
    "vdpaType": Attribute(
        str, "who uses its vDPA device, by the driver of that", "vhost", words=tuple(VDPA_TYPES.values())
    ),
    "ddpProfile": Attribute(
        str, "name of the DDP package that an Intel adapter has loaded", "GTPv1-C/U IPv4/IPv6 payload"
    ),
}
"""The declaration of the backend's attributes."""

_ROOT = re.compile(r"/(pci[0-9a-f]{4,8}:[0-9a-f]{2})/")


def of_function(function: Function, look: Snapshot, facts: Facts) -> dict[str, AttributeValue]:
    """All attributes of a function; what is not known is left out."""
    found: dict[str, AttributeValue] = {"kind": function.kind.value, "isRdma": bool(function.rdma_devices)}
    found.update((name, text) for name, text in _texts(function, look, facts) if text)
    found.update((name, number) for name, number in _numbers(function) if number is not None)
    found.update((name, several) for name, several in _lists(function, look) if several)
    return found


def _texts(function: Function, look: Snapshot, facts: Facts) -> Iterator[tuple[str, str]]:
    whole = look.physical_of(function)
    representor = look.representors.get(function.id)
    first = _first(function.last_interfaces)
    above = _first(whole.last_interfaces) if whole else None
    root = _ROOT.search(function.path)
    yield "vendor", function.vendor
    yield "device", function.device
    yield "subsystemVendor", function.subsystem_vendor
    yield "subsystemDevice", function.subsystem_device
    yield "pciClass", function.pci_class
    yield "driver", function.driver
    yield "pciBusID", function.address
    yield "pcieRoot", root[1] if root else ""
    yield "pfName", above.name if above else ""
    yield "pfPciBusID", function.parent
    yield "mac", first.mac if first and first.mac else facts.mac
    yield "linkType", _link_type(first) or _link_type(above)
    yield "linkState", _state(_first(function.interfaces))
    yield "eswitchMode", facts.eswitch_mode or _mode(whole or function)
    yield "representor", facts.representor or (representor.name if representor else "")
    yield "pKey", function.pkey
    yield "vdpaType", function.vdpa.type if function.vdpa else ""
    yield "ddpProfile", facts.ddp_profile


def _numbers(function: Function) -> Iterator[tuple[str, int | None]]:
    first = _first(function.last_interfaces)
    yield "numaNode", function.numa_node
    yield "iommuGroup", int(function.iommu_group) if function.iommu_group.isdecimal() else None
    yield "acpiIndex", function.acpi_index
    yield "vfIndex", function.vf_index
    yield "sfNum", function.sf_number
    yield "mtu", first.mtu if first else None
    if function.total_vfs is not None:
        yield "totalVfs", function.total_vfs
        yield "numVfs", function.num_vfs


def _lists(function: Function, look: Snapshot) -> Iterator[tuple[str, tuple[str, ...]]]:
    whole = look.physical_of(function)
    yield "netDevs", tuple(interface.name for interface in function.last_interfaces)
    yield "pfNames", tuple(interface.name for interface in whole.last_interfaces) if whole else ()
    yield "rdmaDevices", function.rdma_devices


def _first(interfaces: tuple[Interface, ...]) -> Interface | None:
    return interfaces[0] if interfaces else None


def _link_type(interface: Interface | None) -> str:
    return LINK_TYPES.get(interface.kind, "") if interface and interface.kind is not None else ""


def _state(interface: Interface | None) -> str:
    return interface.state if interface and interface.state in OPERATIONAL_STATES else ""


def _mode(whole: Function) -> str:
    """What sysfs alone can tell: only a switch that is in use has representors."""
    return "switchdev" if whole.kind is Kind.PHYSICAL and whole.representors else ""
