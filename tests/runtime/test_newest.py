from __future__ import annotations

import asyncio
import json
import math
import threading
from contextlib import aclosing

import pytest
from kit.waiting import until

from devhost.telemetry.document import json_line
from devhost.telemetry.status import Newest


class Counted:
    """A source whose state is the number of calls."""

    made = 0

    def __call__(self) -> int:
        self.made += 1
        return self.made


@pytest.fixture
def counted() -> Counted:
    return Counted()


async def test_nothing_is_made_without_watchers(counted: Counted) -> None:
    newest = Newest(counted, str, interval=0)
    for _ in range(10):
        newest.changed()
    await asyncio.sleep(0)
    assert counted.made == 0


async def test_all_watchers_get_the_same_state_made_once(counted: Counted) -> None:
    newest = Newest(counted, str, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as one, aclosing(newest.follow()) as other:
        assert [await anext(one), await anext(other)] == ["1", "1"]
        newest.changed()
        assert [await anext(one), await anext(other)] == ["2", "2"]
    assert counted.made == 2


async def test_a_slow_watcher_skips_intermediate_states(counted: Counted) -> None:
    newest = Newest(counted, str, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as slow, aclosing(newest.follow()) as quick:
        await anext(slow)
        await anext(quick)
        for expected in range(2, 6):
            newest.changed()
            assert await anext(quick) == str(expected)
        assert await anext(slow) == "5"


async def test_a_change_while_a_state_is_sent_is_not_lost(counted: Counted) -> None:
    newest = Newest(counted, str, interval=0, stale=math.inf)
    async with asyncio.timeout(60), aclosing(newest.follow()) as states:
        assert await anext(states) == "1"
        newest.changed()
        assert await anext(states) == "2"


async def test_a_stale_state_is_rebuilt_without_a_change(counted: Counted) -> None:
    lasting, fleeting = Newest(counted, str, stale=math.inf), Newest(counted, str, stale=0)
    assert await lasting.now() == await lasting.now()
    assert await fleeting.now() != await fleeting.now()
    before = await lasting.now()
    lasting.changed()
    assert await lasting.now() != before


async def test_watchers_get_the_state_regularly_without_a_change(counted: Counted) -> None:
    newest = Newest(counted, str, interval=0, stale=0, refresh=0.001)
    async with asyncio.timeout(60), aclosing(newest.follow()) as states:
        assert [await anext(states) for _ in range(3)] == ["1", "2", "3"]


async def test_the_event_loop_runs_while_a_form_is_made(counted: Counted) -> None:
    go = threading.Event()

    def slow(state: int) -> int:
        assert go.wait(60)
        return state

    newest = Newest(counted, slow, stale=math.inf)
    asked = [asyncio.create_task(newest.now()) for _ in range(3)]
    await until(lambda: counted.made == 1)
    newest.changed()  # after the state was taken: whoever asks from now on gets another
    later = asyncio.create_task(newest.now())
    go.set()
    async with asyncio.timeout(60):
        assert await asyncio.gather(*asked) == [1, 1, 1]
        assert await later == 2


async def test_short_lived_watchers_do_not_each_cause_a_form(counted: Counted) -> None:
    go = threading.Event()
    newest = Newest(counted, lambda state: (go.wait(60), state)[1], stale=math.inf)
    for _ in range(50):
        asked = asyncio.create_task(newest.now())
        await asyncio.sleep(0)
        asked.cancel()
    go.set()
    async with asyncio.timeout(60):
        assert await newest.now() == 1


async def test_a_failed_form_affects_only_current_watchers(counted: Counted) -> None:
    newest = Newest(counted, lambda state: 1 // (state - 1), stale=math.inf)
    with pytest.raises(ZeroDivisionError):
        await newest.now()
    assert await newest.now() == 1


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": []},
        {"a": [{"b": [1, {"c": [{}]}]}, {}], "d": {"e": None}},
        [["x"] * 250],
        "\n\udcff",
        1.5,
    ],
)
def test_a_line_encoded_in_pieces_is_the_same_json(value: object) -> None:
    assert json_line(value) == json.dumps(value, separators=(",", ":")).encode() + b"\n"


async def test_many_polling_clients_share_a_recent_state_despite_changes(counted: Counted) -> None:
    newest = Newest(counted, str, stale=0)
    async with asyncio.timeout(60):
        for _ in range(20):
            newest.changed()
            assert await newest.recent(3600) == "1"
        assert await newest.now() == "2", "who asks for the present state gets it"
        await asyncio.sleep(0.001)
        assert int(await Newest(counted, str).recent(0)) == 3, "the first has nothing to share"
