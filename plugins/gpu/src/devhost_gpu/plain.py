"""Cards that need no more than their DRM nodes: what Intel's and all others have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from devhost.backend import AttributeValue, Context, Event, Health
from devhost.backend.sysfs import Sysfs

from .adapter import Adapter
from .attributes import of_adapter
from .card import GPU, VF, Card, device
from .condition import Conditions
from .options import GpuOptions
from .standing import standing


@dataclass(frozen=True, slots=True)
class PlainFacts:
    """What allocation needs of a card."""

    adapter: Adapter

    @property
    def nodes(self) -> tuple[str, ...]:
        """Paths of its DRM nodes."""
        return self.adapter.nodes


class Plain:
    """A family of such cards. Subclass it, name the vendor, and say what there is beyond that."""

    vendor: ClassVar[str]
    """The word for it in the attribute ``vendor``."""

    drivers: ClassVar[Collection[str]] = ()
    """What makes a GPU of a function; empty: any driver that makes DRM nodes."""

    def __init__(self, options: GpuOptions, context: Context) -> None:
        self.sysfs = Sysfs(context.root)
        self._conditions = Conditions(context.root, options)

    def facts(self, adapter: Adapter) -> PlainFacts:
        """What allocation needs of it."""
        return PlainFacts(adapter)

    def more(self, adapter: Adapter) -> Mapping[str, AttributeValue | None]:
        """Attributes beyond those that every card has."""
        return {}

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """One card for each adapter."""
        return [self._card(index, adapter) for index, adapter in enumerate(adapters)]

    def notice(self, event: Event) -> None:
        """Nothing is remembered that an event could change."""

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Whether their driver answers, and how hot they are."""
        adapters = {card.id: card.facts.adapter for card in cards if isinstance(card.facts, PlainFacts)}
        return self._conditions.of(adapters)

    def close(self) -> None:
        """Nothing is held."""

    def _card(self, index: int, adapter: Adapter) -> Card:
        state = standing(self.sysfs, adapter, self.drivers)
        attributes = {
            **of_adapter(adapter),
            "vendor": self.vendor,
            "kind": VF if adapter.is_virtual else GPU,
            "index": index,
            "parent": adapter.physical_function,
            **self.more(adapter),
        }
        made = device(adapter, attributes, state.health, withheld=state.withheld)
        return Card(made, self.vendor, self.facts(adapter))
