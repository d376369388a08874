"""A planner makes the same plan after a change as a new one does, with little work."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import combinations, pairwise, product

import pytest
from work import Work

from devhost.backend.model import HEALTHY, ClaimHolder, Device, Holder, unhealthy
from devhost.backend.where import Block, Flag, Range, Term, Text, Where, selected, show
from devhost.planning.claims import Held, Key
from devhost.planning.plan import Found, Plan
from devhost.planning.planner import Planner
from devhost.planning.settings import (
    DraTerms,
    Of,
    ReplicaOverride,
    ResourceSettings,
    Serve,
    Settings,
    Share,
    WhenEmpty,
)

CLAIMS = ("pci:0", "pci:1", "iommu:3")
HOLDERS = (None, Holder("default", "p", "main"), ClaimHolder("default", "claim", "1"))
NAMES = ("example.com/a", "example.com/b", "example.com/{model}", "example.com/{model}-{index}")
WHERES: tuple[Where, ...] = (
    (),
    (Block((Term("index", (Range(0, 1),)), Term("model", (Text("X", fold=True), Text("-")), also="names"))),),
    (Block((Term("model", (Text("y"),), also="names"),)), Block((Term("model", (Text("x"),)),))),
    (Block((Term("names", (Text("y"),)),), without="model"),),
    (Block((Term("model", (Text("x"), Text("1g*"))),)),),
    (Block((), (Block((Term("index", (Range(0, 0),)),)),)),),
)
SOME = (ReplicaOverride((Block((Term("index", (Range(1, 1),)),)),), 5),)


class Waiting:
    """Devices of DRA wait until the Node agrees."""

    def __init__(self) -> None:
        self.free: set[str] = set()

    def begin(self) -> None: ...

    def held(self, found: Found) -> Sequence[Held]:
        return ()

    def refusal(self, key: Key, resource: str, entry: ResourceSettings) -> str:
        return "" if key[1] in self.free else f"it waits ({len(self.free)})"

    def learn(self, plan: Plan) -> bool:
        return False

    def commit(self, plan: Plan) -> None: ...


class Node:
    """What a planner is told, one random change after the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.found: dict[str, dict[str, Device]] = {"one": {}, "two": {}}
        self.settings = Settings()
        self.holds: list[Held] = []
        self.sides = Waiting()
        self._edit()

    def half_way(self, planner: Planner) -> None:
        """Makes a part of the plan, or one for another moment."""
        steps = planner.steps(self.found, self.settings, self.holds[1:], self.sides)
        for _ in range(self._random.choice((0, 3, 100))):
            next(steps, None)

    def change(self) -> None:
        """Something of what may change at once."""
        chance = self._random.random
        backend = self._random.choice(("one", "two"))
        known = dict(self.found.get(backend, {}))
        for _ in range(self._random.randrange(3)):
            device = self._device()
            known[device.id] = device
        if known and chance() < 0.5:
            device = known[self._random.choice([*known])]
            field = self._random.choice([one.name for one in fields(Device) if one.name != "id"])
            known[device.id] = replace(device, **{field: getattr(self._device(), field)})
        if known and chance() < 0.3:
            del known[self._random.choice([*known])]
        self.found = {**self.found, backend: known}
        if chance() < 0.05:
            del self.found[backend]
        if chance() < 0.3:
            self.holds = [self._hold() for _ in range(self._random.randrange(3))]
        if chance() < 0.2:
            self.sides.free.add(f"d{self._random.randrange(5)}")
        if chance() < 0.05:
            self._edit()

    def _edit(self) -> None:
        self.settings = Settings(tuple(map(self._entry, range(self._random.randrange(2, 7)))))

    def _device(self) -> Device:
        pick = self._random.choice
        attributes = {
            "model": pick(("x", "x", "1g.5gb", "1g+5gb", "-", None)),
            "index": pick((0, 1, 1, None)),
            "names": pick((("x", "y"), ("-",), ("Y",), None)),
        }
        return Device(
            f"d{self._random.randrange(5)}",
            {name: value for name, value in attributes.items() if value is not None},
            claims=frozenset(self._random.sample(CLAIMS, pick((0, 0, 1, 1, 2)))),
            part_of=frozenset(self._random.sample(CLAIMS, pick((0, 0, 1)))),
            numa_nodes=pick(((), (0,))),
            health=pick((HEALTHY, unhealthy("broken"))),
            withheld="the node uses it" if (used := pick((False, False, False, True))) else None,
            divided=used and pick((True, False)),
            inherited=pick((frozenset(), frozenset({"index"}), frozenset({"names"}))),
        )

    def _entry(self, index: int) -> ResourceSettings:
        pick = self._random.choice
        entry = ResourceSettings(
            index,
            pick(NAMES),
            pick(("one", "one", "two")),
            pick(WHERES),
            Share(pick((1, 3)), of=pick((Of.EACH, Of.EACH, Of.ALL)), overrides=pick(((), SOME))),
            exclusive=pick((True, False)),
            when_empty=pick([*WhenEmpty]),
            serve=pick((Serve.PLUGIN, Serve.PLUGIN, Serve.PLUGIN, Serve.DRA)),
        )
        if pick((True, True, False)):
            return entry
        terms = DraTerms(counters=True)
        return replace(entry, name=pick(NAMES[:2]), share=Share(), exclusive=True, serve=Serve.DRA, dra=terms)

    def _hold(self) -> Held:
        pick = self._random.choice
        return Held(
            pick(("example.com/a", "example.com/b", "example.com/x")),
            ("t",),
            pick(("one", "two")),
            self._device(),
            pick((True, False)),
            pick(HOLDERS),
            (pick([*Serve]), ""),
            pick(("", "it is moving")),
        )


@pytest.mark.parametrize("seed", range(10))
def test_every_change_leads_to_the_plan_that_a_new_planner_makes(seed: int) -> None:
    for number in range(60):
        node, planner = Node(1000 * seed + number), Planner()
        for _ in range(12):
            node.change()
            node.half_way(planner)
            made = planner.make(node.found, node.settings, node.holds, node.sides)
            new = Planner().make(node.found, node.settings, node.holds, node.sides)
            assert made == new, number
            assert [*made.resources] == [*new.resources], number


def cards(entries: int, each: int) -> dict[str, Device]:
    return {
        f"c{n:05}": Device(
            f"c{n:05}",
            {"maker": "all", "model": f"m{n % entries}", "number": n % entries},
            claims=frozenset({f"pci:{n}"}),
        )
        for n in range(entries * each)
    }


def of_model(n: int) -> Where:
    return (Block((Term("model", (Text(f"m{n}"),)),)),)


def of_number(n: int) -> Where:
    return (Block((Term("maker", (Text("all"),)), Term("number", (Range(n, n),)))),)


def of_models(count: int, where: Callable[[int], Where] = of_model) -> Settings:
    wheres = [where(n) for n in range(count)]
    return Settings(
        tuple(ResourceSettings(n, f"example.com/r{n}", "one", where) for n, where in enumerate(wheres))
    )


def test_a_device_that_changes_costs_one_look_at_each_device_and_each_entry() -> None:
    """No entry compares attributes again, because only the health of the device has changed."""
    per_entry = []
    for entries, each in ((20, 20), (40, 20)):
        found, planner, config = cards(entries, each), Planner(), of_models(entries)
        planner.make({"one": found}, config)
        changed = {**found, "c00007": replace(found["c00007"], health=unhealthy("broken"))}
        work = Work()
        with work.counted():
            plan = planner.make({"one": changed}, config)
        (offer,) = (one for one in plan.resources["example.com/r7"].offers if one.device.id == "c00007")
        assert not offer.device.health.healthy
        per_entry.append((work.lines - 3 * len(found)) / entries)
    assert max(per_entry) <= 8


@pytest.mark.parametrize("where", [of_model, of_number])
def test_a_first_plan_asks_only_entries_that_may_select_a_device(where: Callable[[int], Where]) -> None:
    lines = []
    for entries in (20, 40):
        work = Work()
        with work.counted():
            plan = Planner().make({"one": cards(entries, 20)}, of_models(entries, where))
        assert all(len(one.offers) == 20 for one in plan.resources.values())
        lines.append(work.lines)
    assert lines[1] <= 2.2 * lines[0]


class Word(str):
    """What a backend may give instead of a text."""

    __slots__ = ()


VALUES = (
    *("a", "A", "ab", Word("a"), "", "1", "true", 1, 2, -1, 0, True, False),
    *((), ("a",), ("A", "b"), ("1",)),
)
PATTERNS = (
    *(Text("a"), Text("A"), Text("a", fold=True), Text("1"), Text("a*"), Text("")),
    *(Range(1, 1), Range(0, 0), Range(-1, 1), Range(2, None), Flag(True), Flag(False)),
)


def test_an_entry_gets_what_its_where_selects_for_any_conditions() -> None:
    found = {}
    for n, (value, other) in enumerate(product((*VALUES, None), (*VALUES[:4], 1, True, ("a",), None))):
        attributes = {"a": value, "b": other}
        found[f"d{n:03}"] = Device(
            f"d{n:03}",
            {name: value for name, value in attributes.items() if value is not None},
            inherited=frozenset({"b"}) if n % 3 == 0 else frozenset(),
        )
    terms = [Term("a", patterns) for patterns in (*((one,) for one in PATTERNS), *combinations(PATTERNS, 2))]
    others = Term("b", (Text("a"),)), Term("a", (Text("a"),), also="b"), Term("b", (Range(1, 1),))
    blocks = [Block(some) for one in terms for some in ((one,), *((one, other) for other in others))]
    blocks += [Block((others[0],), (Block((one,)),)) for one in terms[:12]]
    blocks += [Block((one,), without="b") for one in others]
    wheres = [(one,) for one in blocks] + [*pairwise(blocks[::7])]
    for where in wheres:
        plan = Planner().make({"one": found}, Settings((ResourceSettings(0, "example.com/a", "one", where),)))
        offers = plan.resources["example.com/a"].offers if plan.resources else ()
        expected = [
            name for name, one in found.items() if selected(where, one.attributes, one.inherited) is not None
        ]
        assert [offer.device.id for offer in offers] == expected, show(where)


def test_what_does_not_change_stays_the_same_object() -> None:
    found, planner, config = cards(3, 2), Planner(), of_models(3)
    before = planner.make({"one": found}, config)
    assert planner.make({"one": dict(found)}, config) is before
    after = planner.make({"one": {**found, "c00000": replace(found["c00000"], numa_nodes=(1,))}}, config)
    same = {name for name, one in after.resources.items() if one is before.resources[name]}
    assert same == {"example.com/r1", "example.com/r2"}
    held = [Held("example.com/r1", ("t",), "one", found["c00001"], True, None)]
    again = planner.make(
        {"one": {**found, "c00000": after.resources["example.com/r0"].offers[0].device}}, config, held
    )
    assert again.resources["example.com/r1"] is before.resources["example.com/r1"]


def test_an_attribute_that_becomes_an_inherited_one_no_longer_makes_a_name() -> None:
    device, planner = Device("d", {"model": "x"}), Planner()
    config = Settings((ResourceSettings(0, "example.com/{model}", "one", ()),))
    assert [*planner.make({"one": {"d": device}}, config).resources] == ["example.com/x"]
    inherited = replace(device, inherited=frozenset({"model"}))
    assert not planner.make({"one": {"d": inherited}}, config).resources


def test_a_claim_that_a_shared_device_has_lost_is_free_for_others() -> None:
    one, other = Device("d0", claims=frozenset({"pci:0"})), Device("d1", claims=frozenset({"pci:0"}))
    config = Settings(
        tuple(ResourceSettings(n, f"example.com/{n}", "one", exclusive=False) for n in range(2))
    )
    planner = Planner()
    assert [one.device for one in planner.make({"one": {"d0": one, "d1": other}}, config).refusals] == [
        "d1"
    ] * 2
    plan = planner.make({"one": {"d0": replace(one, claims=frozenset()), "d1": other}}, config)
    assert not plan.refusals


def test_values_with_one_text_in_the_name_map_are_one_resource() -> None:
    devices = [Device(f"d{n}", {"model": model}) for n, model in enumerate(("a;b", "b;a", "c", "b+"))]
    entry = ResourceSettings(
        0, "example.com/{model}", "toy", name_map={"a;b": "ab", "b;a": "ab", "b+": "plus"}
    )
    plan = Planner().make({"toy": {one.id: one for one in devices}}, Settings((entry,)))
    assert {name: [offer.device.id for offer in one.offers] for name, one in plan.resources.items()} == {
        "example.com/ab": ["d0", "d1"],
        "example.com/c": ["d2"],
        "example.com/plus": ["d3"],
    }
    assert not plan.refusals
