"""How long the host waits."""

from __future__ import annotations

from dataclasses import field

from devhost.allocation.timing import AllocationTiming
from devhost.backend.frozen import frozen
from devhost.discovery.timing import DiscoveryTiming
from devhost.kubelet.timing import KubeletTiming
from devhost.planning.dra_timing import DraTiming


@frozen
class ConfigTiming:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    poll: float = 5.0
    """Between two checks if inotify reports no event."""

    settle: float = 0.1
    """The content must stay the same for so long before it is read: editors write in several steps."""

    retry: float = 15.0
    """After which a refused file is read again even if it is the same.

    The error may have been in a drop-in or in a directory of ``backendPaths``, and fixed there."""


@frozen
class Timing:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    first_plan: float = 2.0
    """The first plan waits so long for backends and for the kubelet's list of who holds what.

    Without them it could give a device to a resource and take it back a moment later, or give away a device
    that a container holds through another resource."""

    plan_piece: float = 0.002
    """A plan that takes longer lets other work be done in between."""

    reload: float = 30.0
    """Deadline for reading the configuration; importing drop-ins is part of it."""

    labels_settle: float = 1.0
    """From a change to the node labels that follow from it: several devices often change at once."""

    labels_pending: float = 2.0
    """Between checks whether a backend whose labels are wanted has listed its devices."""

    labels_resync: float = 60.0
    """After which every file with labels is checked: another program may have removed one."""

    leave: float = 4.0
    """For stopping in good order; then the process ends anyway."""

    flush: float = 1.0
    """For observers to receive queued events while the host stops."""

    allocation: AllocationTiming = field(default_factory=AllocationTiming)
    """Of Allocate, and of the conclusions from the kubelet's lists."""

    config: ConfigTiming = field(default_factory=ConfigTiming)
    """Of the watch on the configuration file."""

    discovery: DiscoveryTiming = field(default_factory=DiscoveryTiming)
    """Of scans, probes and observers."""

    kubelet: KubeletTiming = field(default_factory=KubeletTiming)
    """Of everything that talks to the kubelet."""

    dra: DraTiming = field(default_factory=DraTiming)
    """Of Dynamic Resource Allocation."""


NODE = Timing()
"""The timing on a node."""
