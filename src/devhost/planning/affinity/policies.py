"""What each ``prefer`` of a resource means: a list of criteria, the most important first. Pure.

Each criterion is a sum over places of a value that depends only on how many tokens are chosen there, so that
:mod:`.solver` can compute the best choice from the leaves of the tree upwards. Every policy must keep to
that. ``docs/affinity.md`` explains the order of the criteria.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import comb

from devhost.backend.frozen import frozen
from devhost.planning.settings import Prefer

from .topology import Level


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
