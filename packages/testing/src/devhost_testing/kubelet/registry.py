"""A kubelet's state of resources and plugins. No I/O.

Two generations of kubelets differ in how they identify a plugin. Up to 1.36 it is the resource name alone,
and the newest plugin takes over the name. From 1.37 on it is the name together with the socket path, and
several plugins can serve one resource. Both behave badly towards a plugin that is careless with its streams;
this is modelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from devhost.kubelet.api import HEALTHY

from .events import ListedDevice

Profile = Literal["1.36", "1.37"]


class Connection(Protocol):
    """The part of a connection to a plugin that the registry uses."""

    @property
    def resource(self) -> str: ...

    @property
    def path(self) -> str: ...


class AlreadyConnected(Exception):
    """The text with which a 1.37 kubelet refuses a second registration on a live path."""


@dataclass(frozen=True, slots=True)
class Options:
    """A plugin's answer to GetDevicePluginOptions."""

    pre_start_required: bool = False
    preferred_allocation: bool = False


@dataclass(eq=False, slots=True)
class Endpoint:
    """A registered plugin; without connection and options if only the checkpoint has it.

    ``stopped_at`` is the time its stream ended, in seconds of the registry's clock.
    """

    connection: Connection | None
    options: Options = Options()
    stopped_at: float | None = None


@dataclass(slots=True)
class Resource:
    """The kubelet's state of a resource. ``listed`` becomes true with the first list or disconnection."""

    devices: dict[str, ListedDevice] = field(default_factory=dict)
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    listed: bool = False
    connections: list[Connection] = field(default_factory=list)
    endpoints: list[Endpoint] = field(default_factory=list)

    @property
    def primary(self) -> Endpoint | None:
        """The endpoint that is used for this resource: the newest one."""
        return self.endpoints[-1] if self.endpoints else None


class Registry(ABC):
    """Resources by name.

    A resource keeps its capacity for ``stop_grace`` seconds after its last plugin ended. ``restored`` are the
    names in a checkpoint.
    """

    def __init__(self, clock: Callable[[], float], stop_grace: float, restored: Iterable[str] = ()) -> None:
        self._clock = clock
        self._stop_grace = stop_grace
        self.resources: dict[str, Resource] = {}
        for name in restored:
            endpoint = Endpoint(None, stopped_at=clock())
            self.resources[name] = Resource(listed=True, endpoints=[endpoint])

    def resource(self, name: str) -> Resource:
        """The state of ``name``, created if there is none."""
        return self.resources.setdefault(name, Resource())

    @abstractmethod
    def enlist(self, connection: Connection) -> None:
        """A registration begins: the connection is added before it is dialled."""

    @abstractmethod
    def strike(self, connection: Connection) -> None:
        """A registration failed, or its plugin is disconnected."""

    @abstractmethod
    def connect(self, connection: Connection, options: Options) -> None:
        """The plugin returned its options and becomes an endpoint.

        Raises ``AlreadyConnected`` if this kubelet has a live endpoint on the same path.
        """

    @abstractmethod
    def successor(self, connection: Connection) -> Connection | None:
        """The connection to close after the stream of ``connection`` ended, if any."""

    @abstractmethod
    def disconnect(self, connection: Connection) -> Endpoint | None:
        """The connection is closed; returns the endpoint that takes over, if any."""

    def update(self, name: str, devices: Iterable[ListedDevice]) -> None:
        """A list replaces all previous devices of the resource.

        A duplicate id keeps its last entry, but counts in both sets if its health differs.
        """
        resource = self.resource(name)
        resource.devices, resource.healthy, resource.unhealthy = {}, set(), set()
        resource.listed = True
        for device in devices:
            resource.devices[device.id] = device
            (resource.healthy if device.health == HEALTHY else resource.unhealthy).add(device.id)

    def expire(self) -> tuple[str, ...]:
        """Removes the resources whose last plugin ended longer ago than the grace period."""
        gone = tuple(
            name for name, resource in self.resources.items() if resource.listed and self._expired(resource)
        )
        for name in gone:
            self.resources[name] = Resource(connections=self.resources[name].connections)
        return gone

    def _expired(self, resource: Resource) -> bool:
        last = resource.primary
        if last is None:
            return True
        return last.stopped_at is not None and self._clock() - last.stopped_at > self._stop_grace

    def _stop(self, resource: Resource, endpoint: Endpoint) -> None:
        endpoint.stopped_at = self._clock()
        resource.listed = True
        resource.unhealthy |= resource.healthy
        resource.healthy = set()


class ByName(Registry):
    """Kubelets up to 1.36: one connection and one endpoint for each resource name."""

    def enlist(self, connection: Connection) -> None:
        self.resource(connection.resource).connections = [connection]

    def strike(self, connection: Connection) -> None:

        self.resource(connection.resource).connections = []

    def connect(self, connection: Connection, options: Options) -> None:
        self.resource(connection.resource).endpoints = [Endpoint(connection, options)]

    def successor(self, connection: Connection) -> Connection | None:
        # The lookup is by name: when an older stream ends, the newer plugin is found and disconnected.
        standing = self.resource(connection.resource).connections
        return standing[-1] if standing else None

    def disconnect(self, connection: Connection) -> Endpoint | None:
        self.strike(connection)
        resource = self.resource(connection.resource)
        if resource.primary is not None:
            self._stop(resource, resource.primary)
        return None


class ByPath(Registry):
    """Kubelets from 1.37 on: any number of connections for a resource, identified by socket path."""

    def enlist(self, connection: Connection) -> None:
        self.resource(connection.resource).connections.append(connection)

    def strike(self, connection: Connection) -> None:
        # Every connection on the path goes. After a refused second registration that is the live one
        # too: its end will then go unnoticed, and the path stays taken until the kubelet restarts.
        resource = self.resource(connection.resource)
        resource.connections = [other for other in resource.connections if other.path != connection.path]

    def connect(self, connection: Connection, options: Options) -> None:
        resource = self.resource(connection.resource)
        live = [endpoint for endpoint in resource.endpoints if endpoint.stopped_at is None]
        for endpoint in live:
            if endpoint.connection is not None and endpoint.connection.path == connection.path:
                raise AlreadyConnected(f"device plugin already connected: {connection.path}")
        resource.endpoints = [*live, Endpoint(connection, options)]

    def successor(self, connection: Connection) -> Connection | None:
        for other in self.resource(connection.resource).connections:
            if other.path == connection.path:
                return other
        return None

    def disconnect(self, connection: Connection) -> Endpoint | None:
        self.strike(connection)
        resource = self.resource(connection.resource)
        for endpoint in resource.endpoints:
            if endpoint.connection is connection:
                break
        else:
            return None
        if len(resource.endpoints) == 1:
            self._stop(resource, endpoint)
            return None
        was_primary = endpoint is resource.primary
        resource.endpoints.remove(endpoint)
        return resource.primary if was_primary else None


PROFILES: dict[Profile, type[Registry]] = {"1.36": ByName, "1.37": ByPath}
"""The behaviour of each profile; a profile represents its release and those up to the next one."""
