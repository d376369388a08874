"""The same events, counted for Prometheus. Import this module only where metrics are served.

Every series of a resource or backend exists at zero from the moment it is known, so that ``rate()`` and
``absent()`` work from the first scrape, and ends when it goes.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from devhost import __version__

from .exposition import Distribution, Family, Kind, Metric, Number, process, text
from .log import printable
from .metrics import BackendFailure, CallFailure, Guess, Metrics, ObserverFailure
from .page.redaction import hidden
from .scraped import Entry, Held, Left, Wrong, entries, holders, problems

_RPC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_EVENT_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
_SCAN_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

MOST_REASONS = 20
"""Reasons for which devices of one resource are unhealthy that have series of their own."""

OTHER_REASONS = "other reasons"
"""What stands for all others."""


@dataclass(frozen=True, slots=True)
class _PrepareSeries:
    """The series of a resource for which the kubelet calls PreStartContainer."""

    seconds: Distribution
    failures: Mapping[CallFailure, Number]


@dataclass(frozen=True, slots=True)
class _ResourceSeries:
    """The series of one resource, looked up once; those in ``ill`` last as long as their reason."""

    backend: str
    healthy: Number
    unhealthy: Number
    allocations: Number
    allocation_failures: Mapping[CallFailure, Number]
    allocate_seconds: Distribution
    prefer_seconds: Distribution
    registrations: Number
    registration_failures: Number
    streams: Number
    lists: Number
    list_size: Number
    list_revision: Number
    event_to_list: Distribution
    prepare: _PrepareSeries | None = None
    ill: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _BackendSeries:
    """The series of one backend, looked up once."""

    discovery_seconds: Distribution
    degraded: Number
    failures: Mapping[BackendFailure, Number]


@dataclass(frozen=True, slots=True)
class _LabelSeries:
    """The series of one backend's node labels, looked up once."""

    labels: Number
    written: Number
    failures: Number


@dataclass(frozen=True, slots=True)
class _ObserverSeries:
    """The series of one observer, looked up once."""

    paused: Number
    failures: Mapping[ObserverFailure, Number]
    dropped: Number


class PrometheusMetrics(Metrics):
    """Counts what happens to one host."""

    def __init__(self) -> None:
        self._metrics: list[Metric] = [*process()]
        self._resources: dict[str, _ResourceSeries] = {}
        self._backends: dict[str, _BackendSeries] = {}
        self._provisioned: dict[str, dict[str, Number]] = {}
        self._labelled: dict[str, _LabelSeries] = {}
        self._observers: dict[str, _ObserverSeries] = {}
        self._reasons: set[str] = set()
        self._wrong: Callable[[], Wrong] = lambda: ({}, ())
        self._left: Callable[[], Iterable[Left]] = lambda: ()
        self._entries: Callable[[], Iterable[Entry]] = lambda: ()
        self._held: Callable[[], Iterable[Held]] | None = None
        self._said: Callable[[str], str] = lambda reason: printable(hidden(reason))
        self._define_resource_series()
        self._define_backend_series()
        self._define_observer_series()
        self._define_host_series()

    def _define_resource_series(self) -> None:
        by_resource = ("resource",)
        self._devices = self._gauge(
            "devices",
            "Devices offered to the kubelet, each replica counted.",
            ("resource", "backend", "health", "reason"),
        )
        self._allocations = self._counter("allocations", "Allocate calls answered with devices.", by_resource)
        self._allocation_failures = self._counter(
            "allocation_failures", "Allocate calls answered with an error.", ("resource", "reason")
        )
        self._allocate_seconds = self._histogram(
            "allocate_seconds", "Time to answer Allocate, failures included.", by_resource, _RPC_BUCKETS
        )
        self._prepare_seconds = self._histogram(
            "prepare_seconds",
            "Time to answer PreStartContainer, failures included.",
            by_resource,
            _RPC_BUCKETS,
        )
        self._prepare_failures = self._counter(
            "prepare_failures", "PreStartContainer calls answered with an error.", ("resource", "reason")
        )
        self._prefer_seconds = self._histogram(
            "prefer_seconds", "Time to answer GetPreferredAllocation.", by_resource, _RPC_BUCKETS
        )
        self._registrations = self._counter("registrations", "Registrations the kubelet took.", by_resource)
        self._registration_failures = self._counter(
            "registration_failures", "Registrations that failed or were refused.", by_resource
        )
        self._streams = self._gauge("streams", "ListAndWatch streams open now; 1 is right.", by_resource)
        self._lists = self._counter("lists", "Device lists sent to the kubelet.", by_resource)
        self._list_size = self._gauge("list_size_devices", "Devices in the last list sent.", by_resource)
        self._list_revision = self._gauge("list_revision", "Revision of the last list sent.", by_resource)
        self._event_to_list = self._histogram(
            "event_to_list_seconds", "From an event to the list it caused.", by_resource, _EVENT_BUCKETS
        )

    def _define_backend_series(self) -> None:
        self._discovery_seconds = self._histogram(
            "discovery_seconds", "Time of one successful discovery.", ("backend",), _SCAN_BUCKETS
        )
        self._degraded = self._gauge(
            "backend_degraded", "1 while the backend works on its last good list.", ("backend",)
        )
        self._backend_failures = self._counter(
            "backend_failures", "Calls of the backend that failed.", ("backend", "kind")
        )
        self._provisioning = self._gauge(
            "provisioning",
            "1 for the state in which the backend's provisioning of hardware is, 0 for the others.",
            ("backend", "state"),
        )
        self._labels = self._gauge("labels", "Node labels in the backend's file.", ("backend",))
        self._label_files = self._counter(
            "label_files", "Times the backend's file of node labels was written or removed.", ("backend",)
        )
        self._label_failures = self._counter(
            "label_failures", "Times its labels could not be told or written.", ("backend",)
        )

    def _define_observer_series(self) -> None:
        self._observer_paused = self._gauge(
            "observer_paused", "1 while the observer is not called because it failed or hung.", ("observer",)
        )
        self._observer_failures = self._counter(
            "observer_failures", "Calls of the observer that failed.", ("observer", "kind")
        )
        self._observer_dropped = self._counter(
            "observer_dropped", "News dropped because the observer was too slow or paused.", ("observer",)
        )

    def _define_host_series(self) -> None:
        self._refusals = self._gauge("plan_refusals", "Devices the plan leaves out now.", ("reason",))
        guesses = self._counter(
            "affinity_guesses",
            "Pairs of requests taken for one container's, by how it turned out.",
            ("result",),
        )
        self._guesses = {result: guesses.labels(result) for result in Guess}
        self._generation = self._gauge(
            "config_generation", "Configurations that took effect since start."
        ).labels()
        self._reload_success = self._gauge(
            "config_last_reload_success", "1 if the last configuration read took effect, 0 if it was refused."
        ).labels()
        self._reload_time = self._gauge(
            "config_last_reload_timestamp_seconds", "When a configuration was last read, in Unix time."
        ).labels()
        info = self._gauge("build_info", "Always 1; the label names the version.", ("version",))
        info.labels(__version__).set(1)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...] = ()) -> Family[Number]:
        return self._numbers("gauge", name, meaning, labels)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...]) -> Family[Number]:
        return self._numbers("counter", f"{name}_total", meaning, labels)

    def _numbers(self, kind: Kind, name: str, meaning: str, labels: tuple[str, ...]) -> Family[Number]:
        family = Family(kind, f"devhost_{name}", meaning, labels, Number)
        self._metrics.append(family)
        return family

    def _histogram(
        self, name: str, meaning: str, labels: tuple[str, ...], buckets: tuple[float, ...]
    ) -> Family[Distribution]:
        family = Family("histogram", f"devhost_{name}", meaning, labels, partial(Distribution, buckets))
        self._metrics.append(family)
        return family

    def name_holders(self, held: Callable[[], Iterable[Held]]) -> None:
        """From now on says who holds what, with the names of pods.

        Args:
            held: tells it, each device and container once.
        """
        self._held = held
        self._said = printable

    def name_entries(self, listed: Callable[[], Iterable[Entry]]) -> None:
        """From now on reports how many devices each entry of the file has.

        Args:
            listed: gives every entry.
        """
        self._entries = listed

    def name_problems(self, wrong: Callable[[], Wrong], left: Callable[[], Iterable[Left]]) -> None:
        """From now on tells what is wrong, and which devices left lately, as these say at each scrape."""
        self._wrong, self._left = wrong, left

    def collect(self) -> Iterator[Metric]:
        """Every metric there is, in the order of a scrape."""
        yield from self._metrics
        yield from problems(self._wrong(), self._left(), self._said)
        yield entries(self._entries())
        if self._held is not None:
            yield holders(self._held())

    async def render(self) -> bytes:
        """Every series in the format of :data:`.exposition.CONTENT_TYPE`."""
        return await text(self.collect())

    def resource_added(self, resource: str, backend: str, prepares: bool = False) -> None:
        known = self._resources.get(resource)
        if known is not None and known.backend == backend and (known.prepare is not None) is prepares:
            return
        self.resource_removed(resource)
        self._resources[resource] = _ResourceSeries(
            backend=backend,
            healthy=self._devices.labels(resource, backend, "Healthy", ""),
            unhealthy=self._devices.labels(resource, backend, "Unhealthy", ""),
            allocations=self._allocations.labels(resource),
            allocation_failures={
                reason: self._allocation_failures.labels(resource, reason) for reason in CallFailure
            },
            allocate_seconds=self._allocate_seconds.labels(resource),
            prefer_seconds=self._prefer_seconds.labels(resource),
            registrations=self._registrations.labels(resource),
            registration_failures=self._registration_failures.labels(resource),
            streams=self._streams.labels(resource),
            lists=self._lists.labels(resource),
            list_size=self._list_size.labels(resource),
            list_revision=self._list_revision.labels(resource),
            event_to_list=self._event_to_list.labels(resource),
            prepare=self._prepare_series(resource) if prepares else None,
        )

    def _prepare_series(self, resource: str) -> _PrepareSeries:
        failures = {reason: self._prepare_failures.labels(resource, reason) for reason in CallFailure}
        return _PrepareSeries(self._prepare_seconds.labels(resource), failures)

    def resource_removed(self, resource: str) -> None:
        gone = self._resources.pop(resource, None)
        if gone is None:
            return
        for health in ("Healthy", "Unhealthy"):
            self._devices.remove(resource, gone.backend, health, "")
        for ill in gone.ill:
            self._devices.remove(resource, gone.backend, "Unhealthy", ill)
        for reason in CallFailure:
            self._allocation_failures.remove(resource, reason)
            if gone.prepare is not None:
                self._prepare_failures.remove(resource, reason)
        if gone.prepare is not None:
            self._prepare_seconds.remove(resource)
        for family in (
            self._allocations,
            self._allocate_seconds,
            self._prefer_seconds,
            self._registrations,
            self._registration_failures,
            self._streams,
            self._lists,
            self._list_size,
            self._list_revision,
            self._event_to_list,
        ):
            family.remove(resource)

    def devices(self, resource: str, healthy: int, unhealthy: Mapping[str, int]) -> None:
        series = self._resources.get(resource)
        if series is None:
            return
        series.healthy.set(healthy)
        series.unhealthy.set(unhealthy.get("", 0))
        said: Counts[str] = Counts()
        for reason, count in unhealthy.items():
            said[self._said(reason)] += count
        ordered = sorted(said.items(), key=lambda one: (-one[1], one[0]))
        by_reason = {reason: count for reason, count in ordered[:MOST_REASONS] if reason}
        if rest := sum(count for reason, count in ordered[MOST_REASONS:] if reason):
            by_reason[OTHER_REASONS] = rest
        for reason in [reason for reason in series.ill if reason not in by_reason]:
            del series.ill[reason]
            self._devices.remove(resource, series.backend, "Unhealthy", reason)
        for reason, count in by_reason.items():
            if reason not in series.ill:
                series.ill[reason] = self._devices.labels(resource, series.backend, "Unhealthy", reason)
            series.ill[reason].set(count)

    def registered(self, resource: str) -> None:
        if series := self._resources.get(resource):
            series.registrations.inc()

    def registration_failed(self, resource: str) -> None:
        if series := self._resources.get(resource):
            series.registration_failures.inc()

    def streams(self, resource: str, count: int) -> None:
        if series := self._resources.get(resource):
            series.streams.set(count)

    def list_sent(self, resource: str, devices: int, revision: int, since_event: float | None) -> None:
        if series := self._resources.get(resource):
            series.lists.inc()
            series.list_size.set(devices)
            series.list_revision.set(revision)
            if since_event is not None:
                series.event_to_list.observe(since_event)

    def allocated(self, resource: str, seconds: float) -> None:
        if series := self._resources.get(resource):
            series.allocations.inc()
            series.allocate_seconds.observe(seconds)

    def allocation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        if series := self._resources.get(resource):
            series.allocation_failures[reason].inc()
            series.allocate_seconds.observe(seconds)

    def prepared(self, resource: str, seconds: float) -> None:
        if (series := self._resources.get(resource)) and series.prepare is not None:
            series.prepare.seconds.observe(seconds)

    def preparation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        if (series := self._resources.get(resource)) and series.prepare is not None:
            series.prepare.seconds.observe(seconds)
            series.prepare.failures[reason].inc()

    def preferred(self, resource: str, seconds: float) -> None:
        if series := self._resources.get(resource):
            series.prefer_seconds.observe(seconds)

    def affinity_guessed(self, result: Guess) -> None:
        self._guesses[result].inc()

    def backend_added(self, backend: str) -> None:
        if backend not in self._backends:
            self._backends[backend] = _BackendSeries(
                discovery_seconds=self._discovery_seconds.labels(backend),
                degraded=self._degraded.labels(backend),
                failures={kind: self._backend_failures.labels(backend, kind) for kind in BackendFailure},
            )

    def backend_removed(self, backend: str) -> None:
        if self._backends.pop(backend, None) is None:
            return
        self._discovery_seconds.remove(backend)
        self._degraded.remove(backend)
        for kind in BackendFailure:
            self._backend_failures.remove(backend, kind)
        for state in self._provisioned.pop(backend, ()):
            self._provisioning.remove(backend, state)

    def discovered(self, backend: str, seconds: float) -> None:
        if series := self._backends.get(backend):
            series.discovery_seconds.observe(seconds)

    def backend_failed(self, backend: str, kind: BackendFailure) -> None:
        if series := self._backends.get(backend):
            series.failures[kind].inc()

    def backend_degraded(self, backend: str, degraded: bool) -> None:
        if series := self._backends.get(backend):
            series.degraded.set(degraded)

    def provisioning(self, backend: str, states: Mapping[str, bool]) -> None:
        if backend not in self._backends:
            return
        series = self._provisioned.setdefault(backend, {})
        for state, present in states.items():
            if state not in series:
                series[state] = self._provisioning.labels(backend, state)
            series[state].set(present)

    def labels_wanted(self, backend: str) -> None:
        if backend not in self._labelled:
            self._labelled[backend] = _LabelSeries(
                labels=self._labels.labels(backend),
                written=self._label_files.labels(backend),
                failures=self._label_failures.labels(backend),
            )

    def labels_unwanted(self, backend: str) -> None:
        if self._labelled.pop(backend, None) is not None:
            for family in (self._labels, self._label_files, self._label_failures):
                family.remove(backend)

    def labels_written(self, backend: str, labels: int, anew: bool) -> None:
        if series := self._labelled.get(backend):
            series.labels.set(labels)
            series.written.inc(anew)

    def labels_failed(self, backend: str) -> None:
        if series := self._labelled.get(backend):
            series.failures.inc()

    def planned(self, refusals: Mapping[str, int]) -> None:
        self._reasons.update(refusals)
        for reason in self._reasons:
            self._refusals.labels(reason).set(refusals.get(reason, 0))

    def config_loaded(self, generation: int) -> None:
        self._generation.set(generation)
        self._reload_success.set(1)
        self._reload_time.set(time.time())

    def config_rejected(self) -> None:
        self._reload_success.set(0)
        self._reload_time.set(time.time())

    def observer_added(self, observer: str) -> None:
        if observer not in self._observers:
            self._observers[observer] = _ObserverSeries(
                paused=self._observer_paused.labels(observer),
                failures={kind: self._observer_failures.labels(observer, kind) for kind in ObserverFailure},
                dropped=self._observer_dropped.labels(observer),
            )

    def observer_removed(self, observer: str) -> None:
        if self._observers.pop(observer, None) is None:
            return
        self._observer_paused.remove(observer)
        self._observer_dropped.remove(observer)
        for kind in ObserverFailure:
            self._observer_failures.remove(observer, kind)

    def observer_failed(self, observer: str, kind: ObserverFailure) -> None:
        if series := self._observers.get(observer):
            series.failures[kind].inc()

    def observer_dropped(self, observer: str, news: int) -> None:
        if series := self._observers.get(observer):
            series.dropped.inc(news)

    def observer_paused(self, observer: str, paused: bool) -> None:
        if series := self._observers.get(observer):
            series.paused.set(paused)
