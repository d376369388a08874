"""When a backend is asked to bring its hardware to what the options say, and what is told of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest
from kit.backend import Plain
from kit.clock import in_virtual_time
from kit.waiting import background, until

from devhost.backend import NoOptions
from devhost.backend.errors import BackendError, NotYet
from devhost.discovery.manager import Provisioning, ProvisioningState
from devhost.discovery.runner import BackendRunner
from devhost.discovery.scanner import Scanner
from devhost.planning.timing import DISCOVERY as NODE
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.worker import WorkerThread


class Toy:
    """Stands for a backend in service and for what discovers its devices."""

    name = "toy"

    def __init__(self, answers: list[Exception | None] | None = None) -> None:
        self.runner = self
        self.answered = asyncio.Event()
        self.answered.set()
        self.answers = answers or []
        self.calls: list[float] = []
        self.looks = 0
        self.hang: threading.Event | None = None
        self.running = 0

    def request_scan(self) -> None:
        self.looks += 1

    async def call(self, lane: WorkerThread, deadline: float, call: Callable[[], None]) -> None:
        self.calls.append(asyncio.get_running_loop().time())
        if self.hang:
            await lane.call(deadline, call)
        answer = self.answers.pop(0) if self.answers else None
        if answer:
            raise answer

    def provision(self) -> None:
        assert self.hang
        self.running += 1
        self.hang.wait(60)
        self.running -= 1


def provisioned(
    toy: Toy, changed: Callable[[], None] = lambda: None, timing: DiscoveryTiming = NODE
) -> Provisioning:
    return Provisioning(cast("Scanner", toy), changed, timing)


def state_of(work: Provisioning) -> ProvisioningState:
    return work.condition.state


async def after(seconds: float, work: Provisioning) -> None:
    """Lets it run for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work.run()


@in_virtual_time
async def test_it_waits_for_the_backend_and_is_then_called_now_and_at_intervals() -> None:
    toy = Toy()
    toy.answered.clear()
    work = provisioned(toy)
    await after(5, work)
    assert toy.calls == [] and state_of(work) is ProvisioningState.WAITING
    toy.answered.set()
    await after(3 * NODE.provision_resync + 1, work)
    assert len(toy.calls) == 4 and state_of(work) is ProvisioningState.OK
    assert toy.looks == 4  # what was changed is seen at once, also where no event tells of it


@in_virtual_time
async def test_a_failure_is_reported_and_retried_with_back_off() -> None:
    toy = Toy([BackendError("no room")] * 50)
    told: list[str] = []
    work = provisioned(toy, lambda: told.append(work.condition.reason))
    await after(120, work)
    waits = [b - a for a, b in zip(toy.calls, toy.calls[1:], strict=False)]
    assert 5 <= len(toy.calls) <= 16 and waits[0] < 2 and max(waits) <= 31
    assert (work.condition.state, work.condition.reason) == (ProvisioningState.FAILED, "no room")
    assert told == ["no room"]
    toy.answers.clear()
    await after(31, work)
    assert (work.condition.state, work.condition.reason, told[-1]) == (ProvisioningState.OK, "", "")


@in_virtual_time
async def test_the_log_has_failures_and_recoveries_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "devhost.discovery.manager")
    toy = Toy([None, BackendError("no room"), BackendError("no room"), None, None])
    await after(300, provisioned(toy))
    assert [record.getMessage().split(" backend=")[0] for record in caplog.records] == [
        "provisioning failed",
        "provisioned",
    ]


@in_virtual_time
async def test_an_event_causes_a_call_soon_except_after_a_failure() -> None:
    for answer, soon in ((None, True), (NotYet("a pod has it"), True), (BackendError("no"), False)):
        toy = Toy([answer] * 20)
        work = provisioned(toy)
        async with background(work.run()):
            await asyncio.sleep(20)
            tried = len(toy.calls)
            while not soon and len(toy.calls) == tried:
                await asyncio.sleep(0.01)  # right after a try: when the next one is due is drawn by chance
            before = len(toy.calls)
            work.wake()
            await asyncio.sleep(0.3)
            assert (len(toy.calls) > before) is soon, answer


@in_virtual_time
async def test_a_burst_of_events_causes_one_call() -> None:
    toy = Toy()
    work = provisioned(toy)
    async with background(work.run()):
        await asyncio.sleep(1)
        for _ in range(15):
            work.wake()
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert len(toy.calls) == 2


@in_virtual_time
async def test_waiting_is_reported_and_is_not_a_failure() -> None:
    work = provisioned(Toy([NotYet("a pod has it")]))
    await after(0.1, work)
    assert (work.condition.state, work.condition.reason) == (ProvisioningState.WAITING, "a pod has it")
    await after(1, work)
    assert state_of(work) is ProvisioningState.OK


@in_virtual_time
async def test_new_options_are_provisioned_at_once_even_after_a_failure() -> None:
    old, new = Toy([BackendError("no")] * 20), Toy()
    work = provisioned(old)
    async with background(work.run()):
        await asyncio.sleep(100)
        work.follow(cast("Scanner", new))
        calls = len(old.calls)
        await asyncio.sleep(0.5)
        assert (len(old.calls), len(new.calls)) == (calls, 1)


async def test_while_a_call_hangs_there_is_no_second_one_even_with_new_options(hang: threading.Event) -> None:
    old, new = Toy(), Toy()
    old.hang = hang
    work = provisioned(old, timing=DiscoveryTiming(provision=1.0))  # the call has certainly begun by then
    async with background(work.run()):
        await until(lambda: state_of(work) is ProvisioningState.FAILED)
        assert "longer than" in work.condition.reason and work.hung
        work.follow(cast("Scanner", new))
        work.wake()
        await asyncio.sleep(1.5)  # longer than the longest pause between two calls
        assert (len(old.calls), new.calls, old.running) == (1, [], 1)
        hang.set()
        await until(lambda: state_of(work) is ProvisioningState.OK)
        assert len(new.calls) == 1
    work.close()


async def test_a_backend_that_has_not_started_is_not_a_failure(tmp_path: Any) -> None:
    class Maker(Plain):
        name = "maker"

        def provision(self) -> None:
            raise NotYet("the hardware is away")

    source, lane = BackendRunner(Maker, NoOptions(), tmp_path), WorkerThread("maker-provision")
    assert source.abilities.provision
    with pytest.raises(NotYet, match="has not started"):
        await source.call(lane, 5, source.provision)
    source.discover([])
    with pytest.raises(NotYet, match="the hardware is away"):
        await source.call(lane, 5, source.provision)
    source.close()
    lane.close()
