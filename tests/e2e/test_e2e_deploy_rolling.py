"""A valid edit that selects nothing: the rollout waits at the node until it is accepted or taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from onenode.cluster import Cluster
from onenode.offers import FUSE
from onenode.release import DAEMONSET, Release
from onenode.shipped import Shipped
from onenode.waiting import until

SHARES = 4


def values(node: str = "/dev/fuse") -> dict[str, Any]:
    entry = {"name": FUSE, "backend": "udev", "where": {"devNode": node}, "share": {"replicas": SHARES}}
    return {"rollout": "rolling", "config": {"version": 1, "resources": [entry | {"optional": True}]}}


@pytest.fixture
def release(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, values()) as release:
        yield release


def waits(release: Release) -> str:
    """What devhost in a pod of the new file waits for; empty while it does not."""
    reasons = [one["reason"] for one in release.status().get("problems", ()) if one["kind"] == "config"]
    return reasons[0] if reasons else ""


def test_an_edit_that_selects_nothing_stops_the_rollout_until_it_is_accepted(cluster, release):
    cluster.shows(FUSE, SHARES)
    for accepted in (False, True):
        release.request(values("/dev/fuze"))
        until("the new pod waits", lambda: waits(release), seen=release.log)
        assert f"no devices since the new file: {FUSE} (until " in waits(release)
        assert not release.container()["ready"]
        assert release.get("/readyz").status == 503
        status = json.loads(release.kubectl("get", DAEMONSET, "--output=json"))["status"]
        assert status["numberUnavailable"] == 1
        if accepted:
            assert FUSE in release.execute("devhost", "accept")
            release.ready()
        else:
            release.apply(values())
            cluster.shows(FUSE, SHARES)
