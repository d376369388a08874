"""One backend's loop in virtual time: resync, back-off, folding, probing, and errors that empty nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar, cast

import pytest

from devhost.backend import Attribute, Backend, Event
from devhost.discovery import ANYTHING, DENIED_RESYNC, EVENT_LIMIT, RESYNC, STALE_AFTER, Discovery, State
from devhost.errors import BackendError, BackendTimeout
from devhost.model import HEALTHY, Device, Health, unhealthy
from devhost.source import Source
from devhost.telemetry.metrics import BackendFailure, Metrics

LIMIT = 10_000
"""Looks after which a test gives up on a loop that runs wild."""


class Toy(Backend):
    name = "toy"
    subsystems: ClassVar[tuple[str, ...]] = ("tty", "block")
    attributes: ClassVar = {"index": Attribute(int, "index", 0)}


class FakeSource:
    """Stands for the backend and its threads; everything happens in the loop, at a virtual time."""

    name = "toy"
    kind: type[Toy] = Toy

    def __init__(self) -> None:
        self.devices: list[Any] = [Device("d0"), Device("d1")]
        self.error: Exception | None = None
        self.takes = 0.0
        self.looks: list[tuple[float, list[Event]]] = []
        self.verdicts: dict[str, Health] = {}
        self.probe_error: Exception | None = None
        self.probes: list[float] = []
        self.missing: set[str] = set()
        self.watches: list[float] = []
        self.watching: Callable[[], AsyncIterator[Event]] | None = None

    @property
    def times(self) -> list[float]:
        """When it was asked what exists, in seconds since the start."""
        return [at for at, _ in self.looks]

    async def look(self, events: Sequence[Event]) -> list[Any]:
        self.looks.append((now(), list(events)))
        assert len(self.looks) < LIMIT
        await asyncio.sleep(self.takes)
        if self.error:
            raise self.error
        return list(self.devices)

    async def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        self.probes.append(now())
        if self.probe_error:
            raise self.probe_error
        return self.verdicts

    async def restored(self, denied: Mapping[str, Sequence[str]]) -> list[str]:
        return [device for device, paths in denied.items() if not self.missing & set(paths)]

    def watch(self) -> AsyncIterator[Event] | None:
        self.watches.append(now())
        return self.watching() if self.watching else None


class Counts(Metrics):
    def __init__(self) -> None:
        self.failures: list[BackendFailure] = []

    def backend_failed(self, backend: str, kind: BackendFailure) -> None:
        self.failures.append(kind)


def now() -> float:
    """Seconds since the virtual clock started."""
    return asyncio.get_running_loop().time() - 1000.0


class Scene:
    """A discovery that runs, its source, and every time it said that something changed."""

    def __init__(self) -> None:
        self.source = FakeSource()
        self.metrics = Counts()
        self.found: list[tuple[float, float | None]] = []
        clock = asyncio.get_running_loop().time
        self.discovery = Discovery(cast("Source", self.source), self.metrics, self._found, clock)

    def _found(self, caused_at: float | None) -> None:
        self.found.append((now(), None if caused_at is None else caused_at - 1000.0))

    def state(self) -> State:
        return self.discovery.condition.state

    def health(self, device: str) -> Health:
        return self.discovery.ward.verdict(self.discovery.devices[device], now())

    @asynccontextmanager
    async def running(self, *, watch: bool = False) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.discovery.run())]
        if watch:
            tasks.append(asyncio.create_task(self.discovery.watch()))
        try:
            await asyncio.sleep(0.01)
            yield
            assert not tasks[0].done(), "the loop ended"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def event(number: int) -> Event:
    return Event("tty", "add", f"/sys/devices/virtual/tty/t{number}", f"/dev/t{number}")


def test_it_looks_and_probes_at_the_start_and_at_each_resync(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            await asyncio.sleep(5 * RESYNC)
        assert scene.source.times == pytest.approx([n * RESYNC for n in range(6)], abs=0.02)
        assert scene.source.probes == scene.source.times
        assert all(events == [ANYTHING] for _, events in scene.source.looks)
        assert len(scene.found) == 1

    virtual(main())


def test_the_first_event_after_quiet_is_handled_at_once_and_carries_its_time(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            await asyncio.sleep(10)
            scene.source.devices.append(Device("d2"))
            at = now()
            scene.discovery.look(event(1))
            await asyncio.sleep(1)
            assert scene.source.looks[1:] == [(at, [event(1)])]
            assert scene.found[1:] == [(at, at)]
            assert len(scene.source.probes) == 1, "a named event is no reason to probe"

    virtual(main())


def test_a_burst_is_folded_into_one_look_that_hears_of_every_event_once(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            burst = [event(number) for number in range(EVENT_LIMIT)]
            for one in burst:
                scene.discovery.look(one)
            await asyncio.sleep(5)
            assert [events for _, events in scene.source.looks[1:]] == [burst]

    virtual(main())


def test_events_that_keep_coming_take_at_most_a_fifth_of_the_time_and_none_is_lost(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        scene.source.takes = 0.1
        async with scene.running():
            sent = [event(number) for number in range(5_000)]
            for one in sent:
                scene.discovery.look(one)
                await asyncio.sleep(0.002)
            await asyncio.sleep(5)
            looks = scene.source.looks[1:]
            assert len(looks) <= 10 / 0.5 + 2
            assert [one for _, events in looks for one in events] == sent

    virtual(main())


def test_past_the_limit_of_events_the_look_is_a_full_rescan(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            for number in range(EVENT_LIMIT + 500):
                scene.discovery.look(event(number))
            await asyncio.sleep(1)
            (_, events), *rest = scene.source.looks[1:]
            assert events == [*(event(number) for number in range(EVENT_LIMIT)), ANYTHING]
            assert not rest
            assert len(scene.source.probes) == 2
            scene.discovery.look(event(7))
            await asyncio.sleep(1)
            assert scene.source.looks[-1][1] == [event(7)], "the next look is an ordinary one"

    virtual(main())


def test_an_event_without_a_path_is_heard_too_and_makes_the_look_a_full_rescan(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            fault = Event("nvml", "xid")
            for one in (fault, ANYTHING, event(1)):
                scene.discovery.look(one)
            await asyncio.sleep(1)
            assert scene.source.looks[-1][1] == [fault, event(1), ANYTHING]
            assert len(scene.source.probes) == 2

    virtual(main())


def test_a_failing_backend_is_asked_ever_less_often_and_events_do_not_hammer_it(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        scene.source.error = BackendError("driver is busy")
        async with scene.running():
            for _ in range(30_000):
                scene.discovery.look(event(1))
                await asyncio.sleep(0.01)
        gaps = [b - a for a, b in zip(scene.source.times, scene.source.times[1:], strict=False)]
        full = [min(30.0, 0.5 * 2**number) for number in range(len(gaps))]
        assert len(gaps) >= 10
        for gap, most in zip(gaps, full, strict=True):
            assert most / 2 - 0.02 <= gap <= most + 0.02
        assert set(scene.metrics.failures) == {BackendFailure.ERROR}

    virtual(main())


def test_after_a_failure_the_next_look_is_full_and_a_success_ends_the_back_off(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.error = BackendTimeout("hung")
            scene.discovery.look(event(1))
            await asyncio.sleep(20)
            scene.source.error = None
            await asyncio.sleep(30)
            assert scene.source.looks[-1][1] == [ANYTHING]
            assert scene.source.probes[-1] == scene.source.times[-1]
            assert scene.metrics.failures[0] is BackendFailure.TIMEOUT
            at = now()
            scene.discovery.look(event(2))
            await asyncio.sleep(0.1)
            assert scene.source.looks[-1] == (at, [event(2)])

    virtual(main())


def test_an_error_never_empties_the_list_and_is_told_as_the_condition(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            before = scene.discovery.devices
            scene.source.error = BackendError("driver is busy")
            scene.discovery.look(event(1))
            await asyncio.sleep(1)
            assert scene.discovery.devices is before
            condition = scene.discovery.condition
            assert (condition.state, condition.reason) == (State.DEGRADED, "driver is busy")
            assert scene.health("d0") == HEALTHY
            scene.source.error = None
            await asyncio.sleep(10)
            assert (condition.state, condition.reason) == (State.OK, "")

    virtual(main())


def test_devices_are_no_longer_believed_in_when_the_backend_stays_silent(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.error = BackendError("driver is gone")
            scene.discovery.look(event(1))
            await asyncio.sleep(STALE_AFTER - 1)
            assert scene.health("d0") == HEALTHY
            await asyncio.sleep(2 * STALE_AFTER)
            assert scene.health("d0") == scene.health("d1") == unhealthy("driver is gone")
            scene.source.error = None
            await asyncio.sleep(31)
            assert scene.health("d0") == HEALTHY

    virtual(main())


def test_a_probe_that_fails_keeps_the_backend_degraded_until_it_answers(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.probe_error = BackendError("probe failed")
            await asyncio.sleep(3 * RESYNC)
            assert scene.state() is State.DEGRADED
            assert scene.source.probes[1:] == scene.source.times[1:], "each try probes again"
            scene.source.probe_error, scene.source.verdicts = None, {"d1": unhealthy("link down")}
            await asyncio.sleep(31)
            assert scene.state() is State.OK
            assert scene.health("d1") == unhealthy("link down")

    virtual(main())


def test_what_a_probe_finds_is_told_once(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.verdicts = {"d1": unhealthy("link down")}
            await asyncio.sleep(3 * RESYNC)
            assert [at for at, _ in scene.found] == [scene.source.times[0], scene.source.times[1]]

    virtual(main())


def test_a_denied_device_is_told_at_once_and_looked_for_more_often_until_it_is_back(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.missing = {"/dev/d0"}
            scene.discovery.deny("d0", ["/dev/d0"])
            assert not scene.health("d0").healthy
            assert len(scene.found) == 2
            await asyncio.sleep(4 * DENIED_RESYNC + 1)
            assert len(scene.source.looks) == 6
            scene.source.missing = set()
            await asyncio.sleep(DENIED_RESYNC)
            assert scene.health("d0") == HEALTHY
            assert len(scene.found) == 3
            looks = len(scene.source.looks)
            await asyncio.sleep(RESYNC - 1)
            assert len(scene.source.looks) == looks, "back to the slow resync"

    virtual(main())


def test_only_news_is_told_and_an_unchanged_device_stays_the_same_object(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            first = scene.discovery.devices["d0"]
            scene.source.devices = [Device("d1"), Device("d0")]
            scene.discovery.look(event(1))
            await asyncio.sleep(1)
            assert scene.discovery.devices["d0"] is first
            assert len(scene.found) == 1
            scene.source.devices = [Device("d0", {"index": 1}), Device("d1")]
            scene.discovery.look(event(1))
            await asyncio.sleep(1)
            assert len(scene.found) == 2

    virtual(main())


def test_a_bad_device_is_left_out_and_logged_once(virtual: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Evil:
        def __repr__(self) -> str:
            raise OSError("no")

    async def main() -> None:
        scene = Scene()
        scene.source.devices += [Device("d0"), Device("x" * 64), Evil(), Device("numa", numa_nodes=(-1, 1))]
        async with scene.running():
            await asyncio.sleep(3 * RESYNC)
            assert list(scene.discovery.devices) == ["d0", "d1", "numa"]
            assert scene.discovery.devices["numa"].numa_nodes == (1,)
            refused = {one.device: one.reason for one in scene.discovery.condition.refused}
            assert refused == {
                "d0": "another device has the same id",
                "x" * 64: "its id has 64 characters, more than 63",
                "Evil": "the backend returned Evil, not Device",
            }
            assert len(scene.found) == 1

    with caplog.at_level(logging.ERROR):
        virtual(main())
    assert len(caplog.records) == 3


def test_a_device_that_goes_takes_its_history_with_it(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        async with scene.running():
            scene.source.missing = {"/dev/d1"}
            scene.discovery.deny("d1", ["/dev/d1"])
            scene.source.devices = [Device("d0")]
            scene.discovery.look(event(1))
            await asyncio.sleep(1)
            assert not scene.discovery.ward.denied

    virtual(main())


def test_the_backends_own_events_make_it_look(virtual: Any) -> None:
    async def ticking() -> AsyncIterator[Event]:
        for number in range(3):
            await asyncio.sleep(7)
            yield event(number)
        await asyncio.Event().wait()

    async def main() -> None:
        scene = Scene()
        scene.source.watching = ticking
        async with scene.running(watch=True):
            await asyncio.sleep(30)
            assert scene.source.times == pytest.approx([0, 7, 14, 21], abs=0.1)
            assert len(scene.source.watches) == 1

    virtual(main())


@pytest.mark.parametrize("error", [None, OSError("netlink\nis gone"), BackendError("not yet")])
def test_an_event_source_that_ends_is_restarted_ever_less_often(
    virtual: Any, error: Exception | None
) -> None:
    async def ending() -> AsyncIterator[Event]:
        if error:
            raise error
        for event in list[Event]():
            yield event

    async def main() -> None:
        scene = Scene()
        scene.source.watching = ending
        async with scene.running(watch=True):
            await asyncio.sleep(600)
        gaps = [b - a for a, b in zip(scene.source.watches, scene.source.watches[1:], strict=False)]
        assert len(gaps) >= 10
        for number, gap in enumerate(gaps):
            most = min(60.0, 2.0**number)
            assert most / 2 - 0.02 <= gap <= most + 0.02

    virtual(main())


def test_an_event_source_that_spoke_is_restarted_soon(virtual: Any) -> None:
    async def brief() -> AsyncIterator[Event]:
        await asyncio.sleep(100)
        yield event(1)
        raise OSError("gone again")

    async def main() -> None:
        scene = Scene()
        scene.source.watching = brief
        async with scene.running(watch=True):
            await asyncio.sleep(1000)
        gaps = [b - a for a, b in zip(scene.source.watches, scene.source.watches[1:], strict=False)]
        assert len(gaps) >= 8
        assert max(gaps) <= 101.1

    virtual(main())


def test_an_event_source_waits_for_the_first_answer_of_the_backend(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        scene.source.takes = 5.0
        async with scene.running(watch=True):
            await asyncio.sleep(1)
            assert not scene.source.watches
            await asyncio.sleep(5)
            assert len(scene.source.watches) == 1

    virtual(main())


def test_a_source_of_nonsense_does_not_end_the_watching(virtual: Any) -> None:
    async def nonsense() -> AsyncIterator[Any]:
        yield "not an event"

    async def main() -> None:
        scene = Scene()
        scene.source.watching = nonsense
        async with scene.running(watch=True):
            await asyncio.sleep(100)
            assert len(scene.source.watches) > 3

    virtual(main())


def test_one_look_without_a_loop_tells_whether_it_went_well(virtual: Any) -> None:
    async def main() -> None:
        scene = Scene()
        assert await scene.discovery.look_once()
        scene.source.error = BackendError("no")
        assert not await scene.discovery.look_once()
        assert scene.discovery.answered.is_set()

    virtual(main())
