"""devhost's patience made short, so that a minute of soaking holds many quiet periods.

Only waits that end in giving up or trying again are shortened. What must work without a net (the slow
resync, the polling behind inotify) keeps its length: an event that is lost shows up as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from devhost.pace import Backoff

SHORT = {
    "devhost.discovery.DENIED_RESYNC": 0.5,
    "devhost.discovery.STALE_AFTER": 0.5,
    "devhost.health.LONGEST_HOLD": 0.3,
    "devhost.host.FIRST_PLAN": 0.5,
    "devhost.holding.APART": 0.2,
    "devhost.holding.EAGER": 0.05,
    "devhost.holding.MISSED": 0.2,
    "devhost.holding.PATIENCE": 1.5,
    "devhost.holding.RELAXED": 0.4,
    "devhost.inventory.GRACE": 0.4,
    "devhost.kubelet.podresources.DEADLINE": 0.3,
    "devhost.kubelet.registration.REGISTER_DEADLINE": 1.0,
    "devhost.kubelet.registration.STREAM_DEADLINE": 0.5,
    "devhost.kubelet.registration.STEADY": 1.0,
    "devhost.kubelet.registration.DRAIN": 0.5,
    "devhost.kubelet.server.STOP_GRACE": 0.3,
    "devhost.kubelet.timetable.FIRST": 0.2,
    "devhost.kubelet.timetable.GAP": 0.05,
    "devhost.kubelet.timetable.PATIENCE": 1.5,
    "devhost.probing.APART": 0.1,
    "devhost.supply.ALLOCATE_DEADLINE": 0.3,
    "devhost.supply.PREPARE_DEADLINE": 0.3,
}
"""Seconds by the constant's name."""

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
