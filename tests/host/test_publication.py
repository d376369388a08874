"""What people and programs see follows the lists, in one step and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from moments import now as moment

from devhost.backend.model import Device
from devhost.host.shown.now import Memory, Now, Step
from devhost.host.shown.publication import Publication
from devhost.planning.claims import Held


async def turns() -> None:
    """Lets what is due now run, and what follows from it."""
    for _ in range(10):
        await asyncio.sleep(0)


class Shown:
    """Counts what happens, and keeps from where to where each step led."""

    def __init__(self) -> None:
        self.plans = 0
        self.held: tuple[Held, ...] = ()
        self.steps: list[tuple[int, int]] = []
        self.then: Callable[[], None] = lambda: None
        self.publication = Publication(self.collect, self.show)

    def collect(self, memory: Memory) -> Now:
        return moment(plans=self.plans, held=self.held, memory=memory)

    def show(self, step: Step) -> None:
        self.steps.append((step.before.plans, step.now.plans))
        self.then()

    def change(self) -> None:
        self.plans += 1
        self.publication.soon()


async def test_everything_that_one_event_changes_is_shown_in_one_step() -> None:
    shown = Shown()
    shown.change()
    shown.change()
    await turns()
    assert shown.steps == [(0, 2)]
    shown.change()
    await turns()
    assert shown.steps == [(0, 2), (2, 3)], "what was shown last is before"


async def test_a_stream_that_the_same_event_wakes_sends_its_list_before() -> None:
    shown, news, lines = Shown(), asyncio.Event(), []
    shown.then = lambda: lines.append("shown")

    async def stream() -> None:
        await news.wait()
        lines.append("sent")

    sending = asyncio.create_task(stream())
    await asyncio.sleep(0)
    shown.change()
    news.set()
    await turns()
    await sending
    assert lines == ["sent", "shown"]


async def test_who_looks_sees_what_has_changed_so_far_and_it_is_not_shown_again() -> None:
    shown = Shown()
    shown.change()
    assert shown.publication.now().plans == 1
    assert shown.steps == [(0, 1)]
    assert shown.publication.now().plans == 1
    await turns()
    assert shown.steps == [(0, 1)]
    shown.change()
    await turns()
    assert shown.steps == [(0, 1), (1, 2)]


async def test_who_looks_gets_what_is_shown_then_without_another_look() -> None:
    shown, looks = Shown(), list[Memory]()
    collect = shown.collect

    def counted(memory: Memory) -> Now:
        looks.append(memory)
        return collect(memory)

    shown.publication = Publication(counted, shown.show)
    await turns()
    assert shown.publication.now().plans == 0
    before = len(looks)
    shown.change()
    assert shown.publication.now() is shown.publication.shown
    assert len(looks) == before + 1


async def test_what_is_shown_may_change_something_which_is_shown_next() -> None:
    shown = Shown()

    def change_once() -> None:
        shown.then = lambda: None
        shown.change()

    shown.then = change_once
    shown.change()
    await turns()
    assert shown.steps == [(0, 1), (1, 2)]


async def test_what_is_held_counts_as_shown_to_the_first_observer() -> None:
    shown = Shown()
    shown.change()
    await turns()
    shown.held = (Held("x/y", ("a",), "toy", Device("a"), True, None),)
    assert not shown.publication.shown.held
    shown.publication.first_observer()
    assert shown.publication.shown.held is shown.held and len(shown.steps) == 1


async def test_nothing_is_shown_after_the_end() -> None:
    shown = Shown()
    shown.change()
    shown.publication.close()
    await turns()
    assert shown.steps == []
