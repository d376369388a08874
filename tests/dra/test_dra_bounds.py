"""What a kubelet makes the DRA driver do grows at most linearly with the devices."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from dra_node import DRIVER, DraNode
from work import counted

from devhost.dra.api import health_v1_pb2, health_v1_pb2_grpc
from devhost.host.status import captured
from devhost.telemetry.document import complete, json_line

PER_DEVICE = 1500
"""Most lines of any request for each device of its claims."""

CONSTANT = 40_000
"""Lines that any request may take besides, and what devhost does at the same time by itself."""

MOST = 32
"""The most devices of a claim (``AllocationResultsMaxSize`` of Kubernetes)."""


@dataclass
class Scene:
    """A node that publishes cards, and claims that have all of them."""

    node: DraNode
    claims: Sequence[Any]

    async def prepared(self) -> None:
        answers = await self.node.prepare(*self.claims)
        assert not [one.error for one in answers.values() if one.error]

    async def unprepared(self) -> None:
        """Each claim that is released makes a plan, so this is one of them."""
        answers = await self.node.unprepare(self.claims[0])
        assert not [one.error for one in answers.values() if one.error]

    async def shown(self) -> None:
        assert len(json_line(complete(captured(self.node.node.host)()))) > MOST * len(self.claims)

    async def watched(self) -> None:
        address = f"unix:{self.node.options.service_socket(DRIVER)}"
        options = [("grpc.default_authority", "localhost")]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            stub = health_v1_pb2_grpc.DRAResourceHealthStub(channel)
            async for message in stub.NodeWatchResources(health_v1_pb2.NodeWatchResourcesRequest()):
                assert len(message.devices) == MOST * len(self.claims)
                return


ROWS: tuple[tuple[str, Callable[[Scene], Awaitable[None]]], ...] = (
    ("NodePrepareResources", Scene.prepared),
    ("NodePrepareResources again", Scene.prepared),
    ("NodeWatchResources", Scene.watched),
    ("status", Scene.shown),
    ("NodeUnprepareResources", Scene.unprepared),
    ("NodeUnprepareResources again", Scene.unprepared),
)


@asynccontextmanager
async def serving(size: int) -> AsyncIterator[Scene]:
    with tempfile.TemporaryDirectory() as place:  # tmp_path is too long for a socket
        async with DraNode(Path(place)) as node:
            node.cards(*(f"c{n}" for n in range(size)))
            node.configure("{name: example.com/card, backend: cards, serve: dra}")
            async with node.node.served():
                await node.node.until(lambda: sum(map(len, node.published().values())) == size)
                await node.synced()
                names = [node.name_of(f"c{n}") for n in range(size)]
                starts = range(0, size, MOST)
                yield Scene(node, [node.allocate(f"claim-{n}", *names[n : n + MOST]) for n in starts])


@pytest.mark.slow
async def test_work_for_any_request_to_the_driver_grows_linearly_with_the_devices() -> None:
    sizes = (10 * MOST, 20 * MOST)
    found: dict[str, list[int]] = {}
    for size in sizes:
        async with serving(size) as scene:
            for name, row in ROWS:
                lines, _ = await counted(partial(row, scene))
                found.setdefault(name, []).append(lines)
    for name, (small, large) in found.items():
        assert large <= 2.3 * small + CONSTANT, f"{name}: {small} lines, {large} for twice as many devices"
        assert large <= PER_DEVICE * sizes[1] + CONSTANT, f"{name}: {large} lines for {sizes[1]} devices"
