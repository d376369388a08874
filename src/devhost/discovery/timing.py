"""How long discovery waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    resync: float = 60.0
    """Between scans of everything, and between probes: a safeguard against lost events."""

    missing_resync: float = 5.0
    """Between scans while some device waits for a host path that was missing when a pod needed it."""

    scan_budget: float = 0.1
    """Scans may take so long in all without a pause; sustained ones get a fifth of the time.

    The time comes back within half a second. One change makes several events, and each a scan."""

    stale_after: float = 30.0
    """A backend may fail for so long before its devices are no longer considered healthy."""

    silence: float = 60.0
    """An event source that had failed counts as working once it is open for so long without an event."""

    between_probes: float = 5.0
    """At least between two probes, whatever asks for them."""

    provision: float = 60.0
    """Deadline of ``provision``: adapters take a second for a few functions."""

    provision_resync: float = 60.0
    """Between calls of ``provision`` that succeed: hardware may have gone and come back unnoticed."""

    observer: float = 5.0
    """Deadline of one call of an observer's hook."""

    observer_pauses: tuple[float, float] = (5.0, 300.0)
    """First and longest pause of an observer that fails; each is twice as long as the one before."""


NODE = Timing()
"""The timing on a node."""
