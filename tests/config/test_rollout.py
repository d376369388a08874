"""Whether a new file has left entries without devices, with a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kit.clock import FakeClock
from kit.waiting import background, until

from devhost.config.rollout import Found, Recorded, Rollout, RolloutRecord

PATIENCE = 600.0


def entry(name: str, devices: int, *, known: bool = True) -> Found:
    return Found(("toy", name, 0), devices, known)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def record(tmp_path: Path) -> RolloutRecord:
    return RolloutRecord(tmp_path, tmp_path / "devhost.yaml")


@asynccontextmanager
async def running(record: RolloutRecord, clock: FakeClock) -> AsyncIterator[Rollout]:
    """A process that runs for a while."""
    rollout = Rollout(record, PATIENCE, lambda: None, clock, clock.time)
    await rollout.read()
    try:
        async with background(rollout.run()):
            yield rollout
    finally:
        rollout.close()


async def written(record: RolloutRecord, wanted: Callable[[Recorded], bool]) -> Recorded:
    async with asyncio.timeout(60):
        while not wanted(found := record.read()):
            await asyncio.sleep(0.01)
    return found


def good(*names: str) -> Callable[[Recorded], bool]:
    def holds(recorded: Recorded) -> bool:
        return recorded.good is not None and {name for _, name, _ in recorded.good.entries} == {*names}

    return holds


async def begun(record: RolloutRecord, clock: FakeClock, entries: Sequence[Found]) -> None:
    """An earlier process that served these entries with the file ``1``."""
    async with running(record, clock) as rollout:
        rollout.follow("1", entries)
        await written(record, good(*(one.identity[1] for one in entries if one.devices)))


async def test_it_ends_when_the_time_is_over(record: RolloutRecord, clock: FakeClock) -> None:
    await begun(record, clock, [entry("a", 2), entry("b", 1)])
    async with running(record, clock) as rollout:
        rollout.follow("2", [entry("a", 0), entry("b", 1)])
        assert (
            rollout.reason
            == "no devices since the new file: a (until 1970-01-01T00:26:40Z, or `devhost accept`)"
        )
        await written(record, lambda one: one.trial is not None)
        await clock.advance(PATIENCE - 1)
        assert rollout.reason
        async with asyncio.timeout(60):
            while rollout.reason:  # the timer starts when the thread that writes has reported
                await clock.advance(2)
                await asyncio.sleep(0.01)
        await written(record, good("b"))


async def test_while_it_waits_nothing_runs_but_one_timer(record: RolloutRecord, clock: FakeClock) -> None:
    await begun(record, clock, [entry("a", 2)])
    async with running(record, clock) as rollout:
        rollout.follow("2", [entry("a", 0)])
        await until(lambda: clock.timers == [1000.0 + PATIENCE])
        for _ in range(50):
            await asyncio.sleep(0)
            assert clock.timers == [1000.0 + PATIENCE]


async def test_the_time_goes_on_over_a_restart(record: RolloutRecord, clock: FakeClock) -> None:
    await begun(record, clock, [entry("a", 2)])
    for passed in (0.0, PATIENCE / 2):
        clock.now += passed
        async with running(record, clock) as rollout:
            rollout.follow("2", [entry("a", 0)])
            assert "(until 1970-01-01T00:26:40Z" in rollout.reason
            await written(record, lambda one: one.trial is not None)
    clock.now += PATIENCE
    async with running(record, clock) as rollout:
        rollout.follow("2", [entry("a", 0)])
        assert rollout.reason == ""


async def test_each_file_has_the_whole_time(record: RolloutRecord, clock: FakeClock) -> None:
    await begun(record, clock, [entry("a", 2)])
    async with running(record, clock) as rollout:
        rollout.follow("2", [entry("a", 0)])
        clock.now += PATIENCE - 1
        rollout.follow("3", [entry("a", 0)])
        clock.now += PATIENCE - 1
        rollout.follow("3", [entry("a", 0)])
        assert rollout.reason
        rollout.follow("1", [entry("a", 2)])
        assert rollout.reason == ""


async def test_a_clock_that_is_set_back_does_not_lengthen_it(record: RolloutRecord, clock: FakeClock) -> None:
    await begun(record, clock, [entry("a", 2)])
    async with running(record, clock) as rollout:
        clock.now = 1_000_000.0
        rollout.follow("2", [entry("a", 0)])
        clock.now = 1000.0
        rollout.follow("2", [entry("a", 0)])
        assert "(until 1970-01-01T00:26:40Z" in rollout.reason


async def test_entries_whose_backend_has_not_answered_stay_in_the_record(
    record: RolloutRecord, clock: FakeClock
) -> None:
    await begun(record, clock, [entry("a", 2), entry("b", 1)])
    async with running(record, clock) as rollout:
        rollout.follow("1", [entry("a", 0, known=False), entry("b", 0)])
        await written(record, good("a"))
    async with running(record, clock) as rollout:
        rollout.follow("2", [entry("a", 0, known=False)])
        assert rollout.reason == "", "nothing is known of it yet"
        rollout.follow("2", [entry("a", 0)])
        assert "no devices since the new file: a (" in rollout.reason


async def test_a_file_that_is_no_regular_file_is_not_compared(
    record: RolloutRecord, clock: FakeClock
) -> None:
    await begun(record, clock, [entry("a", 2)])
    async with running(record, clock) as rollout:
        rollout.follow("", [entry("a", 0)])
        assert rollout.reason == ""


async def test_a_record_that_cannot_be_written_is_written_later(
    tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file")
    record = RolloutRecord(tmp_path / "state", tmp_path / "devhost.yaml")
    async with running(record, clock) as rollout:
        rollout.follow("1", [entry("a", 2)])
        await until(lambda: "the rollout is not recorded" in caplog.text)
        (tmp_path / "state").unlink()
        async with asyncio.timeout(60):
            while not good("a")(record.read()):
                await clock.advance(60)
                await asyncio.sleep(0.01)
