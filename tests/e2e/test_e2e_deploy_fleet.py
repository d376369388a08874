"""One release on two hundred nodes: groups, a label that moves a node, and an edit that stops at one node.

Some nodes have a kubelet and a runtime each, and devhost in pods. The others are simulated.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from onenode import image
from onenode.api import ApiError, Json
from onenode.cluster import Cluster
from onenode.history import History
from onenode.kubectl import Refused
from onenode.node import Node
from onenode.offers import FUSE
from onenode.pods import Pods
from onenode.release import NAME, Release
from onenode.settings import NODE
from onenode.shipped import IMAGE, TAGS, Shipped
from onenode.simulated import Simulated
from onenode.waiting import until
from onenode.workers import Workers

NODES = 200
LABEL = "devhost.test/kind"
GROUP = "devhost.dev/group"
SHARES = {"gpu": 4, "edge": 6, "": 8}
"""Shares of one device on the nodes of each group, and on those in no group."""

WORKERS = {"worker-1": "gpu", "worker-2": "gpu", "worker-3": "edge"}
"""The groups of nodes with a kubelet; the first node is in none."""

SIMULATED = {
    f"simulated-{number}": ("edge", "off", "")[number % 3] for number in range(NODES - 1 - len(WORKERS))
}
"""The groups of the others."""


def config(shares: int, node: str = "/dev/fuse") -> dict[str, Any]:
    entry = {"name": FUSE, "backend": "udev", "where": {"devNode": node}, "share": {"replicas": shares}}
    return {"version": 1, "resources": [entry | {"optional": True}]}


def group(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "match": [{"key": LABEL, "operator": "In", "values": [name]}], **values}


def values(node: str = "/dev/fuse") -> dict[str, Any]:
    """Three groups, one of them omitted. ``node`` is what the first group selects."""
    gpu = group("gpu", config=config(SHARES["gpu"], node))
    edge = group("edge", config=config(SHARES["edge"]))
    groups = [gpu, edge, group("off", enabled=False)]
    return {"rollout": "rolling", "config": config(SHARES[""]), "nodeGroups": groups}


class Fleet:
    """The nodes with a kubelet, and the release on all of them."""

    def __init__(self, cluster: Cluster, nodes: dict[str, Node], release: Release) -> None:
        self.cluster, self.nodes, self.release = cluster, nodes, release

    def pods(self, *nodes: str) -> dict[str, Json]:
        """The pod of each of these nodes, or of all; one that is ending is not counted."""
        found = dict[str, Json]()
        for pod in self.release.pods():
            name = pod["spec"].get("nodeName", "")
            if "deletionTimestamp" not in pod["metadata"] and (name in nodes or not nodes):
                assert name not in found, f"two devhosts on {name}"
                found[name] = pod
        return found

    def others(self, *without: str) -> dict[str, str]:
        """The pods of all nodes but these, each with its node, once all are Ready.

        Raises:
            TimeoutError: one is not.
        """

        def unready() -> list[str]:
            return [name for name, pod in self.pods().items() if name not in without and not is_ready(pod)]

        until("the pods of the other nodes are Ready", lambda: not unready(), seen=unready)
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items() if name not in without}

    def label(self, node: str, kind: str) -> None:
        """Moves a node to another group."""
        self.cluster.kubectl.run("label", "node", node, "--overwrite", f"{LABEL}={kind}")

    def execute(self, node: str, *command: str) -> str:
        """The output of a command in the pod of a node."""
        pod = self.pods(node)[node]["metadata"]["name"]
        return self.release.kubectl("exec", f"pod/{pod}", "--", *command)

    def status(self, node: str) -> dict[str, Any]:
        """What devhost on a node reports; empty while it does not answer."""
        with suppress(Refused, LookupError):
            found: dict[str, Any] = json.loads(self.execute(node, "devhost", "status", "--output=json"))
            return found
        return {}

    def holders(self, node: str) -> list[Json]:
        """The containers that hold devices of a node, as far as the kubelet has named them."""
        resources = self.status(node).get("resources", ())
        return [device["holder"] for one in resources for device in one["devices"] if device["holder"]]

    def waits(self, node: str) -> str:
        """What a pod of a new file waits for, or waited, from its log."""
        with suppress(ApiError, LookupError, ValueError):
            pod = self.pods(node)[node]["metadata"]["name"]
            log = self.cluster.api.call("GET", f"/api/v1/namespaces/{NAME}/pods/{pod}/log")
            reasons = [json.loads(line).get("reason", "") for line in log.splitlines()]
            return next((one for one in reasons if one.startswith("no devices since the new file")), "")
        return ""


def is_ready(pod: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, shipment: Shipped) -> Iterator[Fleet]:
    archive = cluster.directory / "shipped.tar"
    image.rename(shipment.archive, archive, f"{IMAGE}:{TAGS[0]}")
    labels = {name: {LABEL: kind} if kind else {} for name, kind in SIMULATED.items()}
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(cluster, len(WORKERS), (cluster.image, archive)))
        stack.enter_context(Simulated(cluster.api, labels, NAME))
        for name, kind in WORKERS.items():
            cluster.kubectl.run("label", "node", name, f"{LABEL}={kind}")
        release = stack.enter_context(Release(cluster, shipment, values()))
        nodes: dict[str, Node] = {NODE: cluster, **{one.name: one for one in workers}}
        for name, one in nodes.items():
            one.shows(FUSE, SHARES[WORKERS.get(name, "")])
        yield Fleet(cluster, nodes, release)


@pytest.fixture
def on(fleet: Fleet) -> Iterator[dict[str, Pods]]:
    """Creates pods on each node."""
    pods = {name: Pods(node) for name, node in fleet.nodes.items()}
    yield pods
    for one in pods.values():
        one.clear()


def test_every_node_has_one_devhost_which_is_that_of_its_group(fleet):
    groups = {NODE: "", **WORKERS, **SIMULATED}
    assert len(groups) == NODES
    found = {name: pod["metadata"]["labels"].get(GROUP, "") for name, pod in fleet.pods().items()}
    assert found == {name: kind for name, kind in groups.items() if kind != "off"}
    desired = {
        name: one["status"]["desiredNumberScheduled"] for name, one in fleet.release.daemonsets().items()
    }
    counts = {kind: list(groups.values()).count(kind) for kind in ("gpu", "edge", "")}
    assert desired == {"devhost-gpu": counts["gpu"], "devhost-edge": counts["edge"], "devhost": counts[""]}


def test_a_label_moves_a_node_to_another_group_and_pods_keep_their_devices(fleet, on):
    moved, *others = "worker-2", "worker-1", "worker-3", NODE
    node = fleet.nodes[moved]
    before = fleet.others(moved)
    holder = on[moved].create("holder", {FUSE: 1}).running()
    identity = holder.identity()

    def move(kind: str) -> float:
        """Moves the node; the seconds until the pod of its new group serves."""
        began = time.monotonic()
        fleet.label(moved, kind)
        if kind == "off":
            until("the node has no devhost", lambda: not fleet.pods(moved))
        else:
            node.shows(FUSE, SHARES[kind])
            assert fleet.pods(moved)[moved]["metadata"]["labels"][GROUP] == kind
        return time.monotonic() - began

    with History(fleet.cluster.api, FUSE, "none") as history:
        there = move("edge")
        after = on[moved].create("after", {FUSE: SHARES["edge"] - 1}).running()
        assert after.opens("/dev/fuse")
        after.delete()
        move("off")
        back = move("gpu")
    assert holder.identity() == identity
    assert holder.opens("/dev/fuse")
    assert fleet.others(moved) == before
    for name in others:
        assert offered(history, name) == {SHARES[WORKERS.get(name, "")]}
    print(f"until the pod of the other group serves: {there:.1f} s, and {back:.1f} s from a group without")


def offered(history: History, node: str) -> set[int]:
    """Everything that the node offered meanwhile."""
    return {one.allocatable for one in history.instants(node)}


def test_a_bad_edit_stops_at_one_node_while_all_others_serve(fleet, on):
    edited = [name for name, kind in WORKERS.items() if kind == "gpu"]
    before = fleet.others(*edited)

    def stopped(*, at: int) -> list[str]:
        """Waits until the edit has reached so many nodes and waits at the last one; the nodes."""

        def reached() -> list[str]:
            uids = {name: pod["metadata"]["uid"] for name, pod in fleet.pods(*edited).items()}
            return [name for name in edited if uids.get(name) != first[name]]

        until(f"{at} pods are replaced", lambda: len(reached()) == at, seen=fleet.pods)
        until("the new pods wait, or waited", lambda: all(map(fleet.waits, reached())), seen=reached)
        return reached()

    first = {name: pod["metadata"]["uid"] for name, pod in fleet.pods(*edited).items()}
    with History(fleet.cluster.api, FUSE, "none") as history:
        fleet.release.request(values("/dev/fuze"))
        (bad,) = stopped(at=1)
        assert f"no devices since the new file: {FUSE} (until " in fleet.waits(bad)
        serving = [name for name in fleet.nodes if name != bad]
        for name in serving:
            assert on[name].create(f"on-{name}", {FUSE: 1}).running().opens("/dev/fuse")
            fleet.nodes[name].refreshed()
        assert fleet.release.daemonsets()["devhost-gpu"]["status"]["updatedNumberScheduled"] == 1
        assert not is_ready(fleet.pods(bad)[bad])
    for name in serving:
        assert offered(history, name) == {SHARES[WORKERS.get(name, "")]}
    assert fleet.others(*edited) == before

    assert FUSE in fleet.execute(bad, "devhost", "accept")
    assert bad in stopped(at=2)
    fleet.release.apply(values())
    for name in edited:
        fleet.nodes[name].shows(FUSE, SHARES["gpu"])
    assert fleet.others(*edited) == before


def test_a_drained_device_stays_out_of_service_after_a_crash_of_its_node_until_it_is_uncordoned(fleet, on):
    name = "worker-1"
    node = fleet.nodes[name]
    before = fleet.others(name)
    holder = on[name].create("holder", {FUSE: 1}).running()
    until("devhost knows who holds a device", lambda: fleet.holders(name), seen=lambda: fleet.status(name))
    drain = ("devhost", "drain", "/dev/fuse", "--root=/host", "--by=alice", "--reason=a new fan")

    def given_up() -> str:
        with pytest.raises(Refused) as refused:
            fleet.execute(name, *drain, "--timeout=3s")
        return str(refused.value)

    until("a drain that names the pod", lambda: "kubectl delete pod -n default holder" in given_up())
    node.shows(FUSE, SHARES["gpu"], 0)
    assert holder.opens("/dev/fuse")
    node.crash()
    until("devhost runs again", lambda: fleet.status(name), seen=fleet.pods)
    holder.delete()
    node.refreshed()
    node.shows(FUSE, SHARES["gpu"], 0)
    fleet.execute(name, *drain)
    assert [(one["by"], one["reason"]) for one in fleet.status(name)["verdicts"]] == [("alice", "a new fan")]
    fleet.execute(name, "devhost", "uncordon", "/dev/fuse", "--root=/host")
    node.shows(FUSE, SHARES["gpu"])
    assert on[name].create("after", {FUSE: 1}).running().opens("/dev/fuse")
    assert fleet.others(name) == before
