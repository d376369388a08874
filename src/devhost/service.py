"""One resource in service: its inventory, its supply, its registration with the kubelet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from . import changes
from .cdi import SpecDirectory
from .discovery import Discovery
from .injection import Injection
from .inventory import Inventory
from .kubelet.registration import KubeletSocket, Registration
from .model import Device, Health
from .plan import Offer, PlannedResource, units
from .settings import Inject
from .supply import Supply
from .telemetry.metrics import Metrics


class ResourceService:
    """Serves one resource name from the devices of one discovery.

    Args:
        planned: the resource as the plan has it.
        discovery: the backend that finds its devices; :meth:`update` may exchange it.
        changed: called when anything of it is another than before.
        specifications: where its CDI specification goes, if it has one.
        held: called when a list of who holds what may be wanted sooner than before.
    """

    def __init__(
        self,
        planned: PlannedResource,
        discovery: Discovery,
        kubelet: KubeletSocket,
        metrics: Metrics,
        changed: Callable[[], None],
        specifications: SpecDirectory,
        held: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = planned.name
        self.entry = planned.entry
        self.discovery = discovery
        self.inventory = Inventory(time.time, time.monotonic, held, partial(changes.tell, self.name))
        self.supply = Supply(
            planned.name,
            self.inventory,
            discovery.source,
            planned.entry.prefer,
            self._denied,
            lambda: self.discovery.recheck(),
        )
        self._offers: Sequence[Offer] = ()
        self._caused_at: float | None = None
        self._left = False
        self._injection: Injection | None = None
        if planned.entry.inject is Inject.CDI:
            self._injection = Injection(self.supply, specifications, self._publish)
            self.supply.inject = self._injection.inject
        self.registration = Registration(self.supply, kubelet, metrics, changed)
        self._metrics = metrics
        metrics.resource_added(self.name, planned.entry.backend)

    def fits(self, planned: PlannedResource, discovery: Discovery) -> bool:
        """Whether this service can go on as ``planned``, without the kubelet noticing a change of kind."""
        same_backend = self.entry.backend == planned.entry.backend
        same_inject = self.entry.inject is planned.entry.inject
        return same_backend and same_inject and self.supply.prepares == discovery.source.prepares

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

    async def run(self) -> None:
        """Serves the resource until :meth:`stop` or :meth:`drain`.

        One that is injected by CDI is registered only when its specification has been written, or could
        not be and the list says so.
        """
        if self._injection is None:
            await self.registration.run()
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(self._injection.run())
            await self._injection.first.wait()
            await self.registration.run()
            self._injection.stop()

    def stop(self) -> None:
        """Leaves, keeping the kubelet's count and the specification: this process will be back."""
        self._leave()
        self.registration.stop()

    async def drain(self) -> None:
        """Tells the kubelet that no device is left, then leaves."""
        self._leave()
        await self.registration.drain()

    async def withdraw(self) -> None:
        """Clears away what is left when the resource is gone for good, after :meth:`run` has ended."""
        if self._injection is not None:
            await self._injection.withdraw()

    def next_change(self) -> float | None:
        """Seconds until time alone changes what the kubelet should see; ``None`` if it will not."""
        return self.inventory.next_change()

    def gone(self) -> None:
        """The resource has left for good."""
        self._metrics.resource_removed(self.name)

    def _leave(self) -> None:
        self._left = True
        if self._injection is not None:
            self._injection.stop()

    def _show(self, offers: Sequence[Offer], caused_at: float | None) -> None:
        self._offers, self._caused_at = offers, caused_at
        if self._injection is not None:
            ward, now = self.discovery.ward, time.monotonic()
            devices = {offer.device.id: offer.device for offer in offers}
            healthy = {name: device for name, device in devices.items() if ward.verdict(device, now).healthy}
            self._injection.want(healthy, devices.keys() - healthy.keys())
            if not self._injection.first.is_set():
                return
        self._publish()

    def _publish(self) -> None:
        if self._left:
            return
        now, offers = time.monotonic(), self._offers
        shown = self.inventory.snapshot.devices() if self._injection else {}

        def verdict(device: Device) -> Health:
            health = self.discovery.ward.verdict(device, now)
            if self._injection is None or not health.healthy:
                return health
            return self._injection.verdict(device, listed=shown.get(device.id, False))

        if self._injection is not None:
            offers = [
                offer for offer in offers if offer.device.id in shown or self._injection.named(offer.device)
            ]
        tokens = units(self.entry.share.of, offers)
        self.inventory.update(tokens, verdict, self._why_gone, self._caused_at)
        self._caused_at = None
        snapshot = self.inventory.snapshot
        healthy = snapshot.healthy
        self._metrics.devices(self.name, healthy, len(snapshot.entries) - healthy)

    def _why_gone(self, device: str) -> str:
        if device in self.discovery.devices:
            return "the configuration does not give it to this resource any more"
        return "the device is gone"

    def _denied(self, device: str, missing: Sequence[str]) -> None:
        self.discovery.deny(device, missing)
