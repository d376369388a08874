"""Many resources and devices: the cost of one change, changes at random times, and work that never ends.

``python -m bench.scale`` prints the growth tables of docs/performance.md, and draws docs/images/growth.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from devhost_testing.kubelet.wire import PluginConnection
from devhost_testing.zram import Zram, why_not

from devhost.config.loader import load
from devhost.host.host import Host
from devhost.kubelet.api import RECEIVE_LIMIT

from . import measures
from .chart import Series, draw
from .latency import REST, ZRAM, ZRAM_CONFIG, change, events
from .measure import Result, number, percentile
from .process import Running, devhost, resource, serving, synthetic, workplace
from .recorder import Recorder

PAIRS = 12
"""Changes to unhealthy and back in each measurement."""

GAP = 0.12
"""Mean seconds between two changes at random times (exponential), as in a Poisson process."""

CHANGES = 300
OTHERS = 1000

RATE, LASTING = 1000, 60
"""Events a second, and seconds."""

RECOVERY = 180
"""Seconds after which every device must be healthy again."""

ALLOCATIONS = 100_000

CALLS = 200
"""Calls of Allocate for each size."""

IMAGE = Path(__file__).parents[1] / "docs/images/growth.svg"


COLLECTIONS = 500


async def collected() -> AsyncIterator[Result]:
    """What a host collects before it shows anything, in this process."""
    async with workplace() as (directory, kubelet):
        file = directory / "devhost.yaml"
        file.write_text(synthetic(directory, resources=1, devices=10_000))
        host = Host(file, load(file), partial(load, file), directory / "kubelet")
        running = asyncio.create_task(host.run())
        samples = []
        try:
            await kubelet.all_listed(1, 10_000)
            for _ in range(COLLECTIONS):
                began = time.perf_counter()
                host.now()
                samples.append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(0)
        finally:
            host.stop()
            await running
        yield Result(measures.COLLECT, tuple(samples))


async def changes() -> AsyncIterator[Result]:
    """One of many devices changes, among many resources and among many devices of one."""
    for line, cost, resources, devices in (
        (measures.EVENT_200, None, 200, 10),
        (measures.EVENT_200_50, measures.EVENT_CPU, 200, 50),
        (measures.EVENT_30000, None, 1, 30_000),
    ):
        async with serving(resources=resources, devices=devices) as running:
            milliseconds, used = await _changes(running, resources, devices)
        yield Result(line, milliseconds)
        if cost is not None:
            yield Result(cost, (used,))


async def _changes(running: Running, resources: int, devices: int) -> tuple[tuple[float, ...], float]:
    """Milliseconds until a list shows each change, and milliseconds of CPU for each."""
    before = running.cpu_seconds()
    samples = await events(running, resources, devices, 2 + PAIRS, REST)
    await running.kubelet.quiet(REST)
    return samples[4:], (running.cpu_seconds() - before) / len(samples) * 1e3


async def beside() -> AsyncIterator[Result]:
    """Allocate while a device of another resource changes again and again."""
    async with serving(resources=200, devices=10) as running:
        path = running.kubelet.resources[resource(199)].socket
        connection = PluginConnection(resource(199), path, path, RECEIVE_LIMIT)
        await connection.dial(10.0)

        async def disturb() -> None:
            for turn in range(10_000):
                running.tell(f"{'healthy' if turn % 2 else 'unhealthy'} {turn // 2 % 100}")
                await asyncio.sleep(0.1)

        disturbing = asyncio.create_task(disturb())
        samples = []
        for _ in range(500):
            began = time.perf_counter()
            await connection.allocate(["synthetic-00199"])
            samples.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(0.01)
        disturbing.cancel()
        await connection.close()
    yield Result(measures.ALLOCATE_BESIDE, tuple(samples))


async def at_random() -> AsyncIterator[Result]:
    """Disks are plugged and unplugged at random times, beside many other devices."""
    gaps = random.Random(1)
    async with workplace() as (directory, kubelet):
        config = synthetic(directory, resources=1, devices=OTHERS)
        if reason := why_not():
            async with devhost(directory, kubelet, config) as running:
                await kubelet.all_listed(1, OTHERS)
                samples = await _random_events(running, gaps)
            yield Result(measures.AT_RANDOM, samples, note=f"simulated events: {reason}")
            return
        disks_too = ZRAM_CONFIG.partition("resources:\n")[2]
        with Zram() as disks:
            async with devhost(directory, kubelet, config + disks_too):
                await kubelet.all_listed(2)
                samples = await _random_disks(kubelet, disks, gaps)
    yield Result(measures.AT_RANDOM, samples)


async def _random_disks(kubelet: Recorder, disks: Zram, gaps: random.Random) -> tuple[float, ...]:
    samples, plugged = [], list[int]()
    for _ in range(CHANGES):
        await asyncio.sleep(gaps.expovariate(1 / GAP))
        began = time.monotonic()
        if plugged and (len(plugged) > 8 or gaps.random() < 0.5):
            one, there = plugged.pop(gaps.randrange(len(plugged))), False
            await asyncio.to_thread(disks.unplug, one)
        else:
            one, there = await asyncio.to_thread(disks.plug), True
            plugged.append(one)
        device = f"block-zram{one}"
        shown = await kubelet.first(ZRAM, began, lambda listing: listing.is_healthy(device) is there)  # noqa: B023
        samples.append((shown.at - began) * 1e3)
    return tuple(samples)


async def _random_events(running: Running, gaps: random.Random) -> tuple[float, ...]:
    samples = []
    for turn in range(CHANGES):
        await asyncio.sleep(gaps.expovariate(1 / GAP))
        samples.append(await change(running, resource(0), turn // 2, healthy=bool(turn % 2)))
    return tuple(samples)


async def sustained() -> AsyncIterator[Result]:
    """A thousand changes a second for a minute; the last list must show the last state."""
    async with serving(resources=1, devices=1000) as running:
        lists = running.kubelet.resources[resource(0)]
        count, used, began = lists.count, running.cpu_seconds(), time.monotonic()
        for turn in range(RATE * LASTING):
            running.tell(f"{'healthy' if turn // 1000 % 2 else 'unhealthy'} {turn % 1000}")
            if left := began + (turn + 1) / RATE - time.monotonic():
                await asyncio.sleep(max(0.0, left))
        lasted = time.monotonic() - began
        cpu, sent = running.cpu_seconds() - used, lists.count - count
        for _ in range(RECOVERY):  # a device that was unhealthy many times must be healthy for some time
            if right := len(lists.latest[-1].healthy()) == 1000:
                break
            await asyncio.sleep(1.0)
    wrong = "" if right else "the last list does not match the last state"
    note = f"{sent / lasted:.1f} lists a second"
    yield Result(measures.SUSTAINED, (cpu / lasted * 100,), note=note, wrong=wrong)


async def ledger() -> AsyncIterator[Result]:
    """Allocations one after the other, each of another device."""
    async with serving(resources=1, devices=100) as running:
        path = running.kubelet.resources[resource(0)].socket
        connection = PluginConnection(resource(0), path, path, RECEIVE_LIMIT)
        await connection.dial(10.0)
        for call in range(ALLOCATIONS):
            if call == ALLOCATIONS // 10:  # what is allocated once has been
                before = running.resident()
            await connection.allocate([f"synthetic-{call % 100:05}"])
        grown = running.resident() - before
        await connection.close()
    yield Result(measures.LEDGER, (max(0.0, grown),))


async def growth(devices: Sequence[int], resources: Sequence[int]) -> tuple[list[Series], list[Series]]:
    """The cost of a change and of Allocate, and memory, by the number of devices and by that of resources."""
    return (
        await _grown("devices of one resource", [(size, 1, size) for size in devices]),
        await _grown("resources of 10 devices", [(size, size, 10) for size in resources]),
    )


async def _grown(title: str, sizes: Sequence[tuple[int, int, int]]) -> list[Series]:
    """The series for these sizes, each with its numbers of resources and of devices of each."""
    change, memory, allocate = (
        Series(title, unit) for unit in ("ms from event to list", "MB", "ms of Allocate")
    )
    for size, resources, devices in sizes:
        async with serving(resources=resources, devices=devices) as running:
            milliseconds, _ = await _changes(running, resources, devices)
            change.points.append((size, percentile(milliseconds, 50)))
            memory.points.append((size, running.resident()))
            allocate.points.append((size, percentile(await _allocated(running), 50)))
    return [change, memory, allocate]


async def _allocated(running: Running) -> list[float]:
    """Milliseconds of calls for one device each."""
    path = running.kubelet.resources[resource(0)].socket
    connection = PluginConnection(resource(0), path, path, RECEIVE_LIMIT)
    await connection.dial(10.0)
    samples = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await connection.allocate(["synthetic-00000"])
        samples.append((time.perf_counter() - began) * 1e3)
    await connection.close()
    return samples


def table(series: Sequence[Series]) -> str:
    """Series of the same sizes as a table in Markdown."""
    heads = [series[0].title, *(one.unit for one in series)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for row in zip(*(one.points for one in series), strict=True):
        values = " | ".join(number(value) for _, value in row)
        lines.append(f"| {row[0][0]:g} | {values} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints the tables, and draws the plot."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--devices", type=int, nargs="+", default=[10, 100, 1000, 10_000, 30_000])
    parser.add_argument("--resources", type=int, nargs="+", default=[1, 10, 50, 100, 200])
    parser.add_argument("--image", type=Path, default=IMAGE, help="the plot to write")
    options = parser.parse_args(arguments)
    found = asyncio.run(growth(options.devices, options.resources))
    print("\n\n".join(map(table, found)))
    options.image.write_text(
        draw([one for pair in zip(*found, strict=True) for one in pair]), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
