"""Each change is published once, in a consistent order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import pytest

from devhost.allocation.claims import Claimed
from devhost.allocation.inventory import Member
from devhost.backend.model import HEALTHY, ClaimHolder, Device, Holder
from devhost.backend.observe import VerdictChanged
from devhost.discovery.maintenance.files import Verdict, VerdictKind
from devhost.discovery.observers import Batch
from devhost.discovery.scanner import BackendCondition, BackendState
from devhost.host.shown.publisher import EventPublisher
from devhost.planning.claims import Held

A, B = Device("a"), Device("b")
FIRST, SECOND = (ClaimHolder("default", name, f"uid of {name}") for name in ("first", "second"))
ONE, TWO = Holder("default", "one", "main"), Holder("default", "two", "main")


def verdict(reason: str, by: str = "alice") -> Verdict:
    return Verdict(f"{reason}.json", VerdictKind.CORDON, ("toy/a",), reason, by, 5.0)


class Books:
    """Replaces the allocations: a test sets what is held."""

    def __init__(self) -> None:
        self.hands: tuple[Held, ...] = ()
        self.reserved: set[str] = set()
        self.claims = self
        self.given: tuple[Claimed, ...] = ()

    def hold(self, *hands: tuple[str, Device, Holder | None]) -> None:
        self.hands = tuple(
            Held("x/y", (token,), "toy", device, True, holder) for token, device, holder in hands
        )

    def held(self) -> tuple[Held, ...]:
        return self.hands

    def prepare(self, *given: tuple[ClaimHolder, Device, str]) -> None:
        """Each claim with a device, and its pods."""
        self.given = tuple(
            Claimed(claim, "x/y", "toy", device, 1, frozenset(pods.split())) for claim, device, pods in given
        )

    def claimed(self) -> tuple[Claimed, ...]:
        return self.given

    def is_held(self, resource: str, token: str) -> bool:
        return token not in self.reserved


class Listeners:
    """Replaces the observers and keeps the events."""

    def __init__(self) -> None:
        self.there = True
        self.batches: list[Batch] = []

    def __bool__(self) -> bool:
        return self.there

    def publish(self, batch: Batch) -> None:
        self.batches.append(batch)


class Rig:
    def __init__(self) -> None:
        self.books = Books()
        self.listeners = Listeners()
        self.devices: Mapping[str, Member] = {}
        self.generation = 3
        self.news = EventPublisher(cast("Any", self.listeners), cast("Any", self.books), self, self)

    def present(self) -> Iterator[tuple[str, str, Mapping[str, Member]]]:
        yield "x/y", "toy", self.devices

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
    rig.news.allocated("x/y", "toy", {"a::0": (A,)})
    rig.books.hold(("a::0", A, None))
    rig.news.held()
    assert rig.published() == ["Allocated a a::0"]
    rig.books.hold(("a::0", A, ONE))
    rig.news.held()
    rig.news.held()
    assert rig.published() == ["Held a a::0 one"]
    rig.books.hold()
    rig.news.held()
    assert rig.published() == ["Released a a::0 one"]


def test_events_are_per_device_and_not_per_token(
    rig: Rig,
) -> None:
    rig.news.allocated("x/y", "toy", {"a::0": (A,), "a::1": (A,), "all::0": (A, B)})
    assert rig.published() == ["Allocated a a::0 a::1 all::0", "Allocated b all::0"]


def test_a_token_that_is_allocated_again_was_released_before(rig: Rig) -> None:
    rig.news.allocated("x/y", "toy", {"a": (A,)})
    rig.news.allocated("x/y", "toy", {"a": (A,)})
    assert rig.published() == ["Allocated a a", "Released a a", "Allocated a a"]


def test_a_new_holder_of_a_token_means_that_the_first_has_released_it(rig: Rig) -> None:
    rig.books.hold(("a", A, ONE))
    rig.news.held()
    rig.books.hold(("a", A, TWO))
    rig.news.held()
    assert rig.published() == ["Held a a one", "Released a a one", "Held a a two"]


def test_a_device_of_a_token_that_is_found_later_is_a_separate_event(rig: Rig) -> None:
    rig.books.hold(("all::0", A, ONE))
    rig.news.held()
    rig.books.hold(("all::0", A, ONE), ("all::0", B, ONE))
    rig.news.held()
    assert rig.published() == ["Held a all::0 one", "Held b all::0 one"]


def test_a_reserved_token_is_no_event(rig: Rig) -> None:
    rig.books.reserved.add("a")
    rig.books.hold(("a", A, None))
    rig.news.held()
    rig.books.hold()
    rig.news.held()
    assert rig.published() == []


def test_a_new_observer_gets_the_present_state_and_then_only_changes(rig: Rig) -> None:
    rig.listeners.there = False
    rig.news.allocated("x/y", "toy", {"a": (A,)})
    rig.news.backends({"toy": BackendCondition(BackendState.DEGRADED, "busy")}.items())
    rig.books.hold(("a", A, None), ("b", B, ONE))
    rig.news.held()
    rig.devices = {"a": Member(A, HEALTHY)}
    assert rig.published() == []
    everything = rig.published(rig.news.everything())
    assert everything == ["Appeared a", "Allocated a a", "Held b b one", "BackendChanged toy busy"]
    rig.listeners.there = True
    rig.news.held()
    assert rig.published() == []
    rig.books.hold(("b", B, ONE))
    rig.news.held()
    assert rig.published() == ["Released a a"]


def test_what_a_claim_holds_is_an_event_and_again_with_each_new_pod(rig: Rig) -> None:
    rig.books.prepare((FIRST, A, ""), (SECOND, B, "one"))
    rig.news.claims()
    rig.news.claims()
    assert rig.published() == ["ClaimPrepared a first", "ClaimPrepared b second one"]
    rig.books.prepare((FIRST, A, "two"), (SECOND, B, ""))
    rig.news.claims()
    assert rig.published() == ["ClaimPrepared a first two"]
    rig.books.prepare((FIRST, B, "two"))
    rig.news.claims()
    assert rig.published() == [
        "ClaimUnprepared a first two",
        "ClaimUnprepared b second",
        "ClaimPrepared b first two",
    ]


def test_a_verdict_begins_and_ends_and_another_content_is_another_verdict(rig: Rig) -> None:
    rig.news.verdicts((verdict("a"), verdict("b")))
    rig.news.verdicts((verdict("a"), verdict("b")))
    assert rig.published() == ["VerdictChanged a begins", "VerdictChanged b begins"]
    rig.news.verdicts((verdict("a", by="bob"), verdict("b")))
    assert rig.published() == ["VerdictChanged a ends", "VerdictChanged a begins"]
    rig.news.verdicts(())
    assert rig.published() == ["VerdictChanged a ends", "VerdictChanged b ends"]


def test_a_new_observer_gets_claims_and_verdicts_and_then_only_changes(rig: Rig) -> None:
    rig.listeners.there = False
    rig.books.prepare((FIRST, A, "one"))
    rig.news.claims()
    rig.news.verdicts((verdict("a"),))
    assert rig.published() == []
    assert rig.published(rig.news.everything()) == ["ClaimPrepared a first one", "VerdictChanged a begins"]
    rig.listeners.there = True
    rig.news.claims()
    rig.news.verdicts((verdict("a"),))
    assert rig.published() == []
    rig.books.prepare()
    rig.news.claims()
    assert rig.published() == ["ClaimUnprepared a first one"]


def test_a_degraded_backend_that_is_removed_has_not_recovered(rig: Rig) -> None:
    rig.news.backends({"toy": BackendCondition(BackendState.DEGRADED, "busy")}.items())
    rig.news.backends({"toy": BackendCondition(BackendState.DEGRADED, "busier")}.items())
    assert rig.published() == ["BackendChanged toy busy"]
    rig.news.backends({}.items())
    assert rig.published() == []
    rig.news.backends({"toy": BackendCondition(BackendState.DEGRADED, "busy")}.items())
    rig.news.backends({"toy": BackendCondition(BackendState.OK)}.items())
    assert rig.published() == ["BackendChanged toy busy", "BackendChanged toy works again"]
