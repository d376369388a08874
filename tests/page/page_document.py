"""Status documents for tests of the page: that of a busy node, and parts for others."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import status_values
from status_values import Json

NOW = datetime.now(UTC).replace(microsecond=0)
"""When the documents are made."""
NODE = "gpu-node-07"
LOST = "the GPU has fallen off the bus (Xid 79)"


def ago(**past: float) -> str:
    """A time before :data:`NOW` in the format of documents; arguments as for ``timedelta``."""
    return (NOW - timedelta(**past)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def device(id_: str, reason: str = "", holder: str = "", numa: int | None = None, **past: float) -> Json:
    """One device: with a ``reason`` it is Unhealthy; ``holder`` is ``namespace/pod/container``."""
    given = [id_.partition("::")[0]] if holder else []
    numa_nodes = [] if numa is None else [numa]
    since = ago(**(past or {"days": 8}))
    return status_values.device(id_, reason, holder, given=given, numaNodes=numa_nodes, since=since)


def resource(name: str, backend: str, devices: Iterable[Json], **more: object) -> Json:
    """A registered resource with these devices; ``more`` replaces keys of a resource without problems."""
    return status_values.resource(name, backend, devices, **{"lastRegistration": ago(days=8), **more})


def entry(
    number: int, name: str, backend: str, reason: str = "", *, devices: int = 0, optional: bool = False
) -> Json:
    """An entry of the configuration: with devices, or with a ``reason`` why it has none."""
    why: Json = {"reason": reason, "optional": optional}
    if not devices:
        why |= {"resources": [], "state": "absent" if optional else "none"}
    return status_values.entry(number, name, backend, devices, **why)


def backend(name: str, count: int, **more: object) -> Json:
    """A backend without problems."""
    looked: Json = {"since": ago(days=8), "lastDiscovery": ago(seconds=12), "lastDiscoverySeconds": 0.0031}
    return status_values.backend(name, count, **{**looked, **more})


def problem(kind: str, subject: str, reason: str, *, count: int = 1, **past: float) -> Json:
    """One problem; nobody noted since when unless ``past`` says so."""
    return status_values.problem(kind, subject, reason, ago(**past) if past else None, count)


def document(*resources: Json, **more: Any) -> Json:
    """A document of a node with these resources where nothing is wrong."""
    made = status_values.document(*resources, started=ago(days=8, hours=3), **more)
    made["devhost"] |= {"config": "/etc/devhost/devhost.yaml", "generation": 3}
    made["devhost"]["lastReload"]["at"] = ago(minutes=42)
    made["kubelet"]["podResources"]["listed"] = ago(seconds=4)
    return made


def _gpus() -> Json:
    holders = ["ml/train-llama-0/trainer", "ml/train-llama-0/trainer", "", "team-a/notebook-17/main"]
    ids = [f"GPU-{start}c0de-91f0-4d5e-b1c6-7f3a9d{start}e4" for start in ("1a2b", "2c3d", "84c5", "a8e9")]
    gpus = [
        device(id_, holder=holder, numa=n // 2)
        for n, (id_, holder) in enumerate(zip(ids, holders, strict=True))
    ]
    gpus[2] = device(ids[2], LOST, numa=1, minutes=23)
    return resource("nvidia.com/gpu", "gpu", gpus)


def _functions() -> Json:
    users = {0: "telco/upf-0/upf", 1: "telco/upf-1/upf"}
    functions = (device(f"0000:5e:02.{n}", holder=users.get(n, ""), numa=1) for n in range(6))
    return resource("intel.com/sriov_dpdk", "sriov", functions)


def busy_node() -> Json:
    """A node with five kinds of devices: one is unhealthy, one has left, one is refused, pods hold some."""
    gpus = _gpus()
    ill = next(one for one in gpus["devices"] if one["reason"])
    departed: Json = {"device": "FT9ZB1C7", "reason": "the device is gone", "at": ago(minutes=6)}
    refusal: Json = {
        "backend": "sriov",
        "device": "0000:5e:02.7",
        "kind": "claimed",
        "reason": "resources[2]: pci:0000:5e:02.7 is already used by 0000:5e:02.7 of backend rdma",
    }
    labels = "/etc/kubernetes/node-feature-discovery/features.d/devhost_gpu"
    provisioning = {"state": "ok", "reason": "", "since": ago(days=8)}
    return document(
        resource(
            "example.com/serial",
            "udev",
            [device("FT4XK2Q0", holder="plant/meter-0/reader", hours=5), device("FT7QW0L2", hours=5)],
            departed=[departed],
        ),
        resource("intel.com/fpga", "fpga", [device(f"0000:d8:00.{n}", numa=1) for n in range(2)]),
        _functions(),
        gpus,
        resource(
            "rdma/hca",
            "rdma",
            (
                device(f"0000:3b:00.0::{n}", holder="ml/train-llama-0/trainer" if n < 2 else "", numa=0)
                for n in range(4)
            ),
        ),
        backends=[
            backend("fpga", 2),
            backend(
                "gpu", 4, lastDiscoverySeconds=0.0184, labels={"file": labels, "count": 14, "reason": ""}
            ),
            backend("rdma", 2, lastDiscoverySeconds=0.0022),
            backend("sriov", 8, provisioning=provisioning, lastDiscoverySeconds=0.0067),
            backend("udev", 2),
        ],
        refusals=[refusal],
        problems=[problem("device", f"nvidia.com/gpu {ill['id']}", LOST, minutes=23)],
    )


def crowded_node() -> Json:
    """30 resources with 400 devices, of which 39 change sides, a few are unhealthy, and pods hold some."""
    made, number = [], 0
    for n in range(27):
        domains = ("example.com", "vendor.example.org", "devices.long-company-name.example")
        name = f"{domains[n % 3]}/class-{n:02}"
        found = []
        for _ in range(14 if n < 10 else 13):
            place = f"0000:{n + 16:02x}:{number % 32:02x}.{number % 8}"
            reason = "port 1 is down (state INIT, physical state Polling)" if number % 97 == 5 else ""
            holder = f"team-{n % 4}/job-{number}/main" if number % 11 == 3 else ""
            found.append(device(place, reason, holder, numa=n % 2))
            number += 1
        made.append(resource(name, "sriov", found))
    shares = [device(f"GPU-1a2b3c4d-{n}c0de::{share}", numa=n) for n in range(2) for share in range(10)]
    made.append(resource("nvidia.com/gpu.shared", "gpu", shares))
    moves: list[Json] = [
        {
            "resource": f"example.com/moving-{n}",
            "serve": "plugin",
            "devices": [f"0000:{n + 96:02x}:00.{one}" for one in range(13)],
            "reason": "it is moving from the device plugin to DRA: devhost waits until the node no longer "
            f"offers it as example.com/moving-{n}",
            "since": ago(seconds=14),
        }
        for n in range(3)
    ]
    dra: Json = {
        "driver": "devhost.example.com",
        "node": NODE,
        "state": "registered",
        "slices": 2,
        "writes": 3,
        "syncedAt": ago(seconds=5),
        "moving": [
            {
                "backend": "sriov",
                "device": one,
                "resource": move["resource"],
                "serve": "plugin",
                "reason": move["reason"],
            }
            for move in moves
            for one in move["devices"]
        ],
        "moves": moves,
    }
    refusals: list[Json] = [
        {
            "backend": "sriov",
            "device": one["device"],
            "kind": "moving",
            "reason": f"resources[{28 + n // 13}]: {one['reason']}",
        }
        for n, one in enumerate(dra["moving"])
    ]
    entries = [entry(n, one["name"], one["backend"], devices=14) for n, one in enumerate(made)]
    entries += [
        entry(28 + n, one["resource"], "sriov", f"0 devices; 13 match, but each is refused: {one['reason']}")
        | {"state": "moving"}
        for n, one in enumerate(moves)
    ]
    unhealthy = [(one["name"], each) for one in made for each in one["devices"] if each["reason"]]
    return document(
        *made,
        entries=entries,
        dra=dra,
        refusals=refusals,
        backends=[backend("gpu", 2), backend("sriov", 400)],
        problems=[
            problem("device", f"{name} {each['id']}", each["reason"], minutes=23) for name, each in unhealthy
        ],
    )
