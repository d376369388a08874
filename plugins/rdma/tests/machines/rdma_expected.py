"""What a user is to read of each modelled machine: the whole table that the tests compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import rdma_connectx as connectx
import rdma_machines as machines
from rdma_tree import RdmaTree

from devhost.backend import AttributeValue

Said = dict[str, AttributeValue]

MELLANOX: Said = {"vendor": "15b3", "driver": "mlx5_core", "nodeType": "ca", "transport": "ib"}
INFINIBAND: Said = {"linkLayer": "infiniband", "hasUmad": True, "hasIssm": True, "hasRdmaCm": True}
ROCE: Said = {"linkLayer": "ethernet", "hasUmad": True, "hasIssm": False, "hasRdmaCm": True}
IWARP: Said = {"nodeType": "rnic", "transport": "iwarp", "linkLayer": "ethernet", "hasUmad": False}
UP: Said = {"portState": "active", "physState": "link_up"}


@dataclass(frozen=True)
class Expected:
    """One device: its nodes, by name below ``/dev/infiniband``, and its properties."""

    nodes: str
    attributes: Mapping[str, AttributeValue]
    absent: tuple[str, ...] = ()
    numa: int | None = None
    reason: str = ""


MACHINES: dict[Callable[[Path], RdmaTree], dict[str, Expected]] = {
    connectx.connectx6_infiniband: {
        "0000:3b:00.0": Expected(
            "issm0 rdma_cm umad0 uverbs0",
            MELLANOX
            | INFINIBAND
            | UP
            | {
                "ibDevice": "mlx5_0",
                "ibDevices": ("mlx5_0",),
                "device": "101b",
                "fwVersion": "20.31.1014",
                "boardId": "MT_0000000223",
                "nodeGuid": "b859:9f03:00d4:2f70",
                "rate": 200,
                "ports": 1,
                "netDevs": ("ib0",),
                "pciBusID": "0000:3b:00.0",
                "numaNode": 1,
                "isVf": False,
            },
            absent=("pfName", "netnsMode"),
            numa=1,
        )
    },
    connectx.infiniband_without_subnet_manager: {
        "0000:3b:00.0": Expected(
            "issm0 rdma_cm umad0 uverbs0",
            {"portState": "init", "physState": "link_up"},
            numa=1,
            reason="port 1 is in state init: no subnet manager has configured it",
        )
    },
    connectx.infiniband_unplugged: {
        "0000:3b:00.0": Expected(
            "issm0 rdma_cm umad0 uverbs0",
            {"portState": "down", "physState": "polling"},
            numa=1,
            reason="port 1 is down (phys state: polling)",
        )
    },
    connectx.connectx5_roce: {
        "0000:af:00.0": Expected(
            "rdma_cm umad0 uverbs0",
            MELLANOX
            | ROCE
            | UP
            | {"ibDevice": "mlx5_0", "device": "1017", "rate": 100, "netDevs": ("ens1f0np0",), "isVf": False},
            absent=("pfName",),
            numa=1,
        ),
        "0000:af:00.1": Expected(
            "rdma_cm umad1 uverbs1",
            MELLANOX
            | ROCE
            | {"ibDevice": "mlx5_1", "portState": "down", "physState": "disabled", "netDevs": ("ens1f1np1",)},
            numa=1,
            reason="port 1 is down (phys state: disabled)",
        ),
    },
    connectx.roce_bond: {
        "0000:af:00.0": Expected(
            "rdma_cm umad0 uverbs0", MELLANOX | ROCE | UP | {"ibDevice": "mlx5_bond_0", "ports": 1}, numa=1
        )
    },
    connectx.connectx3_two_kinds_of_port: {
        "0000:05:00.0": Expected(
            "issm0 issm1 rdma_cm umad0 umad1 uverbs0",
            INFINIBAND
            | UP
            | {
                "driver": "mlx4_core",
                "ibDevice": "mlx4_0",
                "ports": 2,
                "rate": 56,
                "netDevs": ("ens2d1", "ib0"),
            },
            numa=0,
        )
    },
    connectx.virtual_functions: {
        "0000:3b:00.0": Expected(
            "rdma_cm umad0 uverbs0",
            MELLANOX | ROCE | UP | {"ibDevice": "mlx5_0", "isVf": False, "device": "101d"},
            absent=("pfName",),
            numa=1,
        )
    }
    | {
        f"0000:3b:00.{number + 2}": Expected(
            f"rdma_cm umad{number + 1} uverbs{number + 1}",
            MELLANOX
            | ROCE
            | UP
            | {
                "ibDevice": f"mlx5_{number + 2}",
                "isVf": True,
                "pfName": "ens3f0np0",
                "device": "101e",
                "netDevs": (f"ens3f0v{number}",),
                "pciBusID": f"0000:3b:00.{number + 2}",
            },
            numa=1,
        )
        for number in range(4)
    },
    connectx.infiniband_virtual_functions: {
        "0000:3b:00.0": Expected("issm0 rdma_cm umad0 uverbs0", INFINIBAND | {"isVf": False}, numa=1),
        "0000:3b:00.1": Expected(
            "issm1 rdma_cm umad1 uverbs1",
            INFINIBAND | UP | {"isVf": True, "pfName": "ib0", "nodeGuid": "0011:2233:4455:6677"},
            absent=("netDevs",),
            numa=1,
        ),
        "0000:3b:00.2": Expected(
            "issm2 rdma_cm umad2 uverbs2",
            {"isVf": True, "portState": "down", "physState": "link_up"},
            absent=("nodeGuid", "rate"),
            numa=1,
            reason="port 1 is down (phys state: link up)",
        ),
    },
    connectx.switchdev: {
        "0000:3b:00.0": Expected(
            "rdma_cm umad0 umad1 umad2 uverbs0",
            MELLANOX | ROCE | UP | {"ibDevice": "mlx5_0", "ports": 3, "netDevs": ("ens3f0np0",)},
            numa=1,
        )
    }
    | {
        f"0000:3b:00.{number + 2}": Expected(
            f"rdma_cm umad{number + 3} uverbs{number + 1}",
            ROCE | UP | {"isVf": True, "pfName": "ens3f0np0", "netDevs": (f"ens3f0v{number}",)},
            numa=1,
        )
        for number in range(2)
    },
    connectx.scalable_function: {
        "0000:03:00.0": Expected(
            "rdma_cm umad0 uverbs0",
            MELLANOX | ROCE | {"ibDevice": "mlx5_0", "ibDevices": ("mlx5_0",), "netDevs": ("p0",)},
            numa=0,
        ),
        "mlx5_core.sf.2": Expected(
            "rdma_cm umad1 uverbs1",
            ROCE
            | UP
            | {
                "ibDevice": "mlx5_2",
                "vendor": "15b3",
                "device": "a2d6",
                "nodeGuid": "0000:00ff:fe00:8888",
                "netDevs": ("en3f0pf0sf88",),
                "pciBusID": "0000:03:00.0",
                "pfName": "p0",
                "isVf": False,
            },
            numa=0,
        ),
    },
    connectx.connectx8_xdr: {
        "0000:19:00.0": Expected(
            "issm1 issm2 issm3 issm4 rdma_cm umad0 umad1 umad2 umad3 umad4 uverbs0",
            MELLANOX
            | INFINIBAND
            | UP
            | {"ibDevice": "mlx5_0", "ibDevices": ("mlx5_0", "smi1"), "rate": 800, "netDevs": ("ib0",)},
            numa=0,
        )
    },
    machines.efa: {
        "0000:00:06.0": Expected(
            "uverbs0",
            UP
            | {
                "ibDevice": "rdmap0s6",
                "nodeType": "unspecified",
                "transport": "unspecified",
                "linkLayer": "unspecified",
                "vendor": "1d0f",
                "device": "efa1",
                "driver": "efa",
                "rate": 100,
                "hasUmad": False,
                "hasIssm": False,
                "hasRdmaCm": False,
            },
            absent=("netDevs", "numaNode", "fwVersion", "boardId", "pfName"),
        )
    },
    machines.irdma: {
        "0000:4b:00.0": Expected(
            "rdma_cm umad0 uverbs0",
            ROCE
            | UP
            | {
                "ibDevice": "rocep75s0f0",
                "nodeType": "ca",
                "transport": "ib",
                "driver": "ice",
                "vendor": "8086",
                "netDevs": ("ens785f0",),
                "rate": 100,
            },
            numa=0,
        ),
        "0000:4b:00.1": Expected(
            "rdma_cm uverbs1", IWARP | UP | {"ibDevice": "iwp75s0f1", "driver": "ice"}, numa=0
        ),
        "0000:5e:00.0": Expected(
            "rdma_cm uverbs2",
            IWARP | UP | {"ibDevice": "irdma0", "driver": "i40e", "rate": 10, "netDevs": ("eno1",)},
            numa=1,
        ),
    },
    machines.chelsio: {
        "0000:5e:00.4": Expected(
            "rdma_cm uverbs0",
            IWARP
            | UP
            | {
                "ibDevice": "cxgb4_0",
                "driver": "cxgb4",
                "fwVersion": "1.27.5.0",
                "boardId": "1425.6410",
                "ports": 2,
                "netDevs": ("ens6f4", "ens6f4d1"),
                "hasIssm": False,
            },
            numa=0,
        )
    },
    machines.broadcom: {
        "0000:41:00.0": Expected(
            "rdma_cm umad0 uverbs0",
            ROCE
            | UP
            | {
                "ibDevice": "bnxt_re0",
                "nodeType": "ca",
                "vendor": "14e4",
                "driver": "bnxt_en",
                "rate": 200,
                "netDevs": ("enp65s0f0np0",),
            },
            numa=2,
        )
    },
    machines.software: {
        "rxe0": Expected(
            "rdma_cm umad0 uverbs0",
            ROCE
            | UP
            | {
                "ibDevice": "rxe0",
                "nodeType": "ca",
                "transport": "ib",
                "rate": 2,
                "netDevs": ("dum0",),
                "driver": "rdma_rxe",
                "isVf": False,
            },
            absent=("vendor", "device", "pciBusID", "numaNode", "fwVersion", "pfName"),
        ),
        "siw0": Expected(
            "rdma_cm uverbs1",
            IWARP | UP | {"ibDevice": "siw0", "rate": 2, "hasIssm": False, "isVf": False},
            absent=("vendor", "device", "pciBusID", "numaNode", "fwVersion", "pfName"),
        ),
    },
}
