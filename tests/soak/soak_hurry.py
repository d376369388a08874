"""devhost's patience made short, so that a minute of soaking holds many quiet periods.

Only waits that end in giving up or trying again are shortened. What must work without a net (the slow
resync, the polling behind inotify) keeps its length: an event that is lost shows up as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from devhost.backend.backoff import Backoff
from devhost.discovery.timing import Timing

SHORT = {
    "devhost.discovery.health.LONGEST_HOLD": 0.3,
    "devhost.host.host.FIRST_PLAN": 0.5,
    "devhost.planning.held.APART": 0.2,
    "devhost.planning.held.EAGER": 0.05,
    "devhost.planning.held.MISSED": 0.2,
    "devhost.planning.held.PATIENCE": 1.5,
    "devhost.planning.held.RELAXED": 0.4,
    "devhost.allocation.inventory.GRACE": 0.4,
    "devhost.kubelet.podresources.DEADLINE": 0.3,
    "devhost.kubelet.registration.REGISTER_DEADLINE": 1.0,
    "devhost.kubelet.registration.STREAM_DEADLINE": 0.5,
    "devhost.kubelet.registration.STEADY": 1.0,
    "devhost.kubelet.registration.DRAIN": 0.5,
    "devhost.kubelet.server.STOP_GRACE": 0.3,
    "devhost.kubelet.poll_schedule.FIRST": 0.2,
    "devhost.kubelet.poll_schedule.GAP": 0.05,
    "devhost.kubelet.poll_schedule.PATIENCE": 1.5,
    "devhost.allocation.allocator.ALLOCATE_DEADLINE": 0.3,
    "devhost.allocation.allocator.PREPARE_DEADLINE": 0.3,
}
"""Seconds by the constant's name."""

DISCOVERY = Timing(missing_resync=0.5, stale_after=0.5, between_probes=0.1)
"""What the host is given instead of the timing of a node."""

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
