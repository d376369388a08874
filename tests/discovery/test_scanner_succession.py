"""A backend in trouble stays so until it answers: not for a while more, and not because another one asks."""

from __future__ import annotations

import asyncio
import logging

import pytest
from kit.clock import FakeClock, in_virtual_time
from kit.scanner import Scene, now, said
from kit.waiting import background

from devhost.backend.errors import BackendError
from devhost.backend.model import HEALTHY, unhealthy
from devhost.discovery.scanner import BackendState
from devhost.planning.timing import DISCOVERY as NODE

DEAD = BackendError("no driver")


async def handed_over(old: Scene, new: Scene, after: float) -> None:
    """Has a backend fail for so many seconds, and another one take its place."""
    async with old.running():
        old.source.error = DEAD
        await old.hears(then=after)
    new.succeed(old)


@in_virtual_time
async def test_devices_of_a_failing_backend_become_unhealthy_on_time_and_not_at_the_next_try() -> None:
    async with Scene(probes=False).running() as scene:
        scene.source.error = DEAD
        await scene.hears(then=NODE.stale_after - 1)
        assert scene.health("d0") == HEALTHY
        await asyncio.sleep(1.1)
        assert scene.health("d0") == unhealthy("no driver")
        unhealthy_at = scene.found[-1][0]
        assert unhealthy_at == pytest.approx(now(), abs=0.2)
        assert unhealthy_at not in [at for at, _ in scene.source.looks]


@pytest.mark.parametrize("stale", [False, True])
@in_virtual_time
async def test_a_replaced_backend_that_fails_as_before_changes_nothing(
    caplog: pytest.LogCaptureFixture, stale: bool
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    old, new = Scene(probes=False), Scene(probes=False)
    new.source.error = DEAD
    await handed_over(old, new, NODE.stale_after + 5 if stale else 5)
    since = old.discovery.condition.since
    told = said(caplog)
    async with new.running():
        assert (new.state(), new.discovery.condition.since) == (BackendState.DEGRADED, since)
        assert (new.health("d0") == unhealthy("no driver")) is stale
        await asyncio.sleep(NODE.stale_after - 5)
        assert new.health("d0") == unhealthy("no driver")
        assert said(caplog) == told == [("backend is degraded", "no driver")]
        new.source.error = None
        await asyncio.sleep(31)
        assert (new.state(), new.health("d0")) == (BackendState.OK, HEALTHY)
        assert said(caplog) == [*told, ("backend is back", 2)]


@in_virtual_time
async def test_a_replaced_backend_whose_probe_fails_as_before_changes_nothing() -> None:
    old, new = Scene(), Scene()
    async with old.running():
        old.source.probe_error = new.source.probe_error = DEAD
        old.discovery.recheck()
        await asyncio.sleep(NODE.stale_after + 10)
        assert old.health("d0") == unhealthy("no driver")
    new.succeed(old)
    async with new.running():
        for _ in range(20):
            assert (new.state(), new.health("d0")) == (BackendState.DEGRADED, unhealthy("no driver"))
            await asyncio.sleep(5)


@in_virtual_time
async def test_a_replaced_backend_that_answers_is_ok_at_once() -> None:
    old, new = Scene(probes=False), Scene(probes=False)
    await handed_over(old, new, NODE.stale_after + 5)
    async with new.running():
        assert (new.state(), new.health("d0")) == (BackendState.OK, HEALTHY)


@in_virtual_time
async def test_the_time_of_failures_continues_for_a_replaced_backend_that_does_not_answer() -> None:
    old, new = Scene(probes=False), Scene(probes=False)
    new.source.takes = 1e6
    await handed_over(old, new, NODE.stale_after - 5)
    async with new.running():
        assert new.health("d0") == HEALTHY
        await asyncio.sleep(6)
        assert new.health("d0") == unhealthy("no driver")


@pytest.mark.parametrize("probes", [False, True])
async def test_a_scanner_that_ends_leaves_no_timer_behind(probes: bool) -> None:
    """Its timer would publish stale devices over those of the scanner that came after it."""
    clock = FakeClock()
    scene = Scene(probes=probes, clock=clock)
    scene.source.error = DEAD
    async with background(scene.discovery.run()):
        await clock.settle()
        assert scene.state() is BackendState.DEGRADED
        assert clock.now + NODE.stale_after in clock.timers
    assert clock.timers == []
    published = len(scene.found)
    await clock.advance(2 * NODE.stale_after)
    assert len(scene.found) == published
