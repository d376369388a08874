"""What the status document has of the DRA drivers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from devhost.allocation.cdi.claim_files import PreparedClaim
from devhost.allocation.claims import users_of
from devhost.planning import naming
from devhost.planning.amounts import written
from devhost.planning.claims import claims_of, held_by_claims
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

from .inventory import DraDevice
from .now import DraNow, DriverNow, HeldByClaims, amounts
from .publisher import Published
from .slices import pool_name

if TYPE_CHECKING:
    from devhost.planning.counters import CounterSet


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
        pools=list(_pools(one, name, [*now.devices(one, claimed)], claimed)),
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
