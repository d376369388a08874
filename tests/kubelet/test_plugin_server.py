"""How a plugin server paces its lists, and how it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from devhost_testing.api import api_pb2_grpc
from kit.allocator import Supply
from kit.kubelet import ToyResource
from kit.waiting import until

from devhost.allocation.allocator import Allocated, Allocator
from devhost.allocation.inventory import Entry, Snapshot
from devhost.allocation.resource_backend import Granted
from devhost.backend.errors import AllocationError
from devhost.backend.model import HEALTHY, Edits, Health, unhealthy
from devhost.kubelet.api import RECEIVE_LIMIT
from devhost.kubelet.api import api_pb2 as pb
from devhost.kubelet.server import PART, STREAMS, ListEncoder, PluginServer, device_list
from devhost.planning.timing import KUBELET as NODE
from devhost.planning.timing import KubeletTiming
from devhost.runtime.rpc import channel
from devhost.telemetry.metrics import Metrics

WAIT = 60.0


@asynccontextmanager
async def serving(
    resource: ToyResource | Allocator, directory: Path, timing: KubeletTiming
) -> AsyncIterator[PluginServer]:
    server = PluginServer(resource, directory, Metrics(), lambda: None, timing=timing)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def newest(stream: Any) -> list[str]:
    """The tokens of the next list."""
    return [device.ID for device in (await asyncio.wait_for(stream.read(), WAIT)).devices]


async def test_a_stream_sends_a_few_lists_at_once_and_then_waits(tmp_path: Path) -> None:
    resource = ToyResource()
    hour = KubeletTiming(lists=((3, 3600.0), (9, 0.0)))
    async with serving(resource, tmp_path, hour) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        paced = stub.ListAndWatch(pb.Empty())
        assert await newest(paced) == ["a"]
        for tokens in (["a", "b"], ["a", "b", "c"]):
            resource.inventory.show(*tokens)
            assert await newest(paced) == tokens
        resource.inventory.show("d")
        waiting = asyncio.ensure_future(newest(paced))
        for token in ("e", "f"):  # another stream of this server shows that the change has been seen
            other = stub.ListAndWatch(pb.Empty())
            await newest(other)
            resource.inventory.show(token)
            assert await newest(other) == [token]
        assert not waiting.done()
        await server.stop()
        assert await waiting == ["f"], "the last list of a server that ends waits for nothing"


async def test_a_stream_spreads_sustained_changes_and_shows_the_newest(tmp_path: Path) -> None:
    resource = ToyResource()
    async with serving(resource, tmp_path, NODE) as server, channel(server.path) as connection:
        stream = api_pb2_grpc.DevicePluginStub(connection).ListAndWatch(pb.Empty())
        await newest(stream)
        began = time.monotonic()
        for number in range(1000):
            resource.inventory.show(f"t{number}")
            await asyncio.sleep(0)
        lists = 0
        while await newest(stream) != ["t999"]:
            lists += 1
        (at_once, pause), _ = NODE.lists
        assert lists <= at_once + (time.monotonic() - began) / pause + 1


async def test_a_list_that_equals_the_last_one_is_not_sent(tmp_path: Path) -> None:
    resource = ToyResource()
    async with (
        serving(resource, tmp_path, KubeletTiming(lists=((2, 1.0),))) as server,
        channel(server.path) as connection,
    ):
        stream = api_pb2_grpc.DevicePluginStub(connection).ListAndWatch(pb.Empty())
        assert await newest(stream) == ["a"]
        resource.inventory.show("a", "b")
        assert await newest(stream) == ["a", "b"]
        resource.inventory.show("c")
        resource.inventory.show("a", "b")  # before the next list may be sent
        await until(lambda: server.up_to_date)
        resource.inventory.show("d")
        assert await newest(stream) == ["d"]


async def test_a_list_of_several_parts_is_complete_after_every_change() -> None:
    encoder, tokens = ListEncoder(), [f"d{number}" for number in range(3 * PART)]
    entries = {token: Entry(token, token, (), (1,), HEALTHY, 0.0) for token in tokens}
    for change in ({}, {"d7": unhealthy("hot")}, {tokens[-1]: None}, {"d7": None}, {tokens[-1]: HEALTHY}, {}):
        for token, health in change.items():
            entries.pop(token, None)
            if health is not None:
                entries[token] = Entry(token, token, (), (), health, 0.0)
        shown = Snapshot(1, dict(entries))
        assert await encoder.encoded(shown) == device_list(entries.values()).SerializeToString()
    assert await encoder.encoded(Snapshot()) == b""


async def test_a_part_of_a_list_that_has_not_changed_is_not_encoded_again() -> None:
    read: list[int] = []

    class Noticed(Health):
        @property
        def healthy(self) -> bool:  # type: ignore[override]
            read.append(1)
            return True

    noticed = Noticed.__new__(Noticed)
    entries = {f"d{n}": Entry(f"d{n}", f"d{n}", (), (), noticed, 0.0) for n in range(4 * PART)}
    encoder = ListEncoder()
    await encoder.encoded(Snapshot(1, entries))
    assert len(read) == 4 * PART
    await encoder.encoded(Snapshot(2, {**entries, "d7": Entry("d7", "d7", (), (), noticed, 1.0)}))
    assert len(read) == 5 * PART


async def test_very_many_pods_may_be_admitted_at_once_on_a_new_connection(tmp_path: Path) -> None:
    """The calls wait in devhost until all of them are there, as if each took long."""
    resource = Together(400)
    async with serving(resource, tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        calls = [stub.Allocate(request, timeout=WAIT) for _ in range(400)]
        answers = await asyncio.gather(*calls)
    assert all(len(one.container_responses) == 1 for one in answers)


async def test_calls_above_the_limit_of_a_connection_wait_and_none_fails(tmp_path: Path) -> None:
    async with serving(Slow(), tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        calls = [stub.Allocate(request, timeout=WAIT) for _ in range(3 * STREAMS)]
        answers = await asyncio.gather(*calls)
    assert all(len(one.container_responses) == 1 for one in answers)


async def test_a_pod_has_its_answer_before_what_it_got_is_recorded(tmp_path: Path) -> None:
    resource = Recording()
    async with serving(resource, tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        assert len((await stub.Allocate(request, timeout=WAIT)).container_responses) == 1
        await until(lambda: resource.begun == 1)
        assert resource.recorded == []
        resource.go_on.set()
        await until(lambda: resource.recorded == [["a"]])


async def test_a_container_is_prepared_once_what_it_got_is_recorded(tmp_path: Path) -> None:
    resource = Recording()
    async with serving(resource, tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        await stub.Allocate(request, timeout=WAIT)
        await until(lambda: resource.begun == 1)
        starting = asyncio.ensure_future(
            stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["a"]))
        )
        await asyncio.sleep(0)
        await stub.GetDevicePluginOptions(pb.Empty(), timeout=WAIT)  # arrives after it
        resource.go_on.set()
        await starting
    assert resource.known == [[["a"]]]


async def test_what_a_container_got_is_recorded_if_another_one_of_its_request_is_refused(
    tmp_path: Path,
) -> None:
    resource = Recording()
    resource.go_on.set()
    async with serving(resource, tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        containers = [pb.ContainerAllocateRequest(devices_ids=[token]) for token in ("a", "refused")]
        with pytest.raises(grpc.aio.AioRpcError, match="not this one"):
            await stub.Allocate(pb.AllocateRequest(container_requests=containers), timeout=WAIT)
        await until(lambda: resource.recorded == [["a"]])


@pytest.mark.parametrize("longer", [0, 1])
async def test_an_answer_that_the_kubelet_would_not_receive_is_refused_with_the_reason(
    tmp_path: Path, longer: int
) -> None:
    length = 2 << 20
    one = pb.ContainerAllocateResponse(annotations={"a": "x" * length})
    length += RECEIVE_LIMIT - pb.AllocateResponse(container_responses=[one]).ByteSize() + longer
    async with serving(Annotated(length), tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        if not longer:
            answer = await stub.Allocate(request, timeout=WAIT)
            assert len(answer.container_responses[0].annotations["a"]) == length
            return
        with pytest.raises(grpc.aio.AioRpcError, match=f"the answer has {RECEIVE_LIMIT + 1} bytes, and the"):
            await stub.Allocate(request, timeout=WAIT)


async def test_devices_of_an_answer_that_the_kubelet_would_not_receive_stay_free(tmp_path: Path) -> None:
    rig = Supply(tmp_path)
    rig.show("a")
    rig.runner.discover([])
    rig.answer = lambda devices: Edits(annotations={"a": "x" * RECEIVE_LIMIT})
    async with serving(rig.allocator, tmp_path, NODE) as server, channel(server.path) as connection:
        stub = api_pb2_grpc.DevicePluginStub(connection)
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=["a"])])
        with pytest.raises(grpc.aio.AioRpcError, match="and the kubelet receives at most"):
            await stub.Allocate(request, timeout=WAIT)
    assert not rig.held()
    assert not rig.inventory.allocations.holds("a")


class Annotated(ToyResource):
    """Gives one annotation of some length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        _, *rest = await super().allocate(tokens)
        return Allocated(Granted(Edits(annotations={"a": "x" * self.length})), *rest)


class Recording(ToyResource):
    """Records what it gave once the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.begun = 0
        self.recorded: list[Sequence[str]] = []
        self.known: list[list[Sequence[str]]] = []
        """What was recorded when a container was prepared."""

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        if "refused" in tokens:
            raise AllocationError("not this one")

        async def record() -> None:
            self.begun += 1
            await self.go_on.wait()
            self.recorded.append(tokens)

        return Allocated(Granted(Edits()), record)

    async def prepare(self, tokens: Sequence[str]) -> None:
        self.known.append(list(self.recorded))


class Slow(ToyResource):
    """Many of its calls are in progress at once, as in a backend."""

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        await asyncio.sleep(0.05)
        return await super().allocate(tokens)


class Together(ToyResource):
    """Grants everything once so many calls are in progress."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self._barrier = asyncio.Barrier(calls)

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        await self._barrier.wait()
        return await super().allocate(tokens)
