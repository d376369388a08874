"""What containers hold; and orphaned allocations: tokens that no list shows, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from devhost.allocation.inventory import FORGOTTEN
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID, Holder
from devhost.discovery.scanner import BackendNow
from devhost.planning.claims import Key, Reason
from devhost.planning.tokens import DeviceIds, is_former, represents_all, unit_of
from devhost.runtime.log import first, get

from .now import GONE, Lost, Now, ResourceNow, why_not_listed

log = get(__name__)

SHARED_OTHERWISE = "the resource is now shared in another way"
OTHER_BACKEND = "the resource now has its devices from another backend"
FORMER_ID = "the device has another id now"
UNSERVED = "devhost does not serve this resource now"


@frozen(slots=True)
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


def orphans(now: Now) -> Iterator[Orphan]:
    """All orphaned allocations, by resource and token."""
    for name, holding in now.holdings.items():
        resource = now.resources.get(name)
        listed = resource.snapshot.entries if resource else {}
        missed = holding.tokens() - listed.keys()
        if not missed:
            continue
        gone, why = _gone(now, name), _why(now, resource)
        groups = {token: group for group in holding.groups for token in missed.intersection(group.tokens)}
        for token, group in sorted(groups.items()):
            keys = sorted(set(group.keys))
            missing = gone(token, keys)
            there = [key for key in keys if key[1] not in missing]
            yield Orphan(
                name,
                token,
                tuple(dict.fromkeys(device for _, device in keys)),
                group.holder,
                Reason(GONE) if missing and not there else why(token, there),
                missing,
            )


def missing(now: Now) -> dict[str, dict[str, str]]:
    """By resource, the devices that containers hold and that do not exist, with the reason."""
    found: dict[str, dict[str, str]] = {}
    for one in orphans(now):
        for device in one.missing:
            found.setdefault(one.resource, {})[device] = GONE
    return found


def forgotten(now: Now) -> dict[tuple[str, str], Holder]:
    """The containers whose allocations the kubelet has forgotten, by resource and token."""
    return {
        (name, token): holder
        for name, holding in now.holdings.items()
        for token, holder in sorted(holding.forgotten.items())
    }


def holders(now: Now) -> Iterator[tuple[str, str, Holder | None]]:
    """Who holds what: resource, device and container, each once.

    These are devices, not tokens: a container with two shares of one device holds one. If the devices of a
    token are unknown, the name in the token is used.
    """
    for resource, holding in now.holdings.items():
        found = {
            (device, group.holder)
            for group in holding.groups
            for device in {device for _, device in group.keys} or set(map(unit_of, group.tokens))
        }
        for device, holder in sorted(found, key=str):
            yield resource, device, holder


def _gone(now: Now, resource: str) -> Callable[[str, Collection[Key]], tuple[str, ...]]:
    """A function that returns the devices of a token that certainly no longer exist.

    For a token whose device has not been found since devhost started, this is certain only if an entry
    has exactly the resource's name: a resource that matches a name template may belong to another plugin.
    For a truncated id it is never certain: every device would have to be compared.
    """
    found = {name: _Present(one) for name, one in now.backends.items() if one.listed}
    own = [found.get(entry.backend) for entry in now.settings.resources if entry.name == resource]

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


def _why(now: Now, resource: ResourceNow | None) -> Callable[[str, Collection[Key]], Reason]:
    """A function that returns why existing devices are not in the list of a resource."""
    offered = frozenset(offer.device.id for offer in resource.offers) if resource else frozenset()

    def why(token: str, keys: Collection[Key]) -> Reason:
        if resource is None:
            return Reason(UNSERVED)
        own = [key for key in keys if key[0] == resource.entry.backend]
        if keys and not own:
            return Reason(OTHER_BACKEND)
        backend = now.backends[resource.entry.backend]
        devices, refused = backend.devices, {one.device: one.reason for one in backend.condition.refused}
        if reason := next((refused[device] for _, device in own if device in refused), ""):
            return Reason(reason)
        if any(device in devices and is_former(token, devices[device]) for _, device in own):
            return Reason(FORMER_ID)
        return next(
            (
                why_not_listed(resource.name, key, devices, now.differences, resource.refused)
                for key in own
                if key[1] not in offered
            ),
            Reason(SHARED_OTHERWISE),
        )

    return why


def lost(now: Now) -> Lost:
    """What containers hold and cannot use, or may have lost."""
    gone = ((name, device) for name, devices in missing(now).items() for device in devices)
    return Lost(tuple(gone), forgotten(now))


def report(before: Lost, now: Lost) -> None:
    """Logs what has gone or was forgotten since."""
    _report_forgotten(before.forgotten, now.forgotten)
    known = frozenset(before.gone)
    new = [one for one in now.gone if one not in known]
    for resource, device in first(new, log.warning, "containers hold more devices that no longer exist"):
        log.warning(
            "a container holds a device that no longer exists", resource=resource, device=device, reason=GONE
        )


def _report_forgotten(
    before: Mapping[tuple[str, str], Holder], forgotten: Mapping[tuple[str, str], Holder]
) -> None:
    new = [one for one in forgotten if one not in before]
    for resource, token in first(new, log.warning, "the kubelet has forgotten more allocations"):
        log.warning(
            "the kubelet has forgotten an allocation",
            resource=resource,
            device=token,
            holder=str(forgotten[resource, token]),
            reason=FORGOTTEN,
        )
    over = [one for one in before if one not in forgotten]
    for resource, token in first(over, log.info, "more forgotten allocations have ended"):
        log.info("a forgotten allocation has ended", resource=resource, device=token)


class _Present:
    """The devices that a backend reports now, including unusable ones."""

    def __init__(self, backend: BackendNow) -> None:
        self.devices = backend.devices
        self.known = DeviceIds(self.devices)
        self._refused = {one.device for one in backend.condition.refused}

    def has(self, device: str) -> bool:
        return device in self.devices or device in self._refused
