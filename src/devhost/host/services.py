"""The resources in service, started and retired as planned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.allocator import Allocator
from devhost.allocation.inventory import Inventory
from devhost.runtime.log import get
from devhost.runtime.tasks import Tasks

from .service import ResourceService
from .shown.publisher import Present

if TYPE_CHECKING:
    from devhost.planning.sides import Listed

log = get(__name__)


class Services(Mapping[str, ResourceService]):
    """The services by the names of their resources."""

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
        return {name: service.inventory for name, service in self._services.items()}

    def allocators(self) -> Mapping[str, Allocator]:
        return {name: service.allocator for name, service in self._services.items()}

    def listed(self) -> Mapping[str, Listed]:
        """What the kubelet has of each resource."""
        return {name: service.listed() for name, service in self._services.items()}

    def sockets(self) -> Mapping[str, Path]:
        """The sockets that are registered now, by resource."""
        found = ((name, service.registration.serving) for name, service in self._services.items())
        return {name: path for name, path in found if path is not None}

    def present(self) -> Iterator[Present]:
        """Every resource with its backend and its devices."""
        for name, service in self._services.items():
            yield name, service.entry.backend, service.inventory.present()

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
