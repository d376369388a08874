"""Models of machines with NVIDIA cards, one function each, with its source."""

from __future__ import annotations

import shutil
from pathlib import Path

from rdma_tree import (
    ACTIVE,
    DISABLED,
    DOWN,
    EDR,
    HDR,
    INIT,
    Port,
    RdmaTree,
    infiniband,
    roce,
)

CONNECTX6 = {"fw_ver": "20.31.1014", "board_id": "MT_0000000223", "hca_type": "MT4123", "hw_rev": "0"}
CONNECTX5 = {"fw_ver": "16.35.4030", "board_id": "MT_0000000012", "hca_type": "MT4119", "hw_rev": "0"}


def _mellanox(
    tree: RdmaTree,
    address: str,
    number: int,
    *,
    below: str = "0000:3a:00.0",
    ids: str = "15b3:101b",
    pci_class: str = "0x020700",
    numa_node: int = 1,
) -> str:
    """A mlx5 function with its auxiliary devices (drivers/net/ethernet/mellanox/mlx5/core/dev.c)."""
    card = tree.function(address, "mlx5_core", ids, below=below, pci_class=pci_class, numa_node=numa_node)
    tree.auxiliary(card, f"mlx5_core.rdma.{number}", "mlx5_ib.rdma")
    if pci_class == "0x020000":
        tree.auxiliary(card, f"mlx5_core.eth.{number}", "mlx5_core.eth")
    return card


def connectx6_infiniband(
    root: Path, *, without: str = "", condition: tuple[str, str] | None = None
) -> RdmaTree:
    """A ConnectX-6 on a fabric, with IP over InfiniBand.

    Paths: the uevents in the kernel's log message of "RDMA/mlx5: Fix devlink deadlock on net namespace
    deletion" and "net/mlx5: Register mlx5 devices to auxiliary virtual bus" (5.11). Attributes:
    drivers/infiniband/hw/mlx5/main.c, ``mlx5_class_attributes``.

    Args:
        root: where the machine is made.
        without: a module that is not loaded.
        condition: of its port; active if not given.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", "ib_ipoib", without=without)
    card = _mellanox(tree, "0000:3b:00.0", 0)
    port = infiniband(HDR, condition) if condition else infiniband(HDR)
    tree.ibdev(card, "mlx5_0", port, files=CONNECTX6)
    tree.netdev(card, "ib0", kind=32)
    return tree


def infiniband_without_subnet_manager(root: Path) -> RdmaTree:
    """The same card without subnet manager: the link trains, the port stays in INIT (IBTA, 14.4)."""
    return connectx6_infiniband(root, condition=INIT)


def infiniband_unplugged(root: Path) -> RdmaTree:
    """The same card without a cable: polling for a partner."""
    return connectx6_infiniband(root, condition=DOWN)


def infiniband_half_made(root: Path) -> RdmaTree:
    """The moment between ``device_add`` of the RDMA device and that of its uverbs and umad.

    drivers/infiniband/core/device.c, ``ib_register_device``: the directory is there before
    ``enable_device_and_get`` notifies the clients, which create the nodes.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
    card = _mellanox(tree, "0000:3b:00.0", 0)
    bare = Port("InfiniBand", ACTIVE, HDR)
    tree.ibdev(card, "mlx5_0", bare, files=CONNECTX6, uverbs=False)
    return tree


def connectx5_roce(root: Path, *, without: str = "") -> RdmaTree:
    """A ConnectX-5 with two functions, each an RDMA device of one Ethernet port; the second has no cable."""
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", without=without)
    for number, netdev in enumerate(("ens1f0np0", "ens1f1np1")):
        card = _mellanox(
            tree, f"0000:af:00.{number}", number, below="0000:ae:00.0", ids="15b3:1017", pci_class="0x020000"
        )
        up = number == 0
        port = roce(netdev, EDR) if up else roce(netdev, "40 Gb/sec (4X QDR)", DISABLED)
        guid = f"506b:4b03:00c1:7a0{number}"
        tree.ibdev(card, f"mlx5_{number}", port, guid=guid, files=CONNECTX5)
        tree.netdev(card, netdev, up=up)
    return tree


def roce_bond(root: Path) -> RdmaTree:
    """A ConnectX-5 the two ports of which are bonded: one RDMA device for both, on the first function.

    drivers/net/ethernet/mellanox/mlx5/core/lag/lag.c takes the RDMA parts of both functions away and gives
    the first a new one, which drivers/infiniband/hw/mlx5/main.c names ``mlx5_bond_<N>``. Addresses are the
    bond's.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", "bonding")
    for number in range(2):
        card = tree.function(
            f"0000:af:00.{number}", "mlx5_core", "15b3:1017", below="0000:ae:00.0", numa_node=1
        )
        tree.auxiliary(card, f"mlx5_core.eth.{number}", "mlx5_core.eth")
        tree.netdev(card, f"ens1f{number}np{number}")
        if number == 0:
            tree.auxiliary(card, "mlx5_core.rdma.0", "mlx5_ib.rdma")
            tree.ibdev(card, "mlx5_bond_0", roce("bond0", EDR), files=CONNECTX5)
    tree.netdev("virtual", "bond0")
    return tree


def infiniband_and_roce(root: Path) -> RdmaTree:
    """A node with a ConnectX-6 on a fabric and a ConnectX-5 on Ethernet."""
    tree = connectx6_infiniband(root)
    card = _mellanox(tree, "0000:af:00.0", 1, below="0000:ae:00.0", ids="15b3:1017", pci_class="0x020000")
    tree.ibdev(card, "mlx5_1", roce("ens1f0np0", EDR), guid="506b:4b03:00c1:7a00", files=CONNECTX5)
    tree.netdev(card, "ens1f0np0")
    return tree


def connectx3_two_kinds_of_port(root: Path) -> RdmaTree:
    """A ConnectX-3: one function, one RDMA device, port 1 InfiniBand and port 2 Ethernet.

    Linux 6.1, drivers/infiniband/hw/mlx4/main.c; there mlx4 has no auxiliary devices, and each umad an issm.
    """
    tree = RdmaTree(root, "mlx4_core", "mlx4_ib", "mlx4_en")
    card = tree.function("0000:05:00.0", "mlx4_core", "15b3:1003", below="0000:00:03.0", pci_class="0x028000")
    files = {"fw_ver": "2.42.5000", "board_id": "MT_1090111019", "hca_type": "MT4099", "hw_rev": "1"}
    ports = (infiniband("56 Gb/sec (4X FDR)"), roce("ens2d1", "40 Gb/sec (4X FDR10)", smi=True))
    tree.ibdev(card, "mlx4_0", *ports, guid="0002:c903:0031:7a50", files=files)
    tree.netdev(card, "ib0", port=0, kind=32)
    tree.netdev(card, "ens2d1", port=1)
    return tree


def virtual_functions(root: Path, count: int = 4) -> RdmaTree:
    """A ConnectX-6 Dx with virtual functions, each with its own RDMA device.

    Links: Documentation/ABI/testing/sysfs-bus-pci, drivers/pci/iov.c. The system image is the card's, the
    node's GUID each function's own.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
    physical = _mellanox(tree, "0000:3b:00.0", 0, ids="15b3:101d", pci_class="0x020000")
    tree.ibdev(physical, "mlx5_0", roce("ens3f0np0", EDR), files=CONNECTX6)
    tree.netdev(physical, "ens3f0np0")
    virtual = []
    for number in range(count):
        address = f"0000:3b:00.{number + 2}"
        card = _mellanox(tree, address, number + 2, ids="15b3:101e", pci_class="0x020000")
        guid = f"b859:9f03:00d4:3f7{number}"
        port = roce(f"ens3f0v{number}", EDR)
        files = CONNECTX6 | {"sys_image_guid": "b859:9f03:00d4:2f70"}
        tree.ibdev(card, f"mlx5_{number + 2}", port, guid=guid, files=files)
        tree.netdev(card, f"ens3f0v{number}")
        virtual.append(f"/sys/devices/{card}")
    tree.virtual_functions(f"/sys/devices/{physical}", *virtual, total=8)
    return tree


def infiniband_virtual_functions(root: Path) -> RdmaTree:
    """A ConnectX-6 on a fabric with two virtual functions: the first was set up, the second not.

    drivers/infiniband/hw/mlx5/ib_virt.c (``ip link set <pf> vf <n> node_guid``, ``state``): a new one has a
    GUID of zeros, and its port stays down on a link that is up.
    """
    tree = connectx6_infiniband(root)
    virtual = []
    for number, condition in enumerate((ACTIVE, ("1: DOWN", "5: LinkUp"))):
        card = _mellanox(tree, f"0000:3b:00.{number + 1}", number + 1, ids="15b3:101c")
        guid = "0000:0000:0000:0000" if number else "0011:2233:4455:6677"
        tree.ibdev(card, f"mlx5_{number + 1}", infiniband(HDR, condition), guid=guid, files=CONNECTX6)
        virtual.append(f"/sys/devices/{card}")
    tree.virtual_functions("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", *virtual, total=16)
    return tree


def switchdev(root: Path) -> RdmaTree:
    """A ConnectX-6 Dx whose embedded switch is in use: each virtual function has a representor on the host.

    Documentation/networking/{switchdev,representors}.rst: the representors are interfaces of the physical
    function, named by ``phys_port_name``. drivers/infiniband/hw/mlx5/ib_rep.c: its RDMA device gets a port
    for each of them.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
    physical = _mellanox(tree, "0000:3b:00.0", 0, ids="15b3:101d", pci_class="0x020000")
    representors = [f"ens3f0npf0vf{number}" for number in range(2)]
    ports = [roce(netdev, EDR) for netdev in ("ens3f0np0", *representors)]
    tree.ibdev(physical, "mlx5_0", *ports, files=CONNECTX6)
    tree.netdev(physical, "ens3f0np0", phys_port_name="p0")
    virtual = []
    for number, representor in enumerate(representors):
        tree.netdev(physical, representor, phys_port_name=f"pf0vf{number}")
        card = _mellanox(tree, f"0000:3b:00.{number + 2}", number + 2, ids="15b3:101e", pci_class="0x020000")
        guid = f"b859:9f03:00d4:3f7{number}"
        tree.ibdev(card, f"mlx5_{number + 2}", roce(f"ens3f0v{number}", EDR), guid=guid, files=CONNECTX6)
        tree.netdev(card, f"ens3f0v{number}")
        virtual.append(f"/sys/devices/{card}")
    tree.virtual_functions(f"/sys/devices/{physical}", *virtual, total=8)
    return tree


def scalable_function(root: Path) -> RdmaTree:
    """A BlueField-2 with a scalable function: an auxiliary device with its own network and RDMA devices.

    Documentation/networking/device_drivers/ethernet/mellanox/mlx5/switchdev.rst, "Subfunction"; sfnum:
    drivers/net/ethernet/mellanox/mlx5/core/sf/dev/dev.c. Its children hang on it, not on the PCI function.
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
    physical = _mellanox(
        tree, "0000:03:00.0", 0, below="0000:00:01.0", ids="15b3:a2d6", pci_class="0x020000", numa_node=0
    )
    tree.ibdev(physical, "mlx5_0", roce("p0", EDR), files=CONNECTX6)
    tree.netdev(physical, "p0")
    function = tree.auxiliary(physical, "mlx5_core.sf.2", "mlx5_core.sf", {"sfnum": "88"})
    tree.auxiliary(function, "mlx5_core.rdma.2", "mlx5_ib.rdma")
    tree.auxiliary(function, "mlx5_core.eth.2", "mlx5_core.eth")
    tree.ibdev(function, "mlx5_2", roce("en3f0pf0sf88", EDR), guid="0000:00ff:fe00:8888", files=CONNECTX6)
    tree.netdev(function, "en3f0pf0sf88")
    return tree


def connectx8_xdr(root: Path) -> RdmaTree:
    """A ConnectX-8 at XDR: beside mlx5_0 the function has smi1, whose ports are the four planes of the link.

    Linux 6.11, drivers/infiniband/hw/mlx5/main.c: ``get_core_cap_flags`` takes the SMI from a port with
    planes and gives it to the sub-device; drivers/infiniband/core/uverbs_main.c makes no uverbs for
    ``RDMA_DEVICE_TYPE_SMI``. Created by ``rdma dev add smi1 type SMI parent mlx5_0`` (rdma-dev(8)).
    """
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", "ib_ipoib")
    card = _mellanox(tree, "0000:19:00.0", 0, below="0000:18:00.0", ids="15b3:1023", numa_node=0)
    files = {"fw_ver": "40.44.1036", "board_id": "NVD0000000066", "hca_type": "MT4131", "hw_rev": "0"}
    guid = "9c63:c003:00d1:bc6e"
    tree.ibdev(card, "mlx5_0", infiniband("800 Gb/sec (4X XDR)", smi=False), guid=guid, files=files)
    planes = [infiniband("200 Gb/sec (1X XDR)") for _ in range(4)]
    tree.ibdev(card, "smi1", *planes, guid=guid, files=files, uverbs=False)
    tree.netdev(card, "ib0", kind=32)
    return tree


def in_a_pod(root: Path) -> RdmaTree:
    """A RoCE function whose RDMA device and network interface were moved to a pod (netns mode exclusive).

    drivers/infiniband/core/device.c, ``rdma_dev_change_netns``: the device goes out of this namespace's
    ``/sys/class/infiniband`` and its directory ``infiniband`` shows nothing, as does ``net``; the auxiliary
    device stays bound; the classes of uverbs and umad know no namespaces, so these nodes are made again and
    still name their RDMA device.
    """
    tree = connectx5_roce(root)
    leave_for_a_pod(tree, "0000:af:00.0", "mlx5_0", "ens1f0np0")
    return tree


def leave_for_a_pod(tree: RdmaTree, address: str, ibdev: str, netdev: str) -> None:
    """Takes an RDMA device and its interface out of this namespace, as ``rdma dev set netns`` does."""
    card = (tree.root / "sys/bus/pci/devices" / address).resolve()
    for kind, name in (("infiniband", ibdev), ("net", netdev)):
        (tree.root / "sys/class" / kind / name).unlink()
        shutil.rmtree(card / kind / name)


def many(root: Path, count: int = 256) -> RdmaTree:
    """A machine with ``count`` InfiniBand functions, each below its own root port, for measurements."""
    tree = RdmaTree(root, "mlx5_core", "mlx5_ib", "ib_ipoib")
    for number in range(count):
        domain = f"{number // 32:04x}"
        bus = f"{(number % 32) * 8 + 1:02x}"
        card = _mellanox(
            tree,
            f"{domain}:{bus}:00.0",
            number,
            below=f"{domain}:00:{number % 32:02x}.0",
            numa_node=number % 2,
        )
        tree.ibdev(
            card, f"mlx5_{number}", infiniband(HDR), guid=f"b859:9f03:00d4:{number:04x}", files=CONNECTX6
        )
        tree.netdev(card, f"ib{number}", kind=32)
    return tree
