"""What probes answer, in virtual time: failures keep the last verdicts, and none is laid on a stranger."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from kit.clock import in_virtual_time
from kit.scanner import Scene, event

from devhost.backend.errors import BackendError, BackendTimeout
from devhost.backend.model import HEALTHY, Device, unhealthy
from devhost.discovery.scanner import BackendState
from devhost.planning.timing import DISCOVERY as NODE
from devhost.telemetry.metrics import Failure

DOWN = unhealthy("link down")


# Failing and hanging


@in_virtual_time
async def test_a_failing_probe_degrades_the_backend_keeps_the_verdicts_and_stops_no_scan() -> None:
    scene = Scene()
    scene.source.verdicts = {"d1": DOWN}
    async with scene.running():
        scene.source.probe_error = BackendTimeout("backend toy did not answer within 10 s")
        scene.discovery.recheck()
        await asyncio.sleep(NODE.between_probes + 0.1)
        condition = scene.discovery.condition
        assert (condition.state, condition.reason) == (
            BackendState.DEGRADED,
            "backend toy did not answer within 10 s",
        )
        assert (scene.health("d0"), scene.health("d1")) == (HEALTHY, DOWN)
        scene.source.devices.append(Device("d2"))
        await scene.hears(event(1), then=0.1)
        assert scene.health("d2") == HEALTHY
        assert scene.state() is BackendState.DEGRADED, "a good look does not make up for a failed probe"
        assert scene.metrics.failures == [Failure.TIMEOUT]


@in_virtual_time
async def test_after_a_while_without_a_good_probe_devices_are_unhealthy_until_the_next() -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(NODE.resync - 1)
        scene.source.probe_error = BackendError("firmware is silent")
        await asyncio.sleep(NODE.stale_after)
        assert scene.health("d0") == HEALTHY
        await asyncio.sleep(2)
        assert scene.health("d0") == scene.health("d1") == unhealthy("firmware is silent")
        await scene.hears(event(1), then=0.1)
        assert scene.health("d0") == unhealthy("firmware is silent"), "a good look says nothing of it"
        scene.source.probe_error, scene.source.verdicts = None, {"d1": DOWN}
        await asyncio.sleep(31)
        assert scene.state() is BackendState.OK
        assert (scene.health("d0"), scene.health("d1")) == (HEALTHY, DOWN)


@in_virtual_time
async def test_a_failing_scan_and_a_failing_probe_each_degrade_and_both_must_recover() -> None:
    async with Scene().running() as scene:
        scene.source.error = BackendError("cannot look")
        scene.source.probe_error = BackendError("cannot probe")
        scene.discovery.recheck()
        await asyncio.sleep(100)
        assert scene.discovery.condition.reason == "cannot look"
        scene.source.error = None
        await asyncio.sleep(31)
        assert (scene.state(), scene.discovery.condition.reason) == (
            BackendState.DEGRADED,
            "cannot probe",
        )
        assert scene.health("d0") == unhealthy("cannot probe")
        scene.source.probe_error = None
        await asyncio.sleep(31)
        assert (scene.state(), scene.health("d0")) == (BackendState.OK, HEALTHY)


@in_virtual_time
async def test_a_failing_probe_is_retried_with_back_off_also_if_requested() -> None:
    async with Scene().running() as scene:
        scene.source.probe_error = BackendError("firmware is silent")
        for _ in range(6_000):
            scene.discovery.recheck()
            await asyncio.sleep(0.1)
    times = scene.source.probe_times[1:]
    gaps = [b - a for a, b in pairwise(times)]
    assert len(gaps) >= 15
    for number, gap in enumerate(gaps):
        most = min(30.0, NODE.between_probes * 2**number)
        assert max(NODE.between_probes, most / 2) - 0.02 <= gap <= most + 0.02


@in_virtual_time
async def test_a_probe_that_answers_ends_the_back_off() -> None:
    async with Scene().running() as scene:
        scene.source.probe_error = BackendError("firmware is silent")
        await asyncio.sleep(10 * NODE.resync)
        scene.source.probe_error = None
        await asyncio.sleep(NODE.resync)
        scene.source.probe_error = BackendError("firmware is silent")
        scene.discovery.recheck()
        await asyncio.sleep(3 * NODE.between_probes)
        first, second = scene.source.probe_times[-2:]
        assert second - first <= 2 * NODE.between_probes + 0.1


@in_virtual_time
async def test_a_failing_probe_of_removed_devices_degrades_nothing() -> None:
    async with Scene().running() as scene:
        scene.source.probe_error = BackendError("no such device")
        scene.discovery.recheck()
        await asyncio.sleep(NODE.between_probes + 1)
        assert scene.state() is BackendState.DEGRADED
        scene.source.devices = []
        await scene.hears(event(1), then=0.1)
        assert scene.state() is BackendState.OK
        scene.source.devices, scene.source.probe_takes = [Device("d0")], 5.0
        scene.discovery.request_scan(event(1))
        while len(scene.source.probed) < 3:
            await asyncio.sleep(1)
        scene.source.devices = []
        await scene.hears(event(1), then=10)
        assert scene.state() is BackendState.OK


# Whom an answer is about


@in_virtual_time
async def test_what_a_probe_finds_is_reported_once() -> None:
    async with Scene().running() as scene:
        scene.source.verdicts = {"d1": DOWN}
        await asyncio.sleep(3 * NODE.resync)
        assert scene.found == [(0.0, None), (pytest.approx(NODE.resync, abs=0.1), None)]


@in_virtual_time
async def test_a_device_found_unhealthy_is_probed_again_soon() -> None:
    async with Scene().running() as scene:
        scene.source.verdicts = {"d1": DOWN}
        await asyncio.sleep(2 * NODE.resync)
        expected = [0, NODE.resync, NODE.resync + NODE.between_probes]
        assert scene.source.probe_times == pytest.approx(expected, abs=0.1)


@in_virtual_time
async def test_a_verdict_does_not_count_for_a_device_that_came_back_during_the_probe() -> None:
    async with Scene().running() as scene:
        d0, d1 = scene.source.devices
        await asyncio.sleep(10)
        scene.source.probe_takes, scene.source.verdicts = 4.0, {"d0": DOWN, "d1": DOWN, "d9": DOWN}
        scene.discovery.recheck()
        for devices in ([d0], [d0, d1]):
            await asyncio.sleep(1)
            scene.source.devices = devices
            scene.discovery.request_scan(event(1))
        scene.source.verdicts = {}
        await asyncio.sleep(2.5)
        assert (scene.health("d0"), scene.health("d1")) == (DOWN, HEALTHY)
        await asyncio.sleep(25)
        assert scene.source.probed[-1][1] == ["d0", "d1"]
        assert len(scene.source.probed) == 3, "the one that came back is asked for again"


@pytest.mark.parametrize(
    ("after", "laid"),
    [
        (Device("d1", attributes={"index": 7}), True),
        (Device("d1", claims=frozenset({"node:/dev/d7"})), False),
        (Device("d1", health=unhealthy("too hot")), False),
    ],
)
@in_virtual_time
async def test_a_verdict_counts_for_a_device_that_only_changed_attributes(after: Device, laid: bool) -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(10)
        scene.source.probe_takes, scene.source.verdicts = 4.0, {"d1": DOWN}
        scene.discovery.recheck()
        await asyncio.sleep(1)
        scene.source.devices[1] = after
        scene.discovery.request_scan(event(1))
        scene.source.verdicts = {}
        await asyncio.sleep(3.5)
        expected = DOWN if laid else after.health
        assert scene.health("d1") == expected
        await asyncio.sleep(30)
        assert len(scene.source.probed) == 3, "unhealthy or unknown: it is probed again soon"


@in_virtual_time
async def test_a_verdict_is_dropped_with_its_device() -> None:
    scene = Scene()
    scene.source.verdicts = {"d1": DOWN}
    async with scene.running():
        d0, d1 = scene.source.devices
        await asyncio.sleep(20)
        probed = len(scene.source.probed)
        scene.source.probe_takes = 4.0
        for devices in ([d0], [d0, d1]):
            scene.source.devices = devices
            await scene.hears(event(1), then=1)
        assert scene.health("d1") == HEALTHY
        assert len(scene.source.probed) == probed + 1, "it is asked for again"
        await asyncio.sleep(4)
        assert scene.health("d1") == DOWN


@in_virtual_time
async def test_a_device_that_recovers_is_probed_at_once_if_its_probe_had_failed() -> None:
    scene = Scene()
    scene.source.verdicts = {"d1": DOWN}
    scene.source.devices[1] = Device("d1", health=unhealthy("no carrier"))
    async with scene.running():
        await asyncio.sleep(20)
        scene.source.devices[1], scene.source.verdicts = Device("d1"), {}
        await scene.hears(event(1), then=0.1)
        assert scene.health("d1") == HEALTHY
        probed = len(scene.source.probed)
        scene.source.devices[0] = Device("d0", health=unhealthy("no carrier"))
        await scene.hears(event(1), then=20)
        assert len(scene.source.probed) == probed, "its probe never said anything of d0"


@in_virtual_time
async def test_a_single_scan_and_probe_work_without_loops() -> None:
    scene = Scene()
    scene.source.verdicts = {"d1": DOWN}
    assert await scene.discovery.scan_once()
    assert scene.discovery.probing and await scene.discovery.probing.once()
    assert (scene.health("d1"), scene.state()) == (DOWN, BackendState.OK)
    failing = Scene()
    failing.source.probe_error = BackendError("no")
    assert await failing.discovery.scan_once()
    assert failing.discovery.probing and not await failing.discovery.probing.once()
    assert (sorted(failing.discovery.devices), failing.state()) == (["d0", "d1"], BackendState.DEGRADED)
    blind = Scene()
    blind.source.error = BackendError("no")
    assert not await blind.discovery.scan_once()
    assert blind.discovery.probing and await blind.discovery.probing.once()
    assert not blind.source.probed
