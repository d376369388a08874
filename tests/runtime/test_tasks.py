"""A task that fails is started again, and none outlives the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from devhost.runtime.tasks import BUG, LONGEST_PAUSE, Tasks


class Time:
    """A clock that goes only while somebody sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@pytest.mark.parametrize(("works", "longest"), [(1.0, LONGEST_PAUSE), (LONGEST_PAUSE + 1.0, 1.0)])
async def test_a_task_that_ran_for_long_restarts_with_the_first_delay(works: float, longest: float) -> None:
    time = Time()
    tasks = Tasks(lambda: time.now, time.sleep)

    async def work() -> None:
        time.now += works
        if len(time.slept) < 20:
            raise RuntimeError

    async with tasks.group:
        tasks.spawn("w", work)
    assert len(time.slept) == 20
    assert longest / 2 <= time.slept[-1] <= longest


async def test_a_task_that_is_ending_is_not_interrupted_when_all_end() -> None:
    tasks, ending, ended = Tasks(), asyncio.Event(), []

    async def server() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            ended.append("server")

    async with tasks.group:
        tasks.spawn("server", server)
        await asyncio.sleep(0)
        tasks.cancel("server")
        await ending.wait()
        tasks.cancel_all()
    assert ended == ["server"]


async def test_a_task_counts_as_failing_until_it_has_run_for_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sleeps: list[tuple[float, asyncio.Event]] = []
    changes: list[dict[str, str]] = []

    async def sleep(seconds: float) -> None:
        over = asyncio.Event()
        sleeps.append((seconds, over))
        await over.wait()

    async def pass_one() -> float:
        while not sleeps:
            await asyncio.sleep(0)
        seconds, over = sleeps.pop()
        over.set()
        await asyncio.sleep(0)
        return seconds

    tasks = Tasks(lambda: 0.0, sleep, lambda: changes.append({n: o.reason for n, o in tasks.failing.items()}))
    fails, ends = [True, True, False], asyncio.Event()

    async def work() -> None:
        if fails.pop(0):
            raise RuntimeError("a secret")
        await ends.wait()

    async with asyncio.timeout(60), tasks.group:
        tasks.spawn("toy", work)
        for _ in range(2):
            assert await pass_one() <= 2.0
        assert changes == [{"toy": BUG}, {"toy": BUG}], "it runs again, but not for long"
        assert await pass_one() == LONGEST_PAUSE
        while len(changes) < 3:
            await asyncio.sleep(0)
        assert changes[2:] == [{}]
        ends.set()
    assert caplog.messages == ["a task failed and is started again"] * 2


async def test_a_task_whose_code_was_removed_reports_what_to_do_instead_of_a_bug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    time, reasons = Time(), []

    def changed() -> None:
        reasons.extend(failing.reason for failing in tasks.failing.values())

    tasks = Tasks(lambda: time.now, time.sleep, changed)

    async def work() -> None:
        if not time.slept:
            raise ExceptionGroup("", [ModuleNotFoundError("No module named 'gone'")])

    async with tasks.group:
        tasks.spawn("w", work)
    reason = "code cannot be imported: No module named 'gone' (restart devhost: its files may have been "
    assert [one.startswith(reason) for one in reasons] == [True]
    assert caplog.messages == ["a task cannot import its code"]
    assert not caplog.records[0].exc_info


async def test_a_failing_task_that_ends_fails_no_longer() -> None:
    time = Time()
    tasks = Tasks(lambda: time.now, time.sleep)
    fails = [True, False]

    async def work() -> None:
        if fails.pop(0):
            raise RuntimeError

    async with tasks.group:
        tasks.spawn("toy", work)
    assert tasks.failing == {}


async def test_all_tasks_end_including_those_that_have_lost_their_name() -> None:
    tasks = Tasks()
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async with asyncio.timeout(60), tasks.group:
        tasks.spawn("taken", work)
        tasks.spawn("twice", work)
        tasks.spawn("twice", work)
        tasks.take("taken")
        await asyncio.sleep(0)
        tasks.cancel_all()
    assert len(ended) == 3


async def test_a_task_whose_timeout_passes_at_this_moment_ends_with_all_others() -> None:
    tasks, waiting = Tasks(), list[asyncio.Timeout]()

    async def work() -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as limit:
                    waiting.append(limit)
                    await asyncio.Event().wait()

    async with asyncio.timeout(60), tasks.group:
        tasks.spawn("polls", work)
        while not waiting:
            await asyncio.sleep(0)
        waiting[0].reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(0)
        tasks.cancel_all()
