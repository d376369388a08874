"""Preferred allocation: always a subset, always with what must be in it, never an error."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from affinity_brute import answer
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.model import Device
from devhost.planning.settings import Prefer
from devhost.planning.tokens import token

promise = settings(deadline=None, derandomize=True)
policies = st.sampled_from(Prefer)


@dataclass
class Request:
    devices: dict[str, Device]
    available: list[str]
    must: list[str]
    size: int

    def answer(self, policy: Prefer) -> list[str]:
        return answer(policy, self.devices, self.available, self.must, self.size)


@st.composite
def requests(draw: st.DrawFn, *, sane: bool = False) -> Request:
    """Anything a kubelet might send; a sane one asks for tokens that exist, each once."""
    known: dict[str, Device] = {}
    nodes = st.sampled_from([(0,), (1,), (2,)] if sane else [(), (0,), (1,), (0, 1)])
    for number in range(draw(st.integers(1, 6))):
        path = tuple(draw(st.lists(st.sampled_from(("r0", "r1", "s0")), max_size=3)))
        device = Device(f"d{number}", numa_nodes=draw(nodes), pcie_path=path)
        replicas = draw(st.integers(1, 3))
        known |= {token(device.id, n, replicas): device for n in range(replicas)}
    tokens = sorted(known)
    if sane:
        available = draw(st.lists(st.sampled_from(tokens), unique=True, min_size=1))
        must = draw(st.lists(st.sampled_from(available), unique=True, max_size=2))
        return Request(known, available, must, draw(st.integers(len(must), len(available))))
    anything = st.one_of(st.sampled_from(tokens), st.sampled_from(["", "nobody", "9" * 5000, "d٣"]))
    return Request(
        known, draw(st.lists(anything)), draw(st.lists(anything, max_size=4)), draw(st.integers(-2, 20))
    )


@promise
@given(requests(), policies)
def test_the_answer_is_a_subset_of_what_is_available_without_repeats(
    request: Request, policy: Prefer
) -> None:
    answer = request.answer(policy)
    assert set(answer) <= set(request.available)
    assert len(set(answer)) == len(answer)


@promise
@given(requests(), policies)
def test_what_must_be_in_it_and_can_be_comes_first(request: Request, policy: Prefer) -> None:
    must = [name for name in dict.fromkeys(request.must) if name in request.available]
    assert request.answer(policy)[: len(must)] == must


@promise
@given(requests(), policies)
def test_the_answer_is_as_long_as_asked_or_as_it_can_be(request: Request, policy: Prefer) -> None:
    must = {name for name in request.must if name in request.available}
    usable = must | {name for name in request.available if name in request.devices}
    assert len(request.answer(policy)) == max(len(must), min(request.size, len(usable)))


@promise
@given(requests(), policies, st.randoms(use_true_random=False))
def test_the_order_in_which_the_kubelet_names_tokens_does_not_matter(
    request: Request, policy: Prefer, rng: random.Random
) -> None:
    shuffled = Request(
        dict(rng.sample(sorted(request.devices.items()), len(request.devices))),
        rng.sample(request.available, len(request.available)),
        request.must,
        request.size,
    )
    assert shuffled.answer(policy) == request.answer(policy)


@promise
@given(requests(sane=True))
def test_a_request_that_one_numa_node_can_serve_stays_in_one(request: Request) -> None:
    nodes = {request.devices[name].numa_nodes for name in request.must}
    candidates = nodes or {device.numa_nodes for device in request.devices.values()}
    room = {
        node: sum(request.devices[name].numa_nodes == node for name in request.available)
        for node in candidates
    }
    if len(nodes) <= 1 and any(count >= request.size for count in room.values()):
        answer = request.answer(Prefer.TOPOLOGY)
        assert len({request.devices[name].numa_nodes for name in answer}) <= 1


@promise
@given(requests(sane=True))
def test_distinct_gives_different_devices_while_there_are_any(request: Request) -> None:
    answer = [request.devices[name].id for name in request.answer(Prefer.DISTINCT)]
    must = [request.devices[name].id for name in request.must]
    others = {request.devices[name].id for name in request.available} - set(must)
    assert len(set(answer)) == min(len(set(must)) + len(others), len(set(must)) + request.size - len(must))


def shared(**free: int) -> tuple[dict[str, Device], list[str]]:
    """Devices and so many free replicas of each; a name's last digit is the NUMA node."""
    devices = {name: Device(name, numa_nodes=(int(name[-1]),)) for name in free}
    tokens = [f"{name}::{n}" for name, count in free.items() for n in range(count)]
    return {name: devices[name.partition("::")[0]] for name in tokens}, tokens


def picked(policy: Prefer, size: int, **free: int) -> list[str]:
    devices, tokens = shared(**free)
    return answer(policy, devices, tokens, (), size)


def test_pack_fills_the_device_that_has_the_least_left() -> None:
    assert picked(Prefer.PACK, 2, a0=3, b0=2) == ["b0::0", "b0::1"]


def test_pack_fills_the_numa_node_that_has_the_least_left() -> None:
    assert picked(Prefer.PACK, 2, a0=3, b1=2) == ["b1::0", "b1::1"]


def test_spread_takes_one_of_each_device_before_a_second_of_any() -> None:
    assert picked(Prefer.SPREAD, 3, a0=1, b0=2, c1=4) == ["a0::0", "b0::0", "c1::0"]


def test_spread_takes_the_devices_that_fewest_have() -> None:
    devices, tokens = shared(a0=3, b0=3, c1=3)
    left = [name for name in tokens if name not in ("a0::0", "a0::1", "b0::0")]
    assert answer(Prefer.SPREAD, devices, left, (), 1) == ["c1::0"]
    assert answer(Prefer.SPREAD, devices, left, (), 3) == ["b0::1", "c1::0", "c1::1"]


def test_pack_takes_what_is_in_use_before_what_is_fresh() -> None:
    devices, tokens = shared(a0=3, b1=4)
    left = [name for name in tokens if name != "b1::0"]
    assert answer(Prefer.PACK, devices, left, (), 2) == ["b1::1", "b1::2"]


def test_topology_starts_from_what_must_be_included() -> None:
    devices, tokens = shared(a0=3, b1=3)
    assert answer(Prefer.TOPOLOGY, devices, tokens, ["b1::1"], 3) == ["b1::1", "b1::0", "b1::2"]


def test_topology_prefers_the_device_behind_the_same_pcie_switch() -> None:
    paths = {"a": ("root", "s1", "a"), "b": ("root", "s2", "b"), "c": ("root", "s2", "c")}
    devices = {name: Device(name, numa_nodes=(0,), pcie_path=path) for name, path in paths.items()}
    assert answer(Prefer.TOPOLOGY, devices, ["a", "b", "c"], ["c"], 2) == ["c", "b"]


def test_one_device_comes_from_the_switch_that_is_broken_already() -> None:
    """A pod that wants a whole switch must still find one."""
    paths = {name: (f"root{name[0]}", f"s{name[0]}", name) for name in ("a1", "a2", "b1", "b2")}
    devices = {name: Device(name, numa_nodes=(0,), pcie_path=path) for name, path in paths.items()}
    assert answer(Prefer.TOPOLOGY, devices, ["a1", "a2", "b2"], (), 1) == ["b2"]
    assert answer(Prefer.TOPOLOGY, devices, ["a1", "a2", "b2"], (), 2) == ["a1", "a2"]


def test_distinct_takes_functions_of_different_cards() -> None:
    devices = {
        f"{card}v{n}": Device(f"{card}v{n}", part_of=frozenset({f"pci:{card}"}), numa_nodes=(0,))
        for card in "ab"
        for n in range(3)
    }
    assert answer(Prefer.DISTINCT, devices, list(devices), (), 2) == ["av0", "bv0"]
    assert answer(Prefer.PACK, devices, list(devices), (), 2) == ["av0", "av1"]


@pytest.mark.parametrize("kind", ["usb", "block"])
def test_distinct_distinguishes_devices_on_one_controller(kind: str) -> None:
    devices = {
        f"{plugged}{n}": Device(
            f"{plugged}{n}", part_of=frozenset({f"{kind}:{plugged}", "pci:0000:00:14.0"}), numa_nodes=(0,)
        )
        for plugged in "ab"
        for n in range(2)
    }
    assert answer(Prefer.DISTINCT, devices, list(devices), (), 2) == ["a0", "b0"]


def test_distinct_takes_scalable_functions_of_different_adapters() -> None:
    devices = {
        f"{adapter}.sf.{n}": Device(
            f"{adapter}.sf.{n}", part_of=frozenset({f"aux:{adapter}.sf.{n}", f"pci:{adapter}"})
        )
        for adapter in "ab"
        for n in range(2)
    }
    assert answer(Prefer.DISTINCT, devices, list(devices), (), 2) == ["a.sf.0", "b.sf.0"]


def test_topology_takes_the_node_that_is_left_emptiest() -> None:
    assert picked(Prefer.TOPOLOGY, 2, a0=4, b1=2, c2=1) == ["b1::0", "b1::1"]


def test_a_request_no_node_can_serve_uses_as_few_nodes_as_possible() -> None:
    assert picked(Prefer.TOPOLOGY, 5, a0=4, b1=2, c2=1) == ["a0::0", "a0::1", "a0::2", "a0::3", "c2::0"]


@pytest.mark.parametrize("policy", Prefer)
def test_card10_comes_after_card2(policy: Prefer) -> None:
    devices = {f"card{n}": Device(f"card{n}") for n in (10, 2, 1)}
    assert answer(policy, devices, list(devices), (), 2) == ["card1", "card2"]


@pytest.mark.parametrize("policy", Prefer)
def test_replicas_of_one_device_are_taken_by_their_numbers(policy: Prefer) -> None:
    """Without weighing each of them: there may be 100 000, and the kubelet admits no other pod meanwhile."""
    device = Device("kvm", numa_nodes=(0,))
    known = {token("kvm", n, 12): device for n in range(12)}
    available = [f"kvm::{n}" for n in (11, 10, 9, 2, 1)]
    assert answer(policy, known, available, ["kvm::10"], 3) == ["kvm::10", "kvm::1", "kvm::2"]
    assert answer(policy, known, available, [], 9) == [f"kvm::{n}" for n in (1, 2, 9, 10, 11)]
