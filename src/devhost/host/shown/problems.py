"""What is wrong now, with the same texts as in the log, and whether the node is ready.

Status, page, metrics, systemd and probes all show this list, so a reason found in one of them can be searched
for in the others. It is made for each request, and reads each token once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, get_args

from devhost.allocation.given import Difference
from devhost.allocation.inventory import FORGOTTEN, Member, Snapshot
from devhost.backend.errors import MAX_MESSAGE, ConfigError, DevhostError, cut
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder
from devhost.backend.threads import elsewhere
from devhost.config.loader import Loaded
from devhost.discovery.manager import ProvisioningState
from devhost.discovery.observers import ObserverState
from devhost.discovery.scanner import BackendState, Scanner
from devhost.planning.claims import Reason, users
from devhost.planning.settings import Settings
from devhost.runtime.log import printable
from devhost.runtime.systemd import line
from devhost.telemetry.metrics import ProblemKind

from .entries import EntryOutcomes, EntryState
from .now import Now
from .shortages import forgotten, missing, refusal_reason

if TYPE_CHECKING:
    from devhost.config.rollout import Found, Rollout


T = TypeVar("T")

KINDS: tuple[ProblemKind, ...] = get_args(ProblemKind)
"""Every kind, most important first."""

ROOT = "--root"
"""The subject of the problem that there is no host below the directory that is used as ``/``."""

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


def problems(now: Now) -> Problems:
    """What is wrong now."""
    devices = [
        problem for name, found in _unhealthy(now) for problem in _first(found, NAMED, name, MORE_UNHEALTHY)
    ]
    others: list[Problem] = []
    for of, more in _OTHERS:
        found = [*of(now)]
        others += _first(found, NAMED, "", more) if more else found
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
    """As in the log: names of devices and drivers may contain any characters, and reasons quote others."""
    subject, reason = printable(problem.subject), cut(printable(problem.reason), MAX_MESSAGE)
    return replace(problem, subject=subject, reason=reason)


def _config(now: Now) -> list[Problem]:
    last, file = now.last_reload, str(now.configuration.file)
    found = [Problem("config", file, complaint, last.at) for complaint in last.complaints]
    others = [Problem("config", file, *one) for one in (now.last_good, now.rollout) if one]
    return [*_first(found, NAMED, file, "more complaints"), *others]


def _kubelet(now: Now) -> Iterator[Problem]:
    if wrong := now.kubelet.failure or now.self_check:
        yield Problem("kubelet", str(now.kubelet.directory), *wrong)


def _resources(now: Now) -> Iterator[Problem]:
    for name, resource in _sorted(now.resources):
        if failure := resource.failure:
            since = resource.condition.since if failure == resource.condition.error else None
            yield Problem("resource", name, failure, since)


def _dra(now: Now) -> Iterator[Problem]:
    for subject, reason in now.dra.faults() if now.dra else ():
        yield Problem("dra", subject, reason)
    for one in now.moves:
        if one.stuck:
            yield Problem("dra", one.resource, one.stuck, one.since, held_by=one.held_by)


def _node(now: Now) -> Iterator[Problem]:
    if now.node is not None:
        name, wrong = now.node
        yield Problem("node", name, *wrong)


def _allocations(now: Now) -> Iterator[Problem]:
    for (resource, token), holder in forgotten(now).items():
        yield Problem("allocation", f"{resource} {token}", FORGOTTEN, held_by=(holder,))


def _unhealthy(now: Now) -> Iterator[tuple[str, list[Problem]]]:
    """By resource: unhealthy devices, and missing devices that a container holds."""
    absent = missing(now)
    given: dict[str, dict[str, Difference]] = {}
    for (resource, key), difference in now.differences.items():
        given.setdefault(resource, {})[key[1]] = difference
    moving: dict[str, set[str]] = {}
    for move in now.moves:
        moving.setdefault(move.resource, set()).update(move.devices)
    claimable: dict[str, dict[str, Why]] = {}
    for resource, device, reason in now.dra.unhealthy() if now.dra else ():
        claimable.setdefault(resource, {})[device] = reason, None
    for name in sorted(now.resources.keys() | absent.keys() | claimable.keys() | given.keys()):
        served = now.resources.get(name)
        found = unhealthy_devices(served.snapshot, moving.get(name, ())) if served else {}
        if served:  # out of service on purpose
            backend = now.backends[served.entry.backend]
            found = {one: why for one, why in found.items() if not backend.is_cordoned(one)}
        gone = {device: (Reason(text), None) for device, text in absent.get(name, {}).items()}
        for one, why in {**gone, **claimable.get(name, {})}.items():
            found.setdefault(one, why)
        for device, difference in given.get(name, {}).items():
            since = found[device][1] if device in found else None
            found[device] = Reason(difference.reason, difference.held_by), since
        listed = ((f"{name} {device}", *why) for device, why in found.items())
        yield name, [Problem("device", one, why.text, at, held_by=why.held_by) for one, why, at in listed]


Why = tuple[Reason, float | None]
"""Why a device is unhealthy, and since when, in wall-clock seconds."""


def unhealthy_devices(snapshot: Snapshot, moving: Collection[str] = ()) -> dict[str, Why]:
    """The unhealthy devices of a resource, each once, without those that are ``moving`` to another side.

    A token may be unhealthy although its device is healthy: a container holds the device and must not share
    it, or the device changes sides. That is intended and no problem.
    """
    found: dict[str, Why] = {}
    seen: tuple[Member, ...] = ()
    for entry in snapshot.entries.values():
        if entry.members is seen:
            continue  # one of many tokens for the same devices
        seen = entry.members
        for member in seen:
            if entry.gone_at is not None:
                if member.device.id in moving:
                    continue
                why = Reason(entry.health.reason or "", entry.held_by)
                found.setdefault(member.device.id, (why, entry.since))
            elif not member.health.healthy:
                since = entry.since if len(seen) == 1 else None
                found.setdefault(member.device.id, (Reason(member.health.reason or ""), since))
    return found


def _backends(now: Now) -> Iterator[Problem]:
    for name, backend in _sorted(now.backends):
        condition = backend.condition
        if condition.state is BackendState.DEGRADED:
            yield Problem("backend", name, condition.reason, condition.since)


def _drivers(now: Now) -> Iterator[Problem]:
    """Hardware without its driver."""
    for backend, one in now.shortages.missing_drivers:
        yield Problem("driver", f"{backend} {one.subject}", one.reason)


def _entries(now: Now) -> Iterator[Problem]:
    """Entries that should have devices and have none, or another number than the file expects."""
    since = now.shortages.since
    for one in now.shortages.outcomes.all():
        lacks_all = one.state is EntryState.NONE and not one.entry.may_be_empty
        if lacks_all or (one.state is EntryState.SERVED and one.reason):
            at = since.get(one.entry.index)
            yield Problem("entry", one.entry.name, one.reason, at, held_by=one.held_by)


def _plan(now: Now) -> Iterator[Problem]:
    """Devices that the plan refuses to an entry because of how the file is written."""
    for one in now.shortages.refusals:
        yield Problem("plan", f"{one.backend} {one.device}", refusal_reason(one), held_by=one.held_by)


def _plugins(now: Now) -> Iterator[Problem]:
    for one in now.refused_plugins:
        yield Problem("plugin", one.origin, one.reason)


def _events(now: Now) -> Iterator[Problem]:
    for name, reason in now.event_sources.items():
        yield Problem("events", name, reason)
    for name, backend in _sorted(now.backends):
        if backend.event_source_error:
            yield Problem("events", name, backend.event_source_error)


def _refused(now: Now) -> Iterator[Problem]:
    for name, backend in _sorted(now.backends):
        refused = backend.condition.refused
        found = [Problem("refused", f"{name} {one.device}", one.reason) for one in refused]
        yield from _first(found, NAMED, name, "more devices are refused")


def _verdicts(now: Now) -> Iterator[Problem]:
    """Files that have no effect, and cordons that may have been forgotten."""
    for one in now.verdicts.flaws:
        yield Problem("verdict", one.file, one.reason)
    for verdict in now.verdicts.forgotten:
        file = str(now.verdicts.directory and now.verdicts.directory / verdict.file)
        yield Problem("verdict", file, f"{verdict.text}, {FORGOTTEN_CORDON}", verdict.since)


def _provisioning(now: Now) -> Iterator[Problem]:
    for name, condition in _sorted(now.provisioning):
        if name in now.backends and condition.state is ProvisioningState.FAILED:
            held_by = users(condition.held, now.held)
            yield Problem("provisioning", name, condition.reason, condition.since, held_by=held_by)


def _labels(now: Now) -> Iterator[Problem]:
    for name, file in _sorted(now.labels):
        if file and file.reason:
            yield Problem("labels", name, file.reason)


def _observers(now: Now) -> Iterator[Problem]:
    for observer in now.observers:
        condition = observer.condition
        if condition.reason:
            since = condition.since if condition.state is ObserverState.PAUSED else None
            yield Problem("observer", observer.plugin.name, condition.reason, since)


def _pods(now: Now) -> Iterator[Problem]:
    condition = now.pod_resources.condition
    if condition.silent:
        yield Problem("pods", str(now.pod_resources.socket), condition.reason, condition.since)


def _faults(now: Now) -> Iterator[Problem]:
    for kind, subject, one in now.faults:
        yield Problem(kind, subject, *one)


def _tasks(now: Now) -> Iterator[Problem]:
    for name, one in _sorted(now.failing):
        yield Problem("task", name, one.reason, one.since)


_OTHERS: Sequence[tuple[Callable[[Now], Iterable[Problem]], str]] = (
    (_config, ""),
    (_kubelet, ""),
    (_resources, "more resources are not served"),
    (_dra, "more problems of DRA"),
    (_node, ""),
    (_allocations, "more allocations are forgotten"),
    (_plugins, "more plugins are refused"),
    (_backends, ""),
    (_drivers, "more have no driver"),
    (_entries, "more entries lack devices"),
    (_plan, "more devices are refused"),
    (_events, ""),
    (_refused, ""),
    (_verdicts, "more problems of verdicts"),
    (_provisioning, ""),
    (_labels, ""),
    (_observers, ""),
    (_pods, ""),
    (_faults, ""),
    (_tasks, "more tasks fail"),
)
"""What is wrong besides devices, and the text for those beyond :data:`NAMED`; all are shown without one."""


def _sorted(named: Mapping[str, T]) -> list[tuple[str, T]]:
    return sorted(named.items(), key=lambda one: one[0])


def _first(found: Sequence[Problem], most: int, subject: str, more: str) -> list[Problem]:
    """The first problems, and one that counts the others."""
    kept, rest = list(found[:most]), found[most:]
    if rest:
        count = sum(problem.count for problem in rest)
        kept.append(Problem(rest[0].kind, subject, f"{count} {more}", count=count))
    return kept


def status_line(now: Now) -> str:
    """The state of the host in one line, for ``systemctl status``."""
    found = problems(now)
    first = next((f"{problem.subject}: {problem.reason}" for problem in found.shown), "")
    waits = now.shortages.outcomes.waits
    waiting = (one.backend for one in now.settings.resources if not one.may_be_empty and waits(one))
    return line(len(now.resources), sum(found.counts.values()), first, sorted(set(waiting)))


def readiness(now: Now) -> tuple[bool, str]:
    """Whether every wanted resource has an open list stream or a published pool; if not, which, and why.

    Until a backend has listed its devices, the wanted resources are unknown. A host that runs on a copy,
    because the file was refused at the start, is not ready either, so that a rollout stops; nor is one whose
    new file left entries without devices.
    """
    if not now.planned:
        return False, "looking for devices"
    wanted = now.settings.backend_names()
    unknown = sorted(
        f"{name} ({backend.condition.reason or backend.condition.state})"
        for name, backend in now.backends.items()
        if name in wanted and not backend.listed
    )
    waiting = [f"{name} ({one.missing})" for name, one in sorted(now.resources.items()) if one.missing]
    drivers = [f"{name} ({reason})" for name, reason in now.dra.missing()] if now.dra else []
    failing = [f"{name} ({one.reason})" for name, one in sorted(now.failing.items())]
    found = (
        ("no devices listed yet", unknown),
        ("no list stream yet", waiting),
        ("DRA driver", drivers),
        ("failing tasks", failing),
    )
    reasons = [f"{what}: {', '.join(names)}" for what, names in found if names]
    reasons += [one.reason for _, subject, one in now.faults if subject == ROOT]
    if now.rollout:
        reasons.insert(0, now.rollout.reason)
    if now.configuration.copied is not None:
        copy = f"running on the copy of {now.configuration.copied.at}"
        reasons.insert(0, f"configuration refused, {copy}: {_first_of(now.last_reload.complaints)}")
    return not reasons, "; ".join(reasons)


class Look(Protocol):
    """What was found by one look at the devices, and the plan for it."""

    @property
    def scanners(self) -> Mapping[str, Scanner]:
        """The backends, by name."""
        ...

    def entries(self) -> EntryOutcomes:
        """What each entry would serve."""
        ...


async def rehearsed(
    load: Callable[[], Loaded],
    look: Callable[[Loaded, Path], Awaitable[Look]],
    root: Path,
    rollout: Rollout | None,
) -> str:
    """Why a devhost that waits for its turn would not be ready; empty if it would. It changes nothing.

    ``load`` reads the configuration, or raises ``ConfigError``; ``look`` looks at the devices below ``root``
    once.
    """
    try:
        loaded = await elsewhere(load)
    except ConfigError as error:
        return f"configuration refused: {_first_of(error.diagnostics)}"
    except DevhostError as error:
        return str(error)
    looked = await look(loaded, root)
    failed = [f"{name} ({one.condition.reason})" for name, one in looked.scanners.items() if not one.listed]
    if failed:
        return f"no devices listed: {', '.join(failed)}"
    if rollout is None:
        return ""
    await rollout.read()
    rollout.follow(loaded.digest, found_by(loaded.settings, looked.entries()))
    return rollout.reason


def found_by(settings: Settings, outcomes: EntryOutcomes) -> Sequence[Found]:
    """What each entry has found, for a rollout."""
    from devhost.config.rollout import Found

    return [
        Found(identity, outcomes.count(entry), not outcomes.waits(entry))
        for identity, entry in settings.identified()
    ]


def _first_of(complaints: Sequence[object]) -> str:
    first, *more = complaints
    rest = f" and {len(more)} more" if more else ""
    return f"{first}{rest}"
