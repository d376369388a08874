"""Texts and rows of tables for a status document, and whether pods can request its devices. Pure.

Many similar rows must not crowd out the others: a hundred tokens of one adapter whose port is down are one
row, and if there are still too many rows, they share the space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from devhost.backend.errors import UsageError, counted, few
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import natural

from .document import (
    DepartedStatus,
    DeviceStatus,
    DraDeviceStatus,
    DraPoolStatus,
    EntryStatus,
    HeldStatus,
    HolderStatus,
    HostStatus,
    PlanRefusal,
    ResourceStatus,
    StatusDocument,
    VerdictStatus,
    driver_of,
)

T = TypeVar("T")

UNKNOWN_POD = "an unknown pod"
HIDDEN_POD = "a pod"
"""Shown for a container if the names of pods are hidden."""


class WithReason(Protocol):
    """Anything in the document that has a reason, and the containers that it refers to."""

    @property
    def reason(self) -> str: ...

    @property
    def held_by(self) -> Sequence[HolderStatus]: ...


def age(since: str | None, now: datetime) -> str:
    """The age of a time in the document, in the largest unit: ``45s``, ``12m``, ``3h``, ``8d``."""
    if not since:
        return ""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "?"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(int((now - then).total_seconds()), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def empty_entry(entry: EntryStatus) -> str:
    """The label of an entry that lacks devices."""
    if count := entry.devices:
        return counted(count, "device")
    if entry.state == "absent":
        return "not on this node"
    return entry.state if entry.state in ("waiting", "moving") else "no devices"


def awaits(document: StatusDocument) -> list[str]:
    """The backends of required entries that have not listed their devices."""
    waiting = (e.backend for e in document.entries if e.state == "waiting" and not e.optional)
    return list(dict.fromkeys(waiting))


def in_use(host: HostStatus) -> str:
    """The configuration in use while the file is refused."""
    if copy := host.copy:
        return f"running on the copy of {copy.accepted_at}"
    return f"generation {host.generation} stays"


def held_by(device: DeviceStatus, known: bool, unnamed: str = UNKNOWN_POD) -> str:
    """The container that holds a device; empty if none does and the holders are ``known``.

    ``unnamed`` is shown for a container whose name is not in the document.
    """
    given = "" if tuple(device.given) in ((), (device.device,)) else f" with {few(device.given)}"
    if device.allocated:
        return f"{container(device.holder, unnamed)}{given}"
    return "" if known else "unknown"


def container(holder: HolderStatus | None, unnamed: str = UNKNOWN_POD) -> str:
    """``namespace/pod/container``."""
    if holder is None:
        return unnamed
    if holder.claim:
        return f"ResourceClaim {holder.namespace}/{holder.claim}"
    return f"{holder.namespace}/{holder.pod}/{holder.container}"


def capacity(device: DraDeviceStatus) -> str:
    """What claims use of a device that they share by amount; empty for another device."""
    return ", ".join(f"{one.name} {one.used} of {one.total}" for one in device.capacity)


def counters(device: DraDeviceStatus, pool: DraPoolStatus) -> str:
    """What is in use of the shared counters of which a device takes some, and what it takes."""
    found = {(one.set, one.name): one for one in pool.counters}
    taken = ((found.get((one.set, one.name)), one) for one in device.consumes)
    return ", ".join(
        f"{one.name} {known.used} of {known.total} (it takes {one.amount})"
        for known, one in taken
        if known is not None
    )


def reason(row: WithReason) -> str:
    """The reason, and the containers that it refers to, if the document names them."""
    return with_holders(row.reason, [container(holder) for holder in row.held_by])


def with_holders(text: str, held_by: Sequence[object]) -> str:
    """A reason, and the containers that it refers to: ``held by a pod as d0::1 (default/train/main)``."""
    return f"{text} ({few([str(one) for one in held_by])})" if held_by else text


@frozen
class Alike:
    """Tokens in one row: the first one, and the number of others that differ only in their id."""

    first: DeviceStatus
    more: int

    @property
    def name(self) -> str:
        """The id, and the number of similar tokens: ``0000:3b:00.0::0 and 99 similar``."""
        return numbered(self.first.id, self.more)


def alike(devices: Iterable[DeviceStatus]) -> list[Alike]:
    """The devices of one resource, with one row for similar tokens of a physical device.

    A held token always has a separate row, because of its holder.
    """
    return [Alike(first, others) for first, others in together(devices, _said)]


def numbered(first: str, others: int) -> str:
    """The name of the first of several rows that differ only in it, and the number of the others."""
    return f"{first} and {others} similar" if others else first


def together(rows: Iterable[T], key: Callable[[T], Hashable]) -> list[tuple[T, int]]:
    """The first of all rows with the same key, in order, and the number of the others."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return [(found[0], len(found) - 1) for found in groups.values()]


def departures(document: StatusDocument) -> list[tuple[str, DepartedStatus, int]]:
    """The devices that left recently, the newest first; those of one resource with one reason are a row."""
    found = [(one.name, left) for one in document.resources for left in one.departed]
    found.sort(key=lambda row: row[1].at, reverse=True)
    return [(*row, others) for row, others in together(found, lambda row: (row[0], reason(row[1])))]


def unlisted(document: StatusDocument) -> list[tuple[HeldStatus, int]]:
    """What containers hold that is in no list; what one container holds for one reason is a row."""
    found = sorted(document.held, key=lambda one: (one.resource, natural(one.id)))
    return together(found, lambda one: (one.resource, container(one.holder), reason(one)))


def refused(document: StatusDocument) -> list[PlanRefusal]:
    """The devices that the plan refuses, without those that are shown as moving."""
    moving = {(one.backend, one.device) for one in (document.dra.moving if document.dra else ())}
    found = [one for one in document.refusals if (one.backend, one.device) not in moving]
    return sorted(found, key=lambda one: (one.backend, natural(one.device)))


def side(serve: str) -> str:
    """The side of a resource in words."""
    return "DRA" if serve == "dra" else "device plugin"


def judged(verdict: VerdictStatus) -> str:
    """The devices that a verdict is about."""
    return few(["all" if one.device == "*" else f"{one.backend}/{one.device}" for one in verdict.devices])


def _said(device: DeviceStatus) -> Hashable:
    if device.allocated:
        return device.id
    return device.device, device.health, reason(device), device.since


def fair(rows: Sequence[T], most: int, *origins: Callable[[T], Hashable]) -> list[T]:
    """At most ``most`` of the rows, in their order, from as many origins as possible.

    ``origins`` are functions for the origin of a row. Every origin of the first kind has its first row shown
    before any has its second; among equal rows the next kind decides in the same way.
    """
    if len(rows) <= most:
        return list(rows)
    seen: Counter[Hashable] = Counter()
    turns: list[tuple[int, ...]] = []
    for row in rows:
        turn: tuple[int, ...] = ()
        for origin in origins:
            place = (turn, origin(row))
            seen[place] += 1
            turn = (*turn, seen[place])
        turns.append(turn)
    kept = sorted(range(len(rows)), key=turns.__getitem__)[:most]
    return [rows[place] for place in sorted(kept)]


WAITING = "looking for devices"
"""The reason of an entry whose backend has not answered yet."""


def unready(document: StatusDocument, names: Collection[str] = ()) -> Sequence[tuple[str, str]]:
    """The entries whose devices are not all there, or cannot be requested, each with the reason.

    Without ``names`` these are all entries that are not optional; else those with one of these names, places
    (``resources[2]``) or resources, also optional ones; ``UsageError`` if there is none. A refused file
    counts before the entries.
    """
    if lost := [name for name in names if not any(name in _names(one) for one in document.entries)]:
        known = ", ".join(dict.fromkeys(one.name for one in document.entries)) or "no entry"
        raise UsageError(f"no entry is called {lost[0]}", f"the configuration has {known}")
    found = [(one.name, reason) for one in _wanted(document, names) for reason in _wrong(one, document)]
    return [*_refused(document), *found]


def _refused(document: StatusDocument) -> Iterator[tuple[str, str]]:
    """The file, if devhost runs on a copy because it was refused at the start."""
    about = document.devhost
    if about.copy is not None:
        for complaint in about.last_reload.complaints[:1]:
            yield about.config, f"refused, a copy is in use: {complaint}"


def _names(entry: EntryStatus) -> set[str]:
    return {entry.name, entry.entry, *entry.resources}


def _wanted(document: StatusDocument, names: Collection[str]) -> Iterator[EntryStatus]:
    for entry in document.entries:
        if not _names(entry).isdisjoint(names) if names else not entry.optional:
            yield entry


def _wrong(entry: EntryStatus, document: StatusDocument) -> Iterator[str]:
    """The first thing that is wrong with an entry."""
    if entry.state == "waiting":
        yield WAITING
    elif entry.state != "served":
        yield entry.reason or "0 devices"
    elif wrong := entry.reason or entry.cordoned:
        yield wrong
    else:
        served = {one.name: one for one in document.resources}
        pools = {one.resource: one for one in (document.dra.pools if document.dra else ())}
        states = (_state(name, served.get(name), pools.get(name), document) for name in entry.resources)
        yield from [state for state in states if state][:1]


def _state(
    name: str, served: ResourceStatus | None, pool: DraPoolStatus | None, document: StatusDocument
) -> str:
    """Why pods cannot request a resource; empty if they can."""
    if served is None and pool is None:
        return f"{name} is not served yet"
    if served is not None:
        if served.state != "registered":
            return _because(f"{name} is {served.state}", served.last_error)
        if not served.streams:
            return f"the kubelet does not read the list of {name}"
        return "" if served.allocatable else _unhealthy(name, served.devices)
    assert pool is not None
    dra = document.dra
    assert dra is not None  # it has the pool
    driver = driver_of(dra, pool)
    if driver.state != "registered":
        return _because(f"the DRA driver {driver.driver} is not registered", driver.reason)
    if missing := [one.device for one in pool.devices if not one.slice]:
        return _because(f"{missing[0]} is not published", driver.error)
    healthy = any(one.health == "Healthy" for one in pool.devices)
    return "" if healthy else _unhealthy(name, pool.devices)


def _unhealthy(name: str, devices: Sequence[DeviceStatus | DraDeviceStatus]) -> str:
    reasons = [one.reason for one in devices if one.health == "Unhealthy"]
    return _because(f"no device of {name} is healthy", *reasons[:1])


def _because(what: str, reason: str = "") -> str:
    return f"{what}: {reason}" if reason else what
