"""Models of machines with all other cards and without any, one function each, with its source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rdma_tree import ACTIVE, CA, DISABLED, EDR, HDR, RNIC, SDR, UNSPECIFIED, Port, RdmaTree, iwarp, roce


def efa(root: Path) -> RdmaTree:
    """An Elastic Fabric Adapter beside an ENA: the RDMA function has no network interface, the other no RDMA.

    drivers/infiniband/hw/efa: ``RDMA_NODE_UNSPECIFIED``, link layer unspecified (sysfs: "Unknown"),
    no management datagrams, no firmware version. The name is the one rdma-core's udev rule gives. Nothing
    there needs the connection manager, so rdma_ucm is not loaded.
    """
    tree = RdmaTree(root, "efa", "ena", without="rdma_ucm")
    card = tree.function("0000:00:06.0", "efa", "1d0f:efa1", numa_node=-1)
    port = Port("Unknown", ACTIVE, EDR)
    tree.ibdev(card, "rdmap0s6", port, node_type=UNSPECIFIED, guid="e1b4:02ff:fe36:0a49")
    network = tree.function("0000:00:05.0", "ena", "1d0f:ec20", numa_node=-1)
    tree.netdev(network, "ens5")
    return tree


def irdma(root: Path) -> RdmaTree:
    """Intel: an E810 with a RoCE and an iWARP function, named by rdma-core's rule, and an X722 that is not.

    drivers/infiniband/hw/irdma: one driver for the auxiliary devices of ice and i40e; the RDMA device hangs
    on the PCI function (``ibdev.dev.parent``), the driver of which is the network's.
    """
    tree = RdmaTree(root, "ice", "i40e", "irdma")
    for number, protocol in enumerate(("roce", "iwarp")):
        netdev = f"ens785f{number}"
        card = tree.function(f"0000:4b:00.{number}", "ice", "8086:1592", below="0000:4a:02.0", numa_node=0)
        tree.auxiliary(card, f"ice.{protocol}.{number}", "irdma.gen_2")
        name, node_type, port = (
            (f"rocep75s0f{number}", CA, roce(netdev, EDR))
            if protocol == "roce"
            else (f"iwp75s0f{number}", RNIC, iwarp(netdev, EDR))
        )
        tree.ibdev(
            card,
            name,
            port,
            node_type=node_type,
            guid=f"6805:caff:fea1:2b0{number}",
            files={"fw_ver": "1.54"},
        )
        tree.netdev(card, netdev)
    card = tree.function("0000:5e:00.0", "i40e", "8086:37d0", below="0000:5d:00.0", numa_node=1)
    tree.auxiliary(card, "i40e.iwarp.0", "irdma.gen_1")
    port = iwarp("eno1", "10 Gb/sec (4X SDR)")
    tree.ibdev(card, "irdma0", port, node_type=RNIC, guid="a4bf:01ff:fe23:1c5a", files={"fw_ver": "6.0"})
    tree.netdev(card, "eno1")
    return tree


def chelsio(root: Path) -> RdmaTree:
    """A T6: the fourth function of the card carries everything, and its one RDMA device has both ports.

    drivers/infiniband/hw/cxgb4/provider.c: ``RDMA_NODE_RNIC``, ``RDMA_CORE_PORT_IWARP``, ``hca_type`` the
    driver's name and ``board_id`` vendor and device. The first port has no cable.
    """
    tree = RdmaTree(root, "cxgb4", "iw_cxgb4")
    card = tree.function("0000:5e:00.4", "cxgb4", "1425:6410", below="0000:5d:00.0", numa_node=0)
    ports = (iwarp("ens6f4", EDR, DISABLED), iwarp("ens6f4d1", EDR))
    files = {"fw_ver": "1.27.5.0", "hca_type": "cxgb4", "board_id": "1425.6410", "hw_rev": "8"}
    tree.ibdev(card, "cxgb4_0", *ports, node_type=RNIC, guid="0007:4347:3b20:0000", files=files)
    tree.netdev(card, "ens6f4", port=0, up=False)
    tree.netdev(card, "ens6f4d1", port=1)
    return tree


def broadcom(root: Path) -> RdmaTree:
    """A BCM57508: RoCE on a function of bnxt_en, through its auxiliary device.

    drivers/infiniband/hw/bnxt_re/main.c, ``bnxt_re_attributes`` and ``dev.parent``.
    """
    tree = RdmaTree(root, "bnxt_en", "bnxt_re")
    card = tree.function("0000:41:00.0", "bnxt_en", "14e4:1750", below="0000:40:01.0", numa_node=2)
    tree.auxiliary(card, "bnxt_en.rdma.0", "bnxt_re.rdma")
    files = {
        "fw_ver": "229.0.139.0",
        "hw_rev": "0x14e4",
        "hca_type": "0x1750",
        "board_id": "BCM957508-P2100G",
    }
    tree.ibdev(card, "bnxt_re0", roce("enp65s0f0np0", HDR), guid="bc97:e1ff:fe6b:4a10", files=files)
    tree.netdev(card, "enp65s0f0np0")
    return tree


def software(root: Path, *, without: str = "", condition: tuple[str, str] | None = None) -> RdmaTree:
    """rxe0 and siw0 on two dummy interfaces, as a virtual machine with Linux 6.12 showed them.

    Neither has a parent: they and their nodes are below ``/sys/devices/virtual``. rxe names its interface in
    ``parent``; siw has no such file. ``condition`` is that of both ports.
    """
    tree = RdmaTree(root, "rdma_rxe", "siw", "dummy", without=without)
    for number in range(2):
        tree.netdev("virtual", f"dum{number}")
    up = condition or ACTIVE
    files = {"parent": "dum0", "node_desc": "rxe"}
    port = replace(roce("dum0", SDR, up), gid_types=("RoCE v2",))
    tree.ibdev("virtual", "rxe0", port, guid="c027:14ff:fea7:e42a", files=files)
    files = {"node_desc": "Software iWARP stack"}
    port = iwarp("dum1", SDR, up)
    tree.ibdev("virtual", "siw0", port, node_type=RNIC, guid="2084:31ff:fe55:fd34", files=files)
    return tree


def siw_below_its_card(root: Path) -> RdmaTree:
    """siw0 as Linux 5.15 makes it: it hangs on what its network interface hangs on.

    drivers/infiniband/sw/siw/siw_main.c of that version, ``siw_device_create``.
    """
    tree = RdmaTree(root, "siw", "ixgbe")
    card = tree.function("0000:02:00.0", "ixgbe", "8086:10fb", below="0000:00:02.0", numa_node=0)
    tree.netdev(card, "eno2")
    files = {"node_desc": "Software iWARP stack"}
    tree.ibdev(card, "siw0", iwarp("", SDR), node_type=RNIC, guid="90e2:baff:fe12:3456", files=files)
    return tree
