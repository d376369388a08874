"""Preferences by trying everything, written from what ``docs/affinity.md`` states and from nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import comb
from typing import NamedTuple

from devhost.backend.model import Device
from devhost.planning.affinity import PreferenceRequest, prefer
from devhost.planning.affinity.policies import NOTHING, Outside
from devhost.planning.affinity.topology import Candidate, Links, Topology
from devhost.planning.settings import Prefer


def topology(devices: Mapping[str, Device]) -> Topology:
    totals = Counter(device.id for device in devices.values())
    return Topology({d.id: Candidate(d.id, d, totals[d.id]) for d in devices.values()})


def answer(
    policy: Prefer,
    devices: Mapping[str, Device],
    available: Sequence[str],
    must: Collection[str],
    size: int,
    outside: Outside = NOTHING,
    links: Links | None = None,
    limit: int = 10**9,
) -> list[str]:
    """What devhost prefers, in sorted order behind what must be in it."""

    def candidate(token: str) -> str | None:
        return devices[token].id if token in devices else None

    request = PreferenceRequest(candidate, available, must, size)
    return list(prefer(policy, topology(devices), request, outside, links, limit=limit).tokens)


class Place(NamedTuple):
    level: str
    name: str


def above(device: Device) -> list[Place]:
    """Where a device is, in the order of the levels; every device of these tests tells its NUMA node."""
    node = ",".join(map(str, sorted(device.numa_nodes)))
    places = [Place("node", node)] if node else []
    if device.pcie_path:
        places.append(Place("bridge", f"{node}|{device.pcie_path[0].rpartition(':')[0]}"))
        for number, bridge in enumerate(device.pcie_path[:-1]):
            places.append(Place("switch" if number else "port", bridge))
    card = min(device.part_of) if device.part_of else device.id
    return [*places, Place("card", card), Place("device", device.id)]


@dataclass(frozen=True)
class Scene:
    """One request, by device: how many tokens there are, how many are free, how many must be in it."""

    devices: Mapping[str, Device]
    total: Mapping[str, int]
    free: Mapping[str, int]
    must: Mapping[str, int]
    outside: Outside = field(default_factory=Outside)
    links: Links = field(default_factory=dict)

    def choices(self, need: int) -> Iterator[dict[str, int]]:
        names = sorted(self.free)
        for counts in product(*(range(min(need, self.free[name]) + 1) for name in names)):
            if sum(counts) == need:
                yield dict(zip(names, counts, strict=True))

    @cached_property
    def places(self) -> Mapping[str, Sequence[Place]]:
        return {name: above(device) for name, device in self.devices.items()}

    @cached_property
    def known(self) -> tuple[Mapping[Place, int], ...]:
        """What is free in each place, how many there are, and how many must be in the choice."""
        return self.counted(self.free), self.counted(self.total), self.counted(self.must)

    def counted(self, counts: Mapping[str, int]) -> dict[Place, int]:
        found: dict[Place, int] = defaultdict(int)
        for name, count in counts.items():
            for place in self.places[name]:
                found[place] += count
        return found

    def score(self, policy: Prefer, choice: Mapping[str, int]) -> tuple[int, ...]:
        """The score of a choice, criterion by criterion."""
        n = self.counted({name: choice.get(name, 0) + self.must.get(name, 0) for name in self.devices})
        free, total, must = self.known
        used = {place: total[place] - free[place] - must[place] for place in n}
        left = {place: free[place] + must[place] - n[place] for place in n}

        by_level: dict[str, list[Place]] = defaultdict(list)
        for place in n:
            by_level[place.level].append(place)

        def over(levels: str, score: Callable[[Place], int]) -> int:
            return sum(score(place) for level in levels.split() for place in by_level[level])

        levels = {"node": 0, "bridge": 1, "port": 2, "switch": 3}

        def met(kinds: Sequence[Mapping[object, int]], level: str) -> int:
            return over(
                level, lambda p: sum(min(n[p], kind.get((levels[p.level], p.name), 0)) for kind in kinds)
            )

        got, together, others = (
            list(kinds) for kinds in (self.outside.got, self.outside.together, self.outside.others)
        )
        context = (
            met(got, "port"),
            met(got, "node"),
            over("port", lambda p: sum(kind.get((2, p.name), 0) for kind in got) if n[p] else 0),
            met(got, "bridge"),
            met(got, "switch"),
        )
        chosen = [name for name in self.devices if choice.get(name, 0) + self.must.get(name, 0)]
        joined = sum(self.links.get(frozenset((a, b)), 0) for i, a in enumerate(chosen) for b in chosen[:i])
        places = "node bridge port switch"
        topology = (
            *context,
            met(together, "port"),
            met(others, "port"),
            joined,
            -over("node", lambda p: n[p] > 0),
            met(together, "node"),
            met(others, "node"),
            over("device", lambda p: n[p] > 0),
            over(places, lambda p: comb(n[p], 2)),
            -over("device", lambda p: comb(n[p], 2)),
            -over(f"{places} card device", lambda p: not used[p] and 0 < n[p] < total[p]),
            over(f"{places} card device", lambda p: left[p] ** 2),
            over(places, lambda p: n[p] * ((levels[p.level], p.name) in self.outside.near)),
        )
        if policy is Prefer.TOPOLOGY:
            return topology
        if policy is Prefer.DISTINCT:
            return (over("card", lambda p: n[p] > 0), *topology)
        wide = ("card", "device", "port switch", "node")
        if policy is Prefer.PACK:
            return (
                *(-over(level, lambda p: n[p] > 0 and not used[p]) for level in wide),
                *(-over(level, lambda p: n[p] > 0) for level in wide),
                *context,
                *(over(level, lambda p: left[p] ** 2) for level in wide),
            )
        balance = ("card", "device", "node", "bridge", "port switch")
        return (*(-over(level, lambda p: (used[p] + n[p]) ** 2) for level in balance), *context)
