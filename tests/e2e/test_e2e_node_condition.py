"""The condition of the node and its startup taints, with the chart's rights on a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from onenode.access import POD_NAME, Access
from onenode.api import Api, ApiError, Json
from onenode.claims import CARD, Driver
from onenode.cluster import Cluster
from onenode.release import NAME
from onenode.settings import API_PORT, NODE
from onenode.shipped import ARCHIVE, Shipped, programs
from onenode.waiting import until

STARTING, OTHER = "example.com/starting", "example.com/other"
ANOTHER = "another-node"
VALUES = {"nodeCondition": {"enabled": True, "startupTaints": [f"{STARTING}:NoSchedule"]}}
CONDITION = {"type": "DevicesReady", "status": "True", "reason": "Test", "message": ""}


class Node(Driver):
    """A devhost that keeps the condition of its node, and serves two cards once they are there."""

    def arguments(self) -> Sequence[str]:
        state = str(self.config.parent / "state")
        taints = f"{STARTING}:NoSchedule"
        return *super().arguments(), "--node-condition", "--startup-taints", taints, "--state-dir", state


@pytest.fixture(scope="module")
def rights(cluster: Cluster) -> Iterator[Api]:
    """The chart's rights; gives what a pod on the node can do."""
    try:
        helm = programs.find("helm")
    except programs.Missing as missing:
        pytest.skip(str(missing))
    objects = [one for one in yaml.safe_load_all(Shipped(ARCHIVE, helm).render(NAME, VALUES)) if one]
    shipped = [one for one in objects if one["kind"] not in ("ConfigMap", "DaemonSet")]
    with Access(cluster, yaml.safe_dump_all(shipped)):
        create = ("create", "token", NAME, f"--namespace={NAME}")
        named = ("--bound-object-kind=Pod", f"--bound-object-name={POD_NAME}")
        bound, unbound = cluster.kubectl.run(*create, *named), cluster.kubectl.run(*create)
        pod, other = (Api(cluster.namespaces, API_PORT, one.strip()) for one in (bound, unbound))
        until("the policy is in force", lambda: "names no node" in refusal(other, status()))
        yield pod


@pytest.fixture
def taints(cluster: Cluster) -> Iterator[None]:
    """The node has a startup taint, and one that does not concern devhost."""
    for key in (STARTING, OTHER):
        taint(cluster, f"{key}=yes:NoSchedule")
    yield
    for key in (STARTING, OTHER):
        if key in tainted(cluster):
            taint(cluster, f"{key}-")


def taint(cluster: Cluster, what: str) -> None:
    cluster.kubectl.run("taint", "node", NODE, what, "--overwrite")


def tainted(cluster: Cluster) -> set[str]:
    return {one["key"] for one in cluster.api.get(f"/api/v1/nodes/{NODE}")["spec"].get("taints", ())}


def conditions(cluster: Cluster) -> dict[str, Json]:
    found = cluster.api.get(f"/api/v1/nodes/{NODE}")["status"]["conditions"]
    return {one["type"]: one for one in found}


def condition(cluster: Cluster) -> Json:
    return conditions(cluster).get("DevicesReady", {})


def status(**more: Any) -> dict[str, Any]:
    return {"status": {"conditions": [CONDITION], **more}}


def refusal(api: Api, changes: dict[str, Any], node: str = NODE) -> str:
    """Why the API server would not patch the node, or its status; empty if it would."""
    part = "/status" if "status" in changes else ""
    try:
        api.call("PATCH", f"/api/v1/nodes/{node}{part}?dryRun=All", changes)
    except ApiError as error:
        assert error.status == 403, error
        return str(error)
    return ""


def test_a_startup_taint_leaves_once_when_the_expected_devices_are_there(cluster, rights, taints):
    card = {"name": CARD, "backend": "cards", "expect": 2}
    with Node(cluster, card, cards=["c0 a"]) as devhost:
        until("a device is missing", lambda: condition(cluster).get("status") == "False", seen=devhost.status)
        assert f"{CARD}: 1 of 2 devices" in condition(cluster)["message"]
        assert tainted(cluster) >= {STARTING, OTHER}
        devhost.cards("c0 a", "c1 b")
        until("the node is ready", lambda: condition(cluster)["status"] == "True", seen=devhost.status)
        until("the taint is gone", lambda: STARTING not in tainted(cluster), seen=devhost.status)
        assert OTHER in tainted(cluster)
        assert conditions(cluster)["Ready"]["status"] == "True", "the kubelet's are still there"
        taint(cluster, f"{STARTING}=again:NoSchedule")
        before = condition(cluster)
        written = datetime.fromisoformat(before["lastHeartbeatTime"])
        until("another second has begun", lambda: datetime.now(UTC) >= written + timedelta(seconds=1))
        devhost.restart()
        until(
            "it is written again",
            lambda: condition(cluster)["lastHeartbeatTime"] != before["lastHeartbeatTime"],
        )
        assert condition(cluster)["lastTransitionTime"] == before["lastTransitionTime"]
        cluster.refreshed()
        assert STARTING in tainted(cluster), "once per boot"
        assert not [one for one in devhost.status()["problems"] if one["kind"] == "node"]


def test_the_api_server_admits_only_the_condition_and_the_removal_of_startup_taints(cluster, rights, taints):
    another = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": ANOTHER}}
    cluster.kubectl.apply(json.dumps(another))
    try:
        denied = refusal(rights, status(), node=ANOTHER)
        assert f"devhost on node {NODE} may patch only that node" in denied
        assert "may patch only that node" in refusal(rights, {"spec": {"taints": []}}, node=ANOTHER)
    finally:
        cluster.kubectl.run("delete", "node", ANOTHER)
    assert refusal(rights, status()) == ""

    only = "may change only the condition DevicesReady"
    foreign = {"type": "Ready", "status": "False", "reason": "Test", "message": ""}
    assert only in refusal(rights, {"status": {"conditions": [foreign]}})
    assert only in refusal(rights, {"status": {"conditions": [{**foreign, "type": "New"}]}})
    removal = {"status": {"conditions": [{"$patch": "delete", "type": "Ready"}]}}
    assert only in refusal(rights, removal)
    assert only in refusal(rights, status(capacity={"example.com/card": "9"}))
    assert only in refusal(rights, status(phase="Running"))

    labels = {"metadata": {"labels": {"example.com/x": "y"}}}
    assert "may not change metadata" in refusal(rights, {**labels, **status()})
    assert "may not change metadata" in refusal(rights, labels)
    assert "may change only taints" in refusal(rights, {"spec": {"unschedulable": True}})

    present = cluster.api.get(f"/api/v1/nodes/{NODE}")["spec"]["taints"]
    less = [one for one in present if one["key"] != STARTING]
    removes = "may remove only the startup taints"
    assert refusal(rights, {"spec": {"taints": less}}) == ""
    assert removes in refusal(rights, {"spec": {"taints": []}})
    other = [one for one in present if one["key"] != OTHER]
    assert removes in refusal(rights, {"spec": {"taints": other}})
    new = {"key": "example.com/new", "effect": "NoExecute"}
    assert removes in refusal(rights, {"spec": {"taints": [*present, new]}})
    changed = [{**one, "value": "else"} for one in present]
    assert removes in refusal(rights, {"spec": {"taints": changed}})
