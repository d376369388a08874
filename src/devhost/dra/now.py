"""The DRA drivers at one moment: what people and programs see of them is a function of this value.

It refers to values that their parts replace and never change. :func:`report` makes the document of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, get_args

from devhost.allocation.cdi.claim_files import PreparedClaim
from devhost.allocation.claims import users_of
from devhost.allocation.leases import Claims
from devhost.backend.frozen import frozen
from devhost.backend.model import Cause, ClaimHolder, sound_reason, unhealthy
from devhost.discovery.scanner import BackendNow
from devhost.planning import naming
from devhost.planning.amounts import used_of, written
from devhost.planning.claims import Held, Key, Reason, claims_of, held_by_claims
from devhost.planning.settings import Serve
from devhost.runtime.log import iso
from devhost.telemetry.document import (
    CapacityStatus,
    ClaimedDeviceStatus,
    ConsumedStatus,
    CounterStatus,
    DraClaimStatus,
    DraDeviceStatus,
    DraPoolStatus,
    DraStatus,
    DriverStatus,
    LeftOutStatus,
    MoveStatus,
    MovingStatus,
    form,
    held_by,
)
from devhost.telemetry.exposition import Gauge

from .inventory import GONE, DraDevice, InventoryNow
from .publisher import Published, PublisherStatus
from .server import Call
from .slices import pool_name
from .upkeep import KEPT

if TYPE_CHECKING:
    from devhost.planning.counters import CounterSet

MOST_SHARED = 1000
"""The maximum number of devices of a resource with series of what claims share by amount."""

HeldByClaims = Mapping[Key, Sequence[Held]]
"""What claims hold, by device."""


@frozen(kw_only=True)
class DriverNow:
    """One driver.

    ``needed`` is whether the settings need it, ``over`` whether it ends because it has neither slices nor
    claims. ``refusal`` is why the kubelet does not use it, ``api_failure`` what does not work with the API
    server, ``status_failure`` why the status of a claim cannot be written, ``unwritten`` why the files of a
    claim cannot; each is empty if there is no reason. ``published`` is by resource, ``claims`` are the
    prepared ones by uid, and ``kept`` those of them that are gone and that the kubelet has not released.
    ``flaws`` are the claims for which something fails, each with the reason.
    ``calls`` is how many calls of the kubelet are not answered yet, by kind, and ``heard_at`` when the API
    server last sent something over the watch of slices, in Unix time; 0 before.
    """

    driver: str
    node: str
    needed: bool
    over: bool = False
    registered: bool = False
    refusal: str = ""
    api_failure: str = ""
    status_failure: str = ""
    status: PublisherStatus = PublisherStatus()
    published: Mapping[str, Published]
    inventory: InventoryNow = InventoryNow()
    claims: Mapping[str, PreparedClaim]
    prepared_devices: int = 0
    calls: Mapping[Call, int]
    heard_at: float = 0.0
    kept: Mapping[str, ClaimHolder]
    flaws: Sequence[tuple[str, str]] = ()
    unwritten: str = ""

    def missing(self) -> str:
        """Why pods cannot use the driver yet; empty if they can."""
        found = [] if self.registered else [self.refusal or "the kubelet has not registered it yet"]
        if self.api_failure:
            found.append(self.api_failure)
        elif self.status.synced_at is None:
            found.append("its ResourceSlices are not published yet")
        return "; ".join(found)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong: each subject with the reason."""
        for reason in filter(None, (self.refusal, self.api_failure, self.status_failure, self.unwritten)):
            yield self.driver, reason
        yield from self.flaws
        for claim in self.kept.values():
            yield str(claim), KEPT
        for resource, one in self.status.left_out:
            if not one.attribute or not one.device_id:
                yield f"{resource} {one.device_id or one.attribute}", one.reason

    def gauges(self) -> Iterator[Gauge]:
        """Those that need nothing of other drivers."""
        driver, inventory = self.driver, self.inventory
        offered = Counter((one.resource, one.shown.healthy) for one in inventory.offered)
        moving: Counter[str] = Counter(dict.fromkeys(inventory.pools, 0))
        for one in inventory.moves:
            moving[one.resource] += len(one.devices)
        yield "dra_slices", [((driver,), self.status.slices)]
        yield (
            "dra_devices",
            (
                ((driver, resource, "Healthy" if healthy else "Unhealthy"), count)
                for (resource, healthy), count in sorted(offered.items())
            ),
        )
        yield (
            "dra_moving_devices",
            (((driver, resource), count) for resource, count in sorted(moving.items())),
        )
        yield "dra_dropped_fields", [((driver,), len(self.status.dropped))]
        yield "dra_synced_timestamp_seconds", [((driver,), self.status.synced_at or 0)]
        yield "dra_calls_in_flight", (((driver, call), self.calls.get(call, 0)) for call in get_args(Call))
        yield "dra_prepared_claims", [((driver,), len(self.claims))]
        yield "dra_prepared_devices", [((driver,), self.prepared_devices)]
        yield "dra_watch_timestamp_seconds", [((driver,), self.heard_at)]


@frozen
class DraNow:
    """The DRA side of a host.

    ``failures`` are why there is no driver although slices of an earlier run remain. ``held`` is everything
    that is held, ``listed`` which containers use claims, by the kubelet's newest list.
    """

    drivers: Sequence[DriverNow]
    failures: Sequence[str]
    held: Sequence[Held]
    listed: Claims
    backends: Mapping[str, BackendNow]

    def missing(self) -> Iterator[tuple[str, str]]:
        """Why pods cannot use drivers yet that are configured: each driver with the reason."""
        return ((one.driver, reason) for one in self.drivers if one.needed and (reason := one.missing()))

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong: each subject with the reason."""
        for failure in self.failures:
            yield "dra", failure
        for one in self.drivers:
            if not one.over:
                yield from one.faults()

    def unhealthy(self) -> Iterator[tuple[str, str, Reason]]:
        """The devices that are unhealthy, or gone while claims hold them: resource, device and reason.

        Not those that are out of service on purpose.
        """
        for one in self._devices(held_by_claims(self.held)):
            if not one.health.healthy and not self._is_cordoned(one):
                held_by = one.bound.held_by if one.bound else ()
                yield one.resource, one.device.id, Reason(sound_reason(one.shown.reason), held_by)

    def gauges(self) -> Iterator[Gauge]:
        """The gauges of the drivers, and of the devices that claims share by amount."""
        for driver in self.drivers:
            yield from driver.gauges()
        if shared := list(self._shared()):
            yield "device_capacity", ((labels, size) for labels, size, _ in shared)
            yield "device_capacity_used", ((labels, used) for labels, _, used in shared)

    def _shared(self) -> Iterator[tuple[tuple[str, str, str], int, int]]:
        """What claims use of shared devices, of :data:`MOST_SHARED` of each resource."""
        claimed = held_by_claims(self.held)
        seen: Counter[str] = Counter()
        for one in self._devices(claimed):
            if one.entry.share.amounts and seen[one.resource] < MOST_SHARED:
                seen[one.resource] += 1
                for name, size, used in amounts(one, claimed):
                    yield (one.resource, one.device.id, name), size, used

    def _devices(self, claimed: HeldByClaims) -> Iterator[DraDevice]:
        return (device for one in self.drivers for device in self.devices(one, claimed))

    def devices(self, driver: DriverNow, claimed: HeldByClaims) -> Iterator[DraDevice]:
        """The devices of a driver, in a stable order: last those that claims hold and that are gone."""
        yield from driver.inventory.offered
        for key, several in sorted(claimed.items()):
            own = [one for one in several if one.side == (Serve.DRA, driver.driver)]
            if own and self._is_gone(key) and own[-1].resource in driver.inventory.known:
                resource, device = own[-1].resource, own[-1].device
                why = Reason(f"{GONE}, and a claim holds it", tuple(claims_of(several)))
                health = unhealthy(why.text, Cause.MISSING)
                yield DraDevice(key, device, health, resource, *driver.inventory.known[resource], bound=why)

    def _is_gone(self, key: Key) -> bool:
        """Whether a device certainly does not exist."""
        backend = self.backends.get(key[0])
        return backend is not None and backend.listed and key[1] not in backend.devices

    def _is_cordoned(self, one: DraDevice) -> bool:
        """Whether an existing device, or a member of it, is out of service on purpose."""
        backend = self.backends.get(one.key[0])
        return backend is not None and any(
            not self._is_gone(key) and backend.is_cordoned(key[1]) for key in one.keys
        )


def amounts(one: DraDevice, claimed: HeldByClaims) -> Sequence[tuple[str, int, int]]:
    """Each capacity of a device that claims share by amount: its name, what there is, and what is used."""
    sizes = {amount.name: amount.size(one.device.attributes) or 0 for amount in one.entry.share.amounts}
    used = used_of(sizes, (held.parts for held in claimed.get(one.key, ()))) if sizes else {}
    return [(name, size, used[name]) for name, size in sizes.items()]


def report(now: DraNow) -> DraStatus:
    """The state of all drivers, of which there is at least one."""
    several = len(now.drivers) > 1
    claimed = held_by_claims(now.held)
    first, *_ = parts = [_report(now, one, one.driver if several else "", claimed) for one in now.drivers]
    if not several:
        return first
    synced = [one.synced_at for one in parts]
    return DraStatus(
        driver=first.driver,
        node=first.node,
        state="registered" if all(one.state == "registered" for one in parts) else "waiting",
        reason=_together(f"{one.driver}: {one.reason}" for one in parts if one.reason),
        slices=sum(one.slices for one in parts),
        writes=sum(one.writes for one in parts),
        synced_at=None if None in synced else min(filter(None, synced)),
        error=_together(one.error for one in parts),
        dropped_fields=list(dict.fromkeys(name for one in parts for name in one.dropped_fields)),
        left_out=[row for one in parts for row in one.left_out],
        pools=[row for one in parts for row in one.pools],
        claims=[row for one in parts for row in one.claims],
        moving=[row for one in parts for row in one.moving],
        moves=[row for one in parts for row in one.moves],
        drivers=[
            DriverStatus(**{name: getattr(one, name) for name in form(DriverStatus).keys}) for one in parts
        ],
    )


def _together(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _report(now: DraNow, one: DriverNow, name: str, claimed: HeldByClaims) -> DraStatus:
    """The state of one driver. Its pools and claims have its ``name`` if there are several."""
    status, inventory = one.status, one.inventory
    return DraStatus(
        driver=one.driver,
        node=one.node,
        state="registered" if one.registered else "waiting",
        reason=one.refusal,
        slices=status.slices,
        writes=status.writes,
        synced_at=iso(status.synced_at) if status.synced_at else None,
        error=one.api_failure,
        dropped_fields=status.dropped,
        left_out=[
            LeftOutStatus(resource, left_out.device_id, left_out.attribute, left_out.reason)
            for resource, left_out in status.left_out
        ],
        pools=list(_pools(one, name, now.devices(one, claimed), claimed)),
        claims=[_claim(now, claim, name) for _, claim in sorted(one.claims.items())],
        moving=[
            MovingStatus(
                backend=moving.key[0],
                device=moving.key[1],
                resource=moving.resource,
                serve=moving.side[0].value,
                reason=moving.waits_for,
                held_by=held_by(moving.held_by),
            )
            for moving in inventory.moving
        ],
        moves=[
            MoveStatus(
                resource=move.resource,
                serve=move.serve.value,
                devices=move.devices,
                reason=move.reason,
                since=iso(move.since),
                stuck=bool(move.stuck),
                held_by=held_by(move.held_by),
            )
            for move in inventory.moves
        ],
    )


def _pools(
    driver: DriverNow, name: str, devices: Iterable[DraDevice], claimed: HeldByClaims
) -> Iterator[DraPoolStatus]:
    pools = driver.inventory.pools
    offered: dict[str, list[DraDevice]] = {resource: [] for resource in pools}
    for one in devices:
        if one.resource in offered:
            offered[one.resource].append(one)
    for resource, entry in sorted(pools.items()):
        published = driver.published.get(resource, Published())
        held = {one.device.id for one in offered[resource] if any(key in claimed for key in one.keys)}
        consumes = _consumes(published.counters)
        yield DraPoolStatus(
            resource=resource,
            backend=entry.backend,
            entry=f"resources[{entry.index}]",
            pool=pool_name(driver.node, resource),
            device_class=entry.dra.device_class or naming.device_class(resource),
            extended_name=entry.dra.extended_name,
            devices=[
                _device(one, claimed, published.slices, consumes.get(one.device.id, ()))
                for one in offered[resource]
            ],
            counters=_counters(published.counters, held),
            driver=name,
        )


def _counters(sets: Sequence[CounterSet], held: Collection[str]) -> list[CounterStatus]:
    """The shared counters of a pool, and what the devices take of them that claims hold."""
    found: list[CounterStatus] = []
    for one in sets:
        for name, total in one.most.items():
            used = sum(taken.get(name, 0) for device, taken in one.taken.items() if device in held)
            free = max(0, total - used)
            found.append(CounterStatus(one.name, name, total, used, free))
    return found


def _consumes(sets: Sequence[CounterSet]) -> Mapping[str, Sequence[ConsumedStatus]]:
    """What each device takes of the counters, by its id."""
    return {
        device: [ConsumedStatus(one.name, name, taken[name]) for name in taken]
        for one in sets
        for device, taken in one.taken.items()
    }


def _device(
    one: DraDevice, claimed: HeldByClaims, slices: Mapping[str, str], consumes: Sequence[ConsumedStatus]
) -> DraDeviceStatus:
    return DraDeviceStatus(
        device=one.device.id,
        members=[member.id for member in one.members],
        name=naming.slug(one.key[1]),
        slice=slices.get(one.device.id, ""),
        health="Healthy" if one.shown.healthy else "Unhealthy",
        reason=one.shown.reason or "",
        replicas=one.replicas,
        numa_nodes=one.device.numa_nodes,
        claims=held_by(claims_of(held for key in one.keys for held in claimed.get(key, ()))),
        capacity=[
            CapacityStatus(name, written(size), written(used), written(max(0, size - used)))
            for name, size, used in amounts(one, claimed)
        ],
        consumes=consumes,
        held_by=held_by(one.bound.held_by if one.bound else ()),
    )


def _claim(now: DraNow, claim: PreparedClaim, name: str) -> DraClaimStatus:
    record = claim.record
    devices = (ClaimedDeviceStatus(one.request, one.pool, one.device, *one.key) for one in record.devices)
    return DraClaimStatus(
        namespace=record.claim.namespace,
        name=record.claim.name,
        uid=record.claim.uid,
        file=str(claim.path),
        devices=list(dict.fromkeys(devices)),  # a claim may have several parts of a device
        containers=held_by(users_of(record.claim, now.listed)),
        driver=name,
    )
