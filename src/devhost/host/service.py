"""The resources in service, each with its inventory, its allocator and its registration with the kubelet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.allocations import ResourceAllocations
from devhost.allocation.allocator import Allocator, LatePreference
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.allocation.given import Given as AllGiven
from devhost.allocation.injection import Injection
from devhost.allocation.inventory import Given, Inventory
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend.frozen import frozen
from devhost.backend.model import Device, Health, unhealthy
from devhost.discovery.health import HealthOf, worst
from devhost.discovery.scanner import EntryHealth, Scanner
from devhost.kubelet.given import GivenKeeper
from devhost.kubelet.kubelet_socket import KubeletSocket
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.kubelet.registration import Registration, RegistrationState
from devhost.kubelet.rivals import Rivals
from devhost.planning.claims import PodClaims, Reason
from devhost.planning.plan import Offer, PlannedResource, Units
from devhost.planning.settings import Inject, Of, ResourceSettings
from devhost.planning.timing import Timing
from devhost.runtime.log import get
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Metrics

from .shown.now import NONE, ResourceNow, why_not_listed
from .shown.publication import EventPublisher, Publication

if TYPE_CHECKING:
    from devhost.planning.sides import Listed

log = get(__name__)

_NUMBERS = count()
"""Numbers the services, so that one that replaces another of its name differs from it."""


@frozen
class ServiceParts:
    """The parts that all services share."""

    kubelet: KubeletSocket
    rivals: Rivals
    pod_resources: PodResourcesPoller
    cdi_files: SpecFiles
    device_info: DeviceInfoFiles
    preferred: LatePreference
    publisher: EventPublisher
    publication: Publication
    given: GivenKeeper
    metrics: Metrics
    changed: Callable[[], None]
    """Called when the status of a service has changed."""
    timing: Timing


def terms(scanner: Scanner, binding: PodClaims, given: AllGiven) -> object:
    """What every list of a backend's devices is made from, besides the plan: equal if it has not changed."""
    return scanner.health.conditions(), bool(binding), bool(given.differences)


@frozen
class Occasion:
    """What comes with a plan: the :func:`terms`, and by id why it ``refused`` devices to the resource.

    ``caused_at`` is the monotonic time of the event that led to it.
    """

    caused_at: float | None
    terms: object
    refused: Mapping[str, Reason]


class ResourceService:
    """Serves one resource name from the devices of one scanner."""

    def __init__(
        self,
        planned: PlannedResource,
        scanner: Scanner,
        allocations: ResourceAllocations,
        parts: ServiceParts,
    ) -> None:
        self.name = planned.name
        self.entry = planned.entry
        self.scanner = scanner
        self._number = next(_NUMBERS)
        self._kubelet = parts.kubelet
        self._publisher = parts.publisher
        self._publication = parts.publication
        self._metrics = parts.metrics
        self.inventory = Inventory(
            time.time,
            time.monotonic,
            allocations,
            planned.entry.backend,
            self._allocated,
            parts.timing.allocation,
        )
        backend = ResourceBackend(planned.name, scanner, planned.entry)
        self._injection = self._new_injection(backend, parts)
        self.allocator = Allocator(
            self.inventory,
            backend,
            planned.entry,
            self._injection,
            parts.device_info,
            parts.preferred,
            parts.pod_resources,
            parts.timing.allocation,
            parts.given.check,
        )
        self._offers: Sequence[Offer] = ()
        self._units = Units()
        self._refused: Mapping[str, Reason] = NONE
        self._caused_at: float | None = None
        self._planned: PlannedResource | None = None
        """The part of the plan that has taken effect; ``None`` if it has no devices for this resource."""
        self._shown: tuple[object, ...] = ()
        """What the last list was made from, apart from the time."""
        self._steady = False
        """Whether time alone does not change the list: every device in it is healthy."""
        self._health = EntryHealth(scanner, planned.entry)
        self._left = False
        self.registration = Registration(
            self.allocator,
            parts.kubelet,
            parts.rivals,
            parts.metrics,
            parts.changed,
            take_over=planned.entry.take_over,
            timing=parts.timing.kubelet,
        )
        self._metrics.begin("resource", self.name)
        (self._metrics.begin if self.allocator.prepares else self._metrics.end)("prepared", self.name)

    def _new_injection(self, backend: ResourceBackend, parts: ServiceParts) -> Injection:
        if self.entry.inject is Inject.DIRECT:
            return Injection()
        from devhost.allocation.cdi.injector import CdiInjection  # most nodes have no such resource

        deadline = parts.timing.allocation.render
        return CdiInjection(backend, self.inventory, parts.cdi_files, self._publish, deadline=deadline)

    def fits(self, planned: PlannedResource, scanner: Scanner) -> bool:
        """Whether this service can continue as ``planned`` without a new registration."""
        if planned is self._planned and scanner is self.scanner:
            return True
        same_backend = self.entry.backend == planned.entry.backend
        same_inject = self.entry.inject is planned.entry.inject
        prepares = planned.entry.acts_before_start(prepare=scanner.runner.abilities.prepare)
        return same_backend and same_inject and self.allocator.prepares == prepares

    def update(self, planned: PlannedResource, scanner: Scanner, occasion: Occasion) -> None:
        """Takes the devices that the plan gives this resource."""
        if planned is not self._planned or scanner is not self.scanner:
            self.scanner, self._planned = scanner, planned
            self._follow(planned.entry)
            self.allocator.follow(scanner, planned.entry, len(planned.offers))
        self._show(planned.offers, occasion)

    def empty(self, entry: ResourceSettings, occasion: Occasion) -> None:
        """The plan has no device for this resource; it stays registered with none."""
        self._planned = None
        self._follow(replace(entry, inject=self.entry.inject))  # until :meth:`fits` is asked
        self._show((), occasion)

    def wake(self) -> None:
        """A device node or a holder may have changed, although no device has."""
        self._injection.wake()

    async def run(self) -> None:
        """Serves the resource until :meth:`stop` or :meth:`drain`.

        It is registered only once there may be a list: an empty first list would be wrong.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._injection.run())
            await self._injection.ready.wait()
            await self.registration.run()
            self._injection.stop()

    def stop(self) -> None:
        """Stops, so that the kubelet keeps the number of devices, and pods their specification."""
        self._leave()
        self.registration.stop()

    async def drain(self) -> None:
        """Sends the kubelet an empty list, then stops."""
        self._leave()
        await self.registration.drain()

    def next_change(self) -> float | None:
        """Seconds until time alone changes what the kubelet should see; ``None`` if it will not."""
        if self._steady:
            return None
        waits = self.inventory.next_change(), self._health.next_change()
        return min((wait for wait in waits if wait is not None), default=None)

    @property
    def failure(self) -> str:
        """Why it is not served as it should be, as logged; empty while nothing is wrong.

        A missing kubelet is no failure of the resource.
        """
        condition = self.registration.condition
        failed = condition.error if condition.state is not RegistrationState.REGISTERED else ""
        return failed or self.allocator.fault or self._injection.failure

    def missing(self) -> str:
        """Why the kubelet has no list stream open for it; empty if it has one.

        It is also empty if another plugin has the resource: that is reported as a problem and must not stop a
        rollout of devhost.
        """
        if self.registration.streams or self.registration.yields:
            return ""
        state = self.registration.condition.state
        waits = self._kubelet.failure if state is RegistrationState.WAITING else ""
        reason = self.failure or self._kubelet.unread or waits
        return f"{state}: {reason}" if reason else str(state)

    def now(self) -> ResourceNow:
        """The present state, to be shown."""
        server = self.registration.server
        return ResourceNow(
            self.name,
            self.entry,
            self.inventory.snapshot,
            self.registration.condition,
            server.streams if server else 0,
            server.path.name if server else None,
            self.failure,
            self.missing(),
            self._offers,
            self._refused,
            self._number,
        )

    def listed(self) -> Listed:
        """How many healthy tokens the kubelet knows; unknown while a stream has not sent the newest list."""
        from devhost.planning.sides import Listed  # only where DRA is used

        sent = self.registration.up_to_date
        return Listed(self.entry.backend, self.inventory.snapshot.healthy if sent else None)

    def gone(self) -> None:
        """The resource has left the configuration."""
        self._metrics.end("resource", self.name)
        self._metrics.end("prepared", self.name)

    def _leave(self) -> None:
        self._left = True
        self._injection.stop()

    def _follow(self, entry: ResourceSettings) -> None:
        edited = entry.take_over != self.entry.take_over
        self.entry = entry
        self._health.follow(self.scanner, entry)
        if edited:
            self.registration.follow(entry.take_over)

    def _show(self, offers: Sequence[Offer], occasion: Occasion) -> None:
        self._refused = occasion.refused
        revision = self.inventory.allocations.revision
        shown = id(offers), id(self.scanner), self.entry, revision, occasion.terms
        if self._steady and shown == self._shown:
            return
        self._shown, self._offers, self._caused_at = shown, offers, occasion.caused_at
        self._injection.want(offers, self._health.now())
        self._publish()

    def _publish(self) -> None:
        if self._left or not self._injection.ready.is_set():
            return
        own = self._health.now()
        offers, health_of = self._injection.listable(self._offers, own)
        health_of = self._with_given(offers, health_of)
        topology = self.entry.topology
        tokens = self._units.make(self.entry.share.of, offers, topology=topology)
        self.inventory.update(
            tokens,
            health_of,
            self.why_not,
            self._caused_at,
            topology=topology,
            grounds=self._health.grounds() if health_of is own else None,
        )
        self._caused_at = None
        self._publication.soon()
        unhealthy = self.inventory.snapshot.tally.unhealthy
        given = self.inventory.allocations.everything.given.differences
        bound = given or self.inventory.allocations.everything.pod_claims()
        # a token of all devices is healthy while some of them are not
        partly = self.entry.share.of is Of.ALL and not all(self.inventory.snapshot.devices().values())
        self._steady = not (unhealthy or partly or self.entry.healthy_while or bound)

    def _with_given(self, offers: Sequence[Offer], health_of: HealthOf) -> HealthOf:
        """The same health, and Unhealthy for a device of which a container has something else.

        Of shared devices, only the container's own tokens are (:meth:`.Inventory.update`).
        """
        given, backend = self.inventory.allocations.everything.given, self.entry.backend
        if self.entry.share.of == Of.ALL or not given.differences:
            return health_of
        alone = {offer.device.id for offer in offers if offer.replicas == 1}

        def judged(device: Device) -> Health:
            reason = given.reason(self.name, (backend, device.id)) if device.id in alone else None
            return worst(health_of(device), unhealthy(reason.text)) if reason else health_of(device)

        return judged

    def why_not(self, device: str) -> Reason:
        differences = self.inventory.allocations.everything.given.differences
        key = self.entry.backend, device
        return why_not_listed(self.name, key, self.scanner.devices, differences, self._refused)

    def _allocated(self, given: Given) -> None:
        self._publisher.allocated(self.name, self.entry.backend, given)
        self._publication.show()  # an observer knows a device before it is allocated
        self._publisher.flush(self._publication.shown)


class Services(Mapping[str, ResourceService]):
    """The services by the names of their resources, started and retired as planned."""

    def __init__(self, tasks: Tasks, retired: Callable[[], None]) -> None:
        self._tasks = tasks
        self._retired = retired
        self._services: dict[str, ResourceService] = {}

    def __getitem__(self, name: str) -> ResourceService:
        return self._services[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._services)

    def __len__(self) -> int:
        return len(self._services)

    def start(self, service: ResourceService) -> None:
        """Starts serving a resource, once an earlier service of that name has left."""
        self._services[service.name] = service
        earlier = self._tasks.take(f"retire {service.name}")
        self._tasks.spawn(f"resource {service.name}", partial(_serve, service, earlier))

    def retire(self, name: str) -> None:
        """Retires a resource: sends an empty list, then ends its service."""
        service = self._services.pop(name)
        service.inventory.clear()  # at once: this plan may give the devices to other resources
        running = self._tasks.take(f"resource {name}")
        log.info("resource removed", resource=name)
        self._tasks.spawn(f"retire {name}", partial(self._leave, service, running))

    def rest(self) -> None:
        """Serves on until the next devhost has registered the resources."""
        for service in self._services.values():
            service.registration.rest()

    def stop(self) -> None:
        """Stops all services, so that the kubelet keeps the numbers of devices."""
        for service in self._services.values():
            service.stop()

    def leaving(self) -> list[asyncio.Task[None]]:
        """The tasks of services that run or are being retired."""
        return [*self._tasks.named("resource ").values(), *self._tasks.named("retire ").values()]

    def inventories(self) -> Mapping[str, Inventory]:
        """The inventories of all resources."""
        return {name: service.inventory for name, service in self._services.items()}

    def allocators(self) -> Mapping[str, Allocator]:
        """The allocators of all resources."""
        return {name: service.allocator for name, service in self._services.items()}

    def listed(self) -> Mapping[str, Listed]:
        """What the kubelet has of each resource."""
        return {name: service.listed() for name, service in self._services.items()}

    def sockets(self) -> Mapping[str, Path]:
        """The sockets that are registered now, by resource."""
        found = ((name, service.registration.serving) for name, service in self._services.items())
        return {name: path for name, path in found if path is not None}

    async def _leave(self, service: ResourceService, running: asyncio.Task[None] | None) -> None:
        await service.drain()
        if running is not None:
            await asyncio.wait([running])
        if service.name not in self._services:
            service.gone()
        self._retired()


async def _serve(service: ResourceService, earlier: asyncio.Task[None] | None) -> None:
    if earlier is not None:
        await asyncio.wait([earlier])
    await service.run()
