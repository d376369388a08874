"""A token and a ResourceClaim hold a device in the same way: one ledger for both front ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from work import Work

from devhost.allocation.allocations import Allocations, Reservation
from devhost.allocation.claims import ClaimedDevice, DeviceHeld
from devhost.allocation.given import Node as Given
from devhost.backend.model import ClaimHolder, Device
from devhost.planning.amounts import CapacityUse
from devhost.planning.plan import Plan, RefusalKind
from devhost.planning.planner import plan_devices
from devhost.planning.settings import ResourceSettings, Serve, Settings
from devhost.planning.timing import ALLOCATION as NODE

NAME = "example.com/card"
CARD = Device("card0", claims=frozenset({"pci:0"}))
PART = Device("part0", part_of=frozenset({"pci:0"}))
ONE = ClaimHolder("team", "one", "uid-1")
TWO = ClaimHolder("team", "two", "uid-2")


class Node:
    """The allocations of a node with one card, and the plans that are made."""

    def __init__(self, *devices: Device) -> None:
        self.now = 0.0
        self.plans = 0
        self.settings: dict[tuple[Serve, str], Settings] = {}
        self.found = {"toy": {device.id: device for device in devices or (CARD,)}}
        self.allocations = Allocations(lambda: self.now, self.replan)
        self.plan(Serve.DRA)

    def replan(self) -> None:
        self.plans += 1

    def plan(self, serve: Serve, name: str = NAME) -> Plan:
        entry = ResourceSettings(0, name, "toy", serve=serve)
        settings = self.settings.setdefault((serve, name), Settings((entry,)))
        return plan_devices(self.found, settings, self.allocations)

    def prepare(self, claim: ClaimHolder, *devices: ClaimedDevice) -> None:
        with self.allocations.claims.reserved(claim, devices):
            self.allocations.claims.prepared(claim, devices)

    def allocate(self, device: Device = CARD, resource: str = NAME) -> None:
        held = self.allocations.of(resource)
        with Reservation(held, "toy") as reservation:
            reservation.add({device.id: [device]}, [device.id])
            held.allocated("toy", {device.id: [device]}, [device.id])


def claimed(
    device: Device = CARD, request: str = "card", *, replicas: int = 1, share: str = "", slots: int = 1
) -> ClaimedDevice:
    return ClaimedDevice(
        request, "pool", device.id, share, ("toy", device.id), NAME, replicas=replicas, slots=slots
    )


def test_a_claim_holds_its_device_until_it_is_released() -> None:
    node = Node()
    node.prepare(ONE, claimed())
    assert node.allocations.claims.by_device()["toy", "card0"] == [ONE]
    with pytest.raises(DeviceHeld, match=r"a claim holds it through example\.com/card") as caught:
        node.prepare(TWO, claimed())
    assert caught.value.held_by == (ONE,)
    node.allocations.claims.released(ONE.uid)
    node.prepare(TWO, claimed())
    assert node.allocations.claims.by_device().get(("toy", "card0"), []) == [TWO]


def test_a_claim_that_is_prepared_again_keeps_its_device() -> None:
    node = Node()
    node.prepare(ONE, claimed())
    node.prepare(ONE, claimed())
    node.prepare(ONE, replace(claimed(), resource="example.com/renamed"))
    assert node.allocations.claims.by_device()["toy", "card0"] == [ONE]


@pytest.mark.conformance(83)
def test_a_device_that_a_container_holds_is_refused_to_a_claim() -> None:
    node = Node()
    node.allocate()
    with pytest.raises(DeviceHeld, match=r"holds it through example\.com/card"):
        node.prepare(ONE, claimed())
    assert node.allocations.claims.by_device().get(("toy", "card0"), []) == []


@pytest.mark.conformance(83)
@pytest.mark.parametrize("device", [CARD, PART])
def test_a_device_that_a_claim_holds_is_refused_to_a_container_with_all_its_hardware(device: Device) -> None:
    node = Node(CARD, PART)
    node.prepare(ONE, claimed())
    with pytest.raises(DeviceHeld) as caught:
        node.allocate(device)
    assert caught.value.held_by == (ONE,)
    assert not node.allocations.of(NAME).tokens()


def test_hardware_of_a_claim_is_refused_to_another_claim() -> None:
    node = Node(CARD, PART)
    node.prepare(ONE, claimed(PART))
    with pytest.raises(DeviceHeld, match="pci:0 is in use: a claim holds part0 of backend toy"):
        node.prepare(TWO, claimed())


def test_a_claim_with_a_card_and_a_part_of_it_is_refused_even_if_a_scheduler_gave_both() -> None:
    node = Node(CARD, PART)
    with pytest.raises(DeviceHeld, match="card0 cannot be allocated: the claim has another device that excl"):
        node.prepare(ONE, claimed(), claimed(PART))
    assert node.allocations.claims.by_device() == {}


def test_hardware_that_a_held_device_gains_is_refused_to_a_claim() -> None:
    node = Node(CARD, PART)
    bare = replace(CARD, claims=frozenset())
    node.found = {"toy": {CARD.id: bare, PART.id: PART}}
    node.plan(Serve.PLUGIN)
    node.allocate(bare)
    node.prepare(ONE, claimed(PART))
    node.allocations.claims.released(ONE.uid)
    node.found = {"toy": {CARD.id: CARD, PART.id: PART}}
    node.plan(Serve.PLUGIN)
    with pytest.raises(DeviceHeld, match="card0 of backend toy"):
        node.prepare(ONE, claimed(PART))


@pytest.mark.parametrize("part_of", [frozenset(), frozenset({"node:/dev/control"})], ids=["apart", "parts"])
def test_the_work_for_a_claim_does_not_depend_on_how_many_others_there_are(part_of: frozenset[str]) -> None:
    lines = []
    for count in (100, 400):
        *cards, last = (
            Device(f"card{number}", claims=frozenset({f"pci:{number}"}), part_of=part_of)
            for number in range(count + 1)
        )
        node = Node(*cards, last)
        for number, card in enumerate(cards):
            node.prepare(ClaimHolder("ns", f"claim-{number}", f"uid-{number}"), claimed(card))
        work = Work()
        with work.counted():
            node.prepare(TWO, claimed(last))
            node.allocations.claims.released(TWO.uid)
        lines.append(work.lines)
    assert lines[0] == lines[1]


def test_a_device_is_kept_for_a_claim_while_it_is_being_prepared_and_free_if_that_fails() -> None:
    node = Node()
    with node.allocations.claims.reserved(ONE, [claimed()]), pytest.raises(DeviceHeld):
        node.allocate()
    node.allocate()


def test_a_shared_device_is_prepared_for_as_many_claims_as_it_has_replicas() -> None:
    node = Node()
    node.prepare(ONE, claimed(replicas=2, share="a"))
    node.prepare(TWO, claimed(replicas=2, share="b"))
    three = ClaimHolder("team", "three", "uid-3")
    with pytest.raises(DeviceHeld):
        node.prepare(three, claimed(replicas=2, share="c"))
    node.allocations.claims.released(ONE.uid)
    node.prepare(three, claimed(replicas=2, share="c"))
    assert node.allocations.claims.by_device().get(("toy", "card0"), []) == [three, TWO]


def test_lists_of_pods_are_wanted_while_a_claim_is_prepared() -> None:
    """They show which pods use it, and that a claim has gone without Unprepare."""
    node = Node()
    assert node.allocations.due(5.0) is None
    node.prepare(ONE, claimed())
    assert node.allocations.due(5.0) == 5.0 + NODE.list_held
    node.allocations.claims.released(ONE.uid)
    assert node.allocations.due(5.0) is None


@pytest.mark.conformance(85)
def test_a_claim_that_uses_several_slots_counts_as_often() -> None:
    node = Node()
    node.prepare(ONE, claimed(replicas=4, share="a", slots=3))
    node.prepare(ONE, claimed(replicas=4, share="a", slots=3))
    with pytest.raises(DeviceHeld):
        node.prepare(TWO, claimed(replicas=4, share="b", slots=2))
    node.prepare(TWO, claimed(replicas=4, share="b"))


def test_a_part_that_is_being_prepared_counts_once() -> None:
    """It is reserved and prepared for a moment."""
    node = Node()
    claims = node.allocations.claims
    half = replace(claimed(share="a"), parts=(CapacityUse("memory", 4, 8),))
    rest = replace(claimed(share="b"), parts=(CapacityUse("memory", 4, 8),))
    with claims.reserved(ONE, [half]):
        claims.prepared(ONE, [half])
        assert claims.used(half.key, {"memory": 8}) == {"memory": 4}
        node.prepare(TWO, rest)
    three = ClaimHolder("team", "three", "uid-3")
    with pytest.raises(DeviceHeld, match="0 of 8 memory is free, and the claim needs 1") as caught:
        node.prepare(three, replace(claimed(share="c"), parts=(CapacityUse("memory", 1, 8),)))
    assert {*caught.value.held_by} == {ONE, TWO}


def test_one_claim_cannot_have_more_shares_than_replicas() -> None:
    node = Node()
    with pytest.raises(DeviceHeld, match=r"more often than share\.replicas allows"):
        node.prepare(ONE, claimed(share="a"), claimed(share="b"))


def test_administrative_access_neither_holds_nor_is_refused() -> None:
    node = Node()
    admin = replace(claimed(), admin=True)
    node.prepare(ONE, claimed())
    node.prepare(TWO, admin)
    node.allocations.claims.released(ONE.uid)
    node.allocate()
    assert node.allocations.claims.by_device().get(("toy", "card0"), []) == []


@pytest.mark.parametrize(("serve", "name"), [(Serve.PLUGIN, NAME), (Serve.DRA, "example.com/other")])
def test_the_plan_leaves_a_device_with_the_resource_of_its_claim(serve: Serve, name: str) -> None:
    node = Node()
    node.prepare(ONE, claimed())
    (refusal,) = node.plan(serve, name).refusals
    assert (refusal.kind, refusal.held_by) == (RefusalKind.HELD, (ONE,))
    assert not node.plan(Serve.DRA).refusals
    node.allocations.claims.released(ONE.uid)
    assert not node.plan(serve, name).refusals


def test_a_release_asks_for_a_plan_and_a_prepare_of_what_the_plan_offers_does_not() -> None:
    node = Node()
    before = node.plans
    node.prepare(ONE, claimed())
    assert node.plans == before
    node.allocations.claims.released(ONE.uid)
    assert node.plans == before + 1
    node.allocations.claims.released(ONE.uid)
    assert node.plans == before + 1


def test_a_claim_of_an_earlier_run_asks_for_a_plan_and_its_hardware_is_found_with_the_device() -> None:
    node = Node(CARD, PART)
    before = node.plans
    node.allocations.claims.prepared(ONE, [claimed()])
    assert node.plans == before + 1
    plan = node.plan(Serve.PLUGIN, "example.com/other")
    assert {(one.device, one.kind) for one in plan.refusals} == {
        ("card0", RefusalKind.HELD),
        ("part0", RefusalKind.HELD),
    }


def test_subscribers_get_the_resource_of_a_released_claim() -> None:
    node = Node()
    released_resources: list[str] = []
    node.allocations.subscribe(lambda resource, tokens: released_resources.append(resource))
    node.prepare(ONE, claimed())
    node.allocations.claims.released(ONE.uid)
    assert released_resources == [NAME]


OTHER = "gpu.example.org"
CARD1 = Device("card1")


def of_two_drivers() -> Node:
    """A node where one claim has a device of each of two drivers."""
    node = Node(CARD, CARD1)
    claims = node.allocations.claims
    for driver, device in (("d.e", CARD), (OTHER, CARD1)):
        with claims.reserved(ONE, [claimed(device)], [("team", "pod")], driver):
            claims.prepared(ONE, [claimed(device)], driver)
        claims.gave(ONE.uid, [Given(f"/dev/{device.id}", key=("toy", device.id))], driver)
    return node


def test_a_claim_holds_the_devices_of_each_driver_until_that_driver_releases_them() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    assert (claims.has("d.e"), claims.has(OTHER), claims.count) == (True, True, 1)
    claims.released(ONE.uid, "d.e")
    assert {one.key: one.driver for one in claims.held()} == {("toy", "card1"): OTHER}
    assert (claims.has("d.e"), claims.has(OTHER)) == (False, True)
    assert claims.pods(ONE) == {("team", "pod")}, "its pods have the other device"
    claims.released(ONE.uid, OTHER)
    assert list(claims.held()) == [] and not claims.pods(ONE)


def test_what_a_claim_was_given_is_that_of_the_drivers_that_still_hold_it() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    assert [one.path for one in claims.ledger.given.claims[ONE.uid].nodes] == ["/dev/card0", "/dev/card1"]
    claims.gave(ONE.uid, [Given("/dev/new", key=("toy", "card0"))], "d.e")
    assert {one.path for one in claims.ledger.given.claims[ONE.uid].nodes} == {"/dev/card1", "/dev/new"}
    claims.released(ONE.uid, "d.e")
    assert [one.path for one in claims.ledger.given.claims[ONE.uid].nodes] == ["/dev/card1"]
    claims.released(ONE.uid, OTHER)
    why = "it is not compared with devices again, also while no kubelet answers"
    assert not claims.ledger.given.claims, why


def test_what_a_unit_gave_stays_when_another_driver_gives_its_part_of_the_claim() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    unit = replace(claimed(), key=("toy", "chip0"), members=("card0",))
    claims.prepared(ONE, [unit], "d.e")
    claims.gave(ONE.uid, [Given("/dev/card1", key=("toy", "card1"))], OTHER)
    assert {one.path for one in claims.ledger.given.claims[ONE.uid].nodes} == {"/dev/card0", "/dev/card1"}


def test_a_claim_has_no_device_of_one_driver_that_excludes_one_of_another() -> None:
    node = Node(CARD, PART)
    claims = node.allocations.claims

    def refused() -> None:
        with (
            pytest.raises(DeviceHeld, match="the claim has another device that excludes it"),
            claims.reserved(ONE, [claimed(PART)], driver=OTHER),
        ):
            pass

    with claims.reserved(ONE, [claimed()], driver="d.e"):
        refused()
        claims.prepared(ONE, [claimed()], "d.e")
    refused()
    claims.released(ONE.uid, "d.e")
    with claims.reserved(ONE, [claimed(PART)], driver=OTHER):
        claims.prepared(ONE, [claimed(PART)], OTHER)


def test_a_device_that_a_claim_holds_through_one_driver_goes_to_no_other() -> None:
    node = of_two_drivers()
    with pytest.raises(DeviceHeld, match="a claim holds it"):
        node.prepare(TWO, claimed())
    entry = ResourceSettings(0, NAME, "toy", serve=Serve.DRA, driver=OTHER)
    plan = plan_devices(node.found, Settings((entry,)), node.allocations)
    assert [(one.device, one.kind) for one in plan.refusals] == [("card0", RefusalKind.HELD)]
    assert [one.device.id for one in plan.resources[NAME].offers] == ["card1"]


def test_members_that_are_the_same_hardware_are_shared_as_one() -> None:
    node = Node(CARD, replace(CARD, id="card1"))
    board = replace(claimed(replicas=2), key=("toy", "board"), members=("card0", "card1"))
    for claim in (ONE, TWO):
        node.prepare(claim, board)
    assert dict(node.allocations.claims.by_device()) == {
        ("toy", name): [ONE, TWO] for name in ("card0", "card1")
    }
    with pytest.raises(DeviceHeld, match="card0 cannot be allocated: all 2 shares are in use"):
        node.prepare(ClaimHolder("team", "three", "uid-3"), board)
