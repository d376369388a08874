"""What each ``prefer`` of a resource means: criteria, the first of which counts before all others. Pure.

Each criterion is a sum over places of something that depends only on how many tokens are chosen there.
That makes the best choice computable from the leaves of the tree upwards (:mod:`.solver`), and it is
all that a policy may be. ``docs/affinity.md`` says why they stand in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb

from devhost.planning.settings import Prefer

from .topology import Level


@dataclass(frozen=True, slots=True)
class PlaceUsage:
    """What is known of one place, all counted in tokens.

    ``total`` is what the resource has here, ``free`` what can be chosen, ``base`` what is chosen in any
    case. ``got`` is what the container has here of other resources, ``kin`` and ``others`` what is free of
    those it has nothing of: ``kin`` of resources that were seen in one container with this one. ``near``
    tells whether the container before has something here.
    """

    level: Level
    total: int
    free: int
    base: int
    got: tuple[int, ...] = ()
    kin: tuple[int, ...] = ()
    others: tuple[int, ...] = ()
    near: bool = False

    @property
    def used(self) -> int:
        """Tokens that somebody else has."""
        return self.total - self.free - self.base

    def left(self, chosen: int) -> int:
        """Tokens that are free afterwards."""
        return self.free + self.base - chosen


@dataclass(frozen=True, slots=True)
class Criterion:
    """``worth(here, n)`` of choosing n tokens at a place on one of the ``levels``; more is better."""

    name: str
    levels: frozenset[Level]
    worth: Callable[[PlaceUsage, int], int]


NODE, BRIDGE, PORT, SWITCH, CARD, DEVICE = (frozenset({level}) for level in Level)
PCIE = BRIDGE | PORT | SWITCH
ABOVE = NODE | PCIE


def _matched(here: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in here.got)


def _covered(here: PlaceUsage, n: int) -> int:
    return sum(here.got) if n else 0


def _kin(here: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in here.kin)


def _others(here: PlaceUsage, n: int) -> int:
    return sum(min(n, count) for count in here.others)


def _touched(here: PlaceUsage, n: int) -> int:
    return int(n > 0)


def _untouched(here: PlaceUsage, n: int) -> int:
    return -int(n > 0)


def _pairs(here: PlaceUsage, n: int) -> int:
    return comb(n, 2)


def _repeats(here: PlaceUsage, n: int) -> int:
    return -comb(n, 2)


def _broken(here: PlaceUsage, n: int) -> int:
    return -int(0 < n < here.total and not here.used)


def _fresh(here: PlaceUsage, n: int) -> int:
    return -int(n > 0 and not here.used)


def _blocks(here: PlaceUsage, n: int) -> int:
    return here.left(n) ** 2


def _near(here: PlaceUsage, n: int) -> int:
    return n if here.near else 0


def _load(here: PlaceUsage, n: int) -> int:
    return -((here.used + n) ** 2)


CONTEXT = (
    Criterion("pairs with what it got on one switch", PORT, _matched),
    Criterion("pairs with what it got on one NUMA node", NODE, _matched),
    Criterion("what it got has something beside it", PORT, _covered),
    Criterion("pairs with what it got on one host bridge", BRIDGE, _matched),
    Criterion("pairs with what it got below one switch port", SWITCH, _matched),
)
"""Near what the same container has got of other resources."""

LINKS = Criterion("links", frozenset(), lambda here, n: 0)
"""How closely the devices are joined: of pairs, not of places; see :mod:`.links`."""

TOPOLOGY = (
    *CONTEXT,
    Criterion("free beside it on one switch, of kinds seen with it", PORT, _kin),
    Criterion("free beside it on one switch, of other kinds", PORT, _others),
    LINKS,
    Criterion("few NUMA nodes", NODE, _untouched),
    Criterion("free beside it on one NUMA node, of kinds seen with it", NODE, _kin),
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
"""Width of one criterion in a worth: no sum over places passes it with the 100 000 tokens a list can have."""


class Scale:
    """Turns the worths of all criteria into one number, so that comparing it compares them in their order."""

    def __init__(self, criteria: tuple[Criterion, ...]) -> None:
        self.criteria = criteria
        shift = {criterion.name: BITS * (len(criteria) - 1 - at) for at, criterion in enumerate(criteria)}
        self.links = 1 << shift[LINKS.name] if LINKS.name in shift else 0
        """What one unit of a link counts."""
        self.companions = any(criterion.worth in (_kin, _others) for criterion in criteria)
        """Whether it matters what is free of other resources."""
        self._at = {
            level: tuple((c.worth, 1 << shift[c.name]) for c in criteria if level in c.levels)
            for level in Level
        }

    def worth(self, here: PlaceUsage, n: int) -> int:
        """What n tokens in all are worth at one place."""
        return sum(worth(here, n) * weight for worth, weight in self._at[here.level])

    def parts(self, here: PlaceUsage, n: int) -> dict[str, int]:
        """The same by criterion, for people."""
        return {c.name: c.worth(here, n) for c in self.criteria if here.level in c.levels}


SCALES = {policy: Scale(criteria) for policy, criteria in POLICIES.items()}
