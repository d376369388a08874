"""A device plugin in sixty lines, independent of devhost, and a directory for it and a kubelet."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from devhost_testing.api import api_pb2_grpc
from devhost_testing.kubelet import KubeletSimulator, Profile
from kit.clock import FakeClock

from devhost.kubelet.api import api_pb2

sys.path.append(str(Path(__file__).parent))  # for what several test modules share

RESOURCE = "example.com/tiny"
CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class TinyPlugin(api_pb2_grpc.DevicePluginServicer):
    """Serves ``devices`` (id → health) of one resource; the attributes control its answers."""

    def __init__(self, directory: Path, endpoint: str = "tiny.sock", resource: str = RESOURCE) -> None:
        self.directory = directory
        self.endpoint = endpoint
        self.resource = resource
        self.options = api_pb2.DevicePluginOptions()
        self.devices: list[api_pb2.Device] = devices("a", "b")
        self.preferred: Callable[[api_pb2.ContainerPreferredAllocationRequest], list[str]] = lambda _: []
        self.calls: list[tuple[str, object]] = []
        self.failures: dict[str, str] = {}
        self.silent: set[str] = set()
        self.empty_answer = False
        self.called_list = asyncio.Event()
        self.stream_closed = asyncio.Event()
        self._changed: set[asyncio.Event] = set()
        self._ending = False
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        api_pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory / self.endpoint}")
        await self._server.start()

    async def register(self, version: str = "v1beta1", timeout: float = 15) -> None:
        request = api_pb2.RegisterRequest(
            version=version, endpoint=self.endpoint, resource_name=self.resource, options=self.options
        )
        await self.send_registration(request, timeout)

    async def send_registration(self, request: api_pb2.RegisterRequest, timeout: float = 15) -> None:
        target = f"unix:{self.directory / 'kubelet.sock'}"
        async with grpc.aio.insecure_channel(target, options=CHANNEL) as channel:
            await api_pb2_grpc.RegistrationStub(channel).Register(request, timeout=timeout)

    def push(self, *listed: api_pb2.Device) -> None:
        self.devices = list(listed)
        self._wake()

    def end_streams(self) -> None:
        self._ending = True
        self._wake()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def _wake(self) -> None:
        for event in self._changed:
            event.set()

    def named(self, name: str) -> list[object]:
        """The requests of one kind of call, in order."""
        return [request for call, request in self.calls if call == name]

    async def _called(self, name: str, request: object, context: grpc.aio.ServicerContext) -> None:
        self.calls.append((name, request))
        if name in self.silent:
            await asyncio.get_running_loop().create_future()
        if name in self.failures:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.failures[name])

    async def GetDevicePluginOptions(self, request, context):
        await self._called("options", request, context)
        return self.options

    async def ListAndWatch(self, request, context) -> AsyncIterator[api_pb2.ListAndWatchResponse]:
        self.called_list.set()
        await self._called("list", request, context)
        changed = asyncio.Event()
        self._changed.add(changed)
        self._ending = False
        self.stream_closed.clear()
        try:
            while not self._ending:
                yield api_pb2.ListAndWatchResponse(devices=self.devices)
                await changed.wait()
                changed.clear()
        finally:
            self._changed.discard(changed)
            self.stream_closed.set()

    async def GetPreferredAllocation(self, request, context):
        await self._called("preferred", request.container_requests[0], context)
        answer = api_pb2.ContainerPreferredAllocationResponse(
            deviceIDs=self.preferred(request.container_requests[0])
        )
        return api_pb2.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request, context):
        await self._called("allocate", request, context)
        if self.empty_answer:
            return api_pb2.AllocateResponse()
        ids = request.container_requests[0].devices_ids
        answer = api_pb2.ContainerAllocateResponse(envs={"DEVICES": ",".join(ids), "FROM": self.endpoint})
        answer.devices.add(container_path="/dev/x", host_path="/dev/null", permissions="rw")
        return api_pb2.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request, context):
        await self._called("prestart", sorted(request.devices_ids), context)
        return api_pb2.PreStartContainerResponse()


def devices(*ids: str, health: str = "Healthy", numa: int | None = None) -> list[api_pb2.Device]:
    topology = None if numa is None else api_pb2.TopologyInfo(nodes=[api_pb2.NUMANode(ID=numa)])
    return [api_pb2.Device(ID=i, health=health, topology=topology) for i in ids]


@pytest.fixture
def plugin_dir() -> Iterator[Path]:
    """A short path, because unix sockets have at most 107 bytes and the directories of pytest are long."""
    with tempfile.TemporaryDirectory(prefix="dh") as directory:
        yield Path(directory)


Make = Callable[..., Awaitable[TinyPlugin]]


@pytest.fixture
async def tiny(plugin_dir: Path) -> AsyncIterator[Make]:
    """Makes tiny plugins that already serve, and stops them at the end."""
    made: list[TinyPlugin] = []

    async def make(endpoint: str = "tiny.sock", resource: str = RESOURCE) -> TinyPlugin:
        plugin = TinyPlugin(plugin_dir, endpoint, resource)
        made.append(plugin)
        await plugin.serve()
        return plugin

    yield make
    for plugin in made:
        await plugin.stop()


@pytest.fixture(params=[pytest.param("1.36", marks=pytest.mark.slow), "1.37"])
def profile(request: pytest.FixtureRequest) -> Profile:
    return request.param


@pytest.fixture
async def kubelet(plugin_dir: Path, profile: Profile) -> AsyncIterator[KubeletSimulator]:
    """A running kubelet of each profile."""
    async with KubeletSimulator(plugin_dir, profile) as simulator:
        yield simulator


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_devices() -> Callable[..., list[api_pb2.Device]]:
    return devices
