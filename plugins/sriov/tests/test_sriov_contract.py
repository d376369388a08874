"""The backend keeps the promises that every backend makes, on a machine with what is hard about SR-IOV."""

from __future__ import annotations

from pathlib import Path

from devhost_sriov import Sriov
from devhost_sriov.options import SriovUse
from devhost_testing.contract import BackendContract
from sriov_network import CONNECTX6_DX, CONNECTX6_DX_VF
from sriov_tree import SriovTree


class TestSriovContract(BackendContract):
    """A switch with representors, virtual functions for containers, machines and vDPA, a scalable one."""

    backend = Sriov
    resource_options = (
        SriovUse(),
        SriovUse(rdma=True, kubevirt=True, info={"*": {"a": "b"}}),
        SriovUse(vhost_net=True),
    )

    def tree(self, root: Path) -> None:
        tree = SriovTree(root)
        physical = tree.function(
            "0000:3b:00.0", CONNECTX6_DX, "mlx5_core", below="0000:3a:00.0", group=30, total=8
        )
        tree.netdev(physical, "ens3f0np0", port_name="p0")
        tree.rdma(physical, "mlx5_0")
        plain, bound, shared = (
            tree.virtual(physical, f"0000:3b:00.{number}", CONNECTX6_DX_VF, driver, group=40 + number)
            for number, driver in ((2, "mlx5_core"), (3, "vfio-pci"), (4, "mlx5_core"))
        )
        tree.netdev(physical, "ens3f0npf0vf0", port_name="pf0vf0")
        tree.netdev(plain, "ens3f0v0")
        tree.rdma(plain, "mlx5_2")
        tree.vfio(bound)
        (root / "dev/net").mkdir(parents=True)
        for node in ("dev/vhost-net", "dev/net/tun"):
            (root / node).touch()
        tree.vdpa(shared, "vdpa0", "vhost_vdpa")
        tree.virtual(physical, "0000:3b:00.5", CONNECTX6_DX_VF)
        scalable = tree.scalable(physical, "mlx5_core.sf.2", 88)
        tree.netdev(scalable, "enp59s0f0s88")
        tree.rdma(scalable, "mlx5_10")
        tree.function("0000:00:02.0", "1af4:1001", "virtio-pci", pci_class="0x010000")
