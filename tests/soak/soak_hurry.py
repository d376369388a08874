"""Short durations for devhost, so that there are many quiet periods in a minute.

Only waits before a retry or a failure are shortened. Safeguards (the resync, the polling behind inotify) keep
their intervals, so that a lost event becomes a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from devhost.backend.backoff import Backoff
from devhost.planning.timing import AllocationTiming, DiscoveryTiming, KubeletTiming, Timing

LONGEST_HOLD = 0.3
"""Seconds for which a device that failed repeatedly must stay healthy, at most."""

ALLOCATION = AllocationTiming(
    allocate=0.3,
    prepare=0.3,
    grace=0.4,
    release_gap=0.2,
    unnamed=1.5,
    list_allocated=0.05,
    list_held=0.4,
    list_vanished=0.2,
)
"""Durations of Allocate, and of what is concluded from the kubelet's lists."""

TIMING = Timing(
    first_plan=0.5,
    allocation=ALLOCATION,
    discovery=DiscoveryTiming(missing_resync=0.5, stale_after=0.5, between_probes=0.1),
    kubelet=KubeletTiming(
        register=1.0,
        stream=0.5,
        steady=1.0,
        drain=0.5,
        stop_grace=0.1,
        list_pods=0.3,
        question_first=0.2,
        question_gap=0.05,
        question_new=1.5,
    ),
)
"""The host's own durations."""

BACKOFF = 0.05
"""What every back-off is multiplied with."""


@contextmanager
def hurried() -> Iterator[None]:
    """Everything above that a host does not get from :data:`TIMING` is in force within."""
    whole = Backoff.delay
    with (
        patch("devhost.discovery.health.LONGEST_HOLD", LONGEST_HOLD),
        patch.object(Backoff, "delay", lambda self: BACKOFF * whole(self)),
    ):
        yield
