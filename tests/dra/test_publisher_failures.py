"""Publishing goes on when the API server, the network or another client gets in the way."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from devhost_testing.dra.api_objects import SLICES
from kit.publisher import DRIVER, RESOURCE, Node, offered, offers
from kit.waiting import until

from devhost.backend.model import HEALTHY, Cause, Device, unhealthy
from devhost.dra.aliases import Aliased
from devhost.dra.slices import Offered
from devhost.planning.settings import Effect


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as node:
        yield node


def ids(node: Node) -> list[str]:
    return [
        device["attributes"]["id"]["string"]
        for one in node.slices()
        for device in one["spec"].get("devices", [])
    ]


def lists(node: Node) -> int:
    """How often the slices were listed."""
    return sum(
        one.method == "GET" and one.path == SLICES and "watch" not in one.query
        for one in node.server.requests
    )


@pytest.mark.conformance(103)
@pytest.mark.parametrize("lost", [1, 2])
async def test_a_create_whose_answer_is_lost_makes_no_twin(node: Node, lost: int) -> None:
    lose = iter([lost])
    created = lambda: node.server.lose_answers(next(lose, 0))  # noqa: E731 - the store is changed by the first create
    node.server.objects.listeners.append(created)
    await node.publishes(offers(65))
    await node.passes(60)
    posts = [request for request in node.server.requests if request.method == "POST"]
    assert len(posts) == 2 + 1  # the first is sent again by the client, or by the publisher
    assert len(node.slices()) == 2
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in node.slices()} == {2}
    assert node.publisher.status.error == ""


@pytest.mark.conformance(104)
@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_failed_write_is_repeated_with_growing_delays(node: Node, status: int) -> None:
    node.server.fail_next(status, 6, methods=("POST",))
    await node.publishes(offers(1))
    assert node.slices() == []
    await node.passes(200)
    assert ids(node) == ["d000"]
    assert node.publisher.status.error == ""


@pytest.mark.conformance(104)
async def test_the_time_that_the_api_server_wants_is_waited(node: Node) -> None:
    node.server.fail_next(429, 1, retry_after=50, methods=("POST",))
    await node.publishes(offers(1))
    await node.passes(30)
    assert sum(request.method == "POST" for request in node.server.requests) == 1
    await node.passes(20)
    assert ids(node) == ["d000"]


@pytest.mark.conformance(104)
async def test_at_most_five_slices_are_written_in_a_second(node: Node) -> None:
    await node.publishes(offers(64 * 12))
    times = [write.time for write in node.server.writes]
    assert len(times) == 12
    assert all(later - earlier >= 0.19 for earlier, later in pairwise(times))


async def test_the_api_server_makes_devhost_wait_for_a_minute_at_most(node: Node) -> None:
    node.server.fail_next(429, 1, retry_after=1000, methods=("GET",))
    await node.restarts()
    node.server.fail_next(429, 1, retry_after=1000, methods=("POST",))
    await node.publishes(offers(1))
    await node.passes(140)
    assert ids(node) == ["d000"]


UNSEEN = {
    "away": (lambda server: server.fail_next(503, 10_000), "(HTTP 503)"),
    "rights": (lambda server: server.fail_next(403, 10_000), "permission denied to list resourceslices: "),
    "token": (lambda server: server.require_token("x"), "does not accept devhost's credentials (HTTP 401)"),
    "API": (lambda server: server.lack("resource.k8s.io"), "DRA needs Kubernetes 1.34 or newer"),
    "410": (lambda server: server.fail_next(410, 10_000), "(HTTP 410)"),
    "429": (lambda server: server.fail_next(429, 10_000), "(HTTP 429)"),
    "no list": (lambda server: [server.answer_next(OTHER) for _ in range(99)], "list has no items"),
}
OTHER = b'HTTP/1.1 200 OK\r\nContent-Length: 37\r\n\r\n{"metadata":{"resourceVersion":"17"}}'


@pytest.mark.parametrize("case", UNSEEN)
async def test_a_first_list_that_fails_is_shown_with_its_cause(
    node: Node, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    fail, text = UNSEEN[case]
    fail(node.server)
    requests = len(node.server.requests)
    await node.restarts()
    await node.publishes(offers(1))
    await node.passes(100)
    assert text in node.publisher.status.error
    assert caplog.messages.count("ResourceSlices are not watched") == 1
    assert len(node.server.requests) - requests < 30, "it waits longer each time"


async def test_a_list_that_works_again_ends_the_failure(node: Node) -> None:
    node.server.lack("resource.k8s.io")
    await node.restarts()
    assert node.publisher.status.error
    node.server.lack("")
    await node.publishes(offers(1))
    await node.passes(30)
    assert node.publisher.status.error == ""
    assert ids(node) == ["d000"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "MODIFIED", "object": {"metadata": {}}}',
        b'{"type": "MODIFIED", "object": {"metadata": {"name": "a", "generation": "x"}}}',
        b'{"type": "DELETED", "object": {"metadata": null}}',
    ],
)
async def test_a_bad_change_is_shown_and_then_followed_by_a_new_list(
    node: Node, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    await node.publishes(offers(1))
    before = lists(node)
    node.server.send_line(line + b"\n")
    await until(lambda: "a change in the API server's watch" in node.publisher.status.error)
    node.server.remove(SLICES)
    await node.passes(30)
    assert node.publisher.status.error == ""
    assert ids(node) == ["d000"]
    assert lists(node) == before + 1
    assert caplog.messages.count("ResourceSlices are not watched") == 1


async def test_a_version_that_the_api_server_refuses_leads_to_a_new_list(node: Node) -> None:
    await node.publishes(offers(1))
    before = lists(node)
    node.server.send_line(b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "no number"}}}\n')
    await node.passes(0.2)
    node.server.end_watches()
    await node.passes(30)
    assert node.publisher.status.error == ""
    assert (lists(node), node.server.watches) == (before + 1, 1)


FLAWS = {
    "ownerReferences": ["x"],
    "annotations": {f"{DRIVER}/dropped": 1},
    "generation": "x",
    "uid": "\ud800",
    "name": None,
}


@pytest.mark.parametrize("key", FLAWS)
async def test_an_answer_with_a_flaw_is_shown_and_then_replaced(node: Node, key: str) -> None:
    """Of a write, and of a read: the slice is written in any case."""
    await node.publishes(offers(1))
    (stored,) = node.slices()
    flawed = {**stored, "metadata": {**stored["metadata"], key: FLAWS[key]}}
    errors = []
    node.server.objects.listeners.append(lambda: errors.append(node.publisher.status.error))
    for _ in range(2):
        body = json.dumps(flawed).encode()
        node.server.answer_next(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await node.publishes(offers(2))
    await node.passes(60)
    assert node.publisher.status.error == ""
    assert ids(node) == ["d000", "d001"]
    assert any(f"metadata.{key}" in error for error in errors)


async def test_failures_are_logged_once_and_so_is_their_end(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    node.server.fail_next(500, 4, methods=("POST",))
    await node.publishes(offers(1))
    assert "the test wants this request to fail" in node.publisher.status.error
    await node.passes(100)
    lines = caplog.messages
    assert lines.count("ResourceSlices are not published") == 1
    assert lines.count("ResourceSlices are published again") == 1


async def test_a_slice_that_the_api_server_refuses_is_not_counted(node: Node) -> None:
    node.server.fail_next(403, 1000, methods=("POST",))
    await node.publishes(offers(1))
    assert "permission denied to create resourceslices" in node.publisher.status.error
    assert node.publisher.status.slices == 0


@pytest.mark.conformance(105)
async def test_a_watch_that_ends_is_opened_again(node: Node) -> None:
    await node.publishes(offers(1))
    node.server.end_watches()
    await node.passes(5)
    assert node.server.watches == 1
    node.server.remove(SLICES)
    await node.passes(30)
    assert ids(node) == ["d000"]


@pytest.mark.conformance(105)
async def test_changes_that_no_watch_has_seen_are_found_by_a_new_list(node: Node) -> None:
    await node.publishes(offers(1))
    node.server.fail_next(500, 1, methods=("GET",))
    node.server.end_watches()
    await node.passes(0.4)
    node.server.remove(SLICES)
    node.server.forget_history()
    await node.passes(60)
    assert ids(node) == ["d000"]
    assert node.server.watches == 1


@pytest.mark.conformance(105)
async def test_a_refused_token_is_tried_again(node: Node) -> None:
    node.server.require_token("later")
    await node.publishes(offers(1))
    assert node.slices() == []
    node.server.require_token(None)
    await node.passes(120)
    assert ids(node) == ["d000"]


@pytest.mark.conformance(106)
async def test_without_taints_an_unhealthy_device_is_not_published(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.server.drop_fields("taints")
    wanted = [offered("d000", health=unhealthy("too hot")), offered("d001")]
    await node.publishes(wanted)
    assert ids(node) == ["d001"]
    assert node.publisher.status.dropped == ("taints",)
    writes = len(node.server.writes)
    await node.passes(120)
    await node.restarts()
    await node.publishes(wanted)
    assert len(node.server.writes) == writes
    assert caplog.messages.count("the API server drops a field of devices") == 1


def card() -> list[Offered]:
    """A device and two parts of it, which a scheduler keeps apart by counters."""
    whole = frozenset({"pci:0000:3b:00.0"})
    devices = Device("d000", claims=whole), Device("d001", part_of=whole), Device("d002", part_of=whole)
    return [Offered(one, HEALTHY, counters=True) for one in devices]


@pytest.mark.conformance(124)
async def test_without_counters_no_two_devices_that_exclude_each_other_are_ever_usable(node: Node) -> None:
    """A scheduler uses a pool only while it has as many slices as they say."""
    node.server.drop_fields("sharedCounters", "consumesCounters")
    await node.publishes(card())
    for write in node.server.writes:
        devices = write.body["spec"].get("devices", ())
        assert len(devices) == 1 or write.body["spec"]["pool"]["resourceSliceCount"] == 2
    assert ids(node) == ["d000"] and node.publisher.status.dropped == ("sharedCounters",)
    left_out = {one.device_id: one.reason for _, one in node.publisher.status.left_out}
    reason = "d000 excludes it, and this API server does not support shared counters"
    assert left_out == {"d001": reason, "d002": reason}
    writes = len(node.server.writes)
    await node.restarts()
    await node.publishes(card())
    assert len(node.server.writes) == writes


async def test_counters_that_must_be_in_the_slice_of_their_devices_are_not_used(node: Node) -> None:
    """Kubernetes 1.34 refuses the devices; without counters it has them."""
    node.server.refuse_counters()
    await node.publishes(card())
    assert ids(node) == ["d000"] and node.publisher.status.dropped == ("sharedCounters",)
    left_out = {one.device_id: one.reason for _, one in node.publisher.status.left_out}
    assert left_out.keys() == {"d001", "d002"} and "support shared counters" in left_out["d001"]
    await node.passes(300)
    assert ids(node) == ["d000"] and await _questions(node) == 2
    node.server.refuse_counters(refuse=False)
    node.server.version = "v1.36.0"
    await node.passes(80)
    assert ids(node) == ["d000", "d001", "d002"] and node.publisher.status.dropped == ()


@pytest.mark.conformance(121)
async def test_taints_that_the_api_server_does_not_take_are_not_used(node: Node) -> None:
    """Kubernetes 1.34 knows no taint without effect, and takes four of a device."""
    node.server.refuse_taint_effects()
    effects = dict.fromkeys(Cause, Effect.NO_SCHEDULE)
    effects |= {Cause.CORDONED: Effect.NONE, Cause.XID: Effect.NO_EXECUTE}
    health = {
        "d000": unhealthy("cordoned", Cause.CORDONED),
        "d001": unhealthy("everything", *Cause),
        "d002": HEALTHY,
    }
    await node.publishes([Offered(Device(name), one, effects=effects) for name, one in health.items()])

    def taints() -> list[int]:
        (one,) = node.slices()
        return [len(device.get("taints", ())) for device in one["spec"]["devices"]]

    assert taints() == [0, 4, 0] and node.publisher.status.dropped == ("taints.effect",)
    (one,) = node.slices()
    kept = {taint["key"]: taint["effect"] for taint in one["spec"]["devices"][1]["taints"]}
    assert kept[f"{DRIVER}/xid"] == "NoExecute" and f"{DRIVER}/cordoned" not in kept
    assert node.publisher.status.left_out == ()
    node.server.version = "v1.34.9"
    await node.passes(80)
    assert taints() == [0, 4, 0] and not any(one.method == "PUT" for one in node.server.requests)
    node.server.refuse_taint_effects(refuse=False)
    node.server.version = "v1.36.0"
    await node.passes(80)
    assert taints() == [1, len(Cause), 0] and node.publisher.status.dropped == ()


async def test_counters_are_sent_again_only_when_the_api_server_supports_them(node: Node) -> None:
    node.server.drop_fields("sharedCounters", "consumesCounters")
    await node.publishes(card())
    await node.passes(300)
    sent = [write for write in node.server.writes if "consumesCounters" in json.dumps(write.body)]
    assert ids(node) == ["d000"] and len(sent) == 1
    node.server.drop_fields()
    node.server.version = "v1.37.0"
    await node.passes(80)
    assert ids(node) == ["d000", "d001", "d002"] and node.publisher.status.dropped == ()


async def test_slices_with_counters_are_not_written_again_after_a_restart(node: Node) -> None:
    await node.publishes(card())
    assert [len(one["spec"].get("sharedCounters", ())) for one in node.slices()] == [0, 1]
    writes = len(node.server.writes)
    await node.restarts()
    await node.publishes(card())
    assert len(node.server.writes) == writes


async def test_a_foreign_change_of_counters_is_undone(node: Node) -> None:
    await node.publishes(card())
    _, before = node.slices()
    other = [{"name": "0", "counters": {"a": {"value": "9"}}}]
    changed = {**before["spec"], "sharedCounters": other}
    node.server.put(SLICES, {"metadata": before["metadata"], "spec": changed})
    await node.passes(60)
    assert node.slices()[1]["spec"]["sharedCounters"] == before["spec"]["sharedCounters"] != other


async def _questions(node: Node) -> int:
    return sum(request.query.get("dryRun") == "All" for request in node.server.requests)


async def test_a_dropped_field_is_used_again_when_the_version_of_the_api_server_changes(node: Node) -> None:
    """It is asked by writes that are not carried out, so nothing is published without the field meanwhile."""
    node.server.drop_fields("taints")
    wanted = [offered("d000", health=unhealthy("too hot")), offered("d001")]
    await node.publishes(wanted)
    await node.passes(300)
    assert ids(node) == ["d001"] and await _questions(node) == 1
    node.server.drop_fields()
    node.server.version = "v1.37.0"
    await node.passes(80)
    assert ids(node) == ["d000", "d001"] and node.publisher.status.dropped == ()
    assert not any("annotations" in one["metadata"] for one in node.slices())


@pytest.mark.parametrize("sign", ["restart", "day", "connection"])
async def test_a_gate_that_was_switched_is_noticed_without_another_version(node: Node, sign: str) -> None:
    node.server.drop_fields("allowMultipleAllocations", "capacity", "requestPolicy")
    wanted = [offered("d000", replicas=4)]
    await node.publishes(wanted)
    await node.passes(60)
    assert ids(node) == []
    node.server.drop_fields()
    match sign:
        case "restart":
            await node.restarts()
            await node.publishes(wanted)
        case "day":
            node.clock.now += 86400  # nothing is asked meanwhile
            await node.passes(70)
        case "connection":
            node.server.end_watches()
    await node.passes(70)
    assert ids(node) == ["d000"]


def with_lists(**lists: tuple[str, ...]) -> Offered:
    return replace(offered("d000"), aliased=Aliased(tuple(lists.items())))


async def test_without_lists_a_list_with_one_member_is_published_as_this_member(node: Node) -> None:
    """The API server drops what a list has, and then refuses the attribute, which has no value."""
    node.server.drop_fields("strings")
    wanted = [with_lists(one=("a",), two=("a", "b"))]
    await node.publishes(wanted)
    ((device,),) = [one["spec"]["devices"] for one in node.slices()]
    assert device["attributes"]["one"] == {"string": "a"} and "two" not in device["attributes"]
    assert node.publisher.status.dropped == ("strings",)
    assert not node.publisher.accepted(RESOURCE, "d000").lists
    ((_, left),) = node.publisher.status.left_out
    assert left.reason == "it has 2 values, and this API server does not support lists"
    writes = len(node.server.writes)
    await node.restarts()
    await node.publishes(wanted)
    await node.passes(120)
    assert len(node.server.writes) == writes
    node.server.drop_fields()
    node.server.version = "v1.38.0"
    await node.passes(80)
    ((device,),) = [one["spec"]["devices"] for one in node.slices()]
    assert device["attributes"]["one"] == {"strings": ["a"]}
    assert device["attributes"]["two"] == {"strings": ["a", "b"]}
    assert node.publisher.status.dropped == () and not node.publisher.status.left_out
    assert node.publisher.accepted(RESOURCE, "d000").lists


@pytest.mark.parametrize("most", [1, 1000])
async def test_an_attribute_that_is_refused_for_many_devices_is_left_out_for_all(
    node: Node, most: int, caplog: pytest.LogCaptureFixture
) -> None:
    node.server.refuse_attribute("model", most)
    await node.publishes([offered(f"d{number:03}", model="x") for number in range(100)])
    await node.passes(20)
    assert len(ids(node)) == 100
    assert not any(
        "model" in one["attributes"] for all_of in node.slices() for one in all_of["spec"]["devices"]
    )
    refusals = sum(request.method == "POST" for request in node.server.requests) - len(node.slices())
    assert refusals <= 2
    ((resource, left),) = node.publisher.status.left_out
    assert (resource, left.device_id, left.attribute) == (RESOURCE, "", "model")
    assert caplog.messages.count("the API server refused a device or an attribute") == 1


async def test_the_record_comes_back_when_its_directory_was_removed(node: Node) -> None:
    await node.publishes(offers(2))
    written = node.record.path.read_bytes()
    shutil.rmtree(node.record.path.parent)
    await node.publishes(offers(2))
    assert node.record.path.read_bytes() == written


async def test_without_shared_devices_one_with_replicas_is_not_published(node: Node) -> None:
    node.server.drop_fields("allowMultipleAllocations", "requestPolicy")
    await node.publishes([offered("d000", replicas=4), offered("d001")])
    assert ids(node) == ["d001"]
    assert [left.device_id for _, left in node.publisher.status.left_out] == ["d000"]


@pytest.mark.conformance(106)
async def test_a_field_without_fallback_is_dropped_without_a_loop(node: Node) -> None:
    node.server.drop_fields("speed")
    await node.publishes([offered("d000", speed="fast")])
    writes = len(node.server.writes)
    await node.passes(120)
    assert len(node.server.writes) == writes == 1


@pytest.mark.conformance(107)
async def test_a_refused_attribute_costs_only_itself(node: Node) -> None:
    reason = b'{"kind":"Status","reason":"Invalid","message":"ResourceSlice x is invalid: %s"}'
    await node.passes(3)
    node.publisher.follow({RESOURCE: ("gpu", [offered("d000", speed="fast"), offered("d001", speed="fast")])})
    await node.passes(0.8)
    message = reason % b"spec.devices[1].attributes[speed].string: Invalid value"
    node.server.answer_write(422, message)
    await node.passes(30)
    first, second = node.slices()[0]["spec"]["devices"]
    assert "speed" in first["attributes"]
    assert "speed" not in second["attributes"]


@pytest.mark.conformance(107)
async def test_a_refused_device_costs_only_itself(node: Node) -> None:
    message = b'{"kind":"Status","reason":"Invalid","message":"x is invalid: spec.devices[0].name: Invalid"}'
    await node.passes(3)
    node.publisher.follow({RESOURCE: ("gpu", offers(2))})
    node.server.answer_write(422, message)
    await node.passes(30)
    assert ids(node) == ["d001"]


async def test_a_missing_node_is_named(node: Node) -> None:
    node.server.remove("/api/v1/nodes/n1")
    await node.publishes(offers(1))
    assert node.publisher.status.error == "there is no Node n1; check --node-name"


@pytest.mark.conformance(100)
async def test_at_no_moment_two_generations_are_complete(node: Node) -> None:
    await node.publishes(offers(130))
    snapshots: list[Counter[tuple[int, int]]] = []

    def look() -> None:
        pools = [one["spec"]["pool"] for one in node.slices()]
        snapshots.append(Counter((pool["generation"], pool["resourceSliceCount"]) for pool in pools))

    node.server.objects.listeners.append(look)
    await node.publishes(offers(200))
    await node.publishes(offers(20))
    node.server.objects.listeners.remove(look)
    assert len(snapshots) > 5
    for one in snapshots:
        assert sum(found == count for (_, count), found in one.items()) <= 1


async def test_an_update_whose_answer_was_lost_cannot_be_carried_out_later(node: Node) -> None:
    await node.publishes(offers(1))
    (before,) = node.slices()
    version = before["metadata"]["resourceVersion"]
    node.publisher.follow({RESOURCE: ("gpu", offers(2))})
    node.server.hang_up_writes(2)  # the client sends it twice
    await node.passes(3)
    assert node.publisher.status.error
    await node.publishes(offers(1))
    await node.passes(60)
    (after,) = node.slices()
    assert after["spec"] == before["spec"]
    assert after["metadata"]["resourceVersion"] != version
    assert node.publisher.status.error == ""
