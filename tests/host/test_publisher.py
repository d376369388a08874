"""Each change is published once, in a consistent order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, cast

import pytest
from moments import Steps, now, served

from devhost.allocation.allocations import Holding
from devhost.allocation.claims import Claimed
from devhost.allocation.inventory import Entry, Member, Snapshot
from devhost.backend.model import HEALTHY, ClaimHolder, Device, Holder
from devhost.backend.observe import VerdictChanged
from devhost.discovery.observers import Batch
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.discovery.verdict_follower import VerdictsNow
from devhost.discovery.verdicts import Verdict, VerdictKind
from devhost.host.shown.publication import EventPublisher, tokens
from devhost.planning.claims import Held

A, B = Device("a"), Device("b")
FIRST, SECOND = (ClaimHolder("default", name, f"uid of {name}") for name in ("first", "second"))
ONE, TWO = Holder("default", "one", "main"), Holder("default", "two", "main")


def verdict(reason: str, by: str = "alice") -> Verdict:
    return Verdict(f"{reason}.json", VerdictKind.CORDON, ("toy/a",), reason, by, 5.0)


class Listeners:
    """Replaces the observers and keeps the events."""

    def __init__(self) -> None:
        self.there = True
        self.batches: list[Batch] = []

    def __bool__(self) -> bool:
        return self.there

    def publish(self, batch: Batch) -> None:
        self.batches.append(batch)


class Rig(Steps):
    """What is true at each step: a test sets it."""

    def __init__(self) -> None:
        self.listeners = Listeners()
        self.publisher = EventPublisher(cast("Any", self.listeners))
        self.hands: tuple[Held, ...] = ()
        self.reserved: set[str] = set()
        self.given: tuple[Claimed, ...] = ()
        self.devices: Mapping[str, Member] = {}
        self.conditions: Mapping[str, BackendCondition] = {}
        self.in_force: tuple[Verdict, ...] = ()
        super().__init__(self.publisher.follow, now(**self.moment()))

    def moment(self) -> dict[str, Any]:
        entries = {name: Entry(name, name, (one,), (), one.health, 0.0) for name, one in self.devices.items()}
        holdings = {"x/y": Holding("x/y", pending=frozenset(self.reserved))}
        backends = {name: BackendNow(one, True, {}) for name, one in self.conditions.items()}
        return {
            "generation": 3,
            "backends": backends,
            "resources": served(Snapshot(1, entries)),
            "held": self.hands,
            "tokens": partial(tokens, self.hands, holdings),
            "claimed": self.given,
            "verdicts": VerdictsNow(in_force=self.in_force),
        }

    def hold(self, *hands: tuple[str, Device, Holder | None]) -> None:
        self.hands = tuple(
            Held("x/y", (token,), "toy", device, True, holder) for token, device, holder in hands
        )
        self.step()

    def allocate(self, given: Mapping[str, tuple[Device, ...]]) -> None:
        self.publisher.allocated("x/y", "toy", given)
        self.publisher.flush(self.shown)

    def prepare(self, *given: tuple[ClaimHolder, Device, str]) -> None:
        """Each claim with a device, and its pods."""
        self.given = tuple(
            Claimed(claim, "x/y", "toy", device, 1, frozenset(pods.split())) for claim, device, pods in given
        )
        self.step()

    def judge(self, *in_force: Verdict) -> None:
        self.in_force = in_force
        self.step()

    def degrade(self, **conditions: BackendCondition) -> None:
        self.conditions = conditions
        self.step()

    def step(self, **true: Any) -> None:
        super().step(**self.moment(), **true)

    def everything(self) -> list[str]:
        """What a new observer gets."""
        return self.published(self.publisher.everything(self.shown))

    def published(self, batches: Iterable[Batch] | None = None) -> list[str]:
        """All events since the last call, each as kind, device, tokens and pod."""
        if batches is None:
            batches, self.listeners.batches = self.listeners.batches, []
        return [_short(one) for batch in batches for one in batch.news()]


def _short(one: Any) -> str:
    words = [type(one).__name__]
    if hasattr(one, "device"):
        words += [one.device.id, *getattr(one, "tokens", ())]
    if holder := getattr(one, "holder", None):
        words.append(holder.pod)
    if hasattr(one, "claim"):
        words += [one.claim.name, *one.pods]
    if isinstance(one, VerdictChanged):
        words += [one.reason, "begins" if one.in_force else "ends"]
    if hasattr(one, "degraded"):
        words += [one.backend, one.reason or "works again"]
    assert one.generation == 3
    return " ".join(words)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_allocated_held_and_released_are_events_in_order(rig: Rig) -> None:
    rig.allocate({"a::0": (A,)})
    rig.hold(("a::0", A, None))
    assert rig.published() == ["Allocated a a::0"]
    rig.hold(("a::0", A, ONE))
    rig.step()
    assert rig.published() == ["Held a a::0 one"]
    rig.hold()
    assert rig.published() == ["Released a a::0 one"]


def test_events_are_per_device_and_not_per_token(
    rig: Rig,
) -> None:
    rig.allocate({"a::0": (A,), "a::1": (A,), "all::0": (A, B)})
    assert rig.published() == ["Allocated a a::0 a::1 all::0", "Allocated b all::0"]


def test_a_token_that_is_allocated_again_was_released_before(rig: Rig) -> None:
    rig.allocate({"a": (A,)})
    rig.allocate({"a": (A,)})
    assert rig.published() == ["Allocated a a", "Released a a", "Allocated a a"]


def test_what_a_container_gets_while_something_else_changes_was_not_released_before(rig: Rig) -> None:
    rig.publisher.allocated("x/y", "toy", {"a": (A,)})
    rig.devices = {"a": Member(A, HEALTHY)}
    rig.hold(("a", A, None))
    rig.publisher.flush(rig.shown)
    assert rig.published() == ["Appeared a", "Allocated a a"]


def test_a_new_holder_of_a_token_means_that_the_first_has_released_it(rig: Rig) -> None:
    rig.hold(("a", A, ONE))
    rig.hold(("a", A, TWO))
    assert rig.published() == ["Held a a one", "Released a a one", "Held a a two"]


def test_a_device_of_a_token_that_is_found_later_is_a_separate_event(rig: Rig) -> None:
    rig.hold(("all::0", A, ONE))
    rig.hold(("all::0", A, ONE), ("all::0", B, ONE))
    assert rig.published() == ["Held a all::0 one", "Held b all::0 one"]


def test_a_reserved_token_is_no_event(rig: Rig) -> None:
    rig.reserved.add("a")
    rig.hold(("a", A, None))
    rig.hold()
    assert rig.published() == []


def test_a_new_observer_gets_the_present_state_and_then_only_changes(rig: Rig) -> None:
    rig.listeners.there = False
    rig.allocate({"a": (A,)})
    rig.degrade(toy=BackendCondition(BackendState.DEGRADED, "busy"))
    rig.devices = {"a": Member(A, HEALTHY)}
    rig.hold(("a", A, None), ("b", B, ONE))
    assert rig.published() == []
    everything = rig.everything()
    assert everything == ["Appeared a", "Allocated a a", "Held b b one", "BackendChanged toy busy"]
    rig.listeners.there = True
    rig.step()
    assert rig.published() == []
    rig.hold(("b", B, ONE))
    assert rig.published() == ["Released a a"]


def test_what_a_claim_holds_is_an_event_and_again_with_each_new_pod(rig: Rig) -> None:
    rig.prepare((FIRST, A, ""), (SECOND, B, "one"))
    rig.step()
    assert rig.published() == ["ClaimPrepared a first", "ClaimPrepared b second one"]
    rig.prepare((FIRST, A, "two"), (SECOND, B, ""))
    assert rig.published() == ["ClaimPrepared a first two"]
    rig.prepare((FIRST, B, "two"))
    assert rig.published() == [
        "ClaimUnprepared a first two",
        "ClaimUnprepared b second",
        "ClaimPrepared b first two",
    ]


def test_a_verdict_begins_and_ends_and_another_content_is_another_verdict(rig: Rig) -> None:
    rig.judge(verdict("a"), verdict("b"))
    rig.judge(verdict("a"), verdict("b"))
    assert rig.published() == ["VerdictChanged a begins", "VerdictChanged b begins"]
    rig.judge(verdict("a", by="bob"), verdict("b"))
    assert rig.published() == ["VerdictChanged a ends", "VerdictChanged a begins"]
    rig.judge()
    assert rig.published() == ["VerdictChanged a ends", "VerdictChanged b ends"]


def test_a_new_observer_gets_claims_and_verdicts_and_then_only_changes(rig: Rig) -> None:
    rig.listeners.there = False
    rig.prepare((FIRST, A, "one"))
    rig.judge(verdict("a"))
    assert rig.published() == []
    assert rig.everything() == ["ClaimPrepared a first one", "VerdictChanged a begins"]
    rig.listeners.there = True
    rig.step()
    rig.judge(verdict("a"))
    assert rig.published() == []
    rig.prepare()
    assert rig.published() == ["ClaimUnprepared a first one"]


def test_a_degraded_backend_that_is_removed_has_not_recovered(rig: Rig) -> None:
    rig.degrade(toy=BackendCondition(BackendState.DEGRADED, "busy"))
    rig.degrade(toy=BackendCondition(BackendState.DEGRADED, "busier"))
    assert rig.published() == ["BackendChanged toy busy"]
    rig.degrade()
    assert rig.published() == []
    rig.degrade(toy=BackendCondition(BackendState.DEGRADED, "busy"))
    rig.degrade(toy=BackendCondition(BackendState.OK))
    assert rig.published() == ["BackendChanged toy busy", "BackendChanged toy works again"]
