"""How much of the devices is in use: when backends are asked, and what a scrape has meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.waiting import background

from devhost.backend import Backend, Device, NoOptions, Usage
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.discovery.usage import INTERVAL, KEPT, SCRAPED, UsageReader
from devhost.runtime.reconciler import LoopClock
from devhost.telemetry.metrics import Metrics

ONE = Usage(0.25, 2 << 30, 8 << 30)


class Measured(Backend):
    """Two cards, one of which has figures; ``answer`` says which."""

    name = "measured"
    asked: ClassVar[list[list[str]]] = []
    answer: ClassVar[Any] = None
    going: ClassVar[threading.Event | None] = None

    def discover(self) -> list[Device]:
        return [Device("c0"), Device("c1")]

    def usage(self, devices: Sequence[Device]) -> Any:
        self.asked.append([one.id for one in devices])
        if self.going is not None:
            self.going.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Clock(LoopClock):
    """The loop's time, which a test puts forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("asked", []), ("answer", {"c0": ONE, "gone": ONE}), ("going", None)):
        monkeypatch.setattr(Measured, name, value)


@asynccontextmanager
async def reading(patience: float = 60.0) -> AsyncIterator[tuple[UsageReader, Clock, BackendRunner]]:
    runner = BackendRunner(Measured, NoOptions(), Path("/"))
    scanner = Scanner(runner, Metrics(), lambda at: None)
    clock = Clock()
    async with background(scanner.run()):
        await asyncio.wait_for(scanner.answered.wait(), 60)
        yield UsageReader(lambda: {"measured": scanner}, clock, patience), clock, runner
    runner.close()


async def test_a_scrape_has_what_is_known_about_the_devices_that_exist() -> None:
    async with reading() as (reader, *_):
        assert await reader.read() == {"measured": {"c0": ONE}}
    assert Measured.asked == [["c0", "c1"]]


async def test_many_scrapers_cause_one_question_in_each_interval() -> None:
    async with reading() as (reader, clock, _):
        found = await asyncio.gather(*(reader.read() for _ in range(20)))
        assert found == [{"measured": {"c0": ONE}}] * 20
        clock.ahead = INTERVAL - 1
        await reader.read()
        assert len(Measured.asked) == 1
        clock.ahead = INTERVAL + 1
        Measured.answer = {"c1": Usage(memory=1)}
        assert await reader.read() == {"measured": {"c1": Usage(memory=1)}}
    assert len(Measured.asked) == 2


async def test_a_backend_that_hangs_keeps_no_scrape_and_its_last_answer_ends(hang: threading.Event) -> None:
    async with reading(patience=0.2) as (reader, clock, runner):
        while not await reader.read():  # a busy machine
            clock.ahead += INTERVAL
        Measured.going = hang
        clock.ahead += INTERVAL + 1
        assert await reader.read() == {"measured": {"c0": ONE}}
        assert runner.hung == 0, "the scrape waited until the call was given up"
        clock.ahead += KEPT
        assert await reader.read() == {}


@pytest.mark.parametrize("answer", [OSError("no"), 3, {"c0": 0.5}], ids=["raised", "no mapping", "no Usage"])
async def test_a_failure_is_logged_once_and_hides_nothing_of_others(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    Measured.answer = answer
    async with reading() as (reader, clock, _):
        for _ in range(3):
            assert await reader.read() == {}
            clock.ahead += INTERVAL + 1
        assert [name for name, _ in reader.failing()] == ["measured"]
        clock.ahead += SCRAPED
        assert not [*reader.failing()]  # there are no scrapes
        Measured.answer = {"c0": ONE}
        assert await reader.read() == {"measured": {"c0": ONE}}
        assert not [*reader.failing()]
    logged = [record.getMessage() for record in caplog.records if "use of devices" in record.getMessage()]
    assert len(logged) == 2, logged


@pytest.mark.parametrize(
    "wrong",
    [
        {"busy": 1.01},
        {"busy": float("nan")},
        {"memory": -1},
        {"memory_used": -1},
        {"memory": float("nan")},
        {"memory": 10**400},
    ],
)
def test_a_usage_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is"):
        Usage(**wrong)
