"""One backend's looks in virtual time: resync, back-off, folding, and errors that empty nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from kit.clock import in_virtual_time
from kit.scanner import Scene, event, now

from devhost.backend import Event
from devhost.backend.errors import BackendError, BackendTimeout
from devhost.backend.model import HEALTHY, Cause, Device, unhealthy
from devhost.backend.threads import NoThread
from devhost.discovery.scanner import ANYTHING, EVENT_LIMIT, BackendState
from devhost.planning.timing import DISCOVERY as NODE
from devhost.runtime.worker import MAX_ABANDONED, SILENCE, NotCalled
from devhost.telemetry.metrics import Failure


@in_virtual_time
async def test_a_backend_is_scanned_at_the_start_and_at_each_resync() -> None:
    async with Scene(probes=False).running() as scene:
        await asyncio.sleep(5 * NODE.resync)
    assert scene.source.times == pytest.approx([n * NODE.resync for n in range(6)], abs=0.02)
    assert all(events == [ANYTHING] for _, events in scene.source.looks)
    assert len(scene.found) == 1


@in_virtual_time
async def test_the_first_event_after_quiet_is_handled_at_once_and_carries_its_time() -> None:
    async with Scene().running() as scene:
        await asyncio.sleep(10)
        scene.source.devices.append(Device("d2"))
        at = now()
        await scene.hears(event(1), then=1)
        assert scene.source.looks[1:] == [(at, [event(1)])]
        assert scene.found[1:] == [(at, at)]


@in_virtual_time
async def test_a_burst_becomes_one_scan_that_gets_every_event_once() -> None:
    async with Scene().running() as scene:
        burst = [event(number) for number in range(EVENT_LIMIT)]
        for one in burst:
            scene.discovery.request_scan(one)
        await asyncio.sleep(5)
        assert [events for _, events in scene.source.looks[1:]] == [burst]


@in_virtual_time
async def test_events_that_keep_coming_take_at_most_a_fifth_of_the_time_and_none_is_lost() -> None:
    scene = Scene()
    scene.source.takes = 0.1
    async with scene.running():
        sent = [event(number) for number in range(5_000)]
        for one in sent:
            await scene.hears(one, then=0.002)
        await asyncio.sleep(5)
        looks = scene.source.looks[1:]
        assert len(looks) <= 10 / 0.5 + 2
        assert [one for _, events in looks for one in events] == sent


@in_virtual_time
async def test_beyond_the_limit_of_events_the_scan_is_full() -> None:
    async with Scene().running() as scene:
        for number in range(EVENT_LIMIT + 500):
            scene.discovery.request_scan(event(number))
        await asyncio.sleep(1)
        (_, events), *rest = scene.source.looks[1:]
        assert events == [*(event(number) for number in range(EVENT_LIMIT)), ANYTHING]
        assert not rest
        await scene.hears(event(7), then=1)
        assert scene.source.looks[-1][1] == [event(7)], "the next look is an ordinary one"


@in_virtual_time
async def test_an_event_without_a_path_causes_a_full_scan() -> None:
    async with Scene().running() as scene:
        fault = Event("nvml", "xid")
        for one in (fault, ANYTHING, event(1)):
            scene.discovery.request_scan(one)
        await asyncio.sleep(1)
        assert scene.source.looks[-1][1] == [fault, event(1), ANYTHING]


@in_virtual_time
async def test_a_failing_backend_is_scanned_with_back_off_also_if_events_arrive() -> None:
    scene = Scene()
    scene.source.error = BackendError("driver is busy")
    async with scene.running():
        for _ in range(30_000):
            await scene.hears(event(1), then=0.01)
    gaps = [b - a for a, b in zip(scene.source.times, scene.source.times[1:], strict=False)]
    full = [min(30.0, 0.5 * 2**number) for number in range(len(gaps))]
    assert len(gaps) >= 10
    for gap, most in zip(gaps, full, strict=True):
        assert most / 2 - 0.02 <= gap <= most + 0.02
    assert set(scene.metrics.failures) == {Failure.ERROR}


@in_virtual_time
async def test_after_a_failure_the_next_scan_is_full_and_a_success_ends_the_back_off() -> None:
    async with Scene().running() as scene:
        scene.source.error = BackendTimeout("hung")
        await scene.hears(event(1), then=20)
        scene.source.error = None
        await asyncio.sleep(30)
        assert scene.source.looks[-1][1] == [ANYTHING]
        assert scene.metrics.failures[0] is Failure.TIMEOUT
        at = now()
        await scene.hears(event(2), then=0.1)
        assert scene.source.looks[-1] == (at, [event(2)])


@in_virtual_time
async def test_an_error_never_empties_the_list_and_is_in_the_condition() -> None:
    async with Scene().running() as scene:
        before = scene.discovery.devices
        scene.source.error = BackendError("driver is busy")
        await scene.hears(event(1), then=1)
        assert scene.discovery.devices is before
        condition = scene.discovery.condition
        assert (condition.state, condition.reason) == (BackendState.DEGRADED, "driver is busy")
        assert scene.health("d0") == HEALTHY
        scene.source.error = None
        await asyncio.sleep(10)
        condition = scene.discovery.condition
        assert (condition.state, condition.reason) == (BackendState.OK, "")


@pytest.mark.parametrize("takes", [0.0, 2.0])
@in_virtual_time
async def test_sustained_events_do_not_delay_the_resync(takes: float) -> None:
    scene = Scene(probes=False)
    scene.source.takes = takes
    async with scene.running():
        for _ in range(290):
            await scene.hears(event(1), then=1)
    full = [at for at, events in scene.source.looks if ANYTHING in events]
    assert len(full) == 5
    assert all(NODE.resync <= b - a <= NODE.resync + 4 * takes + 0.1 for a, b in pairwise(full))


@in_virtual_time
async def test_a_single_failure_after_a_long_quiet_makes_no_device_unhealthy() -> None:
    async with Scene(probes=False).running() as scene:
        await asyncio.sleep(NODE.resync - 1)
        scene.source.error = BackendError("driver is busy")
        await asyncio.sleep(2)
        assert (scene.state(), scene.health("d0")) == (BackendState.DEGRADED, HEALTHY)


@in_virtual_time
async def test_devices_of_a_backend_that_never_answers_become_unhealthy() -> None:
    async with Scene().running() as scene:
        scene.source.error = BackendError("driver is gone")
        await scene.hears(event(1), then=NODE.stale_after - 1)
        assert scene.health("d0") == HEALTHY
        await asyncio.sleep(2 * NODE.stale_after)
        assert scene.health("d0") == scene.health("d1") == unhealthy("driver is gone")
        scene.source.error = None
        await asyncio.sleep(31)
        assert scene.health("d0") == HEALTHY


@in_virtual_time
async def test_a_denied_device_is_reported_at_once_and_checked_more_often_until_it_is_back() -> None:
    async with Scene().running() as scene:
        scene.source.missing = {"/dev/d0"}
        scene.discovery.report_missing("d0", ["/dev/d0"])
        assert not scene.health("d0").healthy
        assert len(scene.found) == 2
        await asyncio.sleep(4 * NODE.missing_resync + 1)
        assert len(scene.source.path_times) == 5
        assert len(scene.source.looks) == 2, "its backend is asked once"
        scene.source.missing = set()
        await asyncio.sleep(NODE.missing_resync)
        assert scene.health("d0") == HEALTHY
        assert len(scene.found) == 3
        looks = len(scene.source.path_times)
        await asyncio.sleep(NODE.resync + 1)
        assert len(scene.source.path_times) == looks, "no path is in doubt"


@in_virtual_time
async def test_a_path_that_give_needs_is_looked_for_ever_less_often_until_it_is_back() -> None:
    scene = Scene(probes=False)
    scene.discovery.paths.given = frozenset({"/dev/ctl"})
    scene.source.missing = {"/dev/ctl"}
    async with scene.running():
        await asyncio.sleep(400)
        pauses = [later - one for one, later in pairwise(scene.source.path_times)]
        longest = [5, 10, 20, 40, *[NODE.resync] * (len(pauses) - 4)]
        assert len(pauses) >= 6 and len({round(one, 3) for one in pauses[4:]}) > 1
        for pause, at_most in zip(pauses, longest, strict=True):
            assert at_most / 2 - 0.1 <= pause <= at_most + 0.1
        scene.source.missing = set()
        await scene.hears(event(1), then=1)
        assert not scene.discovery.health.absent, "an event is enough"
        looks = len(scene.source.path_times)
        scene.source.missing = {"/dev/ctl"}
        await scene.hears(event(2), then=1)
        assert scene.discovery.health.absent
        await asyncio.sleep(NODE.missing_resync)
        first, second, *_ = scene.source.path_times[looks:]
        assert second - first <= NODE.missing_resync + 0.1, "it begins again"


@in_virtual_time
async def test_a_path_that_does_not_answer_delays_no_scan_and_is_not_asked_for_twice() -> None:
    scene = Scene(probes=False)
    scene.discovery.paths.given = frozenset({"/dev/ctl", "/net/lib"})
    scene.source.stuck = {"/net/lib"}
    async with scene.running():
        assert not scene.found, "the first list waits for the first look"
        await asyncio.sleep(SILENCE + 1)
        assert scene.discovery.health.absent == {"/net/lib": True}
        assert len(scene.found) == 1
        scene.source.devices = [Device("d0")]
        await scene.hears(event(1), then=0.1)
        assert list(scene.discovery.devices) == ["d0"]
        await asyncio.sleep(10 * NODE.resync)
        assert scene.source.hung == ["/net/lib"]
        scene.source.stuck = set()
        await asyncio.sleep(NODE.resync + 1)
        assert not scene.discovery.health.absent


@in_virtual_time
async def test_a_path_that_hangs_from_now_on_delays_no_scan() -> None:
    scene = Scene(probes=False)
    scene.discovery.paths.given = frozenset({"/net/lib"})
    async with scene.running():
        assert len(scene.found) == 1
        scene.source.stuck = {"/net/lib"}
        scene.source.devices = [Device("d0")]
        await scene.hears(event(1), then=0.1)
        assert list(scene.discovery.devices) == ["d0"]
        assert not scene.discovery.health.absent, "it may be slow"
        await asyncio.sleep(SILENCE + 1)
        assert scene.discovery.health.absent == {"/net/lib": True}


@in_virtual_time
async def test_paths_that_answer_are_looked_at_while_many_others_hang() -> None:
    scene = Scene(probes=False)
    scene.source.stuck = {f"/net/{number}" for number in range(9)}
    scene.discovery.paths.given = frozenset({"/dev/ctl", "/usr/lib", *scene.source.stuck})
    silent = dict.fromkeys(scene.source.stuck, True)
    async with scene.running():
        await asyncio.sleep(MAX_ABANDONED * (SILENCE + 1))
        assert scene.discovery.health.absent == silent
        scene.source.missing = {"/usr/lib"}
        await asyncio.sleep(NODE.resync + 1)
        assert scene.discovery.health.absent == {**silent, "/usr/lib": False}
        scene.source.missing = set()
        await asyncio.sleep(10 * NODE.resync)
        assert scene.discovery.health.absent == silent
        assert len(scene.source.hung) < MAX_ABANDONED, "a thread remains"
        scene.source.stuck = set()
        await asyncio.sleep(NODE.resync + 1)
        assert not scene.discovery.health.absent


@pytest.mark.parametrize("first", [0, MAX_ABANDONED - 1])
@in_virtual_time
async def test_of_a_path_at_which_no_look_was_possible_what_was_known_stays(first: int) -> None:
    scene = Scene(probes=False)
    later, stuck = {"/mnt/lib", "/opt/lib"}, {f"/net/{number}" for number in range(first)}
    scene.source.stuck, scene.source.missing = stuck, {"/usr/gone"}
    scene.discovery.paths.given = frozenset({"/dev/ctl", "/usr/gone", "/usr/lib", *later, *stuck})
    absent = {**dict.fromkeys(stuck, True), "/usr/gone": False}
    async with scene.running():
        await asyncio.sleep(MAX_ABANDONED * (SILENCE + 1))
        assert scene.discovery.health.absent == absent
        scene.source.stuck = stuck | later
        seen = list[Mapping[str, bool]]()
        for _ in range(int(2 * NODE.resync)):
            await asyncio.sleep(1)
            seen.append(scene.discovery.health.absent)
        assert seen[-1]["/mnt/lib"]
        assert all({name: one[name] for name in one if name not in later} == absent for one in seen)
        scene.source.stuck = set()
        await asyncio.sleep(NODE.resync + 1)
        assert scene.discovery.health.absent == {"/usr/gone": False}


@in_virtual_time
async def test_a_path_that_a_pod_needed_and_that_hangs_is_reported_as_such() -> None:
    async with Scene(probes=False).running() as scene:
        scene.source.stuck = {"/net/lib"}
        scene.discovery.report_missing("d0", ["/net/lib"])
        await asyncio.sleep(SILENCE + 1)
        reason = "the file system of /net/lib does not answer: a pod needed it"
        assert scene.health("d0") == unhealthy(reason, Cause.MISSING)
        scene.source.stuck = set()
        await asyncio.sleep(NODE.missing_resync)
        assert scene.health("d0") == HEALTHY
        assert not scene.discovery.health.absent


@in_virtual_time
async def test_the_first_list_waits_only_seconds_if_no_thread_can_look_for_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(probes=False)
    scene.discovery.paths.given = frozenset({"/dev/ctl"})
    look, failures = scene.source.look, iter([NotCalled("it cannot be called", NoThread())])

    async def failing(paths: Iterable[str], found: dict[str, bool]) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        await look(paths, found)

    monkeypatch.setattr(scene.source, "look", failing)
    async with scene.running():
        assert not scene.found
        await asyncio.sleep(NODE.missing_resync + 1)
        assert len(scene.found) == 1


@in_virtual_time
async def test_only_changes_are_reported_and_an_unchanged_device_stays_the_same_object() -> None:
    async with Scene().running() as scene:
        first = scene.discovery.devices["d0"]
        scene.source.devices = [Device("d1"), Device("d0")]
        await scene.hears(event(1), then=1)
        assert scene.discovery.devices["d0"] is first
        assert len(scene.found) == 1
        scene.source.devices = [Device("d0", {"index": 1}), Device("d1")]
        await scene.hears(event(1), then=1)
        assert len(scene.found) == 2


@in_virtual_time
async def test_an_invalid_device_is_omitted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    class Evil:
        def __repr__(self) -> str:
            raise OSError("no")

    scene = Scene()
    scene.source.devices += [Device("d0"), Device("x" * 64), Evil(), Device("numa", numa_nodes=(-1, 1))]
    async with scene.running():
        await asyncio.sleep(3 * NODE.resync)
        assert list(scene.discovery.devices) == ["d0", "d1", "numa"]
        assert scene.discovery.devices["numa"].numa_nodes == (1,)
        refused = {one.device: one.reason for one in scene.discovery.condition.refused}
        assert refused == {
            "d0": "another device has the same id",
            "x" * 64: "its id has 64 characters, more than 63",
            "Evil": "the backend returned Evil, not Device",
        }
        assert len(scene.found) == 1
    assert len(caplog.records) == 3


@in_virtual_time
async def test_the_history_of_a_removed_device_is_dropped() -> None:
    async with Scene().running() as scene:
        scene.source.missing = {"/dev/d1"}
        scene.discovery.report_missing("d1", ["/dev/d1"])
        scene.source.devices = [Device("d0")]
        await scene.hears(event(1), then=1)
        assert not scene.discovery.health.missing_paths


@in_virtual_time
async def test_the_backends_own_events_cause_a_scan() -> None:
    async def ticking() -> AsyncIterator[Event]:
        for number in range(3):
            await asyncio.sleep(7)
            yield event(number)
        await asyncio.Event().wait()

    scene = Scene()
    scene.source.watching = ticking
    async with scene.running(watch=True):
        await asyncio.sleep(30)
        assert scene.source.times == pytest.approx([0, 7, 14, 21], abs=0.1)
        assert len(scene.source.watches) == 1


@pytest.mark.parametrize("error", [None, OSError("netlink\nis gone"), BackendError("not yet")])
@in_virtual_time
async def test_an_event_source_that_ends_is_restarted_with_back_off(error: Exception | None) -> None:
    async def ending() -> AsyncIterator[Event]:
        if error:
            raise error
        for none in list[Event]():
            yield none

    scene = Scene()
    scene.source.watching = ending
    async with scene.running(watch=True):
        await asyncio.sleep(600)
    gaps = [b - a for a, b in zip(scene.source.watches, scene.source.watches[1:], strict=False)]
    assert len(gaps) >= 10
    for number, gap in enumerate(gaps):
        most = min(60.0, 2.0**number)
        assert most / 2 - 0.02 <= gap <= most + 0.02


@in_virtual_time
async def test_an_event_source_that_had_events_is_restarted_soon() -> None:
    async def brief() -> AsyncIterator[Event]:
        await asyncio.sleep(100)
        yield event(1)
        raise OSError("gone again")

    scene = Scene()
    scene.source.watching = brief
    async with scene.running(watch=True):
        await asyncio.sleep(1000)
    gaps = [b - a for a, b in zip(scene.source.watches, scene.source.watches[1:], strict=False)]
    assert len(gaps) >= 8
    assert max(gaps) <= 101.1


@in_virtual_time
async def test_an_event_source_waits_for_the_first_answer_of_the_backend() -> None:
    scene = Scene()
    scene.source.takes = 5.0
    async with scene.running(watch=True):
        await asyncio.sleep(1)
        assert not scene.source.watches
        await asyncio.sleep(5)
        assert len(scene.source.watches) == 1


@in_virtual_time
async def test_a_source_with_invalid_messages_does_not_end_the_watcher() -> None:
    async def nonsense() -> AsyncIterator[Any]:
        yield "not an event"

    scene = Scene()
    scene.source.watching = nonsense
    async with scene.running(watch=True):
        await asyncio.sleep(100)
        assert len(scene.source.watches) > 3


@in_virtual_time
async def test_a_scan_without_a_loop_returns_whether_it_succeeded() -> None:
    scene = Scene()
    assert await scene.discovery.scan_once()
    scene.source.error = BackendError("no")
    assert not await scene.discovery.scan_once()
    assert scene.discovery.answered.is_set()


@in_virtual_time
async def test_the_requested_attributes_are_those_of_the_published_devices() -> None:
    scene, successor = Scene(probes=False), Scene(probes=False)
    async with scene.running():
        assert scene.discovery.requested == frozenset()
        scene.source.takes = 2.0
        await scene.hears(then=1)
        scene.source.context.wanted = {"status"}
        scene.discovery.request_scan()
        await asyncio.sleep(1.5)  # the look that began before has ended
        assert scene.discovery.requested == frozenset()
        found = len(scene.found)
        await asyncio.sleep(4)
        assert len(scene.source.looks) == 3
        assert scene.discovery.requested == {"status"}
        assert len(scene.found) == found + 1  # the same devices may have another verdict now
    successor.succeed(scene)
    assert successor.discovery.requested == {"status"}
