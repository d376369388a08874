"""What people and programs see follows the lists, in one step and in order."""

from __future__ import annotations

import asyncio
from functools import partial

from devhost.host.shown.publication import Publication
from devhost.planning.plan import Plan


async def turns() -> None:
    """Lets what is due now run, and what follows from it."""
    for _ in range(10):
        await asyncio.sleep(0)


class Shown:
    """What was shown, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.publication = Publication(partial(self.add, "why"), self.plan, partial(self.add, "changes"))

    def add(self, line: str) -> None:
        self.lines.append(line)

    def plan(self, plan: Plan) -> None:
        self.add(f"plan of {len(plan.resources)} resources")

    def list(self, line: str) -> None:
        self.publication.list_changed(partial(self.add, line))


async def test_everything_that_one_event_changes_is_shown_in_one_step_the_lists_first() -> None:
    shown = Shown()
    shown.publication.soon()
    shown.list("first list")
    shown.publication.plan_made(Plan())
    shown.list("second list")
    await turns()
    assert shown.lines == ["why", "first list", "second list", "plan of 0 resources", "changes"]


async def test_a_stream_that_the_same_event_wakes_sends_its_list_before() -> None:
    shown, news = Shown(), asyncio.Event()

    async def stream() -> None:
        await news.wait()
        shown.add("sent")

    sending = asyncio.create_task(stream())
    await asyncio.sleep(0)
    shown.list("device appeared")
    news.set()
    await turns()
    await sending
    assert shown.lines == ["sent", "why", "device appeared", "changes"]


async def test_who_looks_sees_what_has_changed_so_far_and_it_is_not_shown_again() -> None:
    shown = Shown()
    shown.list("device appeared")
    shown.publication.now()
    assert shown.lines == ["why", "device appeared", "changes"]
    shown.publication.now()
    await turns()
    assert shown.lines == ["why", "device appeared", "changes"]
    shown.list("device left")
    await turns()
    assert shown.lines[3:] == ["why", "device left", "changes"]


async def test_what_is_shown_may_change_something_which_is_shown_next() -> None:
    shown = Shown()
    shown.publication.list_changed(lambda: shown.list("and another"))
    await turns()
    assert shown.lines == ["why", "changes", "why", "and another", "changes"]


async def test_nothing_is_shown_after_the_end() -> None:
    shown = Shown()
    shown.list("device left")
    shown.publication.close()
    await turns()
    assert shown.lines == []
