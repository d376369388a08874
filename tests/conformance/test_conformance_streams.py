"""ListAndWatch: which lists the kubelet gets, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from conformance_node import OTHER, OTHER_LINE, TOY, TOY_LINE, WAIT
from devhost_testing.kubelet import events as ev

from devhost.backend.model import Device, unhealthy
from devhost.kubelet.api import api_pb2 as pb
from devhost.planning.plan import RefusalKind
from devhost.planning.timing import KUBELET as NODE


def lists(kubelet, since: int = 0) -> list[ev.ListReceived]:
    return kubelet.events.of(ev.ListReceived, TOY, since=since)


@pytest.mark.conformance(15)
@pytest.mark.field_failure("F15")
async def test_the_first_list_is_complete_and_waits_for_the_first_scan(rig, kubelet):
    looking, go_on = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(looking.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(WAIT)

    rig.scripts["toy"].on_discover = slow
    async with rig.running(TOY_LINE, OTHER_LINE):
        await asyncio.wait_for(looking.wait(), WAIT)
        assert not kubelet.events.of(ev.RegisterReceived, TOY)
        go_on.set()
        await rig.offers({TOY: 2, OTHER: 1})
    assert {device.id for device in lists(kubelet)[0].devices} == {"d0", "d1"}


@pytest.mark.conformance(16, 17)
async def test_a_burst_of_changes_leads_to_one_list_and_no_change_to_none(rig, kubelet, devices):
    good = devices(6)
    rig.scripts["toy"].devices = good
    async with rig.running(TOY_LINE, allocatable={TOY: 6}):
        before = kubelet.events.position
        rig.change("toy", [replace(device, health=unhealthy("too hot")) for device in good[:4]] + good[4:])
        await rig.offers({TOY: 2})
        for _ in range(3):  # repeated scans without a difference
            looks = rig.scripts["toy"].looks
            rig.change("toy", list(rig.scripts["toy"].devices))
            await rig.until(lambda looks=looks: rig.scripts["toy"].looks > looks)
        rig.change("toy", good)
        await rig.offers({TOY: 6})
        first, second = lists(kubelet, before)
    assert {device.health for device in first.devices} == {"Healthy", "Unhealthy"}
    assert {device.health for device in second.devices} == {"Healthy"}
    assert {device.id for device in first.devices} == {device.id for device in second.devices}


@pytest.mark.conformance(18)
async def test_health_changes_allocatable_and_never_capacity(rig, kubelet, devices):
    (good,) = devices(1)
    rig.scripts["toy"].devices = [good]
    rig.write(TOY_LINE)
    seen: list[tuple[int, int]] = []
    kubelet.events.listen(
        lambda event: (
            isinstance(event, ev.ListReceived)
            and seen.append((kubelet.capacity()[TOY], kubelet.allocatable()[TOY]))
        )
    )
    async with rig.running(allocatable={TOY: 1}):
        rig.change("toy", [replace(good, health=unhealthy("too hot"))])
        await rig.offers({TOY: 0})
        rig.change("toy", [good])
        await rig.offers({TOY: 1})
        assert seen == [(1, 1), (1, 0), (1, 1)]


@pytest.mark.conformance(20)
async def test_without_devices_the_list_is_empty_and_the_stream_stays_open(rig, kubelet, devices):
    rig.scripts["toy"].devices = []
    async with rig.running(f"{TOY_LINE}, whenEmpty: register"):
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 0}, WAIT)
        assert [event.devices for event in lists(kubelet)] == [()]
        rig.change("toy", devices(1))
        await rig.offers({TOY: 1})
        assert not kubelet.events.of(ev.StreamEnded)
        assert len(kubelet.events.of(ev.Registered)) == 1


@pytest.mark.conformance(21)
async def test_ids_are_unique_short_and_stable_over_a_restart_in_another_order(rig, kubelet):
    rig.scripts["toy"].devices = [Device(id="x" * 62 + last) for last in "abc"]
    rig.write(f"{TOY_LINE}, share: {{replicas: 12}}")
    found = []
    for _ in range(2):
        async with rig.running(allocatable={TOY: 36}):
            found.append(sorted(device.id for device in lists(kubelet)[-1].devices))
        rig.scripts["toy"].devices.reverse()
    assert found[0] == found[1]
    assert len(set(found[0])) == 36
    assert max(map(len, found[0])) <= 63


@pytest.mark.conformance(22)
async def test_a_device_found_twice_is_listed_once(rig, kubelet, devices):
    twice = devices(2)
    rig.scripts["toy"].devices = [*twice, replace(twice[0], health=unhealthy("another opinion"))]
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        assert kubelet.capacity() == {TOY: 2}
        assert sorted(device.id for device in lists(kubelet)[-1].devices) == ["d0", "d1"]


@pytest.mark.conformance(23)
@pytest.mark.field_failure("F11")
async def test_very_many_devices_fit_and_those_beyond_the_limit_are_refused_with_a_reason(rig, kubelet):
    rig.scripts["toy"].devices = [
        Device(id=f"d{n}-{'x' * 30}", attributes={"model": "x100", "index": n}) for n in range(8)
    ]
    rig.hurry(lists=NODE.lists)  # each list has 50,000 devices
    async with rig.running(f"{TOY_LINE}, share: {{replicas: 6250}}", allocatable={TOY: 50_000}) as host:
        (held,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        assert held.startswith("d0-")
        # One device now fills the list, with little space for vanished ones.
        rig.write(f"{TOY_LINE}, share: {{replicas: 58000}}, where: {{not: {{index: 0}}}}")
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 58_000}, 3 * WAIT)
        refusals = [refusal for refusal in host.plan.refusals if refusal.kind is RefusalKind.FULL]
        assert len(refusals) == 6
        assert "would pass the kubelet's limit of 4 MiB" in refusals[0].reason
        assert held in {device.id for device in kubelet.devices(TOY)}
        assert not kubelet.events.of(ev.StreamEnded)


@pytest.mark.conformance(24)
@pytest.mark.field_failure("F22")
@pytest.mark.parametrize(("found", "listed"), [((-1,), ()), ((), ()), ((1,), (1,)), ((-1, 0), (0,))])
async def test_only_real_numa_nodes_are_listed(rig, kubelet, found, listed):
    rig.scripts["toy"].devices = [Device(id="d0", numa_nodes=found)]
    async with rig.running(TOY_LINE, allocatable={TOY: 1}):
        (device,) = kubelet.devices(TOY)
    assert device.numa_nodes == listed


@pytest.mark.conformance(25)
@pytest.mark.field_failure("F3")
async def test_a_cancelled_stream_ends_its_task_and_the_next_gets_the_full_list(rig, kubelet, dial):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        registration = host.services[TOY].registration
        async with dial(host, TOY) as stub:
            before = len(asyncio.all_tasks())
            for _ in range(3):
                stream = stub.ListAndWatch(pb.Empty())
                assert len((await stream.read()).devices) == 2
                assert registration.streams == 2
                stream.cancel()
                await rig.until(lambda: registration.streams == 1)
            await rig.until(lambda: len(asyncio.all_tasks()) <= before)
        assert kubelet.allocatable() == {TOY: 2}
    assert len(kubelet.events.of(ev.Registered)) == 1


@pytest.mark.conformance(26)
async def test_two_streams_both_get_every_change(rig, kubelet, dial, devices):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host, dial(host, TOY) as stub:
        stream = stub.ListAndWatch(pb.Empty())
        assert len((await stream.read()).devices) == 2
        for count in (3, 4, 5):
            rig.change("toy", devices(count))
            assert len((await asyncio.wait_for(stream.read(), WAIT)).devices) == count
            await rig.offers({TOY: count})


@pytest.mark.conformance(27)
async def test_a_client_that_does_not_read_delays_no_other_and_gets_the_newest_list(
    rig, kubelet, dial, devices
):
    many = 3000  # 80 kB: more than one stream's window of 64 KiB, so the second list waits for a reader
    rig.scripts["toy"].devices = devices(1)
    rig.hurry(lists=NODE.lists)
    rig.write(f"{TOY_LINE}, share: {{replicas: {many}}}", OTHER_LINE)
    async with rig.running(allocatable={TOY: many, OTHER: 1}) as host, dial(host, TOY) as stub:
        stream = stub.ListAndWatch(pb.Empty())
        await rig.until(lambda: host.services[TOY].registration.streams == 2, WAIT)
        for count in (2, 3, 4, 5, 6):
            rig.change("toy", devices(count))
            rig.change("other", devices(count))
            await rig.offers({TOY: many * count, OTHER: count})
        got = []
        while not got or got[-1] != many * 6:
            got.append(len((await asyncio.wait_for(stream.read(), WAIT)).devices))
    assert len(got) <= 3, f"of six lists it got {got}"
