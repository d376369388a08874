"""devhost's patience made short, so that a minute of soaking holds many quiet periods.

Only waits that end in giving up or trying again are shortened. What must work without a net (the slow
resync, the polling behind inotify) keeps its length: an event that is lost shows up as a finding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from devhost.pace import Backoff

SHORT = {
    "devhost.discovery.DENIED_RESYNC": 0.5,
    "devhost.discovery.STALE_AFTER": 0.5,
    "devhost.health.LONGEST_HOLD": 0.3,
    "devhost.host.FIRST_PLAN": 0.5,
    "devhost.inventory.GRACE": 0.4,
    "devhost.kubelet.registration.REGISTER_DEADLINE": 1.0,
    "devhost.kubelet.registration.STREAM_DEADLINE": 0.5,
    "devhost.kubelet.registration.STEADY": 1.0,
    "devhost.kubelet.registration.DRAIN": 0.5,
    "devhost.kubelet.server.STOP_GRACE": 0.3,
    "devhost.supply.ALLOCATE_DEADLINE": 0.3,
    "devhost.supply.PREPARE_DEADLINE": 0.3,
}
"""Seconds by the constant's name."""

BACKOFF = 0.05
"""What every back-off is multiplied with."""


@contextmanager
def hurried() -> Iterator[None]:
    """Everything above is in force within."""
    whole = Backoff.delay
    patches = [patch(name, value) for name, value in SHORT.items()]
    patches.append(patch.object(Backoff, "delay", lambda self: BACKOFF * whole(self)))
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in reversed(patches):
            one.stop()
