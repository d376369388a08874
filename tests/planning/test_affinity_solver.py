"""The solver by itself: which of equal choices it takes, and that its work is bounded."""

from __future__ import annotations

import pytest
from affinity_brute import topology

from devhost.backend.model import Device
from devhost.planning.affinity.policies import SCALES, Availability, PlaceUsage, Scale, TooMuch, best
from devhost.planning.settings import Prefer


class CountingScale(Scale):
    """The scale of ``topology``, which counts the scores it is asked for."""

    def __init__(self) -> None:
        super().__init__(SCALES[Prefer.TOPOLOGY].criteria)
        self.asked = 0

    def score(self, usage: PlaceUsage, n: int) -> int:
        self.asked += 1
        return super().score(usage, n)


def availability(*nodes: int) -> Availability:
    """Devices that are free, each near one of these NUMA nodes."""
    devices = {f"d{number}": Device(f"d{number}", numa_nodes=(node,)) for number, node in enumerate(nodes)}
    return Availability(topology(devices), [1] * len(nodes), [0] * len(nodes))


def test_a_choice_that_would_take_too_long_is_refused_before_any_score_is_computed() -> None:
    scale = CountingScale()
    with pytest.raises(TooMuch):
        best(availability(0, 0, 1, 1), 2, scale, limit=20)
    assert scale.asked == 0


@pytest.mark.parametrize("policy", Prefer)
def test_of_equal_devices_the_first_ones_are_taken(policy: Prefer) -> None:
    assert best(availability(0, 0, 0, 0), 2, SCALES[policy]) == [1, 1, 0, 0]
    assert best(availability(0, 1, 2, 3), 1, SCALES[policy]) == [1, 0, 0, 0]


@pytest.mark.parametrize("free", [(1, 2), (2, 1)])
def test_of_different_devices_with_equal_scores_the_first_one_is_taken(free: tuple[int, int]) -> None:
    """``spread`` counts only what is in use."""
    tokens = {f"d{n}::{k}": Device(f"d{n}") for n in range(2) for k in range(free[n])}
    assert best(Availability(topology(tokens), free, (0, 0)), 1, SCALES[Prefer.SPREAD]) == [1, 0]
