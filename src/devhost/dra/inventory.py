"""The devices that the plan offers through DRA: by their names in slices, with their health."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, NamedTuple

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimAllocations, ClaimedDevice
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend.frozen import frozen
from devhost.backend.model import AttributeValue, Cause, Device, Health, sound_reason, unhealthy
from devhost.backend.sysfs import natural
from devhost.backend.where import selected
from devhost.discovery.health import HealthOf, in_resource, joint, worst
from devhost.discovery.scanner import BackendState, EntryHealth, Scanner
from devhost.planning import naming
from devhost.planning.claims import Key, Reason
from devhost.planning.plan import (
    Plan,
    PlannedResource,
    Unit,
    Units,
    replicas_of,
    unit_id,
)
from devhost.planning.settings import PLUGIN, ResourceSettings, Serve, Settings
from devhost.planning.sides import Move, Moves, Moving, Sides

from .aliases import NOTHING, Aliased, Aliases, aliased
from .publisher import Offers
from .slices import EVERYTHING, Accepted, Offered, Pool, attributes_of, is_tainted

GONE = "the device is gone"

REMEMBERED = 1024
"""Names of former devices that are kept, so that claims of them are refused with the reason."""

Name = tuple[str, str]
"""A device as the API server knows it: pool and device."""


@frozen(slots=True)
class DraDevice:
    """A device that is offered through Dynamic Resource Allocation, ``replicas`` times at once.

    ``bound`` is why no pod may use it that holds nothing; ``health`` is its own. ``members`` are the devices
    that are one here, by an attribute; ``key`` then has the id of this unit, ``device`` what all share.
    """

    key: Key
    device: Device
    health: Health
    resource: str
    entry: ResourceSettings
    backend: ResourceBackend
    replicas: int = 1
    bound: Reason | None = None
    driver: str = ""
    aliased: Aliased = NOTHING
    members: tuple[Device, ...] = ()
    accepted: Accepted = EVERYTHING

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the backend: its members, if it is a unit."""
        return self.members or (self.device,)

    @property
    def keys(self) -> tuple[Key, ...]:
        return tuple((self.key[0], one.id) for one in self.devices)

    def usable(self, uses: Collection[str]) -> Health:
        """Its health where these uses of it count, see :func:`~devhost.discovery.health.in_resource`."""
        return worst(*(in_resource(one, self.health, uses) for one in self.devices))

    def attributes(self, more: Mapping[str, AttributeValue] | None = None) -> Mapping[str, Mapping[str, Any]]:
        """Its attributes as its slice has them, and ``more`` of its backend."""
        device, names = self.device, self.aliased
        if more:
            device = replace(device, attributes={**device.attributes, **more})
            names = aliased(self.entry.dra, self.resource, device, self.backend.scanner.devices)
        shares = len(self.entry.share.amounts) or self.replicas > 1
        about = self.resource, self.key[0], self.driver, names, shares, self.accepted
        return attributes_of(device, *about).values

    @property
    def shown(self) -> Health:
        """Its health for pods that hold nothing."""
        return worst(self.health, unhealthy(self.bound.text, Cause.HELD)) if self.bound else self.health


@frozen(slots=True)
class DeviceHealth:
    """The health of a device of a current claim; ``healthy`` is ``None`` if it is not known.

    ``message`` is why it is not healthy. ``stale`` is whether its backend fails or hangs, so that the health
    is not sent again and becomes unknown.
    """

    pool: str
    device: str
    healthy: bool | None
    message: str = ""
    stale: bool = False


class _NamedDevice(NamedTuple):
    """What has, or had, a name: its id with the backend, and every device that it is, or was."""

    resource: str
    key: Key
    keys: frozenset[Key]


class _Absent(NamedTuple):
    """The devices that are not offered: by the names that they would have, and with the plan's reasons."""

    configured: Mapping[Name, _NamedDevice]
    refused: Mapping[Key, str]


@frozen
class InventoryNow:
    """What the last plan offers through one driver.

    ``pools`` are the resources that have a pool, ``known`` also former ones, with what answers for them.
    ``offered`` are in a stable order. ``moving`` are the devices that change sides, ``moves`` the same by the
    resource that they leave.
    """

    pools: Mapping[str, ResourceSettings] = field(default_factory=dict)
    known: Mapping[str, tuple[ResourceSettings, ResourceBackend]] = field(default_factory=dict)
    offered: Sequence[DraDevice] = ()
    moving: Sequence[Moving] = ()
    moves: Sequence[Move] = ()


class DraInventory:
    """Follows what the plan offers through one driver.

    ``leads`` is whether it also has the devices that leave the device plugin: of all drivers, one has them.
    ``accepted`` is what slices may have of the attributes of a device, by its resource and id.
    """

    def __init__(
        self,
        driver: str,
        node: str,
        sides: Sides,
        files: ClaimFiles,
        claims: ClaimAllocations,
        leads: Callable[[], bool],
        accepted: Callable[[str, str], Accepted],
    ) -> None:
        self._accepted = accepted
        self._moves = Moves(time.monotonic, time.time)
        self.now = InventoryNow()
        self._driver = driver
        self._side = Serve.DRA, driver
        self._node = node
        self._leads = leads
        self._sides = sides
        self._files = files
        self._claims = claims
        self._plan = Plan()
        self._settings = Settings()
        self._scanners: Mapping[str, Scanner] = {}
        self._pools: dict[str, Pool] = {}
        self._health: dict[str, EntryHealth] = {}
        self._aliases: dict[str, Aliases] = {}
        self._backends: dict[str, ResourceBackend] = {}
        self._entries: dict[str, ResourceSettings] = {}
        self.offers: dict[str, Offers] = {}
        """The devices of each resource, as far as they are known."""
        self._offered: dict[str, frozenset[Key]] = {}
        """The devices of each resource that the plan offers."""
        self._devices: dict[Name, DraDevice] = {}
        self._units: dict[str, Units] = {}
        self._known: dict[Name, _NamedDevice] = {}
        """Former devices, then those that are offered, that slices may hold or that claims have."""
        self._absent: _Absent | None = None
        """Why devices are not offered; made when a claim first has one of them."""
        self.complete = False
        """Whether :attr:`offers` has every resource; a template has none without devices."""
        self._callbacks: list[Callable[[], None]] = []

    def follow(self, plan: Plan, settings: Settings, scanners: Mapping[str, Scanner]) -> None:
        self._plan, self._settings, self._scanners = plan, settings, scanners
        self._absent = None
        offered = {name: one for name, one in plan.resources.items() if self._is_own(one.entry)}
        self.offers = dict(self._without_devices(settings, offered))
        self.complete = not any(
            self._is_own(entry) and naming.fields(entry.name) and not self._listed(entry.backend)
            for entry in settings.resources
        )
        before, self._known = self._known, {}
        for one in self._claims.of_driver(self._driver):
            self._remember((one.pool, one.device), one.resource, one.key, one.keys)
        units = self._sides.units(self._driver)
        for key, resource in self._sides.record(self._driver).items():
            self._know(resource, (key[0], units.get(key, key[1])), (key,))
        leaving = {one.key: one.resource for one in self._sides.moving() if one.side == self._side}
        self._devices = {
            name: self._as_found(one)
            for name, one in self._devices.items()
            if any(key in leaving for key in one.keys)
        }
        for key, resource in leaving.items():
            self._restore(key, resource, settings, units)
        for entry in settings.resources:
            if self._is_own(entry) and entry.name in self.offers:
                self._entries[entry.name] = entry
        self._offered = {}
        for name, planned in offered.items():
            self._take(name, planned)
        former = [(name, known) for name, known in before.items() if name not in self._known]
        self._known = dict(former[-REMEMBERED:]) | self._known
        for name in self._health.keys() - offered.keys():
            del self._health[name], self._aliases[name], self._units[name]
        moving = self._moving()
        entries, backends = self._entries, self._backends
        self.now = InventoryNow(
            {name: entries[name] for name in self.offers if name in entries},
            {name: (entries[name], one) for name, one in backends.items() if name in entries},
            self._in_order(),
            moving,
            self._moves.follow(moving),
        )
        self.notify()

    def _is_own(self, entry: ResourceSettings) -> bool:
        return entry.side == self._side

    def notify(self) -> None:
        """Calls back those who follow the health of devices: claims may have other devices."""
        for callback in list(self._callbacks):
            callback()

    def find(self, pool: str, device: str) -> DraDevice | None:
        """The device of this name in this pool.

        A device that leaves DRA is found as long as a claim may have it allocated.
        """
        return self._devices.get((pool, device))

    def scanner(self, one: ClaimedDevice) -> Scanner | None:
        """The backend that finds a device of a claim; ``None`` if it has not listed its devices."""
        return self._scanners[one.key[0]] if self._listed(one.key[0]) else None

    def present(self, one: ClaimedDevice) -> DraDevice | None:
        """A device of a claim as it is now; ``None`` if it is gone, or its resource is not known.

        Also a device that is not offered any longer: the claim keeps it. A unit has the members that the
        claim has.
        """
        backend, entry = self._backends.get(one.resource), self._entries.get(one.resource)
        devices = self._there(one.key[0], one.keys)
        if devices is None or backend is None or entry is None:
            return None
        unit = Unit(one.key[1], devices, one.replicas, whole=bool(one.members))
        return self._found(unit, one.resource, entry, backend, self._scanners[one.key[0]])

    def keys(self, pool: str, device: str) -> frozenset[Key]:
        """The devices that have, or had, this name in this pool; none if there never was one."""
        known = self._known.get((pool, device))
        return known.keys if known else frozenset()

    def claimed(self, pool: str, device: str, share: str) -> ClaimedDevice | None:
        """A device as a claim holds it of which nothing else is known: all of it, until more is known.

        ``None`` if there never was a device of this name.
        """
        known = self._known.get((pool, device))
        if known is None:
            return None
        resource, key, keys = known
        found, entry = self._devices.get((pool, device)), self._entries.get(resource)
        replicas = found.replicas if found is not None else 1
        exclusive = entry is None or entry.exclusive
        return ClaimedDevice(
            "",
            pool,
            device,
            share,
            key,
            resource,
            replicas=replicas,
            exclusive=exclusive,
            slots=replicas,
            members=() if keys == {key} else tuple(sorted(name for _, name in keys)),
        )

    def _in_order(self) -> Sequence[DraDevice]:
        """The devices that the plan offers, in a stable order."""
        wanted = (one for one in self._devices.values() if one.key in self._offered.get(one.resource, ()))
        return sorted(wanted, key=lambda one: (one.resource, natural(one.device.id)))

    def missing(self, pool: str, device: str) -> str:
        """Why there is no such device, as the end of a sentence; empty if nothing of that name is known."""
        absent = self._absent = self._absent or _Absent(self._configured(), self._refused())
        known = self._known.get((pool, device)) or absent.configured.get((pool, device))
        unlisted = sorted(name for name, one in self._scanners.items() if not one.listed)
        concerned = unlisted if known is None else [name for name in unlisted if name == known[1][0]]
        if concerned or not self._scanners:
            return f"devhost is still looking for devices ({', '.join(concerned) or 'it just started'})"
        if known is None:
            return ""
        resource, key, keys = known
        waits = (self._sides.waits_for(one) for one in sorted(keys) if not self.is_gone(one))
        if waits_for := next(filter(None, waits), ""):
            return waits_for
        backend = self._scanners.get(key[0])
        there = [] if backend is None else [one for one in sorted(keys) if one[1] in backend.devices]
        if not there:
            return GONE
        why = (absent.refused.get(one, "") for one in there)
        return next(filter(None, why), f"the configuration no longer gives it to {resource}")

    def _configured(self) -> Mapping[Name, _NamedDevice]:
        """The devices by the names that they would have if their entries got them."""
        found: dict[Name, _NamedDevice] = {}
        pools: dict[tuple[str, str], Pool] = {}
        for entry in self._settings.resources:
            scanner = self._scanners.get(entry.backend)
            for one in scanner.devices.values() if scanner and self._is_own(entry) else ():
                seen = selected(entry.where, one.attributes, one.inherited)
                if seen is not None and (resource := entry.named(seen)):
                    place = resource, entry.backend
                    if place not in pools:
                        pools[place] = Pool(self._driver, self._node, *place)
                    unit = unit_id(entry.share, seen)[0] if entry.share.attribute else one.id
                    name = pools[place].name, pools[place].device_name(unit)
                    before = found.setdefault(
                        name, _NamedDevice(resource, (entry.backend, unit), frozenset())
                    )
                    found[name] = before._replace(keys=before.keys | {(entry.backend, one.id)})
        return found

    def _refused(self) -> Mapping[Key, str]:
        """Why the plan gives devices to no resource."""
        found: dict[Key, str] = {}
        for refusal in self._plan.refusals:
            if refusal.reason:
                found.setdefault((refusal.backend, refusal.device), refusal.reason)
        return found

    def is_gone(self, key: Key) -> bool:
        """Whether a device certainly does not exist."""
        scanner = self._scanners.get(key[0])
        return scanner is not None and scanner.listed and key[1] not in scanner.devices

    def _may_be_offered(self, key: Key) -> bool:
        scanner = self._scanners.get(key[0])
        return scanner is None or (scanner.listed and key[1] in scanner.devices)

    def _moving(self) -> Sequence[Moving]:
        """The devices that change sides, in a stable order: also those that a pod still holds.

        A device that is gone, or not found yet, is on no side, but only because there is nothing to offer.
        """
        found = [one for one in self._sides.moving() if self._may_be_offered(one.key)]
        known = {one.key for one in found}
        for refusal in self._plan.refusals:
            key = (refusal.backend, refusal.device)
            if refusal.leaves is not None and key not in known:
                known.add(key)
                found.append(Moving(key, *refusal.leaves, refusal.reason, refusal.held_by))
        own = (self._side, PLUGIN) if self._leads() else (self._side,)
        found = [one for one in found if one.side in own]
        return sorted(found, key=lambda one: (one.key[0], natural(one.key[1]), one.resource))

    def next_change(self) -> float | None:
        """Seconds until time alone changes the health of a device, or a move becomes a problem.

        ``None`` if neither will.
        """
        waits = [self._moves.next_change(), *(one.next_change() for one in self._health.values())]
        return min((wait for wait in waits if wait is not None), default=None)

    def devices(self) -> Sequence[DeviceHealth]:
        return list({(one.pool, one.device): one for one in self._in_claims()}.values())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each plan; returns how to end that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _in_claims(self) -> Iterator[DeviceHealth]:
        for record in self._files.records.values():
            for one in record.devices:
                if (other := self._other_nodes(one.resource, one.keys)) is not None:
                    yield DeviceHealth(one.pool, one.device, False, other.text)
                    continue
                found = self._devices.get((one.pool, one.device))
                scanner = self._scanners.get(one.key[0])
                stale = scanner is not None and scanner.condition.state is BackendState.DEGRADED
                if found is not None and found.keys == one.keys:
                    yield _health(one, found.health, stale=stale)
                    continue
                if scanner is None or not scanner.listed:
                    yield DeviceHealth(one.pool, one.device, None, "devhost is looking for the device")
                    continue
                if (there := self._there(one.key[0], one.keys)) is not None:
                    yield _health(one, _own_health(there, scanner), stale=stale)
                else:
                    absent = [name for _, name in one.keys if name not in scanner.devices]
                    yield DeviceHealth(
                        one.pool, one.device, False, f"{', '.join(absent)}: {GONE}" if one.members else GONE
                    )

    def _other_nodes(self, resource: str, keys: Sequence[Key]) -> Reason | None:
        """Why what containers were given is not what these devices have now; ``None`` if it is."""
        return next(filter(None, (self._claims.ledger.given.reason(resource, key) for key in keys)), None)

    def _without_devices(
        self, settings: Settings, offered: Mapping[str, PlannedResource]
    ) -> Iterator[tuple[str, Offers]]:
        """Resources of the file for which the plan has no device, or for which it is not known yet."""
        for entry in settings.resources:
            if not self._is_own(entry):
                continue
            if not self._listed(entry.backend):
                yield from ((name, (entry.backend, None)) for name in self._names(entry))
            elif not naming.fields(entry.name) and not entry.may_be_empty and entry.name not in offered:
                yield entry.name, (entry.backend, ())

    def _listed(self, backend: str) -> bool:
        scanner = self._scanners.get(backend)
        return scanner is not None and scanner.listed

    def _names(self, entry: ResourceSettings) -> list[str]:
        """The resources of an entry, as far as they are known."""
        if not naming.fields(entry.name):
            return [entry.name]
        return [
            name
            for name, one in self._entries.items()
            if (one.backend, one.name) == (entry.backend, entry.name)
        ]

    def _take(self, name: str, planned: PlannedResource) -> None:
        entry = self._entries[name] = planned.entry
        scanner = self._scanners[entry.backend]
        if name in self._health:
            self._health[name].follow(scanner, entry)
        else:
            self._health[name] = EntryHealth(scanner, entry)
        health_of = self._health[name].now()
        backend = self._backends.setdefault(name, ResourceBackend(name, scanner, entry))
        backend.follow(scanner, entry, len(planned.offers))
        made = self._units.setdefault(name, Units()).make(entry.share.of, planned.offers)
        devices = {unit.id: unit.device for unit in made}
        aliases = self._aliases.setdefault(name, Aliases())
        named = aliases.follow(entry.dra, name, devices.values(), scanner.devices)
        offers = []
        amounts = entry.share.amounts
        for unit in made:
            device, replicas, key = devices[unit.id], unit.replicas, (entry.backend, unit.id)
            names, members = named.get(unit.id, NOTHING), unit.devices if unit.whole else ()
            health = _joint_health(unit, health_of)
            about = key, device, health, name, entry, backend, replicas, None, self._driver, names, members
            one = DraDevice(*about, self._accepted(name, unit.id))
            keys = one.keys
            if replicas == 1 and (reason := self._other_nodes(name, keys)):
                one = replace(one, health=worst(health, unhealthy(reason.text)))
            if not is_tainted(one.health, entry.dra.taints) and (why := self._held_elsewhere(one, keys)):
                one = replace(one, bound=why)
            self._devices[self._know(name, key, keys)] = one
            ids = tuple(member.id for member in members)
            terms = entry.dra.taints, ids, entry.counts, amounts
            offers.append(Offered(device, one.shown, replicas, names, *terms))
        self._offered[name] = frozenset((entry.backend, one.device.id) for one in offers)
        if scanner.listed:
            self.offers[name] = entry.backend, offers

    def _held_elsewhere(self, one: DraDevice, keys: Sequence[Key]) -> Reason | None:
        """Why no pod may use a device that holds nothing; ``None`` if one may. ``keys`` are its own."""
        for key, device in zip(keys, one.devices, strict=True):
            if (reason := self._claims.bound_elsewhere(key, device)) is not None:
                return reason
            if (reason := self._claims.held_otherwise(one.resource, one.key[1], key)) is not None:
                return reason
        return None

    def _know(self, resource: str, key: Key, keys: Collection[Key]) -> Name:
        """Remembers the devices that have a name; gives the name."""
        pool = self._pool(resource, key[0])
        name = (pool.name, pool.device_name(key[1]))
        self._remember(name, resource, key, keys)
        return name

    def _remember(self, name: Name, resource: str, key: Key, keys: Collection[Key]) -> None:
        known = self._known.get(name)
        if known is None or not known.keys.issuperset(keys):
            before = known.keys if known else frozenset()
            self._known[name] = _NamedDevice(resource, key, before.union(keys))

    def _restore(self, key: Key, resource: str, settings: Settings, units: Mapping[Key, str]) -> None:
        """Makes a device known that has left its slice since an earlier run began to publish it.

        Its claims get what the resource gives now. There is no such device if the resource has left the file.
        """
        name = self._know(resource, (key[0], units.get(key, key[1])), (key,))
        known = self._known[name]
        devices = self._there(key[0], sorted(known.keys))
        if name in self._devices or devices is None:
            return
        scanner = self._scanners[key[0]]
        for entry in settings.resources:
            seen = selected(entry.where, devices[0].attributes, devices[0].inherited)
            if entry.backend == key[0] and seen is not None and entry.named(seen) == resource:
                backend = self._backends.setdefault(resource, ResourceBackend(resource, scanner, entry))
                backend.follow(scanner, entry, len(self._offered.get(resource, ())))
                unit = Unit(known.key[1], devices, replicas_of(entry.share, seen), whole=key in units)
                self._devices[name] = self._found(unit, resource, entry, backend, scanner)
                return

    def _as_found(self, one: DraDevice) -> DraDevice:
        """The same device as its backend finds it now."""
        devices = self._there(one.key[0], one.keys)
        if devices is None:
            return replace(one, health=unhealthy(GONE, Cause.MISSING))
        unit = Unit(one.key[1], devices, one.replicas, whole=bool(one.members))
        scanner = self._scanners[one.key[0]]
        return replace(self._found(unit, one.resource, one.entry, one.backend, scanner), bound=one.bound)

    def _there(self, backend: str, keys: Sequence[Key]) -> tuple[Device, ...] | None:
        """These devices as their backend finds them now; ``None`` if it lacks one of them."""
        scanner = self._scanners.get(backend)
        there = scanner.devices if scanner is not None else {}
        found = tuple(there[name] for _, name in keys if name in there)
        return found if len(found) == len(keys) else None

    def _found(
        self, unit: Unit, resource: str, entry: ResourceSettings, backend: ResourceBackend, scanner: Scanner
    ) -> DraDevice:
        """A device as its backend finds it now, without what the entry demands."""
        device = unit.device
        return DraDevice(
            (entry.backend, unit.id),
            device,
            _own_health(unit.devices, scanner),
            resource,
            entry,
            backend,
            unit.replicas,
            driver=self._driver,
            aliased=aliased(entry.dra, resource, device, scanner.devices),
            members=unit.devices if unit.whole else (),
            accepted=self._accepted(resource, unit.id),
        )

    def _pool(self, resource: str, backend: str) -> Pool:
        pool = self._pools.get(resource)
        if pool is None:
            pool = self._pools[resource] = Pool(self._driver, self._node, resource, backend)
        return pool


def _joint_health(unit: Unit, health_of: HealthOf) -> Health:
    """The health of a device, or of a unit with the reasons of its members."""
    if not unit.whole:
        return health_of(unit.devices[0])
    found = [(one.id, health_of(one)) for one in unit.devices]
    return worst(unhealthy(unit.flaw), joint(found)) if unit.flaw else joint(found)


def _own_health(devices: Sequence[Device], scanner: Scanner) -> Health:
    """The health of these devices as one, without what an entry demands."""
    now = time.monotonic()
    return joint([(one.id, scanner.health.of(one, now)) for one in devices])


def _health(one: ClaimedDevice, health: Health, *, stale: bool) -> DeviceHealth:
    reason = "" if health.healthy else sound_reason(health.reason)
    return DeviceHealth(one.pool, one.device, health.healthy, reason, stale)
