"""Assigns devices to resources. Pure.

A device that a container holds stays with the resource through which it was allocated, or is not offered at
all, until it is released. Devices are taken in the order of the file's entries and, within an entry, of their
ids, so the same input gives the same plan for any order of discovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from devhost.backend.model import PURPOSE, AnyHolder, AttributeValue, Device
from devhost.backend.where import names_purpose, selected, show

from . import naming
from .claims import ClaimIndex, Held, Key, binds_pod
from .plan import (
    LIST_LIMIT,
    Found,
    Offer,
    Plan,
    PlannedResource,
    Refusal,
    RefusalKind,
    listed_bytes,
    replicas_of,
)
from .settings import Of, ResourceSettings, Serve, Settings, WhenEmpty
from .tokens import ALL


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
