"""The devices that the plan offers through DRA: by their names in slices, with their health."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimAllocations, ClaimedDevice
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend.frozen import frozen
from devhost.backend.model import Cause, Device, Health, sound_reason, unhealthy
from devhost.backend.sysfs import natural
from devhost.backend.where import selected
from devhost.discovery.health import worst
from devhost.discovery.scanner import Scanner, State
from devhost.discovery.verdicts import Verdicts
from devhost.planning import naming
from devhost.planning.claims import Key, Reason
from devhost.planning.moves import Move, Moves
from devhost.planning.plan import Plan, PlannedResource, replicas_of
from devhost.planning.settings import ResourceSettings, Serve, Settings
from devhost.planning.sides import Moving, Sides
from devhost.planning.taints import is_tainted

from .aliases import NOTHING, Aliased, Aliases, aliased
from .health import DeviceHealth
from .publisher import Offers
from .slices import Offered, Pool, attributes_of

GONE = "the device is gone"

Name = tuple[str, str]
"""A device as the API server knows it: pool and device."""


@frozen
class DraDevice:
    """A device that is offered through Dynamic Resource Allocation, ``replicas`` times at once.

    ``bound`` is why no pod may use it that holds nothing; ``health`` is its own.
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

    @property
    def attributes(self) -> Mapping[str, Mapping[str, Any]]:
        """Its attributes as a slice can have them."""
        backend, driver, aliased = self.key[0], self.driver, self.aliased
        shares = len(self.entry.share.amounts) or self.replicas > 1
        return attributes_of(self.device, self.resource, backend, driver, aliased, shares).values

    @property
    def shown(self) -> Health:
        """Its health for pods that hold nothing."""
        return worst(self.health, unhealthy(self.bound.text, Cause.HELD)) if self.bound else self.health


class _Absent(NamedTuple):
    """The devices that are not offered: by the names that they would have, and with the plan's reasons."""

    configured: Mapping[Name, tuple[str, Key]]
    refused: Mapping[Key, str]


class DraInventory:
    """Follows the plan."""

    def __init__(
        self,
        driver: str,
        node: str,
        sides: Sides,
        files: ClaimFiles,
        claims: ClaimAllocations,
    ) -> None:
        self._moves = Moves(time.monotonic, time.time)
        self._driver = driver
        self._node = node
        self._sides = sides
        self._files = files
        self._claims = claims
        self._plan = Plan()
        self._settings = Settings()
        self._scanners: Mapping[str, Scanner] = {}
        self._pools: dict[str, Pool] = {}
        self._verdicts: dict[str, Verdicts] = {}
        self._aliases: dict[str, Aliases] = {}
        self._backends: dict[str, ResourceBackend] = {}
        self._entries: dict[str, ResourceSettings] = {}
        self._offers: dict[str, Offers] = {}
        self._now: dict[str, frozenset[Key]] = {}
        """The devices of each resource that the plan offers."""
        self._devices: dict[Name, DraDevice] = {}
        self._known: dict[Name, tuple[str, Key]] = {}
        """Every device that was offered since the start, or that slices may hold since an earlier run."""
        self._absent: _Absent | None = None
        """Why devices are not offered; made when a claim first has one of them."""
        self.complete = False
        """Whether :attr:`offers` has every resource; a template has none without devices."""
        self._callbacks: list[Callable[[], None]] = []

    @property
    def offers(self) -> Mapping[str, Offers]:
        """The devices of each resource, as far as they are known."""
        return self._offers

    def follow(self, plan: Plan, settings: Settings, scanners: Mapping[str, Scanner]) -> None:
        """Takes a new plan."""
        self._plan, self._settings, self._scanners = plan, settings, scanners
        self._absent = None
        offered = {name: one for name, one in plan.resources.items() if one.entry.serve is Serve.DRA}
        self._offers = dict(self._without_devices(settings, offered))
        self.complete = not any(
            entry.serve is Serve.DRA and naming.fields(entry.name) and not self._listed(entry.backend)
            for entry in settings.resources
        )
        for key, resource in self._sides.record().items():
            pool = self._pool(resource, key[0])
            self._known.setdefault((pool.name, pool.device_name(key[1])), (resource, key))
        leaving = {one.key: one.resource for one in self._sides.moving() if one.serve is Serve.DRA}
        self._devices = {
            name: self._as_found(one) for name, one in self._devices.items() if one.key in leaving
        }
        for key, resource in leaving.items():
            self._restore(key, resource, settings)
        for entry in settings.resources:
            if entry.serve is Serve.DRA and entry.name in self._offers:
                self._entries[entry.name] = entry
        self._now = {}
        for name, planned in offered.items():
            self._take(name, planned)
        for name in self._verdicts.keys() - offered.keys():
            del self._verdicts[name], self._aliases[name]
        self._moves.follow(self.moving())
        self.notify()

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

        Also a device that is not offered any longer: the claim keeps it.
        """
        scanner = self._scanners.get(one.key[0])
        device = scanner.devices.get(one.key[1]) if scanner is not None else None
        backend, entry = self._backends.get(one.resource), self._entries.get(one.resource)
        if scanner is None or device is None or backend is None or entry is None:
            return None
        health = scanner.health.verdict(device, time.monotonic())
        found = DraDevice(one.key, device, health, one.resource, entry, backend, one.replicas)
        return self._with_names(found, scanner)

    def key(self, pool: str, device: str) -> Key | None:
        """The device that has, or had, this name in this pool; ``None`` if there never was one."""
        known = self._known.get((pool, device))
        return known[1] if known else None

    def claimed(self, pool: str, device: str, share: str) -> ClaimedDevice | None:
        """A device as a claim holds it of which nothing else is known: all of it, until more is known.

        ``None`` if there never was a device of this name.
        """
        known = self._known.get((pool, device))
        if known is None:
            return None
        resource, key = known
        found, entry = self._devices.get((pool, device)), self._entries.get(resource)
        replicas = found.replicas if found is not None else 1
        exclusive = entry is None or entry.exclusive
        return ClaimedDevice(
            "", pool, device, share, key, resource, replicas=replicas, exclusive=exclusive, slots=replicas
        )

    def name(self, resource: str, key: Key) -> str:
        """The name of a device in the pool of a resource."""
        return self._pool(resource, key[0]).device_name(key[1])

    def pool(self, resource: str, backend: str) -> str:
        """The name of the pool of a resource."""
        return self._pool(resource, backend).name

    def entries(self) -> Mapping[str, ResourceSettings]:
        """The resources that have a pool, each with its entry."""
        return {name: self._entries[name] for name in self._offers if name in self._entries}

    def offered(self) -> Sequence[DraDevice]:
        """The devices that the plan offers, in a stable order."""
        wanted = (one for one in self._devices.values() if one.key in self._now.get(one.resource, ()))
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
        resource, key = known
        if not self.is_gone(key) and (waits_for := self._sides.waits_for(key)):
            return waits_for
        backend = self._scanners.get(key[0])
        if backend is None or key[1] not in backend.devices:
            return GONE
        return absent.refused.get(key, f"the configuration no longer gives it to {resource}")

    def _configured(self) -> Mapping[Name, tuple[str, Key]]:
        """The devices by the names that they would have if their entries got them."""
        found: dict[Name, tuple[str, Key]] = {}
        pools: dict[tuple[str, str], Pool] = {}
        for entry in self._settings.resources:
            scanner = self._scanners.get(entry.backend)
            for one in scanner.devices.values() if scanner and entry.serve is Serve.DRA else ():
                seen = selected(entry.where, one.attributes, one.inherited)
                if seen is not None and (resource := naming.expand(entry.name, seen)):
                    place = resource, entry.backend
                    if place not in pools:
                        pools[place] = Pool(self._driver, self._node, *place)
                    name = pools[place].name, pools[place].device_name(one.id)
                    found.setdefault(name, (resource, (entry.backend, one.id)))
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

    def is_cordoned(self, key: Key) -> bool:
        """Whether an existing device is out of service on purpose."""
        scanner = self._scanners.get(key[0])
        return scanner is not None and not self.is_gone(key) and scanner.health.is_cordoned(key[1])

    def unplugged(self) -> Iterator[DraDevice]:
        """The devices that claims hold and that certainly do not exist, in a stable order."""
        holders = self._claims.by_device()
        gone = {one.key: one for one in self._claims.held() if self.is_gone(one.key)}
        for key, held in sorted(gone.items()):
            entry, backend = self._entries.get(held.resource), self._backends.get(held.resource)
            if entry is not None and backend is not None:
                why = Reason(f"{GONE}, and a claim holds it", tuple(holders[key]))
                health = unhealthy(why.text, Cause.MISSING)
                yield DraDevice(key, held.device, health, held.resource, entry, backend, bound=why)

    def moving(self) -> Sequence[Moving]:
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
        return sorted(found, key=lambda one: (one.key[0], natural(one.key[1]), one.resource))

    def moves(self) -> Sequence[Move]:
        """The devices that change sides, by the resource that they leave."""
        return self._moves.described(self.moving())

    def next_change(self) -> float | None:
        """Seconds until time alone changes the health of a device, or a move becomes a problem.

        ``None`` if neither will.
        """
        waits = [self._moves.next_change(), *(one.next_change() for one in self._verdicts.values())]
        return min((wait for wait in waits if wait is not None), default=None)

    def devices(self) -> Sequence[DeviceHealth]:
        """The health of every device of a prepared claim."""
        return list({(one.pool, one.device): one for one in self._in_claims()}.values())

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each plan; returns how to end that."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def _in_claims(self) -> Iterator[DeviceHealth]:
        for record in self._files.records.values():
            for one in record.devices:
                if (reason := self._claims.given.reason(one.resource, one.key)) is not None:
                    yield DeviceHealth(one.pool, one.device, False, reason.text)
                    continue
                found = self._devices.get((one.pool, one.device))
                scanner = self._scanners.get(one.key[0])
                stale = scanner is not None and scanner.condition.state is State.DEGRADED
                if found is not None:
                    yield _health(one, found.health, stale=stale)
                    continue
                if scanner is None or not scanner.listed:
                    yield DeviceHealth(one.pool, one.device, None, "devhost is looking for the device")
                elif (device := scanner.devices.get(one.key[1])) is not None:
                    yield _health(one, scanner.health.verdict(device, time.monotonic()), stale=stale)
                else:
                    yield DeviceHealth(one.pool, one.device, False, GONE)

    def _without_devices(
        self, settings: Settings, offered: Mapping[str, PlannedResource]
    ) -> Iterator[tuple[str, Offers]]:
        """Resources of the file for which the plan has no device, or for which it is not known yet."""
        for entry in settings.resources:
            if entry.serve is not Serve.DRA:
                continue
            if not self._listed(entry.backend):
                yield from ((name, (entry.backend, None)) for name in self._names(entry))
            elif not naming.fields(entry.name) and not entry.may_be_empty and entry.name not in offered:
                yield entry.name, (entry.backend, ())

    def _listed(self, backend: str) -> bool:
        """Whether a backend has listed its devices."""
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
        if name in self._verdicts:
            self._verdicts[name].follow(scanner, entry)
        else:
            self._verdicts[name] = Verdicts(scanner, entry)
        verdict = self._verdicts[name].now()
        backend = self._backends.setdefault(name, ResourceBackend(name, scanner, entry))
        backend.follow(scanner, entry, len(planned.offers))
        pool = self._pool(name, entry.backend)
        devices = (offer.device for offer in planned.offers)
        named = self._aliases.setdefault(name, Aliases()).follow(entry.dra, name, devices, scanner.devices)
        offers = []
        for device, replicas, _ in planned.offers:
            key = (entry.backend, device.id)
            health = verdict(device)
            if replicas == 1 and (reason := self._claims.given.reason(name, key)):
                health = worst(health, unhealthy(reason.text))
            full = (pool.name, pool.device_name(device.id))
            usable = not is_tainted(health, entry.dra.taints)
            bound = self._claims.bound_elsewhere(key, device) if usable else None
            names = named.get(device.id, NOTHING)
            one = DraDevice(key, device, health, name, entry, backend, replicas, bound, self._driver, names)
            self._devices[full], self._known[full] = one, (name, key)
            amounts = entry.share.amounts
            offers.append(Offered(device, one.shown, replicas, names, entry.dra.taints, amounts))
        self._now[name] = frozenset((entry.backend, one.device.id) for one in offers)
        if scanner.listed:
            self._offers[name] = entry.backend, offers

    def _restore(self, key: Key, resource: str, settings: Settings) -> None:
        """Makes a device known that has left its slice since an earlier run began to publish it.

        Its claims get what the resource gives now. There is no such device if the resource has left the file.
        """
        pool = self._pool(resource, key[0])
        name = pool.name, pool.device_name(key[1])
        scanner = self._scanners.get(key[0])
        if name in self._devices or scanner is None or key[1] not in scanner.devices:
            return
        device = scanner.devices[key[1]]
        for entry in settings.resources:
            seen = selected(entry.where, device.attributes, device.inherited)
            if entry.backend == key[0] and seen is not None and naming.expand(entry.name, seen) == resource:
                backend = self._backends.setdefault(resource, ResourceBackend(resource, scanner, entry))
                backend.follow(scanner, entry, len(self._now.get(resource, ())))
                health = scanner.health.verdict(device, time.monotonic())
                replicas = replicas_of(entry.share, seen)
                found = DraDevice(key, device, health, resource, entry, backend, replicas)
                self._devices[name] = self._with_names(found, scanner)
                return

    def _as_found(self, one: DraDevice) -> DraDevice:
        """The same device as its backend finds it now."""
        scanner = self._scanners.get(one.key[0])
        if scanner is None or one.key[1] not in scanner.devices:
            return replace(one, health=unhealthy(GONE, Cause.MISSING))
        device = scanner.devices[one.key[1]]
        now = replace(one, device=device, health=scanner.health.verdict(device, time.monotonic()))
        return self._with_names(now, scanner)

    def _with_names(self, one: DraDevice, scanner: Scanner) -> DraDevice:
        """The same device with what it publishes under further names."""
        names = aliased(one.entry.dra, one.resource, one.device, scanner.devices)
        return replace(one, driver=self._driver, aliased=names)

    def _pool(self, resource: str, backend: str) -> Pool:
        pool = self._pools.get(resource)
        if pool is None:
            pool = self._pools[resource] = Pool(self._driver, self._node, resource, backend)
        return pool


def _health(one: ClaimedDevice, health: Health, *, stale: bool) -> DeviceHealth:
    reason = "" if health.healthy else sound_reason(health.reason)
    return DeviceHealth(one.pool, one.device, health.healthy, reason, stale)
