"""The gauges of a scrape, as functions of what is true now. Names and labels are those of the table.

Each is complete: a series exists exactly as long as what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from devhost.discovery.manager import ProvisioningState
from devhost.discovery.observers import ObserverState
from devhost.discovery.scanner import BackendState
from devhost.planning.plan import RefusalKind
from devhost.runtime.log import printable
from devhost.telemetry.exposition import Gauge, Sample

from .entries import place
from .now import Now, ResourceNow
from .problems import problems
from .shortages import holders

MOST_REASONS = 20
"""The maximum number of reasons for unhealthy devices of a resource with separate series."""

OTHER_REASONS = "other reasons"
"""The label value for all other reasons."""

MOST_VERDICTS = 20
"""The maximum number of pairs of author and reason of verdicts with separate series."""

OTHER_AUTHORS = "others"
"""The label value for all other authors."""


def gauges(now: Now, *, pods: bool) -> Iterator[Gauge]:
    """Every gauge but those of the use of devices; ``pods`` is whether one names pods."""
    resources, backends, reload = now.resources.values(), now.backends.items(), now.last_reload
    yield "devices", (sample for one in resources for sample in _devices(one))
    yield "streams", (((one.name,), one.streams) for one in resources)
    yield (
        "backend_degraded",
        (((name,), one.condition.state is BackendState.DEGRADED) for name, one in backends),
    )
    yield (
        "provisioning",
        (
            ((name, state), condition.state is state)
            for name, condition in now.provisioning.items()
            if name in now.backends
            for state in ProvisioningState
        ),
    )
    yield "labels", (((name,), file.count if file else 0) for name, file in now.labels.items())
    yield (
        "observer_paused",
        (((one.plugin.name,), one.condition.state is ObserverState.PAUSED) for one in now.observers),
    )
    if now.dra:
        yield from now.dra.gauges()
    refusals = Counter(one.kind for one in now.plan.refusals)
    yield "plan_refusals", (((kind,), refusals[kind]) for kind in RefusalKind)
    yield "config_generation", [((), now.generation)]
    yield "config_last_reload_success", [((), not reload.complaints)]
    yield "config_last_reload_timestamp_seconds", [((), reload.at)]
    sha256 = now.configuration.sha256
    yield "config_info", [((sha256,), 1)] if sha256 else ()
    found = problems(now)
    yield "problems", (((kind,), count) for kind, count in found.counts.items())
    # a series must not occur twice
    infos = dict.fromkeys((one.kind, one.subject, one.reason) for one in found.shown)
    yield "problem_info", ((info, 1) for info in infos)
    verdicts = _verdicts(now)
    yield "verdicts", ((labels, len(since)) for labels, since in verdicts.items())
    yield "verdicts_oldest_timestamp_seconds", ((labels, min(since)) for labels, since in verdicts.items())
    yield "devices_left", _left(now).items()
    count = now.shortages.outcomes.count
    yield (
        "entry_devices",
        (
            ((place(one), one.name, one.backend, "true" if one.may_be_empty else "false"), count(one))
            for one in now.settings.resources
        ),
    )
    if pods:
        yield "device_held", _held(now)


def _devices(one: ResourceNow) -> Iterator[Sample]:
    """How many tokens of a resource are healthy, and how many are not; only frequent reasons are named."""
    tally, name, backend = one.snapshot.tally, one.name, one.entry.backend
    yield (name, backend, "Healthy", ""), tally.tokens - sum(tally.unhealthy.values())
    yield (name, backend, "Unhealthy", ""), tally.unhealthy.get("", 0)
    reasons = [(printable(reason), tokens) for reason, tokens in tally.unhealthy.items() if reason]
    named: dict[str, int] = {}
    for reason, tokens in sorted(reasons, key=lambda each: (-each[1], each[0])):
        label = reason if reason in named or len(named) < MOST_REASONS else OTHER_REASONS
        named[label] = named.get(label, 0) + tokens
    yield from (((name, backend, "Unhealthy", reason), tokens) for reason, tokens in named.items())


def _verdicts(now: Now) -> Mapping[tuple[str, str, str], Sequence[float]]:
    """When verdicts were written, by kind, author and reason; those of less frequent ones together."""
    given = [(one.kind, one.by, printable(one.reason), one.since) for one in now.verdicts.in_force]
    frequent = {who for who, _ in Counter((by, why) for _, by, why, _ in given).most_common(MOST_VERDICTS)}
    found: dict[tuple[str, str, str], list[float]] = {}
    for kind, by, why, since in given:
        who = (by, why) if (by, why) in frequent else (OTHER_AUTHORS, OTHER_REASONS)
        found.setdefault((kind, *who), []).append(since)
    return found


def _left(now: Now) -> Counter[tuple[str, str]]:
    """How many devices have left each resource recently, by reason."""
    return Counter(
        (name, printable(one.reason.text))
        for name, removals in now.memory.removals.items()
        for one in removals.recent(now.at)
    )


def _held(now: Now) -> Iterator[Sample]:
    for resource, device, one in holders(now):
        yield (resource, device, *((one.namespace, one.pod, one.container) if one else ("", "", ""))), 1
