"""Devices with all sorts of links: up to sixteen of them, the most closely linked set is chosen."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest
from affinity_brute import Scene, answer, topology

from devhost.backend.model import Device
from devhost.planning.affinity import PreferenceRequest, prefer
from devhost.planning.affinity.policies import LIMIT, Outside
from devhost.planning.affinity.topology import Level, Links
from devhost.planning.settings import Prefer


def gpus(count: int) -> dict[str, Device]:
    """Two at each switch, two switches at each socket."""
    return {
        f"g{n}": Device(f"g{n}", numa_nodes=(n // 4,), pcie_path=(f"0000:{n // 2}0:00.0", f"d{n}", f"g{n}"))
        for n in range(count)
    }


def closeness(links: Links, names: tuple[str, ...] | list[str]) -> int:
    return sum(links.get(frozenset(pair), 0) for pair in combinations(names, 2))


def random_links(rng: random.Random, names: list[str], most: int) -> Links:
    return {frozenset(pair): rng.randint(0, most) for pair in combinations(names, 2)}


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("policy", [Prefer.TOPOLOGY, Prefer.DISTINCT])
def test_no_set_is_better_than_the_one_chosen(count: int, policy: Prefer) -> None:
    rng = random.Random(count)
    devices = gpus(count)
    for number in range(60):
        links = random_links(rng, list(devices), number % 4)
        available = rng.sample(list(devices), rng.randint(2, count))
        must = rng.sample(available, rng.choice([0, 0, 1]))
        size = rng.randint(len(must), len(available))
        got = {(Level.PORT, f"0000:{n}0:00.0"): rng.randint(1, 2) for n in range(4) if rng.random() < 0.3}
        outside = Outside(got=[got])
        one = dict.fromkeys(devices, 1)
        free = {name: 1 for name in available if name not in must}
        scene = Scene(devices, one, free, dict.fromkeys(must, 1), outside, links)
        chosen = answer(policy, devices, available, must, size, outside, links)
        mine = Counter(name for name in chosen if name not in must)
        best = max(scene.score(policy, choice) for choice in scene.choices(size - len(must)))
        assert len(chosen) == size
        assert scene.score(policy, mine) == best


@pytest.mark.parametrize("size", [2, 3, 8, 13])
def test_of_sixteen_devices_the_most_closely_linked_ones_are_chosen(size: int) -> None:
    rng = random.Random(size)
    devices = gpus(16)
    links = random_links(rng, list(devices), 5)
    chosen = answer(Prefer.TOPOLOGY, devices, list(devices), (), size, links=links)
    best = max(closeness(links, names) for names in combinations(devices, size))
    assert closeness(links, chosen) == best


def test_islands_of_linked_devices_are_not_mixed() -> None:
    """As in machines where the links are of two groups of four, across the PCIe switches."""
    devices = gpus(8)
    links = {frozenset((f"g{a}", f"g{b}")): 4 for a, b in combinations(range(8), 2) if a % 2 == b % 2}
    assert answer(Prefer.TOPOLOGY, devices, list(devices), (), 4, links=links) == ["g0", "g2", "g4", "g6"]
    assert answer(Prefer.TOPOLOGY, devices, list(devices), ["g5"], 2, links=links) == ["g5", "g7"]


def test_if_all_links_are_equal_the_switches_decide() -> None:
    devices = gpus(8)
    links = {frozenset(pair): 18 for pair in combinations(devices, 2)}
    assert answer(Prefer.TOPOLOGY, devices, list(devices)[1:], (), 2, links=links) == ["g2", "g3"]


def test_a_set_of_more_than_sixteen_devices_grows_from_the_strongest_links() -> None:
    devices = gpus(40)
    island = [f"g{n}" for n in range(20, 28)]
    links = {frozenset(pair): 4 for pair in combinations(island, 2)}
    assert answer(Prefer.TOPOLOGY, devices, list(devices), (), 8, links=links) == island


@pytest.mark.parametrize(("count", "exact"), [(16, True), (17, False), (64, False), (65, False)])
def test_a_choice_among_all_sorts_of_links_is_exact_only_if_every_set_was_scored(
    count: int, exact: bool
) -> None:
    devices = gpus(count)
    request = PreferenceRequest(lambda token: token, list(devices), (), 8)
    links = random_links(random.Random(count), list(devices), 9)
    assert prefer(Prefer.TOPOLOGY, topology(devices), request, links=links).exact is exact
    assert prefer(Prefer.PACK, topology(devices), request, links=links).exact, "links do not count in pack"


def test_a_choice_among_shared_linked_devices_is_not_reported_as_exact() -> None:
    """No device is taken twice, although that may be better by an earlier criterion."""
    devices = {f"{name}::{n}": device for name, device in gpus(3).items() for n in range(2)}
    request = PreferenceRequest(lambda token: devices[token].id, list(devices), (), 2)
    links = {frozenset(("g1", "g2")): 4}
    choice = prefer(Prefer.TOPOLOGY, topology(devices), request, links=links)
    assert choice.tokens == ("g1::0", "g2::0")
    assert not choice.exact


def test_links_among_too_many_devices_do_not_count() -> None:
    devices = gpus(80)
    links = {frozenset(("g3", "g70")): 4}
    assert answer(Prefer.TOPOLOGY, devices, list(devices), (), 2, links=links) == ["g0", "g1"]


def test_an_excessive_closeness_does_no_harm() -> None:
    devices = gpus(4)
    links = {frozenset(("g1", "g2")): 10**30, frozenset(("g0", "g1")): -(10**30)}
    assert answer(Prefer.TOPOLOGY, devices, list(devices), (), 2, links=links) == ["g1", "g2"]


@pytest.mark.parametrize("limit", [LIMIT, 0], ids=["by class", "all sets"])
def test_of_equally_linked_sets_the_one_with_the_first_device_is_chosen(limit: int) -> None:
    devices = {f"g{n}": Device(f"g{n}") for n in range(8)}
    links = {frozenset(("g0", "g7")): 4, frozenset(("g1", "g2")): 4}
    chosen = answer(Prefer.TOPOLOGY, devices, list(devices), (), 2, links=links, limit=limit)
    assert chosen == ["g0", "g7"]


def test_a_fast_choice_of_distinct_devices_takes_different_cards() -> None:
    devices = {
        name: Device(name, part_of=frozenset({f"pci:{name[0]}"})) for name in ("a0", "a1", "a2", "b0", "c0")
    }
    assert answer(Prefer.DISTINCT, devices, list(devices), (), 3, limit=0) == ["a0", "b0", "c0"]


def test_a_device_without_a_numa_node_takes_that_of_its_root_port() -> None:
    def below(port: str, name: str, *nodes: int) -> Device:
        return Device(name, numa_nodes=nodes, pcie_path=(port, f"up-{name}", f"at-{name}"))

    devices = {
        "d-sibling": below("0000:80:01.0", "d-sibling", 1),
        "a-silent": below("0000:80:01.0", "a-silent"),
        "b-far": Device("b-far", numa_nodes=(0,)),
        "c-near": Device("c-near", numa_nodes=(1,)),
    }
    available = ["a-silent", "b-far", "c-near"]
    assert answer(Prefer.TOPOLOGY, devices, available, ["a-silent"], 2) == ["a-silent", "c-near"]
