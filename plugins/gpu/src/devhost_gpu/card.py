"""What all vendors' cards have in common: the values, and what code for one vendor offers.

A vendor's code is a class with the methods of :class:`Family`, in a module of its own that is imported when
the machine has such a card (:mod:`.vendors`). It may have more, each found by its presence:

``def links(self, a: Card, b: Card) -> int``
    How closely two of its cards are joined beyond PCIe and NUMA; 0 is not at all.
``async def watch(self) -> AsyncIterator[Event]``
    Events that make no uevent. It begins when the first card has been seen.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from devhost.backend import AttributeValue, Device, Event, Health

from .adapter import Adapter

VENDORS = NVIDIA, AMD, INTEL, OTHER = "nvidia", "amd", "intel", "other"
"""What the attribute ``vendor`` can be."""

KINDS = GPU, MIG, PARTITION, VF = "gpu", "mig", "partition", "vf"
"""What the attribute ``kind`` can be."""


@dataclass(frozen=True, slots=True)
class Card:
    """One thing that a container can get: a GPU, or a part of one.

    ``device`` is what the core hears of it; ``facts`` a frozen value of the vendor's own with what
    allocation needs beside the attributes (``AmdFacts``, ``IntelFacts``, …).
    """

    device: Device
    vendor: str
    facts: object

    @property
    def id(self) -> str:
        """The device's id."""
        return self.device.id


class Family(Protocol):
    """The cards of one vendor. ``probe`` is called on another thread than the rest."""

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """Every card there is now, given all of the vendor's adapters that exist (none: all have gone).

        One bad card never hides another: it is given as an Unhealthy or withheld device with its reason.
        """

    def notice(self, event: Event) -> None:
        """Hears each event before the ``scan`` it causes."""

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Health by id, for checks too dear for each ``scan``; a card it does not name is well."""

    def close(self) -> None:
        """Lets go of whatever it holds."""


@runtime_checkable
class CanLink(Protocol):
    def links(self, a: Card, b: Card) -> int: ...


@runtime_checkable
class CanWatch(Protocol):
    def watch(self) -> AsyncIterator[Event]: ...


def device(
    adapter: Adapter,
    attributes: Mapping[str, AttributeValue | None],
    health: Health,
    *,
    withheld: str = "",
    claims: frozenset[str] = frozenset(),
    part_of: frozenset[str] = frozenset(),
) -> Device:
    """The device of an adapter; attributes that are empty or ``None`` are left out."""
    return Device(
        id=adapter.id,
        attributes={name: value for name, value in attributes.items() if value not in (None, "", ())},
        claims=claims or own_claims(adapter),
        part_of=part_of or parents(adapter),
        numa_nodes=() if adapter.numa_node is None else (adapter.numa_node,),
        pcie_path=adapter.pcie_path,
        health=health,
        withheld=withheld,
    )


def own_claims(adapter: Adapter) -> frozenset[str]:
    """What an adapter uses up: its PCI function, and its DRM nodes, which a group of udev could name too."""
    claims = {f"node:{node}" for node in adapter.nodes}
    if adapter.address:
        claims.add(f"pci:{adapter.address}")
    return frozenset(claims)


def parents(adapter: Adapter) -> frozenset[str]:
    """What an adapter is a part of: a virtual function, of its physical one."""
    return frozenset((f"pci:{adapter.physical_function}",) if adapter.physical_function else ())
