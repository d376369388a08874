"""Partitions GPUs according to ``backends.gpu.partitions``, through the code of their vendors.

A GPU is partitioned while no container holds it or a part of it. It is withheld for that, so that no further
container gets it meanwhile. What the driver refuses is tried again after a while, in which the GPU is offered
as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from time import monotonic

from devhost.backend import Context, Device, NotYet, claim
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, few
from devhost.backend.frozen import mutable
from devhost.backend.provision import Changes
from devhost.backend.where import holds

from .options import Layout
from .vendor import Card, Change, Vendor

FIRST_RETRY, LAST_RETRY = 30.0, 300.0
"""Seconds until what a driver refused is tried again; they double."""

LEAVING = "its GPU is about to be partitioned"
"""Why a device is withheld meanwhile."""


@mutable
class _RefusedChange:
    """What a driver refused, its reason, and when to try again."""

    wanted: str
    reason: str = ""
    until: float = 0.0
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY, LAST_RETRY))


class Partitioner:
    """Partitions GPUs. Used by one thread, except :meth:`withhold`."""

    def __init__(
        self, layouts: Sequence[Layout], context: Context, clock: Callable[[], float] = monotonic
    ) -> None:
        self._layouts = layouts
        self._log = context.log
        self._clock = clock
        self._changes = Changes(context.held, lambda device: device in self._offered)
        self._offered: frozenset[str] = frozenset()
        self._refusals: dict[str, _RefusedChange] = {}

    def withhold(self, devices: Sequence[Device]) -> list[Device]:
        """The devices of a scan, without those that are about to change."""
        leaving = self._changes.leaving
        shown = [
            replace(one, withheld=one.withheld or LEAVING) if one.id in leaving else one for one in devices
        ]
        self._offered = frozenset(one.id for one in shown if one.withheld is None)
        return shown

    def run(self, vendors: Mapping[str, Vendor], cards: Mapping[str, Card]) -> None:
        """Partitions every GPU that a layout selects, as far as that is possible now.

        Raises ``NotYet`` if it waits for containers, or for hardware, and ``BackendError`` if a driver or a
        rule refuses it.
        """
        gpus: dict[str, list[Card]] = {}
        for card in cards.values():
            if address := card.device.attributes.get("pciBusID"):
                gpus.setdefault(str(address), []).append(card)
        self._refusals = {name: one for name, one in self._refusals.items() if name in gpus}
        self._changes.make(self._targets(vendors, gpus))

    def _targets(
        self, vendors: Mapping[str, Vendor], gpus: Mapping[str, Sequence[Card]]
    ) -> Iterator[Callable[[], None]]:
        for name, cards in sorted(gpus.items()):
            if layout := self._layout(cards[0]):
                yield partial(self._partition, vendors[cards[0].vendor], name, cards, layout)

    def _layout(self, card: Card) -> Layout | None:
        attributes = card.device.attributes
        mine = (one for one in self._layouts if one.vendor == card.vendor and holds(one.where, attributes))
        return next(mine, None)

    def _partition(self, vendor: Vendor, name: str, cards: Sequence[Card], layout: Layout) -> None:
        change = vendor.change(cards, layout)
        if change is None:
            self._refusals.pop(name, None)
            return
        refusal = self._refusals.get(name)
        if refusal and refusal.wanted != change.wanted:
            refusal = None
        self._refuse_held(name, cards, change)
        if refusal and self._clock() < refusal.until:
            raise BackendError(refusal.reason)
        devices = [card.id for card in cards] if change.replaces else []
        try:
            self._changes.withdraw(devices, name)
        except NotYet:
            if refusal:
                raise BackendError(refusal.reason) from None  # one problem until it is solved
            raise
        try:
            self._refuse_held(name, cards, change)  # a container may have just got one
            change.make()
        except NotYet:
            raise
        except BackendError as error:
            refusal = refusal or _RefusedChange(change.wanted)
            refusal.reason = error.message
            refusal.until = self._clock() + refusal.backoff.delay()
            self._refusals[name] = refusal
            raise
        self._refusals.pop(name, None)
        self._log.info("%s was changed from %s to %s", name, change.present, change.wanted)

    def _refuse_held(self, name: str, cards: Sequence[Card], change: Change) -> None:
        """Returns if no container holds the GPU or a part of it."""
        own = {claim.device("gpu", card.id): card.id for card in cards}
        held = self._changes.held()
        used = [name for one, name in own.items() if one in held]
        self._changes.refuse_held(
            frozenset({claim.pci(name), *own}.union(*(card.device.claims for card in cards))),
            f"{name} keeps {change.present} instead of {change.wanted} while pods hold {few(used) or name}",
        )
