"""The metrics of devhost: one table, and Prometheus' text format for it.

prometheus-client would do the same, but importing it imports an HTTP server and OpenSSL: 7 MB of a budget of
46 MB for the whole process (``docs/performance.md``). The format is version 0.0.4 of
https://prometheus.io/docs/instrumenting/exposition_formats/. Names and labels are not checked: they are
written in the code.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from devhost.backend.frozen import frozen

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The classic text format, which every Prometheus reads; these metrics need nothing newer."""

TURN = 100
"""Series after which other work gets its turn; at most a millisecond."""

SERIES = 5000
"""Series of gauges whose first parts are kept from one scrape to the next."""

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """All series of one name, which has ``_total`` for a counter. ``meaning`` is the text of ``# HELP``.

    ``lines`` are the current samples: one line each, those of a histogram's series together.
    """

    kind: Kind
    name: str
    meaning: str
    lines: Iterable[str]


Sample = tuple[tuple[str, ...], float]
"""The values of the labels of one series, in their order in the table, and its value."""
Gauge = tuple[str, Iterable[Sample]]
"""The name of a gauge in the table, and all or some of its samples."""

Owner = Literal["resource", "prepared", "backend", "labels", "observer", "driver"]
"""What series belong to: its name is their first label, and they end with it. ``prepared`` is a resource for
which the kubelet calls PreStartContainer, ``labels`` a backend whose node labels are enabled, ``driver`` the
DRA driver."""

_OWN_LABEL = {"prepared": "resource", "labels": "backend"}
"""The first label of owners that are not called like it."""


@frozen
class Declaration:
    """One metric. A gauge is made for each scrape, the others count.

    Attributes:
        name: without ``devhost_``.
        more: the labels in addition to that of the owner, separated by spaces.
        buckets: the upper ends of a histogram's buckets.
        owner: what its series belong to; ``None`` for the host itself.
    """

    kind: Kind
    name: str
    help: str
    more: str = ""
    buckets: tuple[float, ...] = ()
    owner: Owner | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        own = (_OWN_LABEL.get(self.owner, self.owner),) if self.owner else ()
        return (*own, *self.more.split())

    @property
    def starts(self) -> bool:
        """Whether its series of an owner exists, at zero, as soon as the owner is added."""
        return not (self.more or self.buckets or self.kind == "gauge")


_counter, _gauge, _histogram = (partial(Declaration, kind) for kind in get_args(Kind))


def _of(owner: Owner | None, *metrics: Declaration) -> Iterator[Declaration]:
    return (replace(one, owner=owner) for one in metrics)


_CALL = (0.002, 0.005, 0.05, 0.5, 5.0)
"""A normal call takes 1 ms to 5 ms; each more bucket is a series for each resource."""
_PREPARE = (0.01, 0.1, 1.0, 10.0, 30.0)
"""A check takes milliseconds, programming a card longer; the kubelet gives up after 30 s."""
_EVENT = (0.005, 0.02, 0.2, 2.0, 20.0)
"""A quiet and a busy node, lists that wait for their turn, and what there is an alert for."""
_FINE = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""For what there are few of: backends and drivers."""

TABLE = (
    *_of(
        "resource",
        _gauge("devices", "Devices offered to the kubelet, each replica counted.", "backend health reason"),
        _counter("allocations_total", "Allocate calls answered with devices."),
        _counter("allocation_failures_total", "Allocate calls answered with an error.", "reason"),
        _histogram("allocate_seconds", "Time to answer Allocate, failures included.", buckets=_CALL),
        _counter("registrations_total", "Registrations accepted by the kubelet."),
        _counter("registration_failures_total", "Registrations that failed or were refused."),
        _gauge("streams", "Open ListAndWatch streams; normally 1."),
        _counter("lists_total", "Device lists sent to the kubelet."),
        _histogram(
            "event_to_list_seconds", "Time from an event to the resulting device list.", buckets=_EVENT
        ),
    ),
    *_of(
        "prepared",
        _histogram(
            "prepare_seconds", "Time to answer PreStartContainer, failures included.", buckets=_PREPARE
        ),
        _counter("prepare_failures_total", "PreStartContainer calls answered with an error.", "reason"),
    ),
    *_of(
        "backend",
        _histogram("discovery_seconds", "Time of one successful discovery.", buckets=_FINE),
        _histogram(
            "prefer_seconds",
            "Time to answer GetPreferredAllocation, in all resources of the backend.",
            buckets=_FINE,
        ),
        _gauge("backend_degraded", "1 while the backend fails and its last good list is used."),
        _counter("backend_failures_total", "Calls of the backend that failed.", "kind"),
        _gauge(
            "provisioning",
            "1 for the state of the backend's hardware provisioning, 0 for the other states.",
            "state",
        ),
    ),
    *_of(
        "labels",
        _gauge("labels", "Node labels in the backend's file."),
        _counter("label_files_total", "Times the backend's node label file was written or removed."),
        _counter("label_failures_total", "Failures to get the backend's labels or to write them."),
    ),
    *_of(
        "observer",
        _gauge("observer_paused", "1 while the observer is paused because it failed or hung."),
        _counter("observer_failures_total", "Calls of the observer that failed.", "kind"),
        _counter("observer_dropped_total", "Events dropped because the observer was too slow or paused."),
    ),
    *_of(
        "driver",
        _gauge("dra_slices", "ResourceSlices at the API server."),
        _gauge("dra_devices", "Devices offered through DRA.", "resource health"),
        _gauge(
            "dra_moving_devices",
            "Devices that change between device plugin and DRA, by the resource that they leave.",
            "resource",
        ),
        _counter("dra_slice_writes_total", "ResourceSlices created, changed or deleted."),
        _gauge("dra_dropped_fields", "Fields of slices that the API server does not keep."),
        _gauge(
            "dra_synced_timestamp_seconds",
            "When the ResourceSlices last agreed with the devices, in Unix time; 0 before.",
        ),
        _counter("dra_prepares_total", "ResourceClaims that the kubelet had prepared.", "result"),
        _counter("dra_unprepares_total", "ResourceClaims that the kubelet had released.", "result"),
        _histogram(
            "dra_prepare_seconds", "Time to prepare the claims of one call, failures included.", buckets=_FINE
        ),
        _histogram(
            "dra_unprepare_seconds",
            "Time to release the claims of one call, failures included.",
            buckets=_FINE,
        ),
        _gauge("dra_calls_in_flight", "Calls of the kubelet that are not answered yet.", "call"),
        _gauge("dra_prepared_claims", "ResourceClaims that are prepared."),
        _gauge("dra_prepared_devices", "Devices of these claims."),
        _counter(
            "dra_api_requests_total",
            "Requests to the API server, by the HTTP code of the answer.",
            "method code",
        ),
        _gauge(
            "dra_watch_timestamp_seconds",
            "When the API server last sent something over the watch of slices, in Unix time; 0 before.",
        ),
    ),
    *_of(
        None,
        _gauge("plan_refusals", "Devices that the current plan refuses.", "reason"),
        _counter(
            "affinity_guesses_total",
            "Pairs of requests assumed to belong to one container, by outcome.",
            "result",
        ),
        _counter(
            "preferences_unproven_total",
            "GetPreferredAllocation calls answered with a choice that is not proven best.",
        ),
        _counter("log_lines_dropped_total", "Log lines that were dropped because nothing read them."),
        _gauge("config_generation", "Configurations that took effect since start."),
        _gauge(
            "config_last_reload_success", "1 if the last configuration read took effect, 0 if it was refused."
        ),
        _gauge("config_last_reload_timestamp_seconds", "When a configuration was last read, in Unix time."),
        _gauge("build_info", "Always 1; the label names the version.", "version"),
        _gauge(
            "config_info",
            "1 for the file in force; none if it is not a regular file, or if a copy is used.",
            "sha256",
        ),
        _gauge("problems", "Current problems.", "kind"),
        _gauge("problem_info", "1 for each current problem, at most 100.", "kind subject reason"),
        _gauge("verdicts", "Verdicts in force.", "kind by reason"),
        _gauge(
            "verdicts_oldest_timestamp_seconds",
            "When the oldest of them was written, in Unix time.",
            "kind by reason",
        ),
        _gauge(
            "devices_left",
            "Devices that left the list within the last hour, at most 20 of a resource.",
            "resource reason",
        ),
        _gauge(
            "entry_devices",
            "Devices that an entry of the configuration serves, in all its resources.",
            "entry resource backend optional",
        ),
        _gauge(
            "device_capacity",
            "What a device has of a capacity that claims share by amount, in ones (bytes).",
            "resource device capacity",
        ),
        _gauge("device_capacity_used", "What claims use of it.", "resource device capacity"),
        _gauge(
            "device_held",
            "1 for each device and container that holds it; the container's labels are empty if unknown.",
            "resource device namespace pod container",
        ),
        _gauge(
            "device_use_ratio",
            "The share of time, from 0 to 1, in which a device worked recently, as its driver measures it.",
            "resource device",
        ),
        _gauge("device_memory_used_bytes", "Memory of a device that is in use.", "resource device"),
        _gauge("device_memory_bytes", "Memory of a device.", "resource device"),
    ),
)
"""Every metric, in the order of a scrape and of ``docs/metrics.md``."""


def gathered(
    name: str,
    meaning: str,
    label_names: tuple[str, ...],
    samples: Iterable[Sample],
) -> Metric:
    """A gauge that is made for one scrape."""
    lines = (sample(_series(name, label_names, values), value) for values, value in samples)
    return Metric("gauge", name, meaning, lines)


def _process(kind: Kind, name: str, meaning: str, read: Callable[[], float]) -> Metric:
    """A value of this process, with the same name as in Prometheus client libraries.

    If ``read`` raises ``OSError``, the metric has no sample.
    """
    lines: list[str] = []
    with suppress(OSError):  # no /proc, or no file descriptor left to read it
        lines.append(sample(f"process_{name}", read()))
    return Metric(kind, f"process_{name}", meaning, lines)


def process() -> list[Metric]:
    """Memory, CPU time, start and open files of this process, read from ``/proc``.

    https://prometheus.io/docs/instrumenting/writing_clientlibs/#process-metrics
    """
    ticks, page = os.sysconf("SC_CLK_TCK"), resource.getpagesize()

    def stat(field: int) -> int:
        # proc_pid_stat(5) counts from 1, and the second field may hold spaces and parentheses
        return int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[field - 3])

    def boot() -> float:
        lines = Path("/proc/stat").read_bytes().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(b"btime "))

    def limit() -> float:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return math.inf if soft == resource.RLIM_INFINITY else soft

    return [
        _process("gauge", "virtual_memory_bytes", "Virtual memory size in bytes.", lambda: stat(23)),
        _process("gauge", "resident_memory_bytes", "Resident memory size in bytes.", lambda: stat(24) * page),
        _process(
            "gauge",
            "start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            lambda: boot() + stat(22) / ticks,
        ),
        _process(
            "counter",
            "cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            lambda: (stat(14) + stat(15)) / ticks,
        ),
        _process(
            "gauge",
            "open_fds",
            "Number of open file descriptors.",
            lambda: len(os.listdir("/proc/self/fd")),
        ),
        _process("gauge", "max_fds", "Maximum number of open file descriptors.", limit),
    ]


async def text(metrics: Iterable[Metric]) -> bytes:
    """Every sample of these metrics, below their ``# HELP`` and ``# TYPE``.

    With 200 resources in use this is 370 kB and about 5 ms of work. Other work gets its turn every
    :data:`TURN` series, so that a scrape does not delay a device list.
    """
    parts: list[str] = []
    for metric in metrics:
        meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
        parts.append(f"# HELP {metric.name} {meaning}\n# TYPE {metric.name} {metric.kind}\n")
        for line in metric.lines:
            parts.append(line)
            if not len(parts) % TURN:
                await asyncio.sleep(0)
    return "".join(parts).encode()


@lru_cache(SERIES)
def _series(name: str, label_names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return series_name(name, dict(zip(label_names, values, strict=True)))


def series_name(name: str, labels: Mapping[str, str]) -> str:
    """A line up to its value."""
    pairs = ",".join([f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items())])
    return f"{name}{{{pairs}}}" if pairs else name


def sample(series: str, value: float) -> str:
    return f"{series} {number(value)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A number in the notation of Go's ``ParseFloat``; ``le`` must be exactly ``+Inf``."""
    return "+Inf" if value == math.inf else repr(float(value))
