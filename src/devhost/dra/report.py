"""What the DRA front end shows in the status document, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from devhost.backend.model import ClaimHolder, sound_reason
from devhost.planning import naming
from devhost.planning.amounts import written
from devhost.planning.claims import Key, Reason
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

from .front_end import DraFrontEnd
from .inventory import DraDevice
from .upkeep import KEPT

if TYPE_CHECKING:
    from devhost.planning.counters import CounterSet

MOST_SHARED = 1000
"""The maximum number of devices of a resource with series of what claims share by amount."""


def report(*front_ends: DraFrontEnd) -> DraStatus:
    """The current state of all drivers."""
    several = len(front_ends) > 1
    first, *_ = parts = [_report(one, one.driver if several else "") for one in front_ends]
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


def _report(front_end: DraFrontEnd, driver: str) -> DraStatus:
    """The state of one driver. Its pools and claims name it as ``driver`` if there are several."""
    status = front_end.publisher.status
    return DraStatus(
        driver=front_end.driver,
        node=front_end.node,
        state="registered" if front_end.registered else "waiting",
        reason=front_end.refusal,
        slices=status.slices,
        writes=status.writes,
        synced_at=iso(status.synced_at) if status.synced_at else None,
        error=front_end.api_failure,
        dropped_fields=status.dropped,
        left_out=[
            LeftOutStatus(resource, one.device_id, one.attribute, one.reason)
            for resource, one in status.left_out
        ],
        pools=list(_pools(front_end, driver)),
        claims=[_claim(front_end, uid, driver) for uid in sorted(front_end.files.records)],
        moving=[
            MovingStatus(
                backend=one.key[0],
                device=one.key[1],
                resource=one.resource,
                serve=one.side[0].value,
                reason=one.waits_for,
                held_by=held_by(one.held_by),
            )
            for one in front_end.inventory.moving()
        ],
        moves=[
            MoveStatus(
                resource=one.resource,
                serve=one.serve.value,
                devices=one.devices,
                reason=one.reason,
                since=iso(one.since),
                stuck=bool(one.stuck),
                held_by=held_by(one.held_by),
            )
            for one in front_end.inventory.moves
        ],
    )


def faults(front_end: DraFrontEnd) -> Iterator[tuple[str, str]]:
    """What is wrong: each subject with the reason."""
    if front_end.refusal:
        yield front_end.driver, front_end.refusal
    status = front_end.publisher.status
    if front_end.api_failure:
        yield front_end.driver, front_end.api_failure
    if front_end.status_failure:
        yield front_end.driver, front_end.status_failure
    for claim in front_end.upkeep.kept.values():
        yield str(claim), KEPT
    for resource, one in status.left_out:
        if not one.attribute or not one.device_id:
            yield f"{resource} {one.device_id or one.attribute}", one.reason


def unhealthy(front_end: DraFrontEnd) -> Iterator[tuple[str, str, Reason]]:
    """The devices that are unhealthy, or gone while claims hold them: resource, device and reason.

    Not those that are out of service on purpose.
    """
    inventory = front_end.inventory
    for one in (*inventory.offered(), *inventory.unplugged()):
        if not one.health.healthy and not inventory.is_cordoned(one):
            held_by = one.bound.held_by if one.bound else ()
            yield one.resource, one.device.id, Reason(sound_reason(one.shown.reason), held_by)


def _pools(front_end: DraFrontEnd, driver: str) -> Iterator[DraPoolStatus]:
    inventory = front_end.inventory
    offered: dict[str, list[DraDevice]] = {name: [] for name in inventory.entries()}
    for one in (*inventory.offered(), *inventory.unplugged()):
        if one.resource in offered:
            offered[one.resource].append(one)
    holders = front_end.claims.by_device()
    for resource, entry in sorted(inventory.entries().items()):
        sets = front_end.publisher.counter_sets(resource)
        held = {one.device.id for one in offered[resource] if any(holders.get(key) for key in one.keys)}
        consumes = _consumes(sets)
        yield DraPoolStatus(
            resource=resource,
            backend=entry.backend,
            entry=f"resources[{entry.index}]",
            pool=inventory.pool(resource, entry.backend),
            device_class=entry.dra.device_class or naming.device_class(resource),
            extended_name=entry.dra.extended_name,
            devices=[
                _device(front_end, holders, one, consumes.get(one.device.id, ())) for one in offered[resource]
            ],
            counters=_counters(sets, held),
            driver=driver,
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
    front_end: DraFrontEnd,
    holders: Mapping[Key, Sequence[ClaimHolder]],
    one: DraDevice,
    consumes: Sequence[ConsumedStatus],
) -> DraDeviceStatus:
    return DraDeviceStatus(
        device=one.device.id,
        members=[member.id for member in one.members],
        name=front_end.inventory.name(one.resource, one.key),
        slice=front_end.publisher.slice(one.resource, one.device.id),
        health="Healthy" if one.shown.healthy else "Unhealthy",
        reason=one.shown.reason or "",
        replicas=one.replicas,
        numa_nodes=one.device.numa_nodes,
        claims=held_by(sorted({c for key in one.keys for c in holders.get(key, ())})),
        capacity=_capacity(front_end, one),
        consumes=consumes,
        held_by=held_by(one.bound.held_by if one.bound else ()),
    )


def _capacity(front_end: DraFrontEnd, one: DraDevice) -> Sequence[CapacityStatus]:
    """What claims use of a device that they share by amount."""
    return [
        CapacityStatus(name, written(size), written(used), written(max(0, size - used)))
        for name, size, used in _amounts(front_end, one)
    ]


def _amounts(front_end: DraFrontEnd, one: DraDevice) -> Sequence[tuple[str, int, int]]:
    """Each capacity of a device that claims share by amount: its name, what there is, and what is used."""
    sizes = {amount.name: amount.size(one.device.attributes) or 0 for amount in one.entry.share.amounts}
    used = front_end.claims.used(one.key, sizes) if sizes else {}
    return [(name, size, used[name]) for name, size in sizes.items()]


def gauges(front_end: DraFrontEnd) -> Iterator[Gauge]:
    """The gauges of one driver."""
    driver, inventory, files = front_end.driver, front_end.inventory, front_end.files
    publisher = front_end.publisher
    offered = Counter((one.resource, one.shown.healthy) for one in inventory.offered())
    moving: Counter[str] = Counter(dict.fromkeys(inventory.entries(), 0))
    for one in inventory.moves:
        moving[one.resource] += len(one.devices)
    yield "dra_slices", [((driver,), publisher.status.slices)]
    yield (
        "dra_devices",
        (
            ((driver, resource, "Healthy" if healthy else "Unhealthy"), count)
            for (resource, healthy), count in sorted(offered.items())
        ),
    )
    yield "dra_moving_devices", (((driver, resource), count) for resource, count in sorted(moving.items()))
    yield "dra_dropped_fields", [((driver,), len(publisher.status.dropped))]
    yield "dra_synced_timestamp_seconds", [((driver,), publisher.status.synced_at or 0)]
    yield "dra_calls_in_flight", (((driver, call), count) for call, count in front_end.calls.items())
    yield "dra_prepared_claims", [((driver,), len(files.records))]
    yield "dra_prepared_devices", [((driver,), len(files.devices))]
    yield "dra_watch_timestamp_seconds", [((driver,), publisher.heard_at)]
    if shared := list(_shared(front_end)):
        yield "device_capacity", ((labels, size) for labels, size, _ in shared)
        yield "device_capacity_used", ((labels, used) for labels, _, used in shared)


def _shared(front_end: DraFrontEnd) -> Iterator[tuple[tuple[str, str, str], int, int]]:
    """What claims use of the devices that they share by amount, of :data:`MOST_SHARED` of each resource."""
    seen: Counter[str] = Counter()
    for one in (*front_end.inventory.offered(), *front_end.inventory.unplugged()):
        if one.entry.share.amounts and seen[one.resource] < MOST_SHARED:
            seen[one.resource] += 1
            for name, size, used in _amounts(front_end, one):
                yield (one.resource, one.device.id, name), size, used


def _claim(front_end: DraFrontEnd, uid: str, driver: str) -> DraClaimStatus:
    record = front_end.files.records[uid]
    devices = (ClaimedDeviceStatus(one.request, one.pool, one.device, *one.key) for one in record.devices)
    return DraClaimStatus(
        namespace=record.claim.namespace,
        name=record.claim.name,
        uid=uid,
        file=str(front_end.files.path(uid)),
        devices=list(dict.fromkeys(devices)),  # a claim may have several parts of a device
        containers=held_by(front_end.claims.users(record.claim)),
        driver=driver,
    )
