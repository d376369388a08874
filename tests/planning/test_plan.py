"""The plan: every device to the first entry that takes it, no claim twice, and a reason for the rest."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.allocation.inventory import Inventory
from devhost.backend.model import Device, unhealthy
from devhost.backend.where import Block, Range, Term, Text, Where, holds
from devhost.kubelet.server import device_list
from devhost.planning import naming, plan
from devhost.planning.claims import Reason
from devhost.planning.plan import Plan, RefusalKind, explain, listed_bytes
from devhost.planning.planner import make_plan
from devhost.planning.settings import (
    MAX_REPLICAS,
    Of,
    ReplicaOverride,
    ResourceSettings,
    Settings,
    Share,
    WhenEmpty,
)

promise = settings(deadline=None, derandomize=True)
Found = dict[str, list[Device]]

CLAIMS = ("pci:0", "pci:1", "usb:7")
MODELS = ("x", "1g.5gb", "1g+5gb", "a b", "a/b", "-", "y" * 80)
WHERES: tuple[Where, ...] = (
    (),
    (Block((Term("model", (Text("x"), Text("1g*"))),)),),
    (Block((Term("index", (Range(1, 2),)),)),),
    (Block((), (Block((Term("index", (Range(0, 0),)),)),)),),
)


@st.composite
def device_lists(draw: st.DrawFn, *, claims: bool = True) -> list[Device]:
    made = []
    for number in draw(st.lists(st.integers(0, 12), unique=True, max_size=6)):
        attributes: dict[str, Any] = {}
        if draw(st.booleans()):
            attributes["model"] = draw(st.sampled_from(MODELS))
        if draw(st.booleans()):
            attributes["index"] = draw(st.integers(0, 3))
        whole, part = (
            (
                draw(st.frozensets(st.sampled_from(CLAIMS), max_size=2)),
                draw(st.frozensets(st.sampled_from(CLAIMS), max_size=2)),
            )
            if claims
            else (frozenset[str](), frozenset[str]())
        )
        made.append(Device(f"d{number}", attributes, whole, part))
    return made


@st.composite
def configurations(draw: st.DrawFn, *, templates: bool = True) -> Settings:
    entries = []
    for index in range(draw(st.integers(1, 5))):
        names = [f"example.com/r{index}"]
        if templates:
            names += ["example.com/{model}", "example.com/m-{model}-{index}", "example.com/x{index}"]
        entries.append(
            ResourceSettings(
                index,
                draw(st.sampled_from(names)),
                draw(st.sampled_from(("one", "two"))),
                draw(st.sampled_from(WHERES)),
                Share(draw(st.integers(1, 3)), of=draw(st.sampled_from(Of))),
                exclusive=draw(st.booleans()),
                when_empty=draw(st.sampled_from(WhenEmpty)),
            )
        )
    return Settings(tuple(entries))


def found_by(claims: bool = True) -> st.SearchStrategy[Found]:
    return st.fixed_dictionaries({"one": device_lists(claims=claims), "two": device_lists(claims=claims)})


def entries_offering(made: Plan, backend: str, device: str) -> list[ResourceSettings]:
    holders = {resource.entry.index: resource.entry for resource in made.holders(backend, device)}
    return [holders[index] for index in sorted(holders)]


@promise
@given(found_by(), configurations(), st.randoms(use_true_random=False))
def test_the_order_of_discovery_never_changes_the_plan(
    found: Found, config: Settings, rng: random.Random
) -> None:
    shuffled = {name: rng.sample(devices, len(devices)) for name, devices in reversed(found.items())}
    assert make_plan(shuffled, config) == make_plan(found, config)


@promise
@given(found_by(), configurations())
def test_nothing_physical_is_ever_served_by_two_devices(found: Found, config: Settings) -> None:
    made = make_plan(found, config)
    wholes, parts = defaultdict(set), defaultdict(set)
    for resource in made.resources.values():
        for offer in resource.offers:
            key = (resource.entry.backend, offer.device.id)
            for claim in offer.device.claims:
                wholes[claim].add(key)
            for claim in offer.device.part_of:
                parts[claim].add(key)
    for claim, holders in wholes.items():
        assert len(holders | parts[claim]) == 1, claim


@promise
@given(found_by(claims=False), configurations(templates=False))
def test_a_device_goes_to_the_first_entry_and_on_only_to_entries_that_all_share(
    found: Found, config: Settings
) -> None:
    made = make_plan(found, config)
    for backend, devices in found.items():
        for device in devices:
            expected: list[ResourceSettings] = []
            for entry in config.resources:
                wants = entry.backend == backend and holds(entry.where, device.attributes)
                if wants and not (expected and any(e.exclusive for e in (*expected, entry))):
                    expected.append(entry)
            assert entries_offering(made, backend, device.id) == expected


@promise
@given(found_by(), configurations())
def test_a_selected_device_is_either_offered_or_refused_with_a_reason(found: Found, config: Settings) -> None:
    made = make_plan(found, config)
    refused = {(r.backend, r.device, r.entry): r.reason for r in made.refusals}
    assert len(refused) == len(made.refusals)
    for entry in config.resources:
        for device in found[entry.backend]:
            offered = entry in entries_offering(made, entry.backend, device.id)
            reason = refused.pop((entry.backend, device.id, entry.index), None)
            assert (offered + (reason is not None)) == holds(entry.where, device.attributes)
            assert reason is None or reason
    assert not refused


@promise
@given(found_by(), configurations())
def test_explain_agrees_with_the_plan(found: Found, config: Settings) -> None:
    made = make_plan(found, config)
    for backend, devices in found.items():
        for device in devices:
            verdicts = explain(made, config, backend, device)
            assert [verdict.entry for verdict in verdicts] == list(config.resources)
            taken = [verdict.entry for verdict in verdicts if verdict.taken]
            assert taken == entries_offering(made, backend, device.id)
            assert all(verdict.reason for verdict in verdicts)
            for verdict in verdicts:
                if verdict.taken:
                    assert any(o.device is device for o in made.resources[verdict.resource].offers)


@promise
@given(found_by(), configurations())
def test_a_name_from_a_template_is_valid_and_has_one_value(found: Found, config: Settings) -> None:
    made = make_plan(found, config)
    for name, resource in made.resources.items():
        assert naming.problem(name) == ""
        fields = naming.fields(resource.entry.name)
        assert len({tuple(o.device.attributes[f] for f in fields) for o in resource.offers}) <= 1


@promise
@given(found_by(), configurations(), st.integers(0, 400))
def test_no_list_is_longer_than_the_limit(found: Found, config: Settings, limit: int) -> None:
    made = make_plan(found, config, list_limit=limit)
    for resource in made.resources.values():
        assert encoded(resource) <= limit


@promise
@given(st.lists(st.integers(0, 1023), max_size=8), st.integers(1, 40), st.integers(1, 63))
def test_a_list_one_byte_longer_than_the_limit_is_refused(
    nodes: list[int], replicas: int, length: int
) -> None:
    device = Device("d" * length, numa_nodes=tuple(nodes))
    entry = ResourceSettings(0, "example.com/a", "one", share=Share(replicas))
    size = encoded(plan_of(entry, one=[device]).resources["example.com/a"])
    made = make_plan({"one": [device]}, Settings((entry,)), list_limit=size - 1)
    assert refusal(made)[1] is RefusalKind.FULL


@promise
@given(st.lists(st.integers(0, 1023), max_size=8), st.integers(1, 40), st.integers(1, 3))
def test_devices_allocated_together_take_the_space_of_their_tokens_only(
    nodes: list[int], replicas: int, count: int
) -> None:
    devices = [Device(f"d{number}", numa_nodes=tuple(nodes)) for number in range(count)]
    entry = ResourceSettings(0, "example.com/a", "one", share=Share(replicas, of=Of.ALL))
    size = encoded(plan_of(entry, one=devices).resources["example.com/a"])
    made = make_plan({"one": devices}, Settings((entry,)), list_limit=size - 1)
    assert len(made.refusals) == count


def test_devices_without_topology_take_less_space_in_the_list() -> None:
    devices = [Device(f"d{number}", numa_nodes=(0, 1, 2)) for number in range(3)]
    near = ResourceSettings(0, "example.com/a", "one")
    bare = replace(near, topology=False)
    sizes = [encoded(plan_of(entry, one=devices).resources["example.com/a"]) for entry in (near, bare)]
    assert sizes[1] < sizes[0]
    limit = listed_bytes(2, 0) * 3
    assert not make_plan({"one": devices}, Settings((bare,)), list_limit=limit).refusals
    assert make_plan({"one": devices}, Settings((near,)), list_limit=limit).refusals


@promise
@given(found_by(), configurations())
def test_every_offer_is_behind_tokens_and_no_token_is_a_device_of_another_kind(
    found: Found, config: Settings
) -> None:
    for resource in make_plan(found, config).resources.values():
        units = plan.units(resource.entry.share.of, resource.offers)
        assert [device for unit in units for device in unit.devices] == [o.device for o in resource.offers]
        if resource.entry.share.of is Of.ALL:
            assert [unit.replicas for unit in units] == [resource.entry.share.replicas][: len(units)]
            assert all(unit.numbered and not unit.numa_nodes for unit in units)
        else:
            assert [(u.id, u.replicas) for u in units] == [(o.device.id, o.replicas) for o in resource.offers]


@promise
@given(st.data())
def test_units_that_are_made_again_equal_those_made_from_nothing(data: st.DataObject) -> None:
    devices = [Device(name, numa_nodes=(1,)) for name in "abc"]
    known = plan.Units()
    for _ in range(data.draw(st.integers(1, 6))):
        some = data.draw(st.lists(st.sampled_from(devices), unique=True))
        offers = tuple(plan.Offer(replace(one), data.draw(st.integers(1, 2))) for one in some)
        for _ in range(2):
            of, topology = data.draw(st.sampled_from(Of)), data.draw(st.booleans())
            assert known.make(of, offers, topology=topology) == plan.units(of, offers, topology=topology)


def test_a_unit_of_an_unchanged_offer_is_the_same_object() -> None:
    units = plan.Units()
    offers = [plan.Offer(Device(name)) for name in "abc"]
    before = units.make(Of.EACH, tuple(offers))
    offers[1] = plan.Offer(Device("b", {"index": 1}))
    now = units.make(Of.EACH, tuple(offers))
    assert [one is other for one, other in zip(before, now, strict=True)] == [True, False, True]
    assert now[1].devices[0].attributes == {"index": 1}


def encoded(resource: plan.PlannedResource) -> int:
    """Bytes of the list when every device is unhealthy, which is the longer word."""
    inventory = Inventory(lambda: 0.0, lambda: 0.0)
    tokens = plan.units(resource.entry.share.of, resource.offers, topology=resource.entry.topology)
    inventory.update(tokens, lambda device: unhealthy("x"), Reason)
    return device_list(inventory.snapshot.entries.values()).ByteSize()


def plan_of(*entries: ResourceSettings, **found: list[Device]) -> Plan:
    return make_plan(found, Settings(entries))


def refusal(made: Plan) -> tuple[str, RefusalKind, str]:
    (only,) = made.refusals
    return only.device, only.kind, only.reason


def test_a_physical_function_and_its_virtual_function_never_serve_two_pods() -> None:
    whole = Device("pf", claims=frozenset({"pci:3b:00.0"}))
    part = Device("vf", claims=frozenset({"pci:3b:00.1"}), part_of=frozenset({"pci:3b:00.0"}))
    entry = ResourceSettings(0, "example.com/net", "nic")
    made = plan_of(entry, nic=[part, whole])
    assert refusal(made) == (
        "vf",
        RefusalKind.CLAIMED,
        "pci:3b:00.0 is already used as a whole by pf of backend nic",
    )


def test_one_card_known_to_two_backends_goes_to_the_first_entry() -> None:
    card = frozenset({"pci:3b:00.0"})
    entries = (ResourceSettings(0, "example.com/b", "b"), ResourceSettings(1, "example.com/a", "a"))
    made = plan_of(*entries, a=[Device("card", claims=card)], b=[Device("same", claims=card)])
    assert refusal(made) == ("card", RefusalKind.CLAIMED, "pci:3b:00.0 is already used by same of backend b")


def test_of_several_conflicts_the_same_one_is_always_named() -> None:
    claims = frozenset(f"node:/dev/n{number}" for number in range(20))
    made = plan_of(
        ResourceSettings(0, "example.com/a", "b"), b=[Device("a", claims=claims), Device("b", claims=claims)]
    )
    assert refusal(made)[2] == "node:/dev/n0 is already used by a of backend b"


def test_a_missing_attribute_of_a_template_is_refused_by_name() -> None:
    made = plan_of(ResourceSettings(0, "example.com/mig-{profile}", "gpu"), gpu=[Device("g0")])
    reason = "it has no profile, which the name example.com/mig-{profile} needs"
    assert refusal(made) == ("g0", RefusalKind.NAME, reason)
    assert not made.resources


def test_two_values_that_become_one_name_are_refused_and_both_are_named() -> None:
    devices = [Device("a", {"profile": "1g+5gb"}), Device("b", {"profile": "1g.5gb"})]
    made = plan_of(ResourceSettings(0, "example.com/mig-{profile}", "gpu"), gpu=devices)
    reason = "the name example.com/mig-1g.5gb already represents 1g+5gb, this device has 1g.5gb"
    assert refusal(made) == ("b", RefusalKind.NAME, reason)


def test_a_device_that_is_refused_does_not_keep_a_name_from_others() -> None:
    devices = [Device("a", {"profile": "1g+5gb"}), Device("b", {"profile": "1g.5gb"})]
    first = ResourceSettings(0, "example.com/first", "gpu", (Block((Term("profile", (Text("1g+5gb"),)),)),))
    made = plan_of(first, ResourceSettings(1, "example.com/mig-{profile}", "gpu"), gpu=devices)
    assert [offer.device.id for offer in made.resources["example.com/mig-1g.5gb"].offers] == ["b"]
    assert refusal(made)[:2] == ("a", RefusalKind.TAKEN)


def test_values_that_leave_nothing_legal_are_refused() -> None:
    made = plan_of(ResourceSettings(0, "example.com/{model}", "b"), b=[Device("a", {"model": "+/+"})])
    reason = "its attributes leave nothing legal for the name example.com/{model}"
    assert refusal(made) == ("a", RefusalKind.NAME, reason)


def test_the_first_override_that_takes_a_device_decides_its_replicas() -> None:
    big = (Block((Term("model", (Text("big"),)),)),)
    share = Share(2, (ReplicaOverride(big, 5), ReplicaOverride((), 3)))
    entry = ResourceSettings(0, "example.com/a", "b", share=share)
    made = plan_of(entry, b=[Device("x", {"model": "big"}), Device("y")])
    assert [offer.replicas for offer in made.resources["example.com/a"].offers] == [5, 3]


def test_a_device_past_the_limit_is_refused_and_smaller_ones_still_fit() -> None:
    many = (Block((Term("index", (Range(1, 1),)),)),)
    entry = ResourceSettings(0, "example.com/a", "b", share=Share(1, (ReplicaOverride(many, 50),)))
    devices = [Device("a"), Device("b", {"index": 1}), Device("c")]
    made = make_plan({"b": devices}, Settings((entry,)), list_limit=100)
    assert [offer.device.id for offer in made.resources["example.com/a"].offers] == ["a", "c"]
    reason = "the device list of example.com/a would pass the kubelet's limit of 4 MiB"
    assert refusal(made) == ("b", RefusalKind.FULL, reason)


def test_a_hundred_thousand_replicas_of_one_device_fit_the_kubelets_message() -> None:
    entry = ResourceSettings(0, "example.com/a", "b", share=Share(90_000))
    made = plan_of(entry, b=[Device("d0", numa_nodes=(1,))])
    assert encoded(made.resources["example.com/a"]) < 4 * 1024 * 1024


def test_the_most_tokens_for_devices_together_fit_the_kubelets_message() -> None:
    entry = ResourceSettings(0, "example.com/a", "b", share=Share(MAX_REPLICAS, of=Of.ALL))
    devices = [Device(f"{number:03}" + "d" * 60, numa_nodes=(0, 1)) for number in range(300)]
    made = plan_of(entry, b=devices)
    assert len(made.resources["example.com/a"].offers) == 300
    assert encoded(made.resources["example.com/a"]) < 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (Share(), "it takes the device"),
        (Share(3), "it takes the device, handed out 3 times"),
        (Share(3, of=Of.ALL), "it takes the device, handed out 3 times, all devices together"),
        (Share(of=Of.ALL), "it takes the device, handed out once, all devices together"),
    ],
)
def test_explain_shows_how_a_device_is_allocated(share: Share, said: str) -> None:
    entry = ResourceSettings(0, "example.com/a", "b", share=share)
    made = plan_of(entry, b=[Device("x")])
    (verdict,) = explain(made, Settings((entry,)), "b", Device("x"))
    assert verdict.reason == said


def test_a_template_makes_a_separate_set_for_each_name() -> None:
    entry = ResourceSettings(0, "example.com/{model}", "b", share=Share(2, of=Of.ALL))
    made = plan_of(entry, b=[Device(f"d{n}", {"model": "ab"[n % 2]}) for n in range(4)])
    sets = {name: plan.units(Of.ALL, resource.offers) for name, resource in made.resources.items()}
    assert {name: [[d.id for d in u.devices] for u in found] for name, found in sets.items()} == {
        "example.com/a": [["d0", "d2"]],
        "example.com/b": [["d1", "d3"]],
    }


def test_an_empty_resource_is_planned_only_if_configured() -> None:
    entries = (
        ResourceSettings(0, "example.com/wait", "b"),
        ResourceSettings(1, "example.com/now", "b", when_empty=WhenEmpty.REGISTER),
        ResourceSettings(2, "example.com/{model}", "b", when_empty=WhenEmpty.REGISTER),
    )
    made = plan_of(*entries)
    assert {name: resource.offers for name, resource in made.resources.items()} == {"example.com/now": ()}


def test_no_entries_and_no_devices_make_an_empty_plan() -> None:
    assert make_plan({}, Settings()) == Plan()
