"""Assigns devices to resources. Pure.

A device that a container holds stays with the resource through which it was allocated, or is not offered at
all, until it is released. Devices are taken in the order of the file's entries and, within an entry, of their
ids, so the same input gives the same plan for any order of discovery.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from devhost.backend.frozen import frozen
from devhost.backend.model import PURPOSE, AnyHolder, AttributeValue, Device
from devhost.backend.where import Flag, Pattern, Text, Where, names_purpose, selected, show

from . import naming
from .claims import ClaimIndex, Held, Key, binds_pod
from .plan import (
    LIST_LIMIT,
    Found,
    Membership,
    Offer,
    Plan,
    PlannedResource,
    Refusal,
    RefusalKind,
    common,
    differences,
    listed_bytes,
    numa_nodes,
    replicas_of,
    unit_id,
)
from .settings import PLUGIN, Of, ResourceSettings, Serve, Settings, Side, WhenEmpty
from .tokens import ALL

if TYPE_CHECKING:
    from .sides import Sides  # only where DRA is used

STRIDE = 256
"""Devices between two points at which a plan can be interrupted: about two milliseconds."""


class AllocationView(Protocol):
    """What the plan needs to know of the devices that containers hold."""

    def observe(self, found: Found, settings: Settings) -> None:
        """Takes the devices and the configuration as they are now."""

    def held(self) -> Sequence[Held]:
        """What containers hold."""

    def learn(self, plan: Plan) -> bool:
        """Learns the devices behind tokens from a plan; whether containers hold more than was known."""


def plan_devices(
    found: Found,
    settings: Settings,
    allocations: AllocationView,
    sides: Sides | None = None,
    planner: Planner | None = None,
) -> Plan:
    """Makes the plan, and repeats it as long as it shows that containers hold more than was known.

    ``allocations`` learn from the plan, and so do ``sides``, the devices that change sides, if DRA is used.
    ``planner`` has made the previous plan.
    """
    planner = planner or Planner()
    allocations.observe(found, settings)
    while True:
        if sides:
            sides.begin()
        plan = planner.make(found, settings, held_now(found, allocations, sides), sides)
        stale = allocations.learn(plan)
        if sides and sides.learn(plan):
            stale = True
        if not stale:
            break
    if sides:
        sides.commit(plan)
    return plan


def held_now(found: Found, allocations: AllocationView, sides: Sides | None) -> Sequence[Held]:
    """What containers hold, and what changes sides."""
    return [*allocations.held(), *(sides.held(found) if sides else ())]


def make_plan(
    found: Mapping[str, Iterable[Device]],
    settings: Settings,
    held: Sequence[Held] = (),
    list_limit: int = LIST_LIMIT,
) -> Plan:
    """Makes a plan from nothing; see :meth:`Planner.make`."""
    every = {name: {device.id: device for device in devices} for name, devices in found.items()}
    return Planner(list_limit).make(every, settings, held)


class Planner:
    """Makes plans, and does again only what depends on something that has changed.

    The result is the same as that of a new planner. An entry is planned again if it selects other devices, or
    if what the entries above it or containers do with these devices, their claims or its names has changed.
    An entry of DRA whose devices wait for the Node is always planned again. ``list_limit`` is the bytes that
    the device list of a resource may have.
    """

    def __init__(self, list_limit: int = LIST_LIMIT) -> None:
        self._list_limit = list_limit
        self._settings: Settings | None = None
        self._found: Found = {}
        self._held: Sequence[Held] = ()
        self._entries: list[_PlannedEntry] = []
        self._given = _Given()
        self._plan = Plan()

    def make(
        self, found: Found, settings: Settings, held: Sequence[Held] = (), sides: Sides | None = None
    ) -> Plan:
        """Assigns devices to resources.

        An unchanged device should be the same object as before. The devices of ``held`` may be
        gone, and its resources may no longer exist. Without ``sides``, a DRA resource may get every device.
        """
        for _ in self.steps(found, settings, held, sides):
            pass
        return self._plan

    def steps(
        self, found: Found, settings: Settings, held: Sequence[Held] = (), sides: Sides | None = None
    ) -> Iterator[None]:
        """The same in steps of at most :data:`STRIDE` devices; then :meth:`make` has nothing left to do.

        What is made so far is lost if the steps are not exhausted.
        """
        # what has changed since the last plan: nothing else is planned again
        dirty = _Dirty()
        fresh = settings is not self._settings
        if fresh:
            self._found, self._held = {}, ()
            self._entries, self._given = [_PlannedEntry(entry) for entry in settings.resources], _Given()
        others_held = held != self._held
        changed = {name: differences(self._found.get(name, {}), devices) for name, devices in found.items()}
        changed |= {name: dict.fromkeys(self._found[name]) for name in self._found.keys() - found.keys()}
        known, self._found = self._found, found
        waits = any(one.waits(sides) for one in self._entries)
        if not (fresh or others_held or waits or any(changed.values())):
            return
        self._settings = None  # until all is done
        if others_held:
            dirty.add_held(self._held, held)
            self._held, self._given.held = held, ClaimIndex(held) if held else None
        # entry by entry, from the first: what one gets may change what those below it get
        few = {name: _Candidates(devices, known.get(name, {})) for name, devices in changed.items()}
        same = True
        for one in self._entries:
            yield
            changes = few.get(one.settings.backend)
            others = (yield from one.follow(changes)) if changes else {}
            if one.plan is None or one.waits(sides) or others is None or dirty.concerns(one):
                before = one.plan
                if before is not None:
                    self._given.take_back(one.settings, before, found.get(one.settings.backend, {}))
                one.plan = yield from _EntryPlanner(one, self._given, self._list_limit, sides).plan()
                one.asked = sides is not None
                dirty.add(one.settings.backend, before, one.plan)
            elif others:
                one.plan = one.plan.with_devices(others)
            else:
                continue
            same = False
        if not same or not self._entries:
            self._plan = self._whole()
        self._settings = settings

    def _whole(self) -> Plan:
        plans = [one.plan for one in self._entries if one.plan is not None]
        resources = {name: resource for plan in plans for name, resource in plan.resources.items()}
        return Plan(resources, tuple(chain.from_iterable(plan.refusals for plan in plans)))


@frozen
class _EntryPlan:
    """The part of a plan that comes from one entry.

    ``names`` are all names that its devices have, ``values`` the attributes that its names represent.
    """

    resources: Mapping[str, PlannedResource]
    refusals: Sequence[Refusal]
    names: Collection[str]
    values: Mapping[str, tuple[AttributeValue, ...]]

    def given(self) -> dict[str, Device]:
        return {offer.device.id: offer.device for one in self.resources.values() for offer in one.offers}

    def with_devices(self, others: Mapping[str, Device]) -> _EntryPlan:
        """The same with other objects for these devices, about which nothing has changed that counts."""
        return replace(self, resources={name: _with(one, others) for name, one in self.resources.items()})


def _with(resource: PlannedResource, others: Mapping[str, Device]) -> PlannedResource:
    offers: list[Offer] | None = None
    for name, device in others.items():
        at = bisect_left(resource.offers, name, key=attrgetter("device.id"))
        if at < len(resource.offers) and resource.offers[at].device.id == name:
            offers = [*resource.offers] if offers is None else offers
            offers[at] = offers[at]._replace(device=device)
    return resource if offers is None else replace(resource, offers=tuple(offers))


class _PlannedEntry:
    """An entry, the devices that it selects, and its part of the last plan."""

    def __init__(self, settings: ResourceSettings) -> None:
        self.settings = settings
        self.selected: dict[str, Device] = {}
        """The devices that ``where`` selects, in the order of their ids."""
        self.views: dict[str, Mapping[str, AttributeValue]] = {}
        """The attributes that the entry sees of a device, if these are not all."""
        self.plan: _EntryPlan | None = None
        self.asked = False
        """Whether the plan was made with the devices that change sides."""

    def waits(self, sides: Sides | None) -> bool:
        """Whether the plan may be another one though no device has changed."""
        if sides is None or self.plan is None or self.settings.serve is not Serve.DRA:
            return False
        return not self.asked or any(one.kind is RefusalKind.MOVING for one in self.plan.refusals)

    def follow(self, candidates: _Candidates) -> Generator[None, None, Mapping[str, Device] | None]:
        """Takes devices that have changed.

        Returns those that are other objects, ``None`` if the entry must be planned again because of a change.
        """
        others: dict[str, Device] = {}
        again = unordered = False
        changed = candidates.every if self.selected else candidates.of(self.settings.where)
        for n, (name, device) in enumerate(changed.items(), 1):
            if n % STRIDE == 0:
                yield
            before = self.selected.get(name)
            if before is None and name in candidates.looks_same:
                continue
            where = self.settings.where
            seen = None if device is None else selected(where, device.attributes, device.inherited)
            if device is None or seen is None:
                again |= self.selected.pop(name, None) is not None
                self.views.pop(name, None)
                continue
            self.selected[name] = others[name] = device
            if seen is device.attributes:
                self.views.pop(name, None)
            else:
                self.views[name] = seen
            unordered |= before is None
            again |= before is None or not _alike(before, device)
        if unordered:
            self.selected = dict(sorted(self.selected.items()))
        return None if again else others

    def view(self, device: Device) -> Mapping[str, AttributeValue]:
        return self.views.get(device.id, device.attributes)


_Value = tuple[type, object]
"""A value of an attribute with its type: true is not 1."""


class _Candidates:
    """Devices that have changed, and those of them that a ``where`` may select.

    Many entries name a model or a vendor: none of them has to be compared with the devices of all others.
    ``every`` has ``None`` for a device that has left. ``before`` are all devices before the change.
    """

    def __init__(self, every: Mapping[str, Device | None], before: Mapping[str, Device]) -> None:
        self.every = every
        self.looks_same = {
            name
            for name, device in every.items()
            if device is not None
            and (old := before.get(name)) is not None
            and (old.attributes, old.inherited) == (device.attributes, device.inherited)
        }
        """Those that a ``where`` selects now if it has selected them before: their health has changed."""
        self._by_value: dict[tuple[str, str], dict[_Value, dict[str, Device]]] = {}

    def of(self, where: Where) -> Mapping[str, Device | None]:
        """The devices, in no order, without such that ``where`` cannot select."""
        found: dict[str, Device | None] = {}
        for block in where:
            fewest: Sequence[Mapping[str, Device]] | None = None
            for term in block.terms:
                values = [value for pattern in term.patterns if (value := _only(pattern)) is not None]
                if len(values) < len(term.patterns):
                    continue
                known = self._known(term.attribute, term.also)
                fitting = [known[value] for value in values if value in known]
                if fewest is None or sum(map(len, fitting)) < sum(map(len, fewest)):
                    fewest = fitting
            if fewest is None:
                return self.every
            for devices in fewest:
                found.update(devices)
        return found if where else self.every

    def _known(self, attribute: str, also: str) -> Mapping[_Value, Mapping[str, Device]]:
        """The devices by the values of two attributes, without regard to case."""
        known = self._by_value.get((attribute, also))
        if known is None:
            known = self._by_value[attribute, also] = defaultdict(dict)
            for device in filter(None, self.every.values()):
                for value in (device.attributes.get(attribute), device.attributes.get(also)):
                    for one in value if isinstance(value, tuple) else (value,):
                        if one is not None:
                            known[_value(one)][device.id] = device
        return known


def _value(value: AttributeValue) -> _Value:
    if isinstance(value, str):
        return str, value.lower()
    return (bool if isinstance(value, bool) else int), value


def _only(pattern: Pattern) -> _Value | None:
    """The only value that a pattern matches, without regard to case; ``None`` if it may match several."""
    if isinstance(pattern, Text):
        return None if pattern.is_glob else _value(pattern.pattern)
    if isinstance(pattern, Flag):
        return _value(pattern.value)
    return _value(pattern.low) if pattern.low is not None and pattern.low == pattern.high else None


def _alike(one: Device, other: Device) -> bool:
    """Whether nothing differs on which a plan depends."""
    return (
        one.attributes == other.attributes
        and one.claims == other.claims
        and one.part_of == other.part_of
        and one.numa_nodes == other.numa_nodes
        and (one.withheld, one.divided) == (other.withheld, other.divided)
        and one.reserved == other.reserved
        and one.inherited == other.inherited
    )


class _Dirty:
    """What entries below must be planned again for."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._claims: set[str] = set()
        self._names: set[str] = set()

    def concerns(self, entry: _PlannedEntry) -> bool:
        backend, chosen = entry.settings.backend, entry.selected
        if self._names and entry.plan is not None and not self._names.isdisjoint(entry.plan.names):
            return True
        if any(name in chosen for owner, name in self._keys if owner == backend):
            return True
        return bool(self._claims) and any(
            not (self._claims.isdisjoint(one.claims) and self._claims.isdisjoint(one.part_of))
            for one in chosen.values()
        )

    def add(self, backend: str, before: _EntryPlan | None, now: _EntryPlan) -> None:
        """The part of an entry in the plan is another one."""
        given, gives = before.given() if before else {}, now.given()
        for name in given.keys() | gives.keys():
            old, new = given.get(name), gives.get(name)
            if old is not new and (old is None or new is None or not _alike(old, new)):
                self._keys.add((backend, name))
                self._add_claims(old)
                self._add_claims(new)
        names = before.resources.keys() if before else ()
        self._names.update(now.resources.keys() ^ names)
        if before:
            self._names.update(name for name in names if before.values.get(name) != now.values.get(name))

    def add_held(self, before: Sequence[Held], now: Sequence[Held]) -> None:
        """Containers hold other devices. Of several who hold one device the first counts."""
        keys = {key for key, _ in set(map(_counted, before)) ^ set(map(_counted, now))}
        self._keys |= keys
        for one in chain(before, now):
            if one.key in keys:
                self._add_claims(one.device)

    def _add_claims(self, device: Device | None) -> None:
        if device is not None:
            self._claims.update(device.claims, device.part_of)


def _counted(held: Held) -> tuple[Key, object]:
    """A held device, and what a plan depends on of it."""
    device, holder = held.device, (held.holder, held.exclusive, held.moving)
    return held.key, (held.resource, held.side, device.claims, device.part_of, holder)


class _Given:
    """What the entries have got, by the index of the entry.

    While an entry is planned, only what those above it have counts: those below may be planned again.
    """

    def __init__(self) -> None:
        self.held: ClaimIndex | None = None
        self._takers: dict[Key, tuple[ResourceSettings, ...]] = {}
        self._wholes: dict[str, Key] = {}
        """The device that has a claim as a whole."""
        self._parts: dict[str, set[Key]] = {}
        """The devices that have a claim in part."""
        self._names: dict[str, tuple[ResourceSettings, ...]] = {}
        self._values: dict[tuple[str, int], tuple[AttributeValue, ...]] = {}

    def takers(self, key: Key, below: ResourceSettings) -> Iterator[ResourceSettings]:
        """The entries above this one that have a device."""
        return (one for one in self._takers.get(key, ()) if one.index < below.index)

    def whole(self, claim: str, entry: ResourceSettings) -> Key | None:
        """The device that an entry, or one above it, has with this claim as a whole."""
        key = self._wholes.get(claim)
        return key if key is not None and self._takers[key][0].index <= entry.index else None

    def part(self, claim: str, entry: ResourceSettings) -> Key | None:
        """The first device that an entry, or one above it, has with this claim in part."""
        found = [(self._takers[key][0].index, key[1], key) for key in self._parts.get(claim, ())]
        return min((one for one in found if one[0] <= entry.index), default=(0, "", None))[2]

    def owner(self, name: str, entry: ResourceSettings) -> ResourceSettings | None:
        return next((one for one in self._names.get(name, ()) if one.index <= entry.index), None)

    def values(self, name: str, entry: ResourceSettings) -> tuple[AttributeValue, ...] | None:
        """The attributes that a name represents already; ``None`` if it represents none."""
        owner = self.owner(name, entry)
        return None if owner is None else self._values.get((name, owner.index))

    def open(self, name: str, entry: ResourceSettings, values: tuple[AttributeValue, ...] | None) -> None:
        """An entry has a name now, which represents these attributes."""
        self._names[name] = _with_entry(self._names.get(name, ()), entry)
        if values is not None:
            self._values[name, entry.index] = values

    def give(self, key: Key, device: Device, entry: ResourceSettings) -> None:
        self._takers[key] = _with_entry(self._takers.get(key, ()), entry)
        for claim in device.claims:
            self._wholes[claim] = key
        for claim in device.part_of:
            self._parts.setdefault(claim, set()).add(key)

    def take_back(self, entry: ResourceSettings, plan: _EntryPlan, devices: Mapping[str, Device]) -> None:
        """An entry loses what it got in its last plan. ``devices`` are all of its backend as they are now."""
        for name in plan.resources:
            self._values.pop((name, entry.index), None)
            self._names[name] = tuple(one for one in self._names[name] if one.index != entry.index)
            if not self._names[name]:
                del self._names[name]
        for name, device in plan.given().items():
            key, now = (entry.backend, name), devices.get(name)
            others = tuple(one for one in self._takers[key] if one.index != entry.index)
            stays = now if others else None
            for claim in device.claims:
                if self._wholes.get(claim) == key and (stays is None or claim not in stays.claims):
                    del self._wholes[claim]
            for claim in device.part_of:
                if (stays is None or claim not in stays.part_of) and (keys := self._parts.get(claim)):
                    keys.discard(key)
                    if not keys:
                        del self._parts[claim]
            if others:
                self._takers[key] = others
            else:
                del self._takers[key]


def _with_entry(
    entries: tuple[ResourceSettings, ...], entry: ResourceSettings
) -> tuple[ResourceSettings, ...]:
    return tuple(sorted((*entries, entry), key=attrgetter("index"))) if entries else (entry,)


class _EntryPlanner:
    """Plans one entry, below those that are planned already."""

    def __init__(self, entry: _PlannedEntry, given: _Given, list_limit: int, sides: Sides | None) -> None:
        self._entry = entry
        self._settings = entry.settings
        self._fields = naming.fields(entry.settings.name)
        self._given = given
        self._list_limit = list_limit
        self._sides = sides
        self._offers: dict[str, list[Offer]] = {}
        self._refusals: list[Refusal] = []
        self._names: set[str] = set()
        self._values: dict[str, tuple[AttributeValue, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._together: Collection[Key] = ()
        """The devices that are offered although they exclude each other: schedulers have counters."""

    def plan(self) -> Generator[None, None, _EntryPlan]:
        """Gives the entry the devices that it selects and that nothing keeps from it."""
        entry = self._settings
        if not self._fields:
            self._names.add(entry.name)
            if entry.when_empty is WhenEmpty.REGISTER and self._given.owner(entry.name, entry) is None:
                self._open(entry.name)
        if entry.counts:
            self._together = yield from self._counted()
        one_by_one = not entry.share.attribute
        units: dict[tuple[str, object], list[Device]] = {}
        for n, device in enumerate(self._entry.selected.values(), 1):
            if n % STRIDE == 0:
                yield
            if one_by_one:
                self._take((device,))
            elif (shared := self._unit(device)) is not None:
                units.setdefault(shared, []).append(device)
        for n, ((unit, _), devices) in enumerate(units.items(), 1):
            if n % STRIDE == 0:
                yield
            self._take(devices, unit)
        for offers in self._offers.values() if units else ():
            offers.sort(key=attrgetter("device.id"))
        before = self._entry.plan.resources if self._entry.plan else {}
        return _EntryPlan(
            {name: _resource(name, entry, offers, before.get(name)) for name, offers in self._offers.items()},
            self._refusals,
            self._names,
            self._values,
        )

    def _counted(self) -> Generator[None, None, frozenset[Key]]:
        """The devices that the entry can offer if none of them counts for another one."""
        backend, found = self._settings.backend, self._entry.selected
        every = frozenset((backend, one) for one in found)
        kept = set[Key]()
        for n, one in enumerate(found.values(), 1):
            if n % STRIDE == 0:
                yield
            if self._refusal(one, self._settings.name, every) is None:
                kept.add((backend, one.id))
        return frozenset(kept)

    def _unit(self, device: Device) -> tuple[str, object] | None:
        """A device's unit and what names its resource; ``None`` after refusing one that has no unit."""
        seen = self._entry.view(device)
        unit, reason = unit_id(self._settings.share, seen)
        if reason:
            self._refusals.append(self._refused(device, RefusalKind.NAME, reason))
            return None
        other = self._settings.name_map
        return unit, tuple(naming.shown(seen[one], other) for one in self._fields if one in seen)

    def _take(self, devices: Sequence[Device], unit: str = "") -> None:
        """Gives the entry a device, or every member of a unit; none of them if one is refused."""
        entry, fields, first = self._settings, self._fields, devices[0]
        seen = self._entry.view(first)
        name = entry.named(seen) if fields else entry.name
        if fields and name is not None:
            self._names.add(name)
        replicas = replicas_of(entry.share, common(devices) if unit else seen)
        together = [(entry.backend, device.id) for device in devices] if unit else self._together
        refusals = []
        for device in devices:
            if (refusal := self._refusal(device, name, together)) is not None:
                refusals.append(refusal)  # noqa: PERF401 - usually there is one device and no refusal
        if name is not None and not refusals:
            # last, because it counts the device
            nodes = numa_nodes(devices) if unit else first.numa_nodes
            if reason := self._no_room(name, unit or first.id, len(nodes), replicas):
                refusals = [self._refused(device, RefusalKind.FULL, reason) for device in devices]
            else:
                of = Membership(unit, entry.share.flaw(len(devices))) if unit else None
                for device in devices:
                    self._give(name, device, Offer(device, replicas, of))
                return
        self._refusals += refusals
        if len(refusals) < len(devices):
            self._refusals += _of_the_others(refusals, devices, unit)

    def _refused(
        self,
        device: Device,
        kind: RefusalKind,
        reason: str,
        taker: ResourceSettings | None = None,
        held_by: tuple[AnyHolder, ...] = (),
        leaves: tuple[str, Side] | None = None,
    ) -> Refusal:
        entry, index = self._settings, taker.index if taker else None
        return Refusal(entry.backend, device.id, entry.index, kind, reason, index, held_by, leaves)

    def _refusal(self, device: Device, name: str | None, together: Collection[Key]) -> Refusal | None:
        """Why the entry does not get a device; ``None`` if it may. It gets ``together`` with it."""
        entry, key = self._settings, (self._settings.backend, device.id)
        # one reason after another; the first is reported
        taker = None
        held_by: tuple[AnyHolder, ...] = ()
        leaves = None
        # the device itself, and its name
        if reason := _withheld(device, entry) or _reserved(device, entry):
            kind = RefusalKind.WITHHELD
        elif name is None:
            kind, reason = RefusalKind.NAME, _nameless(entry, self._fields, self._entry.view(device))
        elif reason := self._no_name(name, device):
            kind = RefusalKind.NAME
        # the entries above have it, or what it is a part of
        elif taker := self._taken_by(key):
            kind, reason = _taken(taker, entry)
        elif reason := self._no_claim(key, device):
            kind = RefusalKind.CLAIMED
        # containers hold it, or schedulers may still see it on the other side
        elif found := self._given.held and self._given.held.objection(
            key, device, name, entry.exclusive, entry.side, together
        ):
            (reason, held_by), held = (found.reason.text, found.reason.held_by), found.held
            kind = RefusalKind.MOVING if held.moving else RefusalKind.HELD
            leaves = (held.resource, held.side) if held.side != entry.side else None
        elif reason := self._too_soon(name, key):
            kind, leaves = RefusalKind.MOVING, (name, PLUGIN)
        else:
            return None
        return self._refused(device, kind, reason, taker, held_by, leaves)

    def _open(self, name: str, values: tuple[AttributeValue, ...] | None = None) -> list[Offer]:
        self._given.open(name, self._settings, values)
        if values is not None:
            self._values[name] = values
        self._offers[name] = []
        return self._offers[name]

    def _no_name(self, name: str, device: Device) -> str:
        entry, fields = self._settings, self._fields
        if fields:
            if problem := naming.problem(name):
                return f"the name {name} {problem}"
            values, others = _values(entry, fields, device), self._given.values(name, entry)
            if others is not None and others != values:
                return (
                    f"the name {name} already represents {_shown(others)}, this device has {_shown(values)}"
                )
        owner = self._given.owner(name, entry)
        if owner is not None and owner.index != entry.index:
            return f"the name {name} already belongs to entry {owner.index + 1} ({owner.name})"
        return ""

    def _taken_by(self, key: Key) -> ResourceSettings | None:
        entry = self._settings
        for other in self._given.takers(key, entry):
            if entry.exclusive or other.exclusive or entry.side != other.side:
                return other
        return None

    def _too_soon(self, name: str, key: Key) -> str:
        """Why a DRA resource must not get a device yet; empty if it may."""
        if self._sides is None or self._settings.serve is Serve.PLUGIN:
            return ""
        return self._sides.refusal(key, name, self._settings)

    def _no_claim(self, key: Key, device: Device) -> str:
        entry, conflicts = self._settings, []
        for claim in device.claims:
            for holder in (self._given.whole(claim, entry), self._given.part(claim, entry)):
                if holder is not None and self._excludes(holder, key, claim):
                    conflicts.append(f"{claim} is already used by {_name(holder)}")  # noqa: PERF401 - rarely reached
        for claim in device.part_of:
            holder = self._given.whole(claim, entry)
            if holder is not None and self._excludes(holder, key, claim):
                conflicts.append(f"{claim} is already used as a whole by {_name(holder)}")
        return min(conflicts) if conflicts else ""  # a set has no order, and the plan must be deterministic

    def _excludes(self, holder: Key, key: Key, claim: str) -> bool:
        """Whether a device with this claim keeps the entry from another device that has it."""
        if holder == key or binds_pod(claim):
            return False
        return not self._settings.counts or any(self._given.takers(holder, self._settings))

    def _no_room(self, name: str, unit: str, nodes: int, replicas: int) -> str:
        entry = self._settings
        together = entry.share.of is Of.ALL
        if entry.serve is Serve.DRA:
            return ""  # there is no list
        if together and name in self._sizes:
            return ""  # the tokens are in the list already
        # the same as Units makes; that is too slow for each device at each event
        if together:
            each = listed_bytes(len(ALL) + _numbered(replicas), 0)
        else:
            number = _numbered(replicas) if replicas > 1 else 0
            each = listed_bytes(len(unit) + number, nodes if entry.topology else 0)
        size = self._sizes.get(name, 0) + replicas * each
        if size > self._list_limit:
            return f"the device list of {name} would pass the kubelet's limit of 4 MiB"
        self._sizes[name] = size
        return ""

    def _give(self, name: str, device: Device, offer: Offer) -> None:
        self._given.give((self._settings.backend, device.id), device, self._settings)
        offers = self._offers.get(name)
        if offers is None:
            offers = self._open(name, _values(self._settings, self._fields, device) if self._fields else None)
        offers.append(offer)


def _resource(
    name: str, entry: ResourceSettings, offers: Sequence[Offer], before: PlannedResource | None
) -> PlannedResource:
    """A resource: the same object as before if nothing about it has changed."""
    if before is not None and len(before.offers) == len(offers):
        pairs = zip(before.offers, offers, strict=True)
        if all(one.device is other.device and one[1:] == other[1:] for one, other in pairs):
            return before
    return PlannedResource(name, entry, tuple(offers))


def _of_the_others(refusals: Sequence[Refusal], devices: Sequence[Device], unit: str) -> Iterator[Refusal]:
    """The refusals of the members of a unit that are only refused because of another one."""
    first, known = refusals[0], {refusal.device for refusal in refusals}
    reason = f"{first.device} of the same unit {unit} is refused: {first.reason}"
    for device in devices:
        if device.id not in known:
            yield replace(first, device=device.id, kind=RefusalKind.UNIT, reason=reason, taker=None)


def _withheld(device: Device, entry: ResourceSettings) -> str | None:
    """Why no entry gets a device; empty or ``None`` if this one may."""
    return None if device.divided and entry.counts else device.withheld


def _reserved(device: Device, entry: ResourceSettings) -> str:
    """Why an entry must not get a device with a special purpose; empty if it may."""
    if not device.reserved or names_purpose(entry.where, device.attributes, device.inherited):
        return ""
    return f"{device.reserved}; to offer it, add {PURPOSE}: {show(device.attributes[PURPOSE])} to where"


def _numbered(replicas: int) -> int:
    """Bytes of the number in a token's id."""
    return 2 + len(str(replicas))


def _values(entry: ResourceSettings, fields: Sequence[str], device: Device) -> tuple[AttributeValue, ...]:
    """The values that a device's name represents."""
    values = (device.attributes[field] for field in fields)
    return tuple(entry.name_map.get(show(value), value) if entry.name_map else value for value in values)


def _shown(values: Sequence[AttributeValue]) -> str:
    return ", ".join(map(show, values))


def _taken(taker: ResourceSettings, entry: ResourceSettings) -> tuple[RefusalKind, str]:
    reason = f"entry {taker.index + 1} ({taker.name}) already took it"
    if entry.serve is not taker.serve:
        return RefusalKind.TAKEN, f"{reason}, and serves it with serve: {taker.serve}"
    if entry.driver != taker.driver:
        return RefusalKind.TAKEN, f"{reason}, and publishes it as {taker.driver}"
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
