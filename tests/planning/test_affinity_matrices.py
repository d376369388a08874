"""Machines with many GPUs and any links between them: the exact best set, every time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from affinity_brute import answer

from devhost.backend.model import Device
from devhost.planning.affinity.topology import Links
from devhost.planning.settings import Prefer

GPUS = 16

SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 14, 15)


def machine(count: int) -> dict[str, Device]:
    """Two GPUs at each switch, half of the switches at each socket."""
    return {
        f"g{n}": Device(
            f"g{n}", numa_nodes=(n * 2 // count,), pcie_path=(f"0000:{n // 2:x}0:00.0", f"d{n}", f"g{n}")
        )
        for n in range(count)
    }


def matrix(rng: random.Random, count: int) -> list[list[int]]:
    """The links of a machine of no particular design: dense or sparse, alike or of all strengths."""
    most, share = rng.choice((1, 2, 4, 18)), rng.choice((0.2, 0.5, 1.0))
    found = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        found[a][b] = found[b][a] = rng.randint(1, most) if rng.random() < share else 0
    return found


def best(table: Sequence[Sequence[int]], size: int) -> int:
    """The highest sum of links that a set of so many can have, by trying all of them."""
    top = 0

    def grow(start: int, left: int, score: int, sums: list[int]) -> None:
        nonlocal top
        if left == 1:
            top = max(top, score + max(sums[start:]))
            return
        for n in range(start, len(table) - left + 1):
            row = table[n]
            grow(n + 1, left - 1, score + sums[n], [x + y for x, y in zip(sums, row, strict=True)])

    grow(0, size, 0, [0] * len(table))
    return top


@pytest.mark.parametrize(
    "batch", [pytest.param(batch, marks=pytest.mark.slow if batch > 1 else ()) for batch in range(20)]
)
def test_sixteen_gpus_are_chosen_as_trying_all_sets_would(batch: int) -> None:
    """1000 matrices in all."""
    rng = random.Random(batch)
    devices = machine(GPUS)
    names = list(devices)
    for number in range(50):
        table = matrix(rng, GPUS)
        links: Links = {
            frozenset((names[a], names[b])): table[a][b]
            for a, b in combinations(range(GPUS), 2)
            if table[a][b]
        }
        free = sorted(rng.sample(range(GPUS), rng.choice((GPUS, GPUS, GPUS, 13, 9))))
        size = min(SIZES[number % len(SIZES)], len(free) - 1)
        chosen = answer(Prefer.TOPOLOGY, devices, [names[n] for n in free], (), size, links=links)
        picked = {names.index(name) for name in chosen}
        assert picked <= set(free)
        assert len(picked) == size
        left = [[table[a][b] for b in free] for a in free]
        assert sum(table[a][b] for a, b in combinations(picked, 2)) == best(left, size)
