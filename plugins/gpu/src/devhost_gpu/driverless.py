"""Cards whose driver is absent: they keep their last attributes, and the user learns how to load it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.backend import AttributeValue, MissingDriver
from devhost.backend.sysfs import Sysfs

from .discovery import AMD, INTEL, NVIDIA, Adapter
from .vendor import Card, of_adapter

_NODES = frozenset({"cardNode", "renderNode"})
"""Attributes that a card without a driver does not keep."""


class LastAttributes:
    """Remembers the attributes that cards had with their driver. Used by one thread.

    A card without its driver lacks its model, its memory and its mode, and would leave the resource that
    selects by them: the node would have fewer devices without a visible reason. So it keeps them, Unhealthy.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}

    def complete(self, cards: Mapping[str, Card], adapters: Iterable[Adapter]) -> dict[str, Card]:
        """The cards; those without DRM nodes with the attributes that they had when they last had some.

        Args:
            cards: by their ids.
            adapters: all there are. One that was removed and returned has another inode, and starts afresh.
        """
        completed = dict(cards)
        last: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}
        for adapter in adapters:
            card, key = cards.get(adapter.id), (adapter.id, adapter.inode)
            if card is None or card.device.withheld:
                continue
            if adapter.nodes:
                last[key] = card.device.attributes
            elif before := self._last.get(key):
                last[key] = before
                lost = {name: value for name, value in before.items() if name not in _NODES}
                attributes = lost | dict(card.device.attributes)
                completed[adapter.id] = replace(card, device=replace(card.device, attributes=attributes))
        self._last = last
        return completed


_FIXES = {
    NVIDIA: "install NVIDIA's driver, then run modprobe nvidia",
    AMD: "run modprobe amdgpu",
    INTEL: "run modprobe i915, or modprobe xe for newer cards",
}

_REPLACEMENTS = {NVIDIA: frozenset({"nouveau", "nova_core", "NovaCore"})}
"""Drivers of the kernel's own tree, with which containers cannot compute. They are bound because the vendor's
is missing, unlike ``vfio-pci``, which the user has chosen."""

_FROM_DRIVER = frozenset({"driver", "cardNode", "renderNode"})
"""Attributes that a device has from its driver."""


def missing_drivers(sysfs: Sysfs, adapters: Mapping[str, Sequence[Adapter]]) -> Iterator[MissingDriver]:
    """The GPUs without a driver of their vendor. A virtual function may be without one on purpose.

    Args:
        sysfs: the machine.
        adapters: all there are, by their vendors.
    """
    for vendor, fix in _FIXES.items():
        for adapter in _without_driver(sysfs, adapters.get(vendor, ()), _REPLACEMENTS.get(vendor, ())):
            known = {"vendor": vendor, **of_adapter(adapter)}
            yield MissingDriver(
                f"{adapter.address} ({adapter.vendor}:{adapter.device})",
                f"{f'bound to {adapter.driver}' if adapter.driver else 'no driver is bound to it'} ({fix})",
                {
                    name: value
                    for name, value in known.items()
                    if value not in (None, "") and name not in _FROM_DRIVER
                },
            )


def _without_driver(
    sysfs: Sysfs, adapters: Iterable[Adapter], replacements: Iterable[str]
) -> Iterator[Adapter]:
    for adapter in adapters:
        if not adapter.address or adapter.is_virtual or adapter.driver not in ("", *replacements):
            continue
        if not sysfs.driver_override(adapter.path):  # a name there is the user's choice
            yield adapter
