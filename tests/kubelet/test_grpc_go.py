"""A client of grpc-go, as in kubelets, that makes more calls at once than a connection may have."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "chart"))

import programs
from kit.kubelet import ToyResource

from devhost.allocation.allocator import Allocated
from devhost.kubelet.server import STREAMS, PluginServer
from devhost.telemetry.metrics import Metrics

WAIT = 120.0
CALLS = 2 * STREAMS + 100


class Slow(ToyResource):
    """Answers no Allocate before as many have come as one connection may have beside its list stream."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._full = asyncio.Event()

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == STREAMS - 1:
            self._full.set()
        await self._full.wait()
        await asyncio.sleep(0.01)
        self.now -= 1
        return await super().allocate(tokens)


async def test_calls_of_grpc_go_above_the_limit_of_a_connection_wait_and_none_fails(tmp_path: Path) -> None:
    try:
        program = programs.find("allocates")
    except programs.Missing as error:
        pytest.skip(str(error))
    resource = Slow()
    server = PluginServer(resource, tmp_path, Metrics(), lambda: None)
    await server.start()
    try:
        command = (str(program), str(server.path), str(CALLS), "a")
        client = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await asyncio.wait_for(client.communicate(), WAIT)
    finally:
        await server.stop()
    assert output.decode().split() == ["OK", str(CALLS)]
    assert resource.most == STREAMS - 1
