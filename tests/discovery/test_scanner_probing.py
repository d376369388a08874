"""Probes beside looks, in virtual time: neither waits for the other but for the first list."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from kit.clock import in_virtual_time
from kit.scanner import Scene, event, now

from devhost.backend.errors import BackendError, BackendTimeout
from devhost.backend.model import HEALTHY, Device, unhealthy
from devhost.discovery.scanner import ANYTHING, BackendState
from devhost.planning.timing import DISCOVERY as NODE

DOWN = unhealthy("link down")


def ids(scene: Scene) -> list[str]:
    return sorted(scene.discovery.devices)


# A dear probe costs hot-plug nothing


@in_virtual_time
async def test_a_hot_plugged_device_is_published_at_once_and_probed_soon() -> None:
    async with Scene().running() as scene:
        scene.source.probe_takes = 8.0
        await asyncio.sleep(30)
        scene.source.devices.append(Device("d2"))
        await scene.hears(event(2), then=0.1)
        assert ids(scene) == ["d0", "d1", "d2"]
        assert scene.source.probed[-1] == (pytest.approx(30, abs=0.1), ["d0", "d1", "d2"])


@in_virtual_time
async def test_hot_plug_is_noticed_while_a_probe_hangs() -> None:
    async with Scene().running() as scene:
        scene.source.probe_takes = 10_000.0
        scene.discovery.recheck()
        await asyncio.sleep(10)
        assert len(scene.source.probed) == 2
        for number in range(3):
            scene.source.devices = [Device("d0"), Device(f"new{number}")]
            await scene.hears(event(number), then=0.01)
            assert ids(scene) == ["d0", f"new{number}"]


@in_virtual_time
async def test_a_backend_that_has_released_its_driver_is_not_probed() -> None:
    async with Scene().running() as scene:
        before = len(scene.source.probed)
        scene.source.context.released = True
        scene.discovery.recheck()
        await asyncio.sleep(10)
        assert len(scene.source.probed) == before


@in_virtual_time
async def test_the_duration_of_a_probe_does_not_delay_the_next_scan() -> None:
    async with Scene().running() as scene:
        scene.source.probe_takes = 5.0
        scene.discovery.recheck()
        await asyncio.sleep(10.1)
        at = now()
        await scene.hears(event(1), then=0.001)
        assert scene.source.times[-1] == at
        assert scene.discovery.condition.duration == 0.0


@pytest.mark.parametrize("one", [ANYTHING, event(1)])
@in_virtual_time
async def test_events_cause_no_probe(one: Any) -> None:
    async with Scene().running() as scene:
        for _ in range(300):
            await scene.hears(one, then=1)
    assert len(scene.source.looks) >= 300
    assert scene.source.probe_times == pytest.approx([n * NODE.resync for n in range(6)], abs=0.1)


@in_virtual_time
async def test_a_backends_own_events_cause_no_probe() -> None:
    async def ticking() -> Any:
        while True:
            await asyncio.sleep(1)
            yield ANYTHING

    scene = Scene()
    scene.source.watching = ticking
    async with scene.running(watch=True):
        await asyncio.sleep(NODE.resync - 1)
    assert len(scene.source.looks) > 50
    assert len(scene.source.probed) == 1


# When it is probed


@in_virtual_time
async def test_a_backend_without_a_probe_is_never_probed_and_nothing_waits_for_it() -> None:
    async with Scene(probes=False).running() as scene:
        assert scene.found == [(0.0, None)]
        scene.discovery.recheck()
        await asyncio.sleep(3 * NODE.resync)
        assert not scene.source.probed
        assert scene.discovery.probing is None


@in_virtual_time
async def test_a_backend_without_devices_is_neither_probed_nor_woken() -> None:
    scene = Scene()
    scene.source.devices = []
    async with scene.running():
        assert scene.state() is BackendState.OK
        scene.discovery.recheck()
        await asyncio.sleep(3 * NODE.resync)
        assert not scene.source.probed
        scene.source.devices = [Device("d0")]
        await scene.hears(event(0), then=0.01)
        assert scene.source.probed == [(pytest.approx(3 * NODE.resync, abs=0.1), ["d0"])]


@in_virtual_time
async def test_a_backend_is_probed_at_the_start_at_each_resync_and_on_request() -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(NODE.resync + 20)
        at = now()
        scene.discovery.recheck()
        await asyncio.sleep(NODE.resync - 1)
        assert scene.source.probe_times == pytest.approx([0, NODE.resync, at], abs=0.1)
        assert scene.source.times[-1] == pytest.approx(at, abs=0.1)


@in_virtual_time
async def test_probes_have_a_least_interval_for_all_requests() -> None:
    async with Scene().running() as scene:
        for number in range(300):
            scene.source.devices = [Device("d0"), Device(f"d{number}")]
            scene.discovery.recheck()
            await asyncio.sleep(0.1)
    gaps = [b - a for a, b in pairwise(scene.source.probe_times)]
    assert len(gaps) >= 5
    assert min(gaps) >= NODE.between_probes


@in_virtual_time
async def test_expensive_probes_take_at_most_a_fifth_of_the_time() -> None:
    scene = Scene()
    scene.source.probe_takes = 3.0
    async with scene.running():
        for _ in range(3000):
            scene.discovery.recheck()
            await asyncio.sleep(0.1)
    assert 0.19 * 300 <= 3.0 * len(scene.source.probed) <= 0.2 * 300 + 3.0


@in_virtual_time
async def test_a_denied_device_is_probed_once_and_not_at_each_check() -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(10)
        scene.source.missing = {"/dev/d0"}
        scene.discovery.report_missing("d0", ["/dev/d0"])
        await asyncio.sleep(6 * NODE.missing_resync)
        assert len(scene.source.path_times) >= 6
        assert scene.source.probe_times == pytest.approx([0, 10], abs=0.1)


@in_virtual_time
async def test_a_backend_is_probed_when_scans_succeed_again() -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(10)
        scene.source.error = BackendError("driver is busy")
        await scene.hears(event(1), then=1)
        assert len(scene.source.probed) == 1
        scene.source.error = None
        await asyncio.sleep(5)
        assert scene.source.probe_times[1:] == scene.source.times[-1:]


# The first list


@in_virtual_time
async def test_a_device_known_to_be_unhealthy_is_never_offered_after_a_start() -> None:
    scene = Scene()
    scene.source.probe_takes = 4.0
    scene.source.verdicts = {"d1": DOWN}
    async with scene.running():
        await asyncio.sleep(3)
        assert not scene.found
        assert not scene.discovery.answered.is_set()
        assert scene.state() is BackendState.STARTING
        await asyncio.sleep(1)
        assert scene.found == [(4.0, None)]
        assert (scene.health("d0"), scene.health("d1")) == (HEALTHY, DOWN)


@in_virtual_time
async def test_a_device_plugged_in_during_the_first_probe_is_in_the_first_list() -> None:
    scene = Scene()
    scene.source.probe_takes = 4.0
    async with scene.running(watch=True):
        assert scene.source.watches == [0.0]
        scene.source.devices.append(Device("d2"))
        await scene.hears(event(2), then=4)
        assert ids(scene) == ["d0", "d1", "d2"]
        assert len(scene.found) == 1


@in_virtual_time
async def test_the_first_list_waits_for_a_failing_probe_no_longer_than_it_takes_to_fail() -> None:
    scene = Scene()
    scene.source.probe_takes, scene.source.probe_error = 10.0, BackendTimeout("toy-probe: no answer")
    async with scene.running():
        await asyncio.sleep(9)
        assert not ids(scene)
        await asyncio.sleep(1)
        assert ids(scene) == ["d0", "d1"]
        assert scene.health("d0") == unhealthy("toy-probe: no answer"), (
            "no probe has reported it as healthy yet"
        )
        scene.source.devices.append(Device("d2"))
        await scene.hears(event(2), then=0.1)
        assert ids(scene) == ["d0", "d1", "d2"]
        scene.source.probe_takes, scene.source.probe_error = 0.0, None
        await asyncio.sleep(40)
        assert {scene.health(name) for name in ids(scene)} == {HEALTHY}


@in_virtual_time
async def test_a_scan_that_fails_during_the_first_probe_is_reported_and_publishes_nothing() -> None:
    scene = Scene()
    scene.source.probe_takes = 4.0
    scene.source.verdicts = {"d1": DOWN}
    async with scene.running():
        scene.source.error = BackendError("driver is busy")
        await scene.hears(event(1), then=0.1)
        assert (scene.state(), ids(scene)) == (BackendState.DEGRADED, [])
        assert scene.discovery.answered.is_set()
        scene.source.error = None
        await asyncio.sleep(3)
        assert not ids(scene)
        await asyncio.sleep(1)
        assert (scene.state(), scene.health("d1")) == (BackendState.OK, DOWN)


@in_virtual_time
async def test_a_backend_that_starts_late_is_probed_before_its_first_list() -> None:
    scene = Scene()
    scene.source.error = BackendError("no driver yet")
    scene.source.verdicts = {"d1": DOWN}
    async with scene.running():
        assert scene.discovery.answered.is_set()
        scene.source.error, scene.source.probe_takes = None, 4.0
        await asyncio.sleep(3)
        assert not ids(scene)
        await asyncio.sleep(3)
        assert scene.health("d1") == DOWN


@in_virtual_time
async def test_verdicts_stay_after_changed_options_until_the_next_probe() -> None:
    before, after, bare = Scene(), Scene(), Scene(probes=False)
    before.source.verdicts = {"d1": DOWN}
    async with before.running():
        pass
    after.source.probe_takes = 4.0
    after.succeed(before)
    async with after.running():
        assert ids(after) == ["d0", "d1"]
        assert after.health("d1") == DOWN
        await asyncio.sleep(3)
        assert after.health("d1") == DOWN
        await asyncio.sleep(1)
        assert after.health("d1") == HEALTHY
    before.discovery.health.apply_probe({"d1": DOWN})
    bare.succeed(before)
    assert bare.health("d1") == HEALTHY, "nothing is left that could withdraw the verdict"
