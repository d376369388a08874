"""A run of a kubelet's registration server, from its start to its stop or crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio

from devhost.kubelet.api import VERSION, api_pb2
from devhost.planning import naming
from devhost_testing.api import api_pb2_grpc

from . import events
from .faults import Fault, Faults, Point, WrongAnswer
from .registry import AlreadyConnected, Options, Registry
from .wire import CallError, PluginConnection

Context = grpc.aio.ServicerContext[api_pb2.RegisterRequest, api_pb2.Empty]


class Refused(Exception):
    """Register is answered with this text and code UNKNOWN."""


class Registrar(api_pb2_grpc.RegistrationServicer):
    """Serves Register, follows the ListAndWatch stream of each plugin, and updates the registry.

    Args:
        directory: the directory of endpoints.
        record: logs an event, given its type and fields.
        dial_timeout: seconds that a plugin has to accept the connection during Register.
        receive_limit: the maximum size of a message from a plugin, in bytes.
        changed: called after each change that a kubelet writes to its checkpoint.
    """

    def __init__(
        self,
        directory: Path,
        registry: Registry,
        faults: Faults,
        record: events.Record,
        *,
        dial_timeout: float,
        receive_limit: int,
        changed: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._registry = registry
        self._faults = faults
        self._record = record
        self._dial_timeout = dial_timeout
        self._receive_limit = receive_limit
        self._changed = changed
        self._connections: set[PluginConnection] = set()
        self._streams: dict[asyncio.Task[None], PluginConnection] = {}

    def streams(self, resource: str = "") -> tuple[PluginConnection, ...]:
        """The connections with an open ListAndWatch stream, oldest first; only of ``resource`` if given."""
        return tuple(c for c in self._streams.values() if resource in ("", c.resource))

    async def close(self) -> None:
        """Ends all streams and connections, like the end of a kubelet's process."""
        streams = tuple(self._streams)
        for stream in streams:
            stream.cancel()
        outcomes = await asyncio.gather(*streams, return_exceptions=True)
        for connection in tuple(self._connections):
            await self._close(connection)
        bugs = [o for o in outcomes if isinstance(o, Exception)]
        if bugs:
            raise ExceptionGroup("following ListAndWatch streams", bugs)

    def rpcs(self) -> grpc.GenericRpcHandler[api_pb2.RegisterRequest, bytes]:
        """The service for a gRPC server. Answers are bytes, so that a fault can make them invalid."""
        register = grpc.unary_unary_rpc_method_handler(
            self._answer, api_pb2.RegisterRequest.FromString, response_serializer=None
        )
        return grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register})

    async def _answer(self, request: api_pb2.RegisterRequest, context: Context) -> bytes:
        try:
            return (await self.Register(request, context)).SerializeToString()
        except WrongAnswer as wrong:
            return wrong.reply

    async def Register(self, request: api_pb2.RegisterRequest, context: Context) -> api_pb2.Empty:
        resource, endpoint = request.resource_name, request.endpoint
        self._record(
            events.RegisterReceived,
            resource=resource,
            endpoint=endpoint,
            version=request.version,
            pre_start_required=request.options.pre_start_required,
            preferred_allocation=request.options.get_preferred_allocation_available,
        )
        try:
            await self._register(request, context)
        except Refused as refusal:
            self._record(events.RegisterRefused, resource=resource, endpoint=endpoint, reason=str(refusal))
            await context.abort(grpc.StatusCode.UNKNOWN, str(refusal))
        except asyncio.CancelledError:
            reason = "the caller cancelled the call, or the kubelet stopped"
            self._record(events.RegisterRefused, resource=resource, endpoint=endpoint, reason=reason)
            raise
        return api_pb2.Empty()

    async def _register(self, request: api_pb2.RegisterRequest, context: Context) -> None:
        resource = request.resource_name
        try:
            await self._faults.reached(Point.REGISTER, resource)
        except Fault as fault:
            raise Refused(str(fault)) from fault
        if request.version != VERSION:
            raise Refused(
                f'requested API version "{request.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        if naming.problem(resource):
            raise Refused(f'the ResourceName "{resource}" is invalid')
        path = _joined(self._directory, request.endpoint)
        connection = PluginConnection(resource, request.endpoint, path, self._receive_limit)
        self._connections.add(connection)
        self._registry.enlist(connection)
        try:
            await self._connect(connection, context.time_remaining())
        except BaseException:
            self._registry.strike(connection)
            await self._close(connection)
            raise

    async def _connect(self, connection: PluginConnection, remaining: float | None) -> None:
        """Dials, gets the options, makes the plugin an endpoint and opens its stream."""
        resource, endpoint = connection.resource, connection.endpoint
        timeout = self._dial_timeout if remaining is None else min(self._dial_timeout, remaining)
        try:
            await connection.dial(timeout)
        except CallError as error:
            raise Refused(f"failed to dial device plugin: {error}") from error
        try:
            await self._faults.reached(Point.OPTIONS, resource)
            answer = await connection.options()
        except (CallError, Fault) as error:
            raise Refused(f"failed to get device plugin options: {error}") from error
        options = Options(answer.pre_start_required, answer.get_preferred_allocation_available)
        self._record(
            events.OptionsRead,
            resource=resource,
            endpoint=endpoint,
            pre_start_required=options.pre_start_required,
            preferred_allocation=options.preferred_allocation,
        )
        try:
            self._registry.connect(connection, options)
        except AlreadyConnected as error:
            raise Refused(str(error)) from error
        self._record(events.Registered, resource=resource, endpoint=endpoint)
        stream = asyncio.create_task(self._follow(connection), name=f"follow {resource} {endpoint}")
        self._streams[stream] = connection

    async def _follow(self, connection: PluginConnection) -> None:
        """Reads a ListAndWatch stream to its end, and updates the registry."""
        reason = "EOF"
        try:
            await self._read(connection)
        except (CallError, Fault) as error:
            reason = str(error)
        finally:
            task = asyncio.current_task()
            if task is not None:
                self._streams.pop(task, None)
        connection.cut()
        self._record(
            events.StreamEnded, resource=connection.resource, endpoint=connection.endpoint, reason=reason
        )
        await self._ended(connection)

    async def _read(self, connection: PluginConnection) -> None:
        resource, endpoint = connection.resource, connection.endpoint
        self._record(events.StreamOpened, resource=resource, endpoint=endpoint)
        await self._faults.reached(Point.STREAM, resource)
        async for message in connection.lists():
            await self._faults.reached(Point.LIST, resource)
            devices = tuple(
                events.ListedDevice(d.ID, d.health, tuple(node.ID for node in d.topology.nodes))
                for d in message.devices
            )
            self._registry.update(resource, devices)
            connection.listed = True
            self._changed()
            self._record(events.ListReceived, resource=resource, endpoint=endpoint, devices=devices)

    async def _ended(self, connection: PluginConnection) -> None:
        victim = self._registry.successor(connection)
        if isinstance(victim, PluginConnection):
            promoted = self._registry.disconnect(victim)
            self._record(events.Disconnected, resource=victim.resource, endpoint=victim.endpoint)
            if promoted is not None and isinstance(promoted.connection, PluginConnection):
                self._record(events.Promoted, resource=victim.resource, endpoint=promoted.connection.endpoint)
            # A registration that is still dialling has no connection to close yet, and continues.
            if victim.dialled:
                await self._close(victim)
        endpoints = self._registry.resource(connection.resource).endpoints
        if all(endpoint.connection is not connection for endpoint in endpoints):
            await self._close(connection)

    async def _close(self, connection: PluginConnection) -> None:
        self._connections.discard(connection)
        await connection.close()


def _joined(directory: Path, endpoint: str) -> str:
    """The path that the kubelet dials: relative to its directory, but ``..`` can lead out of it."""
    return os.path.normpath(f"{directory}/{endpoint}")
