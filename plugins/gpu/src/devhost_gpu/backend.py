"""The backend: finds adapters, gives them to their vendors' code, and answers the core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Backend,
    Context,
    Device,
    Edits,
    Event,
    Health,
    MissingDriver,
    Offered,
    unhealthy,
)
from devhost.backend.errors import one_line
from devhost.backend.sysfs import Sysfs

from .adapter import Adapter
from .adapters import Adapters
from .allocation import Request, edits
from .attributes import ATTRIBUTES
from .card import NVIDIA, CanLink, Card, Family
from .following import Following
from .mps import Servers, uses
from .options import GpuOptions
from .recall import Recall
from .suspects import Suspects
from .undriven import missing
from .use import GpuUse
from .vendors import by_vendor, make


class Gpu(Backend):
    """GPUs of NVIDIA, AMD and Intel, their parts, and every other DRM device."""

    name = "gpu"
    Options = GpuOptions
    ResourceOptions = GpuUse
    takes_shares = True
    attributes = ATTRIBUTES
    subsystems = ("drm", "pci", "kfd")
    discover_deadline = 20.0  # a vendor's library may take long to start

    def __init__(self, options: GpuOptions, context: Context) -> None:
        super().__init__(options, context)
        self._sysfs = Sysfs(context.root)
        self._adapters = Adapters(self._sysfs)
        self._failed: dict[str, str] = {}
        self._unasked: dict[str, str] = {}
        # Replaced whole, never changed: probe(), allocate() and links() read them on other threads.
        self._families: Mapping[str, Family] = {}
        self._cards: Mapping[str, Card] = {}
        self._missing: Sequence[MissingDriver] = ()
        self._following = Following()
        self._servers = Servers(context)
        self._suspects = Suspects(context.root)
        self._recall = Recall()

    def notice(self, event: Event) -> None:
        """Hears an event; each vendor's code knows what it concerns."""
        self._suspects.notice(event)
        for family in self._families.values():
            family.notice(event)

    def discover(self) -> list[Device]:
        """Every card there is, also those that are ill or withheld.

        Raises:
            OSError: sysfs cannot be listed.
        """
        groups = by_vendor(self._adapters.look(), self._sysfs)
        found: dict[str, Card] = {}
        failures: list[Exception] = []
        vendors = [*self._families, *(groups.keys() - self._families.keys())]
        for vendor in sorted(vendors):
            try:
                cards = self._scan(vendor, groups.get(vendor, ()))
                if self._failed.pop(vendor, ""):
                    self.context.log.info("the cards of %s can be listed again", vendor)
            except Exception as error:  # noqa: BLE001 - a vendor's code fails for its own cards only
                failures.append(error)
                cards = self._left(vendor, error)
            found.update((card.id, card) for card in cards)
        if failures and len(failures) == len(vendors):
            raise failures[0]
        adapters = [one for vendor, own in groups.items() if vendor != NVIDIA for one in own]
        self._cards = self._without_wedged(self._recall.complete(found, adapters), adapters)
        self._missing = [*missing(self._sysfs, groups)]
        self._servers.look()
        return [self._servers.judged(card).device for card in self._cards.values()]

    def missing_drivers(self) -> Sequence[MissingDriver]:
        """The GPUs that their vendor's driver does not drive, as of the last look."""
        return self._missing

    def allocate(self, request: AllocateRequest) -> Edits:
        """What a container needs to use these cards.

        Raises:
            AllocationError: one is gone, or cannot be used as it is now.
        """
        cards = [self._card(device) for device in request.devices]
        return edits(cards, Request(self.options, self._sysfs, request.options, request.shares))

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """Which cards are ill, asked of each vendor's code."""
        cards = self._cards
        wanted = [cards[device.id] for device in devices if device.id in cards]
        verdicts: dict[str, Health] = {}
        for vendor, family in self._families.items():
            own = [card for card in wanted if card.vendor == vendor]
            if not own:
                continue
            try:
                verdicts.update(family.probe(own))
            except Exception as error:  # noqa: BLE001 - as in discover()
                reason = _failure(vendor, error)
                if self._unasked.get(vendor) != reason:
                    self._unasked[vendor] = reason
                    self.context.log.warning("%s", reason)
                verdicts.update((card.id, unhealthy(reason)) for card in own)
            else:
                if self._unasked.pop(vendor, ""):
                    self.context.log.info("the health of the cards of %s can be asked for again", vendor)
        return verdicts

    def links(self, a: Device, b: Device) -> int:
        """How closely two cards of one vendor are joined beyond PCIe and NUMA."""
        first, second = self._cards.get(a.id), self._cards.get(b.id)
        if first is None or second is None or first.vendor != second.vendor:
            return 0
        family = self._families.get(first.vendor)
        return family.links(first, second) if isinstance(family, CanLink) else 0

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[str, str | int]:
        """Labels for the node, with the names that the vendors' own labellers use."""
        from .node_labels import labels as node_labels  # only where labels are wanted

        shared = {use.resource for use in uses(self.context.entries)}
        return node_labels(devices, offered, self._cards, self._sysfs, shared)

    async def watch(self) -> AsyncGenerator[Event, None]:
        """What the vendors' code hears beside uevents."""
        async with aclosing(self._following.events()) as events:  # so that it lets go at once
            async for event in events:
                yield event

    def close(self) -> None:
        """Lets go of the hardware, also where nobody came to listen to events."""
        for family in self._families.values():
            family.close()

    def _scan(self, vendor: str, adapters: Sequence[Adapter]) -> Sequence[Card]:
        family = self._families.get(vendor) or make(vendor, self.options, self.context)
        if family is None:
            return ()
        if vendor not in self._families:
            self._families = {**self._families, vendor: family}
            self._following.begin({**self._families, "mps": self._servers})
        return family.scan(adapters)

    def _without_wedged(self, cards: Mapping[str, Card], adapters: Sequence[Adapter]) -> Mapping[str, Card]:
        """The cards, with those Unhealthy whose driver has cried for help and does not answer."""
        lacks = self._suspects.lacking(adapters)
        if not lacks:
            return cards
        wedged = {
            name: lacks.get(str(card.device.attributes.get("pciBusID", name)), "")
            for name, card in cards.items()
        }
        return {
            name: _ill(card, wedged[name]) if wedged[name] and card.device.health else card
            for name, card in cards.items()
        }

    def _card(self, device: Device) -> Card:
        if (card := self._cards.get(device.id)) is None:
            raise AllocationError(f"{device.id} is gone")
        return card

    def _left(self, vendor: str, error: Exception) -> list[Card]:
        """The cards a vendor had when its code last worked, Unhealthy now."""
        reason = _failure(vendor, error)
        if self._failed.get(vendor) != reason:
            self._failed[vendor] = reason
            self.context.log.error("%s", reason)
        return [_ill(card, reason) for card in self._cards.values() if card.vendor == vendor]


def _ill(card: Card, reason: str) -> Card:
    return replace(card, device=replace(card.device, health=unhealthy(reason)))


def _failure(vendor: str, error: Exception) -> str:
    return f"asking for the cards of {vendor} failed: {one_line(error)}"
