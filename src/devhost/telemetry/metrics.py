"""The metrics of devhost: one table, and methods named after what happened.

A counter or gauge with no label but its owner's (a resource, a backend or an observer) exists at zero as
soon as the owner is known, so that ``rate()`` and ``absent()`` work from the first scrape. Every other series
exists from its first value: most reasons never occur, and a histogram has many lines. All series end with
their owner. An event of an unknown owner is dropped, so that a late event cannot bring them back. Durations
are in seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Literal, get_args

from devhost import __version__
from devhost.backend.frozen import frozen
from devhost.runtime.log import dropped, printable

from .document import ProblemKind
from .exposition import Distribution, Family, Gathered, Kind, Metric, Number, process, text


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
Wrong = tuple[Mapping[ProblemKind, int], Iterable[tuple[str, str, str]]]
"""The number of problems by kind; and kind, subject and reason of each that is named."""
Left = tuple[str, str]
"""The resource that a device left, and the reason."""
Entry = tuple[str, str, str, bool, int]
"""An entry's place in the file, name and backend, whether it is optional, and its number of devices."""

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
    """One metric.

    Attributes:
        name: without ``devhost_``.
        owner: what its series belong to; ``None`` for the host itself.
        more: the labels in addition to that of the owner.
        buckets: the upper ends of a histogram's buckets.
        scraped: whether its samples are made at each scrape instead of counted.
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
        """The names of its labels."""
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
        "device_held",
        "1 for each device and container that holds it; the container's labels are empty if unknown.",
        more=("resource", "device", "namespace", "pod", "container"),
        scraped=True,
    ),
)
"""Every metric, in the order of a scrape and of ``docs/metrics.md``."""

_OWNER = {one.name: one.owner for one in TABLE}

MOST_REASONS = 20
"""The maximum number of reasons for unhealthy devices of a resource with separate series."""

OTHER_REASONS = "other reasons"
"""The label value for all other reasons."""


@dataclass(slots=True)
class _Resource:
    """A known resource; ``reasons`` are the reasons of its unhealthy devices."""

    backend: str
    prepares: bool
    reasons: set[str] = field(default_factory=set)


class Metrics:
    """Counts what happens to one host.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
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
        self._begin(None)
        self._numbers["build_info"].labels(__version__).value = 1
        self._resources: dict[str, _Resource] = {}
        self._refusals: set[str] = set()
        self._wrong: Callable[[], Wrong] = lambda: ({}, ())
        self._left: Callable[[], Iterable[Left]] = lambda: ()
        self._entries: Callable[[], Iterable[Entry]] = lambda: ()
        self._held: Callable[[], Iterable[Held]] | None = None

    def _begin(self, owner: Owner | None, *name: str) -> None:
        if owner is not None:
            self._owners[owner].update(name)
        for one in TABLE:
            if one.owner == owner and one.starts:
                self._numbers[one.name].labels(*name)

    def _end(self, owner: Owner, name: str) -> None:
        self._owners[owner].discard(name)
        for one in TABLE:
            if one.owner == owner:
                (self._distributions.get(one.name) or self._numbers[one.name]).end(name)

    def _known(self, metric: str, labels: Sequence[str]) -> bool:
        owner = _OWNER[metric]
        return owner is None or labels[0] in self._owners[owner]

    def _add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        if self._known(metric, labels):
            self._numbers[metric].labels(*labels).value += by

    def _set(self, metric: str, *labels: str, to: float) -> None:
        if self._known(metric, labels):
            self._numbers[metric].labels(*labels).value = to

    def _observe(self, metric: str, *labels: str, seconds: float) -> None:
        if self._known(metric, labels):
            self._distributions[metric].labels(*labels).observe(seconds)

    def name_holders(self, held: Callable[[], Iterable[Held]]) -> None:
        """Adds the metric of which container holds which device, with the names of pods.

        Args:
            held: returns each pair of device and container once.
        """
        self._held = held

    def name_entries(self, listed: Callable[[], Iterable[Entry]]) -> None:
        """Adds the metric of the number of devices of each entry of the configuration.

        Args:
            listed: returns every entry.
        """
        self._entries = listed

    def name_problems(self, wrong: Callable[[], Wrong], left: Callable[[], Iterable[Left]]) -> None:
        """Adds the metrics of problems and of devices that left recently, as returned at each scrape."""
        self._wrong, self._left = wrong, left

    def collect(self) -> Iterator[Metric]:
        """Every metric there is, in the order of a scrape."""
        yield from process()
        scraped = dict(self._scrape())
        for one in TABLE:
            if not one.scraped:
                yield self._distributions.get(one.name) or self._numbers[one.name]
            elif one.name in scraped:
                yield Gathered(f"devhost_{one.name}", one.help, one.labels, scraped[one.name])

    def _scrape(self) -> Iterator[tuple[str, Iterable[tuple[Sequence[str], float]]]]:
        counts, named = self._wrong()
        yield "problems", (((kind,), counts.get(kind, 0)) for kind in get_args(ProblemKind))
        # a series must not occur twice
        infos = dict.fromkeys((kind, subject, printable(reason)) for kind, subject, reason in named)
        yield "problem_info", ((info, 1) for info in infos)
        yield "devices_left", Counter((name, printable(reason)) for name, reason in self._left()).items()
        yield (
            "entry_devices",
            (
                ((place, name, backend, "true" if optional else "false"), devices)
                for place, name, backend, optional, devices in self._entries()
            ),
        )
        if self._held is not None:
            yield (
                "device_held",
                (((name, device, *(holder or ("", "", ""))), 1) for name, device, holder in self._held()),
            )

    async def render(self) -> bytes:
        """Every series in the format of :data:`.exposition.CONTENT_TYPE`."""
        self._set("log_lines_dropped_total", to=dropped())
        return await text(self.collect())

    def resource_added(self, resource: str, backend: str, prepares: bool = False) -> None:
        """The plan has a resource of this name: its series exist from now on, at zero.

        ``prepares`` is whether the kubelet calls PreStartContainer for it; otherwise it has no such series.
        """
        known = self._resources.get(resource)
        if known is not None and (known.backend, known.prepares) == (backend, prepares):
            return
        self.resource_removed(resource)
        self._resources[resource] = _Resource(backend, prepares)
        for health in ("Healthy", "Unhealthy"):
            self._numbers["devices"].labels(resource, backend, health, "")
        self._begin("resource", resource)
        if prepares:
            self._begin("prepared", resource)

    def resource_removed(self, resource: str) -> None:
        """The resource left the configuration: its series end."""
        if self._resources.pop(resource, None) is not None:
            self._end("resource", resource)
            self._end("prepared", resource)

    def devices(self, resource: str, healthy: int, unhealthy: Mapping[str, int]) -> None:
        """The numbers of healthy tokens in the resource's inventory, and of unhealthy ones by reason."""
        known = self._resources.get(resource)
        if known is None:
            return
        family, backend = self._numbers["devices"], known.backend
        family.labels(resource, backend, "Healthy", "").value = healthy
        family.labels(resource, backend, "Unhealthy", "").value = unhealthy.get("", 0)
        counts: Counter[str] = Counter()
        for reason, count in unhealthy.items():
            counts[printable(reason)] += count
        ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        by_reason = {reason: count for reason, count in ordered[:MOST_REASONS] if reason}
        if rest := sum(count for reason, count in ordered[MOST_REASONS:] if reason):
            by_reason[OTHER_REASONS] = rest
        for reason in known.reasons - by_reason.keys():
            family.remove(resource, backend, "Unhealthy", reason)
        known.reasons = set(by_reason)
        for reason, count in by_reason.items():
            family.labels(resource, backend, "Unhealthy", reason).value = count

    def registered(self, resource: str) -> None:
        """The kubelet accepted a registration."""
        self._add("registrations_total", resource)

    def registration_failed(self, resource: str) -> None:
        """The kubelet refused a registration or could not be reached."""
        self._add("registration_failures_total", resource)

    def streams(self, resource: str, count: int) -> None:
        """The number of open ListAndWatch streams changed."""
        self._set("streams", resource, to=count)

    def list_sent(self, resource: str, since_event: float | None) -> None:
        """A list was sent to the kubelet; ``since_event`` is ``None`` if no event caused it."""
        self._add("lists_total", resource)
        if since_event is not None:
            self._observe("event_to_list_seconds", resource, seconds=since_event)

    def allocated(self, resource: str, seconds: float) -> None:
        """Allocate answered with devices."""
        self._add("allocations_total", resource)
        self._observe("allocate_seconds", resource, seconds=seconds)

    def allocation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        """Allocate answered with an error."""
        self._add("allocation_failures_total", resource, reason)
        self._observe("allocate_seconds", resource, seconds=seconds)

    def prepared(self, resource: str, seconds: float) -> None:
        """PreStartContainer answered that the devices are ready."""
        self._observe("prepare_seconds", resource, seconds=seconds)

    def preparation_failed(self, resource: str, reason: CallFailure, seconds: float) -> None:
        """PreStartContainer answered with an error."""
        self._add("prepare_failures_total", resource, reason)
        self._observe("prepare_seconds", resource, seconds=seconds)

    def preferred(self, resource: str, seconds: float) -> None:
        """GetPreferredAllocation answered."""
        if known := self._resources.get(resource):
            self._observe("prefer_seconds", known.backend, seconds=seconds)

    def affinity_guessed(self, result: Guess) -> None:
        """The outcome of a guess, used to choose devices, is known, or it never will be."""
        self._add("affinity_guesses_total", result)

    def preference_unproven(self) -> None:
        """GetPreferredAllocation answered with a choice that is not proven best."""
        self._add("preferences_unproven_total")

    def backend_added(self, backend: str) -> None:
        """A backend runs: it has series from now on."""
        self._begin("backend", backend)

    def backend_removed(self, backend: str) -> None:
        """No resource needs the backend any longer: its series end."""
        self._end("backend", backend)

    def discovered(self, backend: str, seconds: float) -> None:
        """A discovery succeeded; ``seconds`` is its duration."""
        self._observe("discovery_seconds", backend, seconds=seconds)

    def backend_failed(self, backend: str, kind: BackendFailure) -> None:
        """One call of the backend failed."""
        self._add("backend_failures_total", backend, kind)

    def backend_degraded(self, backend: str, degraded: bool) -> None:
        """The backend fails and its last good list is used (``True``), or it works again (``False``)."""
        self._set("backend_degraded", backend, to=degraded)

    def provisioning(self, backend: str, states: Mapping[str, bool]) -> None:
        """The state of the hardware changed: every state, and whether it is the current one."""
        for state, present in states.items():
            self._set("provisioning", backend, state, to=present)

    def labels_wanted(self, backend: str) -> None:
        """Node labels of the backend are enabled: their series exist from now on, at zero."""
        self._begin("labels", backend)

    def labels_unwanted(self, backend: str) -> None:
        """Node labels of the backend are disabled: their series end."""
        self._end("labels", backend)

    def labels_written(self, backend: str, labels: int, written: bool) -> None:
        """The number of labels in its file; ``written`` is whether the file was made, changed or removed."""
        self._set("labels", backend, to=labels)
        self._add("label_files_total", backend, by=written)

    def labels_failed(self, backend: str) -> None:
        """The backend did not return its labels, or the file could not be written."""
        self._add("label_failures_total", backend)

    def planned(self, refusals: Mapping[str, int]) -> None:
        """A new plan is in effect; ``refusals`` is the number of devices that it refuses, by kind.

        Kinds of an earlier plan that are not among them are set to zero.
        """
        self._refusals.update(refusals)
        for reason in self._refusals:
            self._numbers["plan_refusals"].labels(reason).value = refusals.get(reason, 0)

    def config_loaded(self, generation: int) -> None:
        """A configuration took effect, the first one or a reload."""
        self._set("config_generation", to=generation)
        self._reloaded(True)

    def config_rejected(self) -> None:
        """A changed configuration was refused, and the previous one stays in effect."""
        self._reloaded(False)

    def _reloaded(self, success: bool) -> None:
        self._set("config_last_reload_success", to=success)
        self._set("config_last_reload_timestamp_seconds", to=self._clock())

    def driver_added(self, driver: str) -> None:
        """There is a DRA driver."""
        self._begin("driver", driver)

    def slices_changed(self, driver: str, writes: int) -> None:
        """So many slices were created, changed or deleted."""
        self._add("dra_slice_writes_total", driver, by=writes)

    def slices_synced(self, driver: str, slices: int, dropped: int) -> None:
        """The slices agree with the devices, but for fields that the API server dropped."""
        self._set("dra_slices", driver, to=slices)
        self._set("dra_dropped_fields", driver, to=dropped)
        self._set("dra_synced_timestamp_seconds", driver, to=self._clock())

    def dra_offered(
        self, driver: str, devices: Mapping[tuple[str, bool], int], moving: Mapping[str, int]
    ) -> None:
        """The plan offers these numbers of devices, by resource and whether they are healthy.

        Args:
            moving: how many leave each resource.
        """
        self._numbers["dra_devices"].end(driver)
        for (resource, healthy), count in sorted(devices.items()):
            self._set("dra_devices", driver, resource, "Healthy" if healthy else "Unhealthy", to=count)
        self._numbers["dra_moving_devices"].end(driver)
        for resource, count in sorted(moving.items()):
            self._set("dra_moving_devices", driver, resource, to=count)

    def claims_prepared(self, driver: str, results: Mapping[ClaimCall, int], seconds: float) -> None:
        """One call prepared claims, with so many of each result."""
        for result, count in results.items():
            self._add("dra_prepares_total", driver, result, by=count)
        self._observe("dra_prepare_seconds", driver, seconds=seconds)

    def claims_released(self, driver: str, results: Mapping[ClaimCall, int]) -> None:
        """One call released claims, with so many of each result."""
        for result, count in results.items():
            self._add("dra_unprepares_total", driver, result, by=count)

    def observer_added(self, observer: str) -> None:
        """An observer is used: its series exist from now on, at zero."""
        self._begin("observer", observer)

    def observer_removed(self, observer: str) -> None:
        """The observer is no longer called: its series end."""
        self._end("observer", observer)

    def observer_failed(self, observer: str, kind: ObserverFailure) -> None:
        """One call of the observer failed."""
        self._add("observer_failures_total", observer, kind)

    def observer_dropped(self, observer: str, events: int) -> None:
        """Events were dropped because the observer was too slow or paused."""
        self._add("observer_dropped_total", observer, by=events)

    def observer_paused(self, observer: str, paused: bool) -> None:
        """The observer is paused (``True``), or called again (``False``)."""
        self._set("observer_paused", observer, to=paused)
