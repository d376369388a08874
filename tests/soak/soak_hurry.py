"""devhost's patience made short, so that a minute of soaking holds many quiet periods.

Only waits that end in giving up or trying again are shortened. What must work without a net (the slow
resync, the polling behind inotify) keeps its length: an event that is lost shows up as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from devhost.backend.backoff import Backoff
from devhost.discovery.timing import Timing as DiscoveryTiming
from devhost.host.timing import Timing
from devhost.kubelet.timing import Timing as KubeletTiming

SHORT = {
    "devhost.discovery.health.LONGEST_HOLD": 0.3,
    "devhost.allocation.allocations.APART": 0.2,
    "devhost.allocation.allocations.EAGER": 0.05,
    "devhost.allocation.allocations.MISSED": 0.2,
    "devhost.allocation.allocations.PATIENCE": 1.5,
    "devhost.allocation.allocations.RELAXED": 0.4,
    "devhost.allocation.inventory.GRACE": 0.4,
    "devhost.allocation.allocator.ALLOCATE_DEADLINE": 0.3,
    "devhost.allocation.allocator.PREPARE_DEADLINE": 0.3,
}
"""Seconds by the constant's name."""

TIMING = Timing(
    first_plan=0.5,
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
def shortened(module: str = "devhost") -> Iterator[None]:
    """The short waits of a module, or of the modules of a package, are in force within."""
    with ExitStack() as stack:
        for name, value in SHORT.items():
            if name.startswith(f"{module}."):
                stack.enter_context(patch(name, value))
        yield


@contextmanager
def hurried() -> Iterator[None]:
    """Everything above is in force within."""
    whole = Backoff.delay
    with shortened(), patch.object(Backoff, "delay", lambda self: BACKOFF * whole(self)):
        yield
