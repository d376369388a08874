"""gRPC over unix sockets like in a kubelet: the calls to a plugin, and listening for plugins."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, Awaitable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import grpc
import grpc.aio

from devhost.backend.errors import EnvironmentFailure
from devhost.kubelet.api import KUBELET_SOCKET, api_pb2
from devhost.runtime.sockets import too_long
from devhost_testing.api import api_pb2_grpc

R = TypeVar("R")


class CallError(Exception):
    """A call to a plugin failed; the text is the same as in a kubelet's log and in a pod's status."""


class PluginConnection:
    """A kubelet's connection to a plugin's socket after a registration.

    ``endpoint`` is the registered name, ``path`` the path of the socket, ``listed`` whether a list has come.
    """

    def __init__(self, resource: str, endpoint: str, path: str, receive_limit: int) -> None:
        self.resource = resource
        self.endpoint = endpoint
        self.path = path
        self._channel = grpc.aio.insecure_channel(
            address(path),
            options=(
                ("grpc.default_authority", "localhost"),
                ("grpc.max_receive_message_length", receive_limit),
                # Each registration dials again, even if an earlier one dialled the same path.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
            ),
        )
        self._calls = api_pb2_grpc.DevicePluginStub(self._channel)
        self._closed = False
        self.dialled = False
        self.listed = False
        self._stream: grpc.aio.UnaryStreamCall[api_pb2.Empty, api_pb2.ListAndWatchResponse] | None = None

    async def dial(self, timeout: float) -> None:
        """Waits until the plugin accepts the connection; ``CallError`` if it does not in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._channel.channel_ready()
        except TimeoutError:
            raise CallError("context deadline exceeded") from None
        self.dialled = True

    @property
    def _stub(self) -> api_pb2_grpc.DevicePluginStub:
        if self._closed:
            raise CallError("rpc error: code = Canceled desc = grpc: the client connection is closing")
        return self._calls

    async def options(self) -> api_pb2.DevicePluginOptions:
        return await _answer(self._stub.GetDevicePluginOptions(api_pb2.Empty()))

    async def lists(self) -> AsyncGenerator[api_pb2.ListAndWatchResponse, None]:
        """Every message of a ListAndWatch stream; ends if the stream ends without an error.

        Raises ``CallError`` if the stream ends with an error, or this side closes it.
        """
        stream = self._stream = self._stub.ListAndWatch(api_pb2.Empty())
        while True:
            message = await _answer(stream.read())
            if not isinstance(message, api_pb2.ListAndWatchResponse):
                return
            yield message

    async def preference(
        self, available: Collection[str], must_include: Collection[str], size: int
    ) -> api_pb2.PreferredAllocationResponse:
        request = api_pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        return await _answer(
            self._stub.GetPreferredAllocation(
                api_pb2.PreferredAllocationRequest(container_requests=[request])
            )
        )

    async def allocate(self, device_ids: Collection[str]) -> api_pb2.AllocateResponse:
        request = api_pb2.ContainerAllocateRequest(devices_ids=device_ids)
        return await _answer(self._stub.Allocate(api_pb2.AllocateRequest(container_requests=[request])))

    async def pre_start(self, device_ids: Collection[str], timeout: float) -> None:
        request = api_pb2.PreStartContainerRequest(devices_ids=device_ids)
        await _answer(self._stub.PreStartContainer(request, timeout=timeout))

    def cut(self) -> None:
        """Cancels the ListAndWatch stream and keeps the connection open."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> None:
        """Ends every call and the connection."""
        self._closed = True
        self.cut()
        await self._channel.close(None)


async def _answer(call: Awaitable[R]) -> R:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise CallError(_go_text(error)) from error
    except asyncio.CancelledError:
        # grpc.aio raises this in the reader when the *call* was cancelled; only the task's own
        # cancellation may go on.
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallError("rpc error: code = Canceled desc = context canceled") from None


def _go_text(error: grpc.aio.AioRpcError) -> str:
    """The error in the format of grpc-go, as in the logs of kubelets."""
    name = "".join(word.capitalize() for word in error.code().name.split("_"))
    name = {"Ok": "OK", "Cancelled": "Canceled"}.get(name, name)
    return f"rpc error: code = {name} desc = {error.details() or ''}"


def address(path: str) -> str:
    """gRPC's name for a unix socket; quoted, because gRPC parses it as a URI."""
    return f"unix:{quote(path)}"


def socket_path(directory: Path) -> Path:
    """The socket of a kubelet in ``directory``."""
    path = directory / KUBELET_SOCKET
    if wrong := too_long(path):
        raise EnvironmentFailure(wrong, "use a directory with a shorter path")
    return path


def wipe(directory: Path) -> tuple[str, ...]:
    """Removes every unix socket in ``directory``, like a kubelet at its start; returns their names."""
    with os.scandir(directory) as entries:
        names = sorted(entry.name for entry in entries if _is_socket(entry))
    for name in names:
        (directory / name).unlink(missing_ok=True)
    return tuple(names)


def _is_socket(entry: os.DirEntry[str]) -> bool:
    with suppress(FileNotFoundError):  # a plugin removed its socket meanwhile
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    return False


def listen(server: grpc.aio.Server, path: Path) -> None:
    """Makes ``server`` listen on ``path``, which appears when connections are already accepted.

    gRPC unlinks the path that it bound when it stops. Therefore it binds a hidden name, and ``path`` becomes
    a link to the same socket, which is removed here, or left behind as by a crashed kubelet.
    """
    hidden = path.with_name(".k")
    try:
        server.add_insecure_port(address(os.fspath(hidden)))
        path.hardlink_to(hidden)
        hidden.unlink()
    except (OSError, RuntimeError) as error:
        raise EnvironmentFailure(
            f"cannot listen on {path}: {error}", "the directory must be on a local, writable file system"
        ) from error
