"""The backend keeps the promises that every backend makes, on a machine with what is hard about RDMA."""

from __future__ import annotations

from pathlib import Path

from devhost_rdma import Rdma
from devhost_testing.contract import BackendContract
from rdma_tree import DISABLED, EDR, HDR, RNIC, RdmaTree, infiniband, iwarp, roce


class TestRdmaContract(BackendContract):
    """An XDR adapter with a companion, two RoCE functions, one unhealthy, a scalable function, software."""

    backend = Rdma

    def tree(self, root: Path) -> None:
        tree = RdmaTree(root, "mlx5_core", "mlx5_ib")
        xdr = tree.function("0000:19:00.0", "mlx5_core", "15b3:1023", below="0000:18:00.0")
        tree.ibdev(xdr, "mlx5_0", infiniband(HDR, smi=False))
        tree.ibdev(xdr, "smi1", infiniband(HDR), uverbs=False)
        for number in range(2):
            card = tree.function(f"0000:af:00.{number}", "mlx5_core", "15b3:1017", below="0000:ae:00.0")
            port = roce("ens1f0np0", EDR) if number else roce("ens1f1np1", EDR, DISABLED)
            tree.ibdev(card, f"mlx5_{number + 1}", port)
            tree.netdev(card, f"ens1f{number}np{number}")
        function = tree.auxiliary(card, "mlx5_core.sf.2", "mlx5_core.sf", {"sfnum": "88"})
        tree.ibdev(function, "mlx5_10", roce("en3f0pf0sf88", EDR))
        tree.ibdev("virtual", "siw0", iwarp("lo", EDR), node_type=RNIC)
