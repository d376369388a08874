"""What is wrong now, with the same texts as in the log.

Status, page, metrics and probes all show this list, so a reason found in one of them can be searched for in
the others. It is made for each request, and reads each token once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar, get_args

from devhost.allocation.given import Difference
from devhost.allocation.inventory import FORGOTTEN, Member, Snapshot
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder
from devhost.discovery.observers import ObserverState
from devhost.discovery.provisioning import ProvisioningState
from devhost.discovery.scanner import BackendState
from devhost.host.host import Host
from devhost.planning.claims import users
from devhost.runtime.log import printable
from devhost.telemetry.problem_kinds import ProblemKind

from .entries import EntryState
from .shortages import refusal_reason

T = TypeVar("T")

KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)
"""Every kind, most important first."""

MORE_UNHEALTHY = "more devices are unhealthy"

FORGOTTEN_CORDON = "for more than 7 days (end it, or cordon it again)"

MOST = 100
"""Most problems that are shown."""

NAMED = 20
"""Most problems of one kind that are shown: for devices of each resource, refused devices of each backend."""


@frozen
class Problem:
    """One problem, or ``count`` problems that are not listed one by one.

    ``since`` is wall-clock seconds, ``None`` if unknown. ``held_by`` are the containers it refers to; the
    texts name none.
    """

    kind: ProblemKind
    subject: str
    reason: str
    since: float | None = None
    count: int = 1
    held_by: tuple[AnyHolder, ...] = ()


@frozen
class Problems:
    """The problems to show, most important first, and the number of each kind."""

    shown: Sequence[Problem]
    counts: Mapping[ProblemKind, int]


def problems(host: Host) -> Problems:
    """What is wrong now."""
    host.publication.now()
    devices = [
        problem for name, found in _unhealthy(host) for problem in _first(found, NAMED, name, MORE_UNHEALTHY)
    ]
    others = [
        *_config(host),
        *_kubelet(host),
        *_resources(host),
        *_dra(host),
        *_node(host),
        *_allocations(host),
        *_plugins(host),
        *_backends(host),
        *_drivers(host),
        *_entries(host),
        *_plan(host),
        *_events(host),
        *_refused(host),
        *_verdicts(host),
        *_provisioning(host),
        *_labels(host),
        *_observers(host),
        *_pods(host),
        *_tasks(host),
    ]
    counts = Counter(dict.fromkeys(KINDS, 0))
    for problem in (*others, *devices):
        counts[problem.kind] += problem.count
    # devices are left out first: there may be any number of them
    few = _first(devices, max(0, MOST - len(others) - 1), "", MORE_UNHEALTHY)
    shown = sorted((*others, *few), key=lambda problem: KINDS.index(problem.kind))
    if len(shown) > MOST:
        shown = _first(shown, MOST - 1, "", "more problems")
    return Problems([_printable(problem) for problem in shown], counts)


def _printable(problem: Problem) -> Problem:
    """As in the log: names of devices and drivers may contain any characters."""
    return replace(problem, subject=printable(problem.subject), reason=printable(problem.reason))


def _config(host: Host) -> list[Problem]:
    last, file = host.last_reload, str(host.configuration.file)
    found = [Problem("config", file, complaint, last.at) for complaint in last.complaints]
    copy = host.last_good
    outdated = [Problem("config", file, copy.outdated, copy.since)] if copy.outdated else []
    rollout = host.rollout
    waiting = [Problem("config", file, rollout.reason, rollout.since)] if rollout and rollout.reason else []
    return [*_first(found, NAMED, file, "more complaints"), *outdated, *waiting]


def _kubelet(host: Host) -> Iterator[Problem]:
    if host.kubelet.failure:
        yield Problem("kubelet", str(host.kubelet.directory), host.kubelet.failure, host.kubelet.since)
    elif host.self_check.failure:
        own = host.self_check
        yield Problem("kubelet", str(host.kubelet.directory), own.failure, own.since)


def _resources(host: Host) -> list[Problem]:
    found = []
    for name, service in _sorted(host.services):
        if failure := service.failure:
            condition = service.registration.condition
            since = condition.since if failure == condition.error else None
            found.append(Problem("resource", name, failure, since))
    return _first(found, NAMED, "", "more resources are not served")


def _dra(host: Host) -> list[Problem]:
    found = [Problem("dra", subject, reason) for subject, reason in host.dra.faults()]
    found += [
        Problem("dra", one.resource, one.stuck, one.since, held_by=one.held_by)
        for one in host.dra.moves()
        if one.stuck
    ]
    return _first(found, NAMED, "", "more problems of DRA")


def _node(host: Host) -> Iterator[Problem]:
    if (condition := host.node_condition) is not None and condition.failure:
        yield Problem("node", condition.node, condition.failure, condition.since)


def _allocations(host: Host) -> list[Problem]:
    found = [
        Problem("allocation", f"{resource} {token}", FORGOTTEN, held_by=(holder,))
        for (resource, token), holder in host.orphans.forgotten().items()
    ]
    return _first(found, NAMED, "", "more allocations are forgotten")


def _unhealthy(host: Host) -> Iterator[tuple[str, list[Problem]]]:
    """By resource: unhealthy devices, and missing devices that a container holds."""
    missing = host.orphans.missing()
    given: dict[str, dict[str, Difference]] = {}
    for (resource, key), difference in host.allocations.given.differences.items():
        given.setdefault(resource, {})[key[1]] = difference
    moving: dict[str, set[str]] = {}
    for move in host.dra.moves():
        moving.setdefault(move.resource, set()).update(move.devices)
    claimable: dict[str, dict[str, Unhealthy]] = {}
    for resource, device, why in host.dra.unhealthy():
        claimable.setdefault(resource, {})[device] = Unhealthy(why.text, held_by=why.held_by)
    for name in sorted(host.services.keys() | missing.keys() | claimable.keys() | given.keys()):
        service = host.services.get(name)
        found = unhealthy_devices(service.inventory.snapshot, moving.get(name, ())) if service else {}
        if service:  # out of service on purpose
            health = service.scanner.health
            found = {one: why for one, why in found.items() if not health.is_cordoned(one)}
        absent = {device: Unhealthy(reason) for device, reason in missing.get(name, {}).items()}
        for device, unhealthy in {**absent, **claimable.get(name, {})}.items():
            found.setdefault(device, unhealthy)
        for device, difference in given.get(name, {}).items():
            since = found[device].since if device in found else None
            found[device] = Unhealthy(difference.reason, since, difference.held_by)
        yield (
            name,
            [
                Problem("device", f"{name} {one}", why.reason, why.since, held_by=why.held_by)
                for one, why in found.items()
            ],
        )


class Unhealthy(NamedTuple):
    """Why a device is unhealthy, since when (wall-clock seconds), and the containers ``reason`` refers to."""

    reason: str
    since: float | None = None
    held_by: tuple[AnyHolder, ...] = ()


def unhealthy_devices(snapshot: Snapshot, moving: Collection[str] = ()) -> dict[str, Unhealthy]:
    """The unhealthy devices of a resource, each once.

    A token may be unhealthy although its device is healthy: a container holds the device and must not share
    it, or the device changes sides. That is intended and no problem.

    Args:
        moving: the devices that leave the resource for another side.
    """
    found: dict[str, Unhealthy] = {}
    seen: tuple[Member, ...] = ()
    for entry in snapshot.entries.values():
        if entry.members is seen:
            continue  # one of many tokens for the same devices
        seen = entry.members
        for member in seen:
            if entry.gone_at is not None:
                if member.device.id in moving:
                    continue
                why = Unhealthy(entry.health.reason or "", entry.since, entry.held_by)
                found.setdefault(member.device.id, why)
            elif not member.health.healthy:
                since = entry.since if len(seen) == 1 else None
                found.setdefault(member.device.id, Unhealthy(member.health.reason or "", since))
    return found


def _backends(host: Host) -> Iterator[Problem]:
    for name, scanner in _sorted(host.scanners):
        condition = scanner.condition
        if condition.state is BackendState.DEGRADED:
            yield Problem("backend", name, condition.reason, condition.since)


def _drivers(host: Host) -> list[Problem]:
    """Hardware without its driver."""
    found = [
        Problem("driver", f"{backend} {one.subject}", one.reason)
        for backend, one in host.shortages.missing_drivers
    ]
    return _first(found, NAMED, "", "more have no driver")


def _entries(host: Host) -> list[Problem]:
    """Entries that should have devices and have none, or another number than the file expects."""
    since = host.shortages.since()
    found = [
        Problem(
            "entry",
            outcome.entry.name,
            outcome.reason,
            since.get(outcome.entry.index),
            held_by=outcome.held_by,
        )
        for outcome in host.shortages.outcomes.all()
        if (outcome.state is EntryState.NONE and not outcome.entry.may_be_empty)
        or (outcome.state is EntryState.SERVED and outcome.reason)
    ]
    return _first(found, NAMED, "", "more entries lack devices")


def _plan(host: Host) -> list[Problem]:
    """Devices that the plan refuses to an entry because of how the file is written."""
    found = [
        Problem("plan", f"{one.backend} {one.device}", refusal_reason(one), held_by=one.held_by)
        for one in host.shortages.refusals
    ]
    return _first(found, NAMED, "", "more devices are refused")


def _plugins(host: Host) -> list[Problem]:
    found = [Problem("plugin", one.origin, one.reason) for one in host.refused_plugins]
    return _first(found, NAMED, "", "more plugins are refused")


def _events(host: Host) -> Iterator[Problem]:
    if host.monitors.uevents_failure:
        yield Problem("events", "uevents", host.monitors.uevents_failure)
    for path, reason in _sorted(host.monitors.polled):
        if reason:
            yield Problem("events", path, reason)
    for name, scanner in _sorted(host.scanners):
        if scanner.event_source_error:
            yield Problem("events", name, scanner.event_source_error)


def _refused(host: Host) -> Iterator[Problem]:
    for name, scanner in _sorted(host.scanners):
        refused = scanner.condition.refused
        found = [Problem("refused", f"{name} {one.device}", one.reason) for one in refused]
        yield from _first(found, NAMED, name, "more devices are refused")


def _verdicts(host: Host) -> list[Problem]:
    """Files that have no effect, and cordons that may have been forgotten."""
    found = [Problem("verdict", one.file, one.reason) for one in host.verdicts.flaws]
    for verdict in host.verdicts.forgotten():
        file = str(host.verdicts.directory and host.verdicts.directory / verdict.file)
        found.append(Problem("verdict", file, f"{verdict.text}, {FORGOTTEN_CORDON}", verdict.since))
    return _first(found, NAMED, "", "more problems of verdicts")


def _provisioning(host: Host) -> Iterator[Problem]:
    for name, provisioning in _sorted(host.provisioning):
        condition = provisioning.condition
        if name in host.scanners and condition.state is ProvisioningState.FAILED:
            held_by = users(condition.held, host.allocations.held())
            yield Problem("provisioning", name, condition.reason, condition.since, held_by=held_by)


def _labels(host: Host) -> Iterator[Problem]:
    for name, file in _sorted(host.node_labels.files):
        if file.reason:
            yield Problem("labels", name, file.reason)


def _observers(host: Host) -> Iterator[Problem]:
    for observer in host.observers:
        condition = observer.condition
        if condition.state is ObserverState.PAUSED:
            yield Problem("observer", observer.plugin.name, condition.reason, condition.since)


def _pods(host: Host) -> Iterator[Problem]:
    condition = host.pod_resources.condition
    if condition.silent:
        yield Problem("pods", str(host.pod_resources.source.socket), condition.reason, condition.since)
    if host.given.unrecorded:
        reason = f"what containers were given is not recorded: {host.given.unrecorded}"
        yield Problem("pods", str(host.given.file), reason)


def _tasks(host: Host) -> list[Problem]:
    found = [Problem("task", name, one.reason, one.since) for name, one in _sorted(host.tasks.failing)]
    return _first(found, NAMED, "", "more tasks fail")


def _sorted(named: Mapping[str, T]) -> list[tuple[str, T]]:
    return sorted(named.items(), key=lambda one: one[0])


def _first(found: Sequence[Problem], most: int, subject: str, more: str) -> list[Problem]:
    """The first problems, and one that counts the others."""
    kept, rest = list(found[:most]), found[most:]
    if rest:
        count = sum(problem.count for problem in rest)
        kept.append(Problem(rest[0].kind, subject, f"{count} {more}", count=count))
    return kept
