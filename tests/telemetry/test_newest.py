from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

import pytest

from devhost.telemetry.newest import Newest


class Counted:
    """Something whose state is how often it was asked for."""

    made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def test_nothing_is_made_while_nobody_watches(counted: Counted) -> None:
    newest = Newest(counted, interval=0)
    for _ in range(10):
        newest.changed()
    await asyncio.sleep(0)
    assert counted.made == 0


async def test_all_who_watch_get_the_same_made_once(counted: Counted) -> None:
    newest = Newest(counted, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as one, aclosing(newest.follow()) as other:
        assert [await anext(one), await anext(other)] == [1, 1]
        newest.changed()
        assert [await anext(one), await anext(other)] == [2, 2]
    assert counted.made == 2


async def test_a_slow_watcher_misses_what_lay_between(counted: Counted) -> None:
    newest = Newest(counted, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as slow, aclosing(newest.follow()) as quick:
        await anext(slow)
        await anext(quick)
        for expected in range(2, 6):
            newest.changed()
            assert await anext(quick) == expected
        assert await anext(slow) == 5


async def test_a_change_while_a_state_is_on_its_way_is_not_lost(counted: Counted) -> None:
    newest = Newest(counted, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as states:
        assert await anext(states) == 1
        newest.changed()
        assert await anext(states) == 2


async def test_what_nobody_told_to_have_changed_is_made_anew_once_it_is_stale(counted: Counted) -> None:
    assert [Newest(counted, stale=math.inf).now() for _ in range(1)] == [1]
    lasting, fleeting = Newest(counted, stale=math.inf), Newest(counted, stale=0)
    assert lasting.now() == lasting.now()
    assert fleeting.now() != fleeting.now()
    before = lasting.now()
    lasting.changed()
    assert lasting.now() != before


async def test_those_who_watch_hear_something_now_and_then_without_a_change(counted: Counted) -> None:
    newest = Newest(counted, interval=0, stale=0, refresh=0.001)
    async with asyncio.timeout(60), aclosing(newest.follow()) as states:
        assert [await anext(states) for _ in range(3)] == [1, 2, 3]
