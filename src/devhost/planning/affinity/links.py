"""Which devices to take if some of them are linked: NVLink, XGMI. Pure.

Links are between pairs of devices, so the tree of places cannot add them up. Up to :data:`MAX_EXACT` devices
every set is scored by all criteria, in two halves: the sets within each half are scored once, and only the
links and the places that both halves share are added for each pair of sets. With more devices, the set grows
by the device that adds most, which is fast but not exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .policies import PlaceUsage, Scale
from .solver import Availability
from .topology import Links, Vertex

MAX_EXACT = 16
"""Up to so many devices, every set is scored."""

MAX_LINKED = 64
"""With more devices than this, links do not count."""

MAX_CLOSENESS = 1 << 20
"""Closeness is limited to this, so that the sum over all pairs fits into the width of one criterion."""


def choose(
    availability: Availability, need: int, scale: Scale, links: Links
) -> tuple[list[int] | None, bool]:
    """How many tokens (0 or 1) to take from each candidate, and whether no choice can be better.

    The choice is ``None`` if links do not decide: all are equal, more tokens are wanted than there are
    devices, or there are too many devices. A device with several free tokens is never taken twice, so then
    another choice may be better.
    """
    candidates = [number for number, free in enumerate(availability.free) if free]
    if not links or not scale.links:
        return None, True
    if not 0 < need < len(candidates) <= MAX_LINKED:
        return None, False
    names = [candidate.device.id for candidate in availability.topology.candidates]

    def closeness(a: int, b: int) -> int:
        return max(-MAX_CLOSENESS, min(MAX_CLOSENESS, links.get(frozenset((names[a], names[b])), 0)))

    fixed = [number for number, base in enumerate(availability.base) if base]
    between = [[closeness(a, b) if a != b else 0 for b in candidates] for a in candidates]
    towards = [sum(closeness(number, other) for other in fixed if other != number) for number in candidates]
    pairs = {between[i][j] for i in range(len(candidates)) for j in range(i)}
    single = max(availability.free) == 1
    if len(pairs) <= 1 and len(set(towards)) <= 1:
        return None, single or not any(pairs | set(towards))
    problem = _Problem(
        need,
        [[link * scale.links for link in row] for row in between],
        [link * scale.links for link in towards],
        _places_of(availability, candidates),
        scale.score,
    )
    small = len(candidates) <= MAX_EXACT
    taken = _exhaustive(problem) if small else _greedy(problem)
    chosen = [0] * len(availability.free)
    for index in taken:
        chosen[candidates[index]] = 1
    return chosen, small and single


@dataclass(frozen=True, slots=True)
class _Places:
    """A vertex of the tree: the candidates below it, as bits, and the usage of its places."""

    members: int
    usages: tuple[PlaceUsage, ...]

    def score(self, n: int, score: Callable[[PlaceUsage, int], int]) -> int:
        return sum(score(usage, usage.base + n) for usage in self.usages)


@dataclass(slots=True)
class _Problem:
    need: int
    between: Sequence[Sequence[int]]
    towards: Sequence[int]
    vertices: Sequence[_Places]
    score: Callable[[PlaceUsage, int], int]
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.towards)

    def score_below(self, at: int, n: int) -> int:
        """The score of n devices below a vertex."""
        if (at, n) not in self._known:
            self._known[at, n] = self.vertices[at].score(n, self.score)
        return self._known[at, n]


def _places_of(availability: Availability, candidates: Sequence[int]) -> list[_Places]:
    bits = {number: 1 << index for index, number in enumerate(candidates)}
    found: list[_Places] = []

    def walk(vertex: Vertex) -> int:
        members = bits.get(vertex.candidate, 0)
        for child in vertex.children:
            members |= walk(child)
        usages = availability.kind(vertex).usages
        if members and usages:
            found.append(_Places(members, usages))
        return members

    walk(availability.topology.root)
    return found


def _exhaustive(problem: _Problem) -> list[int]:
    """The best of all sets; of equal ones, the set with the earlier devices."""
    half = problem.size // 2
    low = (1 << half) - 1
    firsts = _within(problem, 0, half)
    seconds = _within(problem, half, problem.size)
    shared = [at for at, v in enumerate(problem.vertices) if v.members & low and v.members & ~low]
    codes = _codes(problem, shared, 0, half), _codes(problem, shared, half, problem.size)
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
            extra = common.get(both)
            if extra is None:
                extra = common[both] = sum(
                    problem.score_below(at, both >> (8 * position) & 255)
                    for position, at in enumerate(shared)
                )
            score = own + firsts[first] + across[first] + extra
            if top is None or score > top or (score == top and _earlier((first, second), best)):
                top, best = score, (first, second)
    mask = best[0] | best[1] << half
    return [index for index in range(problem.size) if mask >> index & 1]


def _earlier(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether a set of devices, as the bits of both halves, comes before another set of the same size."""
    for a, b in zip(one, other, strict=True):
        if a != b:
            differing = a ^ b
            return bool(a & differing & -differing)
    return False


def _within(problem: _Problem, start: int, end: int) -> list[int]:
    """The score of each set of the devices from ``start`` to ``end``, by itself."""
    size = end - start
    span = (1 << size) - 1 << start
    scores = [0] * (1 << size)
    for mask in range(1, 1 << size):
        lowest = (mask & -mask).bit_length() - 1
        rest = mask & (mask - 1)
        row = problem.between[start + lowest]
        score = scores[rest] + problem.towards[start + lowest]
        while rest:
            score += row[start + (rest & -rest).bit_length() - 1]
            rest &= rest - 1
        scores[mask] = score
    for at, places in enumerate(problem.vertices):
        if places.members & ~span:
            continue
        members = places.members >> start
        values = [problem.score_below(at, n) for n in range(members.bit_count() + 1)]
        for mask in range(1 << size):
            scores[mask] += values[(mask & members).bit_count()]
    return scores


def _codes(problem: _Problem, shared: Sequence[int], start: int, end: int) -> list[int]:
    """For each set, how many of its devices are below each shared vertex, in eight bits each."""
    codes = [0] * (1 << (end - start))
    for position, at in enumerate(shared):
        members = problem.vertices[at].members >> start & ((1 << (end - start)) - 1)
        for mask in range(len(codes)):
            codes[mask] |= (mask & members).bit_count() << (8 * position)
    return codes


def _across(problem: _Problem, half: int, second: int) -> list[int]:
    """The score of the links between each set of the first half and one set of the second."""
    others = [index for index in range(half, problem.size) if second >> (index - half) & 1]
    single = [sum(problem.between[index][other] for other in others) for index in range(half)]
    scores = [0] * (1 << half)
    for mask in range(1, 1 << half):
        scores[mask] = scores[mask & (mask - 1)] + single[(mask & -mask).bit_length() - 1]
    return scores


def _greedy(problem: _Problem) -> list[int]:
    """A set that grows by the device that adds most; it starts where the links are strongest."""
    taken: list[int] = []
    counts = [0] * len(problem.vertices)
    below: list[list[int]] = [
        [at for at, v in enumerate(problem.vertices) if v.members >> index & 1]
        for index in range(problem.size)
    ]
    sums = list(problem.towards)

    def adds(index: int) -> int:
        return sums[index] + sum(
            problem.score_below(at, counts[at] + 1) - problem.score_below(at, counts[at])
            for at in below[index]
        )

    def potential(index: int) -> int:
        strongest = sorted(problem.between[index], reverse=True)[: problem.need - 1]
        return adds(index) + sum(strongest)

    for step in range(problem.need):
        left = [index for index in range(problem.size) if index not in taken]
        pick = max(left, key=lambda index: ((adds if step else potential)(index), -index))
        taken.append(pick)
        for at in below[pick]:
            counts[at] += 1
        for index in left:
            sums[index] += problem.between[pick][index]
    return taken
