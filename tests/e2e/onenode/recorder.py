"""A device plugin that does only what it is told, and writes down every call it gets.

devhost would never do half of what a scenario wants done, so a scenario plays the plugin itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from devhost.kubelet.api import HEALTHY, KUBELET_SOCKET, UNHEALTHY, VERSION, api_pb2, api_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]

REGISTER_LIMIT = 30.0
"""Seconds; a kubelet itself gives up after 10."""


class Recorder(api_pb2_grpc.DevicePluginServicer):
    """One plugin server of ``resource`` on the socket ``name``, wanting every optional call.

    It prefers the last of the available devices. ``calls`` grows; whoever has read them clears it.

    Args:
        shown: the kubelet's own name for ``directory``, in its error texts.
    """

    def __init__(self, directory: Path, name: str, resource: str, shown: str = "") -> None:
        self.calls: list[str] = []
        self.refusal = ""
        """What Allocate fails with, if anything."""
        self._directory = directory
        self._shown = shown or str(directory)
        self._name = name
        self._resource = resource
        self._devices: dict[str, bool] = {}
        self._changed = asyncio.Condition()
        self._edition = 0
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        """Listens on its socket."""
        self._server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._directory / self._name}")
        await self._server.start()

    async def stop(self) -> None:
        """Ends its streams and takes its socket away."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            (self._directory / self._name).unlink(missing_ok=True)

    async def register(self, *, version: str = VERSION, resource: str = "", endpoint: str = "") -> str:
        """What the kubelet says to a registration: ``OK``, or its error's code and text."""
        options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
        request = api_pb2.RegisterRequest(
            version=version, endpoint=endpoint or self._name, resource_name=resource or self._resource
        )
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            try:
                await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_LIMIT)
            except grpc.aio.AioRpcError as error:
                return f"{error.code().name}: {error.details()}".replace(self._shown, "DIR")
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
        sent = -1
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: self._edition != sent)  # noqa: B023 - awaited here
                sent = self._edition
                devices = [
                    api_pb2.Device(ID=id, health=HEALTHY if well else UNHEALTHY)
                    for id, well in self._devices.items()
                ]
            yield api_pb2.ListAndWatchResponse(devices=devices)

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
