"""What a card said of itself while it had its driver, for as long as that is away.

A card that loses its driver loses its model, its memory and its mode with it, and would leave the resource
that chooses by them: the node would have fewer, and nobody would see why. So it stays, Unhealthy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from devhost.backend import AttributeValue

from .adapter import Adapter
from .card import Card

_NODES = frozenset({"cardNode", "renderNode"})
"""What a card without a driver does not have, whatever it had."""


class Recall:
    """Remembers what cards said. Used by one thread."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}

    def complete(self, cards: Mapping[str, Card], adapters: Iterable[Adapter]) -> dict[str, Card]:
        """The cards; those without DRM nodes with the attributes that they had when they last had some.

        Args:
            cards: by their ids.
            adapters: all there are. One that went and came back says everything anew.
        """
        completed = dict(cards)
        said: dict[tuple[str, int], Mapping[str, AttributeValue]] = {}
        for adapter in adapters:
            card, key = cards.get(adapter.id), (adapter.id, adapter.inode)
            if card is None or card.device.withheld:
                continue
            if adapter.nodes:
                said[key] = card.device.attributes
            elif before := self._said.get(key):
                said[key] = before
                lost = {name: value for name, value in before.items() if name not in _NODES}
                attributes = lost | dict(card.device.attributes)
                completed[adapter.id] = replace(card, device=replace(card.device, attributes=attributes))
        self._said = said
        return completed
