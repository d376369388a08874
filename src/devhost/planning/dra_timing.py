"""How long Dynamic Resource Allocation waits."""

from __future__ import annotations

from devhost.backend.frozen import frozen

SETTLE = 30.0
"""Seconds after which every scheduler has noticed that a device left its ResourceSlice."""

RECHECK = 60.0
"""Seconds between two lists of ResourceClaims while one of them has a moving device allocated."""


@frozen
class DraTiming:
    """Durations in seconds; tests pass shorter ones."""

    settle: float = 1.0
    """From a change to the writes of slices that follow from it: devices often change together."""

    gap: float = 5.0
    """Least time between two rounds of writes: each write wakes every scheduler."""

    write: float = 0.2
    """Between two writes."""

    node: float = 3.0
    """Between two looks at the Node; a kubelet updates its status about every ten seconds."""

    sockets: float = 5.0
    """Between two checks that the sockets of a driver still exist."""

    statuses: float = 5.0
    """Least time between two writes of the status of one claim."""

    schedulers: float = SETTLE
    """See :data:`SETTLE`."""

    recheck: float = RECHECK
    """See :data:`RECHECK`."""


NODE = DraTiming()
"""The timing on a node."""
