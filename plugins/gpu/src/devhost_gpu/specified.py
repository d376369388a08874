"""NVIDIA's cards as CDI specifications name them: the strategy ``cdi``.

A card that no specification names is Unhealthy, with the reason: no container that got it could start. The
names are those of devhost's own specification (:mod:`.toolkit`) where nvidia-ctk can write one, else those of
one that somebody else keeps, as the toolkit's own service does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from devhost.backend import Context, Event, Health, unhealthy

from .adapter import Adapter
from .card import CanLink, Card, Family
from .following import Following
from .giving_options import GivingOptions
from .nvml.facts import NvidiaFacts
from .writing import Need, Writing


class Specified:
    """The cards of another family with their names; all else is that family's affair."""

    def __init__(self, family: Family, options: GivingOptions, context: Context) -> None:
        self._family = family
        self._writing = Writing(options, context)
        self._following = Following()
        self._following.begin({"cards": family, "specification": self._writing})

    def scan(self, adapters: Sequence[Adapter]) -> list[Card]:
        """The family's cards, each with the name it has."""
        cards = self._family.scan(adapters)
        uuids = {card.id: card.facts.uuid for card in cards if isinstance(card.facts, NvidiaFacts)}
        well = {card.id for card in cards if card.device.health and not card.device.withheld}
        wanted = {uuid for name, uuid in uuids.items() if name in well}
        names = self._writing.names()
        drivers = {str(card.device.attributes.get("driverVersion", "")) for card in cards}
        known = frozenset(uuids.values())
        of_extras = self._writing.extras
        driver = max(drivers, default="")
        self._writing.need(Need(frozenset(wanted - {""}), known - {""}, driver, of_extras.asked()))
        extras, lacking = of_extras.names(), of_extras.lacking()
        return [self._named(card, names, extras, lacking) for card in cards]

    def notice(self, event: Event) -> None:
        """Hears an event."""
        self._family.notice(event)

    def probe(self, cards: Sequence[Card]) -> Mapping[str, Health]:
        """Which cards are ill."""
        return self._family.probe(cards)

    def links(self, a: Card, b: Card) -> int:
        """How closely two cards are joined."""
        return self._family.links(a, b) if isinstance(self._family, CanLink) else 0

    async def watch(self) -> AsyncIterator[Event]:
        """What the family hears beside uevents, and that there are other names."""
        async with aclosing(self._following.events()) as events:
            async for event in events:
                yield event

    def close(self) -> None:
        """Lets go of whatever the family holds."""
        self._family.close()

    def _named(self, card: Card, names: Mapping[str, str], extras: tuple[str, ...], lacking: str) -> Card:
        facts = card.facts
        if not isinstance(facts, NvidiaFacts):
            return card
        name = names.get(facts.uuid, "")
        device = card.device
        if (lacking or not name) and device.health and not device.withheld:
            reason = lacking if name else self._writing.lacking()
            device = replace(device, health=unhealthy(reason))
        return replace(card, device=device, facts=replace(facts, cdi=name, cdi_extras=extras))
