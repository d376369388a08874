"""Passes run when woken, when due and after failures; in a time that the test moves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kit.clock import FakeClock, in_virtual_time
from kit.waiting import background

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import EnvironmentFailure
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler, Retry


class Work:
    """A pass that notes when it ran, and does what the test says."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.start = clock.now
        self.ran: list[float] = []
        self.again: float | None = None
        self.error: Exception | None = None
        self.takes = 0.0
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> float | None:
        self.ran.append(round(self.clock.now - self.start, 6))
        self.clock.now += self.takes
        if self.gate:
            await self.gate.wait()
        if self.error:
            raise self.error
        return self.again

    @asynccontextmanager
    async def running(self, **options: Any) -> AsyncIterator[Reconciler]:
        reconciler = Reconciler(self, clock=self.clock, **options)
        async with background(reconciler.run()):
            yield reconciler

    async def after(self, seconds: float = 0.0) -> list[float]:
        """When it has run, some time later."""
        await self.clock.advance(seconds)
        return self.ran


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def work(clock: FakeClock) -> Work:
    return Work(clock)


def no_jitter(first: float = 1.0, cap: float = 8.0) -> Backoff:
    return Backoff(first, cap, draw=lambda: 0.0)


async def test_the_first_pass_runs_at_once_and_the_next_when_woken(work: Work) -> None:
    async with work.running() as reconciler:
        assert await work.after(100) == [0]
        reconciler.wake()
        assert await work.after() == [0, 100]


async def test_the_first_pass_waits_for_a_wake_if_configured(work: Work) -> None:
    async with work.running(first=None) as reconciler:
        assert await work.after(100) == []
        reconciler.wake()
        assert await work.after() == [100]


async def test_a_wake_before_the_start_counts(clock: FakeClock, work: Work) -> None:
    reconciler = Reconciler(work, first=None, clock=clock)
    reconciler.wake()
    async with background(reconciler.run()):
        assert await work.after() == [0]


async def test_the_result_of_a_pass_decides_when_the_next_one_runs(work: Work) -> None:
    work.again = 60.0
    async with work.running() as reconciler:
        assert await work.after(130) == [0, 60, 120]
        reconciler.wake()
        assert await work.after(60) == [0, 60, 120, 130, 190]


async def test_many_wakes_lead_to_one_pass(work: Work) -> None:
    async with work.running(first=None) as reconciler:
        for _ in range(100):
            reconciler.wake()
        assert await work.after(10) == [0]


async def test_a_wake_during_a_pass_leads_to_another_one(clock: FakeClock, work: Work) -> None:
    work.gate = asyncio.Event()
    async with work.running() as reconciler:
        await clock.settle()
        reconciler.wake()
        assert await work.after(5) == [0]
        work.gate.set()
        assert await work.after() == [0, 5]


async def test_a_burst_settles_before_the_pass(work: Work) -> None:
    async with work.running(first=None, settle=1.0) as reconciler:
        for _ in range(3):
            reconciler.wake()
            assert await work.after(0.3) == []
        # counted from the first wake, so that a steady stream delays nothing
        assert await work.after(1.0) == [1.0]


async def test_the_earliest_of_several_requests_counts(work: Work) -> None:
    async with work.running(first=None) as reconciler:
        reconciler.wake(5.0)
        reconciler.wake(2.0)
        reconciler.wake(3.0)
        assert await work.after(10) == [2]


async def test_a_gap_keeps_passes_apart(work: Work) -> None:
    work.again = 0.0
    async with work.running(gap=0.5):
        assert await work.after(1.7) == [0, 0.5, 1, 1.5]


async def test_a_pacer_leaves_time_in_proportion_to_the_work(work: Work) -> None:
    work.again, work.takes = 0.0, 0.1
    async with work.running(pacer=Pacer(rest=4.0)):
        assert await work.after(0.9) == [0, 0.5]


async def test_failures_back_off_up_to_the_cap_and_start_again_after_success(
    clock: FakeClock, work: Work
) -> None:
    work.error = Retry()
    async with work.running(backoff=no_jitter()) as reconciler:
        assert await work.after(31) == [0, 1, 3, 7, 15, 23, 31]
        work.error = None
        await clock.advance(8)
        work.error = Retry()
        reconciler.wake()
        await clock.advance(1)
        assert work.ran[-3:] == [39, 39, 40]


async def test_the_jitter_is_that_of_the_backoff(work: Work) -> None:
    work.error = Retry()
    async with work.running(backoff=Backoff(4.0, 60.0, draw=lambda: 0.5)):
        assert await work.after(10) == [0, 3, 9]


@pytest.mark.parametrize(
    ("default", "of_failure", "ends"),
    [(True, None, True), (False, None, False), (True, False, False), (False, True, True)],
)
async def test_a_wake_ends_a_back_off_only_if_that_is_allowed(
    clock: FakeClock, work: Work, default: bool, of_failure: bool | None, ends: bool
) -> None:
    work.error = Retry(wakeable=of_failure)
    async with work.running(backoff=no_jitter(8.0), wakeable=default) as reconciler:
        await clock.advance(2)
        reconciler.wake()
        assert await work.after() == ([0, 2] if ends else [0])


async def test_a_wake_that_was_held_back_is_answered_by_the_retry(clock: FakeClock, work: Work) -> None:
    work.error = Retry()
    async with work.running(backoff=no_jitter(8.0), wakeable=False) as reconciler:
        await clock.advance(2)
        reconciler.wake()
        work.error = None
        assert await work.after(20) == [0, 8]


async def test_a_restart_ends_any_back_off_and_forgets_it(work: Work) -> None:
    work.error = Retry()
    async with work.running(backoff=no_jitter(), wakeable=False) as reconciler:
        assert await work.after(4) == [0, 1, 3]
        reconciler.restart()
        assert await work.after(1) == [0, 1, 3, 4, 5]


async def test_a_restart_during_a_pass_that_fails_runs_another_at_once(clock: FakeClock, work: Work) -> None:
    work.error, work.gate = Retry(), asyncio.Event()
    async with work.running(backoff=no_jitter(8.0), wakeable=False) as reconciler:
        await clock.advance(1)
        reconciler.restart()
        work.gate.set()
        assert await work.after() == [0, 1]


async def test_each_failure_is_logged_once_and_so_is_its_end(
    clock: FakeClock, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    failures = FailureLog(get("devhost.test"), "it failed", "it works again", thing="a")
    async with work.running(backoff=no_jitter(), failures=failures):
        work.error = EnvironmentFailure("cannot write /a", "make room")
        await clock.advance(10)
        work.error = Retry("another reason")
        await clock.advance(10)
        work.error = Retry()  # reported elsewhere
        await clock.advance(10)
        work.error = None
        await clock.advance(10)
    assert [(record.levelname, record.message, record.fields) for record in caplog.records] == [
        ("WARNING", "it failed", {"thing": "a", "reason": "cannot write /a (make room)"}),
        ("WARNING", "it failed", {"thing": "a", "reason": "another reason"}),
        ("INFO", "it works again", {"thing": "a"}),
    ]


async def test_a_long_pass_can_report_success_before_it_ends(clock: FakeClock, work: Work) -> None:
    work.error = Retry("no")
    async with work.running(backoff=no_jitter()) as reconciler:
        assert await work.after(3) == [0, 1, 3]
        reconciler.succeeded()
        assert await work.after(4) == [0, 1, 3, 7]
        await clock.advance(1)
        assert work.ran[-1] == 8  # the shortest delay again


async def test_a_bug_is_raised_and_its_pass_is_repeated(clock: FakeClock, work: Work) -> None:
    reconciler = Reconciler(work, first=None, clock=clock)
    reconciler.wake()
    work.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await reconciler.run()
    work.error = None
    async with background(reconciler.run()):
        assert await work.after() == [0, 0]


async def test_stop_waits_for_the_pass_that_runs_and_begins_no_other(clock: FakeClock, work: Work) -> None:
    work.gate = asyncio.Event()
    reconciler = Reconciler(work, clock=clock)
    async with background(reconciler.run()) as task:
        await clock.settle()
        reconciler.wake()
        reconciler.stop()
        await clock.settle()
        assert not task.done()
        work.gate.set()
        await asyncio.wait_for(task, 60)
        assert work.ran == [0]


async def test_a_reconciler_that_ends_leaves_no_timer(clock: FakeClock, work: Work) -> None:
    work.again = 60.0
    async with background(Reconciler(work, clock=clock).run()):
        await clock.settle()
        assert clock.timers == [1060.0]
    assert clock.timers == []


async def test_consecutive_passes_let_other_tasks_run(work: Work) -> None:
    work.again = 0.0
    async with background(Reconciler(work).run()):
        for _ in range(10):
            await asyncio.sleep(0)
    assert len(work.ran) > 1


def test_a_wake_while_no_loop_is_running_counts() -> None:
    ran: list[bool] = []

    async def work() -> None:
        ran.append(True)

    reconciler = Reconciler(work, first=None)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(reconciler.run())
        runner.run(asyncio.sleep(0))
        reconciler.wake()
        for _ in range(5):
            runner.run(asyncio.sleep(0))
        assert ran == [True]
        task.cancel()


@in_virtual_time
async def test_without_a_clock_it_keeps_the_time_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    ran: list[float] = []

    async def work() -> float:
        ran.append(loop.time())
        return 3600.0

    async with background(Reconciler(work).run()):
        await asyncio.sleep(7300)
    assert [round(at - ran[0]) for at in ran] == [0, 3600, 7200]
