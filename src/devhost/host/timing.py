"""How long the host waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from devhost.config.watcher import Timing as ConfigTiming
from devhost.discovery.timing import Timing as DiscoveryTiming
from devhost.kubelet.timing import Timing as KubeletTiming


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    first_plan: float = 2.0
    """The first plan waits so long for backends and for the kubelet's list of who holds what.

    Without them it could give a device to one resource and take it back a moment later, or give to one
    resource what a container holds through another."""

    reload: float = 30.0
    """Deadline for reading the configuration; importing drop-ins is part of it."""

    leave: float = 4.0
    """For leaving the kubelet in good order; then the process ends anyway."""

    flush: float = 1.0
    """For observers, meanwhile, to receive what is still queued for them."""

    config: ConfigTiming = field(default_factory=ConfigTiming)
    """Of the watch on the configuration file."""

    discovery: DiscoveryTiming = field(default_factory=DiscoveryTiming)
    """Of scans, probes and observers."""

    kubelet: KubeletTiming = field(default_factory=KubeletTiming)
    """Of everything that talks to the kubelet."""


NODE = Timing()
"""The timing on a node."""
