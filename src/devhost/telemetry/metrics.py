"""The metrics of devhost: one table.

A counter or gauge with no label but its owner's (a resource, a backend or an observer) exists at zero as
soon as the owner is known, so that ``rate()`` and ``absent()`` work from the first scrape. Every other series
exists from its first value: most reasons never occur, and a histogram has many lines. All series end with
their owner. An event of an unknown owner is dropped, so that a late event cannot bring them back. Durations
are in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import partial
from typing import Literal, get_args

from devhost import __version__
from devhost.backend import Usage
from devhost.backend.frozen import frozen
from devhost.runtime.log import dropped, printable

from .exposition import Distribution, Family, Gathered, Kind, Metric, Number, process, text
from .problem_kinds import ProblemKind


class CallFailure(StrEnum):
    """Why an Allocate or PreStartContainer call failed."""

    INVALID = "invalid"
    """The call was invalid: no ids, unknown ids, or one id twice."""
    UNHEALTHY = "unhealthy"
    """A device is known to be unusable."""
    MISSING = "missing"
    """A device node or mount that the container needs is missing."""
    REFUSED = "refused"
    """The backend refused to hand out the device now."""
    TIMEOUT = "timeout"
    """The backend did not answer in time."""
    ERROR = "error"
    """The backend failed or returned an invalid answer."""


class BackendFailure(StrEnum):
    """How a call of a backend failed."""

    ERROR = "error"
    """It raised."""
    TIMEOUT = "timeout"
    """It did not answer within its deadline."""
    INVALID = "invalid"
    """It returned an unusable answer."""


class ClaimCall(StrEnum):
    """The outcome of preparing or releasing one ResourceClaim."""

    DONE = "done"
    """The kubelet got what it asked for."""
    FAILED = "failed"
    """The kubelet got an error, and will ask again."""


class ObserverFailure(StrEnum):
    """How a call of an observer failed."""

    ERROR = "error"
    """It raised."""
    TIMEOUT = "timeout"
    """It did not return within its deadline."""


class Guess(StrEnum):
    """The outcome of a guess that two requests belong to one container."""

    RIGHT = "right"
    """One container has the devices of both."""
    WRONG = "wrong"
    """Two containers have them."""
    UNKNOWN = "unknown"
    """The kubelet did not report in time which container has them."""


Held = tuple[str, str, tuple[str, str, str] | None]
"""A resource, one of its devices, and the container that holds it: namespace, pod and name, if known."""
Wrong = tuple[str, str, str]
"""A problem: its kind, its subject and its reason."""
Left = tuple[str, str]
"""The resource that a device left, and the reason."""
Given = tuple[str, str, str, float]
"""A verdict: its kind, its author, its reason, and when it was written, in Unix time."""
Used = tuple[str, str, Usage]
"""A resource, one of its devices, and how much of it is in use."""
Entry = tuple[str, str, str, bool, int]
"""An entry's place in the file, name and backend, whether it is optional, and its number of devices."""

Shared = tuple[str, str, str, int, int]
"""A resource, one of its devices, a capacity that claims share by amount, how much there is, and is used."""


@frozen
class Scraped:
    """What is collected for each scrape. ``counts`` has every problem, ``wrong`` only those that are named.

    ``config`` is the SHA-256 of the file in force; empty for none. Without ``held``, no metric names pods.
    """

    counts: Mapping[ProblemKind, int] = field(default_factory=dict)
    wrong: Iterable[Wrong] = ()
    left: Iterable[Left] = ()
    verdicts: Iterable[Given] = ()
    entries: Iterable[Entry] = ()
    config: str = ""
    shared: Iterable[Shared] = ()
    held: Iterable[Held] | None = None


Owner = Literal["resource", "prepared", "backend", "labels", "observer", "driver"]
"""What series belong to: its name is their first label, and they end with it. ``prepared`` is a resource for
which the kubelet calls PreStartContainer, ``labels`` a backend whose node labels are enabled, ``driver`` the
DRA driver."""


_OWN_LABEL: Mapping[Owner, str] = {
    "resource": "resource",
    "prepared": "resource",
    "backend": "backend",
    "labels": "backend",
    "observer": "observer",
    "driver": "driver",
}


@frozen
class Declaration:
    """One metric; its ``name`` is without ``devhost_``.

    ``owner`` is what its series belong to; ``None`` for the host itself. ``more`` are the labels in addition
    to that of the owner, ``buckets`` the upper ends of a histogram's buckets. ``scraped`` is whether its
    samples are made at each scrape instead of counted.
    """

    kind: Kind
    name: str
    help: str
    owner: Owner | None = None
    more: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    scraped: bool = False

    @property
    def labels(self) -> tuple[str, ...]:
        return (_OWN_LABEL[self.owner], *self.more) if self.owner else self.more

    @property
    def starts(self) -> bool:
        """Whether its series of an owner exists, at zero, as soon as the owner is added."""
        return not (self.more or self.buckets or self.scraped)


_CALL = (0.002, 0.005, 0.05, 0.5, 5.0)
"""A normal call takes 1 ms to 5 ms; each more bucket is a series for each resource."""
_PREPARE = (0.01, 0.1, 1.0, 10.0, 30.0)
"""A check takes milliseconds, programming a card longer; the kubelet gives up after 30 s."""
_EVENT = (0.005, 0.02, 0.2, 2.0, 20.0)
"""A quiet and a busy node, lists that wait for their turn, and what there is an alert for."""
_FINE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""For what there are few of: backends and drivers."""

TABLE = (
    Declaration(
        "gauge",
        "devices",
        "Devices offered to the kubelet, each replica counted.",
        "resource",
        more=("backend", "health", "reason"),
    ),
    Declaration("counter", "allocations_total", "Allocate calls answered with devices.", "resource"),
    Declaration(
        "counter",
        "allocation_failures_total",
        "Allocate calls answered with an error.",
        "resource",
        more=("reason",),
    ),
    Declaration(
        "histogram",
        "allocate_seconds",
        "Time to answer Allocate, failures included.",
        "resource",
        buckets=_CALL,
    ),
    Declaration(
        "histogram",
        "prepare_seconds",
        "Time to answer PreStartContainer, failures included.",
        "prepared",
        buckets=_PREPARE,
    ),
    Declaration(
        "counter",
        "prepare_failures_total",
        "PreStartContainer calls answered with an error.",
        "prepared",
        more=("reason",),
    ),
    Declaration("counter", "registrations_total", "Registrations accepted by the kubelet.", "resource"),
    Declaration(
        "counter", "registration_failures_total", "Registrations that failed or were refused.", "resource"
    ),
    Declaration("gauge", "streams", "Open ListAndWatch streams; normally 1.", "resource"),
    Declaration("counter", "lists_total", "Device lists sent to the kubelet.", "resource"),
    Declaration(
        "histogram",
        "event_to_list_seconds",
        "Time from an event to the resulting device list.",
        "resource",
        buckets=_EVENT,
    ),
    Declaration(
        "histogram", "discovery_seconds", "Time of one successful discovery.", "backend", buckets=_FINE
    ),
    Declaration(
        "histogram",
        "prefer_seconds",
        "Time to answer GetPreferredAllocation, in all resources of the backend.",
        "backend",
        buckets=_FINE,
    ),
    Declaration(
        "gauge", "backend_degraded", "1 while the backend fails and its last good list is used.", "backend"
    ),
    Declaration(
        "counter",
        "backend_failures_total",
        "Calls of the backend that failed.",
        "backend",
        more=("kind",),
    ),
    Declaration(
        "gauge",
        "provisioning",
        "1 for the state of the backend's hardware provisioning, 0 for the other states.",
        "backend",
        more=("state",),
    ),
    Declaration("gauge", "labels", "Node labels in the backend's file.", "labels"),
    Declaration(
        "counter",
        "label_files_total",
        "Times the backend's node label file was written or removed.",
        "labels",
    ),
    Declaration(
        "counter", "label_failures_total", "Failures to get the backend's labels or to write them.", "labels"
    ),
    Declaration(
        "gauge",
        "observer_paused",
        "1 while the observer is paused because it failed or hung.",
        "observer",
    ),
    Declaration(
        "counter",
        "observer_failures_total",
        "Calls of the observer that failed.",
        "observer",
        more=("kind",),
    ),
    Declaration(
        "counter",
        "observer_dropped_total",
        "Events dropped because the observer was too slow or paused.",
        "observer",
    ),
    Declaration("gauge", "dra_slices", "ResourceSlices at the API server.", "driver"),
    Declaration(
        "gauge",
        "dra_devices",
        "Devices offered through DRA.",
        "driver",
        more=("resource", "health"),
    ),
    Declaration(
        "gauge",
        "dra_moving_devices",
        "Devices that change between device plugin and DRA, by the resource that they leave.",
        "driver",
        more=("resource",),
    ),
    Declaration("counter", "dra_slice_writes_total", "ResourceSlices created, changed or deleted.", "driver"),
    Declaration(
        "gauge", "dra_dropped_fields", "Fields of slices that the API server does not keep.", "driver"
    ),
    Declaration(
        "gauge",
        "dra_synced_timestamp_seconds",
        "When the ResourceSlices last agreed with the devices, in Unix time; 0 before.",
        "driver",
    ),
    Declaration(
        "counter",
        "dra_prepares_total",
        "ResourceClaims that the kubelet had prepared.",
        "driver",
        more=("result",),
    ),
    Declaration(
        "counter",
        "dra_unprepares_total",
        "ResourceClaims that the kubelet had released.",
        "driver",
        more=("result",),
    ),
    Declaration(
        "histogram",
        "dra_prepare_seconds",
        "Time to prepare the claims of one call, failures included.",
        "driver",
        buckets=_FINE,
    ),
    Declaration(
        "histogram",
        "dra_unprepare_seconds",
        "Time to release the claims of one call, failures included.",
        "driver",
        buckets=_FINE,
    ),
    Declaration(
        "gauge",
        "dra_calls_in_flight",
        "Calls of the kubelet that are not answered yet.",
        "driver",
        more=("call",),
    ),
    Declaration("gauge", "dra_prepared_claims", "ResourceClaims that are prepared.", "driver"),
    Declaration("gauge", "dra_prepared_devices", "Devices of these claims.", "driver"),
    Declaration(
        "counter",
        "dra_api_requests_total",
        "Requests to the API server, by the HTTP code of the answer.",
        "driver",
        more=("method", "code"),
    ),
    Declaration(
        "gauge",
        "dra_watch_timestamp_seconds",
        "When the API server last sent something over the watch of slices, in Unix time; 0 before.",
        "driver",
    ),
    Declaration("gauge", "plan_refusals", "Devices that the current plan refuses.", more=("reason",)),
    Declaration(
        "counter",
        "affinity_guesses_total",
        "Pairs of requests assumed to belong to one container, by outcome.",
        more=("result",),
    ),
    Declaration(
        "counter",
        "preferences_unproven_total",
        "GetPreferredAllocation calls answered with a choice that is not proven best.",
    ),
    Declaration(
        "counter", "log_lines_dropped_total", "Log lines that were dropped because nothing read them."
    ),
    Declaration("gauge", "config_generation", "Configurations that took effect since start."),
    Declaration(
        "gauge",
        "config_last_reload_success",
        "1 if the last configuration read took effect, 0 if it was refused.",
    ),
    Declaration(
        "gauge", "config_last_reload_timestamp_seconds", "When a configuration was last read, in Unix time."
    ),
    Declaration(
        "gauge",
        "config_info",
        "1 for the file in force; none if it is not a regular file, or if a copy is used.",
        more=("sha256",),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "build_info",
        "Always 1; the label names the version.",
        more=("version",),
    ),
    Declaration("gauge", "problems", "Current problems.", more=("kind",), scraped=True),
    Declaration(
        "gauge",
        "problem_info",
        "1 for each current problem, at most 100.",
        more=("kind", "subject", "reason"),
        scraped=True,
    ),
    Declaration("gauge", "verdicts", "Verdicts in force.", more=("kind", "by", "reason"), scraped=True),
    Declaration(
        "gauge",
        "verdicts_oldest_timestamp_seconds",
        "When the oldest of them was written, in Unix time.",
        more=("kind", "by", "reason"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "devices_left",
        "Devices that left the list within the last hour, at most 20 of a resource.",
        more=("resource", "reason"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "entry_devices",
        "Devices that an entry of the configuration serves, in all its resources.",
        more=("entry", "resource", "backend", "optional"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_capacity",
        "What a device has of a capacity that claims share by amount, in ones (bytes).",
        more=("resource", "device", "capacity"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_capacity_used",
        "What claims use of it.",
        more=("resource", "device", "capacity"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_held",
        "1 for each device and container that holds it; the container's labels are empty if unknown.",
        more=("resource", "device", "namespace", "pod", "container"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_use_ratio",
        "The share of time, from 0 to 1, in which a device worked recently, as its driver measures it.",
        more=("resource", "device"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_memory_used_bytes",
        "Memory of a device that is in use.",
        more=("resource", "device"),
        scraped=True,
    ),
    Declaration(
        "gauge",
        "device_memory_bytes",
        "Memory of a device.",
        more=("resource", "device"),
        scraped=True,
    ),
)
"""Every metric, in the order of a scrape and of ``docs/metrics.md``."""

_OWNER = {one.name: one.owner for one in TABLE}

MOST_REASONS = 20
"""The maximum number of reasons for unhealthy devices of a resource with separate series."""

OTHER_REASONS = "other reasons"
"""The label value for all other reasons."""

MOST_VERDICTS = 20
"""The maximum number of pairs of author and reason of verdicts with separate series."""

MOST_SHARED = 1000
"""The maximum number of devices of a resource with series of what claims share by amount."""

OTHER_AUTHORS = "others"
"""The label value for all other authors."""


def device_samples(backend: str, healthy: int, unhealthy: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    """The samples of ``devices`` for a resource of this backend, given how many of its tokens are healthy.

    ``unhealthy`` is how many are not, by reason; only the :data:`MOST_REASONS` most frequent are named.
    """
    counts: Counter[str] = Counter()
    for reason, count in unhealthy.items():
        counts[printable(reason)] += count
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    named = {reason: count for reason, count in ordered[:MOST_REASONS] if reason}
    if rest := sum(count for reason, count in ordered[MOST_REASONS:] if reason):
        named[OTHER_REASONS] = rest
    return {
        (backend, "Healthy", ""): healthy,
        **{(backend, "Unhealthy", reason): count for reason, count in {"": counts[""], **named}.items()},
    }


def _by_author_and_reason(given: Iterable[Given]) -> Mapping[tuple[str, str, str], Sequence[float]]:
    """When verdicts were written, by kind, author and reason; those of less frequent ones together."""
    given = [(kind, by, printable(reason), since) for kind, by, reason, since in given]
    frequent = {who for who, _ in Counter((by, why) for _, by, why, _ in given).most_common(MOST_VERDICTS)}
    found: dict[tuple[str, str, str], list[float]] = {}
    for kind, by, why, since in given:
        who = (by, why) if (by, why) in frequent else (OTHER_AUTHORS, OTHER_REASONS)
        found.setdefault((kind, *who), []).append(since)
    return found


def _usage_samples(
    used: Iterable[Used],
) -> Mapping[str, Iterable[tuple[Sequence[str], float]]]:
    found: dict[str, list[tuple[Sequence[str], float]]] = {
        "device_use_ratio": [],
        "device_memory_used_bytes": [],
        "device_memory_bytes": [],
    }
    for resource, device, usage in used:
        values = (usage.busy, usage.memory_used, usage.memory)
        for samples, value in zip(found.values(), values, strict=True):
            if value is not None:
                samples.append(((resource, device), value))
    return found


class Metrics:
    """Counts what happens to one host, in the series of :data:`TABLE`.

    A metric is named as in the table, its labels are given in their order there. What is unknown there is a
    KeyError or a ValueError; ``tests/telemetry/test_metrics.py`` looks for it in the code.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, Family[Number]] = {}
        self._distributions: dict[str, Family[Distribution]] = {}
        for one in TABLE:
            full = f"devhost_{one.name}"
            if one.kind == "histogram":
                made = partial(Distribution, one.buckets)
                self._distributions[one.name] = Family(one.kind, full, one.help, one.labels, made)
            elif not one.scraped:
                self._numbers[one.name] = Family(one.kind, full, one.help, one.labels, Number)
        self._owners: dict[Owner, set[str]] = {owner: set() for owner in get_args(Owner)}
        self._shown: dict[tuple[str, str], frozenset[tuple[str, ...]]] = {}
        """The further labels of what :meth:`show` was called with last, by metric and owner."""
        self._start(None)
        self.set("build_info", __version__, to=1)
        self._scraped: Callable[[], Scraped] = Scraped
        self._used: Callable[[], Awaitable[Iterable[Used]]] | None = None

    def begin(self, owner: Owner, name: str) -> None:
        """An owner of series exists from now on. If it is known, its series stay as they are."""
        self._owners[owner].add(name)
        self._start(owner, name)

    def end(self, owner: Owner, name: str) -> None:
        """An owner is gone: its series end."""
        self._owners[owner].discard(name)
        for one in TABLE:
            if one.owner == owner:
                (self._distributions.get(one.name) or self._numbers[one.name]).end(name)
                self._shown.pop((one.name, name), None)

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        """Counts something."""
        if self._known(metric, labels):
            self._numbers[metric].labels(*labels).value += by

    def set(self, metric: str, *labels: str, to: float) -> None:
        if self._known(metric, labels):
            self._numbers[metric].labels(*labels).value = to

    def observe(self, metric: str, *labels: str, seconds: float) -> None:
        """Counts a duration in a histogram."""
        if self._known(metric, labels):
            self._distributions[metric].labels(*labels).observe(seconds)

    def show(self, metric: str, owner: str, samples: Mapping[tuple[str, ...], float]) -> None:
        """Sets all series of a gauge that belong to one owner, by their further labels; all others end."""
        if self._known(metric, (owner,)):
            family = self._numbers[metric]
            for labels in self._shown.get((metric, owner), frozenset()) - samples.keys():
                family.remove(owner, *labels)
            for labels, value in samples.items():
                family.labels(owner, *labels).value = value
            self._shown[metric, owner] = frozenset(samples)

    def _start(self, owner: Owner | None, *name: str) -> None:
        for one in TABLE:
            if one.owner == owner and one.starts:
                self._numbers[one.name].labels(*name)

    def _known(self, metric: str, labels: Sequence[str]) -> bool:
        owner = _OWNER[metric]
        return owner is None or labels[0] in self._owners[owner]

    def name_scraped(self, scraped: Callable[[], Scraped]) -> None:
        """Adds the metrics of what ``scraped`` returns at each scrape."""
        self._scraped = scraped

    def name_usage(self, used: Callable[[], Awaitable[Iterable[Used]]]) -> None:
        """Adds the metrics of how much of the devices is in use, as returned at each scrape."""
        self._used = used

    def collect(self, used: Iterable[Used] | None = None) -> Iterator[Metric]:
        """Every metric there is, in the order of a scrape.

        ``used`` is how much of the devices is in use; ``None`` for no such metrics.
        """
        yield from process()
        scraped = dict(self._scrape())
        if used is not None:
            scraped.update(_usage_samples(used))
        for one in TABLE:
            if not one.scraped:
                yield self._distributions.get(one.name) or self._numbers[one.name]
            elif one.name in scraped:
                yield Gathered(f"devhost_{one.name}", one.help, one.labels, scraped[one.name])

    def _scrape(self) -> Iterator[tuple[str, Iterable[tuple[Sequence[str], float]]]]:
        now = self._scraped()
        yield "problems", (((kind,), now.counts.get(kind, 0)) for kind in get_args(ProblemKind))
        # a series must not occur twice
        infos = dict.fromkeys((kind, subject, printable(reason)) for kind, subject, reason in now.wrong)
        yield "problem_info", ((info, 1) for info in infos)
        given = _by_author_and_reason(now.verdicts)
        yield "verdicts", ((labels, len(since)) for labels, since in given.items())
        yield "verdicts_oldest_timestamp_seconds", ((labels, min(since)) for labels, since in given.items())
        yield "devices_left", Counter((name, printable(reason)) for name, reason in now.left).items()
        yield (
            "entry_devices",
            (
                ((place, name, backend, "true" if optional else "false"), devices)
                for place, name, backend, optional, devices in now.entries
            ),
        )
        yield "config_info", (((sha256,), 1) for sha256 in filter(None, [now.config]))
        if shared := list(now.shared):
            yield "device_capacity", (((*names, name), size) for *names, name, size, _ in shared)
            yield "device_capacity_used", (((*names, name), used) for *names, name, _, used in shared)
        if now.held is not None:
            held = (((name, device, *(holder or ("", "", ""))), 1) for name, device, holder in now.held)
            yield "device_held", held

    async def render(self) -> bytes:
        """Every series in the format of :data:`.exposition.CONTENT_TYPE`."""
        self.set("log_lines_dropped_total", to=dropped())
        return await text(self.collect(None if self._used is None else await self._used()))
