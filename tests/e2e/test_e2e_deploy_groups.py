"""Two kinds of nodes in one release, while a label moves the node from one to the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from onenode.api import Json
from onenode.cluster import Cluster
from onenode.offers import FUSE
from onenode.release import NAME, Release
from onenode.settings import NODE
from onenode.shipped import Shipped
from onenode.waiting import until

LABEL = "devhost.test/kind"
GROUP = "devhost.dev/group"
SHARES, MORE = 4, 6
"""Shares of one device without the label, and with it."""


def config(shares: int) -> dict[str, Any]:
    entry = {
        "name": FUSE,
        "backend": "udev",
        "where": {"devNode": "/dev/fuse"},
        "share": {"replicas": shares},
    }
    return {"version": 1, "resources": [entry]}


VALUES = {
    "config": config(SHARES),
    "nodeGroups": [
        {
            "name": "more",
            "match": [{"key": LABEL, "operator": "In", "values": ["more"]}],
            "config": config(MORE),
        },
        {"name": "never", "match": [{"key": LABEL, "operator": "Exists"}], "enabled": False},
    ],
}


@pytest.fixture
def release(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, VALUES) as release:
        yield release
    cluster.kubectl.run("label", "node", NODE, f"{LABEL}-")


def moved(cluster: Cluster, release: Release, label: str, shares: int) -> float:
    """Changes the label of the node; the seconds without any device, once the node shows these shares."""

    def pods() -> list[Json]:
        found = cluster.kubectl.get(
            "pods", f"--namespace={NAME}", "--selector=app.kubernetes.io/name=devhost"
        )
        return list(found["items"])

    def running(pod: Json) -> bool:
        return any("running" in one["state"] for one in pod["status"].get("containerStatuses", ()))

    cluster.kubectl.run("label", "node", NODE, "--overwrite", f"{LABEL}{label}")
    without = began = 0.0

    def there() -> bool:
        nonlocal without, began
        found = pods()
        assert sum(map(running, found)) <= 1, "two devhosts at a time"
        now = time.monotonic()
        if cluster.counts(FUSE) in (None, (SHARES, 0), (MORE, 0)):
            began = began or now
        elif began:
            without, began = without + now - began, 0.0
        return cluster.counts(FUSE) == (shares, shares) if shares else not found

    until(f"the node has {shares} shares", there, seen=pods)
    return without


def test_a_label_moves_a_node_to_another_group_and_pods_keep_their_devices(cluster, release, pods):
    cluster.shows(FUSE, SHARES)
    holder = pods.create("holder", {FUSE: 1}).running()
    identity = holder.identity()
    gap = moved(cluster, release, "=more", MORE)
    (pod,) = cluster.kubectl.get("pods", f"--namespace={NAME}", f"--selector={GROUP}=more")["items"]
    assert pod["spec"]["nodeName"] == NODE
    after = pods.create("after", {FUSE: MORE - 1}).running()
    assert after.opens("/dev/fuse")
    after.delete()
    back = moved(cluster, release, "-", SHARES)
    assert holder.identity() == identity
    assert holder.opens("/dev/fuse")
    print(f"without devices: {gap:.1f} s, and {back:.1f} s on the way back")


def test_a_node_that_a_label_moves_to_a_disabled_group_has_no_devhost(cluster, release):
    cluster.shows(FUSE, SHARES)
    moved(cluster, release, "=never", 0)
    moved(cluster, release, "=more", MORE)
