"""The status of devices in claims, with the shipped rights on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from onenode.access import POD_NAME, RIGHTS, STATUS_RIGHTS, Access
from onenode.api import Api, ApiError, Json
from onenode.claims import CARD, CLAIMS, DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.release import NAME
from onenode.settings import API_PORT, NODE
from onenode.waiting import until

CLASS = {"deviceClassName": "card.example.com"}
CARDS = {"name": CARD, "backend": "cards", "serve": "dra"}
OTHER = "other.example.com"
PREPARED = ("True", "Prepared", "")


@pytest.fixture(scope="module")
def rights(cluster: Cluster) -> Iterator[Api]:
    """The shipped rights; gives what a pod on the node can do."""
    with Access(cluster, f"{RIGHTS.read_text()}\n---\n{STATUS_RIGHTS.read_text()}"):
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={POD_NAME}")
        token = cluster.kubectl.run("create", "token", NAME, f"--namespace={NAME}", *bound)
        yield Api(cluster.namespaces, API_PORT, token.strip())


@pytest.fixture
def driver(cluster: Cluster, rights: Api, claims: Claims) -> Iterator[Driver]:
    """A devhost that writes the status of claims."""
    with Driver(cluster) as driver:
        yield driver


def claim(cluster: Cluster, name: str) -> Json:
    return cluster.api.get(f"{CLAIMS}/{name}")


def ready(cluster: Cluster, name: str) -> list[tuple[str, str, str]]:
    """The conditions of the driver's devices in a claim."""
    devices = claim(cluster, name)["status"].get("devices", ())
    return [
        (one["status"], one["reason"], one["message"])
        for device in devices
        if device["driver"] == DRIVER
        for one in device["conditions"]
        if one["type"] == "Ready"
    ]


@pytest.mark.conformance(127)
def test_a_claim_shows_whether_its_device_is_ready_and_a_restart_writes_nothing(
    cluster, driver, claims, pods
):
    driver.cards("c0 a")
    driver.serve(CARDS, status=True)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pods.create("user", claims=["mine"]).running()
    until("it is ready", lambda: ready(cluster, "mine") == [PREPARED], seen=driver.status)
    (manager,) = [
        one for one in claim(cluster, "mine")["metadata"]["managedFields"] if one["manager"] == DRIVER
    ]
    assert (manager["operation"], manager["subresource"]) == ("Apply", "status")

    driver.cards("c0 a ill")
    hot = ("False", "Unhealthy", "it is hot")
    until("it is not ready", lambda: ready(cluster, "mine") == [hot], seen=driver.status)
    before = claim(cluster, "mine")["metadata"]["resourceVersion"]
    driver.restart()
    driver.registered()
    driver.cards("c0 a")
    until("it is ready again", lambda: ready(cluster, "mine") == [PREPARED], seen=driver.status)
    after = claim(cluster, "mine")["metadata"]["resourceVersion"]
    driver.restart()
    driver.registered()
    cluster.refreshed()
    assert claim(cluster, "mine")["metadata"]["resourceVersion"] == after != before
    assert not [one for one in driver.status()["problems"] if "claims" in one["reason"]]


@pytest.mark.conformance(127)
def test_a_claim_loses_its_status_when_it_is_deallocated(cluster, driver, claims, pods):
    driver.cards("c0 a")
    driver.serve(CARDS, status=True)
    driver.registered()
    claims.classes(driver)
    claims.create("mine", CLASS)
    pod = pods.create("user", claims=["mine"]).running()
    until("it is ready", lambda: ready(cluster, "mine") == [PREPARED], seen=driver.status)
    pod.delete()
    until("it is deallocated", lambda: not claims.allocated("mine"))
    assert ready(cluster, "mine") == []
    pods.create("next", claims=["mine"]).running()
    until("it is ready again", lambda: ready(cluster, "mine") == [PREPARED], seen=driver.status)


@pytest.mark.conformance(127)
def test_the_api_server_admits_only_devices_of_the_driver_in_claims_of_the_node(
    cluster, rights, driver, claims
):
    allocated(cluster, driver, claims)
    until("the rights are in force", lambda: refusal(rights, "own", entry(DRIVER)) == "")
    assert "cannot arbitrary-node:patch" in refusal(rights, "foreign", entry(DRIVER))
    assert "resourceclaims/driver" in refusal(rights, "own", entry(OTHER))
    assert "resourceclaims/binding" in refusal(rights, "own", RESERVED)
    cluster.api.call("PATCH", f"{CLAIMS}/own/status", entry(OTHER))
    assert "resourceclaims/driver" in refusal(rights, "own", {"status": {"devices": []}})


@pytest.mark.conformance(127)
def test_the_policy_admits_only_that_where_a_right_is_to_the_whole_status(cluster, rights, driver, claims):
    """As before Kubernetes 1.36."""
    cluster.restart_api_server("--feature-gates=DRAResourceClaimGranularStatusAuthorization=false")
    try:
        allocated(cluster, driver, claims)
        until(
            "the policy is in force",
            lambda: "only the status of claims" in refusal(rights, "foreign", entry(DRIVER)),
        )
        assert refusal(rights, "own", entry(DRIVER)) == ""
        assert "of the driver devhost.example.com" in refusal(rights, "own", entry(OTHER))
        assert "may change only devices" in refusal(rights, "own", RESERVED)
        assert "may change only devices" in refusal(rights, "own", {"status": {"allocation": None}})
        cluster.api.call("PATCH", f"{CLAIMS}/own/status", entry(OTHER))
        assert "of the driver devhost.example.com" in refusal(rights, "own", {"status": {"devices": []}})
        unbound = cluster.kubectl.run("create", "token", NAME, f"--namespace={NAME}")
        other = Api(cluster.namespaces, API_PORT, unbound.strip())
        assert "names no node" in refusal(other, "own", entry(DRIVER))
    finally:
        cluster.restart_api_server()


RESERVED = {"status": {"reservedFor": [{"resource": "pods", "name": "x", "uid": "y"}]}}


def allocated(cluster: Cluster, driver: Driver, claims: Claims) -> None:
    """Makes the claims ``own`` and ``foreign``, which are allocated on the node and on another one."""
    driver.cards("c0 a")
    driver.serve(CARDS, status=True)
    driver.registered()
    claims.classes(driver)
    for name, node in (("own", NODE), ("foreign", "another")):
        claims.create(name, CLASS)
        cluster.api.call("PATCH", f"{CLAIMS}/{name}/status", {"status": {"allocation": allocation(node)}})


def allocation(node: str) -> dict[str, Any]:
    results = [{"request": "r0", "driver": driver, "pool": "p", "device": "d"} for driver in (DRIVER, OTHER)]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }


def entry(driver: str) -> dict[str, Any]:
    """A status with a device of a driver."""
    return {"status": {"devices": [{"driver": driver, "pool": "p", "device": "d", "conditions": []}]}}


def refusal(api: Api, name: str, changes: dict[str, Any]) -> str:
    """Why the API server would not patch the status of a claim; empty if it would."""
    try:
        api.call("PATCH", f"{CLAIMS}/{name}/status?dryRun=All", changes)
    except ApiError as error:
        assert error.status in (403, 422), error
        return str(error)
    return ""
