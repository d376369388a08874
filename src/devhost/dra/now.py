"""The DRA drivers at one moment: what people and programs see of them is a function of this value.

It refers to values that their parts replace and never change. :mod:`.report` makes the document of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from devhost.allocation.cdi.claim_files import PreparedClaim
from devhost.allocation.leases import Claims
from devhost.backend.frozen import frozen
from devhost.backend.model import Cause, ClaimHolder, sound_reason, unhealthy
from devhost.discovery.scanner import BackendNow
from devhost.planning.amounts import used_of
from devhost.planning.claims import Held, Key, Reason, claims_of, held_by_claims
from devhost.planning.settings import Serve
from devhost.telemetry.exposition import Gauge

from .inventory import GONE, DraDevice, InventoryNow
from .publisher import Published, PublisherStatus
from .server import Call
from .upkeep import KEPT

MOST_SHARED = 1000
"""The maximum number of devices of a resource with series of what claims share by amount."""

HeldByClaims = Mapping[Key, Sequence[Held]]
"""What claims hold, by device."""


@frozen(kw_only=True)
class DriverNow:
    """One driver.

    ``needed`` is whether the settings need it, ``over`` whether it ends because it has neither slices nor
    claims. ``refusal`` is why the kubelet does not use it, ``api_failure`` what does not work with the API
    server, ``status_failure`` why the status of a claim cannot be written; each is empty if there is no
    reason. ``published`` is by resource, ``claims`` are the prepared ones by uid, and ``kept`` those of them
    that are gone and that the kubelet has not released. ``calls`` is how many calls of the kubelet are not
    answered yet, by kind, and ``heard_at`` when the API server last sent something over the watch of slices,
    in Unix time; 0 before.
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
        for reason in filter(None, (self.refusal, self.api_failure, self.status_failure)):
            yield self.driver, reason
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
        for one in self._devices():
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
        for one in self._devices():
            if one.entry.share.amounts and seen[one.resource] < MOST_SHARED:
                seen[one.resource] += 1
                for name, size, used in amounts(one, claimed):
                    yield (one.resource, one.device.id, name), size, used

    def _devices(self) -> Iterator[DraDevice]:
        claimed = held_by_claims(self.held)
        for one in self.drivers:
            yield from self.devices(one, claimed)

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
