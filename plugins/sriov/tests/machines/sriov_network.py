"""Models of machines with network adapters, one function each, with its source."""

from __future__ import annotations

from pathlib import Path

from sriov_tree import SriovTree

CONNECTX6_DX, CONNECTX6_DX_VF = "15b3:101d", "15b3:101e"
"""``pci.ids``: MT2892, ConnectX Family mlx5Gen Virtual Function."""


def igb(root: Path, count: int = 4, *, up: bool = True) -> SriovTree:
    """An 82576 with virtual functions, as QEMU emulates it, without a NUMA node.

    A recording of Linux 6.12 on QEMU 10: functions of one port at every second address from 02:10.0 on,
    names by udev's ``pci-onboard``/``path`` scheme, ``phys_port_name`` and ``phys_switch_id`` are errors.
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:02:00.0",
        "8086:10c9",
        "igb",
        below="0000:00:05.0",
        subsystem="1af4:1100",
        numa_node=-1,
        group=10,
        total=7,
    )
    tree.netdev(physical, "enp2s0", up=up)
    for number in range(count):
        address = f"0000:02:1{number // 4}.{number % 4 * 2}"
        path = tree.virtual(physical, address, "8086:10ca", "igbvf", group=12 + number)
        tree.netdev(path, f"enp2s0v{number}", up=False)
    return tree


def mlx5_switchdev(root: Path) -> SriovTree:
    """A ConnectX-6 Dx with two functions on one switch, virtual and scalable functions, and representors.

    Documentation/networking/{switchdev,representors}.rst; Documentation/networking/devlink/devlink-port.rst
    (names ``pf0vf1``, ``pf0sf88``); drivers/net/ethernet/mellanox/mlx5/core/{lag/mpesw.c,eswitch_offloads.c}:
    in a LAG both functions have the same switch id. The uplink is the interface with the name ``p0``. Beside
    each uplink is the representor of the function itself, ``pf0``, as on adapters with a CPU, which have it,
    and one of another machine's, ``c1pf0vf0``.
    """
    tree = SriovTree(root)
    for port in range(2):
        physical = tree.function(
            f"0000:3b:00.{port}",
            CONNECTX6_DX,
            "mlx5_core",
            below="0000:3a:00.0",
            subsystem="15b3:0016",
            numa_node=1,
            group=30 + port,
            total=8,
        )
        # in the order of the alphabet the representors come first
        tree.netdev(physical, f"ens3f{port}np{port}", port_name=f"p{port}")
        for name in (f"c1pf{port}vf0", f"pf{port}"):
            tree.netdev(physical, f"ens3f{port}a{name}", port_name=name)
        tree.rdma(physical, f"mlx5_{port}")
        for number in range(2):
            tree.netdev(physical, f"ens3f{port}npf{port}vf{number}", port_name=f"pf{port}vf{number}")
            address = f"0000:3b:0{port}.{number + 2}"
            path = tree.virtual(physical, address, CONNECTX6_DX_VF, "mlx5_core", group=40 + 4 * port + number)
            tree.netdev(path, f"ens3f{port}v{number}")
            tree.rdma(path, f"mlx5_{2 + 2 * port + number}")
    physical = "pci0000:3a/0000:3a:00.0/0000:3b:00.0"
    for number, sfnum in ((2, 88), (3, 89)):
        tree.netdev(physical, f"en3f0pf0sf{sfnum}r", port_name=f"pf0sf{sfnum}")
        path = tree.scalable(physical, f"mlx5_core.sf.{number}", sfnum)
        tree.netdev(path, f"enp59s0f0s{sfnum}")
        tree.rdma(path, f"mlx5_{number + 8}")
    return tree


def i40e_with_vfio(root: Path) -> SriovTree:
    """An XL710 in legacy mode: two virtual functions with iavf, two bound to vfio-pci, which share a group.

    Documentation/networking/device_drivers/ethernet/intel/{i40e,iavf}.rst; the group: a root port without
    ACS (drivers/iommu/iommu.c, ``pci_device_group``).
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:5e:00.0",
        "8086:1583",
        "i40e",
        below="0000:5d:00.0",
        subsystem="8086:0002",
        group=50,
        total=64,
        files={"acpi_index": "3"},
    )
    tree.netdev(physical, "eno3", mtu=9000)
    for number in range(4):
        bound = number > 1
        group = 60 + min(number, 2)
        driver = "vfio-pci" if bound else "iavf"
        path = tree.virtual(physical, f"0000:5e:02.{number}", "8086:154c", driver, group=group)
        if bound:
            tree.vfio(path)
        else:
            tree.netdev(path, f"eno3v{number}")
    return tree


def bnxt_switchdev(root: Path) -> SriovTree:
    """A BCM57414 in switchdev mode, whose representors hang on nothing.

    drivers/net/ethernet/broadcom/bnxt/bnxt_vfr.c: ``bnxt_vf_rep_netdev_init`` sets no parent,
    ``bnxt_vf_rep_get_phys_port_name`` gives ``pf<N>vf<N>``; the physical function has ``p<N>``.
    """
    tree = SriovTree(root)
    switch = "000af7fffe6e0a50"
    for port in range(2):
        physical = tree.function(
            f"0000:86:00.{port}", "14e4:16d7", "bnxt_en", below="0000:85:00.0", numa_node=1, total=16
        )
        tree.netdev(physical, f"ens5f{port}np{port}", port_name=f"p{port}", switch=switch)
    for number in range(2):
        tree.netdev("virtual", f"eth{number}", port_name=f"pf0vf{number}", switch=switch)
        path = tree.virtual(
            "pci0000:85/0000:85:00.0/0000:86:00.0", f"0000:86:02.{number}", "14e4:16dc", "bnxt_en"
        )
        tree.netdev(path, f"ens5f0v{number}")
    tree.netdev("virtual", "veth1a2b3c")
    tree.netdev("virtual", "other0", port_name="pf0vf0", switch="ffff")
    return tree


def connectx_infiniband(root: Path) -> SriovTree:
    """A ConnectX-6 on a fabric; its virtual functions are in separate partitions.

    Documentation/ABI/stable/sysfs-class-infiniband (``pkeys``); drivers/infiniband/ulp/ipoib: interfaces of
    type 32 with addresses of 20 bytes, beside one for each partition.
    """
    tree = SriovTree(root)
    physical = tree.function(
        "0000:af:00.0", "15b3:101b", "mlx5_core", below="0000:ae:00.0", pci_class="0x020700", total=8
    )
    tree.netdev(physical, "ib0", kind=32, mtu=4092)
    tree.rdma(physical, "mlx5_0", link_layer="InfiniBand")
    for number, pkey in enumerate(("0xffff", "0x8001")):
        path = tree.virtual(physical, f"0000:af:00.{number + 1}", "15b3:101c", "mlx5_core")
        tree.netdev(path, f"ib{number + 1}", kind=32, mtu=4092, up=False)
        tree.rdma(path, f"mlx5_{number + 1}", link_layer="InfiniBand", pkey=pkey)
    return tree


def connectx3_two_ports(root: Path) -> SriovTree:
    """A ConnectX-3: one function with two Ethernet ports, which differ in ``dev_port`` (mlx4)."""
    tree = SriovTree(root)
    physical = tree.function("0000:05:00.0", "15b3:1003", "mlx4_core", pci_class="0x028000", total=16)
    tree.netdev(physical, "ens2", port=1)
    tree.netdev(physical, "ens2d1", port=0)
    tree.virtual(physical, "0000:05:00.1", "15b3:1004", "mlx4_core")
    return tree


def vdpa(root: Path) -> SriovTree:
    """A ConnectX-6 Dx whose virtual functions have vDPA devices: for vhost, for virtio, and one not bound.

    Documentation/networking/device_drivers/ethernet/mellanox/mlx5 and drivers/vdpa/mlx5/net/mlx5_vnet.c: the
    vDPA device is below the function; its driver determines its use (drivers/vhost/vdpa.c,
    drivers/virtio/virtio_vdpa.c).
    """
    tree = SriovTree(root)
    physical = tree.function("0000:3b:00.0", CONNECTX6_DX, "mlx5_core", below="0000:3a:00.0", total=8)
    tree.netdev(physical, "ens3f0np0")
    for number, driver in enumerate(("vhost_vdpa", "virtio_vdpa", "")):
        path = tree.virtual(physical, f"0000:3b:00.{number + 2}", CONNECTX6_DX_VF, "mlx5_core")
        if driver:
            tree.vdpa(path, f"vdpa{number}", driver)
        else:
            tree.device(f"{path}/vdpa{number}", "vdpa")
    return tree
