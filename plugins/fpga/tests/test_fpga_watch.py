"""Changes that make no event: how often files are read again, and what becomes of what was found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_fpga import watch
from devhost_fpga.dfl import Dfl
from devhost_fpga.model import FpgaSysfs, Unit
from devhost_fpga.watch import Watch
from devhost_testing.fixtures import BackendFixture, by_id
from fpga_tree import OTHER, FpgaTree

from devhost.backend import Device
from devhost.backend.errors import BackendTimeout
from devhost.discovery.runner import ServiceContext

PLACE = "/sys/devices/card/port"


class Clock:
    """Sleeps are noted and over at once; before each one something may happen."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []
        self.before: dict[int, Callable[[], object]] = {}
        self.most = 50

    async def sleep(self, seconds: float) -> None:
        self.before.get(len(self.sleeps), lambda: None)()
        self.sleeps.append(seconds)
        if len(self.sleeps) > self.most:
            raise asyncio.CancelledError
        await asyncio.sleep(0)


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    made = ServiceContext("fpga", tmp_path)
    yield made
    made.close()


def unit(*names: str, busy: bool = False) -> Unit:
    return Unit(Device(id="card"), watched=tuple(f"{PLACE}/{name}" for name in names), is_busy=busy)


def made(context: ServiceContext, clock: Clock, spread: float = 0.0) -> Watch:
    return Watch(FpgaSysfs(context.root), context, clock.sleep, lambda: spread)


def write(context: ServiceContext, name: str, text: str) -> None:
    file = context.root / PLACE.lstrip("/") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def count(source: Watch) -> int:
    """How many events there are until the clock ends it."""
    total = 0
    with suppress(asyncio.CancelledError):
        async with aclosing(source.events()) as heard:
            async for event in heard:
                assert event.sys_path == PLACE
                total += 1
    return total


async def test_idle_files_are_read_every_ten_seconds(context: ServiceContext, clock: Clock) -> None:
    source = made(context, clock)
    write(context, "afu_id", "one")
    source.follow([unit("afu_id")])
    clock.most = 10
    assert await count(source) == 1  # read for the first time: what looks saw before may be older
    assert set(clock.sleeps) == {watch.IDLE_PAUSE}


async def test_a_change_is_one_event_and_no_change_is_none(context: ServiceContext, clock: Clock) -> None:
    source = made(context, clock)
    write(context, "afu_id", "one")
    write(context, "state", "operating")
    source.follow([unit("afu_id", "state")])
    clock.before = {3: lambda: write(context, "afu_id", "two"), 6: lambda: write(context, "state", "write")}
    assert await count(source) == 3


async def test_a_file_that_disappears_or_becomes_unreadable_is_a_change(
    context: ServiceContext, clock: Clock
) -> None:
    source = made(context, clock)
    write(context, "afu_id", "one")
    source.follow([unit("afu_id")])
    clock.before = {3: lambda: (context.root / PLACE.lstrip("/") / "afu_id").unlink()}
    assert await count(source) == 2


async def test_polling_is_faster_at_the_beginning_of_programming(
    context: ServiceContext, clock: Clock
) -> None:
    source = made(context, clock)
    write(context, "afu_id", "one")
    source.follow([unit("afu_id", busy=True)])
    clock.before = {
        8: lambda: source.follow([unit("afu_id")]),
        9: lambda: source.follow([unit("afu_id", busy=True)]),
    }
    clock.most = 12
    await count(source)
    assert clock.sleeps[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert clock.sleeps[9:12] == [10.0, 0.5, 1.0]


async def test_pauses_are_spread_and_never_longer(context: ServiceContext, clock: Clock) -> None:
    source = made(context, clock, spread=1.0)
    source.follow([unit("afu_id")])
    clock.most = 3
    await count(source)
    assert set(clock.sleeps) == {watch.IDLE_PAUSE * (1 - watch.SPREAD)}


async def test_without_files_nothing_is_read(
    context: ServiceContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("something was read")

    monkeypatch.setattr(context, "run_blocking", refuse)
    assert await count(made(context, clock)) == 0


async def test_a_hanging_driver_does_not_end_polling(
    context: ServiceContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = context.run_blocking, [0]

    async def hang(*arguments: object) -> object:
        calls[0] += 1
        if calls[0] < 4:
            raise BackendTimeout("it hangs")
        return await real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(context, "run_blocking", hang)
    write(context, "afu_id", "one")
    source = made(context, clock)
    source.follow([unit("afu_id")])
    assert await count(source) == 1
    assert clock.sleeps[:4] == [watch.IDLE_PAUSE] * 4


async def test_the_number_of_polled_files_is_limited(
    context: ServiceContext, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, read = context.run_blocking, set[int]()

    async def note(call: Callable[..., object], files: Sequence[str]) -> object:
        read.add(len(files))
        return await real(call, files)

    monkeypatch.setattr(context, "run_blocking", note)
    source = made(context, clock)
    many = [
        replace(unit(*(f"file{n}.{m}" for m in range(100))), device=Device(id=f"c{n}")) for n in range(60)
    ]
    source.follow(many)
    clock.most = 1
    await count(source)
    assert read == {watch.MAX_FILES}


async def test_the_start_of_programming_ends_the_pause(context: ServiceContext) -> None:
    """The real pause: woken from another thread, as looks are on one."""
    source = Watch(FpgaSysfs(context.root), context)
    write(context, "afu_id", "one")
    source.follow([unit("afu_id")])
    async with aclosing(source.events()) as heard:
        first = asyncio.ensure_future(anext(heard))
        await asyncio.sleep(0)  # so that it has begun to wait
        await asyncio.to_thread(source.follow, [unit("afu_id", busy=True)])
        assert (await asyncio.wait_for(first, watch.IDLE_PAUSE * (1 - watch.SPREAD) / 2)).sys_path == PLACE


async def test_following_without_a_loop_does_no_harm(context: ServiceContext, clock: Clock) -> None:
    source = made(context, clock)
    source.follow([unit("afu_id", busy=True)])
    clock.most = 1
    await count(source)
    source.follow([unit("afu_id")])
    source.follow([unit("afu_id", busy=True)])


def test_every_id_register_and_state_is_watched_and_none_that_is_read_under_the_lock(
    looking: BackendFixture, tmp_path: Path
) -> None:
    tree: FpgaTree = cards.two_ports(tmp_path)
    backend = looking(tree)
    devices = by_id(backend)
    units = {unit.device.id: unit for unit in Dfl(FpgaSysfs(tree.root)).scan()}
    region = units["0000:3f:00.0-fme"]
    ends = {"/".join(file.rsplit("/", 2)[1:]) for file in region.watched}
    assert {"dfl-port.0/afu_id", "dfl-port.1/afu_id", "dfl-port.1/power_state", "fpga0/state"} <= ends
    assert {"errors/errors", "errors/catfatal_errors", "errors/nonfatal_errors"} <= ends
    assert any("temp1_crit_alarm" in end for end in ends)
    assert not [end for end in ends if "fme_errors" in end or "pcie0" in end or "first_error" in end]
    assert all(tree.root.joinpath(file.lstrip("/")).exists() for file in region.watched)
    next((tree.root / "sys/devices").rglob("dfl-port.0/afu_id")).write_text(f"{OTHER}\n")
    assert by_id(backend)["0000:3f:00.0-port0"] != devices["0000:3f:00.0-port0"]
