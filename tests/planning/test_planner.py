"""A planner makes the same plan after a change as a new one does, with little work."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from work import Work

from devhost.backend.model import ClaimHolder, Device, Holder, unhealthy
from devhost.backend.where import Block, Range, Term, Text, Where
from devhost.planning.claims import Held
from devhost.planning.planner import Planner, make_plan
from devhost.planning.settings import (
    Of,
    ReplicaOverride,
    ResourceSettings,
    Serve,
    Settings,
    Share,
    WhenEmpty,
)

CLAIMS = ("pci:0", "pci:1", "usb:7", "iommu:3")
HOLDERS = (None, Holder("default", "p", "main"), Holder("default", "q", "main"))
NAMES = ("example.com/a", "example.com/b", "example.com/{model}", "example.com/{model}-{index}")
WHERES: tuple[Where, ...] = (
    (),
    (Block((Term("index", (Range(0, 1),)), Term("model", (Text("X", fold=True), Text("-")), also="names"))),),
    (Block((Term("model", (Text("y"),), also="names"),)), Block((Term("model", (Text("x"),)),))),
    (Block((Term("names", (Text("y"),)),), without="model"),),
    (Block((Term("model", (Text("x"), Text("1g*"))),)),),
    (Block((Term("index", (Range(1, 2),)),)),),
    (Block((), (Block((Term("index", (Range(0, 0),)),)),)),),
)

devices = st.builds(
    Device,
    st.sampled_from([f"d{n}" for n in range(6)]),
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.sampled_from(("x", "1g.5gb", "1g+5gb", "-")),
            "index": st.integers(0, 2),
            "names": st.sampled_from((("x", "y"), ("-",), ("Y",))),
        },
    ),
    claims=st.frozensets(st.sampled_from(CLAIMS), max_size=2),
    part_of=st.frozensets(st.sampled_from(CLAIMS), max_size=2),
    numa_nodes=st.sampled_from(((), (0,))),
    health=st.sampled_from((unhealthy("broken"), Device("d").health)),
    withheld=st.sampled_from((None, None, "the node uses it")),
    inherited=st.sampled_from((frozenset[str](), frozenset({"index"}))),
)

entries = st.builds(
    ResourceSettings,
    st.just(0),
    st.sampled_from(NAMES),
    st.sampled_from(("one", "two")),
    st.sampled_from(WHERES),
    st.builds(
        Share,
        st.integers(1, 3),
        of=st.sampled_from(Of),
        overrides=st.sampled_from(((), (ReplicaOverride((Term("index", (Range(1, 1),)),), 5),))),
    ),
    exclusive=st.booleans(),
    when_empty=st.sampled_from(WhenEmpty),
    serve=st.sampled_from((Serve.PLUGIN, Serve.PLUGIN, Serve.DRA)),
)

holds = st.builds(
    Held,
    st.sampled_from(("example.com/a", "example.com/b", "example.com/x")),
    st.just(("t",)),
    st.sampled_from(("one", "two")),
    devices,
    st.booleans(),
    st.sampled_from((*HOLDERS, ClaimHolder("default", "claim", "1"))),
    st.sampled_from(Serve),
    st.sampled_from(("", "it is moving")),
)


class Node:
    """What a planner is told, one change after the other."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Device]] = {"one": {}, "two": {}}
        self.settings = Settings()
        self.held: list[Held] = []

    def change(self, data: st.DataObject) -> None:
        """Something of what may change at once."""
        kinds = data.draw(st.sets(st.sampled_from(("device", "gone", "held", "edit", "backend")), min_size=1))
        backend = data.draw(st.sampled_from(("one", "two")))
        known = dict(self.found.get(backend, {}))
        if "device" in kinds:
            for device in data.draw(st.lists(devices, min_size=1, max_size=3)):
                known[device.id] = device
        if "gone" in kinds and known:
            del known[data.draw(st.sampled_from(sorted(known)))]
        self.found = {**self.found, backend: known}
        if "backend" in kinds and data.draw(st.booleans()):
            del self.found[backend]
        if "held" in kinds:
            self.held = data.draw(st.lists(holds, max_size=3))
        if "edit" in kinds:
            made = data.draw(st.lists(entries, max_size=5))
            self.settings = Settings(tuple(replace(one, index=n) for n, one in enumerate(made)))


@settings(deadline=None, derandomize=True, max_examples=400)
@given(st.data())
def test_every_change_leads_to_the_plan_that_a_new_planner_makes(data: st.DataObject) -> None:
    node, planner = Node(), Planner()
    for _ in range(data.draw(st.integers(2, 8))):
        node.change(data)
        made = planner.make(node.found, node.settings, node.held)
        new = make_plan(
            {name: known.values() for name, known in node.found.items()}, node.settings, node.held
        )
        assert made == new
        assert [*made.resources] == [*new.resources]


def cards(entries: int, each: int) -> dict[str, Device]:
    return {
        f"c{n:05}": Device(f"c{n:05}", {"model": f"m{n % entries}"}, claims=frozenset({f"pci:{n}"}))
        for n in range(entries * each)
    }


def of_models(count: int) -> Settings:
    wheres = [(Block((Term("model", (Text(f"m{n}"),)),)),) for n in range(count)]
    return Settings(
        tuple(ResourceSettings(n, f"example.com/r{n}", "one", where) for n, where in enumerate(wheres))
    )


def test_a_device_that_changes_costs_one_look_at_each_device_and_each_entry() -> None:
    """Each entry asks once about the changed device, and none about the others."""
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
    assert max(per_entry) <= 80


def test_a_first_plan_asks_only_entries_that_may_select_a_device() -> None:
    lines = []
    for entries in (20, 40):
        work = Work()
        with work.counted():
            plan = Planner().make({"one": cards(entries, 20)}, of_models(entries))
        assert all(len(one.offers) == 20 for one in plan.resources.values())
        lines.append(work.lines)
    assert lines[1] <= 2.2 * lines[0]


def test_what_does_not_change_stays_the_same_object() -> None:
    found, planner, config = cards(3, 2), Planner(), of_models(3)
    before = planner.make({"one": found}, config)
    assert planner.make({"one": dict(found)}, config) is before
    after = planner.make({"one": {**found, "c00000": replace(found["c00000"], numa_nodes=(1,))}}, config)
    same = {name for name, one in after.resources.items() if one is before.resources[name]}
    assert same == {"example.com/r1", "example.com/r2"}
