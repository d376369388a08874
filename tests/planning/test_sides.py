"""A device is offered on one side at a time, and changes sides only through a time in which it is on neither.

The property test has models of the Node's status, of ResourceSlices and of ResourceClaims; the plan and
:class:`devhost.planning.sides.Sides` are real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.model import ClaimHolder, Device
from devhost.backend.where import Block, Term, Text
from devhost.planning.claims import Held, Key
from devhost.planning.plan import Found, Plan, RefusalKind
from devhost.planning.planner import make_plan, plan_devices
from devhost.planning.settings import ResourceSettings, Serve, Settings
from devhost.planning.sides import Listed, Sides
from devhost.planning.timing import DRA

KEY = ("toy", "d0")
NAME = "example.com/toy"
OTHER = "example.com/other"


class NothingHeld:
    """No container holds anything."""

    def observe(self, found: Found, settings: Settings) -> None:
        """Has nothing to take."""

    def held(self) -> Sequence[Held]:
        """Nothing."""
        return ()

    def learn(self, plan: Plan) -> bool:
        """Learns nothing."""
        return False


class Node:
    """One node whose clock, devices and configuration a test sets."""

    def __init__(self, *devices: Device) -> None:
        self.now = 100.0
        self.found = {"toy": {device.id: device for device in devices or (Device("d0"),)}}
        self.sides = Sides(lambda: self.now)
        self.plan = Plan()

    def entry(self, serve: Serve, name: str = NAME, index: int = 0) -> ResourceSettings:
        return ResourceSettings(index, name, "toy", serve=serve)

    def make(self, *entries: ResourceSettings) -> Plan:
        self.now += 1
        self.plan = plan_devices(self.found, Settings(entries), NothingHeld(), self.sides)
        return self.plan

    def serve(self, serve: Serve, name: str = NAME) -> Plan:
        return self.make(self.entry(serve, name))

    def offered(self) -> dict[Key, Serve]:
        return {
            (resource.entry.backend, offer.device.id): resource.entry.serve
            for resource in self.plan.resources.values()
            for offer in resource.offers
        }

    def see_node(self, allocatable: Mapping[str, int], listed: Mapping[str, Listed]) -> bool:
        self.now += 1
        return self.sides.node_seen(self.now, allocatable, listed)

    def on_dra(self, name: str = NAME) -> None:
        """Brings the device to DRA, as after a start with an empty node."""
        self.serve(Serve.DRA, name)
        self.see_node({}, {})
        self.serve(Serve.DRA, name)
        self.sides.publishing({KEY: name})


def listed(healthy: int | None) -> dict[str, Listed]:
    return {NAME: Listed("toy", healthy)}


def refusal(plan: Plan) -> tuple[RefusalKind, str]:
    (one,) = plan.refusals
    return one.kind, one.reason


def test_a_device_joins_dra_only_when_the_node_no_longer_offers_it() -> None:
    node = Node()
    node.serve(Serve.PLUGIN)
    node.serve(Serve.DRA)
    assert node.offered() == {}
    assert refusal(node.plan)[0] is RefusalKind.MOVING
    assert node.sides.needs_node()
    assert not node.see_node({NAME: 1}, listed(0))
    assert not node.see_node({NAME: 0}, listed(None)), "the newest list is not sent yet"
    assert node.see_node({NAME: 0}, listed(0))
    node.serve(Serve.DRA)
    node.see_node({}, {})
    node.serve(Serve.DRA)
    assert node.offered() == {KEY: Serve.DRA}
    assert not node.sides.needs_node()


def test_a_node_that_was_read_before_the_device_left_proves_nothing() -> None:
    node = Node()
    node.serve(Serve.PLUGIN)
    early = node.now
    node.serve(Serve.DRA)
    assert not node.sides.node_seen(early, {}, {})
    assert [one.key for one in node.sides.moving()] == [KEY]


def test_after_a_start_a_device_waits_until_the_node_agrees_with_the_lists() -> None:
    node = Node()
    node.serve(Serve.DRA)
    assert refusal(node.plan)[0] is RefusalKind.MOVING
    assert not node.see_node({NAME: 2}, {})
    assert not node.see_node({OTHER: 1}, {OTHER: Listed("toy", 0)}), (
        "another list of this backend may have it"
    )
    assert node.see_node({OTHER: 1}, {OTHER: Listed("toy", 1)})
    node.serve(Serve.DRA)
    assert node.offered() == {KEY: Serve.DRA}


def test_a_device_of_the_record_is_offered_at_once_after_a_start() -> None:
    node = Node()
    node.sides.start({KEY: NAME})
    node.serve(Serve.DRA)
    assert node.offered() == {KEY: Serve.DRA}
    assert not node.sides.needs_node()


def test_a_device_joins_the_plugin_only_when_no_slice_and_no_claim_has_it() -> None:
    node = Node()
    node.on_dra()
    node.serve(Serve.PLUGIN)
    assert node.offered() == {}
    assert node.sides.claims_due() is None, "its slice is not confirmed"
    node.sides.unpublished([KEY])
    assert node.sides.claims_due() == DRA.schedulers
    node.now += DRA.schedulers - 1
    assert not node.sides.claims_seen(node.now, {})
    node.now += 1
    assert node.sides.claims_due() == 0
    claim = ClaimHolder("default", "mine", "uid-1")
    assert node.sides.claims_seen(node.now, {KEY: [claim]}), "the reason is another one"
    assert not node.sides.claims_seen(node.now, {KEY: [claim]})
    assert [one.held_by for one in node.sides.moving()] == [(claim,)]
    assert node.sides.claims_due() == DRA.recheck
    node.serve(Serve.PLUGIN)
    assert [one.held_by for one in node.plan.refusals] == [(claim,)]
    assert node.offered() == {}
    assert "ResourceClaim that has it allocated" in refusal(node.plan)[1]
    node.now += DRA.recheck
    assert node.sides.claims_seen(node.now, {})
    node.serve(Serve.PLUGIN)
    assert node.offered() == {KEY: Serve.PLUGIN}
    assert node.sides.record() == {}


def test_a_member_is_recorded_with_its_unit_until_no_claim_can_have_it() -> None:
    sides = Node().sides
    sides.start({KEY: NAME}, units={KEY: "board"})
    sides.unpublished([KEY])
    assert dict(sides.units()) == {KEY: "board"}
    assert sides.claims_seen(100.0 + DRA.schedulers, {})
    assert dict(sides.units()) == {}
    sides.publishing({KEY: NAME}, units={KEY: "board"})
    assert dict(sides.units()) == {KEY: "board"}
    sides.publishing({KEY: NAME})
    assert dict(sides.units()) == {}, "it is published by itself now"


def test_a_unit_whose_members_are_published_again_is_not_moving() -> None:
    """Without a record, only the slices of the earlier run have told of it, and nothing offers its id."""
    node = Node()
    node.sides.start({("toy", "board"): NAME})
    node.on_dra()
    assert [one.key for one in node.sides.moving()] == [("toy", "board")]
    node.sides.publishing({KEY: NAME}, units={KEY: "board"})
    assert node.sides.moving() == []


def test_a_restart_in_the_middle_of_the_way_to_the_plugin_keeps_the_device_off_it() -> None:
    node = Node()
    node.on_dra()
    node.serve(Serve.PLUGIN)
    node.sides.unpublished([KEY])
    restarted = Node()
    restarted.sides.start(node.sides.record())
    restarted.serve(Serve.PLUGIN)
    assert restarted.offered() == {}


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_device_returns_to_dra_at_once_when_the_edit_is_taken_back(confirmed: bool) -> None:
    node = Node()
    node.on_dra()
    node.serve(Serve.PLUGIN)
    if confirmed:
        node.sides.unpublished([KEY])
    node.serve(Serve.DRA)
    assert node.offered() == {KEY: Serve.DRA}
    assert node.sides.moving() == []
    node.sides.publishing({KEY: NAME})
    assert node.sides.claims_due() is None


def test_a_device_returns_to_the_plugin_at_once_when_the_edit_is_taken_back() -> None:
    node = Node()
    node.serve(Serve.PLUGIN)
    node.serve(Serve.DRA)
    node.serve(Serve.PLUGIN)
    assert node.offered() == {KEY: Serve.PLUGIN}
    assert not node.sides.needs_node()


def test_a_renamed_dra_resource_gets_the_device_only_after_the_claims_are_checked() -> None:
    node = Node()
    node.on_dra()
    node.serve(Serve.DRA, OTHER)
    assert node.offered() == {}
    node.sides.unpublished([KEY])
    node.now += DRA.schedulers
    assert node.sides.claims_seen(node.now, {})
    node.serve(Serve.DRA, OTHER)
    node.see_node({}, {})
    node.serve(Serve.DRA, OTHER)
    assert node.offered() == {KEY: Serve.DRA}


def test_a_removed_entry_leaves_its_device_moving_until_it_is_free() -> None:
    node = Node()
    node.on_dra()
    node.make()
    assert [one.key for one in node.sides.moving()] == [KEY]
    node.sides.unpublished([KEY])
    node.now += DRA.schedulers
    node.sides.claims_seen(node.now, {})
    assert node.sides.moving() == []


def test_a_device_that_vanishes_and_returns_is_still_moving() -> None:
    node = Node()
    node.on_dra()
    devices = node.found
    node.found = {"toy": {}}
    node.serve(Serve.PLUGIN)
    node.found = devices
    node.serve(Serve.PLUGIN)
    assert node.offered() == {}


def test_hardware_that_a_moving_device_is_part_of_is_not_offered_either() -> None:
    whole = Device("pf", claims=frozenset({"pci:1"}))
    part = Device("vf", part_of=frozenset({"pci:1"}))
    node = Node(whole)
    node.sides.start({("toy", "pf"): NAME})
    node.serve(Serve.DRA)
    node.sides.publishing({("toy", "pf"): NAME})
    node.found = {"toy": {"pf": whole, "vf": part}, "net": {}}
    plan = node.make(
        replace(node.entry(Serve.PLUGIN, OTHER), where=(), index=0),
    )
    assert node.offered() == {}
    assert {one.kind for one in plan.refusals} <= {RefusalKind.MOVING, RefusalKind.CLAIMED}
    node.sides.unpublished([("toy", "pf")])
    node.now += DRA.schedulers
    node.sides.claims_seen(node.now, {})
    node.make(node.entry(Serve.PLUGIN, OTHER))
    assert node.offered() == {("toy", "pf"): Serve.PLUGIN}


def test_two_entries_never_share_a_device_across_sides() -> None:
    node = Node()
    entries = tuple(
        replace(node.entry(serve, name, index), exclusive=False)
        for index, (serve, name) in enumerate([(Serve.PLUGIN, NAME), (Serve.DRA, OTHER)])
    )
    plan = make_plan({"toy": (Device("d0"),)}, Settings(entries))
    assert [resource.name for resource in plan.resources.values() if resource.offers] == [NAME]
    assert refusal(plan) == (
        RefusalKind.TAKEN,
        f"entry 1 ({NAME}) already took it, and serves it with serve: plugin",
    )


@pytest.mark.parametrize(("held_by", "wanted"), [(Serve.PLUGIN, Serve.DRA), (Serve.DRA, Serve.PLUGIN)])
def test_a_held_device_stays_on_its_side(held_by: Serve, wanted: Serve) -> None:
    node = Node()
    holder = ClaimHolder("ns", "claim", "uid") if held_by is Serve.DRA else None
    held = Held(NAME, (), "toy", Device("d0"), True, holder, (held_by, ""))
    settings = Settings((node.entry(wanted),))
    plan = make_plan({"toy": (Device("d0"),)}, settings, [held])
    assert refusal(plan)[0] is RefusalKind.HELD
    assert ("claim" in refusal(plan)[1]) == (held_by is Serve.DRA)
    back = make_plan({"toy": (Device("d0"),)}, Settings((node.entry(held_by),)), [held])
    assert not back.refusals


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("serve"), st.integers(0, 2), st.sampled_from([*Serve, None])),
        st.tuples(st.just("device"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("node status"), st.just(0), st.none()),
        st.tuples(st.just("node read"), st.integers(0, 3), st.none()),
        st.tuples(st.just("slices"), st.integers(0, 3), st.none()),
        st.tuples(st.just("schedule"), st.integers(0, 2), st.none()),
        st.tuples(st.just("release"), st.integers(0, 2), st.none()),
        st.tuples(st.just("claims"), st.just(0), st.none()),
        st.tuples(st.just("restart"), st.just(0), st.none()),
        st.tuples(st.just("time"), st.sampled_from([1, 7, 31, 61]), st.none()),
    ),
    max_size=60,
)


class World:
    """Two entries for three devices, with what a scheduler sees of each side.

    ``listed`` is what the device plugin lists, ``allocatable`` what the Node has of it, which is older;
    ``slices`` are what the API server has. A scheduler may allocate a device of ``slices`` to a claim at any
    time, up to :data:`SETTLE` seconds after the device has left them.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.wanted: dict[str, Serve | None] = dict.fromkeys(("d0", "d1", "d2"))
        self.present = {"d0", "d1", "d2"}
        self.listed: set[str] = set()
        self.allocatable: set[str] = set()
        self.slices: set[str] = set()
        self.seen: dict[str, float] = {}
        self.claims: set[str] = set()
        self.written: dict[Key, str] = {}
        self.read: list[tuple[float, int]] = []
        self.sides = Sides(lambda: self.now)
        self.plan = Plan()
        self.replan()

    def replan(self) -> None:
        devices = {name: Device(name, {"side": str(self.wanted[name])}) for name in sorted(self.present)}
        plugin = ResourceSettings(0, NAME, "plugin")
        dra = ResourceSettings(1, OTHER, "dra", serve=Serve.DRA)
        both = {
            "toy": {name: device for name, device in devices.items() if self.wanted[name] is not None},
        }
        entries = [
            replace(entry, backend="toy", where=_side(serve))
            for entry, serve in ((plugin, Serve.PLUGIN), (dra, Serve.DRA))
        ]
        self.plan = plan_devices(both, Settings(tuple(entries)), NothingHeld(), self.sides)
        self.listed = self._offered(NAME)
        self.check()

    def _offered(self, name: str) -> set[str]:
        resource = self.plan.resources.get(name)
        return {offer.device.id for offer in resource.offers} if resource else set()

    def check(self) -> None:
        """No scheduler may see one device on both sides."""
        recently = {name for name, at in self.seen.items() if self.now - at < DRA.schedulers}
        assert not (self.listed | self.allocatable) & (self.slices | recently | self.claims)

    def write_slices(self) -> None:
        """One complete write: names what is to come, then replaces the slices, then confirms."""
        wanted = self._offered(OTHER)
        self.sides.publishing({("toy", name): OTHER for name in wanted})
        self.written = dict(self.sides.record())
        for name in self.slices - wanted:
            self.seen[name] = self.now
        self.slices = wanted
        gone = [key for key in self.written if key[1] not in wanted]
        self.sides.unpublished(gone)
        self.check()

    def event(self, kind: str, number: int, value: Serve | bool | None) -> None:
        name = f"d{number}" if number < 3 else ""
        match kind:
            case "serve":
                self.wanted[name] = value if isinstance(value, Serve) else None
                self.replan()
            case "device":
                (self.present.add if value else self.present.discard)(name)
                self.replan()
            case "node status":
                self.allocatable = set(self.listed)
            case "node read":
                count = {NAME: len(self.allocatable)}
                self.now += 0.1
                lists = {NAME: Listed("toy", len(self.listed) if self.allocatable == self.listed else None)}
                if self.sides.node_seen(self.now, count, lists):
                    self.replan()
            case "slices":
                self.write_slices()
            case "schedule":
                recently = {one for one, at in self.seen.items() if self.now - at < DRA.schedulers}
                if name in self.slices | recently:
                    self.claims.add(name)
            case "release":
                self.claims.discard(name)
            case "claims":
                if self.sides.claims_seen(self.now, {("toy", one): () for one in self.claims}):
                    self.replan()
            case "restart":
                record = dict(self.sides.record())
                self.sides = Sides(lambda: self.now)
                self.sides.start(record)
                self.allocatable = set()  # the kubelet sets it to zero when the streams break
                self.replan()
            case "time":
                self.now += number
        self.check()


def _side(serve: Serve) -> tuple[Block, ...]:
    return (Block((Term("side", (Text(str(serve)),)),)),)


@pytest.mark.conformance(112)
@settings(deadline=None, derandomize=True, max_examples=3 * settings().max_examples)
@given(EVENTS)
def test_no_scheduler_ever_sees_a_device_on_both_sides(
    events: list[tuple[str, int, Serve | bool | None]],
) -> None:
    world = World()
    for event in events:
        world.now += 0.1
        world.event(*event)
    for _ in range(4):  # with quiet and time, every device is offered where it is wanted
        world.claims.clear()
        world.write_slices()
        world.now += DRA.schedulers + 1
        for kind in ("node status", "node read", "claims"):
            world.event(kind, 0, None)
        world.replan()
    wanted = {name: side for name, side in world.wanted.items() if side is not None and name in world.present}
    offered = dict.fromkeys(world.listed, Serve.PLUGIN)
    world.write_slices()
    assert offered | dict.fromkeys(world.slices, Serve.DRA) == wanted


def test_a_device_changes_its_driver_through_a_time_in_which_no_driver_offers_it() -> None:
    node = Node()
    one, two = (replace(node.entry(Serve.DRA), driver=driver) for driver in ("d.one", "d.two"))
    node.make(one)
    node.see_node({}, {})
    node.make(one)
    node.sides.publishing({KEY: NAME}, "d.one")
    node.make(one)
    assert node.sides.moving() == []
    node.make(two)
    assert node.offered() == {}
    assert [moving.side for moving in node.sides.moving()] == [(Serve.DRA, "d.one")]
    node.sides.unpublished([KEY], "d.two")
    assert node.sides.claims_due("d.one") is None, "another driver has confirmed nothing of it"
    node.sides.unpublished([KEY], "d.one")
    assert (node.sides.claims_due("d.two"), node.sides.claims_due("d.one")) == (None, DRA.schedulers)
    assert (node.sides.record("d.two"), node.sides.record("d.one")) == ({}, {KEY: NAME})
    node.now += DRA.schedulers
    assert not node.sides.claims_seen(node.now, {}, "d.two"), "claims of one driver free nothing of another"
    assert node.sides.claims_seen(node.now, {}, "d.one")
    node.make(two)
    assert node.offered() == {KEY: Serve.DRA}


def test_two_drivers_never_share_a_device() -> None:
    node = Node()
    one, two = (
        ResourceSettings(n, name, "toy", serve=Serve.DRA, exclusive=False, driver=f"d.{n}")
        for n, name in enumerate((NAME, OTHER))
    )
    node.make(one, two)
    node.see_node({}, {})
    plan = node.make(one, two)
    assert node.offered() == {KEY: Serve.DRA}
    assert refusal(plan) == (
        RefusalKind.TAKEN,
        f"entry 1 ({NAME}) already took it, and publishes it as d.0",
    )


def test_a_device_of_one_driver_does_not_wait_for_the_failure_of_another() -> None:
    node = Node()
    entry = replace(node.entry(Serve.DRA), driver="d.one")
    node.make(entry)
    node.see_node({}, {})
    node.make(entry)
    node.sides.publishing({KEY: NAME}, "d.one")
    node.make()
    assert node.sides.api_failed("no access", "d.two")
    assert "no access" not in node.sides.waits_for(KEY)
    assert node.sides.api_failed("refused", "d.one")
    assert node.sides.waits_for(KEY).endswith(", but refused")
