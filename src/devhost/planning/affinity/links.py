"""Which devices to take where some are joined more closely than others: NVLink, XGMI. Pure.

Links are between pairs, so no tree can add them up. Up to :data:`EXACT` devices every set is weighed,
with all other criteria, in two halves: the sets within the first half and within the second are worked
out once, and only what lies between the halves is added for each pair of them. Beyond that the set grows
by the device that adds most, which is quick and not exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .policies import PlaceUsage, Scale
from .solver import Availability
from .topology import Links, Vertex

EXACT = 16
"""Devices up to which the best set is found for certain."""

GROWING = 64
"""Devices up to which links count at all."""

STRONGEST = 1 << 20
"""The highest closeness that is told from a higher one."""


def choose(stand: Availability, need: int, scale: Scale, links: Links) -> tuple[list[int], bool] | None:
    """How many tokens (0 or 1) to take from each candidate, ``need`` in all; and whether no choice is better.

    ``None`` where links say nothing: all are alike, more tokens are wanted than there are devices, or there
    are too many devices.
    """
    candidates = [number for number, free in enumerate(stand.free) if free]
    if not links or not scale.links or not 0 < need < len(candidates) <= GROWING:
        return None
    names = [candidate.device.id for candidate in stand.topology.candidates]

    def joined(a: int, b: int) -> int:
        return max(-STRONGEST, min(STRONGEST, links.get(frozenset((names[a], names[b])), 0)))

    fixed = [number for number, base in enumerate(stand.base) if base]
    between = [[joined(a, b) if a != b else 0 for b in candidates] for a in candidates]
    towards = [sum(joined(number, other) for other in fixed if other != number) for number in candidates]
    pairs = {between[i][j] for i in range(len(candidates)) for j in range(i)}
    if len(pairs) <= 1 and len(set(towards)) <= 1:
        return None
    problem = _Problem(
        need,
        [[closeness * scale.links for closeness in row] for row in between],
        [closeness * scale.links for closeness in towards],
        _crossings(stand, candidates),
        scale.worth,
    )
    exact = len(candidates) <= EXACT
    taken = _halves(problem) if exact else _grown(problem)
    chosen = [0] * len(stand.free)
    for index in taken:
        chosen[candidates[index]] = 1
    return chosen, exact


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A vertex of the tree: which candidates are below it, as bits, and what n of them are worth."""

    members: int
    usages: tuple[PlaceUsage, ...]

    def worth(self, n: int, worth: Callable[[PlaceUsage, int], int]) -> int:
        return sum(worth(here, here.base + n) for here in self.usages)


@dataclass(slots=True)
class _Problem:
    need: int
    between: Sequence[Sequence[int]]
    towards: Sequence[int]
    crossings: Sequence[_Crossing]
    worth: Callable[[PlaceUsage, int], int]
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.towards)

    def crossing(self, at: int, n: int) -> int:
        """What n devices below a vertex are worth."""
        if (at, n) not in self._known:
            self._known[at, n] = self.crossings[at].worth(n, self.worth)
        return self._known[at, n]


def _crossings(stand: Availability, candidates: Sequence[int]) -> list[_Crossing]:
    bits = {number: 1 << index for index, number in enumerate(candidates)}
    found: list[_Crossing] = []

    def walk(vertex: Vertex) -> int:
        members = bits.get(vertex.candidate, 0)
        for child in vertex.children:
            members |= walk(child)
        usages = stand.kind(vertex).usages
        if members and usages:
            found.append(_Crossing(members, usages))
        return members

    walk(stand.topology.root)
    return found


def _halves(problem: _Problem) -> list[int]:
    """The best of all sets; of equal ones that with the earlier devices."""
    half = problem.size // 2
    low = (1 << half) - 1
    firsts = _within(problem, 0, half)
    seconds = _within(problem, half, problem.size)
    astride = [at for at, c in enumerate(problem.crossings) if c.members & low and c.members & ~low]
    codes = _codes(problem, astride, 0, half), _codes(problem, astride, half, problem.size)
    by_count: dict[int, list[int]] = defaultdict(list)
    for mask in range(1 << half):
        by_count[mask.bit_count()].append(mask)
    common: dict[int, int] = {}
    top: int | None = None
    best = (0, 0)
    for second in range(len(seconds)):
        count = problem.need - second.bit_count()
        if not 0 <= count <= half:
            continue
        across = _across(problem, half, second)
        code, own = codes[1][second], seconds[second]
        for first in by_count[count]:
            both = code + codes[0][first]
            shared = common.get(both)
            if shared is None:
                shared = common[both] = sum(
                    problem.crossing(at, both >> (8 * place) & 255) for place, at in enumerate(astride)
                )
            worth = own + firsts[first] + across[first] + shared
            if top is None or worth > top or (worth == top and _earlier((first, second), best)):
                top, best = worth, (first, second)
    mask = best[0] | best[1] << half
    return [index for index in range(problem.size) if mask >> index & 1]


def _earlier(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a set of devices, as bits, comes before another one of as many."""
    for a, b in zip(one, other, strict=True):
        if a != b:
            differing = a ^ b
            return bool(a & differing & -differing)
    return False


def _within(problem: _Problem, start: int, end: int) -> list[int]:
    """What each set of the devices from ``start`` to ``end`` is worth, without what goes beyond them."""
    size = end - start
    span = (1 << size) - 1 << start
    worths = [0] * (1 << size)
    for mask in range(1, 1 << size):
        lowest = (mask & -mask).bit_length() - 1
        rest = mask & (mask - 1)
        row = problem.between[start + lowest]
        worth = worths[rest] + problem.towards[start + lowest]
        while rest:
            worth += row[start + (rest & -rest).bit_length() - 1]
            rest &= rest - 1
        worths[mask] = worth
    for at, crossing in enumerate(problem.crossings):
        if crossing.members & ~span:
            continue
        members = crossing.members >> start
        values = [problem.crossing(at, n) for n in range(members.bit_count() + 1)]
        for mask in range(1 << size):
            worths[mask] += values[(mask & members).bit_count()]
    return worths


def _codes(problem: _Problem, astride: Sequence[int], start: int, end: int) -> list[int]:
    """For each set, how many of it are below each vertex that both halves share: eight bits each."""
    codes = [0] * (1 << (end - start))
    for place, at in enumerate(astride):
        members = problem.crossings[at].members >> start & ((1 << (end - start)) - 1)
        for mask in range(len(codes)):
            codes[mask] |= (mask & members).bit_count() << (8 * place)
    return codes


def _across(problem: _Problem, half: int, second: int) -> list[int]:
    """What the links between each set of the first half and one of the second are worth."""
    others = [index for index in range(half, problem.size) if second >> (index - half) & 1]
    single = [sum(problem.between[index][other] for other in others) for index in range(half)]
    worths = [0] * (1 << half)
    for mask in range(1, 1 << half):
        worths[mask] = worths[mask & (mask - 1)] + single[(mask & -mask).bit_length() - 1]
    return worths


def _grown(problem: _Problem) -> list[int]:
    """A set that grows by the device that adds most; it begins where the strongest links are."""
    taken: list[int] = []
    counts = [0] * len(problem.crossings)
    below: list[list[int]] = [
        [at for at, c in enumerate(problem.crossings) if c.members >> index & 1]
        for index in range(problem.size)
    ]
    sums = list(problem.towards)

    def adds(index: int) -> int:
        return sums[index] + sum(
            problem.crossing(at, counts[at] + 1) - problem.crossing(at, counts[at]) for at in below[index]
        )

    def promises(index: int) -> int:
        strongest = sorted(problem.between[index], reverse=True)[: problem.need - 1]
        return adds(index) + sum(strongest)

    for step in range(problem.need):
        left = [index for index in range(problem.size) if index not in taken]
        pick = max(left, key=lambda index: ((adds if step else promises)(index), -index))
        taken.append(pick)
        for at in below[pick]:
            counts[at] += 1
        for index in left:
            sums[index] += problem.between[pick][index]
    return taken
