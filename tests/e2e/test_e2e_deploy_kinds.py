"""Devices of every kind on the machine, from devhost in its container: directly and by CDI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.zram import Zram
from onenode.cluster import Cluster
from onenode.machine import device_file, plugged
from onenode.offers import DISK, ZRAM, kinds
from onenode.pods import Pod
from onenode.release import Release
from onenode.settings import SPECIFICATIONS
from onenode.shipped import Shipped

LIBRARY = Path(__file__).resolve().parents[2] / "LICENSE"
"""A file of the machine that a group mounts."""


def values(inject: str, disk: int) -> dict[str, Any]:
    """Shared and exclusive devices of all kinds, and a group with all options."""
    group = {
        "name": "disk",
        "members": [{"path": f"/dev/zram{disk}", "containerPath": "/dev/only", "permissions": "r"}],
        "mounts": [{"path": str(LIBRARY), "containerPath": "/opt/library"}],
        "env": {"DISK": "{devNode}"},
    }
    resources: list[dict[str, Any]] = [
        {"name": DISK, "where": {"group": "disk"}},
        {"name": ZRAM, "where": {"subsystem": "block", "sysName": "zram[1-9]*"}, "whenEmpty": "register"},
        *(
            {"name": name, "where": {"devNode": node}, "share": {"replicas": 2}}
            for name, node in kinds().items()
        ),
    ]
    return {
        "config": {
            "version": 1,
            "backends": {"udev": {"groups": [group]}},
            "resources": [{"backend": "udev", "inject": inject, **resource} for resource in resources],
        }
    }


@pytest.fixture(params=["direct", "cdi"])
def release(cluster: Cluster, shipment: Shipped, zram: Zram, request: Any) -> Iterator[Release]:
    with Release(cluster, shipment, values(request.param, zram.plug())) as release:
        yield release


def test_pods_get_devices_of_every_kind_on_the_machine(cluster, release, zram, pods):
    """A pod for each kind, all at the same time, and others with disks and with a group."""
    for _ in range(2):
        zram.plug()
    for name in kinds():
        cluster.shows(name, 2)
    cluster.shows(DISK, 1)
    cluster.shows(ZRAM, plugged() - 1)
    usual = pods.create("without")
    single = {node: pods.create(f"only-{Path(node).name}", {name: 1}) for name, node in kinds().items()}
    both = [pods.create(f"disk-{index}", {ZRAM: 1}) for index in range(2)]
    grouped = pods.create("grouped", {DISK: 1})
    nodes = usual.running().nodes()
    for node, pod in single.items():
        assert_has(pod.running(), node, nodes)
    one, other = (pod.running().nodes() - nodes for pod in both)
    assert len(one) == len(other) == 1
    assert one != other
    assert grouped.running().nodes() - nodes == {"/dev/only"}
    assert not grouped.opens("/dev/only"), "its permissions are r"
    assert grouped.can("exec 3</dev/only")
    assert grouped.shell("echo $DISK").startswith("/dev/zram")
    assert grouped.shell("cat /opt/library") == LIBRARY.read_text().strip()
    if release.configuration()["resources"][0]["inject"] == "cdi":
        written = {file.name for file in cluster.namespaces.path(SPECIFICATIONS).glob("devhost_*.json")}
        assert len(written) >= len(kinds()) + 2, (
            "a specification for each resource, written through the mount"
        )


def assert_has(pod: Pod, node: str, usual: set[str]) -> None:
    """Checks that a pod has this device node in addition to the usual ones, and can use it."""
    assert pod.nodes() - usual == {node}
    assert pod.opens(node)
    host = device_file(node)
    assert pod.shell(f"stat -c '%a %u:%g' {node}") == f"{host.mode:o} {host.owner}"
