"""Metrics that are not counted but asked for at each scrape. Import it only where metrics are served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import get_args

from .document import ProblemKind
from .exposition import Gathered, Metric

Held = tuple[str, str, tuple[str, str, str] | None]
"""A resource, one of its devices, and the container that holds it: namespace, pod and name, if known."""

Wrong = tuple[Mapping[ProblemKind, int], Iterable[tuple[str, str, str]]]
"""How many problems there are, by kind; and kind, subject and reason of each that is to be named."""

Left = tuple[str, str]
"""The resource that a device has left, and the reason."""


def holders(held: Iterable[Held]) -> Metric:
    """Who holds what: a series ends with the container."""
    return Gathered(
        "devhost_device_held",
        "1 for each device and container that holds it; the container's labels are empty if unknown.",
        ("resource", "device", "namespace", "pod", "container"),
        (((resource, device, *(holder or ("", "", ""))), 1) for resource, device, holder in held),
    )


def problems(wrong: Wrong, left: Iterable[Left], said: Callable[[str], str]) -> tuple[Metric, ...]:
    """What is wrong, and what has left.

    Args:
        said: what of a reason may be told.
    """
    counts, named = wrong
    # a series must not be there twice
    infos = dict.fromkeys((kind, subject, said(reason)) for kind, subject, reason in named)
    departed = Counter((name, said(reason)) for name, reason in left)
    return (
        Gathered(
            "devhost_problems",
            "Things that are wrong now.",
            ("kind",),
            (((kind,), counts.get(kind, 0)) for kind in get_args(ProblemKind)),
        ),
        Gathered(
            "devhost_problem_info",
            "1 for each thing that is wrong now, at most 100.",
            ("kind", "subject", "reason"),
            ((info, 1) for info in infos),
        ),
        Gathered(
            "devhost_devices_left",
            "Devices that left the list within the last hour, at most 20 of a resource.",
            ("resource", "reason"),
            departed.items(),
        ),
    )


Entry = tuple[str, str, str, bool, int]
"""An entry's place in the file, name and backend, whether it is optional, and its number of devices."""


def entries(found: Iterable[Entry]) -> Metric:
    """The entries of the file: a series ends with its entry."""
    return Gathered(
        "devhost_entry_devices",
        "Devices that an entry of the file serves now, those of all resources that it makes.",
        ("entry", "resource", "backend", "optional"),
        (
            ((entry, name, backend, "true" if optional else "false"), devices)
            for entry, name, backend, optional, devices in found
        ),
    )
