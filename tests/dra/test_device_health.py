"""The stream on which the kubelet learns the health of devices."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from devhost_testing.api import dra_v1_pb2_grpc
from devhost_testing.dra.kubelet import HEALTH, health_stub
from kit.clock import FakeClock
from kit.dra import channel
from kit.waiting import until

from devhost.dra.api import dra_v1_pb2, health_v1_pb2
from devhost.dra.inventory import DeviceHealth
from devhost.dra.server import DraServer
from devhost.planning.settings import DraOptions
from devhost.telemetry.metrics import Metrics

DRIVER = "devhost.example.com"
A, B = DeviceHealth("pool", "a", True), DeviceHealth("pool", "b", True)


class NoClaims:
    """Prepares nothing."""

    async def prepare(self, claims: Any) -> dict[str, str]:
        return {claim.uid: "there is none" for claim in claims}

    async def unprepare(self, claims: Any) -> dict[str, str]:
        return {claim.uid: "" for claim in claims}


class Scene:
    """A server with a clock that stands still, and a stream of its health service."""

    def __init__(self, place: Path, service: str) -> None:
        self.clock = FakeClock()
        self.found: Sequence[DeviceHealth] = (A, B)
        self._callbacks: list[Callable[[], None]] = []
        options = DraOptions(place / "registry", place / "plugins", "node-1")
        self._server = DraServer(NoClaims(), self, DRIVER, options, Metrics(), clock=self.clock)
        self.channel = channel(options.service_socket(DRIVER))
        self._stub = health_stub(self.channel, service)

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._stream = self._stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()
        await self._server.stop()

    def devices(self) -> Sequence[DeviceHealth]:
        return self.found

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def change(self, *devices: DeviceHealth) -> None:
        """The devices have this health from now on."""
        self.found = devices
        for callback in self._callbacks:
            callback()

    async def received(self) -> dict[str, str]:
        """The next message: the health of each device in it."""
        async with asyncio.timeout(60):
            message = await self._stream.read()
        values = health_v1_pb2.HealthStatus
        return {one.device.device_name: values.Name(one.health) for one in message.devices}

    async def passes(self, seconds: float) -> None:
        """Time passes, once the stream waits for it."""
        await until(lambda: self.clock.timers)
        await self.clock.advance(seconds)


@pytest.fixture(params=HEALTH)
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        async with Scene(Path(directory), request.param) as scene:
            yield scene


@pytest.mark.conformance(113)
async def test_everything_is_sent_again_before_the_kubelet_gives_it_up(scene: Scene) -> None:
    assert await scene.received() == {"a": "HEALTHY", "b": "HEALTHY"}
    for _ in range(2):
        await scene.passes(14.9)
        assert await scene.received() == {"a": "HEALTHY", "b": "HEALTHY"}


@pytest.mark.conformance(113)
async def test_changes_are_sent_within_a_second_and_together(scene: Scene) -> None:
    await scene.received()
    scene.change(replace(A, healthy=False, message="it is hot"), B)
    await scene.passes(0.1)
    scene.change(replace(A, healthy=False, message="it is hot"), replace(B, healthy=None))
    await scene.passes(0.8)
    assert await scene.received() == {"a": "UNHEALTHY", "b": "UNKNOWN"}
    scene.change(A, replace(B, healthy=None))
    await scene.passes(0.9)
    assert await scene.received() == {"a": "HEALTHY"}


@pytest.mark.conformance(114)
async def test_the_health_of_a_backend_that_hangs_is_not_repeated(scene: Scene) -> None:
    """The kubelet shows it as unknown 30 s after the last message."""
    await scene.received()
    scene.change(replace(A, stale=True), B)
    await scene.passes(14.9)
    assert await scene.received() == {"b": "HEALTHY"}
    scene.change(A, B)
    await scene.passes(0.9)
    assert await scene.received() == {"a": "HEALTHY"}


@pytest.mark.conformance(71)
async def test_one_connection_carries_health_and_claims(scene: Scene) -> None:
    await scene.received()
    request = dra_v1_pb2.NodePrepareResourcesRequest(claims=[dra_v1_pb2.Claim(uid="u-1")])
    answer = await dra_v1_pb2_grpc.DRAPluginStub(scene.channel).NodePrepareResources(request)
    assert answer.claims["u-1"].error == "there is none"
    scene.change(A, replace(B, healthy=False))
    await scene.passes(0.9)
    assert await scene.received() == {"b": "UNHEALTHY"}
