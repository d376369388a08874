"""Which GPUs are preferred together: NVLink, and the core's choice on known machines."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path

import gpu_amd
import pytest
from devhost_gpu.nvml.reports import SWITCH, NvLinks
from devhost_testing.fixtures import BackendFixture, by_id
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

from devhost.allocation.inventory import Inventory
from devhost.allocation.preferred import PreferredAllocation
from devhost.backend.errors import BackendError
from devhost.backend.model import Device
from devhost.planning.affinity import PreferenceRequest, prefer
from devhost.planning.affinity.topology import Candidate, Topology
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of, Prefer

DGX_1 = {
    **dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], 2),
    **dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], 1),
}
"""The NVLinks between the eight V100 of a DGX-1, six at each: two squares with their diagonals, joined corner
to corner (NVIDIA's white paper "DGX-1 with Tesla V100 System Architecture")."""


def address(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def mesh(links: dict[tuple[int, int], int]) -> NvLinks:
    peers: dict[str, dict[str, int]] = {}
    for (a, b), count in links.items():
        peers.setdefault(address(a), {})[address(b)] = count
        peers.setdefault(address(b), {})[address(a)] = count
    return NvLinks(peers)


def machine(count: int) -> list[Device]:
    """Two GPUs at each PCIe switch, half of them at each socket."""
    return [
        Device(
            f"GPU-{n:02}",
            numa_nodes=(n * 2 // count,),
            pcie_path=(f"0000:{0x80 + n // 2:02x}:00.0", f"0000:{0xA0 + n:02x}:00.0", address(n)),
        )
        for n in range(count)
    ]


def preferred(
    devices: Sequence[Device],
    joints: NvLinks,
    size: int,
    free: Sequence[int] | None = None,
    policy: Prefer = Prefer.TOPOLOGY,
) -> list[int]:
    inventory = Inventory(time.time, time.monotonic)
    offers = [Offer(device, 1) for device in devices]
    inventory.update(units(Of.EACH, offers), lambda device: device.health, lambda device: Reason("gone"))
    numbers = {device.id: n for n, device in enumerate(devices)}
    links = {
        frozenset((a.id, b.id)): joints.between(address(numbers[a.id]), address(numbers[b.id]))
        for a, b in combinations(devices, 2)
    }
    available = [devices[n].id for n in (range(len(devices)) if free is None else free)]
    vicinity = PreferredAllocation(lambda: {"nvidia.com/gpu": inventory})
    choice = vicinity.prefer("nvidia.com/gpu", inventory, policy, links, available, (), size)
    assert choice.exact
    return sorted(numbers[name] for name in choice.tokens)


def strength(joints: NvLinks, numbers: Sequence[int]) -> int:
    return sum(joints.between(address(a), address(b)) for a, b in combinations(numbers, 2))


def test_links_are_counted_the_same_from_both_ends() -> None:
    joints = mesh({(0, 1): 4, (1, 2): 1})
    assert joints.between(address(0), address(1)) == joints.between(address(1), address(0)) == 4
    assert joints.between(address(0), address(2)) == 0
    assert joints.between(address(0), address(0)) == 0
    assert joints.between("nowhere", address(0)) == 0


def test_a_link_that_one_end_reports_is_enough() -> None:
    joints = NvLinks({address(0): {address(1): 2}})
    assert joints.between(address(0), address(1)) == joints.between(address(1), address(0)) == 2


def test_switches_join_every_gpu_with_every_other_by_what_both_have() -> None:
    joints = NvLinks(
        {address(0): {SWITCH: 12}, address(1): {SWITCH: 12}, address(2): {SWITCH: 11}, address(3): {}}
    )
    assert joints.between(address(0), address(1)) == 12
    assert joints.between(address(2), address(1)) == 11
    assert joints.between(address(3), address(1)) == 0


@pytest.mark.parametrize("size", range(1, 9))
def test_on_a_cube_mesh_no_set_is_connected_better_than_the_preferred_one(size: int) -> None:
    joints = mesh(DGX_1)
    chosen = preferred(machine(8), joints, size)
    best = max(strength(joints, numbers) for numbers in combinations(range(8), size))
    assert len(chosen) == size
    assert strength(joints, chosen) == best


@pytest.mark.parametrize("gone", range(8))
def test_on_a_cube_mesh_the_best_is_made_of_what_is_left(gone: int) -> None:
    joints = mesh(DGX_1)
    free = [n for n in range(8) if n != gone]
    for size in range(1, 8):
        chosen = preferred(machine(8), joints, size, free)
        best = max(strength(joints, numbers) for numbers in combinations(free, size))
        assert strength(joints, chosen) == best


def test_one_link_counts_for_more_than_being_below_one_switch() -> None:
    assert preferred(machine(8), mesh({(0, 7): 1}), 2) == [0, 7]


def test_many_links_count_for_more_than_some() -> None:
    assert preferred(machine(8), mesh({(0, 1): 4, (2, 3): 4, (1, 6): 18}), 2) == [1, 6]


def test_if_switches_connect_all_gpus_equally_pcie_decides() -> None:
    joints = NvLinks({address(n): {SWITCH: 18} for n in range(8)})
    assert preferred(machine(8), joints, 2, [1, 3, 4, 5]) == [4, 5]


def test_a_single_gpu_is_allocated_near_those_in_use() -> None:
    joints = NvLinks({address(n): {SWITCH: 18} for n in range(8)})
    assert preferred(machine(8), joints, 1, [0, 1, 2, 3, 5, 6, 7]) == [5]


def test_sixteen_gpus_on_switches_are_kept_to_one_socket() -> None:
    joints = NvLinks({address(n): {SWITCH: 6} for n in range(16)})
    assert preferred(machine(16), joints, 8) == list(range(8))


@pytest.mark.parametrize("mode", ["CPX", "QPX"])
def test_partitions_are_proven_to_come_from_as_few_gpus_as_possible(
    tmp_path: Path, looking: BackendFixture, mode: str
) -> None:
    """Eight MI300X, whole and with some partitions in use."""
    backend = looking(gpu_amd.mi300x(tmp_path, mode, "NPS1"))
    found = by_id(backend)
    links = {frozenset((a.id, b.id)): backend.links(a, b) for a, b in combinations(found.values(), 2)}
    each = len(found) // 8
    assert each == {"CPX": 8, "QPX": 4}[mode]
    topology = Topology({name: Candidate(name, device) for name, device in found.items()})
    rng = random.Random(mode)
    for size in range(1, len(found), 3):
        free = rng.sample(sorted(found), rng.randint(size, len(found)))
        choice = prefer(Prefer.TOPOLOGY, topology, PreferenceRequest(str, free, (), size), links=links)
        left = Counter(found[name].attributes["parent"] for name in free)
        taken = Counter(found[name].attributes["parent"] for name in choice.tokens)
        largest = sorted(left.values(), reverse=True)
        fewest = next(n for n in range(1, 9) if sum(largest[:n]) >= size)
        assert choice.exact
        assert len(taken) == fewest


# What the driver tells


@pytest.fixture
def desk(nvidia: NvidiaMachine, request: pytest.FixtureRequest) -> Iterator[NvidiaDesk]:
    """Four GPUs, of which one is split and two are joined; its parameter are durations."""
    first, second, _, split = (nvidia.gpu(address) for address in DGX[:4])
    nvidia.nvml.link(first, second, 4)
    nvidia.nvml.link(second, split, 2)
    for number in (7, 8):
        nvidia.mig(DGX[3], number, 0)
    made = NvidiaDesk(nvidia, **getattr(request, "param", {}))
    yield made
    made.close()


def test_nvlinks_are_those_of_the_driver_and_none_joins_mig_instances(
    desk: NvidiaDesk, nvidia: NvidiaMachine
) -> None:
    found = desk.look()
    first, second, third, split = (found[nvidia.uuids[address]] for address in DGX[:4])
    one, other = (found[uuid] for uuid in nvidia.nvml.migs)
    assert desk.backend.links(first, second) == desk.backend.links(second, first) == 4
    assert desk.backend.links(first, third) == 0
    assert desk.backend.links(second, split) == 2
    assert desk.backend.links(one, other) == desk.backend.links(one, second) == 0


@pytest.mark.parametrize("desk", [{"answer": 0.5}], ids=["impatient"], indirect=True)
def test_links_that_cannot_be_read_are_not_taken_for_none(desk: NvidiaDesk, nvidia: NvidiaMachine) -> None:
    """The core asks again after an error, and keeps an answer for as long as the GPUs are the same."""
    found = desk.look()
    first, second = (found[nvidia.uuids[address]] for address in DGX[:2])
    fault = nvidia.nvml.fault("nvmlDeviceGetNvLinkState", hang=60)
    with pytest.raises(BackendError):
        desk.backend.links(first, second)
    nvidia.nvml.fix(fault)

    def known() -> bool:
        try:
            return desk.backend.links(first, second) == 4
        except BackendError:
            return False

    desk.until(known)
