"""Shared by these tests: the rig of a host, and a client beside the kubelet."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from devhost_testing.api import api_pb2_grpc
from kit import host

from devhost.backend.backoff import Backoff
from devhost.backend.model import Device
from devhost.host.host import Host

sys.path.append(str(Path(__file__).parent))  # for what the test modules share

rig, kubelet = host.rig, host.kubelet

Dial = Callable[..., AbstractAsyncContextManager[api_pb2_grpc.DevicePluginStub]]


@pytest.fixture
def devices() -> Callable[[int], list[Device]]:
    """Makes so many devices, ``d0`` …"""
    return host.devices


@pytest.fixture
def dial() -> Dial:
    """Connects directly to a resource's plugin server: ``async with dial(host, resource) as stub``."""

    @asynccontextmanager
    async def dial(
        host: Host, resource: str, authority: str = "localhost"
    ) -> AsyncIterator[api_pb2_grpc.DevicePluginStub]:
        options = (
            ("grpc.default_authority", authority),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.http2.bdp_probe", 0),  # a stream's window stays at 64 KiB
        )
        path = host.services[resource].registration.server.path
        async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
            yield api_pb2_grpc.DevicePluginStub(channel)

    return dial


class Hurried(Backoff):
    """A back-off without jitter and a hundred times shorter; ``made`` keeps each with its delays."""

    made: list[Hurried]

    def __init__(self, first: float, cap: float) -> None:
        super().__init__(first, cap, draw=lambda: 0.0)
        self.delays: list[float] = []
        self.made.append(self)

    def delay(self) -> float:
        self.delays.append(super().delay())
        return self.delays[-1] / 100


@pytest.fixture
def hurried(rig: Any) -> list[Hurried]:
    """Registrations wait a hundredth of their back-off; returns every back-off that was made."""
    Hurried.made = []
    rig.hurry(backoff=Hurried)
    return Hurried.made
