"""Every policy against trying every choice, on trees, shares and neighbourhoods of all sorts."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from affinity_brute import Scene, above, answer
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.backend.model import Device
from devhost.planning.affinity.policies import Outside
from devhost.planning.affinity.topology import Level
from devhost.planning.settings import Prefer
from devhost.planning.tokens import token

LEVELS = {"node": Level.NODE, "bridge": Level.BRIDGE, "port": Level.PORT, "switch": Level.SWITCH}


class Case:
    """A machine, what of it is free, what must be in the answer, and what is near."""

    def __init__(self, rng: random.Random) -> None:
        self.devices: dict[str, Device] = {}
        self.tokens: dict[str, Device] = {}
        total: Counter[str] = Counter()
        for number in range(rng.randint(1, 6)):
            device = self._device(rng, f"d{number}")
            self.devices[device.id] = device
            total[device.id] = rng.randint(1, 3)
            self.tokens |= {token(device.id, n, total[device.id]): device for n in range(total[device.id])}
        names = sorted(self.tokens)
        self.available = rng.sample(names, rng.randint(1, min(9, len(names))))
        self.must = rng.sample(self.available, rng.choice([0, 0, 0, 1, min(2, len(self.available))]))
        self.size = rng.randint(len(self.must), len(self.available))
        places = [
            (LEVELS[p.level], p.name) for d in self.devices.values() for p in above(d) if p.level in LEVELS
        ]

        def kinds(most: int) -> list[dict[tuple[Level, str], int]]:
            return [
                {place: rng.randint(1, 3) for place in places if rng.random() < 0.4}
                for _ in range(rng.randint(0, most))
            ]

        near = {place: 1 for place in places if rng.random() < 0.2}
        self.outside = Outside(kinds(2), kinds(1), kinds(2), near)
        must = Counter(self.tokens[name].id for name in self.must)
        free = Counter(self.tokens[name].id for name in self.available if name not in self.must)
        self.scene = Scene(self.devices, total, free, must, self.outside)

    @staticmethod
    def _device(rng: random.Random, name: str) -> Device:
        """Ports belong to nodes, switches to ports, cards to switches, as in a machine."""
        port = rng.randrange(4)
        node = (port // 2,)
        if rng.random() < 0.2:
            return Device(name, numa_nodes=rng.choice([(), (0,), (0, 1)]))
        switch = rng.randrange(2)
        path = [f"0000:{port // 2}{rng.choice('0')}:0{port}.0"]
        if rng.random() < 0.7:
            path.append(f"s{port}.{switch}")
        part = frozenset({f"pf{path[-1]}.{rng.randrange(2)}"}) if rng.random() < 0.4 else frozenset[str]()
        return Device(name, numa_nodes=node, part_of=part, pcie_path=(*path, name))


def check(case: Case, policy: Prefer) -> None:
    chosen = answer(policy, case.tokens, case.available, case.must, case.size, case.outside)
    assert len(chosen) == case.size
    assert set(chosen) <= set(case.available)
    assert set(case.must) <= set(chosen)
    mine = Counter(case.tokens[name].id for name in chosen if name not in case.must)
    need = case.size - len(case.must)
    best = max(case.scene.score(policy, choice) for choice in case.scene.choices(need))
    assert case.scene.score(policy, mine) == best


@pytest.mark.parametrize("policy", Prefer)
@pytest.mark.parametrize("seed", range(8))
def test_no_choice_is_better_than_the_one_made(policy: Prefer, seed: int) -> None:
    for number in range(50):
        check(Case(random.Random(f"{seed} {number}")), policy)


@settings(deadline=None, derandomize=True, max_examples=2 * settings().max_examples)
@given(st.randoms(use_true_random=False), st.sampled_from(Prefer))
def test_no_choice_is_better_in_cases_made_to_be_hard(rng: random.Random, policy: Prefer) -> None:
    check(Case(rng), policy)


@pytest.mark.parametrize("policy", Prefer)
def test_what_takes_too_long_is_answered_in_the_spirit_of_the_policy(policy: Prefer) -> None:
    """As long as asked, all different, and the same each time."""
    for number in range(60):
        case = Case(random.Random(number))
        chosen = answer(policy, case.tokens, case.available, case.must, case.size, case.outside, limit=0)
        assert len(chosen) == len(set(chosen)) == case.size
        assert set(case.must) <= set(chosen) <= set(case.available)
        shuffled = random.Random(1).sample(case.available, len(case.available))
        assert answer(policy, case.tokens, shuffled, case.must, case.size, case.outside, limit=0) == chosen
        kinds = Counter(case.tokens[name].id for name in chosen)
        if policy is Prefer.DISTINCT and not case.must:
            cards = {above(case.devices[name])[-2] for name in kinds}
            free = {above(case.devices[case.tokens[name].id])[-2] for name in case.available}
            assert len(cards) == min(len(free), case.size)


@pytest.mark.parametrize("policy", Prefer)
def test_thousands_of_devices_and_of_tokens_are_answered(policy: Prefer) -> None:
    devices = {
        f"d{n}": Device(f"d{n}", numa_nodes=(n % 2,), pcie_path=(f"p{n % 100}", f"d{n}")) for n in range(3000)
    }
    for size in (1, 8, 1500):
        assert len(set(answer(policy, devices, list(devices), (), size, limit=150_000))) == size
