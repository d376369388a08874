"""The watchdog ends a process whose event loop has stalled, and no other."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from devhost.runtime import watchdog
from devhost.runtime.watchdog import EXIT_STALLED, Watchdog


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def block_until(condition, seconds=60.0) -> None:
    """Blocks the event loop, as a blocking call would."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)


def hold_up(seconds: float) -> None:
    block_until(lambda: False, seconds)


def stacks(caplog) -> dict[str, list[str]]:
    """The logged stacks by the names of their threads."""
    logged = [record.fields for record in caplog.records if "stack" in getattr(record, "fields", {})]
    return {fields["thread"]: fields["stack"] for fields in logged}


async def test_a_blocked_loop_ends_the_process_once_and_logs_its_stack(caplog):
    left: list[int] = []
    with Watchdog(stall=0.2, tick=0.02, leave=left.append):
        block_until(lambda: left)
    assert left == [EXIT_STALLED]
    assert any("block_until" in call for call in stacks(caplog)["MainThread"])


async def test_the_limit_is_counted_in_ticks_of_the_watchdog(caplog):
    left: list[int] = []
    with Watchdog(stall=0.5, tick=0.05, leave=left.append):
        block_until(lambda: left)
    (logged,) = [one for one in caplog.records if one.getMessage() == "event loop stalled, exiting"]
    assert logged.fields["seconds"] == pytest.approx(0.5)


async def test_a_slow_loop_that_still_answers_does_not_end_the_process():
    left: list[int] = []
    with Watchdog(stall=30.0, tick=0.01, leave=left.append):
        for _ in range(20):
            hold_up(0.03)  # several ticks, far fewer than the limit
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    assert left == []


async def test_the_watchdog_ends_with_its_block_and_with_its_loop():
    with Watchdog(tick=0.01):
        assert "watchdog" in threads()
    await asyncio.to_thread(block_until, lambda: "watchdog" not in threads())
    assert "watchdog" not in threads()

    async def forgets() -> None:
        Watchdog(tick=0.01).__enter__()

    await asyncio.to_thread(asyncio.run, forgets())
    await asyncio.to_thread(block_until, lambda: "watchdog" not in threads())
    assert "watchdog" not in threads()


def test_a_loop_that_closes_before_its_answer_is_not_stalled():
    asked, left = threading.Event(), list[int]()

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, callback, *args, context=None):
            asked.set()
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def forgets() -> None:
        Watchdog(stall=30.0, tick=0.05, leave=left.append).__enter__()

    loop = Loop()
    loop.run_until_complete(forgets())
    assert asked.wait(60)
    loop.close()
    block_until(lambda: "watchdog" not in threads())
    assert left == []


async def test_a_stalled_process_ends_even_if_its_stacks_cannot_be_logged():
    over = threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            over.wait(120)

    handler = Stuck()
    logging.getLogger("devhost.runtime.watchdog").addHandler(handler)
    left: list[int] = []
    try:
        with Watchdog(stall=0.1, tick=0.02, leave=left.append, report=0.1):
            block_until(lambda: left)
        assert left == [EXIT_STALLED]
    finally:
        over.set()
        logging.getLogger("devhost.runtime.watchdog").removeHandler(handler)


@pytest.mark.parametrize("depth", [1, 500])
async def test_a_stack_is_bounded_and_begins_with_the_innermost_call(depth, caplog):
    left: list[int] = []

    def dive(below: int) -> None:
        if below:
            dive(below - 1)
        while not left:
            pass

    with Watchdog(stall=0.2, tick=0.02, leave=left.append):
        dive(depth)
    stack = stacks(caplog)["MainThread"]
    assert "dive" in stack[0]
    assert len(stack) <= 40


def test_the_stall_limit_is_longer_than_any_work_and_shorter_than_a_users_patience():
    assert 10 <= watchdog.STALL <= 30
    assert watchdog.TICK * 5 <= watchdog.STALL
