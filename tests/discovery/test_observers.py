"""Observers hear everything in order, and one that is slow, fails or hangs harms nobody."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from kit.waiting import until

from devhost.backend.model import HEALTHY, Device
from devhost.backend.observe import Appeared, Left, News
from devhost.discovery.catalog import Catalog, InstalledObserver, Refusal
from devhost.discovery.observers import (
    LIMIT,
    MOST,
    PATIENCE,
    TOO_SLOW,
    Batch,
    Observer,
    Observers,
    ObserverState,
)
from devhost.planning.timing import DISCOVERY as NODE
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Failure, Metrics


@dataclass
class Ear:
    """What an observer heard: hook, ids of devices, and how many were missed before."""

    name: str = "ear"
    hooks: tuple[str, ...] = ("devhost_appeared", "devhost_left")
    heard: list[tuple[str, list[str], int]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    during: Callable[[], object] = lambda: None

    def plugin(self) -> InstalledObserver:
        relay: Any = self
        return InstalledObserver(self.name, "tests", "1", self.hooks, self, relay)

    def devhost_appeared(self, news: Sequence[Appeared], missed: int) -> None:
        self._hear("appeared", news, missed)

    def devhost_left(self, news: Sequence[Left], missed: int) -> None:
        self._hear("left", news, missed)

    def _hear(self, hook: str, news: Sequence[Any], missed: int) -> None:
        self.threads.add(threading.get_ident())
        self.during()
        self.heard.append((hook, [one.device.id for one in news], missed))


class Counts(Metrics):
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        super().__init__()

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        self.told.append((*labels, by) if metric == "observer_dropped_total" else labels)


def appeared(*devices: str) -> Batch:
    def make() -> list[News]:
        return [
            Appeared(at=1.0, generation=1, resource="a/b", backend="toy", device=Device(one), health=HEALTHY)
            for one in devices
        ]

    return Batch(Appeared, len(devices), make)


def left(*devices: str) -> Batch:
    def make() -> list[News]:
        return [
            Left(at=1.0, generation=1, resource="a/b", backend="toy", device=Device(one), reason="gone")
            for one in devices
        ]

    return Batch(Left, len(devices), make)


class Rig:
    """Observers that run; use as a context."""

    def __init__(self, *ears: Ear, deadline: float = NODE.observer, queue: int = LIMIT) -> None:
        self.tasks = Tasks()
        self.metrics = Counts()
        timing = DiscoveryTiming(observer=deadline, observer_pauses=(0.01, 0.05))
        self.observers = Observers(self.tasks, self.metrics, lambda: None, timing=timing, queue=queue)
        self.ears = ears

    async def __aenter__(self) -> Rig:
        await self.tasks.group.__aenter__()
        self.follow(*self.ears)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.observers.close()
        self.tasks.cancel_all()
        await self.tasks.group.__aexit__(*error)

    def follow(self, *ears: Ear, present: Sequence[Batch] = ()) -> None:
        self.observers.follow(Catalog(observers=tuple(ear.plugin() for ear in ears)), lambda: present)

    @property
    def only(self) -> Observer:
        (observer,) = self.observers
        return observer


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "devhost.discovery.observers"]


async def test_news_arrive_in_order_on_one_thread() -> None:
    ear = Ear()
    async with Rig(ear) as rig:
        rig.observers.publish(appeared("a", "b"))
        rig.observers.publish(left("a"))
        rig.observers.publish(appeared("c"))
        await rig.observers.flush(60)
    assert ear.heard == [("appeared", ["a", "b"], 0), ("left", ["a"], 0), ("appeared", ["c"], 0)]
    assert len(ear.threads) == 1
    assert threading.get_ident() not in ear.threads


async def test_without_observers_there_is_no_thread_and_nothing_is_made() -> None:
    before = set(threading.enumerate())  # one of an earlier test may still end
    async with Rig() as rig:
        assert not rig.observers
        assert rig.tasks.named() == {}
        rig.observers.publish(Batch(Appeared, 1, lambda: pytest.fail("somebody made it")))
        await rig.observers.flush(60)
    assert set(threading.enumerate()) <= before


async def test_an_observer_gets_only_news_for_its_hooks_and_no_empty_calls() -> None:
    ear = Ear(hooks=("devhost_left",))
    async with Rig(ear) as rig:
        rig.observers.publish(Batch(Appeared, 1, lambda: pytest.fail("somebody made it")))
        rig.observers.publish(left())
        rig.observers.publish(left("a"))
        await rig.observers.flush(60)
    assert ear.heard == [("left", ["a"], 0)]


async def test_news_of_ten_thousand_devices_are_ten_calls() -> None:
    ear, many = Ear(), [f"d{n}" for n in range(10_000)]
    async with Rig(ear) as rig:
        rig.observers.publish(appeared(*many))
        await rig.observers.flush(60)
    assert [len(ids) for _, ids, _ in ear.heard] == [MOST] * 10
    assert [one for _, ids, _ in ear.heard for one in ids] == many


async def test_a_hook_that_always_raises_is_shown_also_if_another_hook_returns() -> None:
    class Deaf(Ear):
        def devhost_appeared(self, news: Sequence[Appeared], missed: int) -> None:
            self.during()

    ear = Deaf()
    ear.during = lambda: 1 / 0
    async with Rig(ear) as rig:
        for count in range(1, 2 * PATIENCE):
            ear.during = lambda: 1 / 0
            rig.observers.publish(appeared("a"))
            await rig.observers.flush(60)
            ear.during = lambda: None
            rig.observers.publish(left("a"))
            await rig.observers.flush(60)
            condition = rig.only.condition
            assert condition.state is ObserverState.OK
            raised = "devhost_appeared: ZeroDivisionError: division by zero"
            assert condition.reason == (raised if count >= PATIENCE else "")
        rig.observers.publish(appeared("a"))
        await rig.observers.flush(60)
        assert rig.only.condition.reason == ""


async def test_an_observer_that_raises_is_logged_once_for_each_kind_and_affects_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Ear("bad"), Ear("good")

    def fail() -> None:
        raise ValueError("no luck") if len(good.heard) % 2 else KeyError("nor here")

    bad.during = fail
    async with Rig(bad, good) as rig:
        for number in range(4):
            rig.observers.publish(left(str(number)))
            await rig.observers.flush(60)
        assert [observer.condition.failures for observer in rig.observers] == [4, 0]
        assert [observer.condition.state for observer in rig.observers] == [
            ObserverState.OK,
            ObserverState.OK,
        ]
    assert len(good.heard) == 4
    assert 1 <= lines(caplog).count("observer failed") <= 2
    assert rig.metrics.told == [("bad", Failure.ERROR)] * 4


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration()]
)
async def test_any_exception_of_an_observer_is_only_a_failure(error: BaseException) -> None:
    ear = Ear()

    def fail() -> None:
        raise error

    ear.during = fail
    async with Rig(ear) as rig:
        rig.observers.publish(left("a"))
        await rig.observers.flush(60)
        assert rig.only.condition.failures == 1
        ear.during = lambda: None
        rig.observers.publish(left("b"))
        await rig.observers.flush(60)
    assert ear.heard == [("left", ["b"], 0)]


async def test_an_observer_that_fails_repeatedly_is_paused_and_called_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    ear, broken = Ear(), True

    def fail() -> None:
        if broken:
            raise OSError("disk full")

    ear.during = fail
    async with Rig(ear) as rig:
        for number in range(PATIENCE):
            rig.observers.publish(left(str(number)))
        await until(lambda: rig.only.condition.state is ObserverState.PAUSED)
        assert rig.only.condition.reason == "devhost_left: OSError: disk full"
        broken = False
        rig.observers.publish(left("now"))
        await until(lambda: ear.heard)
        await until(lambda: rig.only.condition.state is ObserverState.OK)
        assert rig.only.condition.reason == ""
    assert lines(caplog).count("observer is paused") == 1
    assert lines(caplog).count("observer is back") == 1


async def test_a_hanging_observer_is_not_called_until_its_call_returns() -> None:
    hung, other, over = Ear("hung"), Ear("other"), threading.Event()
    entered: list[int] = []

    def hang() -> None:
        entered.append(1)
        over.wait(120)

    hung.during = hang
    async with Rig(hung, other, deadline=2.0) as rig:  # the thread of the other one begins before
        stuck = next(iter(rig.observers))
        for number in range(3):
            rig.observers.publish(left(str(number)))
        await until(lambda: stuck.condition.state is ObserverState.PAUSED)
        assert stuck.condition.reason == "devhost_left did not return within 2 s"
        await until(lambda: len(other.heard) == 3)
        await asyncio.sleep(0.2)  # many a pause has passed, and nobody called
        assert len(entered) == 1
        assert stuck.waiting == 2
        over.set()
        await until(lambda: len(entered) == 3)
        await until(lambda: stuck.condition.state is ObserverState.OK)
    assert ("hung", Failure.TIMEOUT) in rig.metrics.told


async def test_a_full_queue_drops_the_oldest_news_and_reports_their_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ear, over = Ear(), threading.Event()
    ear.during = lambda: over.wait(120)
    async with Rig(ear, queue=10) as rig:
        rig.observers.publish(left("first"))
        await until(lambda: ear.threads)
        for number in range(25):
            rig.observers.publish(left(str(number)))
        assert (rig.only.waiting, rig.only.condition.dropped) == (10, 15)
        assert rig.only.condition.reason == TOO_SLOW
        over.set()
        await rig.observers.flush(60)
        await until(lambda: rig.only.condition.reason == "")
    assert ear.heard[1] == ("left", ["15"], 15)
    assert [ids for _, ids, _ in ear.heard[2:]] == [[str(number)] for number in range(16, 25)]
    assert {missed for _, _, missed in ear.heard[2:]} == {0}
    assert lines(caplog) == ["observer is too slow, news are dropped"]
    assert sum(int(str(count)) for _, count in rig.metrics.told) == 15


async def test_a_batch_larger_than_the_queue_is_delivered_whole() -> None:
    ear, many = Ear(), [str(number) for number in range(25)]
    async with Rig(ear, queue=10) as rig:
        rig.observers.publish(appeared(*many))
        await rig.observers.flush(60)
    assert ear.heard == [("appeared", many, 0)]


async def test_flush_waits_for_news_but_not_for_a_hanging_or_paused_observer() -> None:
    hung, over = Ear("hung"), threading.Event()
    hung.during = lambda: over.wait(120)
    async with Rig(hung) as rig:
        rig.observers.publish(left("a"))
        async with asyncio.timeout(60):
            await rig.observers.flush(0.05)  # it hangs within its deadline: the time given is up
        assert hung.heard == []
        over.set()
        await until(lambda: hung.heard)
    over.clear()
    async with Rig(hung, deadline=0.01) as rig:
        rig.observers.publish(left("b"))
        await until(lambda: rig.only.condition.state is ObserverState.PAUSED)
        rig.observers.publish(left("c"))
        async with asyncio.timeout(60):
            await rig.observers.flush(60)
        over.set()


async def test_a_new_observer_first_gets_what_exists_and_an_old_one_does_not_get_it_again() -> None:
    old, new = Ear("old"), Ear("new")
    async with Rig(old) as rig:
        rig.follow(old, new, present=[appeared("a", "b")])
        rig.observers.publish(left("a"))
        await rig.observers.flush(60)
    assert old.heard == [("left", ["a"], 0)]
    assert new.heard == [("appeared", ["a", "b"], 0), ("left", ["a"], 0)]


async def test_a_replaced_observer_is_not_called_even_if_news_wait_for_it() -> None:
    old, new, over = Ear(), Ear(), threading.Event()
    old.during = lambda: over.wait(120)
    async with Rig(old) as rig:
        rig.observers.publish(left("a"))
        rig.observers.publish(left("b"))
        await until(lambda: old.threads)
        rig.follow(new)
        over.set()
        rig.observers.publish(left("c"))
        await rig.observers.flush(60)
        await until(lambda: old.heard)
        rig.follow()
        assert not rig.observers
    assert old.heard == [("left", ["a"], 0)]
    assert new.heard == [("left", ["c"], 0)]


async def test_a_refused_plugin_is_in_the_log_once(caplog: pytest.LogCaptureFixture) -> None:
    refused = Catalog(refused=(Refusal("/x.py", "", "unknown hook devhost_x"),))
    async with Rig() as rig:
        rig.observers.follow(refused, lambda: ())
        rig.observers.follow(refused, lambda: ())
    (record,) = [record for record in caplog.records if record.getMessage() == "plugin refused"]
    assert vars(record)["fields"] == {"origin": "/x.py", "reason": "unknown hook devhost_x"}
