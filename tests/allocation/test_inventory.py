"""Snapshots: a revision for each difference the kubelet would see, and tokens that leave in good order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.allocator import POD, Listed

from devhost.backend.model import MAX_DEVICE_ID, Device, Health
from devhost.kubelet.server import device_list
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of
from devhost.planning.timing import ALLOCATION as NODE
from devhost.planning.tokens import stand_in, stood_for, token

GRACE = NODE.grace

promise = settings(deadline=None, derandomize=True)


def test_the_first_list_is_a_revision_even_when_it_is_empty() -> None:
    rig = Listed()
    assert rig.snapshot.revision == 0
    assert rig.show()
    assert (rig.snapshot.revision, dict(rig.snapshot.entries)) == (1, {})
    assert not rig.show()


def test_reasons_and_attributes_alone_make_no_revision_but_are_shown() -> None:
    rig = Listed(a="hot")
    rig.show("a")
    rig.sick["a"] = "hotter"
    assert not rig.show(Offer(Device("a", {"model": "x"})))
    assert rig.health() == {"a": "hotter"}
    assert rig.snapshot.entries["a"].members[0].device.attributes == {"model": "x"}


def test_since_is_when_the_health_changed_and_not_the_reason() -> None:
    rig = Listed()
    rig.show("a")
    rig.now, rig.sick["a"] = 110.0, "hot"
    rig.show("a")
    rig.now, rig.sick["a"] = 120.0, "hotter"
    rig.show("a")
    assert rig.snapshot.entries["a"].since == 1e9 + 110


def test_a_vanished_token_is_unhealthy_for_the_grace_and_then_leaves() -> None:
    rig = Listed()
    rig.show("a", "b")
    assert rig.inventory.next_change() is None
    assert rig.show("a")
    assert rig.health() == {"a": "", "b": "b is gone"}
    assert rig.inventory.next_change() == GRACE
    rig.now += GRACE / 2
    assert not rig.show("a")
    assert rig.inventory.next_change() == GRACE / 2
    rig.now += GRACE / 2
    assert rig.show("a")
    assert rig.health() == {"a": ""}
    assert rig.inventory.next_change() is None


def test_a_token_that_comes_back_within_the_grace_is_itself_again() -> None:
    rig = Listed()
    rig.show("a")
    rig.show()
    assert rig.show("a")
    assert rig.health() == {"a": ""}
    assert rig.inventory.next_change() is None


def test_a_token_that_a_container_got_stays_unhealthy_when_its_device_goes() -> None:
    rig = Listed()
    rig.show("a", "b")
    rig.inventory.allocated(["a"])
    assert "a" in rig.inventory.allocations and "b" not in rig.inventory.allocations
    rig.show()
    rig.now += 1000 * GRACE
    rig.show()
    assert rig.health() == {"a": "a is gone"}
    assert rig.inventory.next_change() is None
    assert rig.show("a")
    assert rig.health() == {"a": ""}


def test_a_vanished_token_that_is_released_is_removed_after_its_grace() -> None:
    rig = Listed()
    rig.show("a", "b")
    assert rig.hear(card="a b")
    assert rig.inventory.allocations.leases.holder("a") == POD and "b" in rig.inventory.allocations
    rig.show()
    rig.now += 1000 * GRACE
    assert not rig.show()
    assert rig.inventory.next_change() is None
    rig.hear(card="b")
    assert rig.inventory.next_change() is None
    assert rig.hear(card="b")
    assert rig.inventory.next_change() == 0.0
    assert rig.show()
    assert rig.health() == {"b": "b is gone"}


def test_a_token_that_is_released_first_and_vanishes_then_has_the_usual_grace() -> None:
    rig = Listed()
    rig.show("a")
    rig.hear(card="a")
    rig.hear()
    rig.hear()
    assert "a" not in rig.inventory.allocations
    rig.show()
    assert rig.inventory.next_change() == GRACE


def test_who_asks_the_kubelet_is_woken_by_an_allocation_and_by_a_vanished_device_only() -> None:
    rig, woken = Listed(), list[None]()
    rig.allocations.watch(lambda: woken.append(None))
    rig.show("a")
    rig.show("a", "b")
    assert len(woken) == 0
    rig.inventory.allocated(["a"])
    assert len(woken) == 1
    rig.show("b")
    assert len(woken) == 2
    before = rig.inventory.allocations.due(rig.now)
    rig.hear(card="a", after=0)
    assert before is not None and rig.inventory.allocations.due(rig.now) != before
    rig.show("b")
    assert len(woken) == 2


def test_an_unhealthy_device_that_vanishes_is_reported_only_when_it_leaves() -> None:
    rig = Listed(a="hot")
    rig.show("a")
    assert not rig.show()
    assert rig.health() == {"a": "a is gone"}
    rig.now += GRACE
    assert rig.show()


def test_subscribers_are_notified_of_each_revision_once_until_they_leave() -> None:
    rig, heard = Listed(), list[int]()
    leave = rig.inventory.subscribe(lambda: heard.append(rig.snapshot.revision))
    rig.show("a")
    rig.show("a")
    rig.show("a", "b")
    leave()
    leave()
    rig.show()
    assert heard == [1, 2]


def test_a_subscriber_may_leave_while_it_is_notified() -> None:
    rig, heard = Listed(), list[str]()

    def once() -> None:
        heard.append("first")
        leave()

    leave = rig.inventory.subscribe(once)
    rig.inventory.subscribe(lambda: heard.append("second"))
    rig.show("a")
    rig.show("b")
    assert sorted(heard) == ["first", "second", "second"]


def test_clear_empties_the_list_at_once_and_notifies_once() -> None:
    rig = Listed()
    rig.show("a")
    rig.inventory.allocated(["a"])
    rig.inventory.clear()
    assert (rig.snapshot.revision, dict(rig.snapshot.entries)) == (2, {})
    rig.inventory.clear()
    assert rig.snapshot.revision == 2


def test_the_cause_of_a_revision_stays_with_it() -> None:
    rig = Listed()
    rig.show("a", caused_at=5.0)
    rig.show("a", caused_at=6.0)
    assert rig.snapshot.caused_at == 5.0
    rig.show("a", "b")
    assert rig.snapshot.caused_at is None


def test_healthy_counts_what_a_pod_could_get() -> None:
    rig = Listed(b="hot")
    rig.show(Offer(Device("a"), 3), "b")
    assert (len(rig.snapshot.entries), rig.snapshot.healthy) == (4, 3)


@pytest.mark.parametrize("odd", [None, 0, "", []])
def test_a_verdict_of_a_backend_that_is_no_truth_value_counts_as_one(odd: Any) -> None:
    rig = Listed()
    offers = [Offer(Device("a", health=Health(odd, "no carrier"))), Offer(Device("b"))]
    rig.inventory.update(units(Of.EACH, offers), lambda device: device.health, Reason)
    assert (rig.snapshot.healthy, dict(rig.snapshot.tally.unhealthy)) == (1, {"no carrier": 1})


def test_a_snapshot_that_was_read_never_changes() -> None:
    rig = Listed()
    rig.show("a")
    before = rig.snapshot
    rig.show("a", "b")
    rig.inventory.clear()
    assert list(before.entries) == ["a"]


@st.composite
def offers(draw: st.DrawFn) -> list[tuple[Offer, bool]]:
    made = []
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        device = Device(name, numa_nodes=draw(st.sampled_from([(), (0,), (1,)])))
        made.append((Offer(device, draw(st.integers(1, 2))), draw(st.booleans())))
    return made


@promise
@given(st.lists(st.tuples(offers(), st.sampled_from([0.0, 1.0, 5.0]), st.booleans()), max_size=12))
def test_a_revision_comes_exactly_when_the_kubelet_would_see_a_difference(
    history: Sequence[tuple[list[tuple[Offer, bool]], float, bool]],
) -> None:
    rig = Listed()
    rig.show()
    for step, wait, allocate in history:
        rig.now += wait
        before = rig.snapshot
        rig.sick = {offer.device.id: "hot" for offer, well in step if not well}
        told = rig.show(*(offer for offer, _ in step))
        seen = [
            sorted(device_list(s.entries.values()).devices, key=lambda d: d.ID)
            for s in (before, rig.snapshot)
        ]
        assert told == (seen[0] != seen[1])
        assert rig.snapshot.revision == before.revision + told
        if allocate:
            rig.inventory.allocated(rig.snapshot.entries)


@promise
@given(st.text("ab", min_size=1, max_size=MAX_DEVICE_ID), st.integers(1, 12))
def test_tokens_fit_the_protocol_and_are_unique(device: str, replicas: int) -> None:
    tokens = [token(device, number, replicas) for number in range(replicas)]
    assert len(set(tokens)) == replicas
    assert all(len(name) <= MAX_DEVICE_ID for name in tokens)
    assert tokens == [device] if replicas == 1 else all("::" in name for name in tokens)


def test_long_ids_that_differ_only_at_the_end_keep_different_tokens() -> None:
    devices = [f"{'x' * 60}{number:03}" for number in range(100)]
    tokens = {token(device, number, 1000) for device in devices for number in (0, 9, 10, 999)}
    assert len(tokens) == 400


@pytest.mark.parametrize("length", [1, MAX_DEVICE_ID - 1, MAX_DEVICE_ID])
def test_the_second_id_of_a_token_is_no_longer_than_an_id_may_be_and_is_recognised(length: int) -> None:
    name = "x" * length
    assert len(stand_in(name)) <= MAX_DEVICE_ID
    assert stood_for(stand_in(name), {name}) == name


def test_a_token_names_the_second_id_that_a_pod_has_and_whether_that_is_forgotten() -> None:
    rig = Listed()
    rig.show("a")
    rig.hear(card=stand_in("a"))
    rig.show("a")
    assert rig.health() == {"a": "held by a pod as ~a", "~a": ""}
    rig.hear(kubelet=2, containers={POD: False})
    reason = "held by a pod as ~a, which the kubelet no longer knows"
    taken = rig.inventory.taken("a")
    assert taken is not None and taken.text == reason
    rig.show("a")
    assert rig.health() == {"a": reason, "~a": ""}
    rig.hear(kubelet=2, containers={POD: False}, card=stand_in("a"))
    rig.show("a")
    assert rig.health() == {"a": "held by a pod as ~a", "~a": ""}


def test_replicas_share_the_health_of_their_device() -> None:
    rig = Listed(a="hot")
    rig.show(Offer(Device("a"), 2))
    assert rig.health() == {"a::0": "hot", "a::1": "hot"}


def test_an_unchanged_entry_is_the_same_object() -> None:
    rig, device = Listed(), Device("a")
    rig.show(Offer(device))
    entry = rig.snapshot.entries["a"]
    rig.show(Offer(device), "b")
    assert rig.snapshot.entries["a"] is entry
    rig.show(Offer(replace(device, numa_nodes=(1,))))
    assert rig.snapshot.entries["a"] is not entry
