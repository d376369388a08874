"""The attributes of a function, and their values."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from devhost.backend import Attribute, AttributeValue
from devhost.backend.frozen import frozen
from devhost.backend.model import present
from devhost.backend.purpose import (
    FABRIC_MANAGEMENT,
    NODE_NETWORK,
    NODE_STORAGE,
    PURPOSE,
    purpose_attribute,
)
from devhost.backend.sysfs import pcie_root

from .model import ETHERNET, INFINIBAND, VDPA_TYPES, Facts, Function, FunctionKind, Interface, Snapshot
from .netlink import MODES

LINK_TYPES = {ETHERNET: "ether", INFINIBAND: "infiniband"}
"""Names of interface types, as ``ip link`` prints them."""

OPERATIONAL_STATES = ("up", "down", "lowerlayerdown", "dormant", "testing", "notpresent", "unknown")
"""Values of ``operstate`` (RFC 2863; kernel, net/core/net-sysfs.c)."""

ATTRIBUTES = {
    "kind": Attribute(
        str,
        "physical, virtual or scalable function, or mediated device",
        "vf",
        words=tuple(kind.value for kind in FunctionKind),
    ),
    PURPOSE: purpose_attribute(NODE_NETWORK, NODE_STORAGE, FABRIC_MANAGEMENT),
    "vendor": Attribute(str, "vendor id of the PCI function", "8086", hex=True),
    "device": Attribute(str, "device id of the PCI function", "1889", hex=True),
    "subsystemVendor": Attribute(str, "vendor id of the subsystem, usually of the board", "8086", hex=True),
    "subsystemDevice": Attribute(str, "device id of the subsystem", "0000", hex=True),
    "pciClass": Attribute(str, "class, subclass and interface, six hex digits", "020000", hex=True),
    "driver": Attribute(str, "kernel driver", "vfio-pci", plain=True),
    "pciBusID": Attribute(str, "address of its PCI function", "0000:3b:02.3", hex=True),
    "pciSlot": Attribute(str, "its PCI address without the number of the function", "0000:3b:02", hex=True),
    "pcieRoot": Attribute(str, "PCI root complex", "pci0000:3a", hex=True),
    "numaNode": Attribute(int, "NUMA node", 0),
    "iommuGroup": Attribute(int, "number of its IOMMU group", 42),
    "acpiIndex": Attribute(int, "number that the firmware gives an onboard device", 1),
    "pfName": Attribute(
        str,
        "network interface of its physical function; kept while in a pod",
        "ens1f0np0",
    ),
    "pfNames": Attribute(
        list, "all network interfaces of its physical function, one for each port", ("ens1f0np0",)
    ),
    "pfPciBusID": Attribute(
        str,
        "address of its physical function, or of the parent of a mediated device",
        "0000:3b:00.0",
        hex=True,
    ),
    "uuid": Attribute(str, "UUID of a mediated device", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", hex=True),
    "mdevUUID": Attribute(
        str,
        "the same, under the name that KubeVirt reads from the metadata of a claim",
        "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001",
        hex=True,
    ),
    "mdevType": Attribute(str, "name of the type of a mediated device, with `_` for blanks", "GRID_T4-1Q"),
    "vfIndex": Attribute(int, "number of a virtual function, from 0", 3),
    "sfNum": Attribute(int, "user-defined number of a scalable function", 88),
    "totalVfs": Attribute(int, "largest number of virtual functions of a physical one", 64),
    "numVfs": Attribute(int, "current number of virtual functions of a physical one", 8),
    "netDevs": Attribute(
        list, "its network interfaces, without representors; kept while in a pod", ("ens1f0v3",)
    ),
    "mac": Attribute(
        str,
        "hardware address of its first interface, else the one set for a virtual function",
        "02:00:5e:10:00:01",
        hex=True,
    ),
    "linkType": Attribute(
        str,
        "type of its interface, else of that of its physical function",
        "ether",
        words=tuple(LINK_TYPES.values()),
    ),
    "linkState": Attribute(str, "operational state of its first interface", "up", words=OPERATIONAL_STATES),
    "mtu": Attribute(int, "MTU of its first interface; kept while in a pod", 1500),
    "eswitchMode": Attribute(str, "mode of its embedded switch", "switchdev", words=tuple(MODES.values())),
    "representor": Attribute(str, "its representor in the embedded switch", "ens1f0npf0vf3"),
    "isRdma": Attribute(bool, "whether it has RDMA devices", True),
    "rdmaDevices": Attribute(list, "names of its RDMA devices", ("mlx5_3",)),
    "pKey": Attribute(str, "partition key of index 0 on its first InfiniBand port", "0x7fff", hex=True),
    "isVfio": Attribute(bool, "whether programs use it through vfio", True),
    "vgpuType": Attribute(int, "number of its NVIDIA vGPU type; 0 if none is configured", 1145),
    "vdpaType": Attribute(
        str, "type of its vDPA device, by driver", "vhost", words=tuple(VDPA_TYPES.values())
    ),
    "ddpProfile": Attribute(
        str, "DDP package that an Intel adapter has loaded", "GTPv1-C/U IPv4/IPv6 payload"
    ),
    "sysattr.*": Attribute(
        str, "text file in its sysfs directory: sysattr.qat/state, sysattr.numa_node", "up"
    ),
    "pf.sysattr.*": Attribute(
        str, "text file in the sysfs directory of its physical function: pf.sysattr.qat/state", "up"
    ),
}
"""The attributes of the backend."""

OWN_FILE, PHYSICAL_FILE = "sysattr.", "pf.sysattr."
"""The beginnings of attributes that name a file in sysfs."""


@frozen
class NamedFiles:
    """The files of sysfs that the configuration names, of functions and of physical ones."""

    own: frozenset[str] = frozenset()
    physical: frozenset[str] = frozenset()

    @staticmethod
    def of(wanted: Collection[str]) -> NamedFiles:
        """Those that these attributes name."""

        def below(family: str) -> frozenset[str]:
            return frozenset(one.removeprefix(family) for one in wanted if one.startswith(family)) - {""}

        return NamedFiles(below(OWN_FILE), below(PHYSICAL_FILE))


NO_NAMED_FILES = NamedFiles()


def of_function(
    function: Function, snapshot: Snapshot, facts: Facts, files: NamedFiles = NO_NAMED_FILES
) -> dict[str, AttributeValue]:
    """All known attributes of a function, with the files that the configuration names."""
    physical = snapshot.physical_of(function)
    representor = snapshot.representors.get(function.id)
    first = _first(function.last_interfaces)
    above = _first(physical.last_interfaces) if physical else None
    group = function.iommu_group
    found: dict[str, AttributeValue | None] = {
        "kind": function.kind.value,
        "vendor": function.vendor,
        "device": function.device,
        "subsystemVendor": function.subsystem_vendor,
        "subsystemDevice": function.subsystem_device,
        "pciClass": function.pci_class,
        "driver": function.driver,
        "pciBusID": function.address,
        "pciSlot": function.address.rpartition(".")[0],
        "pcieRoot": pcie_root(function.path),
        "numaNode": function.numa_node,
        "iommuGroup": int(group) if group.isdecimal() else None,
        "acpiIndex": function.acpi_index,
        "pfName": above.name if above else "",
        "pfNames": _names(physical.last_interfaces) if physical else (),
        "pfPciBusID": function.parent,
        "vfIndex": function.vf_index,
        "sfNum": function.sf_number,
        "totalVfs": function.total_vfs,
        "numVfs": None if function.total_vfs is None else function.num_vfs,
        "netDevs": _names(function.last_interfaces),
        "mac": first.mac if first and first.mac else facts.mac,
        "linkType": _link_type(first) or _link_type(above),
        "linkState": _state(_first(function.interfaces)),
        "mtu": first.mtu if first else None,
        "eswitchMode": facts.eswitch_mode or _mode(physical or function),
        "representor": facts.representor or (representor.name if representor else ""),
        "isRdma": bool(function.rdma_devices),
        "rdmaDevices": function.rdma_devices,
        "pKey": function.pkey,
        "isVfio": function.uses_vfio,
        "vgpuType": function.vgpu_type,
        "vdpaType": function.vdpa.type if function.vdpa else "",
        "ddpProfile": facts.ddp_profile,
    }
    found.update((OWN_FILE + name, text) for name, text in function.files if name in files.own)
    if physical is not None:
        found.update((PHYSICAL_FILE + name, text) for name, text in physical.files if name in files.physical)
    return present(found)


def _names(interfaces: Iterable[Interface]) -> tuple[str, ...]:
    return tuple(interface.name for interface in interfaces)


def _first(interfaces: tuple[Interface, ...]) -> Interface | None:
    return interfaces[0] if interfaces else None


def _link_type(interface: Interface | None) -> str:
    return LINK_TYPES.get(interface.kind, "") if interface and interface.kind is not None else ""


def _state(interface: Interface | None) -> str:
    return interface.state if interface and interface.state in OPERATIONAL_STATES else ""


def _mode(physical: Function) -> str:
    """The switch mode by sysfs alone: only a switch in use has representors."""
    return "switchdev" if physical.kind is FunctionKind.PHYSICAL and physical.representors else ""
