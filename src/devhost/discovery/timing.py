"""How long discovery waits."""

from __future__ import annotations

from devhost.backend.frozen import frozen


@frozen
class DiscoveryTiming:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    resync: float = 60.0
    """Between full scans, and between probes: a safeguard against lost events."""

    missing_resync: float = 5.0
    """Between two looks for a host path that was missing when a pod needed it.

    While one is missing that ``give`` needs, the pause doubles from here up to ``resync``."""

    scan_budget: float = 0.1
    """Total duration of scans without a pause; sustained scans get a fifth of the time.

    The budget refills within half a second. One change causes several events, and each of them a scan."""

    stale_after: float = 30.0
    """How long a backend may fail before its devices become Unhealthy."""

    silence: float = 60.0
    """An event source that had failed counts as working after being open for this long without an event."""

    between_probes: float = 5.0
    """Least time between two probes, regardless of what requests them."""

    provision: float = 60.0
    """Deadline of ``provision``: an adapter takes a second for a few functions."""

    provision_resync: float = 60.0
    """Between successful calls of ``provision``: hardware may have been replaced without an event."""

    releases: float = 2.0
    """Between checks whether the release of a driver is over."""

    verdicts: float = 5.0
    """Between two readings of the directory of verdicts if inotify reports no event."""

    observer: float = 5.0
    """Deadline of one call of an observer's hook."""

    observer_pauses: tuple[float, float] = (5.0, 300.0)
    """First and longest pause of a failing observer; each pause is twice as long as the one before."""

    handover_before: float = 5.0
    """Deadline of ``devhost_before_container``: the kubelet admits no other pod meanwhile."""

    handover_wait: float = 5.0
    """How long a container waits until its devices are prepared; then it is refused."""

    handover_pod: float = 0.5
    """For so long after a container got a device, the next one that gets it is of the same pod.

    An init container passes its devices on while its pod is admitted. No container starts and ends, and no
    pod follows it, within this time."""

    handover_after: float = 60.0
    """Deadline of ``devhost_after_release``."""

    handover_pauses: tuple[float, float] = (1.0, 60.0)
    """First and longest pause after ``devhost_after_release`` failed; each is twice as long as before."""


NODE = DiscoveryTiming()
"""The timing on a node."""
