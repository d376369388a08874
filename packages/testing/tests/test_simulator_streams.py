"""A resource while its plugin lists devices, stops, returns, and has a duplicate."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from devhost_testing.kubelet import Gate, KubeletSimulator, ListedDevice, OtherPlugin, Point, events, fail

RESOURCE = "example.com/tiny"


@pytest.fixture
async def old(plugin_dir, clock):
    """A kubelet up to 1.36 with a simulated clock."""
    async with KubeletSimulator(plugin_dir, "1.36", clock=clock) as simulator:
        yield simulator


@pytest.fixture
async def new(plugin_dir, clock):
    """A kubelet from 1.37 on with a simulated clock."""
    async with KubeletSimulator(plugin_dir, "1.37", clock=clock) as simulator:
        yield simulator


@pytest.fixture
async def timed(plugin_dir, profile, clock):
    """A kubelet of each profile with a simulated clock."""
    async with KubeletSimulator(plugin_dir, profile, clock=clock) as simulator:
        yield simulator


async def listed(kubelet, plugin):
    """Registers and waits for the first list of this registration's stream."""
    before = kubelet.events.position
    await plugin.register()
    await kubelet.wait_for(lambda: kubelet.events.of(events.ListReceived, plugin.resource, since=before))


async def ended(kubelet, since=0):
    await kubelet.wait_for(lambda: kubelet.events.of(events.StreamEnded, since=since))


def counts(kubelet):
    return kubelet.capacity().get(RESOURCE), kubelet.allocatable().get(RESOURCE)


async def test_each_list_replaces_the_previous_one(kubelet, tiny, make_devices):
    plugin = await tiny()
    await listed(kubelet, plugin)
    plugin.push(*make_devices("b", "c", "d"))
    await kubelet.wait_for(lambda: counts(kubelet) == (3, 3))
    plugin.push()
    await kubelet.wait_for(lambda: counts(kubelet) == (0, 0))


@pytest.mark.parametrize("health", ["Unhealthy", "healthy", ""])
async def test_any_health_but_healthy_is_unhealthy_and_keeps_capacity(kubelet, tiny, make_devices, health):
    plugin = await tiny()
    await listed(kubelet, plugin)
    plugin.push(*make_devices("a"), *make_devices("b", health=health))
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 1))
    plugin.push(*make_devices("a", "b"))
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 2))


async def test_an_id_listed_twice_with_different_health_counts_twice(kubelet, tiny, make_devices):
    plugin = await tiny()
    plugin.devices = [*make_devices("a"), *make_devices("a", health="Unhealthy")]
    await listed(kubelet, plugin)
    assert counts(kubelet) == (2, 1)


async def test_topology_is_seen_as_listed(kubelet, tiny, make_devices):
    plugin = await tiny()
    plugin.devices = [*make_devices("a", numa=1), *make_devices("b")]
    await listed(kubelet, plugin)
    assert kubelet.devices(RESOURCE) == (ListedDevice("a", "Healthy", (1,)), ListedDevice("b", "Healthy"))


async def test_a_list_of_more_than_four_mebibytes_ends_the_stream(kubelet, tiny, make_devices):
    plugin = await tiny()
    plugin.devices = make_devices(*(f"{number:063}" for number in range(60_000)))
    await plugin.register()
    await ended(kubelet)
    (end,) = kubelet.events.of(events.StreamEnded)
    assert end.reason.startswith("rpc error: code = ResourceExhausted")
    assert counts(kubelet) == (0, 0)


async def test_the_end_of_the_stream_makes_all_devices_unhealthy_without_a_new_dial(kubelet, tiny):
    plugin = await tiny()
    await listed(kubelet, plugin)
    plugin.end_streams()
    await ended(kubelet)
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 0))
    assert [name for name, _ in plugin.calls] == ["options", "list"]
    assert kubelet.endpoints(RESOURCE) == ()


async def test_a_dying_server_ends_the_stream(kubelet, tiny):
    plugin = await tiny()
    await listed(kubelet, plugin)
    await plugin.stop()
    await ended(kubelet)
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 0))


async def test_deleting_the_socket_file_changes_nothing_for_a_live_stream(
    kubelet, tiny, make_devices, plugin_dir
):
    plugin = await tiny()
    await listed(kubelet, plugin)
    (plugin_dir / "tiny.sock").unlink()
    plugin.push(*make_devices("a"))
    await kubelet.wait_for(lambda: counts(kubelet) == (1, 1))


async def test_a_killed_stream_is_seen_by_the_plugin_and_replaced_by_a_new_registration(kubelet, tiny):
    plugin = await tiny()
    await listed(kubelet, plugin)
    assert kubelet.kill_stream(RESOURCE) == 1
    await kubelet.wait_for(lambda: kubelet.events.of(events.Disconnected))
    assert counts(kubelet) == (2, 0)
    await asyncio.wait_for(plugin.stream_closed.wait(), 60)
    await listed(kubelet, plugin)
    assert counts(kubelet) == (2, 2)
    assert kubelet.kill_stream("example.com/other") == 0


async def test_a_list_that_is_made_to_fail_is_not_applied(kubelet, tiny, make_devices):
    plugin = await tiny()
    await listed(kubelet, plugin)
    kubelet.faults.inject(Point.LIST, fail("torn"))
    plugin.push(*make_devices("a", "b", "c"))
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 0))


async def test_capacity_stays_for_five_minutes_and_then_is_zero(timed, clock, tiny):
    kubelet = timed
    plugin = await tiny()
    await listed(kubelet, plugin)
    plugin.end_streams()
    await kubelet.wait_for(lambda: counts(kubelet) == (2, 0))
    clock.now += 300
    assert counts(kubelet) == (2, 0)
    clock.now += 1
    assert counts(kubelet) == (0, 0)
    assert [event.resource for event in kubelet.events.of(events.ResourceRemoved)] == [RESOURCE]
    clock.now += 1000
    assert counts(kubelet) == (0, 0)
    await listed(kubelet, plugin)
    assert counts(kubelet) == (2, 2)


async def test_until_1_36_a_second_plugin_takes_over_and_both_lists_count(old, tiny, make_devices):
    first, second = await tiny("one.sock"), await tiny("two.sock")
    second.devices = make_devices("c")
    await listed(old, first)
    await listed(old, second)
    assert old.endpoints(RESOURCE) == ("one.sock", "two.sock")
    assert counts(old) == (1, 1)
    first.push(*make_devices("a", "b", "x"))
    await old.wait_for(lambda: counts(old) == (3, 3))
    allocation = await old.admit("pod", "main", RESOURCE, 1)
    assert allocation.response.envs["FROM"] == "two.sock"


async def test_until_1_36_the_end_of_an_older_stream_disconnects_the_newer_plugin(old, tiny):
    first, second = await tiny("one.sock"), await tiny("two.sock")
    await listed(old, first)
    await listed(old, second)
    first.end_streams()
    await old.wait_for(lambda: old.events.of(events.Disconnected))
    assert [event.endpoint for event in old.events.of(events.Disconnected)] == ["two.sock"]
    await asyncio.wait_for(second.stream_closed.wait(), 60)
    await old.wait_for(lambda: len(old.events.of(events.StreamEnded)) >= 2)
    assert counts(old) == (2, 0)
    await listed(old, second)
    assert counts(old) == (2, 2)


async def test_until_1_36_a_failed_second_registration_hides_the_death_of_the_first(old, tiny):
    first, second = await tiny("one.sock"), await tiny("two.sock")
    await listed(old, first)
    second.failures["options"] = "no"
    with pytest.raises(grpc.aio.AioRpcError):
        await second.register()
    first.end_streams()
    await ended(old)
    assert counts(old) == (2, 2), "stale healthy devices, as on a real node"
    assert old.events.of(events.Disconnected) == []


async def test_until_1_36_the_same_path_may_register_twice(old, tiny):
    plugin = await tiny()
    await listed(old, plugin)
    await listed(old, plugin)
    assert old.endpoints(RESOURCE) == ("tiny.sock", "tiny.sock")


async def test_since_1_37_two_plugins_coexist_and_the_newest_is_used(new, tiny, make_devices):
    first, second = await tiny("one.sock"), await tiny("two.sock")
    await listed(new, first)
    await listed(new, second)
    allocation = await new.admit("pod", "main", RESOURCE, 1)
    assert allocation.response.envs["FROM"] == "two.sock"
    first.push(*make_devices("a", "b", "c"))
    await new.wait_for(lambda: counts(new) == (3, 3))


@pytest.mark.parametrize(("leaver", "stayer"), [(0, 1), (1, 0)])
async def test_since_1_37_the_plugin_that_stays_keeps_the_devices_healthy(new, tiny, leaver, stayer):
    plugins = [await tiny("one.sock"), await tiny("two.sock")]
    for plugin in plugins:
        await listed(new, plugin)
    plugins[leaver].end_streams()
    await new.wait_for(lambda: new.events.of(events.Disconnected))
    assert counts(new) == (2, 2)
    allocation = await new.admit("pod", "main", RESOURCE, 1)
    assert allocation.response.envs["FROM"] == plugins[stayer].endpoint
    assert len(new.events.of(events.Promoted)) == (1 if leaver == 1 else 0)
    plugins[stayer].end_streams()
    await new.wait_for(lambda: counts(new) == (2, 0))


async def test_since_1_37_a_live_path_cannot_register_again(new, tiny, plugin_dir):
    plugin = await tiny()
    await listed(new, plugin)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register()
    assert caught.value.details() == f"device plugin already connected: {plugin_dir / 'tiny.sock'}"
    assert counts(new) == (2, 2)
    assert new.endpoints(RESOURCE) == ("tiny.sock",)


async def test_since_1_37_a_refused_second_registration_blocks_the_path_until_a_restart(new, tiny):
    plugin = await tiny()
    await listed(new, plugin)
    with pytest.raises(grpc.aio.AioRpcError):
        await plugin.register()
    plugin.end_streams()
    await ended(new)
    assert counts(new) == (2, 2), "a dead endpoint with healthy devices"
    with pytest.raises(grpc.aio.AioRpcError, match="already connected"):
        await plugin.register()
    await new.restart()
    await plugin.stop()
    await plugin.serve()
    await listed(new, plugin)
    assert counts(new) == (2, 2)


async def test_since_1_37_a_path_can_register_again_once_its_stream_has_ended(new, tiny):
    plugin = await tiny()
    await listed(new, plugin)
    plugin.end_streams()
    await new.wait_for(lambda: new.events.of(events.Disconnected))
    await listed(new, plugin)
    assert counts(new) == (2, 2)


async def test_resources_are_independent(kubelet, tiny):
    plugins = [await tiny(f"{n}.sock", f"example.com/r{n}") for n in range(5)]
    for plugin in plugins:
        await listed(kubelet, plugin)
    plugins[2].end_streams()
    await kubelet.wait_for(lambda: kubelet.allocatable()["example.com/r2"] == 0)
    assert kubelet.allocatable() == {f"example.com/r{n}": 0 if n == 2 else 2 for n in range(5)}


async def test_what_is_shown_is_settled_once_lists_have_come_and_ends_are_noticed(kubelet, plugin_dir):
    late, last, begun = Gate(), Gate(), asyncio.Event()

    async def hold() -> None:
        begun.set()
        await last.wait()

    kubelet.faults.inject(Point.LIST, late.wait)
    assert kubelet.settled() and kubelet.settled(RESOURCE)
    plugin = OtherPlugin(plugin_dir, RESOURCE, ["a", "b"])
    async with plugin:
        assert not kubelet.settled() and not kubelet.settled(RESOURCE)
        assert kubelet.settled("example.com/other")
        late.open()
        await kubelet.wait_for(lambda: kubelet.settled(RESOURCE))
        assert kubelet.healthy(RESOURCE) == {"a", "b"}
        kubelet.faults.inject(Point.LIST, hold)
        await plugin.send(["a"])
        await begun.wait()
    assert kubelet.healthy(RESOURCE) == {"a", "b"} and not kubelet.settled(RESOURCE)
    last.open()
    await kubelet.wait_for(lambda: kubelet.settled(RESOURCE))
    assert not kubelet.healthy(RESOURCE)
