"""Polling the kubelet: what is logged, and when it is not asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kit.waiting import background, until

from devhost.allocation.allocations import Allocations, Listing
from devhost.allocation.claims import ClaimedDevice
from devhost.allocation.inventory import Inventory
from devhost.backend.model import ClaimHolder, Holder
from devhost.kubelet.podresources_poller import FAILURES, PodResources, PodResourcesPoller, Unanswered
from devhost.planning.timing import AllocationTiming, KubeletTiming

TOY = "example.com/toy"
POD = Holder("default", "pod", "main")


class Scripted(PodResources):
    """Fails with each non-empty reason of the script in turn, then answers."""

    def __init__(self, reasons: Iterable[str] = ()) -> None:
        super().__init__(Path("/nowhere"))
        self.reasons = list(reasons)
        self.asked = 0
        self.held: dict[str, Holder] = {}

    async def list(self) -> Listing:
        self.asked += 1
        if reason := self.reasons.pop(0) if self.reasons else "":
            raise Unanswered(reason)
        containers = {POD: bool(self.held)}
        return Listing((1, 2, 3), asyncio.get_running_loop().time(), 1, {TOY: self.held}, containers)


FAST = KubeletTiming(question_gap=0.01, question_first=0.01, question_failed=(0.01, 0.02))


@asynccontextmanager
async def running(
    source: Scripted, timing: KubeletTiming = FAST, *, held: float = 15.0
) -> AsyncIterator[tuple[PodResourcesPoller, Inventory]]:
    clock = asyncio.get_running_loop().time
    allocations = Allocations(clock, timing=AllocationTiming(list_allocated=0.01, list_held=held))
    inventory = Inventory(lambda: 0.0, clock, allocations=allocations.of(TOY))
    holders = PodResourcesPoller(source, allocations, lambda: None, timing=timing)
    async with background(holders.run()):
        yield holders, inventory


def levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.levelname for record in caplog.records if record.name == "devhost.kubelet.podresources_poller"
    ]


async def test_a_silent_kubelet_is_logged_once_for_each_reason_and_its_end_once(caplog) -> None:
    caplog.set_level(logging.INFO, "devhost")
    source = Scripted([f"reason {n % 3}" for n in range(9)])
    async with running(source) as (holders, _):
        await until(lambda: holders.condition.reason == "reason 2")
        await until(lambda: not holders.condition.reason)
    assert levels(caplog) == ["WARNING", "WARNING", "WARNING", "INFO"]
    reasons = [vars(record)["fields"].get("reason") for record in caplog.records]
    assert [reason for reason in reasons if reason] == ["reason 1", "reason 2", "reason 0"]


@pytest.mark.parametrize(("gap", "asked"), [(3600.0, 1), (0.0, 3)])
async def test_a_kubelet_without_a_first_list_is_not_asked_for_each_claim(gap: float, asked: int) -> None:
    source = Scripted(["no reason"] * 2)
    holders = PodResourcesPoller(
        source, Allocations(lambda: 0.0), lambda: None, timing=replace(FAST, question_gap=gap)
    )
    for _ in range(9):
        await holders.first_list(60.0)
    assert (source.asked, holders.listing is not None) == (asked, not gap)


async def test_a_kubelet_that_fails_every_other_time_is_not_logged(caplog) -> None:
    caplog.set_level(logging.INFO, "devhost")
    source = Scripted(["", *["now and then", ""] * 8])
    source.held = {"a": POD}
    async with running(source) as (holders, inventory):
        while source.reasons:
            asked = source.asked
            inventory.allocated(["a"])
            await until(lambda asked=asked: source.asked > asked)
        assert not holders.condition.reason
    assert levels(caplog) == ["INFO"]
    assert FAILURES > 1


async def test_the_kubelet_is_not_asked_while_nothing_is_held_until_an_allocation() -> None:
    source = Scripted()
    async with running(source, replace(FAST, question_new=0.0)) as (holders, inventory):
        await until(lambda: source.asked == 1)
        for _ in range(20):
            holders.wake()
            holders.restarted()
            await asyncio.sleep(0)
        assert (source.asked, holders.due()) == (1, None)
        source.held = {"a": POD}
        inventory.allocated(["a"])
        await until(lambda: inventory.allocations.leases.holder("a") == POD)
        assert source.asked >= 2


async def test_the_kubelet_is_asked_again_once_a_claim_is_prepared() -> None:
    source = Scripted()
    async with running(source, replace(FAST, question_new=0.0), held=0.01) as (holders, inventory):
        await until(lambda: source.asked == 1)
        assert holders.due() is None
        device = ClaimedDevice("card", "pool", "a", "", ("toy", "a"), TOY)
        inventory.allocations.everything.claims.prepared(ClaimHolder("default", "one", "uid-1"), [device])
        await until(lambda: source.asked >= 2)


async def test_a_new_kubelet_sock_is_a_new_kubelet_even_if_podresources_is_unchanged() -> None:
    """A token that it does not list, although it lists the container, is forgotten."""
    source = Scripted()
    source.held = {"a": POD}
    async with running(source) as (holders, inventory):
        await until(lambda: inventory.allocations.leases.holder("a") == POD)
        holders.restarted()
        source.held = {}
        await until(lambda: inventory.allocations.leases.forgotten() == {"a": POD})
