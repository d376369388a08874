"""Changes of one request are reported once."""

from __future__ import annotations

import asyncio

import pytest

from devhost.runtime.reconciler import Report, together


class Counted:
    """A report, and how often it called back."""

    def __init__(self) -> None:
        self.calls = 0
        self.report = Report(self.count)

    def count(self) -> None:
        self.calls += 1


def test_a_single_change_is_reported_at_once() -> None:
    one = Counted()
    one.report()
    one.report()
    assert one.calls == 2


async def test_reports_of_a_request_and_of_its_tasks_come_once_at_its_end() -> None:
    one, other, silent = Counted(), Counted(), Counted()

    async def change() -> None:
        await asyncio.sleep(0)
        one.report()

    with together():
        await asyncio.gather(*(change() for _ in range(9)))
        other.report()
        assert (one.calls, other.calls) == (0, 0)
    assert (one.calls, other.calls, silent.calls) == (1, 1, 0)


async def test_a_request_does_not_delay_the_reports_of_another_one() -> None:
    one, begun = Counted(), asyncio.Event()

    async def slow() -> None:
        with together():
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(slow())
    await begun.wait()
    with together():
        one.report()
    assert one.calls == 1
    task.cancel()


async def test_a_task_that_outlives_its_request_reports_at_once() -> None:
    one, answered = Counted(), asyncio.Event()

    async def late() -> None:
        await answered.wait()
        one.report()

    with together():
        task = asyncio.create_task(late())
    answered.set()
    await task
    assert one.calls == 1


def test_reports_within_a_part_of_a_request_wait_for_the_whole_request() -> None:
    one = Counted()
    with together():
        for _ in range(3):
            with together():
                one.report()
        assert one.calls == 0
    assert one.calls == 1


def test_a_request_that_fails_reports_what_it_changed() -> None:
    one = Counted()
    with pytest.raises(ZeroDivisionError), together():
        one.report()
        raise ZeroDivisionError
    assert one.calls == 1
