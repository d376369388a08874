"""A token and a ResourceClaim hold a device in the same way: one ledger for both front ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kit.allocator import CARD as NAME
from kit.allocator import Ledger
from work import Work

from devhost.allocation.claims import ClaimedDevice, DeviceHeld
from devhost.allocation.given import Node as Given
from devhost.backend.model import ClaimHolder, Device
from devhost.planning.amounts import CapacityUse, used_of
from devhost.planning.claims import held_by_claims
from devhost.planning.plan import Plan, RefusalKind
from devhost.planning.settings import ResourceSettings, Serve
from devhost.planning.timing import ALLOCATION as NODE

CARD = Device("card0", claims=frozenset({"pci:0"}))
PART = Device("part0", part_of=frozenset({"pci:0"}))
ONE = ClaimHolder("team", "one", "uid-1")
TWO = ClaimHolder("team", "two", "uid-2")


def node_of(*devices: Device) -> Ledger:
    """A node with these devices, otherwise one card, of a resource for claims."""
    node = Ledger(*(devices or (CARD,)))
    plan(node, Serve.DRA)
    return node


def plan(node: Ledger, serve: Serve, name: str = NAME) -> Plan:
    return node.plan(ResourceSettings(0, name, "card", serve=serve))


def claimed(
    device: Device = CARD, request: str = "card", *, replicas: int = 1, share: str = "", slots: int = 1
) -> ClaimedDevice:
    return ClaimedDevice(
        request, "pool", device.id, share, ("card", device.id), NAME, replicas=replicas, slots=slots
    )


def test_a_claim_holds_its_device_until_it_is_released() -> None:
    node = node_of()
    node.claim(ONE, claimed())
    assert node.claims_of("card0") == [ONE]
    with pytest.raises(DeviceHeld, match=r"a claim holds it through example\.com/card") as caught:
        node.claim(TWO, claimed())
    assert caught.value.held_by == (ONE,)
    node.allocations.claims.released(ONE.uid)
    node.claim(TWO, claimed())
    assert node.claims_of("card0") == [TWO]


def test_a_claim_that_is_prepared_again_keeps_its_device() -> None:
    node = node_of()
    node.claim(ONE, claimed())
    node.claim(ONE, claimed())
    node.claim(ONE, replace(claimed(), resource="example.com/renamed"))
    assert node.claims_of("card0") == [ONE]


@pytest.mark.conformance(83)
def test_a_device_that_a_container_holds_is_refused_to_a_claim() -> None:
    node = node_of()
    node.give(CARD)
    with pytest.raises(DeviceHeld, match=r"holds it through example\.com/card"):
        node.claim(ONE, claimed())
    assert node.claims_of("card0") == []


@pytest.mark.conformance(83)
@pytest.mark.parametrize("device", [CARD, PART])
def test_a_device_that_a_claim_holds_is_refused_to_a_container_with_all_its_hardware(device: Device) -> None:
    node = node_of(CARD, PART)
    node.claim(ONE, claimed())
    with pytest.raises(DeviceHeld) as caught:
        node.give(device)
    assert caught.value.held_by == (ONE,)
    assert not node.allocations.of(NAME).tokens()


def test_hardware_of_a_claim_is_refused_to_another_claim() -> None:
    node = node_of(CARD, PART)
    node.claim(ONE, claimed(PART))
    with pytest.raises(DeviceHeld, match="pci:0 is in use: a claim holds part0 of backend card"):
        node.claim(TWO, claimed())


def test_a_claim_with_a_card_and_a_part_of_it_is_refused_even_if_a_scheduler_gave_both() -> None:
    node = node_of(CARD, PART)
    with pytest.raises(DeviceHeld, match="card0 cannot be allocated: the claim has another device that excl"):
        node.claim(ONE, claimed(), claimed(PART))
    assert not held_by_claims(node.allocations.held())


def test_hardware_that_a_held_device_gains_is_refused_to_a_claim() -> None:
    node = node_of(CARD, PART)
    bare = replace(CARD, claims=frozenset())
    node.plug(bare, PART)
    plan(node, Serve.PLUGIN)
    node.give(bare)
    node.claim(ONE, claimed(PART))
    node.allocations.claims.released(ONE.uid)
    node.plug(CARD, PART)
    plan(node, Serve.PLUGIN)
    with pytest.raises(DeviceHeld, match="card0 of backend card"):
        node.claim(ONE, claimed(PART))


@pytest.mark.parametrize("part_of", [frozenset(), frozenset({"node:/dev/control"})], ids=["apart", "parts"])
def test_the_work_for_a_claim_does_not_depend_on_how_many_others_there_are(part_of: frozenset[str]) -> None:
    lines = []
    for count in (100, 400):
        *cards, last = (
            Device(f"card{number}", claims=frozenset({f"pci:{number}"}), part_of=part_of)
            for number in range(count + 1)
        )
        node = node_of(*cards, last)
        for number, card in enumerate(cards):
            node.claim(ClaimHolder("ns", f"claim-{number}", f"uid-{number}"), claimed(card))
        work = Work()
        with work.counted():
            node.claim(TWO, claimed(last))
            node.allocations.claims.released(TWO.uid)
        lines.append(work.lines)
    assert lines[0] == lines[1]


def test_a_device_is_kept_for_a_claim_while_it_is_being_prepared_and_free_if_that_fails() -> None:
    node = node_of()
    with node.allocations.claims.reserved(ONE, [claimed()]), pytest.raises(DeviceHeld):
        node.give(CARD)
    node.give(CARD)


def test_a_shared_device_is_prepared_for_as_many_claims_as_it_has_replicas() -> None:
    node = node_of()
    node.claim(ONE, claimed(replicas=2, share="a"))
    node.claim(TWO, claimed(replicas=2, share="b"))
    three = ClaimHolder("team", "three", "uid-3")
    with pytest.raises(DeviceHeld):
        node.claim(three, claimed(replicas=2, share="c"))
    node.allocations.claims.released(ONE.uid)
    node.claim(three, claimed(replicas=2, share="c"))
    assert node.claims_of("card0") == [three, TWO]


def test_lists_of_pods_are_wanted_while_a_claim_is_prepared() -> None:
    """They show which pods use it, and that a claim has gone without Unprepare."""
    node = node_of()
    assert node.allocations.due(5.0) is None
    node.claim(ONE, claimed())
    assert node.allocations.due(5.0) == 5.0 + NODE.list_held
    node.allocations.claims.released(ONE.uid)
    assert node.allocations.due(5.0) is None


@pytest.mark.conformance(85)
def test_a_claim_that_uses_several_slots_counts_as_often() -> None:
    node = node_of()
    node.claim(ONE, claimed(replicas=4, share="a", slots=3))
    node.claim(ONE, claimed(replicas=4, share="a", slots=3))
    with pytest.raises(DeviceHeld):
        node.claim(TWO, claimed(replicas=4, share="b", slots=2))
    node.claim(TWO, claimed(replicas=4, share="b"))


def test_a_part_that_is_being_prepared_counts_once() -> None:
    """It is reserved and prepared for a moment."""
    node = node_of()
    claims = node.allocations.claims
    half = replace(claimed(share="a"), parts=(CapacityUse("memory", 4, 8),))
    rest = replace(claimed(share="b"), parts=(CapacityUse("memory", 4, 8),))
    with claims.reserved(ONE, [half]):
        claims.prepared(ONE, [half])
        used = used_of({"memory": 8}, (one.parts for one in node.allocations.held()))
        assert used == {"memory": 4}
        node.claim(TWO, rest)
    three = ClaimHolder("team", "three", "uid-3")
    with pytest.raises(DeviceHeld, match="0 of 8 memory is free, and the claim needs 1") as caught:
        node.claim(three, replace(claimed(share="c"), parts=(CapacityUse("memory", 1, 8),)))
    assert {*caught.value.held_by} == {ONE, TWO}


def test_one_claim_cannot_have_more_shares_than_replicas() -> None:
    node = node_of()
    with pytest.raises(DeviceHeld, match=r"more often than share\.replicas allows"):
        node.claim(ONE, claimed(share="a"), claimed(share="b"))


def test_administrative_access_neither_holds_nor_is_refused() -> None:
    node = node_of()
    admin = replace(claimed(), admin=True)
    node.claim(ONE, claimed())
    node.claim(TWO, admin)
    node.allocations.claims.released(ONE.uid)
    node.give(CARD)
    assert node.claims_of("card0") == []


@pytest.mark.parametrize(("serve", "name"), [(Serve.PLUGIN, NAME), (Serve.DRA, "example.com/other")])
def test_the_plan_leaves_a_device_with_the_resource_of_its_claim(serve: Serve, name: str) -> None:
    node = node_of()
    node.claim(ONE, claimed())
    (refusal,) = plan(node, serve, name).refusals
    assert (refusal.kind, refusal.held_by) == (RefusalKind.HELD, (ONE,))
    assert not plan(node, Serve.DRA).refusals
    node.allocations.claims.released(ONE.uid)
    assert not plan(node, serve, name).refusals


def test_a_release_asks_for_a_plan_and_a_prepare_of_what_the_plan_offers_does_not() -> None:
    node = node_of()
    before = node.replans
    node.claim(ONE, claimed())
    assert node.replans == before
    node.allocations.claims.released(ONE.uid)
    assert node.replans == before + 1
    node.allocations.claims.released(ONE.uid)
    assert node.replans == before + 1


def test_a_claim_of_an_earlier_run_asks_for_a_plan_and_its_hardware_is_found_with_the_device() -> None:
    node = node_of(CARD, PART)
    before = node.replans
    node.allocations.claims.prepared(ONE, [claimed()])
    assert node.replans == before + 1
    made = plan(node, Serve.PLUGIN, "example.com/other")
    assert {(one.device, one.kind) for one in made.refusals} == {
        ("card0", RefusalKind.HELD),
        ("part0", RefusalKind.HELD),
    }


def test_subscribers_get_the_resource_of_a_released_claim() -> None:
    node = node_of()
    released_resources: list[str] = []
    node.allocations.subscribe(lambda resource, tokens: released_resources.append(resource))
    node.claim(ONE, claimed())
    node.allocations.claims.released(ONE.uid)
    assert released_resources == [NAME]


OTHER = "gpu.example.org"
CARD1 = Device("card1")


def of_two_drivers() -> Ledger:
    """A node where one claim has a device of each of two drivers."""
    node = node_of(CARD, CARD1)
    claims = node.allocations.claims
    for driver, device in (("d.e", CARD), (OTHER, CARD1)):
        with claims.reserved(ONE, [claimed(device)], [("team", "pod")], driver):
            claims.prepared(ONE, [claimed(device)], driver)
        claims.gave(ONE.uid, [Given(f"/dev/{device.id}", key=("card", device.id))], driver)
    return node


def test_a_claim_holds_the_devices_of_each_driver_until_that_driver_releases_them() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    assert (claims.has("d.e"), claims.has(OTHER), claims.count) == (True, True, 1)
    claims.released(ONE.uid, "d.e")
    assert {one.key: one.side for one in claims.held()} == {("card", "card1"): (Serve.DRA, OTHER)}
    assert (claims.has("d.e"), claims.has(OTHER)) == (False, True)
    assert claims.pods(ONE) == {("team", "pod")}, "its pods have the other device"
    claims.released(ONE.uid, OTHER)
    assert list(claims.held()) == [] and not claims.pods(ONE)


def test_what_a_claim_was_given_is_that_of_the_drivers_that_still_hold_it() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    assert [one.path for one in claims.ledger.given.claims[ONE.uid].nodes] == ["/dev/card0", "/dev/card1"]
    claims.gave(ONE.uid, [Given("/dev/new", key=("card", "card0"))], "d.e")
    assert {one.path for one in claims.ledger.given.claims[ONE.uid].nodes} == {"/dev/card1", "/dev/new"}
    claims.released(ONE.uid, "d.e")
    assert [one.path for one in claims.ledger.given.claims[ONE.uid].nodes] == ["/dev/card1"]
    claims.released(ONE.uid, OTHER)
    why = "it is not compared with devices again, also while no kubelet answers"
    assert not claims.ledger.given.claims, why


def test_what_a_unit_gave_stays_when_another_driver_gives_its_part_of_the_claim() -> None:
    node = of_two_drivers()
    claims = node.allocations.claims
    unit = replace(claimed(), key=("card", "chip0"), members=("card0",))
    claims.prepared(ONE, [unit], "d.e")
    claims.gave(ONE.uid, [Given("/dev/card1", key=("card", "card1"))], OTHER)
    assert {one.path for one in claims.ledger.given.claims[ONE.uid].nodes} == {"/dev/card0", "/dev/card1"}


def test_a_claim_has_no_device_of_one_driver_that_excludes_one_of_another() -> None:
    node = node_of(CARD, PART)
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
        node.claim(TWO, claimed())
    entry = ResourceSettings(0, NAME, "card", serve=Serve.DRA, driver=OTHER)
    made = node.plan(entry)
    assert [(one.device, one.kind) for one in made.refusals] == [("card0", RefusalKind.HELD)]
    assert [one.device.id for one in made.resources[NAME].offers] == ["card1"]


def test_members_that_are_the_same_hardware_are_shared_as_one() -> None:
    node = node_of(CARD, replace(CARD, id="card1"))
    board = replace(claimed(replicas=2), key=("card", "board"), members=("card0", "card1"))
    for claim in (ONE, TWO):
        node.claim(claim, board)
    assert [node.claims_of(name) for name in ("card0", "card1")] == [[ONE, TWO], [ONE, TWO]]
    with pytest.raises(DeviceHeld, match="card0 cannot be allocated: all 2 shares are in use"):
        node.claim(ClaimHolder("team", "three", "uid-3"), board)
