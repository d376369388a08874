"""Metrics that are not counted but asked for at each scrape. Import it only where metrics are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from .document import ProblemKind

Held = tuple[str, str, tuple[str, str, str] | None]
"""A resource, one of its devices, and the container that holds it: namespace, pod and name, if known."""


@dataclass(frozen=True, slots=True)
class Holders(Collector):
    """Who holds what, asked for at each scrape: a series ends with the container."""

    held: Callable[[], Iterable[Held]]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "devhost_device_held",
            "1 for each device and container that holds it; the container's labels are empty if unknown.",
            labels=("resource", "device", "namespace", "pod", "container"),
        )
        for resource, device, holder in self.held():
            family.add_metric((resource, device, *(holder or ("", "", ""))), 1)
        return (family,)


Wrong = tuple[Mapping[ProblemKind, int], Iterable[tuple[str, str, str]]]
"""How many problems there are, by kind; and kind, subject and reason of each that is to be named."""

Left = tuple[str, str]
"""The resource that a device has left, and the reason."""


@dataclass(slots=True, eq=False)  # the registry tells collectors apart by identity
class Problems(Collector):
    """What is wrong, and what has left, asked for at each scrape."""

    said: Callable[[str], str]
    """What of a reason may be told."""
    wrong: Callable[[], Wrong] = lambda: ({}, ())
    left: Callable[[], Iterable[Left]] = lambda: ()

    def collect(self) -> Iterable[Metric]:
        counts, named = self.wrong()
        how_many = GaugeMetricFamily("devhost_problems", "Things that are wrong now.", labels=("kind",))
        for kind in get_args(ProblemKind):
            how_many.add_metric((kind,), counts.get(kind, 0))
        which = GaugeMetricFamily(
            "devhost_problem_info",
            "1 for each thing that is wrong now, at most 100.",
            labels=("kind", "subject", "reason"),
        )
        # a series must not be there twice
        for problem in dict.fromkeys((kind, subject, self.said(reason)) for kind, subject, reason in named):
            which.add_metric(problem, 1)
        left = GaugeMetricFamily(
            "devhost_devices_left",
            "Devices that left the list within the last hour, at most 20 of a resource.",
            labels=("resource", "reason"),
        )
        for departed, count in Counter((name, self.said(reason)) for name, reason in self.left()).items():
            left.add_metric(departed, count)
        return (how_many, which, left)


Entry = tuple[str, str, str, bool, int]
"""An entry's place in the file, name and backend, whether it is optional, and its number of devices."""


@dataclass(frozen=True, slots=True)
class Entries(Collector):
    """The entries of the file, asked for at each scrape: a series ends with its entry."""

    entries: Callable[[], Iterable[Entry]]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "devhost_entry_devices",
            "Devices that an entry of the file serves now, those of all resources that it makes.",
            labels=("entry", "resource", "backend", "optional"),
        )
        for entry, name, backend, optional, devices in self.entries():
            family.add_metric((entry, name, backend, "true" if optional else "false"), devices)
        return (family,)


@dataclass(frozen=True, slots=True)
class Collected(Collector):
    """One metric that has been collected already."""

    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)
