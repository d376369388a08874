"""The backend class: it finds adapters and merges the results of the vendors' code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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
    Usage,
    unhealthy,
)
from devhost.backend.errors import one_line
from devhost.backend.incident import Incident
from devhost.backend.model import NOTHING
from devhost.backend.sysfs import Sysfs

from .attributes import ATTRIBUTES
from .discovery import NVIDIA, Adapter, AdapterScanner, by_vendor
from .drm import WedgedCards
from .environment import STANDARD, Environment
from .missing import LastAttributes, limits_without_effect, missing_drivers
from .options import FIRMWARE, HAMI_USE, TIME_SLICE, GpuOptions, GpuResourceOptions, mps_entries, sharing
from .vendor import (
    Card,
    ContainerRequest,
    MergedEvents,
    Vendor,
)

if TYPE_CHECKING:
    from .nvidia.cdi import CdiNames
    from .nvidia.sharing import Limiters
    from .occupied import Occupied
    from .partitioning import Partitioner

T = TypeVar("T")

Maker = Callable[[GpuOptions, Context, Environment], Vendor]
"""Creates the code of a vendor."""


class Gpu(Backend):
    """NVIDIA, AMD and Intel GPUs, their parts, and all other DRM devices."""

    name = "gpu"
    Options = GpuOptions
    ResourceOptions = GpuResourceOptions
    takes_shares = True
    attributes = ATTRIBUTES
    variables = ("NVIDIA_VISIBLE_DEVICES",)
    subsystems = ("drm", "pci", "kfd")
    modules = ("nvidia",)
    discover_deadline = 20.0  # a vendor's library may take long to start

    def __init__(
        self,
        options: GpuOptions,
        context: Context,
        environment: Environment = STANDARD,
        makers: Mapping[str, Maker] = NOTHING,
    ) -> None:
        super().__init__(options, context)
        self._environment = environment
        self._makers = makers
        self._sysfs = Sysfs(context.root)
        self._adapters = AdapterScanner(self._sysfs)
        self._scan_failures: defaultdict[str, Incident] = defaultdict(Incident)
        self._probe_failures: defaultdict[str, Incident] = defaultdict(Incident)
        # Replaced whole, never changed: probe(), allocate() and links() read them on other threads.
        self._vendors: Mapping[str, Vendor] = {}
        self._cards: Mapping[str, Card] = {}
        self._missing: Sequence[MissingDriver] = ()
        self._events = MergedEvents(environment.timings)
        self._limiters: Limiters | None = None
        self._cdi_names: CdiNames | None = None
        self.occupied: Occupied | None = None
        """The look at processes; ``None`` before the first scan, and without ``occupied: refuse``."""
        self._wedged = WedgedCards(context.root, environment)
        self._last_attributes = LastAttributes()
        self._partitioner: Partitioner | None = None
        if options.partitions:
            from .partitioning import Partitioner

            self._partitioner = Partitioner(options.partitions, context, environment.clock)

    @property
    def vendors(self) -> Mapping[str, Vendor]:
        """The code of each vendor with a card so far."""
        return self._vendors

    @property
    def cards(self) -> Mapping[str, Card]:
        """The cards of the last scan, by id."""
        return self._cards

    def notice(self, event: Event) -> None:
        """Passes an event to the code of each vendor."""
        self._wedged.notice(event)
        for vendor in self._vendors.values():
            vendor.notice(event)

    def discover(self) -> list[Device]:
        """All cards, including unhealthy and withheld ones."""
        groups = by_vendor(self._adapters.scan(), self._sysfs)
        found: dict[str, Card] = {}
        failures: list[Exception] = []
        names = [*self._vendors, *(groups.keys() - self._vendors.keys())]
        for name in sorted(names):
            try:
                cards = self._scan(name, groups.get(name, ()))
                if self._scan_failures[name].over():
                    self.context.log.info("the cards of %s can be listed again", name)
            except Exception as error:  # noqa: BLE001 - a failure must only affect the cards of the vendor
                failures.append(error)
                cards = self._last_cards(name, error)
            found.update((card.id, card) for card in cards)
        if failures and len(failures) == len(names):
            raise failures[0]
        adapters = [one for name, own in groups.items() if name != NVIDIA for one in own]
        self._cards = self._with_wedged(self._last_attributes.complete(found, adapters), adapters)
        occupied = self._look_at_processes()
        self._missing = [
            *(occupied.problems(self._cards) if occupied else ()),
            *missing_drivers(self._sysfs, groups),
            *self._missing_modules(groups),
            *limits_without_effect(self.options, self._sysfs, groups, self._cards.values()),
        ]
        missing, failed = self._limiters.refresh() if self._limiters else ({}, {})
        needed = (use for entry in sharing(self.context.entries) for use in entry.uses if use != FIRMWARE)
        uses = {use: missing.get(use, "") for use in needed}
        devices = [unusable(card, uses, failed) for card in self._cards.values()]
        return self._partitioner.withhold(devices) if self._partitioner else devices

    def _look_at_processes(self) -> Occupied | None:
        """Makes the occupied cards Unhealthy; ``None`` if the configuration does not ask for that."""
        if self.options.occupied == "ignore":
            return None
        if self.occupied is None:
            from .occupied import Occupied

            self.occupied = Occupied(self.context, self._environment, lambda: self._cards, self._processes)
            self._update_events()
        if self.occupied.reasons is None:  # no pod may get a card before the first look
            with suppress(Exception):  # the watch looks again
                self.occupied.check()
        for name, reason in (self.occupied.reasons or {}).items():
            if (card := self._cards.get(name)) and card.device.health:
                self._cards = {**self._cards, name: _with_health(card, reason)}
        return self.occupied

    def _missing_modules(self, groups: Mapping[str, Sequence[Adapter]]) -> Sequence[MissingDriver]:
        if not groups.get(NVIDIA):
            return ()
        from .nvidia.allocation import missing_modules

        return list(missing_modules(self.options, self._sysfs))

    def missing_drivers(self) -> Sequence[MissingDriver]:
        """The GPUs without a driver of their vendor, and what options need in vain, as of the last scan."""
        return self._missing

    def allocate(self, request: AllocateRequest) -> Edits:
        """What a container needs to use these cards."""
        own: dict[str, list[Card]] = {}
        for device in request.devices:
            card = self._card(device)
            own.setdefault(card.vendor, []).append(card)
            if request.consumed:
                self._check_limiters(card, request.options)
        asked = ContainerRequest(self.options, self._sysfs, request.options, request.shares, request.consumed)
        return Edits.merge(self._vendors[vendor].edits(cards, asked) for vendor, cards in own.items())

    def prepare(self, request: AllocateRequest) -> None:
        """Sets the time slice of GPUs before a container starts."""
        wanted = request.options.time_slice
        cards = [self._card(device) for device in request.devices] if wanted else []
        for card in cards:
            if why := unusable(card, {TIME_SLICE: ""}).unusable_for.get(TIME_SLICE):
                raise AllocationError(f"{card.id}: {why}")
        if cards and self._limiters:
            self._limiters.time_slices.set([card.id for card in cards], wanted)

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The unhealthy cards, as each vendor's code reports them."""
        cards = self._cards
        wanted = [cards[device.id] for device in devices if device.id in cards]
        verdicts: dict[str, Health] = {}
        for name, vendor in self._vendors.items():
            own = [card for card in wanted if card.vendor == name]
            if not own:
                continue
            try:
                verdicts.update(vendor.probe(own))
            except Exception as error:  # noqa: BLE001 - as in discover()
                reason = _failure(name, error)
                if self._probe_failures[name].news(reason):
                    self.context.log.warning("%s", reason)
                verdicts.update((card.id, unhealthy(reason)) for card in own)
            else:
                if self._probe_failures[name].over():
                    self.context.log.info("the health of the cards of %s can be checked again", name)
        return verdicts

    def usage(self, devices: Sequence[Device]) -> Mapping[str, Usage]:
        """How much of each card is in use, as far as its driver reports it.

        Raises ``BackendError`` if a vendor's library does not answer, and no other vendor has figures.
        """
        cards = self._cards
        wanted = [cards[device.id] for device in devices if device.id in cards]
        return self._reported(wanted, lambda vendor, own: vendor.usage(own))

    def _processes(self) -> Mapping[str, Collection[int]]:
        """The processes that use each card, likewise."""
        return self._reported([*self._cards.values()], lambda vendor, own: vendor.processes(own))

    def _reported(
        self,
        cards: Sequence[Card],
        report: Callable[[Vendor, Sequence[Card]], Mapping[str, T]],
    ) -> Mapping[str, T]:
        """What the vendors report about their cards, by id."""
        found: dict[str, T] = {}
        failure: Exception | None = None
        for name, vendor in self._vendors.items():
            try:
                found.update(report(vendor, [card for card in cards if card.vendor == name]))
            except Exception as error:  # noqa: BLE001 - as in discover(); probe() logs what fails for long
                failure = error
        if failure and not found:
            raise failure
        return found

    def provision(self) -> None:
        """Partitions GPUs according to the options."""
        if self._partitioner:
            self._partitioner.run(self._vendors, self._cards)

    def links(self, a: Device, b: Device) -> int:
        """How closely two cards of one vendor are connected beyond PCIe and NUMA."""
        first, second = self._cards.get(a.id), self._cards.get(b.id)
        if first is None or second is None or first.vendor != second.vendor:
            return 0
        vendor = self._vendors.get(first.vendor)
        return vendor.links(first, second) if vendor else 0

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[str, str | int]:
        """Labels for the node, with the names that the vendors' labelers use."""
        from .labels import labels as node_labels

        shared = {use.resource for use in mps_entries(self.context.entries)}
        return node_labels(devices, offered, self._cards, self._sysfs, shared)

    def watch(self) -> AsyncGenerator[Event, None]:
        """The events of the vendors' code, which are not uevents."""
        return self._events.events()

    def release(self) -> None:
        """Closes the drivers that the vendors' code keeps in use."""
        for vendor in self._vendors.values():
            vendor.release()
        if self._cdi_names:
            self._cdi_names.wait_idle()  # until nvidia-ctk does not run

    def close(self) -> None:
        """Releases the hardware, even if :meth:`watch` never ran."""
        for vendor in self._vendors.values():
            vendor.close()

    def _scan(self, name: str, adapters: Sequence[Adapter]) -> Sequence[Card]:
        vendor = self._vendors.get(name)
        if vendor is None:
            maker = self._makers.get(name) or partial(make, name)
            vendor = maker(self.options, self.context, self._environment)
            self._vendors = {**self._vendors, name: vendor}
            if name == NVIDIA:
                self._start_nvidia()
            self._update_events()
        cards = vendor.scan(adapters)
        if name == NVIDIA and self._cdi_names:
            return self._cdi_names.named(cards, is_closed=self._is_nvidia_closed())
        return cards

    def _update_events(self) -> None:
        others = {"cdi": self._cdi_names, "limiters": self._limiters, "occupied": self.occupied}
        self._events.update({**self._vendors, **{name: one for name, one in others.items() if one}})

    def _start_nvidia(self) -> None:
        """Creates what NVIDIA's cards need besides the code that finds them."""
        from .nvidia.sharing import Limiters
        from .nvidia.time_slices import TimeSlices

        timings = self._environment.timings
        slices = TimeSlices(self.context, self.options.driver_root, self._environment, self._is_nvidia_closed)
        self._limiters = Limiters(self.context, timings, slices)
        if "cdi" in self.options.strategies:
            from .nvidia.cdi import CdiNames

            self._cdi_names = CdiNames(self.options, self.context, timings)

    def _is_nvidia_closed(self) -> bool:
        return self.context.released or self._vendors[NVIDIA].is_closed

    def _with_wedged(self, cards: Mapping[str, Card], adapters: Sequence[Adapter]) -> Mapping[str, Card]:
        """The cards, made Unhealthy if their driver has reported a reset and does not answer."""
        problems = self._wedged.problems(adapters)
        if not problems:
            return cards
        wedged = {
            name: problems.get(str(card.device.attributes.get("pciBusID", name)), "")
            for name, card in cards.items()
        }
        return {
            name: _with_health(card, wedged[name]) if wedged[name] and card.device.health else card
            for name, card in cards.items()
        }

    def _card(self, device: Device) -> Card:
        if (card := self._cards.get(device.id)) is None:
            raise AllocationError(f"{device.id} is gone")
        return card

    def _check_limiters(self, card: Card, use: GpuResourceOptions) -> None:
        """Refuses a card without what limits containers, even if a claim tolerates an unhealthy card."""
        missing = self._limiters.missing([use]) if self._limiters else {}
        found = unusable(card, {one: missing.get(one, "") for one in use.limiters}).unusable_for
        for one in use.limiters:
            if one in found:
                raise AllocationError(f"{card.id}: {found[one]}")

    def _last_cards(self, vendor: str, error: Exception) -> list[Card]:
        """The last cards of a vendor whose code fails, now Unhealthy."""
        reason = _failure(vendor, error)
        if self._scan_failures[vendor].news(reason):
            self.context.log.error("%s", reason)
        return [_with_health(card, reason) for card in self._cards.values() if card.vendor == vendor]


def unusable(card: Card, limiters: Mapping[str, str], failed: Mapping[str, str] = NOTHING) -> Device:
    """The device of a card, with what it cannot be used for.

    ``limiters`` is why what limits the containers of an entry does not, by the names of the uses; empty if it
    does. ``failed`` is why the time slice of a card is not set, by its id.
    """
    found = dict(card.device.unusable_for)
    if not getattr(card.facts, "mei", ()):
        found[FIRMWARE] = "firmware: true needs a firmware interface of Intel (/dev/mei<n>), and it has none"
    is_whole = card.vendor == NVIDIA and not getattr(card.facts, "is_mig", False)
    for use, reason in limiters.items():
        if use.startswith(HAMI_USE):
            wrong = reason if card.vendor == NVIDIA else "hami is for NVIDIA GPUs, which this is not"
        elif use == TIME_SLICE:
            why = reason or failed.get(card.id, "")
            wrong = why if is_whole else "timeSlice is for whole NVIDIA GPUs, which this is not"
        else:
            wrong = reason if is_whole else "mps is for whole NVIDIA GPUs, which this is not"
        if wrong:
            found[use] = wrong
    return replace(card.device, unusable_for=found)


def _with_health(card: Card, reason: str) -> Card:
    return replace(card, device=replace(card.device, health=unhealthy(reason)))


def _failure(vendor: str, error: Exception) -> str:
    return f"reading the cards of {vendor} failed: {one_line(error)}"


def make(vendor: str, options: GpuOptions, context: Context, environment: Environment) -> Vendor:
    """Creates the code of a vendor, which is imported with the vendor's first card."""
    match vendor:
        case "amd":
            from .amd.cards import Amd

            return Amd(options, context, environment)
        case "intel":
            from .intel import Intel

            return Intel(options, context, environment)
        case "nvidia":
            from .nvidia.gpus import Nvidia

            return Nvidia(options, context, environment)
    from .drm import Other

    return Other(options, context, environment)
