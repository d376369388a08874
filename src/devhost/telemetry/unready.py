"""Whether pods can request the devices that a configuration asks for, by the status document."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from devhost.backend.errors import UsageError

from .document import (
    DeviceStatus,
    DraDeviceStatus,
    DraPoolStatus,
    EntryStatus,
    ResourceStatus,
    StatusDocument,
    driver_of,
)

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
