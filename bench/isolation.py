"""The effect of one misbehaving backend on the pods and lists of others."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from devhost_testing.kubelet.wire import CallError, PluginConnection

from devhost.kubelet.api import RECEIVE_LIMIT

from . import gpu, measures
from .measure import Measure, Result
from .process import BACKENDS, Running, devhost, resource, synthetic, workplace

ROWDY = Path(__file__).parent / "rowdy"
RESOURCE = "bench.example.com/rowdy"

NVML = "nvml"
"""A trouble that is not a mode of the rowdy backend."""

FALLEN = 79
"""The Xid of a GPU that fell off the bus."""

HANG = 60.0
"""Seconds that each call of NVML then takes."""

CALLS = 400
PAIRS = 30
WARM_UP = 20
PAUSE = 0.003
"""Seconds between two Allocate calls, so that a backend that uses the CPU can run."""

QUIET = 0.13
"""Seconds without a list before each change: a stream sends at most one in 0.1 s."""


async def measure() -> AsyncIterator[Result]:
    """The same work next to a well-behaved backend, and next to each kind of trouble."""
    for mode, lines in measures.ISOLATION.items():
        if mode == NVML:
            async for result in _beside_nvml(*lines):
                yield result
            continue
        async with workplace() as (directory, kubelet):
            config = _config(synthetic(directory, resources=1, devices=100), mode)
            async with devhost(directory, kubelet, config) as running:
                await kubelet.all_listed(2)
                await asyncio.sleep(1.5)  # long enough for the first detection of a hang
                async for result in _results(running, RESOURCE, "rowdy", *lines):
                    yield result


async def _results(
    running: Running, pestered: str, token: str, allocate: Measure, change: Measure
) -> AsyncIterator[Result]:
    async with _pestered(running, pestered, token):
        yield Result(allocate, await _allocations(running))
    yield Result(change, await _changes(running))


async def _beside_nvml(allocate: Measure, change: Measure) -> AsyncIterator[Result]:
    """A GPU is unhealthy, so NVML is called every few seconds, and each call hangs for a minute."""
    if reason := gpu.lacking():
        for line in (allocate, change):
            yield Result(line, skipped=reason)
        return
    async with workplace() as (directory, kubelet):
        config = synthetic(directory, resources=1, devices=100)
        config += f"  - {{name: {gpu.RESOURCE}, backend: gpu, where: {{kind: gpu}}}}\n"
        with gpu.station(directory) as machine:
            root = ("--root", os.fspath(directory / "root"))
            async with devhost(directory, kubelet, config, *root) as running:
                await kubelet.all_listed(2)
                failing, working, *_ = machine.uuids.values()
                machine.nvml.event(failing, FALLEN)
                await kubelet.first(gpu.RESOURCE, 0, lambda listing: not listing.is_healthy(failing))
                machine.nvml.fault("*", hang=HANG)
                async for result in _results(running, gpu.RESOURCE, working, allocate, change):
                    yield result


def _config(text: str, mode: str) -> str:
    """The configuration with the rowdy backend in addition to the synthetic one."""
    text = text.replace(f"[{BACKENDS}]", f"[{BACKENDS}, {ROWDY}]")
    text = text.replace("resources:\n", f"  rowdy: {{mode: {mode}}}\nresources:\n", 1)
    return f"{text}  - {{name: {RESOURCE}, backend: rowdy}}\n"


@asynccontextmanager
async def _connected(running: Running, name: str) -> AsyncIterator[PluginConnection]:
    path = running.kubelet.resources[name].socket
    connection = PluginConnection(name, path, path, RECEIVE_LIMIT)
    await connection.dial(10.0)
    yield connection
    await connection.close()


@asynccontextmanager
async def _pestered(running: Running, name: str, token: str) -> AsyncIterator[None]:
    """Meanwhile pods repeatedly request the failing device."""

    async def ask() -> None:
        async with _connected(running, name) as connection:
            while True:
                with suppress(CallError):
                    await connection.allocate([token])
                await asyncio.sleep(0.01)

    asking = asyncio.create_task(ask())
    yield
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


async def _allocations(running: Running) -> tuple[float, ...]:
    """Milliseconds of each Allocate of a synthetic device."""
    samples = []
    async with _connected(running, resource(0)) as connection:
        for _ in range(WARM_UP + CALLS):
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await connection.allocate(["synthetic-00000"])
            samples.append((time.perf_counter() - began) * 1e3)
    return tuple(samples[WARM_UP:])


async def _changes(running: Running) -> tuple[float, ...]:
    """Milliseconds from a device's event to the list: each becomes unhealthy and healthy again."""
    samples = []
    name = resource(0)
    for number in range(2 * PAIRS):
        await running.kubelet.quiet(QUIET, name)
        unhealthy, device = number % 2 == 0, f"synthetic-{number // 2:05}"
        began = time.monotonic()
        running.tell(f"{'unhealthy' if unhealthy else 'healthy'} {number // 2}")
        shown = await running.kubelet.first(
            name,
            began,
            lambda listing: listing.is_healthy(device) is not unhealthy,  # noqa: B023
        )
        samples.append((shown.at - began) * 1e3)
    return tuple(samples)
