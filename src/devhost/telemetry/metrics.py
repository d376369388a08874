"""Counts what happens, in the series of the table in :mod:`.exposition`.

Use the objects of this module in one thread.

A counter with no label but its owner's (a resource, a backend or an observer) exists at zero as soon as the
owner is known, so that ``rate()`` and ``absent()`` work from the first scrape. Every other series exists from
its first value: most reasons never occur, and a histogram has many lines. All series end with their owner. An
event of an unknown owner is dropped, so that a late event cannot bring them back. Durations are in seconds.

Gauges are not kept here: they are a function of what is true at a scrape (``host/shown/gauges.py``).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import accumulate, chain
from typing import Any, Generic, Literal, TypeVar, get_args

from devhost import __version__
from devhost.backend import Usage
from devhost.backend.errors import BackendError, BackendTimeout
from devhost.runtime.log import dropped

from .exposition import (
    TABLE,
    Gauge,
    Kind,
    Metric,
    Owner,
    Sample,
    gathered,
    number,
    process,
    sample,
    series_name,
    text,
)

ProblemKind = Literal[
    "config",
    "kubelet",
    "task",
    "plugin",
    "resource",
    "dra",
    "node",
    "allocation",
    "backend",
    "driver",
    "entry",
    "plan",
    "device",
    "refused",
    "verdict",
    "events",
    "provisioning",
    "labels",
    "observer",
    "pods",
    "record",
]
"""The kinds of problems, the most important first."""


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


class Failure(StrEnum):
    """How a call of a backend or an observer failed."""

    ERROR = "error"
    """It raised, or returned an unusable answer."""
    TIMEOUT = "timeout"
    """It did not return within its deadline."""

    @classmethod
    def of(cls, error: BackendError) -> Failure:
        return cls.TIMEOUT if isinstance(error, BackendTimeout) else cls.ERROR


class ClaimCall(StrEnum):
    """The outcome of preparing or releasing one ResourceClaim."""

    DONE = "done"
    """The kubelet got what it asked for."""
    FAILED = "failed"
    """The kubelet got an error, and will ask again."""


class Guess(StrEnum):
    """The outcome of a guess that two requests belong to one container."""

    RIGHT = "right"
    """One container has the devices of both."""
    WRONG = "wrong"
    """Two containers have them."""
    UNKNOWN = "unknown"
    """The kubelet did not report in time which container has them."""


Used = tuple[str, str, Usage]
"""A resource, one of its devices, and how much of it is in use."""


class Number:
    """One series of a counter."""

    __slots__ = ("_series", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._series = series_name(name, labels)
        self.value = 0.0

    def text(self) -> str:
        """The line of its only sample."""
        return sample(self._series, self.value)


class Distribution:
    """One series of a histogram. ``bounds`` are the upper ends of its buckets, ascending.

    A larger value counts only in ``+Inf``.
    """

    __slots__ = ("_bounds", "_counts", "_series", "_sum")

    def __init__(self, bounds: Sequence[float], name: str, labels: Mapping[str, str]) -> None:
        self._bounds = (*bounds, math.inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        buckets = [series_name(f"{name}_bucket", {**labels, "le": number(bound)}) for bound in self._bounds]
        self._series = (*buckets, series_name(f"{name}_count", labels), series_name(f"{name}_sum", labels))

    def observe(self, value: float) -> None:
        """Counts ``value``: a bucket includes its upper end."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def text(self) -> str:
        """The lines of the cumulative buckets, the number and the sum of the values."""
        buckets = list(accumulate(self._counts))
        return "".join(map(sample, self._series, (*buckets, buckets[-1], self._sum)))


S = TypeVar("S", Number, Distribution)


class Family(Generic[S]):
    """A metric whose series are counted here: one for each set of label values.

    ``series`` makes one, at zero, from its name and labels.
    """

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

    def end(self, first: str) -> None:
        """Ends every series with this value of the first label."""
        for values in [values for values in self._series if values[0] == first]:
            del self._series[values]

    def metric(self) -> Metric:
        """Its series now; their samples are those of the moment at which each line is read."""
        series = list(self._series.values())  # some may be added and removed between two lines
        return Metric(self.kind, self.name, self.meaning, (one.text() for one in series))


_OWNER = {one.name: one.owner for one in TABLE}


def _usage(used: Iterable[Used]) -> Iterable[Gauge]:
    found: dict[str, list[Sample]] = {
        "device_use_ratio": [],
        "device_memory_used_bytes": [],
        "device_memory_bytes": [],
    }
    for resource, device, usage in used:
        values = (usage.busy, usage.memory_used, usage.memory)
        for samples, value in zip(found.values(), values, strict=True):
            if value is not None:
                samples.append(((resource, device), value))
    return found.items()


class Metrics:
    """Counts what happens to one host, in the series of :data:`TABLE`.

    A metric is named as in the table, its labels are given in their order there. What is unknown there is a
    KeyError or a ValueError; ``tests/telemetry/test_metrics.py`` looks for it in the code.
    """

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}
        for one in TABLE:
            if one.kind != "gauge":
                made = partial(Distribution, one.buckets) if one.kind == "histogram" else Number
                self._families[one.name] = Family(one.kind, f"devhost_{one.name}", one.help, one.labels, made)
        self._owners: dict[Owner, set[str]] = {owner: set() for owner in get_args(Owner)}
        self._start(None)
        self._gauges: Callable[[], Iterable[Gauge]] = tuple
        self._used: Callable[[], Awaitable[Iterable[Used]]] | None = None

    def begin(self, owner: Owner, name: str) -> None:
        """An owner of series exists from now on. If it is known, its series stay as they are."""
        self._owners[owner].add(name)
        self._start(owner, name)

    def end(self, owner: Owner, name: str) -> None:
        """An owner is gone: its series end."""
        self._owners[owner].discard(name)
        for one in TABLE:
            if one.owner == owner and one.name in self._families:
                self._families[one.name].end(name)

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        """Counts something."""
        if self._known(metric, labels):
            self._families[metric].labels(*labels).value += by

    def observe(self, metric: str, *labels: str, seconds: float) -> None:
        """Counts a duration in a histogram."""
        if self._known(metric, labels):
            self._families[metric].labels(*labels).observe(seconds)

    def _start(self, owner: Owner | None, *name: str) -> None:
        for one in TABLE:
            if one.owner == owner and one.starts:
                self._families[one.name].labels(*name)

    def _known(self, metric: str, labels: Sequence[str]) -> bool:
        owner = _OWNER[metric]
        return owner is None or labels[0] in self._owners[owner]

    def name_gauges(self, gauges: Callable[[], Iterable[Gauge]]) -> None:
        """Adds the gauges that are returned at each scrape."""
        self._gauges = gauges

    def name_usage(self, used: Callable[[], Awaitable[Iterable[Used]]]) -> None:
        """Adds the metrics of how much of the devices is in use, as returned at each scrape."""
        self._used = used

    def collect(self, used: Iterable[Used] | None = None) -> Iterator[Metric]:
        """Every metric there is, in the order of a scrape.

        ``used`` is how much of the devices is in use; ``None`` for no such metrics.
        """
        yield from process()
        # those of owners are shown without any, too
        found: dict[str, list[Sample]] = {one.name: [] for one in TABLE if one.owner}
        found["build_info"] = [((__version__,), 1)]
        for name, samples in chain(self._gauges(), () if used is None else _usage(used)):
            found.setdefault(name, []).extend(samples)
        for one in TABLE:
            if one.kind != "gauge":
                yield self._families[one.name].metric()
            elif one.name in found:
                yield gathered(f"devhost_{one.name}", one.help, one.labels, found[one.name])

    async def render(self) -> bytes:
        """Every series in the format of :data:`.exposition.CONTENT_TYPE`."""
        self._families["log_lines_dropped_total"].labels().value = dropped()
        return await text(self.collect(None if self._used is None else await self._used()))
