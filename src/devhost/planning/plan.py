"""Which resource gets each device, how often, and why a resource does not get a device: the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from itertools import compress, takewhile
from operator import eq, is_not
from typing import NamedTuple, TypeVar

from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, AttributeValue, Device
from devhost.backend.where import holds, objection, selected, show

from .amounts import most_claims
from .claims import Reason
from .settings import MAX_REPLICAS, Of, ResourceSettings, Settings, Share, Side
from .tokens import ALL, id_flaw, numbered

K = TypeVar("K")
V = TypeVar("V")

LIST_LIMIT = 4_000_000
"""Bytes a device list may have: the kubelet's gRPC client refuses more than 4 MiB (grpc-go default)."""

_TOKEN_OVERHEAD = 20
"""Bytes of one ListAndWatch entry beside its id and NUMA nodes: tags, lengths and health."""

_NODE_OVERHEAD = 5
"""Bytes of one NUMA node in an entry: tags, a length and an id below 1024."""


def listed_bytes(name: int, nodes: int) -> int:
    """Bytes of one ListAndWatch entry, rounded up: of the id's bytes and the number of NUMA nodes."""
    return name + _TOKEN_OVERHEAD + _NODE_OVERHEAD * nodes


# Offers and units are made for each device at each event: a tuple costs a third of a frozen dataclass.


class Membership(NamedTuple):
    """The unit of a device by an attribute: its id, and why it cannot be allocated, if it cannot."""

    unit: str
    flaw: str = ""


class Offer(NamedTuple):
    """One device in one resource, allocated ``replicas`` times, by itself or with others.

    ``of`` is the unit by an attribute, of which the resource has every member; ``None`` without such units.
    """

    device: Device
    replicas: int = 1
    of: Membership | None = None

    @property
    def unit(self) -> str:
        """The id of what is allocated: of the unit by an attribute, or else of the device."""
        return self.of.unit if self.of else self.device.id


class Unit(NamedTuple):
    """What a container gets for one token: devices that are allocated together, ``replicas`` times.

    ``id`` is the prefix of its tokens, ``numbered`` whether a number follows it, ``numa_nodes`` what the
    kubelet receives for each token. ``whole`` is whether it can be allocated only while every device is
    healthy, ``flaw`` why it cannot be allocated at all.
    """

    id: str
    devices: tuple[Device, ...]
    replicas: int = 1
    numbered: bool = False
    numa_nodes: tuple[int, ...] = ()
    whole: bool = False
    flaw: str = ""

    @property
    def device(self) -> Device:
        """Its devices as one, with its id."""
        found = as_one(self.id, self.devices)
        return found if found.id == self.id else replace(found, id=self.id)

    def token(self, number: int) -> str:
        return numbered(self.id, number) if self.numbered else self.id


@frozen
class PlannedResource:
    """A resource by its final name, the entry it comes from, and the devices it gets, by id."""

    name: str
    entry: ResourceSettings
    offers: tuple[Offer, ...] = ()

    @property
    def size(self) -> int:
        """How many devices it has; a unit by an attribute is one."""
        return len({offer.unit for offer in self.offers}) if self.entry.share.attribute else len(self.offers)


def units(of: Of | str, offers: Sequence[Offer], *, topology: bool = True) -> list[Unit]:
    """The units of one resource, made from nothing; see :meth:`Units.make`."""
    return Units().make(of, offers, topology=topology)


class Units:
    """Makes the units of one resource; those of unchanged offers stay the same objects."""

    def __init__(self) -> None:
        self._terms: tuple[str, bool] | None = None
        self._offers: Sequence[Offer] = ()
        self._made: list[Unit] = []

    def make(self, of: Of | str, offers: Sequence[Offer], *, topology: bool = True) -> list[Unit]:
        """The units for these devices. The list is never changed afterwards.

        Units of several devices are always new. ``topology`` is whether the kubelet receives the NUMA nodes
        of devices.
        """
        if of != Of.EACH:
            self._terms, self._offers, self._made = None, (), []
            several: dict[Membership | None, list[Offer]] = {}
            for offer in offers:
                several.setdefault(offer.of, []).append(offer)
            return [_joined(of, some, topology) for of, some in several.items()]
        again: Iterable[int] = range(len(offers))
        made = self._made
        if self._terms == (of, topology) and len(offers) == len(made):
            again = compress(again, map(is_not, offers, self._offers))
            made = made.copy()
        else:
            made = [_NO_UNIT] * len(offers)
        for at in again:
            device, replicas, _ = offers[at]
            made[at] = Unit(
                device.id, (device,), replicas, replicas > 1, device.numa_nodes if topology else ()
            )
        self._terms, self._offers, self._made = (of, topology), offers, made
        return made


_NO_UNIT = Unit("", ())


def _joined(of: Membership | None, offers: Sequence[Offer], topology: bool) -> Unit:
    """The unit by an attribute of these devices, or the one for all devices of a resource.

    A token for all devices has no NUMA node: a pod placed by one of them could be far from the rest, and the
    kubelet would get a new, equal list whenever a device comes or goes.
    """
    devices, replicas = tuple(offer.device for offer in offers), offers[0].replicas
    if of is None:
        return Unit(ALL, devices, replicas, numbered=True)
    nodes = numa_nodes(devices) if topology else ()
    return Unit(of.unit, devices, replicas, replicas > 1, nodes, whole=True, flaw=of.flaw)


def numa_nodes(devices: Iterable[Device]) -> tuple[int, ...]:
    return tuple(sorted({node for device in devices for node in device.numa_nodes}))


def unit_id(share: Share, attributes: Mapping[str, AttributeValue]) -> tuple[str, str]:
    """The id of the unit of a device with these attributes; or else, after an empty one, why it has none."""
    value = attributes.get(share.attribute)
    if value is None or isinstance(value, tuple):
        return "", f"it has no {share.attribute}, by which share.of makes units"
    name = show(value)
    flaw = id_flaw(name)
    return ("", f"its {share.attribute} makes no id: it {flaw}") if flaw else (name, "")


def in_units(entry: ResourceSettings, devices: Iterable[Device]) -> dict[str, list[Device]]:
    """The devices that an entry with units by an attribute selects, by the unit."""
    found: dict[str, list[Device]] = {}
    for device in devices:
        seen = selected(entry.where, device.attributes, device.inherited)
        if seen is not None and (name := unit_id(entry.share, seen)[0]):
            found.setdefault(name, []).append(device)
    return found


def common(devices: Sequence[Device]) -> dict[str, AttributeValue]:
    first, *others = (device.attributes for device in devices)
    return {key: value for key, value in first.items() if all(one.get(key) == value for one in others)}


def as_one(unit: str, devices: Sequence[Device]) -> Device:
    """The devices of a unit as one device: with everything that they claim, and what all of them share."""
    if len(devices) == 1:
        return devices[0]
    nothing: frozenset[str] = frozenset()
    return Device(
        unit,
        common(devices),
        nothing.union(*(device.claims for device in devices)),
        nothing.union(*(device.part_of for device in devices)),
        numa_nodes(devices),
        _common_path(unit, [device.pcie_path for device in devices]),
    )


def _common_path(unit: str, paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The PCIe path of a unit: the bridges above all of its devices, then the unit itself."""
    above = list(takewhile(lambda some: len({*some}) == 1, zip(*(path[:-1] for path in paths), strict=False)))
    if above:
        return (*(one for one, *_ in above), unit)
    buses = {path[0].rpartition(":")[0] if path else "" for path in paths}
    return paths[0][:1] if len(buses) == 1 else ()  # of functions on a root bus, only the bus


def terms(entry: ResourceSettings, replicas: int, of: Membership | None = None) -> str:
    """How an entry allocates a device that it takes, in words; empty for the default."""
    found = []
    if of is not None:
        found.append(f"as a member of {of.unit}{f' ({of.flaw})' if of.flaw else ''}")
    if entry.share.amounts:
        names = " and ".join(one.name for one in entry.share.amounts)
        found.append(f"shared by {names}: at most {replicas} claim{'s' * (replicas != 1)}")
    elif replicas > 1 or entry.share.of == Of.ALL:
        found.append(f"handed out {replicas} times" if replicas > 1 else "handed out once")
    if entry.share.of == Of.ALL:
        found.append("all devices together")
    if entry.share.max_per_container is not None:
        found.append(f"at most {entry.share.max_per_container} per container")
    if entry.permissions:
        found.append(f"device nodes with permissions {entry.permissions}")
    if not entry.topology:
        found.append("NUMA nodes not sent to the kubelet")
    return ", ".join(found)


class RefusalKind(StrEnum):
    """Why an entry does not get a device that it selects, as the label of a metric."""

    WITHHELD = "withheld"
    """Its backend withholds it, or it has a special purpose that the entry does not name."""
    NAME = "name"
    """Its attributes do not make a valid resource name, or no unit."""
    TAKEN = "taken"
    """An earlier entry has it."""
    UNSHARED = "unshared"
    """An earlier entry has it, and only this one has ``exclusive: false``."""
    CLAIMED = "claimed"
    """Another device with the same claim is offered."""
    HELD = "held"
    """A container holds it, or a device with the same claim, through another resource."""
    MOVING = "moving"
    """It changes from the device plugin to DRA or back, and schedulers may still see it where it was."""
    UNIT = "unit"
    """Another member of its unit is refused."""
    FULL = "full"
    """The device list would be longer than the kubelet accepts."""


@frozen(slots=True)
class Refusal:
    """A device that an entry selects but does not get.

    ``entry`` is the entry's index, ``taker`` that of the entry which has the device, or ``None``. ``held_by``
    is the container that the reason refers to, if any. ``leaves`` is the resource through which the device is
    held, or still offered, with its side, if that is not the side of the entry.
    """

    backend: str
    device: str
    entry: int
    kind: RefusalKind
    reason: str
    taker: int | None = None
    held_by: tuple[AnyHolder, ...] = ()
    leaves: tuple[str, Side] | None = None

    @property
    def passes(self) -> bool:
        """Whether the device only changes sides: this ends without an edit of the file."""
        return self.kind is RefusalKind.MOVING or self.leaves is not None


@frozen(slots=True)
class EntryMatch:
    """Whether one entry takes one device, and why, for ``explain``."""

    entry: ResourceSettings
    resource: str
    taken: bool
    reason: str
    held_by: tuple[AnyHolder, ...] = ()


@frozen
class Plan:
    """The resources by name, and the refusals."""

    resources: Mapping[str, PlannedResource] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()

    def reasons(self) -> dict[int, dict[str, Reason]]:
        """Why entries do not get devices that they select: by the entry's index, then by the device's id."""
        found: dict[int, dict[str, Reason]] = {}
        for one in self.refusals:
            found.setdefault(one.entry, {})[one.device] = Reason(one.reason, one.held_by)
        return found

    def served(self) -> dict[int, list[PlannedResource]]:
        """The resources that have devices, by the index of the entry that they come from."""
        found: dict[int, list[PlannedResource]] = {}
        for resource in self.resources.values():
            if resource.offers:
                found.setdefault(resource.entry.index, []).append(resource)
        return found

    def holders(self, backend: str, device: str) -> Iterator[PlannedResource]:
        return (resource for resource, _ in self.offering(backend, device))

    def offering(self, backend: str, device: str) -> Iterator[tuple[PlannedResource, Offer]]:
        for resource in self.resources.values():
            if resource.entry.backend == backend:
                yield from ((resource, one) for one in resource.offers if one.device.id == device)


Found = Mapping[str, Mapping[str, Device]]
"""Every device that exists now: by backend, then by id."""


def explain(plan: Plan, settings: Settings, backend: str, device: Device) -> tuple[EntryMatch, ...]:
    """Whether each entry takes one device, in file order."""
    taken = {one.entry.index: (one.name, offer) for one, offer in plan.offering(backend, device.id)}
    refused = {r.entry: r for r in plan.refusals if (r.backend, r.device) == (backend, device.id)}
    matches = []
    for entry in settings.resources:
        offered = taken.get(entry.index)
        if entry.backend != backend:
            match = EntryMatch(entry, entry.name, False, f"it is for backend {entry.backend}")
        elif offered is not None:
            name, offer = offered
            how = terms(entry, offer.replicas, offer.of)
            match = EntryMatch(entry, name, True, f"it takes the device{', ' if how else ''}{how}")
        elif entry.index in refused:
            refusal = refused[entry.index]
            match = EntryMatch(entry, entry.name, False, refusal.reason, refusal.held_by)
        else:
            why = objection(entry.where, device.attributes, device.inherited)
            match = EntryMatch(entry, entry.name, False, why or "")
        matches.append(match)
    return tuple(matches)


def replicas_of(share: Share, attributes: Mapping[str, AttributeValue]) -> int:
    """How often a device with these attributes is allocated; at most so often, if by amount."""
    if share.amounts:
        return most_claims(share.amounts, attributes, MAX_REPLICAS)
    for override in share.overrides:
        if holds(override.where, attributes):
            return override.replicas
    return share.replicas


def differences(before: Mapping[K, V], now: Mapping[K, V]) -> dict[K, V | None]:
    """The values of ``now`` that are new or other objects, by key, and ``None`` for keys that are gone.

    Usually the keys are the same and in the same order. Then Python executes nothing for each of them: ten
    thousand take less than a millisecond.
    """
    if before is now:
        return {}
    if len(before) == len(now) and all(map(eq, before, now)):
        return dict(compress(now.items(), map(is_not, now.values(), before.values())))
    found: dict[K, V | None] = {key: value for key, value in now.items() if before.get(key) is not value}
    found.update((key, None) for key in before if key not in now)
    return found
