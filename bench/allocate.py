"""Allocate compared with an empty handler: two processes, identical clients, alternating calls."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from devhost_testing.kubelet.wire import PluginConnection

from devhost.kubelet.api import RECEIVE_LIMIT

from . import measures
from .measure import Result, percentile
from .process import resource, serving

WARM_UP = 200
CALLS = 2000


async def measure() -> AsyncIterator[Result]:
    """One device for one container, repeatedly."""
    async with (
        serving(resources=10, devices=10) as running,
        _empty(running.events.with_name("empty.sock")) as empty,
    ):
        path = running.kubelet.resources[resource(0)].socket
        real = PluginConnection(resource(0), path, path, RECEIVE_LIMIT)
        await real.dial(10.0)
        sides: tuple[tuple[PluginConnection, list[float]], ...] = ((empty, []), (real, []))
        for _ in range(WARM_UP + CALLS):
            for connection, samples in sides:
                began = time.perf_counter()
                await connection.allocate(["synthetic-00000"])
                samples.append((time.perf_counter() - began) * 1e3)
        await real.close()
    yardstick, allocate = (tuple(samples[WARM_UP:]) for _, samples in sides)
    yield Result(measures.EMPTY, yardstick)
    yield Result(measures.ALLOCATE, allocate)
    yield Result(measures.ALLOCATE_RATIO, (percentile(allocate, 50) / percentile(yardstick, 50),))


@asynccontextmanager
async def _empty(path: Path) -> AsyncIterator[PluginConnection]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.empty", os.fspath(path))
    try:
        async with asyncio.timeout(10):
            while not path.is_socket():  # noqa: ASYNC110, ASYNC240 - another process makes it, at once
                await asyncio.sleep(0.02)
        connection = PluginConnection("empty", "empty", str(path), RECEIVE_LIMIT)
        await connection.dial(10.0)
        yield connection
        await connection.close()
    finally:
        process.terminate()
        await process.wait()
