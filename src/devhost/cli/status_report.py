"""The status document as text for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime

from devhost.backend.errors import counted, few
from devhost.backend.sysfs import natural
from devhost.runtime.log import printable
from devhost.telemetry.document import HostStatus, StatusDocument, drivers_of
from devhost.telemetry.tables import (
    Alike,
    age,
    alike,
    capacity,
    container,
    departures,
    empty_entry,
    fair,
    held_by,
    in_use,
    judged,
    numbered,
    reason,
    refused,
    side,
    unlisted,
)

from .options import table

SCREEN = 24
"""Rows of the screen if stdout is not a terminal. If there are more devices than that, healthy ones that no
container holds are listed only as far as they fit."""
ABSENT = 32
"""The maximum number of optional entries without devices that are named."""
MOST = 50
"""The maximum number of rows of a list without ``--all``."""

_Row = tuple[object, ...]


def show(document: StatusDocument, now: datetime, *, everything: bool = False, screen: int = SCREEN) -> str:
    """The whole document as lines.

    ``everything`` lists every device, however many there are. ``screen`` is the rows of devices up to which
    healthy ones are listed.
    """
    parts = [
        "\n".join(_header(document, now)),
        _problems(document, now),
        _resources(document, now),
        _entries(document, everything),
        _devices(document, now, everything, screen),
        *_dra(document, now, everything, screen),
        _together(document, everything, screen),
        _departed(document, now, everything),
        _held(document, everything),
        _backends(document, now),
        _provisioning(document, now),
        _observers(document, now),
        _verdicts(document, now, everything),
        _refusals(document, everything),
    ]
    return "\n\n".join(part for part in parts if part)


def _header(document: StatusDocument, now: datetime) -> Iterable[str]:
    host, kubelet = document.devhost, document.kubelet
    up = age(host.started_at, now)
    yield f"devhost {printable(host.version)}  pid {host.pid}  up {up or '?'}"
    socket = "" if kubelet.socket == "present" else "  ABSENT"
    yield f"kubelet {printable(kubelet.dir)}{socket}"
    if not kubelet.pod_resources.known:
        yield f"pods    unknown: {printable(kubelet.pod_resources.reason)}"
    yield f"config  {printable(host.config)}  generation {host.generation}  {_reload(host, now)}"


def _reload(host: HostStatus, now: datetime) -> str:
    last = host.last_reload
    if last.result == "ok":
        return f"loaded {age(last.at, now)} ago"
    return f"REJECTED {age(last.at, now)} ago, {printable(in_use(host))}"


def _problems(document: StatusDocument, now: datetime) -> str:
    """The problems, the most important first; empty if there are none.

    These lines are not cut, so that each reason can be read in full.
    """
    rows: list[_Row] = [
        (problem.kind, problem.subject, age(problem.since, now), reason(problem))
        for problem in document.problems
    ]
    return table(("PROBLEM", "WITH", "SINCE", "REASON"), rows, width=sys.maxsize) if rows else ""


def _resources(document: StatusDocument, now: datetime) -> str:
    resources = document.resources
    if not resources:
        return "No resources yet."
    headers = ("RESOURCE", "BACKEND", "HEALTHY", "STATE", "STREAMS", "REGISTRATIONS", "REGISTERED", "ERROR")
    rows = [
        (
            resource.name,
            resource.backend,
            f"{resource.allocatable}/{resource.capacity}",
            resource.state,
            resource.streams,
            resource.registrations,
            age(resource.last_registration, now),
            resource.last_error,
        )
        for resource in resources
    ]
    return _with_remarks(headers, rows)


def _entries(document: StatusDocument, everything: bool) -> str:
    """The entries that lack devices: first those without any that are required, then the optional ones."""
    empty = [
        entry for entry in document.entries if not entry.devices and (everything or entry.state != "moving")
    ]
    absent = [entry for entry in empty if entry.state == "absent" and not everything]
    rows: list[_Row] = [
        (entry.name, entry.backend, entry.entry, empty_entry(entry), reason(entry))
        for entry in empty
        if everything or entry.state != "absent"
    ]
    headers = ("NO DEVICES", "BACKEND", "ENTRY", "STATE", "REASON")
    parts = [table(headers, rows, width=sys.maxsize)] if rows else []
    if absent:
        names = ", ".join(printable(entry.name) for entry in absent[:ABSENT])
        more = f" and {len(absent) - ABSENT} more" if len(absent) > ABSENT else ""
        parts.append(f"Not on this node (optional): {names}{more}")
    for entry in document.entries:
        text = reason(entry) or (entry.remark if everything else "")
        if entry.devices and text:
            parts.append(printable(f"{entry.name} ({entry.entry}): {text}"))
    return "\n".join(parts)


def _devices(document: StatusDocument, now: datetime, everything: bool, screen: int) -> str:
    found = [
        (resource.name, sorted(resource.devices, key=lambda device: natural(device.id)))
        for resource in document.resources
    ]
    count = sum(len(devices) for _, devices in found)
    if not count:
        return ""
    known = document.kubelet.pod_resources.known
    headers = ("RESOURCE", "DEVICE", "HEALTH", "SINCE", "NUMA", "HELD BY", "REASON")
    if everything or count <= screen:
        every = [(name, Alike(device, 0)) for name, devices in found for device in devices]
        return _with_remarks(headers, [_device(name, one, now, known) for name, one in every])
    candidates = [(name, one) for name, devices in found for one in alike(devices)]
    held = [row for row in candidates if row[1].first.allocated]
    free = [row for row in candidates if not row[1].first.allocated]
    unhealthy = [row for row in free if row[1].first.health != "Healthy"]
    healthy = [row for row in free if row[1].first.health == "Healthy"]
    origins = (lambda row: (row[0], row[1].first.device), lambda row: row[0])
    some_unhealthy = fair(unhealthy, MOST, *origins)
    some_healthy = fair(healthy, max(0, screen - len(held) - len(some_unhealthy)), *origins)
    shown = {(name, one.first.id) for name, one in (*held, *some_unhealthy, *some_healthy)}
    rows = [_device(name, one, now, known) for name, one in candidates if (name, one.first.id) in shown]
    hidden = _size(unhealthy) - _size(some_unhealthy), _size(healthy) - _size(some_healthy)
    left_out = [line for line in [_left_out(hidden[0], 0, "devices")] if line]
    if hidden[1]:
        left_out.append(f"... and {counted(hidden[1], 'more healthy device')} (--all)")
    return _shortened(headers, rows, "\n".join(left_out))


def _size(rows: Iterable[tuple[str, Alike]]) -> int:
    return sum(1 + one.more for _, one in rows)


def _left_out(unhealthy: int, healthy: int, what: str) -> str:
    """A line for devices that are not in the table."""
    counts = [(unhealthy, "unhealthy"), (healthy, "healthy")]
    found = " and ".join(f"{count} {health}" for count, health in counts if count)
    return f"{found} {what} not shown (--all shows them)" if found else ""


def _shortened(headers: Sequence[str], rows: Sequence[_Row], left_out: str) -> str:
    if not rows:
        return left_out
    text = _with_remarks(headers, rows)
    return f"{text}\n{left_out}" if left_out else text


def _device(name: str, one: Alike, now: datetime, known: bool) -> _Row:
    device = one.first
    return (
        name,
        one.name,
        device.health,
        age(device.since, now),
        ",".join(map(str, device.numa_nodes)),
        held_by(device, known),
        reason(device),
    )


def _dra(document: StatusDocument, now: datetime, everything: bool, screen: int) -> Iterable[str]:
    """The DRA drivers, their devices, the claims, and the devices that change sides."""
    dra = document.dra
    if dra is None:
        return
    headers: Sequence[str] = ("DRA DRIVER", "STATE", "SLICES", "WRITES", "SYNCED", "ERROR")
    drivers: list[_Row] = [
        (
            one.driver,
            one.state,
            one.slices,
            one.writes,
            age(one.synced_at, now),
            one.error or one.reason,
        )
        for one in drivers_of(dra)
    ]
    parts = [_with_remarks(headers, drivers)]
    if dra.dropped_fields:
        parts.append(f"Fields that this API server does not keep: {printable(', '.join(dra.dropped_fields))}")
    yield "\n".join(parts)
    found = [
        (
            pool.resource,
            one.device,
            one.health,
            one.slice or "not published",
            few([f"{claim.namespace}/{claim.claim}" for claim in one.claims]),
            one.reason,
        )
        for pool in dra.pools
        for one in pool.devices
    ]
    rows: list[_Row] = [*found]
    if not everything and len(rows) > screen:
        rows = [row for row in rows if row[4] or row[2] != "Healthy"][:MOST]
    left_out = f"... and {len(found) - len(rows)} more devices (--all)" if len(rows) < len(found) else ""
    yield _shortened(("RESOURCE", "DEVICE", "HEALTH", "SLICE", "CLAIMS", "REASON"), rows, left_out)
    shared: list[_Row] = [
        (pool.resource, one.device, used)
        for pool in dra.pools
        for one in pool.devices
        if (used := capacity(one))
    ]
    yield _first(("RESOURCE", "SHARED DEVICE", "IN USE"), shared, "devices", everything)
    counted: list[_Row] = [
        (pool.resource, one.set, one.name, f"{one.used} of {one.total}")
        for pool in dra.pools
        for one in pool.counters
    ]
    yield _first(("RESOURCE", "COUNTER SET", "COUNTER", "IN USE"), counted, "counters", everything)
    claims: list[_Row] = [
        (
            f"{claim.namespace}/{claim.name}",
            few(list(dict.fromkeys(one.device for one in claim.devices))),
            few(list(dict.fromkeys(f"{one.namespace}/{one.pod}" for one in claim.containers))),
        )
        for claim in dra.claims
    ]
    yield _first(("CLAIM", "DEVICES", "PODS"), claims, "claims", everything)
    moves: list[_Row] = [
        (
            one.resource,
            len(one.devices),
            side(one.serve),
            age(one.since, now),
            few(one.devices),
            reason(one),
        )
        for one in dra.moves
    ]
    headers = ("RESOURCE", "MOVING", "LEAVES", "SINCE", "DEVICES", "REASON")
    yield _first(headers, moves, "moves", everything, width=sys.maxsize)


def _first(
    headers: Sequence[str], rows: Sequence[_Row], what: str, everything: bool, width: int | None = None
) -> str:
    """A table of the first rows, or of all, and the number of those that are not shown; empty without any."""
    if not rows:
        return ""
    shown = rows if everything else rows[:MOST]
    listed = table(headers, shown, width=width)
    left = len(rows) - len(shown)
    return f"{listed}\n{left} more {what} not shown (--all shows them)" if left else listed


def _together(document: StatusDocument, everything: bool, screen: int) -> str:
    """What each token contains in resources whose devices are handed out together."""
    found = [
        (resource.name, member)
        for resource in document.resources
        for member in sorted(resource.together, key=lambda member: natural(member.device))
    ]
    shown, left_out = found, ""
    if not everything and len(found) > screen:
        unhealthy = [(name, member) for name, member in found if member.health != "Healthy"]
        shown = fair(unhealthy, MOST, lambda row: row[0])
        hidden, healthy = len(unhealthy) - len(shown), len(found) - len(unhealthy)
        left_out = _left_out(hidden, healthy, "devices handed out together")
    rows: list[_Row] = [
        (name, member.device, member.health, ",".join(map(str, member.numa_nodes)), member.reason)
        for name, member in shown
    ]
    headers = ("RESOURCE", "TOGETHER", "HEALTH", "NUMA", "REASON")
    return _shortened(headers, rows, left_out)


def _departed(document: StatusDocument, now: datetime, everything: bool) -> str:
    """The devices that were recently removed from a list."""
    rows: list[_Row] = [
        (name, numbered(left.device, others), age(left.at, now), reason(left))
        for name, left, others in departures(document)
    ]
    headers = ("RESOURCE", "LEFT RECENTLY", "AGO", "REASON")
    return _first(headers, rows, "devices that left recently", everything)


def _held(document: StatusDocument, everything: bool) -> str:
    """What containers hold that is in no list."""
    rows: list[_Row] = [
        (
            held.resource,
            numbered(held.id, others),
            container(held.holder),
            few(held.devices),
            reason(held),
        )
        for held, others in unlisted(document)
    ]
    headers = ("RESOURCE", "NOT LISTED", "HELD BY", "DEVICES", "REASON")
    return _first(headers, rows, "held devices", everything)


def _backends(document: StatusDocument, now: datetime) -> str:
    if not document.backends:
        return ""
    headers = ("BACKEND", "STATE", "SINCE", "DEVICES", "DISCOVERED", "TOOK", "REASON")
    rows: list[_Row] = []
    for backend in document.backends:
        seconds = backend.last_discovery_seconds
        rows.append(
            (
                backend.name,
                backend.state,
                age(backend.since, now),
                backend.devices,
                age(backend.last_discovery, now),
                "" if seconds is None else f"{seconds * 1000:.1f}ms",
                backend.reason,
            )
        )
    return _with_remarks(headers, rows)


def _provisioning(document: StatusDocument, now: datetime) -> str:
    """What does not match the options yet, and why; empty if everything does."""
    rows: list[_Row] = [
        (backend.name, found.state, age(found.since, now), reason(found))
        for backend in document.backends
        if (found := backend.provisioning) and found.state != "ok"
    ]
    return table(("BACKEND", "PROVISIONING", "SINCE", "REASON"), rows) if rows else ""


def _observers(document: StatusDocument, now: datetime) -> str:
    rows: list[_Row] = [
        (
            observer.name,
            observer.state,
            age(observer.since, now),
            observer.calls,
            observer.failures,
            observer.waiting,
            observer.dropped,
            observer.reason,
        )
        for observer in document.observers
    ]
    headers = ("OBSERVER", "STATE", "SINCE", "CALLS", "FAILED", "WAITING", "DROPPED", "REASON")
    return _with_remarks(headers, rows) if rows else ""


def _verdicts(document: StatusDocument, now: datetime, everything: bool) -> str:
    """The verdicts of people and other programs on devices."""
    rows: list[_Row] = [
        (
            verdict.kind,
            verdict.by,
            age(verdict.since, now),
            verdict.until or "",
            judged(verdict),
            verdict.reason,
        )
        for verdict in document.verdicts
    ]
    headers = ("VERDICT", "BY", "SINCE", "ENDS", "DEVICES", "REASON")
    return _first(headers, rows, "verdicts", everything)


def _refusals(document: StatusDocument, everything: bool) -> str:
    found = [
        (backend.name, flawed.device, flawed.reason)
        for backend in document.backends
        for flawed in backend.refused_devices
    ]
    found += [(one.backend, one.device, reason(one)) for one in refused(document)]
    rows: list[_Row] = [*sorted(found, key=lambda row: (row[0], natural(row[1])))]
    return _first(("BACKEND", "REFUSED DEVICE", "REASON"), rows, "refused devices", everything)


def _with_remarks(headers: Sequence[str], rows: Sequence[_Row]) -> str:
    """A table without its last column if that is empty in every row."""
    if any(row[-1] for row in rows):
        return table(headers, rows)
    return table(headers[:-1], [row[:-1] for row in rows])
