"""What each ``prefer`` of a resource means, a list of criteria, and the choice that is best by it. Pure.

Each criterion is a sum over places of a value that depends only on how many tokens are chosen there, so that
:func:`best` can compute the best choice from the leaves of the tree upwards. Every policy must keep to
that. ``docs/affinity.md`` explains the order of the criteria.

:func:`best` solves a knapsack over the tree of places: for each vertex, the best score of each number of
tokens. Equal places are computed once, and of equal children only as many are considered as tokens are
wanted, so 10 000 equal devices cost little more than ten. Of equal scores, the devices that come first in
natural order win.

Work is bounded: a choice that would take more than :data:`LIMIT` steps is refused, and :func:`descend` or
:func:`even` makes a fast one that is not exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain
from math import comb

from devhost.backend.frozen import frozen, mutable
from devhost.planning.settings import Prefer

from .topology import Level, Place, Topology, Vertex


@frozen(slots=True)
class PlaceUsage:
    """The tokens at one place.

    ``total`` is what the resource has here, ``free`` what can be chosen, ``base`` what the answer must
    include. ``got`` is what the container already has here, by other resource. ``together`` and ``others``
    are what is free here of resources of which the container has nothing: ``together`` of those that
    containers were seen to use together with this one. ``near`` is whether the previous container has
    something here.
    """

    level: Level
    total: int
    free: int
    base: int
    got: tuple[int, ...] = ()
    together: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    near: bool = False

    @property
    def used(self) -> int:
        """Tokens that other containers have."""
        return self.total - self.free - self.base

    def left(self, chosen: int) -> int:
        """Tokens that are free afterwards."""
        return self.free + self.base - chosen


@frozen
class Criterion:
    """``score(usage, n)`` of choosing n tokens at a place on one of the ``levels``; more is better."""

    name: str
    levels: frozenset[Level]
    score: Callable[[PlaceUsage, int], int]


NODE, BRIDGE, PORT, SWITCH, CARD, DEVICE = (frozenset({level}) for level in Level)
PCIE = BRIDGE | PORT | SWITCH
ABOVE = NODE | PCIE


def _matched(usage: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in usage.got)


def _covered(usage: PlaceUsage, n: int) -> int:
    return sum(usage.got) if n else 0


def _together(usage: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in usage.together)


def _others(usage: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in usage.others)


def _touched(usage: PlaceUsage, n: int) -> int:
    return int(n > 0)


def _untouched(usage: PlaceUsage, n: int) -> int:
    return -int(n > 0)


def _pairs(usage: PlaceUsage, n: int) -> int:
    return comb(n, 2)


def _repeats(usage: PlaceUsage, n: int) -> int:
    return -comb(n, 2)


def _broken(usage: PlaceUsage, n: int) -> int:
    return -int(0 < n < usage.total and not usage.used)


def _fresh(usage: PlaceUsage, n: int) -> int:
    return -int(n > 0 and not usage.used)


def _blocks(usage: PlaceUsage, n: int) -> int:
    return usage.left(n) ** 2


def _near(usage: PlaceUsage, n: int) -> int:
    return n if usage.near else 0


def _load(usage: PlaceUsage, n: int) -> int:
    return -((usage.used + n) ** 2)


CONTEXT = (
    Criterion("pairs with what it has on one switch", PORT, _matched),
    Criterion("pairs with what it has on one NUMA node", NODE, _matched),
    Criterion("what it has gets something beside it", PORT, _covered),
    Criterion("pairs with what it has on one host bridge", BRIDGE, _matched),
    Criterion("pairs with what it has below one switch port", SWITCH, _matched),
)
"""Near what the same container already has of other resources."""

LINKS = Criterion("links", frozenset(), lambda usage, n: 0)
"""How closely the devices are linked. It is a sum over pairs instead of places, see :mod:`.links`."""

TOPOLOGY = (
    *CONTEXT,
    Criterion("free beside it on one switch, of kinds seen with it", PORT, _together),
    Criterion("free beside it on one switch, of other kinds", PORT, _others),
    LINKS,
    Criterion("few NUMA nodes", NODE, _untouched),
    Criterion("free beside it on one NUMA node, of kinds seen with it", NODE, _together),
    Criterion("free beside it on one NUMA node, of other kinds", NODE, _others),
    Criterion("different devices", DEVICE, _touched),
    Criterion("close to each other", ABOVE, _pairs),
    Criterion("replicas of all devices alike", DEVICE, _repeats),
    Criterion("no whole place broken", ABOVE | CARD | DEVICE, _broken),
    Criterion("large blocks left", ABOVE | CARD | DEVICE, _blocks),
    Criterion("near the container before", ABOVE, _near),
)

PACK = (
    Criterion("few fresh physical devices", CARD, _fresh),
    Criterion("few fresh devices", DEVICE, _fresh),
    Criterion("few fresh switches", PORT | SWITCH, _fresh),
    Criterion("few fresh NUMA nodes", NODE, _fresh),
    Criterion("few physical devices", CARD, _untouched),
    Criterion("few devices", DEVICE, _untouched),
    Criterion("few switches", PORT | SWITCH, _untouched),
    Criterion("few NUMA nodes", NODE, _untouched),
    *CONTEXT,
    Criterion("best fit of physical devices", CARD, _blocks),
    Criterion("best fit of devices", DEVICE, _blocks),
    Criterion("best fit of switches", PORT | SWITCH, _blocks),
    Criterion("best fit of NUMA nodes", NODE, _blocks),
)

SPREAD = (
    Criterion("physical devices alike", CARD, _load),
    Criterion("devices alike", DEVICE, _load),
    Criterion("NUMA nodes alike", NODE, _load),
    Criterion("host bridges alike", BRIDGE, _load),
    Criterion("switches alike", PORT | SWITCH, _load),
    *CONTEXT,
)

DISTINCT = (Criterion("different physical devices", CARD, _touched), *TOPOLOGY)

POLICIES: Mapping[Prefer, tuple[Criterion, ...]] = {
    Prefer.TOPOLOGY: TOPOLOGY,
    Prefer.PACK: PACK,
    Prefer.SPREAD: SPREAD,
    Prefer.DISTINCT: DISTINCT,
}

BITS = 48
"""Width of one criterion in a score. A list has at most 100 000 tokens, so no sum over places exceeds it."""


class Scale:
    """Turns the scores of all criteria into one number, which compares as they do in their order."""

    def __init__(self, criteria: tuple[Criterion, ...]) -> None:
        self.criteria = criteria
        shift = {criterion.name: BITS * (len(criteria) - 1 - at) for at, criterion in enumerate(criteria)}
        self.links = 1 << shift[LINKS.name] if LINKS.name in shift else 0
        """The weight of one unit of closeness."""
        self.companions = any(criterion.score in (_together, _others) for criterion in criteria)
        """Whether free devices of other resources count."""
        self._at = {
            level: tuple((c.score, 1 << shift[c.name]) for c in criteria if level in c.levels)
            for level in Level
        }

    def score(self, usage: PlaceUsage, n: int) -> int:
        return sum(score(usage, n) * weight for score, weight in self._at[usage.level])

    def parts(self, usage: PlaceUsage, n: int) -> dict[str, int]:
        """The same by criterion, for the log."""
        return {c.name: c.score(usage, n) for c in self.criteria if usage.level in c.levels}


SCALES = {policy: Scale(criteria) for policy, criteria in POLICIES.items()}


LIMIT = 150_000
"""Steps, each about 0.2 µs: about 30 ms in all."""

STEPS_OF_A_SCORE = 10
"""Steps that computing the score of one place counts as."""


class TooMuch(Exception):
    """The choice would take too many steps."""


@frozen
class Outside:
    """What other resources have near the devices, by place.

    The fields are those of :class:`.PlaceUsage`; each resource of ``got``, ``together`` and ``others`` is a
    mapping.
    """

    got: Sequence[Mapping[Place, int]] = ()
    together: Sequence[Mapping[Place, int]] = ()
    others: Sequence[Mapping[Place, int]] = ()
    near: Mapping[Place, int] = field(default_factory=dict)

    def here(self, place: Place) -> _Near:
        """What is at one place: got, together, others, near."""
        return (
            tuple(counts.get(place, 0) for counts in self.got),
            tuple(counts.get(place, 0) for counts in self.together),
            tuple(counts.get(place, 0) for counts in self.others),
            place in self.near,
        )

    def places(self) -> Iterator[Place]:
        return chain(*self.got, *self.together, *self.others, self.near)


NOTHING = Outside()

_Near = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]
_ALONE: _Near = ((), (), (), False)


@mutable(eq=False, slots=True)
class VertexClass:
    """Vertices that nothing distinguishes, with the best choice of each number of tokens below one of them.

    ``values[n]`` is the best score of n tokens besides those that the answer must include. ``kept`` are the
    positions of the children that are considered, ``picks[i][n]`` how many tokens the i-th of them gets if n
    go to it and to those after it.
    """

    free: int
    total: int
    base: int
    usages: tuple[PlaceUsage, ...]
    children: tuple[VertexClass, ...] = ()
    values: list[int] | None = None
    kept: list[int] = field(default_factory=list)
    picks: list[list[int]] = field(default_factory=list)


class Availability:
    """What is free in a topology, for one request.

    ``free`` are the tokens that can be chosen, ``base`` those that the answer must include, by number of the
    candidate.
    """

    def __init__(
        self, topology: Topology, free: Sequence[int], base: Sequence[int], outside: Outside = NOTHING
    ) -> None:
        self.topology = topology
        self.free = free
        self.base = base
        self._outside = outside
        self._occupied = frozenset(outside.places())
        self._known: dict[object, VertexClass] = {}
        self._leaves: dict[int, VertexClass] = {}
        self._kinds: dict[int, VertexClass] = {}
        self.root = self._kind_of(topology.root)

    def kind(self, vertex: Vertex) -> VertexClass:
        return self._leaves[vertex.candidate] if vertex.candidate >= 0 else self._kinds[id(vertex)]

    def _kind_of(self, vertex: Vertex) -> VertexClass:
        if vertex.candidate >= 0:
            return self._leaf(vertex)
        children = tuple(
            [self._leaf(child) if child.candidate >= 0 else self._kind_of(child) for child in vertex.children]
        )
        free = total = base = 0
        for child in children:
            free += child.free
            total += child.total
            base += child.base
        outside = self._outside_of(vertex)
        key = (vertex.levels, free, total, base, outside, tuple(map(id, children)))
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = self._kind(vertex, free, total, base, outside, children)
        self._kinds[id(vertex)] = kind
        return kind

    def _leaf(self, vertex: Vertex) -> VertexClass:
        number = vertex.candidate
        free, base, total = self.free[number], self.base[number], self.topology.candidates[number].total
        outside = self._outside_of(vertex)
        key = (vertex.levels, free, total, base, outside)
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = self._kind(vertex, free, total, base, outside)
        self._leaves[number] = kind
        return kind

    def _outside_of(self, vertex: Vertex) -> tuple[_Near, ...]:
        if not vertex.outside or self._occupied.isdisjoint(vertex.places):
            return ()
        return tuple([self._outside.here(place) for place in vertex.places])

    def _kind(
        self,
        vertex: Vertex,
        free: int,
        total: int,
        base: int,
        outside: tuple[_Near, ...],
        children: tuple[VertexClass, ...] = (),
    ) -> VertexClass:
        near = outside or (_ALONE,) * len(vertex.levels)
        usages = tuple(
            PlaceUsage(level, total, free, base, *what)
            for level, what in zip(vertex.levels, near, strict=True)
        )
        return VertexClass(free, total, base, usages, children)


def best(availability: Availability, need: int, scale: Scale, limit: int = LIMIT) -> list[int]:
    """How many tokens to take from each candidate, ``need`` in all; at least as many must be free.

    Raises ``TooMuch`` if it would take more than ``limit`` steps.
    """
    table = _Table(need, scale, limit)
    table.plan(availability.root)
    table.fill(availability.root)
    chosen = [0] * len(availability.free)
    _read(availability, availability.topology.root, need, chosen)
    return chosen


def _read(availability: Availability, vertex: Vertex, n: int, chosen: list[int]) -> None:
    if vertex.candidate >= 0:
        chosen[vertex.candidate] = n
        return
    kind = availability.kind(vertex)
    for position, pick in zip(kind.kept, kind.picks, strict=True):
        if n == 0:
            return
        _read(availability, vertex.children[position], pick[n], chosen)
        n -= pick[n]


class _Table:
    def __init__(self, need: int, scale: Scale, limit: int) -> None:
        self._need = need
        self._scale = scale
        self._left = limit
        self._planned: set[VertexClass] = set()

    def plan(self, kind: VertexClass) -> None:
        """Finds the children that have to be considered. Raises ``TooMuch`` if there are too many steps."""
        if kind in self._planned:
            return
        self._planned.add(kind)
        seen: Counter[VertexClass] = Counter()
        size, reach = min(self._need, kind.free), 0
        for position, child in enumerate(kind.children):
            if child.free and seen[child] < self._need:
                seen[child] += 1
                kind.kept.append(position)
                some = min(size, child.free)
                reach = min(size, reach + some)
                self._left -= (some + 1) * (reach + 1)
        self._left -= size * len(kind.usages) * STEPS_OF_A_SCORE
        if self._left < 0:
            raise TooMuch
        for child in seen:
            self.plan(child)

    def fill(self, kind: VertexClass) -> list[int]:
        """The values of a kind, computed once."""
        if kind.values is not None:
            return kind.values
        size = min(self._need, kind.free)
        values = self._joined(kind, size) if kind.children else [0] * (size + 1)
        for usage in kind.usages:
            zero = self._scale.score(usage, usage.base)
            for n in range(1, size + 1):
                values[n] += self._scale.score(usage, usage.base + n) - zero
        kind.values = values
        return values

    def _joined(self, kind: VertexClass, size: int) -> list[int]:
        values = [0]
        for position in reversed(kind.kept):
            values, pick = _merged(self.fill(kind.children[position]), values, size)
            kind.picks.append(pick)
        kind.picks.reverse()
        return values


def _merged(one: list[int], rest: list[int], size: int) -> tuple[list[int], list[int]]:
    """The best of both together by number of tokens, and how many come from ``one``, the more the better."""
    values, picks = [], []
    for n in range(min(size, len(one) + len(rest) - 2) + 1):
        high = min(n, len(one) - 1)
        pick, value = high, one[high] + rest[n - high]
        for take in range(high - 1, max(0, n - len(rest) + 1) - 1, -1):
            other = one[take] + rest[n - take]
            if other > value:
                pick, value = take, other
        values.append(value)
        picks.append(pick)
    return values, picks


def descend(availability: Availability, need: int, scale: Scale) -> list[int]:
    """A good choice in little time: at each place, all tokens come from the best child that has enough.

    If no child has enough, the child with the most tokens gives all it has, and the rest is chosen in the
    same way.
    """
    chosen = [0] * len(availability.free)
    _descend(availability, availability.topology.root, need, scale, chosen)
    return chosen


def _descend(availability: Availability, vertex: Vertex, need: int, scale: Scale, chosen: list[int]) -> None:
    if vertex.candidate >= 0:
        chosen[vertex.candidate] = need
        return
    ranks: dict[tuple[VertexClass, int], tuple[int, int]] = {}

    def rank(child: Vertex) -> tuple[int, int]:
        kind = availability.kind(child)
        n = min(kind.free, need)
        if (kind, n) not in ranks:
            score = sum(
                scale.score(usage, usage.base + n) - scale.score(usage, usage.base) for usage in kind.usages
            )
            ranks[kind, n] = (-n, -score)
        return ranks[kind, n]

    left = sorted((child for child in vertex.children if availability.kind(child).free), key=rank)
    for at, child in enumerate(left):
        n = min(availability.kind(child).free, need)
        if n == need:
            last = min((other for other in left[at:] if availability.kind(other).free >= need), key=rank)
            _descend(availability, last, need, scale, chosen)
            return
        _descend(availability, child, n, scale, chosen)
        need -= n


def even(availability: Availability, need: int, loads: Callable[[int], int]) -> list[int]:
    """Fills the least loaded candidates up to a common level; the fast method of ``spread``."""
    candidates = [number for number, free in enumerate(availability.free) if free]
    load = {number: loads(number) for number in candidates}
    alike = Counter((load[number], availability.free[number]) for number in candidates)

    def filled(level: int) -> int:
        return sum(max(0, min(free, level - height)) * times for (height, free), times in alike.items())

    low, high = min(load.values()), max(load.values()) + need
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if filled(level) <= need else (low, level - 1)
    chosen = [0] * len(availability.free)
    rest = need - filled(low)
    for number in candidates:
        chosen[number] = max(0, min(availability.free[number], low - load[number]))
        if rest and low - load[number] == chosen[number] < availability.free[number]:
            chosen[number] += 1
            rest -= 1
    return chosen


def totals(availability: Availability, chosen: Iterable[int], scale: Scale) -> dict[str, int]:
    """The score of a choice by criterion, for the log; without links."""
    counts = list(chosen)
    found: Counter[str] = Counter()

    def walk(vertex: Vertex) -> int:
        kind = availability.kind(vertex)
        n = counts[vertex.candidate] if vertex.candidate >= 0 else sum(map(walk, vertex.children))
        for usage in kind.usages:
            found.update(scale.parts(usage, usage.base + n))
        return n

    walk(availability.topology.root)
    return {name: value for name, value in found.items() if value}
