"""What a container gets of the cards it was given: all from what the last look saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from devhost.backend import AllocationError, DeviceNode, Edits, Mount
from devhost.backend.sysfs import Sysfs

from .card import AMD, INTEL, NVIDIA, OTHER, Card
from .options import GpuOptions
from .use import PLAIN, GpuUse

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where devices are shared

BY_PATH = "/dev/dri/by-path"
"""Where udev keeps names of DRM nodes by PCI address (its rule ``60-drm.rules``)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What decides beside the cards what a container gets.

    ``use`` is what the entry says, ``shares`` how much of each card the container asks for, by id.
    """

    options: GpuOptions
    sysfs: Sysfs
    use: GpuUse = PLAIN
    shares: Mapping[str, Fraction] = field(default_factory=dict)


def edits(cards: Sequence[Card], request: Request) -> Edits:
    """What one container needs to use these cards.

    Raises:
        AllocationError: one cannot be used as it is now.
    """
    by_vendor: dict[str, list[Card]] = {}
    for card in cards:
        by_vendor.setdefault(card.vendor, []).append(card)
    return Edits.merge(_GIVERS[vendor](own, request) for vendor, own in by_vendor.items())


def _nvidia(cards: Sequence[Card], request: Request) -> Edits:
    """What the strategies say, and how to reach the MPS server of the resource."""
    from . import mps
    from .giving_nvidia import edits as of_nvidia
    from .giving_nvidia import in_order
    from .nvml.facts import NvidiaFacts

    own = [card.facts for card in cards if isinstance(card.facts, NvidiaFacts)]
    ordered = in_order(cards)
    return Edits.merge(
        [
            of_nvidia(own, request.options, request.sysfs.exists),
            mps.edits(request.use, ordered, request.shares),
        ]
    )


def _amd(cards: Sequence[Card], request: Request) -> Edits:
    """``/dev/kfd`` where it computes, and its DRM nodes."""
    from .amd import AmdFacts

    return _drm((card.id, card.facts.nodes) for card in cards if isinstance(card.facts, AmdFacts))


def _intel(cards: Sequence[Card], request: Request) -> Edits:
    """The DRM nodes, by both their names; the nodes of its firmware interface where the entry asks for them.

    Who has those can load firmware and read the telemetry of all that runs on the card, so Intel's plugin
    gives them with its monitoring resource alone.
    """
    from .intel import IntelFacts

    facts = [card.facts for card in cards if isinstance(card.facts, IntelFacts)]
    firmware = [DeviceNode(node, required=False) for own in facts for node in own.mei]
    names: list[str] = []
    if request.options.bypath == "all":
        names = [BY_PATH]
    elif request.options.bypath == "single":
        names = [
            f"{BY_PATH}/pci-{own.adapter.address}-{kind}"
            for own in facts
            for kind, node in (("card", own.adapter.card), ("render", own.adapter.render))
            if node and own.adapter.address
        ]
    mounts = tuple(Mount(name, name, required=False) for name in names)
    nodes = _drm((own.adapter.id, own.nodes) for own in facts)
    return Edits.merge([nodes, Edits(tuple(firmware) if request.use.firmware else (), mounts)])


def _other(cards: Sequence[Card], request: Request) -> Edits:
    """Its DRM nodes."""
    from .plain import PlainFacts

    return _drm((card.id, card.facts.nodes) for card in cards if isinstance(card.facts, PlainFacts))


def _drm(nodes: Iterator[tuple[str, Sequence[str]]]) -> Edits:
    found: dict[str, None] = {}
    for name, own in nodes:
        if not own:
            raise AllocationError(f"{name} has no device node")
        found.update(dict.fromkeys(own))
    return Edits(tuple(map(DeviceNode, found)))


_GIVERS: Mapping[str, Callable[[Sequence[Card], Request], Edits]] = {
    NVIDIA: _nvidia,
    AMD: _amd,
    INTEL: _intel,
    OTHER: _other,
}
"""Who knows what the cards of a vendor need."""
