"""Which resource gets each device, how often, and why a resource does not get a device. Pure.

The plan is rebuilt after every change from all devices, the whole configuration and what containers hold; it
keeps nothing of the previous plan. A device that a container holds stays with the resource through which it
was allocated, or is not offered at all, until it is released. Devices are taken in the order of the file's
entries and, within an entry, of their ids, so the same input gives the same plan for any order of discovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from devhost.backend.model import PURPOSE, AnyHolder, AttributeValue, Device
from devhost.backend.where import holds, names_purpose, objection, selected, show

from . import naming
from .claims import ClaimIndex, Held, Key, Reason, binds_pod
from .settings import Of, ResourceSettings, Serve, Settings, Share, WhenEmpty
from .tokens import ALL

LIST_LIMIT = 4_000_000
"""Bytes a device list may have: the kubelet's gRPC client refuses more than 4 MiB (grpc-go default)."""

_TOKEN_OVERHEAD = 20
"""Bytes of one ListAndWatch entry beside its id and NUMA nodes: tags, lengths and health."""

_NODE_OVERHEAD = 5
"""Bytes of one NUMA node in an entry: tags, a length and an id below 1024."""


def listed_bytes(name: int, nodes: int) -> int:
    """Bytes of one ListAndWatch entry, rounded up.

    Args:
        name: bytes of the token's id.
        nodes: NUMA nodes the device is near.
    """
    return name + _TOKEN_OVERHEAD + _NODE_OVERHEAD * nodes


# Offers and units are made for each device at each event: a tuple costs a third of a frozen dataclass.


class Offer(NamedTuple):
    """One device in one resource, allocated ``replicas`` times, by itself or with the other devices."""

    device: Device
    replicas: int = 1


class Unit(NamedTuple):
    """What a container gets for one token: devices that are allocated together, ``replicas`` times.

    ``id`` is the prefix of its tokens, ``numbered`` whether a number follows it, ``numa_nodes`` what the
    kubelet receives for each token.
    """

    id: str
    devices: tuple[Device, ...]
    replicas: int = 1
    numbered: bool = False
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedResource:
    """A resource by its final name, the entry it comes from, and the devices it gets, by id."""

    name: str
    entry: ResourceSettings
    offers: tuple[Offer, ...] = ()


def units(of: Of, offers: Sequence[Offer], *, topology: bool = True) -> list[Unit]:
    """The units of one resource; none if it has no device.

    Args:
        topology: whether the kubelet receives the NUMA nodes of devices.

    A token for all devices has no NUMA node: a pod placed by one of them could be far from the rest, and the
    kubelet would get a new, equal list whenever a device comes or goes.
    """
    if of is Of.EACH:
        return [
            Unit(device.id, (device,), replicas, replicas > 1, device.numa_nodes if topology else ())
            for device, replicas in offers
        ]
    if not offers:
        return []
    return [Unit(ALL, tuple(offer.device for offer in offers), offers[0].replicas, numbered=True)]


def terms(entry: ResourceSettings, replicas: int) -> str:
    """How an entry allocates a device that it takes, in words; empty for the default."""
    found = []
    if replicas > 1 or entry.share.of is Of.ALL:
        found.append(f"handed out {replicas} times" if replicas > 1 else "handed out once")
    if entry.share.of is Of.ALL:
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
    """Its attributes do not make a valid resource name."""
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
    FULL = "full"
    """The device list would be longer than the kubelet accepts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A device that an entry selects but does not get.

    ``entry`` is the entry's index, ``taker`` that of the entry which has the device, or ``None``. ``held_by``
    is the container that the reason refers to, if any. ``leaves`` is the side on which the device is held, or
    still offered, if that is not the side of the entry, and the resource there.
    """

    backend: str
    device: str
    entry: int
    kind: RefusalKind
    reason: str
    taker: int | None = None
    held_by: tuple[AnyHolder, ...] = ()
    leaves: tuple[str, Serve] | None = None

    @property
    def passes(self) -> bool:
        """Whether the device only changes sides: this ends without an edit of the file."""
        return self.kind is RefusalKind.MOVING or self.leaves is not None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one entry takes one device, and why, for ``explain``."""

    entry: ResourceSettings
    resource: str
    taken: bool
    reason: str
    held_by: tuple[AnyHolder, ...] = ()


@dataclass(frozen=True, slots=True)
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
        """The resources that offer this device."""
        for resource in self.resources.values():
            if resource.entry.backend == backend and any(o.device.id == device for o in resource.offers):
                yield resource


Found = Mapping[str, Mapping[str, Device]]
"""Every device that exists now: by backend, then by id."""


class AllocationView(Protocol):
    """What the plan needs to know of the devices that containers hold."""

    def observe(self, found: Found, settings: Settings) -> None:
        """Takes the devices and the configuration as they are now."""

    def held(self) -> Sequence[Held]:
        """What containers hold."""

    def learn(self, plan: Plan) -> bool:
        """Learns the devices behind tokens from a plan; whether containers hold more than was known."""


class SidesView(Protocol):
    """What the plan needs to know of devices that change from one side to the other."""

    def begin(self, found: Found) -> Sequence[Held]:
        """Begins a plan: the devices that are moving, as held through the resource that they leave."""

    def refusal(self, key: Key, resource: str, entry: ResourceSettings) -> str:
        """Why a DRA resource must not get a device yet; empty if it may."""

    def learn(self, plan: Plan) -> bool:
        """Learns what a plan moves; whether it must be made again."""

    def commit(self, plan: Plan) -> None:
        """Takes the plan that takes effect."""


def plan_devices(
    found: Found, settings: Settings, allocations: AllocationView, sides: SidesView | None = None
) -> Plan:
    """Makes the plan, and repeats it as long as it shows that containers hold more than was known.

    Args:
        found: every device of every backend.
        settings: the whole configuration.
        allocations: what containers hold; they learn from the plan.
        sides: the devices that change sides, if DRA is used; they learn from the plan.
    """
    devices = {backend: tuple(known.values()) for backend, known in found.items()}
    allocations.observe(found, settings)
    while True:
        moving = sides.begin(found) if sides else ()
        plan = make_plan(devices, settings, [*allocations.held(), *moving], sides=sides)
        stale = allocations.learn(plan)
        if sides and sides.learn(plan):
            stale = True
        if not stale:
            break
    if sides:
        sides.commit(plan)
    return plan


def make_plan(
    found: Mapping[str, Sequence[Device]],
    settings: Settings,
    held: Sequence[Held] = (),
    list_limit: int = LIST_LIMIT,
    sides: SidesView | None = None,
) -> Plan:
    """Assigns devices to resources.

    Args:
        found: every device that exists now, by the name of the backend that found it.
        settings: the whole configuration.
        held: what containers hold now; the devices may be gone, and the resources may no longer exist.
        list_limit: bytes that the device list of a resource may have.
        sides: whether a DRA resource may get a device already; without it, it may.
    """
    planner = _Planner(ClaimIndex(held) if held else None, list_limit, sides)
    ordered = {name: sorted(devices, key=lambda device: device.id) for name, devices in found.items()}
    for entry in settings.resources:
        planner.entry(entry, ordered.get(entry.backend, ()))
    return Plan(
        {name: PlannedResource(name, planner.owners[name], tuple(o)) for name, o in planner.offers.items()},
        tuple(planner.refusals),
    )


def explain(plan: Plan, settings: Settings, backend: str, device: Device) -> tuple[Verdict, ...]:
    """The verdict of each entry on one device, in file order."""
    taken = {resource.entry.index: resource.name for resource in plan.holders(backend, device.id)}
    refused = {r.entry: r for r in plan.refusals if (r.backend, r.device) == (backend, device.id)}
    verdicts = []
    for entry in settings.resources:
        name = taken.get(entry.index)
        if entry.backend != backend:
            verdict = Verdict(entry, entry.name, False, f"it is for backend {entry.backend}")
        elif name is not None:
            seen = selected(entry.where, device.attributes, device.inherited) or device.attributes
            how = terms(entry, replicas_of(entry.share, seen))
            verdict = Verdict(entry, name, True, f"it takes the device{', ' if how else ''}{how}")
        elif entry.index in refused:
            refusal = refused[entry.index]
            verdict = Verdict(entry, entry.name, False, refusal.reason, refusal.held_by)
        else:
            why = objection(entry.where, device.attributes, device.inherited)
            verdict = Verdict(entry, entry.name, False, why or "")
        verdicts.append(verdict)
    return tuple(verdicts)


def replicas_of(share: Share, attributes: Mapping[str, AttributeValue]) -> int:
    """How often a device with these attributes is allocated."""
    for override in share.overrides:
        if holds(override.where, attributes):
            return override.replicas
    return share.replicas


class _Planner:
    """The state of one run through the entries."""

    def __init__(self, held: ClaimIndex | None, list_limit: int, sides: SidesView | None) -> None:
        self._held = held
        self._sides = sides
        self._list_limit = list_limit
        self.offers: dict[str, list[Offer]] = {}
        self.owners: dict[str, ResourceSettings] = {}
        self.refusals: list[Refusal] = []
        self._taken: dict[Key, tuple[ResourceSettings, ...]] = {}
        self._wholes: dict[str, Key] = {}
        self._parts: dict[str, Key] = {}
        self._sizes: dict[str, int] = {}
        self._values: dict[str, tuple[AttributeValue, ...]] = {}

    def entry(self, entry: ResourceSettings, devices: Iterable[Device]) -> None:
        fields = naming.fields(entry.name)
        if not fields and entry.when_empty is WhenEmpty.REGISTER:
            self._open(entry.name, entry)
        for device in devices:
            seen = selected(entry.where, device.attributes, device.inherited)
            if seen is None:
                continue
            key = (entry.backend, device.id)
            name = naming.expand(entry.name, seen) if fields else entry.name
            taker = None
            held_by: tuple[AnyHolder, ...] = ()
            leaves = None
            replicas = replicas_of(entry.share, seen)
            if reason := device.withheld or _reserved(device, entry):
                kind = RefusalKind.WITHHELD
            elif name is None:
                kind, reason = RefusalKind.NAME, _nameless(entry, fields, seen)
            elif reason := self._no_name(name, entry, fields, device):
                kind = RefusalKind.NAME
            elif taker := self._taken_by(key, entry):
                kind, reason = _taken(taker, entry)
            elif reason := self._no_claim(key, device):
                kind = RefusalKind.CLAIMED
            elif held := self._held and self._held.objection(key, device, name, entry.exclusive, entry.serve):
                kind = RefusalKind.MOVING if held.moving else RefusalKind.HELD
                reason, held_by = held.reason.text, held.reason.held_by
                leaves = (held.resource, held.serve) if held.serve is not entry.serve else None
            elif reason := self._too_soon(name, key, entry):
                kind, leaves = RefusalKind.MOVING, (name, Serve.PLUGIN)
            elif reason := self._no_room(name, device, entry, replicas):
                kind = RefusalKind.FULL
            else:
                self._give(name, key, entry, device, replicas)
                continue
            index = taker.index if taker else None
            self.refusals.append(
                Refusal(entry.backend, device.id, entry.index, kind, reason, index, held_by, leaves)
            )

    def _open(self, name: str, entry: ResourceSettings) -> list[Offer]:
        self.owners.setdefault(name, entry)
        return self.offers.setdefault(name, [])

    def _no_name(self, name: str, entry: ResourceSettings, fields: tuple[str, ...], device: Device) -> str:
        if fields:
            if problem := naming.problem(name):
                return f"the name {name} {problem}"
            values = _values(fields, device)
            others = self._values.get(name, values)
            if others != values:
                return (
                    f"the name {name} already represents {_shown(others)}, this device has {_shown(values)}"
                )
        owner = self.owners.get(name)
        if owner is not None and owner.index != entry.index:
            return f"the name {name} already belongs to entry {owner.index + 1} ({owner.name})"
        return ""

    def _taken_by(self, key: Key, entry: ResourceSettings) -> ResourceSettings | None:
        for other in self._taken.get(key, ()):
            if entry.exclusive or other.exclusive or entry.serve is not other.serve:
                return other
        return None

    def _too_soon(self, name: str, key: Key, entry: ResourceSettings) -> str:
        """Why a DRA resource must not get a device yet; empty if it may."""
        if self._sides is None or entry.serve is Serve.PLUGIN:
            return ""
        return self._sides.refusal(key, name, entry)

    def _no_claim(self, key: Key, device: Device) -> str:
        conflicts = []
        for claim in device.claims:
            for holder in (self._wholes.get(claim), self._parts.get(claim)):
                if holder is not None and holder != key and not binds_pod(claim):
                    conflicts.append(f"{claim} is already used by {_name(holder)}")  # noqa: PERF401 - rarely reached
        for claim in device.part_of:
            holder = self._wholes.get(claim)
            if holder is not None and holder != key and not binds_pod(claim):
                conflicts.append(f"{claim} is already used as a whole by {_name(holder)}")
        return min(conflicts) if conflicts else ""  # a set has no order, and the plan must be deterministic

    def _no_room(self, name: str, device: Device, entry: ResourceSettings, replicas: int) -> str:
        together = entry.share.of is Of.ALL
        if entry.serve is Serve.DRA:
            return ""  # there is no list
        if together and name in self._sizes:
            return ""  # the tokens are in the list already
        # the same as units() makes; that is too slow for each device at each event
        if together:
            each = listed_bytes(len(ALL) + _numbered(replicas), 0)
        else:
            number = _numbered(replicas) if replicas > 1 else 0
            each = listed_bytes(len(device.id) + number, len(device.numa_nodes) if entry.topology else 0)
        size = self._sizes.get(name, 0) + replicas * each
        if size > self._list_limit:
            return f"the device list of {name} would pass the kubelet's limit of 4 MiB"
        self._sizes[name] = size
        return ""

    def _give(self, name: str, key: Key, entry: ResourceSettings, device: Device, replicas: int) -> None:
        self._taken[key] = (*self._taken.get(key, ()), entry)
        for claim in device.claims:
            self._wholes[claim] = key
        for claim in device.part_of:
            self._parts.setdefault(claim, key)
        offers = self.offers.get(name)
        if offers is None:
            if fields := naming.fields(entry.name):
                self._values[name] = _values(fields, device)
            offers = self._open(name, entry)
        offers.append(Offer(device, replicas))


def _reserved(device: Device, entry: ResourceSettings) -> str:
    """Why an entry must not get a device with a special purpose; empty if it may."""
    if not device.reserved or names_purpose(entry.where, device.attributes, device.inherited):
        return ""
    return f"{device.reserved}; to offer it, add {PURPOSE}: {show(device.attributes[PURPOSE])} to where"


def _numbered(replicas: int) -> int:
    """Bytes of the number in a token's id."""
    return 2 + len(str(replicas))


def _values(fields: Sequence[str], device: Device) -> tuple[AttributeValue, ...]:
    return tuple(device.attributes[field] for field in fields)


def _shown(values: Sequence[AttributeValue]) -> str:
    return ", ".join(map(show, values))


def _taken(taker: ResourceSettings, entry: ResourceSettings) -> tuple[RefusalKind, str]:
    reason = f"entry {taker.index + 1} ({taker.name}) already took it"
    if entry.serve is not taker.serve:
        return RefusalKind.TAKEN, f"{reason}, and serves it with serve: {taker.serve}"
    if entry.exclusive:
        return RefusalKind.TAKEN, reason
    return RefusalKind.UNSHARED, f"{reason} and does not have exclusive: false"


def _nameless(
    entry: ResourceSettings, fields: Sequence[str], attributes: Mapping[str, AttributeValue]
) -> str:
    missing = [field for field in fields if field not in attributes]
    if missing:
        return f"it has no {' and no '.join(missing)}, which the name {entry.name} needs"
    return f"its attributes leave nothing legal for the name {entry.name}"


def _name(key: Key) -> str:
    return f"{key[1]} of backend {key[0]}"
