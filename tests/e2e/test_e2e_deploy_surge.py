"""With ``maxSurge`` an upgrade has no gap: pods start throughout, and the node always offers the same."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

import pytest
from onenode.cluster import Cluster
from onenode.history import History
from onenode.kubectl import Refused
from onenode.offers import FUSE
from onenode.pods import Pods
from onenode.release import Release
from onenode.shipped import TAGS, Shipped
from onenode.waiting import until

SHARES = 20
"""More than pods that end at the same time: the kubelet counts each until it is gone."""

BEFORE, AFTER = TAGS


def values(network: bool, tag: str = BEFORE) -> dict[str, Any]:
    entry = {
        "name": FUSE,
        "backend": "udev",
        "where": {"devNode": "/dev/fuse"},
        "share": {"replicas": SHARES},
    }
    config = {"version": 1, "resources": [entry]}
    return {"maxSurge": 1, "hostNetwork": network, "image": {"tag": tag}, "config": config}


@pytest.fixture(params=[False, True], ids=["own-network", "host-network"])
def network(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def release(cluster: Cluster, shipment: Shipped, network: bool) -> Iterator[Release]:
    with Release(cluster, shipment, values(network)) as release:
        cluster.shows(FUSE, SHARES)
        yield release


@contextmanager
def starting(pods: Pods) -> Iterator[list[str]]:
    """Pods with a device start and end, one after the other. Yields why any of them did not start."""
    ended, failures = Event(), list[str]()

    def start() -> None:
        try:
            for number in itertools.count():
                pod = pods.create(f"during-{number}", {FUSE: 1})
                if not pod.settled():
                    failures.append(pod.failed())
                pod.leave()
                if ended.is_set():
                    return
        except (AssertionError, TimeoutError, OSError) as error:
            failures.append(repr(error))

    thread = Thread(target=start)
    thread.start()
    try:
        yield failures
    finally:
        ended.set()
        thread.join()


def replaced(release: Release, before: str) -> None:
    """Waits until a rollout that has begun is over, and the pod before is gone."""
    release.ready()
    until("the pod before is gone", lambda: before not in release.kubectl("get", "pods", "--output=name"))


def test_an_upgrade_and_its_rollback_change_no_number_and_fail_no_pod(cluster, release, pods, network):
    holder = pods.create("holder", {FUSE: 1}).running()
    identity = holder.identity()
    with History(cluster.api, FUSE, "none") as history, starting(pods) as failures:
        for tag in (AFTER, BEFORE):
            before = release.pod()["metadata"]["name"]
            release.request(values(network, tag))
            replaced(release, before)
            assert release.image().endswith(f":{tag}")
            cluster.refreshed()
    assert failures == []
    assert {one.allocatable for one in history.instants()} == {SHARES}
    assert holder.identity() == identity
    assert holder.opens("/dev/fuse")


def test_an_edit_that_selects_nothing_leaves_the_old_pod_serving_until_it_is_accepted(
    cluster, release, pods, network
):
    good = {**values(network), "rollout": "rolling"}
    before = release.pod()["metadata"]["name"]
    release.request(good)
    replaced(release, before)
    serving = release.pod()["metadata"]["name"]
    edited = {**good, "config": json.loads(json.dumps(good["config"]).replace("/dev/fuse", "/dev/fuze"))}
    release.request(edited)

    def waiting() -> str:
        """The new pod; empty until it waits."""
        for name in release.kubectl("get", "pods", "--output=name").split():
            with suppress(Refused):  # its container is not created yet
                if "no devices since the new file" in release.kubectl("logs", name):
                    return name
        return ""

    new = until("the new pod waits", waiting)
    assert pods.create("meanwhile", {FUSE: 1}).running().opens("/dev/fuse")
    cluster.refreshed()
    cluster.shows(FUSE, SHARES)
    assert FUSE in release.kubectl("exec", new, "--", "devhost", "accept")
    replaced(release, serving)


def test_a_new_pod_that_never_becomes_ready_leaves_the_old_one_serving(cluster, release, pods, network):
    before = release.identity()
    broken = values(network)
    broken["config"] = {"version": 1, "resources": [{"name": FUSE, "backend": "none"}]}
    broken["rollout"] = "rolling"
    broken["strictConfig"] = True
    release.request(broken)
    until("the new pod fails", lambda: "CrashLoopBackOff" in release.kubectl("get", "pods"))
    names = release.kubectl("get", "pods", "--output=name")
    assert before[0] in names
    assert pods.create("meanwhile", {FUSE: 1}).running().opens("/dev/fuse")
    cluster.shows(FUSE, SHARES)
    release.request(values(network))
    until("the new pod is gone", lambda: len(release.kubectl("get", "pods", "--output=name").split()) == 1)
    assert release.identity() == before
