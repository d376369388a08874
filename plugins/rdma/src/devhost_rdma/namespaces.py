"""RDMA devices in the network namespace of a pod, as they were last seen.

With ``rdma system set netns exclusive``, an RDMA device is in one network namespace, and moves into that of
the pod that holds it. Its nodes (kernel 6.12 shows them in all namespaces) and its parent device stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.backend import HEALTHY, AttributeValue, Device
from devhost.backend.frozen import frozen
from devhost.backend.infiniband import Node, Role
from devhost.backend.sysfs import AUXILIARY_BUS, Sysfs

from .attributes import KEPT
from .model import Kind, Place, place_at, place_of
from .scan import Unit

EXCLUSIVE = "exclusive"

_RDMA_PART = re.compile(r"[\w-]+\.(rdma|roce|iwarp)\.\d+")
"""Names of auxiliary devices that RDMA drivers bind to: ``mlx5_core.rdma.0``."""


@frozen
class Absent:
    """A place whose RDMA devices are in another network namespace.

    ``nodes`` are its visible nodes; ``last`` is the device as it was last seen, ``None`` if never.
    """

    place: Place
    nodes: tuple[Node, ...]
    last: Device | None


@frozen
class _Memory:
    place: Place
    generation: tuple[int, ...]
    device: Device


class Presence:
    """Remembers the devices of one backend. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._memory: dict[str, _Memory] = {}
        self._with_part: set[str] = set()

    def completed(self, unit: Unit, attributes: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
        """The attributes of a function, with the last values of those that cannot be read now."""
        memory = self._memory.get(unit.function.place.id)
        if memory is None or memory.generation != unit.generation:
            return attributes
        before = memory.device.attributes
        return {name: before[name] for name in KEPT if name in before} | attributes

    def remember(self, seen: Sequence[tuple[Unit, Device]], absent: Sequence[Absent]) -> None:
        """Remembers the devices on the node and in pods, and forgets all others."""
        kept = {
            away.place.id: self._memory[away.place.id] for away in absent if away.place.id in self._memory
        }
        for unit, device in seen:
            kept[device.id] = _Memory(unit.function.place, unit.generation, device)
        self._memory = kept
        self._with_part &= kept.keys()

    def absent(
        self, here: Sequence[Unit], hidden_nodes: Sequence[Node], netns_mode: str | None
    ) -> list[Absent]:
        """The functions whose RDMA devices are in a pod; none unless the mode is exclusive."""
        if netns_mode != EXCLUSIVE:
            return []
        nodes: dict[str, list[Node]] = {}
        found: dict[str, Place] = {}
        for node in hidden_nodes:
            if place := self._place_of(node):
                nodes.setdefault(place.id, []).append(node)
                found[place.id] = place
        for place in self._places():
            found.setdefault(place.id, place)
        for unit in here:
            # a companion may stay while the device that programs open is in the pod
            if unit.function.place.id not in nodes or any(node.role is Role.UVERBS for node in unit.nodes):
                found.pop(unit.function.place.id, None)
        away = []
        for name, place in found.items():
            memory = self._memory.get(name)
            last = replace(memory.device, health=HEALTHY) if memory else None
            away.append(Absent(place, tuple(nodes.get(name, ())), last))
        return away

    def _places(self) -> Iterator[Place]:
        """Places that have RDMA devices by other evidence: a bound auxiliary device, an unchanged driver."""
        for name in filter(_RDMA_PART.fullmatch, self._sysfs.names(AUXILIARY_BUS)):
            path = self._sysfs.device(f"{AUXILIARY_BUS}/{name}")
            place = place_at(path.rpartition("/")[0])
            self._with_part.add(place.id)
            if path and self._sysfs.exists(f"{path}/driver"):
                yield place
        for name, memory in self._memory.items():
            # a driver that removed its RDMA part (for a bond) also stays, so this is no evidence
            if memory.place.kind is Kind.PCI and name not in self._with_part and self._is_driven(memory):
                yield memory.place

    def _is_driven(self, memory: _Memory) -> bool:
        driver = memory.device.attributes.get("driver")
        return driver is not None and self._sysfs.target(f"{memory.place.path}/driver") == driver

    def _place_of(self, node: Node) -> Place | None:
        path = self._sysfs.device(node.entry)
        return place_of(path, node.ib_device) if path else None


def refusal(absent: Mapping[str, Absent], device: str) -> str:
    """Why a device that is not visible cannot be allocated."""
    if device in absent:
        return f"{device} is in the network namespace of a pod"
    return f"{device} is gone"
