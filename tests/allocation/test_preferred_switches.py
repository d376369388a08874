"""Devices of several kinds in one pod: they share switches whenever any assignment could."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import combinations, permutations

import pytest
from affinity_machine import SWITCHES, Machine, behind, switch_of

from devhost.allocation.leases import Listing
from devhost.allocation.preferred import BUILT, KINDS, PreferredAllocation
from devhost.backend.model import Device, Holder, unhealthy
from devhost.planning.claims import Reason
from devhost.planning.settings import Of, Prefer
from devhost.telemetry.metrics import Metrics

GPU, HCA, FPGA = "gpu", "hca", "fpga"


def shared(a: list[str], b: list[str]) -> int:
    """Pairs of one device of each kind that sit on one switch, each device in one pair."""
    return (Counter(map(switch_of, a)) & Counter(map(switch_of, b))).total()


@pytest.mark.parametrize("order", [(GPU, HCA), (HCA, GPU)], ids=" first".join)
@pytest.mark.parametrize("gpus", range(1, 9))
def test_a_pod_shares_switches_for_any_request_in_any_order(gpus: int, order: tuple[str, str]) -> None:
    for hcas in range(1, 9):
        counts = {GPU: gpus, HCA: hcas}
        got = Machine(gpu=2, hca=2).pod(*((kind, counts[kind]) for kind in order))
        assert shared(got[GPU], got[HCA]) == min(gpus, hcas)
        fewest = -(-max(gpus, hcas) // 4)
        nodes = {switch_of(name) // 2 for some in got.values() for name in some}
        assert len(nodes) == fewest


@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("order", [(GPU, HCA), (HCA, GPU)], ids=" first".join)
def test_a_pod_shares_switches_whenever_any_assignment_could(order: tuple[str, str], part: int) -> None:
    rng = random.Random(part)
    for _ in range(50):
        machine = Machine(gpu=2, hca=2)
        for kind in order:
            machine.hold(kind, *rng.sample(machine.free(kind), rng.randint(0, 7)))
        free = {kind: machine.free(kind) for kind in order}
        count = rng.randint(1, min(map(len, free.values())))
        got = machine.pod(*((kind, count) for kind in order))
        by_switch = [Counter(map(switch_of, free[kind])) for kind in (GPU, HCA)]
        possible = sum(min(by_switch[0][s], by_switch[1][s]) for s in range(SWITCHES))
        assert shared(got[GPU], got[HCA]) == min(count, possible)


@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("order", list(permutations((GPU, HCA, FPGA))), ids=" then ".join)
def test_a_gpu_a_network_adapter_and_an_fpga_share_a_switch_whenever_one_has_all_three(
    order: tuple[str, ...], part: int
) -> None:
    rng = random.Random(part)
    for _ in range(10):
        machine = Machine(gpu=2, hca=2, fpga=1)
        for kind in order:
            free = machine.free(kind)
            machine.hold(kind, *rng.sample(free, rng.randint(0, len(free) - 1)))
        left = [set(map(switch_of, machine.free(kind))) for kind in order]
        got = machine.pod(*((kind, 1) for kind in order))
        if set.intersection(*left):
            assert len({switch_of(name) for some in got.values() for name in some}) == 1


def test_each_gpu_gets_an_adapter_beside_it_before_one_gets_two() -> None:
    got = Machine(gpu=2, hca=2).pod((GPU, 4), (HCA, 2))
    assert len(set(map(switch_of, got[HCA]))) == 2


def test_pods_for_single_devices_leave_whole_switches() -> None:
    machine = Machine(gpu=2, hca=2)
    for number in range(1, 5):
        machine.pod((GPU, 1), (HCA, 1))
        broken = {switch_of(name) for name in machine.inventories[GPU].allocations.tokens()}
        assert len(broken) == -(-number // 2)


def test_an_unhealthy_companion_is_none() -> None:
    machine = Machine(gpu=2)
    unusable = [
        behind(n // 2, f"h{n}", health=unhealthy("down") if n < 6 else Device("x").health) for n in range(8)
    ]
    machine.add(HCA, unusable)
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) == 3


def test_the_same_card_known_to_two_resources_is_no_companion_of_itself() -> None:
    machine = Machine(gpu=2)
    claims = [frozenset({f"pci:{n}"}) for n in range(8)]
    machine.add("cards", [behind(n // 2, f"c{n}", claims=claims[n]) for n in range(8)])
    machine.add("ports", [behind(n // 2, f"p{n}", part_of=claims[n]) for n in range(2, 4)])
    assert switch_of(machine.prefer("cards", 1).tokens[0]) == 0
    machine.add("disks", [behind(2, "d4")])
    assert switch_of(machine.prefer("cards", 1).tokens[0]) == 2


def test_tokens_for_all_devices_of_a_resource_are_nowhere_and_draw_nothing() -> None:
    machine = Machine(gpu=2)
    machine.add("disk", [behind(n, f"d{2 * n}") for n in (2, 3)], replicas=3, of=Of.ALL)
    got = machine.pod(("disk", 1), (GPU, 1))
    assert got == {"disk": ["all::0"], GPU: ["g0"]}


def test_an_unknown_allocation_fails_no_request(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(gpu=2)
    machine.vicinity.allocated(GPU, machine.inventories[GPU], machine.now, ["nobody"])
    machine.vicinity.allocated(GPU, None, machine.now, ["g0"])  # type: ignore[arg-type]
    machine.vicinity.allocated("other", None, machine.now, ["g0"])  # type: ignore[arg-type]
    assert caplog.messages == ["remembering an allocation failed"]
    assert machine.pod((GPU, 1)) == {GPU: ["g0"]}


def test_kinds_on_a_common_switch_are_looked_at_before_those_on_a_node_only() -> None:
    machine = Machine(gpu=2)
    for number in range(KINDS + 4):
        machine.add(f"a{number:02}", [Device("x", numa_nodes=(0,))])
    machine.add("z", [behind(3, "z6")])
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) == 3


def test_a_shared_adapter_is_beside_as_many_gpus_as_it_has_replicas() -> None:
    machine = Machine(gpu=2)
    machine.add(HCA, [behind(3, "h6")], replicas=10)
    got = machine.pod((GPU, 2), (HCA, 2))
    assert set(map(switch_of, got[GPU])) == {3}


def test_adapters_known_by_numa_node_only_are_preferred_on_the_node() -> None:
    machine = Machine(gpu=2)
    machine.add(HCA, [Device("h", numa_nodes=(1,))])
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) // 2 == 1


def test_a_kind_seen_in_one_container_with_it_counts_before_other_kinds() -> None:
    machine = Machine(gpu=2, hca=2)
    machine.add("disk", [behind(0, f"d{n}") for n in range(2)])
    machine.hold(HCA, "h0", "h1")
    assert switch_of(machine.prefer(GPU, 1).tokens[0]) in (0, 1)
    machine.pod((GPU, 1), (HCA, 1))
    for inventory in machine.inventories.values():
        one = Holder("default", "one", "main")
        held = dict.fromkeys(inventory.allocations.tokens(), one)
        inventory.allocations.apply(Listing((1, 1, 1), machine.now, 1, {"": held}, {one: True}))
    machine.pause(60)
    machine.vicinity.settle()
    for kind in (GPU, HCA):
        machine.hold(kind, *(name for name in machine.free(kind) if switch_of(name) == 1))
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) >= 2


def test_the_debug_log_has_the_score_of_each_criterion(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(gpu=2, hca=2)
    machine.pod((GPU, 1), (HCA, 1))
    assert caplog.records == []
    with caplog.at_level("DEBUG"):
        machine.pod((GPU, 1), (HCA, 1))
    first, second = [record.__dict__["fields"] for record in caplog.records]
    assert (first["beside"], second["beside"]) == ("", GPU)
    assert "pairs with what it has on one switch: 1" in second["because"]


@pytest.mark.parametrize("policy", [Prefer.PACK, Prefer.SPREAD, Prefer.DISTINCT])
def test_every_policy_ends_near_what_the_container_has(policy: Prefer) -> None:
    machine = Machine(gpu=2, hca=2)
    machine.policies[HCA] = policy
    machine.hold(GPU, "g0", "g1", "g2")
    got = machine.pod((GPU, 1), (HCA, 1))
    assert shared(got[GPU], got[HCA]) == 1


def test_devices_that_come_and_go_are_taken_up() -> None:
    machine = Machine(gpu=2, hca=2)
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) == 0
    machine.add(HCA, [behind(3, "h6")])
    assert switch_of(machine.pod((GPU, 1))[GPU][0]) == 3


def test_very_many_devices_of_other_kinds_are_taken_up_request_by_request() -> None:
    machine = Machine(gpu=2)
    for kind in ("a", "b"):
        machine.add(kind, [Device(f"{kind}{n}", numa_nodes=(0,)) for n in range(BUILT)])
    machine.add(HCA, [behind(3, "h6")])
    chosen = [switch_of(machine.prefer(GPU, 1).tokens[0]) for _ in range(4)]
    assert (chosen[0], chosen[-1]) == (0, 3)


def test_a_resource_that_has_lost_its_last_device_spoils_no_choice_of_another() -> None:
    machine = Machine(gpu=2, nic=2)
    assert len(machine.prefer(GPU, 2).tokens) == 2
    nics = machine.inventories["nic"]
    for _ in range(2):  # what vanishes is listed for a moment before it leaves
        nics.update((), lambda device: device.health, lambda device: Reason("gone"))
        machine.pause(60)
    assert not nics.snapshot.entries
    assert len(machine.prefer(GPU, 2).tokens) == 2


def test_only_as_many_resources_as_the_limit_are_considered() -> None:
    machine = Machine(gpu=2)
    for number in range(KINDS):
        switch = 1 if number < KINDS // 2 else 2
        machine.add(f"a{number:02}", [behind(switch, f"a{2 * switch}")])
    assert switch_of(machine.prefer(GPU, 1).tokens[0]) == 1
    machine.add("z", [behind(2, "z4")])  # would decide, but comes after as many as are looked at
    assert switch_of(machine.prefer(GPU, 1).tokens[0]) == 1


def test_a_card_that_appears_later_is_known_to_be_the_same_hardware() -> None:
    machine = Machine()
    claims = {f"c{n}": frozenset({f"pci:{n}"}) for n in (0, 2, 6)}
    ports = [behind(1, "p2", part_of=claims["c2"])]
    cards = {name: behind(switch_of(name), name, claims=claim) for name, claim in claims.items()}
    machine.add("cards", [cards["c0"], cards["c6"]])
    machine.add("ports", ports)
    machine.prefer("cards", 1)
    machine.add("cards", list(cards.values()))
    assert switch_of(machine.prefer("cards", 1).tokens[0]) != 1


def test_a_port_that_appears_later_is_known_to_be_the_same_hardware() -> None:
    machine = Machine()
    claims = {f"c{n}": frozenset({f"pci:{n}"}) for n in (0, 2, 6)}
    machine.add("cards", [behind(switch_of(name), name, claims=claim) for name, claim in claims.items()])
    machine.add("ports", [behind(2, "p4")])
    machine.prefer("cards", 1)
    machine.add("ports", [behind(1, "p2", part_of=claims["c2"])])
    assert switch_of(machine.prefer("cards", 1).tokens[0]) != 1


@pytest.mark.parametrize("replicas", [1, 100])
async def test_each_answer_that_is_not_proven_best_is_counted(replicas: int) -> None:
    """In the event loop, and for many tokens on a thread."""
    machine, metrics = Machine(), Metrics()
    machine.add(GPU, [behind(n % 4, f"g{n}") for n in range(40)], replicas=replicas)
    rng = random.Random(1)
    names = [f"g{n}" for n in range(40)]
    links = {frozenset(pair): rng.randint(0, 9) for pair in combinations(names, 2)}
    preferred = PreferredAllocation(lambda: machine.inventories, metrics)
    for size in (1, 8, 8):
        inventory = machine.inventories[GPU]
        await preferred.answer(GPU, inventory, Prefer.TOPOLOGY, links, machine.free(GPU), (), size)
    (line,) = re.findall(r"^devhost_preferences_unproven_total (.*)", (await metrics.render()).decode(), re.M)
    assert float(line) == 2
