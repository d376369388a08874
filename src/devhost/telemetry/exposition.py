"""Counters, gauges and histograms, and Prometheus' text format for them.

prometheus-client would do the same, but importing it imports an HTTP server and OpenSSL: 7 MB of a budget of
46 MB for the whole process (``docs/performance.md``). The format is version 0.0.4 of
https://prometheus.io/docs/instrumenting/exposition_formats/. Names and labels are not checked: they are
written in the code. Use the objects of this module in one thread.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The classic text format, which every Prometheus reads; these metrics need nothing newer."""

TURN = 100
"""Series after which other work gets its turn; at most a millisecond."""

Kind = Literal["counter", "gauge", "histogram"]


class Metric(Protocol):
    """All series of one name, which has ``_total`` for a counter. ``meaning`` is the text of ``# HELP``.

    ``label_names`` are the labels of each series; samples of a histogram also have ``le``.
    """

    kind: Kind
    name: str
    meaning: str
    label_names: Sequence[str]

    def lines(self) -> Iterable[str]:
        """The current samples: one line each, those of a histogram's series together."""


class Number:
    """One series of a counter or a gauge."""

    __slots__ = ("_series", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._series = _series(name, labels)
        self.value = 0.0

    def text(self) -> str:
        """The line of its only sample."""
        return _line(self._series, self.value)


class Distribution:
    """One series of a histogram.

    ``bounds`` are the upper ends of the buckets, ascending; larger values count only in ``+Inf``.
    """

    __slots__ = ("_bounds", "_counts", "_series", "_sum")

    def __init__(self, bounds: Sequence[float], name: str, labels: Mapping[str, str]) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        buckets = [_series(f"{name}_bucket", {**labels, "le": _number(bound)}) for bound in self._bounds]
        self._series = (*buckets, _series(f"{name}_count", labels), _series(f"{name}_sum", labels))

    def observe(self, value: float) -> None:
        """Counts ``value``: a bucket includes its upper end."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def text(self) -> str:
        """The lines of the cumulative buckets, the number and the sum of the values."""
        buckets = list(accumulate(self._counts))
        return "".join(map(_line, self._series, (*buckets, buckets[-1], self._sum)))


S = TypeVar("S", Number, Distribution)


class Family(Generic[S]):
    """A metric whose series are counted here: one for each set of label values, each made by ``series``."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        meaning: str,
        label_names: Sequence[str],
        series: Callable[[str, Mapping[str, str]], S],
    ) -> None:
        self.kind = kind
        self.name = name
        self.meaning = meaning
        self.label_names = label_names
        self._make: Callable[[str, Mapping[str, str]], S] = series
        self._series: dict[tuple[str, ...], S] = {}

    def labels(self, *values: str) -> S:
        """The series with these values, in the order of ``label_names``; it exists from now on."""
        if values not in self._series:
            self._series[values] = self._make(self.name, dict(zip(self.label_names, values, strict=True)))
        return self._series[values]

    def remove(self, *values: str) -> None:
        """Ends the series with these values, if there is one."""
        self._series.pop(values, None)

    def end(self, first: str) -> None:
        """Ends every series with this value of the first label."""
        for values in [values for values in self._series if values[0] == first]:
            del self._series[values]

    def lines(self) -> Iterator[str]:
        for series in list(self._series.values()):  # series may be added and removed between two lines
            yield series.text()


class Gathered:
    """A gauge that is made for one scrape."""

    kind: Kind = "gauge"

    def __init__(
        self,
        name: str,
        meaning: str,
        label_names: Sequence[str],
        samples: Iterable[tuple[Sequence[str], float]],
    ) -> None:
        self.name = name
        self.meaning = meaning
        self.label_names = label_names
        self._samples = list(samples)

    def lines(self) -> Iterator[str]:
        for values, value in self._samples:
            yield _line(_series(self.name, dict(zip(self.label_names, values, strict=True))), value)


class Process:
    """A value of this process, with the same name as in Prometheus client libraries.

    If ``read`` raises ``OSError``, the metric has no sample.
    """

    label_names: Sequence[str] = ()

    def __init__(self, kind: Kind, name: str, meaning: str, read: Callable[[], float]) -> None:
        self.kind = kind
        self.name = f"process_{name}"
        self.meaning = meaning
        self._read = read

    def lines(self) -> Iterator[str]:
        try:
            yield _line(_series(self.name, {}), self._read())
        except OSError:  # no /proc, or no file descriptor left to read it
            return


def process() -> list[Process]:
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
        Process("gauge", "virtual_memory_bytes", "Virtual memory size in bytes.", lambda: stat(23)),
        Process("gauge", "resident_memory_bytes", "Resident memory size in bytes.", lambda: stat(24) * page),
        Process(
            "gauge",
            "start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            lambda: boot() + stat(22) / ticks,
        ),
        Process(
            "counter",
            "cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            lambda: (stat(14) + stat(15)) / ticks,
        ),
        Process(
            "gauge",
            "open_fds",
            "Number of open file descriptors.",
            lambda: len(os.listdir("/proc/self/fd")),
        ),
        Process("gauge", "max_fds", "Maximum number of open file descriptors.", limit),
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
        for line in metric.lines():
            parts.append(line)
            if not len(parts) % TURN:
                await asyncio.sleep(0)
    return "".join(parts).encode()


def _series(name: str, labels: Mapping[str, str]) -> str:
    """A line up to its value."""
    pairs = ",".join([f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items())])
    return f"{name}{{{pairs}}}" if pairs else name


def _line(series: str, value: float) -> str:
    return f"{series} {_number(value)}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """A number in the notation of Go's ``ParseFloat``; ``le`` must be exactly ``+Inf``."""
    return "+Inf" if value == math.inf else repr(float(value))
