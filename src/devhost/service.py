"""One resource in service: its inventory, its supply, its registration with the kubelet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .discovery import Discovery
from .inventory import Inventory
from .kubelet.registration import KubeletSocket, Registration
from .plan import Offer, PlannedResource
from .supply import Supply
from .telemetry.metrics import Metrics


class ResourceService:
    """Serves one resource name from the devices of one discovery.

    Args:
        planned: the resource as the plan has it.
        discovery: the backend that finds its devices; :meth:`rebase` exchanges it.
        changed: called when anything of it is another than before.
    """

    def __init__(
        self,
        planned: PlannedResource,
        discovery: Discovery,
        kubelet: KubeletSocket,
        metrics: Metrics,
        changed: Callable[[], None],
    ) -> None:
        self.name = planned.name
        self.entry = planned.entry
        self.discovery = discovery
        self.inventory = Inventory(time.time, time.monotonic)
        self.supply = Supply(
            planned.name,
            self.inventory,
            discovery.source,
            planned.entry.prefer,
            self._denied,
            lambda: self.discovery.look(),
        )
        self.registration = Registration(self.supply, kubelet, metrics, changed)
        self._metrics = metrics
        metrics.resource_added(self.name, planned.entry.backend)

    def fits(self, planned: PlannedResource, discovery: Discovery) -> bool:
        """Whether this service can go on as ``planned``, without the kubelet noticing a change of kind."""
        same_backend = self.entry.backend == planned.entry.backend
        return same_backend and self.supply.prepares == discovery.source.prepares

    def update(self, planned: PlannedResource, discovery: Discovery, caused_at: float | None) -> None:
        """Takes what the plan gives this resource now."""
        self.entry = planned.entry
        self.discovery = discovery
        self.supply.source = discovery.source
        self.supply.policy = planned.entry.prefer
        self._show(planned.offers, caused_at)

    def empty(self, caused_at: float | None) -> None:
        """The plan has no device for it at present; it stays, at zero."""
        self._show((), caused_at)

    def next_change(self) -> float | None:
        """Seconds until time alone changes what the kubelet should see; ``None`` if it will not."""
        return self.inventory.next_change()

    def gone(self) -> None:
        """The resource has left for good."""
        self._metrics.resource_removed(self.name)

    def _show(self, offers: Sequence[Offer], caused_at: float | None) -> None:
        ward, now = self.discovery.ward, time.monotonic()
        self.inventory.update(offers, lambda device: ward.verdict(device, now), self._why_gone, caused_at)
        snapshot = self.inventory.snapshot
        healthy = snapshot.healthy
        self._metrics.devices(self.name, healthy, len(snapshot.entries) - healthy)

    def _why_gone(self, device: str) -> str:
        if device in self.discovery.devices:
            return "the configuration does not give it to this resource any more"
        return "the device is gone"

    def _denied(self, device: str, missing: Sequence[str]) -> None:
        self.discovery.deny(device, missing)
