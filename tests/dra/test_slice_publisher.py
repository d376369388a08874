"""The devices of a node are ResourceSlices at the API server, and stay so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from devhost_testing.dra.api_objects import SLICES, Object
from kit.publisher import DRIVER, NODE, RESOURCE, Node, offered, offers

from devhost.backend.model import Cause, Device, unhealthy
from devhost.dra.publisher import Offers
from devhost.dra.slices import Offered
from devhost.planning.settings import Effect


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as node:
        yield node


def generations(slices: list[Object]) -> list[int]:
    return [one["spec"]["pool"]["generation"] for one in slices]


@pytest.mark.conformance(96)
async def test_devices_are_published_in_a_slice_of_the_node(node: Node) -> None:
    await node.publishes(offers(2))
    (found,) = node.slices()
    assert found["spec"]["nodeName"] == NODE
    assert found["spec"]["driver"] == DRIVER
    assert found["spec"]["pool"]["resourceSliceCount"] == 1
    assert found["spec"]["pool"]["generation"] > 0
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Node", node.uid, True)
    assert [device["attributes"]["id"]["string"] for device in found["spec"]["devices"]] == ["d000", "d001"]
    assert node.publisher.published()["example.com/gpu"].slices["d001"] == found["metadata"]["name"]


@pytest.mark.conformance(97)
async def test_a_resource_without_devices_is_one_empty_slice(node: Node) -> None:
    await node.publishes([])
    (found,) = node.slices()
    assert "devices" not in found["spec"]


@pytest.mark.conformance(98)
@pytest.mark.parametrize(("count", "sizes"), [(64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
async def test_a_slice_has_at_most_64_devices(node: Node, count: int, sizes: list[int]) -> None:
    await node.publishes(offers(count))
    assert [len(one["spec"]["devices"]) for one in node.slices()] == sizes
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in node.slices()} == {len(sizes)}
    assert len(set(generations(node.slices()))) == 1


@pytest.mark.conformance(99)
async def test_a_changed_attribute_is_one_write_that_keeps_the_generation(node: Node) -> None:
    await node.publishes(offers(65))
    before, writes = generations(node.slices()), len(node.server.writes)
    await node.publishes([*offers(64), offered("d064", speed="fast")])
    assert [write.verb for write in node.server.writes[writes:]] == ["put"]
    assert generations(node.slices()) == before


@pytest.mark.conformance(100)
async def test_an_added_slice_gives_all_slices_a_new_generation(node: Node) -> None:
    await node.publishes(offers(64))
    before, writes = generations(node.slices())[0], len(node.server.writes)
    await node.publishes(offers(65))
    assert [write.verb for write in node.server.writes[writes:]] == ["put", "post"]
    assert generations(node.slices()) == [before + 1, before + 1]


async def test_several_changed_slices_get_a_new_generation(node: Node) -> None:
    await node.publishes(offers(130))
    before, writes = generations(node.slices()), len(node.server.writes)
    await node.publishes([offered("d000", speed="fast"), *offers(129)[1:], offered("d129", speed="fast")])
    assert [write.verb for write in node.server.writes[writes:]] == ["put"] * 3
    assert generations(node.slices()) == [before[0] + 1] * 3


async def test_removed_slices_are_deleted_before_the_others_change(node: Node) -> None:
    await node.publishes(offers(130))
    writes = len(node.server.writes)
    await node.publishes(offers(10))
    assert [write.verb for write in node.server.writes[writes:]] == ["delete", "delete", "put"]


@pytest.mark.conformance(101)
@pytest.mark.parametrize("which", [0, None], ids=["one", "all, which a starting kubelet deletes"])
async def test_deleted_slices_come_back(node: Node, which: int | None) -> None:
    await node.publishes(offers(65))
    names = node.names()
    node.server.remove(SLICES if which is None else f"{SLICES}/{names[which]}")
    await node.passes(30)
    assert node.names() == names


@pytest.mark.conformance(102)
async def test_a_foreign_edit_is_undone(node: Node) -> None:
    await node.publishes(offers(2))
    (before,) = node.slices()
    node.server.put(SLICES, {"metadata": before["metadata"], "spec": {**before["spec"], "devices": []}})
    await node.passes(30)
    assert node.slices()[0]["spec"]["devices"] == before["spec"]["devices"]


@pytest.mark.conformance(123)
async def test_slices_of_another_program_with_this_driver_name_are_left_alone(node: Node) -> None:
    await node.publishes(offers(1))
    (own,) = node.names()
    foreign = f"{NODE}-{DRIVER}-x7k2p"
    spec = {**node.slices()[0]["spec"], "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}
    node.server.put(SLICES, {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": foreign}, "spec": spec})
    node.publisher.follow({RESOURCE: ("gpu", offers(2))})
    await node.passes(30)
    assert node.publisher.status.error == (
        f"another program publishes devices as {DRIVER} on this node, in the ResourceSlice {foreign}: stop "
        "it, or choose another dra.driver"
    )
    assert set(node.names()) == {own, foreign}
    node.server.remove(f"{SLICES}/{foreign}")
    await node.passes(120)
    assert node.publisher.status.error == ""
    assert len(node.slices()[0]["spec"]["devices"]) == 2


@pytest.mark.conformance(118)
async def test_a_restart_with_the_same_devices_writes_nothing(node: Node) -> None:
    gone = [offered(f"d{number:03}") for number in range(200) if number != 3]
    await node.publishes(offers(200))
    await node.publishes(gone)
    writes = len(node.server.writes)
    await node.restarts()
    await node.publishes(gone)
    assert node.publisher.status.synced_at is not None
    assert len(node.server.writes) == writes


async def test_a_resource_that_left_the_configuration_has_no_slices(node: Node) -> None:
    await node.publishes(offers(65))
    node.publisher.follow({})
    await node.passes(30)
    assert node.slices() == []
    assert node.sides.claims_due(DRIVER) is not None


async def test_slices_of_an_earlier_run_that_no_resource_has_are_deleted(node: Node) -> None:
    await node.publishes(offers(2))
    await node.restarts()
    assert len(node.slices()) == 1
    node.publisher.follow({})
    await node.passes(30)
    assert node.slices() == []
    assert node.sides.claims_due(DRIVER) is not None


async def test_nothing_is_written_before_it_is_known_what_is_wanted(node: Node) -> None:
    await node.publishes(offers(2))
    writes = len(node.server.writes)
    await node.restarts()
    await node.passes(60)
    assert len(node.server.writes) == writes


@pytest.mark.parametrize(
    ("pools", "complete"),
    [({RESOURCE: ("gpu", None)}, True), ({}, False)],
    ids=["a resource", "the resources of a name with fields"],
)
async def test_slices_do_not_agree_with_devices_that_are_not_known_yet(
    node: Node, pools: Mapping[str, Offers], complete: bool
) -> None:
    node.publisher.follow(pools, complete=complete)
    await node.passes(30)
    assert node.publisher.status.synced_at is None
    await node.publishes(offers(2))
    assert node.publisher.status.synced_at is not None


async def test_a_device_is_recorded_before_a_slice_has_it(node: Node) -> None:
    node.server.fail_next(500, 100, methods=("POST",))
    await node.publishes(offers(1))
    assert node.slices() == []
    assert node.record.load() == {("gpu", "d000"): "example.com/gpu"}


async def test_a_device_is_withdrawn_only_when_the_api_server_has_confirmed_it(node: Node) -> None:
    await node.publishes(offers(2))
    node.server.fail_next(500, 1, methods=("PUT",))
    node.publisher.follow({"example.com/gpu": ("gpu", offers(1))})
    await node.passes(3)
    assert node.sides.claims_due(DRIVER) is None
    await node.passes(60)
    assert node.sides.claims_due(DRIVER) is not None


@pytest.mark.conformance(115)
async def test_an_unhealthy_device_has_a_taint_that_keeps_its_time(node: Node) -> None:
    await node.publishes([offered("d000", health=unhealthy("too hot")), offered("d001")])
    (found,) = node.slices()
    found["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    await node.restarts()
    await node.publishes([offered("d000", health=unhealthy("too hot")), offered("d001", speed="fast")])
    (found,) = node.slices()
    assert found["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert found["spec"]["devices"][1]["attributes"]["speed"] == {"string": "fast"}


async def test_each_of_several_taints_keeps_its_time(node: Node) -> None:
    health = unhealthy("too hot", Cause.THERMAL, Cause.UNHEALTHY)
    effects = {Cause.THERMAL: Effect.NO_EXECUTE}
    hot = Offered(Device("d000"), health, effects=effects)
    await node.publishes([hot, offered("d001")])
    (found,) = node.slices()
    for number, taint in enumerate(found["spec"]["devices"][0]["taints"]):
        taint["timeAdded"] = f"2026-01-0{number + 1}T00:00:00Z"
    await node.restarts()
    await node.publishes([hot, offered("d001", speed="fast")])
    (found,) = node.slices()
    times = {one["key"]: one["timeAdded"] for one in found["spec"]["devices"][0]["taints"]}
    assert times == {
        f"{DRIVER}/thermal": "2026-01-01T00:00:00Z",
        f"{DRIVER}/unhealthy": "2026-01-02T00:00:00Z",
    }
