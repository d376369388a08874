"""Devices that exclude each other are published with counters that let a scheduler give exactly one of them.

The allocator of the property is written from the API: a set of devices fits if no counter is exceeded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slice_rules import amount, pool_problems

from devhost.backend.model import HEALTHY, Device
from devhost.dra.slices import DesiredSlice, LeftOut, Offered, Pool

promise = settings(deadline=None, derandomize=True)

PF, VF0, VF1 = (f"0000:3b:00.{number}" for number in range(3))
WHOLE = frozenset({f"pci:{PF}"})


def pool() -> Pool:
    return Pool("devhost.example.com", "node-1", "example.com/nic", "nic")


def offered(*devices: Device) -> list[Offered]:
    return [Offered(one, HEALTHY, counters=True) for one in devices]


def part(name: str, **more: Any) -> Device:
    return Device(name, claims=frozenset({f"pci:{name}"}), part_of=WHOLE, **more)


def card(**more: Any) -> list[Device]:
    """A physical function and its two virtual functions."""
    return [Device(PF, claims=WHOLE, **more), part(VF0), part(VF1)]


def specs(subject: Pool, slices: Sequence[DesiredSlice]) -> dict[str, dict[str, Any]]:
    return {subject.object_name(one.index): subject.spec(one, 1, len(slices)) for one in slices}


def published(
    devices: Sequence[Device], **terms: Any
) -> tuple[dict[str, Any], dict[str, Any], list[LeftOut]]:
    """The devices by id, the amounts of all counters by set and name, and what is left out."""
    subject = pool()
    slices, left_out = subject.slices(offered(*devices), **terms)
    assert pool_problems(specs(subject, slices)) == []
    found = {key: one for some in slices for key, one in zip(some.ids, some.devices, strict=True)}
    sets = {one["name"]: _amounts(one) for some in slices for one in some.counters}
    return found, sets, left_out


def _amounts(one: Mapping[str, Any]) -> dict[str, int]:
    return {name: amount(counter["value"]) for name, counter in one["counters"].items()}


def consumed(device: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    """What a device takes of each counter."""
    return Counter(
        {
            (one["counterSet"], name): taken
            for one in device.get("consumesCounters", ())
            for name, taken in _amounts(one).items()
        }
    )


def fits(devices: Collection[Mapping[str, Any]], sets: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a scheduler can give all of these devices."""
    total: Counter[tuple[str, str]] = sum(map(consumed, devices), Counter())
    return all(taken <= sets[one][name] for (one, name), taken in total.items())


def exclude(one: Device, other: Device) -> bool:
    """Whether devhost gives only one of two devices: by the rule of docs/claims.md."""
    common = (one.claims & other.claims) | (one.claims & other.part_of) | (one.part_of & other.claims)
    return any(not text.startswith("iommu:") for text in common)


THINGS = ("pci:0000:01:00.0", "pci:0000:01:00.1", "node:/dev/a", "mig:x", "iommu:7")
things = st.frozensets(st.sampled_from(THINGS), max_size=3)
trees = st.lists(st.tuples(things, things), max_size=6).map(
    lambda found: [Device(f"d{n}", claims=own, part_of=of) for n, (own, of) in enumerate(found)]
)


@pytest.mark.conformance(124)
@promise
@given(trees)
def test_counters_allow_exactly_the_sets_that_devhost_gives(devices: list[Device]) -> None:
    found, sets, left_out = published(devices)
    assert left_out == [] and len(found) == len(devices)
    for count in range(len(devices) + 1):
        for some in combinations(devices, count):
            allowed = not any(exclude(*pair) for pair in combinations(some, 2))
            assert fits([found[one.id] for one in some], sets) == allowed


@promise
@given(trees)
def test_without_counters_no_two_devices_that_exclude_each_other_are_published(devices: list[Device]) -> None:
    found, sets, left_out = published(devices, dropped=["sharedCounters"])
    kept = [one for one in devices if one.id in found]
    assert sets == {} and not any(exclude(*pair) for pair in combinations(kept, 2))
    assert not any("consumesCounters" in one for one in found.values())
    for one in left_out:
        before = kept[: sum(other.id < one.device_id for other in kept)]
        assert any(exclude(devices[int(one.device_id[1:])], other) for other in before)


def test_without_counters_the_parts_are_published_that_are_offered_instead_of_their_whole() -> None:
    found, _, left_out = published(card(withheld="it has parts", divided=True), dropped=["sharedCounters"])
    assert [*found] == [VF0, VF1] and [one.device_id for one in left_out] == [PF]


def test_a_whole_takes_as_much_as_all_of_its_parts() -> None:
    found, sets, _ = published(card())
    ((name, counters),) = sets.items()
    assert name == "0000-3b-00-0" and list(counters.values()) == [2]
    assert [[*consumed(found[one]).values()] for one in (PF, VF0, VF1)] == [[2], [1], [1]]


def test_devices_without_a_whole_need_no_counters() -> None:
    found, sets, _ = published(card()[1:])
    assert sets == {} and not any("consumesCounters" in one for one in found.values())


def test_a_backend_can_state_what_parts_take_of_a_device() -> None:
    whole = Device(PF, claims=WHOLE, counters={"memory-slices": 8, "media": 1})
    half = part(VF0, consumes={"memory-slices": 4, "media": 1, "unknown": 3})
    found, sets, _ = published([whole, half, part(VF1)])
    (counters,) = sets.values()
    stated = {"memory-slices": 8, "media": 1}
    assert {name: counters[name] for name in stated} == stated
    taken = {one: {name: found_ for (_, name), found_ in consumed(found[one]).items()} for one in found}
    assert {name: taken[PF][name] for name in stated} == stated
    assert {**stated, "memory-slices": 4}.items() <= taken[VF0].items() and "unknown" not in taken[VF0]
    assert len(taken[VF1]) == 1


def test_a_device_that_takes_more_than_there_is_is_left_out_with_the_reason() -> None:
    """No scheduler would ever give it."""
    whole = Device(PF, claims=WHOLE, counters={"memory-slices": 8})
    found, _, left_out = published([whole, part(VF0, consumes={"memory-slices": 9}), part(VF1)])
    assert found.keys() == {PF, VF1}
    assert left_out == [LeftOut(VF0, "", "it takes 9 of memory-slices, and its whole has 8")]


def test_a_device_takes_nothing_stated_of_what_it_is_no_part_of() -> None:
    whole = Device(PF, claims=WHOLE, counters={"memory-slices": 8})
    below = Device("queue", part_of=frozenset({f"pci:{VF0}"}), consumes={"memory-slices": 4})
    found, sets, _ = published([whole, part(VF0), below])
    assert len(sets) == 1, "each excludes the function or its whole"
    assert "memory-slices" not in {name for _, name in consumed(found["queue"])}


@pytest.mark.parametrize(("stated", "counters"), [(31, 32), (32, 1)])
def test_what_a_backend_states_is_omitted_if_a_set_would_be_too_large(stated: int, counters: int) -> None:
    whole = Device(PF, claims=WHOLE, counters={f"s{n}": 1 for n in range(stated)})
    _, sets, left_out = published([whole, part(VF0, consumes={"s0": 1})])
    assert ([len(one) for one in sets.values()], left_out) == ([counters], [])


def test_counters_of_several_cards_are_in_slices_of_eight_behind_those_of_devices() -> None:
    subject = pool()
    cards = [
        Device(f"c{n:02}.{kind}", claims=own, part_of=of)
        for n in range(17)
        for kind, own, of in (
            ("a", frozenset({f"device:c{n}"}), frozenset[str]()),
            ("b", frozenset[str](), frozenset({f"device:c{n}"})),
        )
    ]
    slices, _ = subject.slices(offered(*cards))
    assert [(len(one.devices), len(one.counters)) for one in slices] == [(34, 0), (0, 8), (0, 8), (0, 1)]
    assert [one.index for one in slices] == [0, 9999, 9998, 9997]
    assert pool_problems(specs(subject, slices)) == []
    assert subject.slices(offered(*cards))[0] == slices


def test_eight_gpus_of_seven_instances_are_within_the_limits_of_the_api_server() -> None:
    gpus = [Device(f"gpu{n}", claims=frozenset({f"device:gpu{n}", f"node:/dev/nvidia{n}"})) for n in range(8)]
    instances = [
        Device(f"{gpu.id}.{m}", claims=frozenset({f"device:{gpu.id}.{m}"}), part_of=gpu.claims)
        for gpu in gpus
        for m in range(7)
    ]
    found, sets, left_out = published([*gpus, *instances])
    assert (len(found), len(sets), left_out) == (64, 8, [])
    assert all(len(one) == 1 for one in sets.values()), (
        "what a GPU has in common with its instances counts once"
    )


def test_devices_that_need_more_counters_than_a_set_can_have_are_not_offered_together() -> None:
    whole = Device("a", claims=frozenset(f"device:{n}" for n in range(33)))
    parts = [Device(f"p{n:02}", part_of=frozenset({f"device:{n}"})) for n in range(33)]
    found, sets, left_out = published([whole, *parts])
    assert [*found] == ["a"] and sets == {}
    assert left_out[0] == LeftOut(
        "p00", "", "a excludes it, and more than 32 counters would be needed to keep them apart"
    )


def test_a_device_that_is_left_out_counts_for_none() -> None:
    found, sets, _ = published(card(), rejected=[(PF, "")])
    assert [*found] == [VF0, VF1] and sets == {}


def test_a_part_that_comes_changes_no_other_part() -> None:
    subject = pool()
    before, _ = subject.slices(offered(*card()[:2]))
    after, _ = subject.slices(offered(*card()))
    devices = [dict(zip(one[0].ids, one[0].devices, strict=True)) for one in (before, after)]
    assert devices[0][VF0] is devices[1][VF0] and devices[0][PF] != devices[1][PF]


def test_without_the_key_slices_have_no_counters() -> None:
    plain = [Offered(one, HEALTHY) for one in card()]
    slices, _ = pool().slices(plain)
    assert "Counters" not in str(specs(pool(), slices))
