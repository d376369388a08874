"""How many tokens to take from each device so that the worth is greatest. Pure and exact.

A knapsack over the tree of places, from the leaves upwards: for each vertex the best worth of each
number of tokens. Places that cannot be told apart are computed once, and of equal children only as many
are looked at as tokens are wanted, so 10 000 equal devices cost little more than ten. Of equal worths,
the devices that come first in natural order win.

Work is bounded. Past :data:`LIMIT` steps :func:`descend` takes over, which is quick and not exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .policies import PlaceUsage, Scale
from .topology import Place, Topology, Vertex

LIMIT = 150_000
"""Steps, each some 0.2 µs: about 30 ms in all."""


STEPS_OF_A_WORTH = 10
"""What asking all criteria of one place counts."""


class TooMuch(Exception):
    """It would take more than :data:`LIMIT` steps."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What else is near the devices, by place."""

    got: Sequence[Mapping[Place, int]] = ()
    kin: Sequence[Mapping[Place, int]] = ()
    others: Sequence[Mapping[Place, int]] = ()
    near: Mapping[Place, int] = field(default_factory=dict)

    def here(self, place: Place) -> _Outside:
        """What there is at one place: got, kin, others, near."""
        return (
            tuple(counts.get(place, 0) for counts in self.got),
            tuple(counts.get(place, 0) for counts in self.kin),
            tuple(counts.get(place, 0) for counts in self.others),
            place in self.near,
        )

    def places(self) -> Iterator[Place]:
        """Where there is anything."""
        return chain(*self.got, *self.kin, *self.others, self.near)


NOTHING = Outside()

_Outside = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], bool]
_ALONE: _Outside = ((), (), (), False)


@dataclass(slots=True, eq=False)
class Kind:
    """Vertices that nothing distinguishes, with the best that can be made of them.

    ``values[n]`` is the worth of n tokens more than those chosen in any case; ``kept`` are positions of
    the children looked at, ``picks[i][n]`` how many of n tokens for them and those after it go to each.
    """

    free: int
    total: int
    base: int
    usages: tuple[PlaceUsage, ...]
    children: tuple[Kind, ...] = ()
    values: list[int] | None = None
    kept: list[int] = field(default_factory=list)
    picks: list[list[int]] = field(default_factory=list)


class Availability:
    """A topology with what of it is free, for one request.

    Args:
        free: tokens that can be chosen, by number of the candidate.
        base: tokens chosen in any case, by number of the candidate.
    """

    def __init__(
        self, topology: Topology, free: Sequence[int], base: Sequence[int], outside: Outside = NOTHING
    ) -> None:
        self.topology = topology
        self.free = free
        self.base = base
        self._outside = outside
        self._told = frozenset(outside.places())
        self._seen: dict[object, Kind] = {}
        self._leaves: dict[int, Kind] = {}
        self._kinds: dict[int, Kind] = {}
        self.root = self._survey(topology.root)

    def kind(self, vertex: Vertex) -> Kind:
        """What a vertex of the topology is like."""
        return self._leaves[vertex.candidate] if vertex.candidate >= 0 else self._kinds[id(vertex)]

    def _survey(self, vertex: Vertex) -> Kind:
        if vertex.candidate >= 0:
            return self._leaf(vertex)
        children = tuple(
            [self._leaf(child) if child.candidate >= 0 else self._survey(child) for child in vertex.children]
        )
        free = total = base = 0
        for child in children:
            free += child.free
            total += child.total
            base += child.base
        outside = self._seen_from(vertex)
        mark = (vertex.levels, free, total, base, outside, tuple(map(id, children)))
        kind = self._seen.get(mark)
        if kind is None:
            kind = self._seen[mark] = self._kind(vertex, free, total, base, outside, children)
        self._kinds[id(vertex)] = kind
        return kind

    def _leaf(self, vertex: Vertex) -> Kind:
        number = vertex.candidate
        free, base, total = self.free[number], self.base[number], self.topology.candidates[number].total
        outside = self._seen_from(vertex)
        mark = (vertex.levels, free, total, base, outside)
        kind = self._seen.get(mark)
        if kind is None:
            kind = self._seen[mark] = self._kind(vertex, free, total, base, outside)
        self._leaves[number] = kind
        return kind

    def _seen_from(self, vertex: Vertex) -> tuple[_Outside, ...]:
        if not vertex.outside or self._told.isdisjoint(vertex.places):
            return ()
        return tuple([self._outside.here(place) for place in vertex.places])

    def _kind(
        self,
        vertex: Vertex,
        free: int,
        total: int,
        base: int,
        outside: tuple[_Outside, ...],
        children: tuple[Kind, ...] = (),
    ) -> Kind:
        beside = outside or (_ALONE,) * len(vertex.levels)
        usages = tuple(
            PlaceUsage(level, total, free, base, *what)
            for level, what in zip(vertex.levels, beside, strict=True)
        )
        return Kind(free, total, base, usages, children)


def best(stand: Availability, need: int, scale: Scale, limit: int = LIMIT) -> list[int]:
    """How many tokens to take from each candidate, ``need`` in all, which must be free.

    Raises:
        TooMuch: it would take too long.
    """
    table = _Table(need, scale, limit)
    table.plan(stand.root)
    table.fill(stand.root)
    chosen = [0] * len(stand.free)
    _read(stand, stand.topology.root, need, chosen)
    return chosen


def _read(stand: Availability, vertex: Vertex, n: int, chosen: list[int]) -> None:
    if vertex.candidate >= 0:
        chosen[vertex.candidate] = n
        return
    kind = stand.kind(vertex)
    for position, pick in zip(kind.kept, kind.picks, strict=True):
        if n == 0:
            return
        _read(stand, vertex.children[position], pick[n], chosen)
        n -= pick[n]


class _Table:
    def __init__(self, need: int, scale: Scale, limit: int) -> None:
        self._need = need
        self._scale = scale
        self._left = limit
        self._planned: set[Kind] = set()

    def plan(self, kind: Kind) -> None:
        """Counts the steps before they are made, and finds the children that have to be looked at.

        Raises:
            TooMuch: there are too many.
        """
        if kind in self._planned:
            return
        self._planned.add(kind)
        seen: Counter[Kind] = Counter()
        size, reach = min(self._need, kind.free), 0
        for position, child in enumerate(kind.children):
            if child.free and seen[child] < self._need:
                seen[child] += 1
                kind.kept.append(position)
                some = min(size, child.free)
                reach = min(size, reach + some)
                self._left -= (some + 1) * (reach + 1)
        self._left -= size * len(kind.usages) * STEPS_OF_A_WORTH
        if self._left < 0:
            raise TooMuch
        for child in seen:
            self.plan(child)

    def fill(self, kind: Kind) -> list[int]:
        """The values of a kind, worked out once."""
        if kind.values is not None:
            return kind.values
        size = min(self._need, kind.free)
        values = self._shared(kind, size) if kind.children else [0] * (size + 1)
        for here in kind.usages:
            zero = self._scale.worth(here, here.base)
            for n in range(1, size + 1):
                values[n] += self._scale.worth(here, here.base + n) - zero
        kind.values = values
        return values

    def _shared(self, kind: Kind, size: int) -> list[int]:
        values = [0]
        for position in reversed(kind.kept):
            values, pick = _merged(self.fill(kind.children[position]), values, size)
            kind.picks.append(pick)
        kind.picks.reverse()
        return values


def _merged(one: list[int], rest: list[int], size: int) -> tuple[list[int], list[int]]:
    """The best of both together by number of tokens, and how many of them come from ``one``."""
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


def descend(stand: Availability, need: int, scale: Scale) -> list[int]:
    """A good choice in little time: at each place all to the child that is worth most and can give it all.

    Where none can, the child that can give most gives all it has, and so on with the rest.
    """
    chosen = [0] * len(stand.free)
    _descend(stand, stand.topology.root, need, scale, chosen)
    return chosen


def _descend(stand: Availability, vertex: Vertex, need: int, scale: Scale, chosen: list[int]) -> None:
    if vertex.candidate >= 0:
        chosen[vertex.candidate] = need
        return
    ranks: dict[tuple[Kind, int], tuple[int, int]] = {}

    def rank(child: Vertex) -> tuple[int, int]:
        kind = stand.kind(child)
        n = min(kind.free, need)
        if (kind, n) not in ranks:
            worth = sum(
                scale.worth(here, here.base + n) - scale.worth(here, here.base) for here in kind.usages
            )
            ranks[kind, n] = (-n, -worth)
        return ranks[kind, n]

    left = sorted((child for child in vertex.children if stand.kind(child).free), key=rank)
    for at, child in enumerate(left):
        n = min(stand.kind(child).free, need)
        if n == need:
            last = min((other for other in left[at:] if stand.kind(other).free >= need), key=rank)
            _descend(stand, last, need, scale, chosen)
            return
        _descend(stand, child, n, scale, chosen)
        need -= n


def even(stand: Availability, need: int, loads: Callable[[int], int]) -> list[int]:
    """Fills the least loaded candidates first, as water does; the quick way for ``spread``.

    Args:
        loads: how loaded a candidate is already.
    """
    candidates = [number for number, free in enumerate(stand.free) if free]
    load = {number: loads(number) for number in candidates}
    alike = Counter((load[number], stand.free[number]) for number in candidates)

    def filled(level: int) -> int:
        return sum(max(0, min(free, level - height)) * times for (height, free), times in alike.items())

    low, high = min(load.values()), max(load.values()) + need
    while low < high:
        level = (low + high + 1) // 2
        low, high = (level, high) if filled(level) <= need else (low, level - 1)
    chosen = [0] * len(stand.free)
    rest = need - filled(low)
    for number in candidates:
        chosen[number] = max(0, min(stand.free[number], low - load[number]))
        if rest and low - load[number] == chosen[number] < stand.free[number]:
            chosen[number] += 1
            rest -= 1
    return chosen


def totals(stand: Availability, chosen: Iterable[int], scale: Scale) -> dict[str, int]:
    """What a choice is worth by each criterion, for people; links are not among them."""
    counts = list(chosen)
    found: Counter[str] = Counter()

    def walk(vertex: Vertex) -> int:
        kind = stand.kind(vertex)
        n = counts[vertex.candidate] if vertex.candidate >= 0 else sum(map(walk, vertex.children))
        for here in kind.usages:
            found.update(scale.parts(here, here.base + n))
        return n

    walk(stand.topology.root)
    return {name: value for name, value in found.items() if value}
