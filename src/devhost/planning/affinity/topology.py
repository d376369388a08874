"""Where devices are: the tree of places from NUMA nodes down to single devices. Pure.

A place is identified by its level and a name that is the same in every resource, so that free devices of
other resources can be looked up by place.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum
from itertools import chain

from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import Device
from devhost.backend.sysfs import natural

MAX_PATH = 32
"""PCIe bridges considered above one device: more than any machine has."""


class Level(IntEnum):
    """The kind of a place, from the widest to the narrowest."""

    NODE = 0
    """The NUMA nodes that a device is near; a device near several nodes has a separate place."""
    BRIDGE = 1
    """A host bridge: one root bus within a NUMA node."""
    PORT = 2
    """A root port. It has one link, so two devices below it share a switch or are on one card."""
    SWITCH = 3
    """A port of a switch, upstream or downstream."""
    CARD = 4
    """A physical device: what virtual functions or slices are ``part_of``, otherwise the device itself."""
    DEVICE = 5


Place = tuple[Level, str]
"""A level, and a name that is unique on it."""

Links = Mapping[frozenset[str], int]
"""How closely two devices of one backend are linked, by their ids; 0 if a pair is missing."""


def between(links: Links, unit_of: Mapping[str, str]) -> Links:
    """How closely units of several devices are linked: as their closest devices. Others are not named."""
    found: dict[frozenset[str], int] = {}
    for pair, closeness in links.items():
        units = frozenset(unit_of.get(device, device) for device in pair)
        if len(units) == len(pair):
            found[units] = max(closeness, found.get(units, 0))
    return found


def places(device: Device, homes: Mapping[str, str]) -> tuple[Place, ...]:
    """The places above the card that contain a device, the widest first.

    ``homes`` has the NUMA node of each root port, for devices without one.
    """
    near, path = node_name(device), device.pcie_path
    if not path:
        return ((Level.NODE, near),) if near else ()
    near = near or homes.get(path[0], "")
    found: list[Place] = [(Level.NODE, near)] if near else []
    found.append((Level.BRIDGE, f"{near}|{path[0].rpartition(':')[0]}"))
    if len(path) > 1:
        found.append((Level.PORT, path[0]))
        found += [(Level.SWITCH, address) for address in path[1 : min(len(path) - 1, MAX_PATH)]]
    return tuple(found)


_WHOLES = {"usb": 0, "block": 1, "pci": 2}
"""Kinds of claims that name physical devices: a USB device before the PCI function of its controller."""


def node_name(device: Device) -> str:
    """A device's NUMA nodes as one name; empty if it has none."""
    nodes = device.numa_nodes
    return str(nodes[0]) if len(nodes) == 1 else ",".join(map(str, sorted(nodes)))


def card(device: Device) -> str:
    """The name of the physical device; of several, the first by :data:`_WHOLES`."""
    return f"={min(device.part_of, key=_wholeness)}" if device.part_of else device.id


def _wholeness(claim: str) -> tuple[int, str]:
    """A sort key: USB devices and disks before PCI functions, and these before anything else."""
    kind = claim.partition(":")[0]
    return _WHOLES.get(kind, len(_WHOLES)), claim


@frozen(slots=True)
class Candidate:
    """A device, the ``name`` that its tokens derive from, and how many tokens it has in all."""

    name: str
    device: Device
    total: int = 1


@mutable(slots=True)
class Vertex:
    """Places with the same devices below them, the widest first.

    ``candidate`` is the number of the device if the vertex has no children, ``outside`` whether other
    resources can have devices in any of the places.
    """

    places: tuple[Place, ...]
    children: list[Vertex] = field(default_factory=list)
    candidate: int = -1
    levels: tuple[Level, ...] = ()
    outside: bool = False

    def labelled(self) -> Vertex:
        """This vertex, after setting what follows from its places."""
        self.levels = tuple([level for level, _ in self.places])
        self.outside = bool(self.levels) and self.levels[0] <= Level.SWITCH
        return self


class Topology:
    """The devices of one resource in their places.

    ``before`` is the previous topology of this resource, which saves work if most devices are the same.
    """

    def __init__(self, candidates: Mapping[str, Candidate], before: Topology | None = None) -> None:
        self.candidates = tuple(candidates[name] for name in _in_order(candidates, before))
        self.number = {candidate.name: number for number, candidate in enumerate(self.candidates)}
        homes = self._homes()
        self.places = tuple([places(candidate.device, homes) for candidate in self.candidates])
        self.root = self._grown()

    def same(self, candidates: Mapping[str, Candidate]) -> bool:
        """Whether these are the same devices with the same number of tokens each."""
        if len(candidates) != len(self.candidates):
            return False
        for mine in self.candidates:
            other = candidates.get(mine.name)
            if other is None or other.device is not mine.device or other.total != mine.total:
                return False
        return True

    def _homes(self) -> dict[str, str]:
        """The NUMA node of each root port, from the devices below it that have one."""
        homes: dict[str, str] = {}
        for candidate in self.candidates:
            if candidate.device.pcie_path and (near := node_name(candidate.device)):
                port = candidate.device.pcie_path[0]
                homes[port] = min(near, homes.get(port, near))
        return homes

    def _grown(self) -> Vertex:
        root = Vertex(())
        known: dict[Place, Vertex] = {}
        paths = [
            (*above, (Level.CARD, card(candidate.device)), (Level.DEVICE, candidate.name))
            for above, candidate in zip(self.places, self.candidates, strict=True)
        ]
        times = Counter(chain.from_iterable(paths))
        for number, path in enumerate(paths):
            # places that contain only this device become one vertex with it
            own = len(path) - 1
            while own and times[path[own - 1]] == 1:
                own -= 1
            depth = own - 1
            while depth >= 0 and path[depth] not in known:
                depth -= 1
            at = known[path[depth]] if depth >= 0 else root
            for place in path[depth + 1 : own]:
                below = known[place] = Vertex((place,))
                at.children.append(below)
                at = below
            at.children.append(Vertex(path[own:], candidate=number).labelled())
        return _compressed(root)


def _compressed(vertex: Vertex) -> Vertex:
    """The same tree without vertices that have a single child: both contain the same devices."""
    joined = vertex.places
    while len(vertex.children) == 1:
        vertex = vertex.children[0]
        joined += vertex.places
    vertex.places = joined
    vertex.children = [child if child.candidate >= 0 else _compressed(child) for child in vertex.children]
    return vertex.labelled()


def _in_order(candidates: Mapping[str, Candidate], before: Topology | None) -> list[str]:
    """The names in natural order; those of ``before`` are in order already."""
    known = (
        [candidate.name for candidate in before.candidates if candidate.name in candidates] if before else []
    )
    fresh = [name for name in candidates if before is None or name not in before.number]
    if len(fresh) * 4 > len(known):
        return sorted(candidates, key=natural)
    for name in fresh:
        insort(known, name, key=natural)
    return known
