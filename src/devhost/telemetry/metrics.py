"""Counts what happens, in the series of the table in :mod:`.exposition`.

Use the objects of this module in one thread.

A counter or gauge with no label but its owner's (a resource, a backend or an observer) exists at zero as
soon as the owner is known, so that ``rate()`` and ``absent()`` work from the first scrape. Every other series
exists from its first value: most reasons never occur, and a histogram has many lines. All series end with
their owner. An event of an unknown owner is dropped, so that a late event cannot bring them back. Durations
are in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import Any, Generic, Literal, TypeVar, get_args

from devhost import __version__
from devhost.backend import Usage
from devhost.backend.errors import BackendError, BackendTimeout
from devhost.backend.frozen import frozen
from devhost.runtime.log import dropped, printable

from .exposition import TABLE, Kind, Metric, Owner, gathered, number, process, sample, series_name, text

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


class Number:
    """One series of a counter or a gauge."""

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

    def remove(self, *values: str) -> None:
        """Ends the series with these values, if there is one."""
        self._series.pop(values, None)

    def end(self, first: str) -> None:
        """Ends every series with this value of the first label."""
        for values in [values for values in self._series if values[0] == first]:
            del self._series[values]

    def metric(self) -> Metric:
        """Its series now; their samples are those of the moment at which each line is read."""
        series = list(self._series.values())  # some may be added and removed between two lines
        return Metric(self.kind, self.name, self.meaning, (one.text() for one in series))


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
        self._families: dict[str, Family[Any]] = {}
        for one in TABLE:
            if not one.scraped:
                made = partial(Distribution, one.buckets) if one.kind == "histogram" else Number
                self._families[one.name] = Family(one.kind, f"devhost_{one.name}", one.help, one.labels, made)
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
                self._families[one.name].end(name)
                self._shown.pop((one.name, name), None)

    def add(self, metric: str, *labels: str, by: float = 1.0) -> None:
        """Counts something."""
        if self._known(metric, labels):
            self._families[metric].labels(*labels).value += by

    def set(self, metric: str, *labels: str, to: float) -> None:
        if self._known(metric, labels):
            self._families[metric].labels(*labels).value = to

    def observe(self, metric: str, *labels: str, seconds: float) -> None:
        """Counts a duration in a histogram."""
        if self._known(metric, labels):
            self._families[metric].labels(*labels).observe(seconds)

    def show(self, metric: str, owner: str, samples: Mapping[tuple[str, ...], float]) -> None:
        """Sets all series of a gauge that belong to one owner, by their further labels; all others end."""
        if self._known(metric, (owner,)):
            family = self._families[metric]
            for labels in self._shown.get((metric, owner), frozenset()) - samples.keys():
                family.remove(owner, *labels)
            for labels, value in samples.items():
                family.labels(owner, *labels).value = value
            self._shown[metric, owner] = frozenset(samples)

    def _start(self, owner: Owner | None, *name: str) -> None:
        for one in TABLE:
            if one.owner == owner and one.starts:
                self._families[one.name].labels(*name)

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
                yield self._families[one.name].metric()
            elif one.name in scraped:
                yield gathered(f"devhost_{one.name}", one.help, one.labels, scraped[one.name])

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
