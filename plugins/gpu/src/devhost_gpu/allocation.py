"""What a container gets of the cards it was given: all from what the last look saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from devhost.backend import AllocationError, DeviceNode, Edits, Mount
from devhost.sysfs import Sysfs

from .card import AMD, INTEL, NVIDIA, OTHER, Card
from .options import GpuOptions

BY_PATH = "/dev/dri/by-path"
"""Where udev keeps names of DRM nodes by PCI address (its rule ``60-drm.rules``)."""


def edits(cards: Sequence[Card], options: GpuOptions, sysfs: Sysfs) -> Edits:
    """What one container needs to use these cards.

    Raises:
        AllocationError: one cannot be used as it is now.
    """
    by_vendor: dict[str, list[Card]] = {}
    for card in cards:
        by_vendor.setdefault(card.vendor, []).append(card)
    return Edits.merge(_GIVERS[vendor](own, options, sysfs) for vendor, own in by_vendor.items())


def _nvidia(cards: Sequence[Card], options: GpuOptions, sysfs: Sysfs) -> Edits:
    from .giving_nvidia import edits as of_nvidia
    from .nvml.facts import NvidiaFacts

    return of_nvidia(
        [card.facts for card in cards if isinstance(card.facts, NvidiaFacts)], options, sysfs.exists
    )


def _amd(cards: Sequence[Card], options: GpuOptions, sysfs: Sysfs) -> Edits:
    """``/dev/kfd`` where it computes, and its DRM nodes."""
    from .amd import AmdFacts

    return _drm((card.id, card.facts.nodes) for card in cards if isinstance(card.facts, AmdFacts))


def _intel(cards: Sequence[Card], options: GpuOptions, sysfs: Sysfs) -> Edits:
    """The DRM nodes, by both their names, and the nodes for its firmware."""
    from .intel import IntelFacts

    facts = [card.facts for card in cards if isinstance(card.facts, IntelFacts)]
    firmware = (DeviceNode(node, required=False) for own in facts for node in own.mei)
    names: list[str] = []
    if options.bypath == "all":
        names = [BY_PATH]
    elif options.bypath == "single":
        names = [
            f"{BY_PATH}/pci-{own.adapter.address}-{kind}"
            for own in facts
            for kind, node in (("card", own.adapter.card), ("render", own.adapter.render))
            if node and own.adapter.address
        ]
    mounts = tuple(Mount(name, name, required=False) for name in names)
    nodes = _drm((own.adapter.id, own.nodes) for own in facts)
    return Edits.merge([nodes, Edits(tuple(firmware), mounts)])


def _other(cards: Sequence[Card], options: GpuOptions, sysfs: Sysfs) -> Edits:
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


_GIVERS: Mapping[str, Callable[[Sequence[Card], GpuOptions, Sysfs], Edits]] = {
    NVIDIA: _nvidia,
    AMD: _amd,
    INTEL: _intel,
    OTHER: _other,
}
"""Who knows what the cards of a vendor need."""
