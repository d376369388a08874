"""Orphaned allocations: tokens that containers hold and no list shows, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from devhost.allocation.allocations import Allocations
from devhost.allocation.inventory import FORGOTTEN
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID, Holder
from devhost.discovery.scanner import Scanner
from devhost.host.service import GONE, ResourceService
from devhost.planning.claims import Key, Reason
from devhost.planning.tokens import DeviceIds, is_former, represents_all, unit_of
from devhost.runtime.log import get

log = get(__name__)

SHARED_OTHERWISE = "the resource is now shared in another way"
OTHER_BACKEND = "the resource now has its devices from another backend"
FORMER_ID = "the device has another id now"
UNSERVED = "devhost does not serve this resource now"

NAMED = 20
"""Most devices that are logged when several go missing together."""


@frozen
class Orphan:
    """A token that a container holds, with the ids of its devices as far as they are known.

    ``missing`` are the devices of the token that no longer exist.
    """

    resource: str
    token: str
    devices: tuple[str, ...]
    holder: Holder | None
    reason: Reason
    missing: tuple[str, ...] = ()


class Orphans:
    """Finds orphaned allocations, and logs each device once that is gone while a container holds it."""

    def __init__(
        self,
        allocations: Allocations,
        services: Mapping[str, ResourceService],
        scanners: Mapping[str, Scanner],
    ) -> None:
        self._allocations = allocations
        self._services = services
        self._scanners = scanners
        self._reported: frozenset[tuple[str, str]] = frozenset()
        self._forgotten: Mapping[tuple[str, str], Holder] = {}

    def found(self) -> Iterator[Orphan]:
        """All orphaned allocations, by resource and token."""
        for held in self._allocations.in_use():
            service = self._services.get(held.resource)
            listed = service.inventory.snapshot.entries if service else {}
            missed = sorted(held.tokens() - listed.keys())
            if not missed:
                continue
            gone, why = self._gone(held.resource), self._why(service)
            for token in missed:
                keys = sorted(held.devices_of(token))
                missing = gone(token, keys)
                there = [key for key in keys if key[1] not in missing]
                yield Orphan(
                    held.resource,
                    token,
                    tuple(dict.fromkeys(device for _, device in keys)),
                    held.leases.holder(token),
                    Reason(GONE) if missing and not there else why(token, there),
                    missing,
                )

    def missing(self) -> dict[str, dict[str, str]]:
        """By resource, the devices that containers hold and that do not exist, with the reason."""
        found: dict[str, dict[str, str]] = {}
        for one in self.found():
            for device in one.missing:
                found.setdefault(one.resource, {})[device] = GONE
        return found

    def forgotten(self) -> dict[tuple[str, str], Holder]:
        """The containers whose allocations the kubelet has forgotten, by resource and token."""
        return {
            (held.resource, token): holder
            for held in self._allocations.in_use()
            for token, holder in sorted(held.leases.forgotten().items())
        }

    def report(self) -> None:
        """Logs what has gone or was forgotten since the last call."""
        self._report_forgotten()
        gone = [(name, device) for name, devices in self.missing().items() for device in devices]
        new = [one for one in gone if one not in self._reported]
        for resource, device in new[:NAMED]:
            log.warning(
                "a container holds a device that no longer exists",
                resource=resource,
                device=device,
                reason=GONE,
            )
        if len(new) > NAMED:
            log.warning("containers hold more devices that no longer exist", devices=len(new) - NAMED)
        self._reported = frozenset(gone)

    def _report_forgotten(self) -> None:
        forgotten, before = self.forgotten(), self._forgotten
        self._forgotten = forgotten
        new = [one for one in forgotten if one not in before]
        for resource, token in new[:NAMED]:
            log.warning(
                "the kubelet has forgotten an allocation",
                resource=resource,
                device=token,
                holder=str(forgotten[resource, token]),
                reason=FORGOTTEN,
            )
        if len(new) > NAMED:
            log.warning("the kubelet has forgotten more allocations", devices=len(new) - NAMED)
        over = [one for one in before if one not in forgotten]
        for resource, token in over[:NAMED]:
            log.info("a forgotten allocation has ended", resource=resource, device=token)
        if len(over) > NAMED:
            log.info("more forgotten allocations have ended", devices=len(over) - NAMED)

    def _gone(self, resource: str) -> Callable[[str, Collection[Key]], tuple[str, ...]]:
        """A function that returns the devices of a token that certainly no longer exist.

        For a token whose device has not been found since devhost started, this is certain only if an entry
        has exactly the resource's name: a resource that matches a name template may belong to another plugin.
        For a truncated id it is never certain: every device would have to be compared.
        """
        found = {name: _Present(one) for name, one in self._scanners.items() if one.listed}
        entries = [entry for entry in self._allocations.entries(resource) if entry.name == resource]
        own = [found.get(entry.backend) for entry in entries]

        def gone(token: str, keys: Collection[Key]) -> tuple[str, ...]:
            if keys:
                lost = [device for name, device in keys if name in found and not found[name].has(device)]
                return tuple(dict.fromkeys(lost))
            unit = unit_of(token)
            if not own or represents_all(token) or len(token) == MAX_DEVICE_ID:
                return ()
            there = any(one is None or one.has(unit) or one.known.named(token) for one in own)
            return () if there else (unit,)

        return gone

    def _why(self, service: ResourceService | None) -> Callable[[str, Collection[Key]], Reason]:
        """A function that returns why existing devices are not in the list of a resource."""
        offered = service.offered() if service else frozenset()

        def why(token: str, keys: Collection[Key]) -> Reason:
            if service is None:
                return Reason(UNSERVED)
            own = [device for name, device in keys if name == service.entry.backend]
            if keys and not own:
                return Reason(OTHER_BACKEND)
            scanner = self._scanners[service.entry.backend]
            refused = {one.device: one.reason for one in scanner.condition.refused}
            if reason := next((refused[device] for device in own if device in refused), ""):
                return Reason(reason)
            devices = scanner.devices
            if any(device in devices and is_former(token, devices[device]) for device in own):
                return Reason(FORMER_ID)
            return next(
                (service.why_not(device) for device in own if device not in offered), Reason(SHARED_OTHERWISE)
            )

        return why


class _Present:
    """The devices that a backend reports now, including unusable ones."""

    def __init__(self, scanner: Scanner) -> None:
        self.devices = scanner.devices
        self.known = DeviceIds(self.devices)
        self._refused = {one.device for one in scanner.condition.refused}

    def has(self, device: str) -> bool:
        return device in self.devices or device in self._refused
