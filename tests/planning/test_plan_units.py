"""`share: {of: <attribute>}`: devices with one value of an attribute are planned as one unit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.model import Device, Holder
from devhost.backend.where import Block, Term, Text, Where
from devhost.planning.affinity.topology import Level, between, places
from devhost.planning.claims import Held
from devhost.planning.plan import Plan, RefusalKind, as_one, explain, units
from devhost.planning.planner import Planner, make_plan
from devhost.planning.settings import ReplicaOverride, ResourceSettings, Settings, Share

promise = settings(deadline=None, derandomize=True)

TPU = "example.com/tpu"
BY_SLOT = Share(of="slot")
POD = Holder("default", "pod", "main")


def function(name: str, slot: str | None, **more: object) -> Device:
    """A function with its address as its claim, in a slot."""
    attributes = {} if slot is None else {"slot": slot}
    return Device(name, attributes, frozenset({f"pci:{name}"}), **more)  # type: ignore[arg-type]


def only(name: str) -> Where:
    return (Block((Term("slot", (Text(name),)),)),)


def entry(index: int = 0, name: str = TPU, share: Share = BY_SLOT, **more: object) -> ResourceSettings:
    return ResourceSettings(index, name, "sriov", share=share, **more)  # type: ignore[arg-type]


def plan_of(devices: Sequence[Device], *entries: ResourceSettings, held: Sequence[Held] = ()) -> Plan:
    return make_plan({"sriov": devices}, Settings(entries), held)


def offered(plan: Plan, name: str = TPU) -> dict[str, tuple[str, ...]]:
    """The members of each unit, by its id."""
    resource = plan.resources.get(name)
    made = units(resource.entry.share.of, resource.offers) if resource else []
    return {unit.id: tuple(device.id for device in unit.devices) for unit in made}


def held(name: str, resource: str, *tokens: str) -> Held:
    return Held(resource, tokens, "sriov", function(name, None), True, POD)


CHIPS = [function(name, slot) for name, slot in (("a0", "5"), ("a1", "5"), ("b0", "6"), ("b1", "6"))]


def test_all_devices_with_one_value_are_one_unit_with_the_value_as_its_id() -> None:
    made = plan_of(CHIPS, entry())
    assert offered(made) == {"5": ("a0", "a1"), "6": ("b0", "b1")}
    assert made.resources[TPU].size == 2


def test_a_unit_has_the_numa_nodes_of_all_members_if_the_kubelet_receives_any() -> None:
    chips = [replace(one, numa_nodes=(node, 2)) for one, node in zip(CHIPS, (1, 0, 1, 1), strict=True)]
    offers = plan_of(chips, entry()).resources[TPU].offers
    assert [unit.numa_nodes for unit in units("slot", offers)] == [(0, 1, 2), (1, 2)]
    assert {unit.numa_nodes for unit in units("slot", offers, topology=False)} == {()}


def test_only_what_where_selects_is_in_a_unit() -> None:
    others = [function("c", None), function("d", "7")]
    assert offered(plan_of([*CHIPS, *others], entry(where=only("[56]")))) == offered(plan_of(CHIPS, entry()))


@pytest.mark.parametrize(
    ("slot", "reason"),
    [
        (None, "it has no slot, by which share.of makes units"),
        ("x" * 64, "its slot makes no id: it has 64 characters, more than 63"),
        ("a b", "its slot makes no id: it has characters other than letters, digits and"),
        ("../5", "its slot makes no id: it has characters other than letters, digits and"),
        ("~5", "its slot makes no id: it has characters other than letters, digits and"),
        ("5::0", "its slot makes no id: it has characters other than letters, digits and"),
    ],
)
def test_a_device_whose_value_makes_no_id_is_refused_by_itself(slot: str | None, reason: str) -> None:
    made = plan_of([*CHIPS, function("odd", slot)], entry())
    assert offered(made) == offered(plan_of(CHIPS, entry()))
    (refusal,) = made.refusals
    assert (refusal.device, refusal.kind) == ("odd", RefusalKind.NAME)
    assert refusal.reason.startswith(reason)


@pytest.mark.parametrize(
    ("members", "flaw"), [(None, ""), (1, "2 members, expected 1"), (2, ""), (3, "2 of 3 members")]
)
def test_a_unit_with_another_number_of_members_than_expected_has_a_flaw(
    members: int | None, flaw: str
) -> None:
    made = plan_of(CHIPS[:2], entry(share=Share(of="slot", members=members)))
    (unit,) = units("slot", made.resources[TPU].offers)
    assert unit.flaw == flaw and unit.whole


def test_a_unit_is_refused_if_another_entry_has_a_member() -> None:
    first = ResourceSettings(0, "example.com/one", "sriov", (Block((Term("kind", (Text("x"),)),)),))
    chips = [replace(CHIPS[0], attributes={"slot": "5", "kind": "x"}), *CHIPS[1:]]
    made = plan_of(chips, first, entry(1))
    assert offered(made) == {"6": ("b0", "b1")}
    found = {refusal.device: refusal for refusal in made.refusals if refusal.entry == 1}
    assert found["a0"].kind is RefusalKind.TAKEN
    assert found["a0"].reason == "entry 1 (example.com/one) already took it"
    assert found["a1"].kind is RefusalKind.UNIT
    assert found["a1"].reason == f"a0 of the same unit 5 is refused: {found['a0'].reason}"
    verdict = explain(made, Settings((first, entry(1))), "sriov", chips[1])[1]
    assert not verdict.taken and verdict.reason == found["a1"].reason


def test_a_unit_is_refused_while_a_container_holds_a_member_through_another_resource() -> None:
    made = plan_of(CHIPS, entry(), held=[held("b1", "example.com/old", "b1")])
    assert offered(made) == {"5": ("a0", "a1")}
    found = {refusal.device: refusal for refusal in made.refusals}
    assert found["b1"].kind is RefusalKind.HELD
    assert found["b0"].kind is RefusalKind.UNIT and found["b0"].held_by == (POD,)
    assert "a pod holds it through example.com/old" in found["b0"].reason


def test_a_unit_is_refused_whose_hardware_another_device_has() -> None:
    whole = Device("port", {"kind": "port"}, frozenset({"pci:a1"}))
    first = ResourceSettings(0, "example.com/port", "sriov", (Block((Term("kind", (Text("port"),)),)),))
    made = plan_of([*CHIPS, whole], first, entry(1, where=only("*")))
    assert offered(made) == {"6": ("b0", "b1")}
    assert {refusal.device: refusal.kind for refusal in made.refusals} == {
        "a1": RefusalKind.CLAIMED,
        "a0": RefusalKind.UNIT,
    }


def test_members_that_are_the_same_hardware_do_not_exclude_each_other() -> None:
    both = [Device(name, {"slot": "5"}, frozenset({"pci:5"})) for name in ("a0", "a1")]
    assert offered(plan_of(both, entry())) == {"5": ("a0", "a1")}
    holding = [Held(TPU, ("5",), "sriov", one, True, POD) for one in both]
    assert offered(plan_of(both, entry(), held=holding)) == {"5": ("a0", "a1")}


def test_a_held_unit_stays_with_its_resource() -> None:
    above = ResourceSettings(0, "example.com/one", "sriov")
    holding = [held("a0", TPU, "5"), held("a1", TPU, "5")]
    assert offered(plan_of(CHIPS, above, entry(1), held=holding)) == {"5": ("a0", "a1")}


def test_overrides_count_for_what_all_members_share() -> None:
    by_model = ReplicaOverride((Block((Term("model", (Text("big"),)),)),), 4)
    chips = [replace(one, attributes={**one.attributes, "model": "big"}) for one in CHIPS[:3]] + CHIPS[3:]
    made = plan_of(chips, entry(share=Share(2, (by_model,), "slot")))
    found = {unit.id: (unit.replicas, unit.token(1)) for unit in units("slot", made.resources[TPU].offers)}
    assert found == {"5": (4, "5::1"), "6": (2, "6::1")}


def test_members_that_make_other_names_are_units_of_other_resources() -> None:
    chips = [replace(one, attributes={**one.attributes, "n": one.id[1]}) for one in CHIPS[:2]]
    made = plan_of(chips, entry(name="example.com/tpu-{n}", share=Share(of="slot", members=2)))
    assert {name: offered(made, name) for name in made.resources} == {
        "example.com/tpu-0": {"5": ("a0",)},
        "example.com/tpu-1": {"5": ("a1",)},
    }


def test_a_list_that_is_full_refuses_units_as_a_whole() -> None:
    made = make_plan({"sriov": CHIPS}, Settings((entry(),)), list_limit=21)
    assert offered(made) == {"5": ("a0", "a1")}
    assert {refusal.kind for refusal in made.refusals} == {RefusalKind.FULL}


def test_explain_names_the_unit_and_its_flaw() -> None:
    config = Settings((entry(share=Share(of="slot", members=3)),))
    (verdict,) = explain(make_plan({"sriov": CHIPS}, config), config, "sriov", CHIPS[0])
    assert verdict.reason == "it takes the device, as a member of 5 (2 of 3 members)"


SLOTS = st.lists(st.sampled_from([None, "5", "6", "7", "a b"]), min_size=6, max_size=6)


@promise
@given(st.lists(SLOTS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_plan_that_follows_changes_equals_one_from_nothing(
    steps: list[list[str | None]], rng: random.Random
) -> None:
    config = Settings(
        (entry(0, "example.com/one", Share(), where=only("7")), entry(1), entry(2, "example.com/z"))
    )
    planner = Planner()
    for slots in steps:
        devices = [function(f"d{number}", slot) for number, slot in enumerate(slots)]
        found = {"sriov": {one.id: one for one in rng.sample(devices, len(devices))}}
        plan = planner.make(found, config)
        assert plan == plan_of(devices, *config.resources)
        for resource in plan.resources.values():
            ids = [offer.device.id for offer in resource.offers]
            assert ids == sorted(ids)
        for name, members in offered(plan).items():
            assert members == tuple(one.id for one in devices if one.attributes.get("slot") == name)


def test_a_unit_is_where_all_of_its_members_are() -> None:
    def at(*path: str) -> Device:
        return Device(path[-1], {"x": 1, "of": path[-1]}, pcie_path=path, numa_nodes=(0,))

    below_one = as_one("5", [at("0000:00:01.0", "0000:01:00.0"), at("0000:00:01.0", "0000:01:00.1")])
    assert below_one.attributes == {"x": 1}
    assert places(below_one, {})[-1] == (Level.PORT, "0000:00:01.0")
    on_one_bus = as_one("5", [at("0000:00:05.0"), at("0000:00:05.1")])
    assert places(on_one_bus, {})[-1] == (Level.BRIDGE, "0|0000:00")
    apart = as_one("5", [at("0000:00:01.0", "0000:01:00.0"), at("0000:80:01.0", "0000:81:00.0")])
    assert places(apart, {}) == ((Level.NODE, "0"),)
    none = as_one("5", [Device("a"), at("0000:00:05.0")])
    assert [level for level, _ in places(none, {})] == [Level.NODE]


def test_units_are_linked_as_their_closest_members() -> None:
    closeness = {("a1", "b1"): 2, ("a0", "b0"): 1, ("a0", "a1"): 4, ("b1", "c"): 3}
    links = {frozenset(pair): close for pair, close in closeness.items()}
    unit_of = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}
    assert between(links, unit_of) == {frozenset("ab"): 2, frozenset("bc"): 3}
