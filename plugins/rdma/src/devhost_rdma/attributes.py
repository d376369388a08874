"""The attributes of an RDMA device, and their values."""

from __future__ import annotations

from devhost.backend import Attribute, AttributeValue
from devhost.backend.infiniband import Node, Role
from devhost.backend.model import present
from devhost.backend.purpose import FABRIC_MANAGEMENT, NODE_NETWORK, PURPOSE, purpose_attribute

from .model import LINK_LAYERS, NODE_TYPES, PHYS_STATES, PORT_STATES, TRANSPORTS, Kind, best_port
from .netlink import NETNS_MODES
from .scan import Function, Unit

ATTRIBUTES = {
    "ibDevice": Attribute(str, "name of the RDMA device; of the main one if there are several", "mlx5_0"),
    "ibDevices": Attribute(list, "names of all RDMA devices of the function", ("mlx5_0", "smi1")),
    "nodeType": Attribute(
        str, "node type; iWARP: `rnic`, EFA: `unspecified`", "ca", words=tuple(NODE_TYPES.values())
    ),
    "transport": Attribute(
        str, "transport; InfiniBand and RoCE: `ib`, EFA: `unspecified`", "ib", words=TRANSPORTS
    ),
    "linkLayer": Attribute(
        str,
        "link layer of the first port; RoCE and iWARP: `ethernet`, EFA: `unspecified`",
        "infiniband",
        words=LINK_LAYERS,
    ),
    PURPOSE: purpose_attribute(FABRIC_MANAGEMENT, NODE_NETWORK),
    "vendor": Attribute(str, "vendor id of the PCI function", "15b3", hex=True),
    "device": Attribute(str, "device id of the PCI function", "1021", hex=True),
    "driver": Attribute(
        str, "driver of the function; `rdma_rxe` or `siw` for a software device", "mlx5_core", plain=True
    ),
    "fwVersion": Attribute(str, "version of the firmware", "28.39.1002"),
    "boardId": Attribute(str, "the vendor's id of the board (PSID)", "MT_0000000838"),
    "nodeGuid": Attribute(str, "GUID of the RDMA device", "0c42:a103:00f4:5b2e", hex=True),
    "sysImageGuid": Attribute(
        str, "GUID that the RDMA devices of one adapter share", "0c42:a103:00f4:5b2e", hex=True
    ),
    "portState": Attribute(
        str,
        "`active` if any port is, else the state of the first port",
        "active",
        words=tuple(PORT_STATES.values()),
    ),
    "physState": Attribute(
        str, "physical state of the same port", "link_up", words=tuple(PHYS_STATES.values())
    ),
    "rate": Attribute(
        int, "Gb/s of the fastest active port, rounded down; kept while no port is active", 400, unit="G"
    ),
    "ports": Attribute(int, "number of ports", 1),
    "netDevs": Attribute(
        list, "network interfaces of the function; kept while a pod has them", ("ens1f0np0",)
    ),
    "pciBusID": Attribute(str, "address of its PCI function", "0000:3b:00.0", hex=True),
    "numaNode": Attribute(int, "NUMA node", 0),
    "isVf": Attribute(bool, "whether it is an SR-IOV virtual function", False),
    "pfName": Attribute(
        str, "first network interface of the physical function of a virtual or scalable one", "ens1f0np0"
    ),
    "hasUmad": Attribute(bool, "whether it has a `umad` node, for management datagrams", True),
    "hasIssm": Attribute(bool, "whether it has an `issm` node, for subnet managers", True),
    "hasRdmaCm": Attribute(bool, "whether the node has `rdma_cm`, for connections by address", True),
    "netnsMode": Attribute(
        str,
        "namespace mode of `rdma system`; absent if the kernel does not answer",
        "shared",
        words=tuple(NETNS_MODES.values()),
    ),
}
"""The attributes of the backend."""

KEPT = ("rate", "netDevs", "pfName")
"""Attributes that keep their last value while they cannot be read."""


def of_unit(unit: Unit, *, has_rdma_cm: bool, netns_mode: str | None) -> dict[str, AttributeValue]:
    """All attributes of a function that is present."""
    main, port = unit.main, best_port(unit.main.ports)
    found: dict[str, AttributeValue | None] = {
        "ibDevice": main.name,
        "ibDevices": tuple(device.name for device in unit.devices),
        "nodeType": main.node_type,
        "transport": main.transport,
        "linkLayer": main.ports[0].link_layer if main.ports else "",
        "fwVersion": main.firmware,
        "boardId": main.board,
        "nodeGuid": main.node_guid,
        "sysImageGuid": main.image_guid,
        "portState": port.state if port else "",
        "physState": port.phys_state if port else "",
        # the rate of an idle port is an initial value of the driver
        "rate": port.rate if port and port.active else None,
        "ports": len(main.ports),
        **of_function(unit.function, unit.nodes, has_rdma_cm=has_rdma_cm, netns_mode=netns_mode),
    }
    if unit.function.place.kind is Kind.SOFTWARE:
        if main.node_type == "rnic":
            found["driver"] = "siw"
        elif main.netdev:
            found["driver"] = "rdma_rxe"  # the only one with the file `parent`
        if main.netdev:
            found["netDevs"] = (main.netdev,)
    return present(found)


def of_function(
    function: Function, nodes: tuple[Node, ...], *, has_rdma_cm: bool, netns_mode: str | None
) -> dict[str, AttributeValue]:
    """The attributes that do not depend on the RDMA devices."""
    roles = {node.role for node in nodes}
    return present(
        {
            "vendor": function.vendor,
            "device": function.device,
            "driver": function.driver,
            "netDevs": function.interfaces,
            "pciBusID": function.place.address,
            "numaNode": function.numa_node,
            "isVf": function.is_virtual,
            "pfName": function.parent_interface,
            "hasUmad": Role.UMAD in roles,
            "hasIssm": Role.ISSM in roles,
            "hasRdmaCm": has_rdma_cm,
            "netnsMode": netns_mode,
        }
    )
