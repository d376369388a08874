"""A minimal device plugin of another vendor: it registers with a kubelet and lists its devices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from devhost.kubelet.api import HEALTHY, KUBELET_SOCKET, VERSION, api_pb2
from devhost_testing.api import api_pb2_grpc

from . import wire


class OtherPlugin(api_pb2_grpc.DevicePluginServicer):
    """A device plugin other than devhost, for tests of two plugins with one resource name.

        async with OtherPlugin(kubelet.directory, "example.com/thing", ["a", "b"]):
            await kubelet.wait_for(lambda: kubelet.healthy("example.com/thing") == {"a", "b"})

    It registers once when it is entered, and its stream ends when it is left. Like most plugins, it does not
    notice that the kubelet dropped it. Allocate sets the variable ``OTHER_PLUGIN`` to the ids.

    Args:
        directory: the kubelet's plugin directory.
        resource: the name that it registers.
        devices: the ids of its devices, all healthy.
        endpoint: the name of its socket.
    """

    def __init__(
        self, directory: Path, resource: str, devices: Sequence[str], endpoint: str = "other-plugin.sock"
    ) -> None:
        self.directory = directory
        self.resource = resource
        self.devices = list(devices)
        self.endpoint = endpoint
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    @property
    def path(self) -> Path:
        """Its socket."""
        return self.directory / self.endpoint

    async def __aenter__(self) -> Self:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def serve(self) -> None:
        """Creates the socket and serves on it, without registering."""
        self._server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self.path.unlink(missing_ok=True)
        wire.listen(self._server, self.path)
        await self._server.start()

    async def register(self) -> None:
        """Registers with the kubelet."""
        request = api_pb2.RegisterRequest(
            version=VERSION, endpoint=self.endpoint, resource_name=self.resource
        )
        socket = wire.address(os.fspath(self.directory / KUBELET_SOCKET))
        options = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(socket, options=options) as channel:
            await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=15.0)

    async def send(self, devices: Sequence[str]) -> None:
        """Sends the kubelet a new list, as after a change of health."""
        self.devices = list(devices)
        self._changed.set()

    async def stop(self, crash: bool = False) -> None:
        """Ends its stream and removes its socket, except after a ``crash``.

        Does nothing if it does not serve.
        """
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            if not crash:
                self.path.unlink(missing_ok=True)

    async def GetDevicePluginOptions(
        self, request: api_pb2.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> api_pb2.DevicePluginOptions:
        return api_pb2.DevicePluginOptions()

    async def ListAndWatch(
        self, request: api_pb2.Empty, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        while True:
            devices = [api_pb2.Device(ID=one, health=HEALTHY) for one in self.devices]
            yield api_pb2.ListAndWatchResponse(devices=devices)
            await self._changed.wait()
            self._changed.clear()

    async def Allocate(
        self, request: api_pb2.AllocateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> api_pb2.AllocateResponse:
        responses = [
            api_pb2.ContainerAllocateResponse(envs={"OTHER_PLUGIN": ",".join(container.devices_ids)})
            for container in request.container_requests
        ]
        return api_pb2.AllocateResponse(container_responses=responses)
