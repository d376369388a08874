"""Adapters that are not for pods: those of NVSwitches, and those with the node's own network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rdma_connectx as connectx
import rdma_machines as machines
from rdma_node import Node
from rdma_tree import HDR, RdmaTree, infiniband, roce

from devhost.cli import explain

BRIDGES = [f"0000:{bus}:00.0" for bus in ("05", "06")]
CARD = "0000:c8:00.0"
FABRIC = "it manages the NVSwitches of this machine (SW_MNG in its VPD)"
ROUTE = "eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
ALL = "name: rdma/hca, backend: rdma, share: {replicas: 100, of: all}"


def hgx(root: Path) -> RdmaTree:
    """An HGX B200: ConnectX-7 bridges to the NVSwitches, with the same PCI id as the adapter for pods."""
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
    for number, address in enumerate([*BRIDGES, CARD]):
        card = tree.function(address, "mlx5_core", "15b3:1021", pci_class="0x020700")
        tree.ibdev(card, f"mlx5_{number}", infiniband(HDR), files=connectx.CONNECTX6)
        mark = b"SMDL=SW_MNG" if address in BRIDGES else b"MODL=CX7"
        vpd = b"\x82\x03\x00CX7\x90\x20\x00V3\x0e" + mark + b"\x78"
        (root / "sys/devices" / card / "vpd").write_bytes(vpd)
    return tree


def azure(root: Path) -> RdmaTree:
    """A virtual machine on Azure: eth0 of Hyper-V sends through the virtual function that it is paired with.

    drivers/net/hyperv/netvsc_drv.c, ``netvsc_vf_join``: eth0 is the upper interface of the function's.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", "hv_netvsc")
    card = tree.function("0001:00:02.0", "mlx5_core", "15b3:101a", pci_class="0x020000")
    tree.ibdev(card, "mlx5_an0", roce("enP1s1", "50 Gb/sec (1X HDR)"))
    tree.netdev(card, "enP1s1")
    fast = tree.function("0101:00:00.0", "mlx5_core", "15b3:101e", pci_class="0x020700")
    tree.ibdev(fast, "mlx5_ib0", infiniband(HDR), files=connectx.CONNECTX6)
    tree.netdev("virtual", "eth0")
    tree.link("/sys/class/net/eth0/lower_enP1s1", f"/sys/devices/{card}/net/enP1s1")
    tree.file("/proc/1/net/route", ROUTE)
    return tree


def explained(node: Node, device: str) -> dict[str, Any]:
    done = node.run(explain.command, device, "--output", "json")
    (document,) = json.loads(done.stdout)
    return document


def test_adapters_of_nvswitches_are_not_in_the_default_resource(node: Node) -> None:
    hgx(node.root)
    document = node.discover(ALL)
    assert [device["id"] for device in document["resources"][0]["devices"]] == [CARD]
    assert [(one["device"], one["kind"], one["reason"]) for one in document["refusals"]] == [
        (address, "withheld", f"{FABRIC}; to offer it, add purpose: fabric-management to where")
        for address in BRIDGES
    ]
    found = explained(node, BRIDGES[0])
    assert found["withheld"] == FABRIC
    assert found["attributes"]["purpose"] == "fabric-management"


def test_an_entry_for_their_purpose_gets_them(node: Node) -> None:
    hgx(node.root)
    own = "name: rdma/fabric, backend: rdma, where: {purpose: fabric-management}"
    assert node.offers(ALL, own) == {"rdma/hca": [CARD], "rdma/fabric": BRIDGES}
    assert explained(node, BRIDGES[0])["withheld"] == ""


def test_an_adapter_with_the_nodes_network_is_not_offered_on_azure(node: Node) -> None:
    azure(node.root)
    assert node.offers(ALL) == {"rdma/hca": ["0101:00:00.0"]}
    assert explained(node, "0001:00:02.0")["withheld"] == "it carries the IPv4 default route, through eth0"
    both = "name: rdma/hca, backend: rdma, where: [{isVf: false}, {purpose: node-network}]"
    assert node.offers(both) == {"rdma/hca": ["0001:00:02.0", "0101:00:00.0"]}


def test_a_bond_with_the_default_route_makes_its_adapter_the_nodes(node: Node) -> None:
    tree = connectx.roce_bond(node.root)
    for number in range(2):
        name = f"ens1f{number}np{number}"
        tree.link(f"/sys/class/net/bond0/lower_{name}", f"/sys/class/net/{name}")
    assert node.offers(ALL) == {"rdma/hca": ["0000:af:00.0"]}
    tree.file("/proc/1/net/route", ROUTE.replace("eth0", "bond0"))
    assert node.offers(ALL) == {}
    assert node.offers(f"{ALL}, where: {{purpose: node-network}}") == {"rdma/hca": ["0000:af:00.0"]}


@pytest.mark.parametrize(
    ("machine", "name"), [(machines.software, "dum0"), (machines.siw_below_its_card, "eno2")]
)
def test_a_software_device_on_the_nodes_interface_is_offered(
    node: Node, machine: Callable[[Path], RdmaTree], name: str
) -> None:
    tree = machine(node.root)
    before = node.offers(ALL)
    tree.file("/proc/1/net/route", ROUTE.replace("eth0", name))
    assert node.offers(ALL) == before != {}
