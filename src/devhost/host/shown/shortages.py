"""What the file asks for and the node lacks, and what containers hold that no list shows.

This covers entries without devices or with an unexpected number, hardware without its driver, and devices
that the plan refuses to an entry because of how the file is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from devhost.allocation.inventory import FORGOTTEN
from devhost.backend import MissingDriver
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID, Holder
from devhost.discovery.scanner import BackendNow
from devhost.planning.claims import Key, Reason, holder_field
from devhost.planning.plan import Refusal, RefusalKind
from devhost.planning.settings import Identity, ResourceSettings, Settings
from devhost.planning.tokens import DeviceIds, is_former, represents_all, unit_of
from devhost.runtime.log import first, get

from .entries import MAX_COMPARISONS, EntryOutcome, EntryOutcomes, EntryState, place, wanted
from .now import GONE, EntriesNow, Lacking, Lost, Now, ResourceNow, Step, why_not_listed

log = get(__name__)

QUIET = 1.0
"""Seconds after a plan until a changed reason is logged: a burst of events makes many plans."""

REASONS = 10
"""Most reasons that are logged for one entry until it is as expected: a text may change each time."""

MISTAKES = frozenset({RefusalKind.NAME, RefusalKind.UNSHARED, RefusalKind.FULL})
"""Refusals that only an edit of the file can end. An earlier entry may have a device on purpose."""


def shortages(before: Now, now: Now) -> EntriesNow:
    """What the last plan has shown, with the reasons that are to be logged.

    An entry that begins to lack devices has its reason at once. The reasons of all of them are looked at
    again when the plans have been quiet.
    """
    known = made = before.shortages
    due = known.look_at is not None and now.clock >= known.look_at
    if now.plans == before.plans and not due:
        return known
    look_at = None if due else known.look_at
    if now.plans != before.plans:
        made = _planned(known, now)
        look_at = now.clock + QUIET if made.lacking and look_at is None else look_at
    looked = {
        identity: one
        for identity, one in made.lacking.items()
        if due or _earlier(known, identity, one) is None
    }
    outcomes = made.outcomes.all() if looked else ()
    reasons = {identity: _with_reason(one, outcomes[one.entry.index]) for identity, one in looked.items()}
    return replace(made, lacking={**made.lacking, **reasons}, look_at=look_at)


def _planned(known: EntriesNow, now: Now) -> EntriesNow:
    outcomes = EntryOutcomes(
        now.settings,
        now.plan,
        now.backends,
        comparisons=MAX_COMPARISONS,
        before=known.outcomes,
        dead_links=now.dead_links,
    )
    identified = now.settings.identified()
    lacking = {}
    for identity, entry in identified:
        earlier, count = known.lacking.get(identity), outcomes.count(entry)
        if count and not entry.unexpected(count):
            continue
        if earlier is not None and _alike(earlier.entry, entry):
            lacking[identity] = replace(earlier, entry=entry)
        elif not outcomes.waits(entry):
            lacking[identity] = Lacking(entry, earlier.since if earlier else now.at)
    missing = missing_drivers(now.settings, now.backends)
    mistakes = [one for one in now.plan.refusals if one.kind in MISTAKES]
    taken = Counter((one.entry, one.taker) for one in now.plan.refusals if one.kind is RefusalKind.TAKEN)
    by_index = {entry.index: (identity, entry) for identity, entry in identified if taken}
    takers = {
        (by_index[index][0], taker): (by_index[index][1], count)
        for (index, taker), count in taken.items()
        if taker is not None and outcomes.count(by_index[index][1])
    }
    return EntriesNow(outcomes, missing, mistakes, lacking, takers)


def _earlier(known: EntriesNow, identity: Identity, one: Lacking) -> Lacking | None:
    """What was known of a shortage; ``None`` if it has begun since, such as by an edit of the entry."""
    earlier = known.lacking.get(identity)
    return earlier if earlier is not None and _alike(earlier.entry, one.entry) else None


def _with_reason(one: Lacking, outcome: EntryOutcome) -> Lacking:
    passes = outcome.state in (EntryState.WAITING, EntryState.MOVING) or not outcome.reason
    if passes or outcome.reason in one.logged or len(one.logged) >= REASONS:
        return one
    return replace(one, logged=(*one.logged, outcome.reason))


def write(step: Step) -> None:
    """Logs what has begun, changed and ended."""
    known, now = step.before.shortages, step.now.shortages
    planned = step.now.plans != step.before.plans
    for identity, entry in step.now.settings.identified() if planned and known.lacking else ():
        count = now.outcomes.count(entry)
        if identity in known.lacking and count and not entry.unexpected(count):
            log.info(
                "entry has devices",
                entry=place(entry),
                resource=entry.name,
                backend=entry.backend,
                devices=count,
            )
    for identity, one in now.lacking.items():
        earlier = _earlier(known, identity, one)
        if len(one.logged) > len(earlier.logged if earlier else ()):
            _log_reason(one.entry, now.outcomes.all()[one.entry.index])
    if not planned:
        return
    _log_drivers(dict(_by_hardware(known)), dict(_by_hardware(now)))
    _log_refusals(known.refusals, now.refusals)
    for (identity, taker), (entry, count) in now.takers.items():
        if (identity, taker) not in known.takers:
            log.info(
                "an earlier entry takes devices",
                entry=place(entry),
                resource=entry.name,
                earlier=place(step.now.settings.resources[taker]),
                devices=count,
            )


def _log_reason(entry: ResourceSettings, outcome: EntryOutcome) -> None:
    where, name = place(entry), entry.name
    about = {"backend": entry.backend, "reason": outcome.reason}
    holder = outcome.held_by
    if outcome.devices:
        log.warning(
            "entry has an unexpected number of devices",
            entry=where,
            resource=name,
            **about,
            **holder_field(holder),
        )
    elif entry.may_be_empty:
        log.info("entry has no devices", entry=where, resource=name, **about, **holder_field(holder))
    else:
        log.warning("entry has no devices", entry=where, resource=name, **about, **holder_field(holder))


def missing_drivers(
    settings: Settings, backends: Mapping[str, BackendNow]
) -> Sequence[tuple[str, MissingDriver]]:
    """Hardware without its driver that an entry could select, each with the name of its backend."""
    return [
        (name, one)
        for name, backend in sorted(backends.items())
        for one in backend.condition.missing_drivers
        if wanted(one, [entry for entry in settings.resources if entry.backend == name])
    ]


def _log_drivers(before: Mapping[tuple[str, str], str], now: Mapping[tuple[str, str], str]) -> None:
    for (backend, hardware), reason in now.items():
        if before.get((backend, hardware)) != reason:
            log.warning("hardware lacks its driver", backend=backend, hardware=hardware, reason=reason)
    for backend, hardware in before.keys() - now.keys():
        log.info("hardware no longer lacks its driver", backend=backend, hardware=hardware)


def _log_refusals(before: Sequence[Refusal], now: Sequence[Refusal]) -> None:
    known = {(one.backend, one.device, refusal_reason(one)) for one in before}
    found = {(one.backend, one.device, refusal_reason(one)): None for one in now}
    new = [one for one in found if one not in known]
    for backend, device, reason in first(new, log.warning, "more devices refused by the plan"):
        log.warning("device refused by the plan", backend=backend, device=device, reason=reason)
    still = {(backend, device) for backend, device, _ in found}
    over = sorted({(backend, device) for backend, device, _ in known} - still)
    for backend, device in first(over, log.info, "more devices no longer refused by the plan"):
        log.info("device no longer refused by the plan", backend=backend, device=device)


def refusal_reason(refusal: Refusal) -> str:
    """Why the plan refuses a device to an entry, with the place of the entry."""
    return f"resources[{refusal.entry}]: {refusal.reason}"


def _alike(one: ResourceSettings, other: ResourceSettings) -> bool:
    return replace(one, index=other.index) == other


def _by_hardware(now: EntriesNow) -> Iterator[tuple[tuple[str, str], str]]:
    return (((backend, one.subject), one.reason) for backend, one in now.missing_drivers)


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
