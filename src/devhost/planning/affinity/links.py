"""Which devices to take if some of them are linked: NVLink, XGMI. Pure.

Links are between pairs of devices, so the tree of places cannot add them up. There are three methods:

- By class (:class:`_Classes`): parts of the tree are joined one by one. Devices of a part with equal links to
  every device outside it are one class, and only the best set of each number of devices from each class is
  kept. Exact, and fast if classes are few: any 64 partitions of GPUs that are all linked alike.
- Up to :data:`MAX_EXACT` devices with too many classes, every set is scored, in two halves: the sets within
  each half are scored once, and only the links and the places that both halves share are added for each pair
  of sets. Exact.
- Otherwise the set grows by the device that adds most, which is fast, but exact only for a single device.

Of equal sets, the exact methods choose the set with the earlier devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import reduce
from math import comb, prod
from operator import mul

from devhost.backend.frozen import frozen, mutable

from .policies import PlaceUsage, Scale
from .solver import LIMIT, Availability, TooMuch
from .topology import Links, Vertex

MAX_EXACT = 16
"""Up to so many devices, every set can be scored."""

MAX_LINKED = 64
"""With more devices than this, links do not count."""

MAX_CLOSENESS = 1 << 20
"""Closeness is limited to this, so that the sum over all pairs fits into the width of one criterion."""

STEPS_OF_A_PAIR = 5
"""Steps that joining two sets counts as, and one more for each class."""

STEPS_OF_A_SET = 4
"""Steps that a set counts as if every set is scored."""


def choose(
    availability: Availability, need: int, scale: Scale, links: Links, limit: int = LIMIT
) -> tuple[list[int] | None, bool]:
    """How many tokens (0 or 1) to take from each candidate, and whether no choice can be better.

    The choice is ``None`` if links do not decide: all are equal, more tokens are wanted than there are
    devices, or there are too many devices. Of a device with several free tokens at most one is taken, so if
    several tokens are wanted, another choice may be better. Beyond ``limit`` steps, the method by class is
    not used.
    """
    problem, exact = _problem(availability, need, scale, links)
    if problem is None:
        return None, exact
    taken, is_best = _taken(problem, limit)
    chosen = [0] * len(availability.free)
    for index in taken:
        chosen[problem.candidates[index]] = 1
    return chosen, exact and is_best


def _taken(problem: _Problem, limit: int) -> tuple[list[int], bool]:
    """The devices to take, and whether no set can be better."""
    if problem.need == 1:
        return _greedy(problem), True
    small = problem.size <= MAX_EXACT
    try:
        return _Classes(problem, min(limit, STEPS_OF_A_SET << problem.size) if small else limit).best(), True
    except TooMuch:
        return (_exhaustive(problem), True) if small else (_greedy(problem), False)


def is_exact(availability: Availability, need: int, scale: Scale, links: Links, limit: int = LIMIT) -> bool:
    """Whether no choice can be better than that of :func:`choose`, without choosing."""
    problem, exact = _problem(availability, need, scale, links)
    if problem is None or need == 1 or problem.size <= MAX_EXACT:
        return exact
    try:
        _Classes(problem, limit)
    except TooMuch:
        return False
    return exact


def _problem(
    availability: Availability, need: int, scale: Scale, links: Links
) -> tuple[_Problem | None, bool]:
    """What links have to decide, if anything, and whether the best of these choices is the best of all."""
    candidates = [number for number, free in enumerate(availability.free) if free]
    if not links or not scale.links:
        return None, True
    names = [candidate.device.id for candidate in availability.topology.candidates]
    fixed = [number for number, base in enumerate(availability.base) if base]
    if not 0 < need < len(candidates) <= MAX_LINKED:
        concerned = {names[number] for number in (*candidates, *fixed)}
        return None, not any(link and pair <= concerned for pair, link in links.items())

    linked: dict[str, dict[str, int]] = {name: {} for name in names}
    for pair, link in links.items():
        one, other = min(pair), max(pair)
        if one in linked and other in linked:
            linked[one][other] = linked[other][one] = max(-MAX_CLOSENESS, min(MAX_CLOSENESS, link))
    # the links of a device that must be included count once, also if another of its tokens is taken
    fresh = [number if number not in fixed else -1 for number in candidates]
    rows = [linked[names[number]] if number >= 0 else {} for number in fresh]
    between = [
        [row.get(names[b], 0) if a != b and b >= 0 else 0 for b in fresh]
        for a, row in zip(fresh, rows, strict=True)
    ]
    towards = [sum(row.get(names[other], 0) for other in fixed) for row in rows]
    pairs = {between[i][j] for i in range(len(candidates)) for j in range(i)}
    single = need == 1 or max(availability.free) == 1
    if len(pairs) <= 1 and len(set(towards)) <= 1:
        return None, single or not any(pairs | set(towards))
    problem = _Problem(
        need,
        candidates,
        [[link * scale.links for link in row] for row in between],
        [link * scale.links for link in towards],
        _places_of(availability, candidates),
        scale.score,
    )
    return problem, single


@frozen(slots=True)
class _Places:
    """A vertex of the tree: the candidates below it, as bits, and the usage of its places."""

    members: int
    usages: tuple[PlaceUsage, ...]

    def score(self, n: int, score: Callable[[PlaceUsage, int], int]) -> int:
        return sum(score(usage, usage.base + n) for usage in self.usages)


@mutable(slots=True)
class _Problem:
    need: int
    candidates: Sequence[int]
    between: Sequence[Sequence[int]]
    towards: Sequence[int]
    vertices: Sequence[_Places]
    score: Callable[[PlaceUsage, int], int]
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.candidates)

    def score_below(self, at: int, n: int) -> int:
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


@mutable(eq=False, slots=True)
class _Part:
    """Devices, as bits, in classes: devices of one class have equal links to every device outside the part.

    ``examples`` has one device of each class, ``sizes`` the number of its devices. ``joined`` are the two
    parts that the part consists of, ``into`` the class that each of their classes is in. ``vertices`` are
    those with exactly these devices.
    """

    members: int
    examples: Sequence[int]
    sizes: Sequence[int]
    joined: tuple[_Part, _Part] | None = None
    into: Sequence[int] = (0,)
    vertices: list[int] = field(default_factory=list)


class _Classes:
    """Joins parts until all devices are in one. Raises ``TooMuch`` if it would take more than ``limit``
    steps.

    The sets of a part are a mapping from a key to the score of the best set. A key has the number of devices
    in its lowest eight bits, then eight bits for the number of devices of each class; a set that needs no
    further device has only the former. The lowest bits of a score, one for each device, are the set itself,
    so that of equal sets the one with the earlier devices has the higher score.
    """

    def __init__(self, problem: _Problem, limit: int) -> None:
        self._problem = problem
        self._left = limit
        self._root = self._planned()

    def best(self) -> list[int]:
        size = self._problem.size
        score = self._sets(self._root)[self._problem.need]
        return [index for index in range(size) if score >> (size - 1 - index) & 1]

    def _planned(self) -> _Part:
        """The parts to join, after counting the steps that this takes."""
        parts = [_Part(1 << index, (index,), (1,)) for index in self._order()]
        alone = {part.members: part for part in parts}
        for at, places in enumerate(self._problem.vertices):
            if places.members in alone:
                alone[places.members].vertices.append(at)
                continue
            inside = [part for part in parts if not part.members & ~places.members]
            part = reduce(self._joined, inside)
            part.vertices.append(at)
            parts[parts.index(inside[0])] = part
            parts = [one for one in parts if one is part or one not in inside]
        return reduce(self._joined, parts)

    def _order(self) -> list[int]:
        """The devices, each time the one with the strongest link to those before it.

        So devices that are linked alike are joined early, and their classes become one.
        """
        found: list[int] = []
        strongest = dict.fromkeys(range(self._problem.size), min(map(min, self._problem.between)))
        while strongest:
            pick = max(strongest, key=strongest.__getitem__)  # of equal ones, the first
            found.append(pick)
            del strongest[pick]
            row = self._problem.between[pick]
            for index, link in strongest.items():
                if row[index] > link:
                    strongest[index] = row[index]
        return found

    def _joined(self, one: _Part, other: _Part) -> _Part:
        """Both parts as one. Raises ``TooMuch`` if there are too many steps."""
        self._left -= self._most(one) * self._most(other) * (STEPS_OF_A_PAIR + len(one.sizes))
        if self._left < 0:
            raise TooMuch
        members = one.members | other.members
        outside = [index for index in range(self._problem.size) if not members >> index & 1]
        classes: dict[tuple[int, ...], int] = {}
        examples: list[int] = []
        sizes: list[int] = []
        into = []
        for index, size in zip((*one.examples, *other.examples), (*one.sizes, *other.sizes), strict=True):
            row = self._problem.between[index]
            at = classes.setdefault(tuple([row[other] for other in outside]), len(classes))
            if at == len(examples):
                examples.append(index)
                sizes.append(0)
            into.append(at)
            sizes[at] += size
        return _Part(members, examples, sizes, (one, other), into)

    def _most(self, part: _Part) -> int:
        """How many sets a part can have at most."""
        further = self._problem.need - 1
        either = prod(min(size, further) + 1 for size in part.sizes), comb(len(part.sizes) + further, further)
        return min(either) + 1

    def _sets(self, part: _Part) -> dict[int, int]:
        problem = self._problem
        found = self._pairs(part, *part.joined) if part.joined else self._alone(part.examples[0])
        below = [
            sum(problem.score_below(at, n) for at in part.vertices) << problem.size
            for n in range(min(problem.need, sum(part.sizes)) + 1)
        ]
        return {key: score + below[key & 255] for key, score in found.items()}

    def _alone(self, index: int) -> dict[int, int]:
        problem = self._problem
        bit = 1 << (problem.size - 1 - index)
        one = 1 + (1 << 8)  # of the only class
        return {0: 0, one: (problem.towards[index] << problem.size) + bit}

    def _pairs(self, part: _Part, one: _Part, other: _Part) -> dict[int, int]:
        problem = self._problem
        firsts = self._counted(one, part.into[: len(one.sizes)])
        links = [[problem.between[a][b] << problem.size for b in other.examples] for a in one.examples]
        found: dict[int, int] = {}
        for n, counts, key, score in self._counted(other, part.into[len(one.sizes) :]):
            weights = [sum(map(mul, counts, row)) for row in links]
            for m, others, first, value in firsts:
                if n + m > problem.need:
                    continue
                both = first + key if n + m < problem.need else problem.need
                total = value + score + sum(map(mul, others, weights))
                if both not in found or total > found[both]:
                    found[both] = total
        return found

    def _counted(self, part: _Part, into: Sequence[int]) -> list[tuple[int, list[int], int, int]]:
        """The sets of a part: number, number of each class, key in the part that it is joined to, score."""
        shifts, factors = range(8, 8 * len(part.sizes) + 8, 8), [1 << (8 * at + 8) for at in into]
        found = []
        for key, score in self._sets(part).items():
            n, counts = key & 255, [key >> shift & 255 for shift in shifts]
            found.append((n, counts, n + sum(map(mul, counts, factors)), score))
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
