"""A device plugin that a test controls, and that records every call.

A scenario includes behaviour that devhost never shows, so it acts as the plugin itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from devhost_testing.api import api_pb2_grpc

from devhost.kubelet.api import HEALTHY, KUBELET_SOCKET, UNHEALTHY, VERSION, api_pb2

Context = grpc.aio.ServicerContext[Any, Any]

REGISTER_LIMIT = 120.0
"""Seconds; a kubelet's own limit is 10."""


class Recorder(api_pb2_grpc.DevicePluginServicer):
    """A plugin server of ``resource`` on the socket ``name`` that requests every optional call.

    It prefers the last of the available devices. The reader of ``calls`` clears it.

    Args:
        shown: the kubelet's own name for ``directory``, in its error texts.
    """

    def __init__(self, directory: Path, name: str, resource: str, shown: str = "") -> None:
        self.calls: list[str] = []
        self.refusal = ""
        """The error of Allocate, if it fails."""
        self.name = name
        self.resource = resource
        self.registered = 0
        """The number of accepted registrations; the kubelet opens a stream for each."""
        self.opened = 0
        self.sent = 0
        """Streams and lists so far."""
        self._directory = directory
        self._shown = shown or str(directory)
        self._devices: dict[str, bool] = {}
        self._changed = asyncio.Condition()
        self._edition = 0
        self._streams: dict[object, int] = {}
        self._server: grpc.aio.Server | None = None

    @property
    def serves(self) -> bool:
        """Whether it listens on its socket."""
        return self._server is not None

    @property
    def up_to_date(self) -> bool:
        """Whether each of its streams has sent the newest list."""
        return all(edition == self._edition for edition in self._streams.values())

    async def serve(self) -> None:
        """Listens on its socket."""
        self._server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._directory / self.name}")
        await self._server.start()

    async def stop(self) -> None:
        """Ends its streams and removes its socket."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            (self._directory / self.name).unlink(missing_ok=True)

    async def register(self, *, version: str = VERSION, resource: str = "", endpoint: str = "") -> str:
        """The kubelet's answer to a registration: ``OK``, or the code and text of its error."""
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        request = api_pb2.RegisterRequest(
            version=version, endpoint=endpoint or self.name, resource_name=resource or self.resource
        )
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            try:
                await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_LIMIT)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}".replace(self._shown, "DIR")
        self.registered += 1
        return "OK"

    async def list(self, **devices: bool) -> None:
        """Sends a list: ids, and whether each is healthy."""
        async with self._changed:
            self._devices = devices
            self._edition += 1
            self._changed.notify_all()

    async def GetDevicePluginOptions(
        self, request: api_pb2.Empty, context: Context
    ) -> api_pb2.DevicePluginOptions:
        self.calls.append("options")
        return api_pb2.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(
        self, request: api_pb2.Empty, context: Context
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        self.calls.append("list-and-watch")
        self.opened += 1
        stream = object()
        self._streams[stream] = -1
        try:
            while True:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._edition != self._streams[stream])
                    self._streams[stream] = self._edition
                    devices = [
                        api_pb2.Device(ID=id, health=HEALTHY if well else UNHEALTHY)
                        for id, well in self._devices.items()
                    ]
                self.sent += 1
                yield api_pb2.ListAndWatchResponse(devices=devices)
        finally:
            del self._streams[stream]

    async def GetPreferredAllocation(
        self, request: api_pb2.PreferredAllocationRequest, context: Context
    ) -> api_pb2.PreferredAllocationResponse:
        answer = api_pb2.PreferredAllocationResponse()
        for wish in request.container_requests:
            available, must = sorted(wish.available_deviceIDs), sorted(wish.must_include_deviceIDs)
            self.calls.append(f"preferred: {wish.allocation_size} of {available}, with {must}")
            answer.container_responses.add(deviceIDs=available[-wish.allocation_size :])
        return answer

    async def Allocate(self, request: api_pb2.AllocateRequest, context: Context) -> api_pb2.AllocateResponse:
        asked = [sorted(each.devices_ids) for each in request.container_requests]
        self.calls.append(f"allocate: {asked}")
        if self.refusal:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refusal)
        return api_pb2.AllocateResponse(
            container_responses=[api_pb2.ContainerAllocateResponse() for _ in asked]
        )

    async def PreStartContainer(
        self, request: api_pb2.PreStartContainerRequest, context: Context
    ) -> api_pb2.PreStartContainerResponse:
        self.calls.append(f"pre-start: {sorted(request.devices_ids)}")
        return api_pb2.PreStartContainerResponse()
