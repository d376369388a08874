"""The time from a change to the list that shows it, after a time without changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from devhost_testing.zram import Zram, why_not

from . import measures
from .measure import Measure, Result, percentile
from .process import Running, devhost, resource, serving, synthetic, workplace
from .recorder import Recorder
from .uevents import Uevents

T = TypeVar("T")

QUIET = 0.2
"""Seconds without a list before each sample, so that samples do not influence each other."""

RECOVERY = 0.7
"""Seconds until two lists can be sent at once again."""

GAPS = tuple(step / 200 for step in range(1, 21))
"""Seconds between two changes that follow each other: 5 ms to 100 ms."""

REST = 1.1
"""The same if a scan takes long: devhost then waits for four times as long, at most 1 s."""

ZRAM = "bench.example.com/zram"
ZRAM_CONFIG = f"""\
version: 1
resources:
  - name: {ZRAM}
    backend: udev
    where: {{subsystem: block, sysName: "zram*"}}
    whenEmpty: register
"""

PAIRS = 60
WARM_UP = 4


async def uevents() -> AsyncIterator[Result]:
    """Kernel uevents of zram devices; events of a backend if zram is not available."""
    if reason := why_not():
        async with serving(resources=1, devices=10 + PAIRS) as running:
            samples = await events(running, 1, 10 + PAIRS, WARM_UP + PAIRS)
        yield Result(measures.UEVENT, samples[2 * WARM_UP :], note=f"simulated events: {reason}")
        return
    async with workplace() as (directory, kubelet):
        with Zram() as disks:
            async with devhost(directory, kubelet, ZRAM_CONFIG) as running:
                await kubelet.all_listed(1)
                samples = await _zram(running, disks, WARM_UP + PAIRS)
        yield Result(measures.UEVENT, samples[2 * WARM_UP :], note="zram hot_add and hot_remove")


async def _zram(running: Running, disks: Zram, pairs: int) -> tuple[float, ...]:
    """Milliseconds of alternating plugs and unplugs. The blocking write runs on a separate thread."""
    kubelet, samples = running.kubelet, []
    for _ in range(pairs):
        await kubelet.quiet(QUIET)
        number, began = await asyncio.to_thread(_timed, disks.plug)
        device = f"block-zram{number}"
        shown = await kubelet.first(ZRAM, began, lambda listing: listing.is_healthy(device))  # noqa: B023
        samples.append((shown.at - began) * 1e3)
        await kubelet.quiet(QUIET)
        _, began = await asyncio.to_thread(_timed, lambda: disks.unplug(number))  # noqa: B023
        shown = await kubelet.first(ZRAM, began, lambda listing: not listing.is_healthy(device))  # noqa: B023
        samples.append((shown.at - began) * 1e3)
    return tuple(samples)


def _timed(act: Callable[[], T]) -> tuple[T, float]:
    """The result of ``act``, and the monotonic time just before it."""
    began = time.monotonic()
    return act(), began


async def following() -> AsyncIterator[Result]:
    """Pairs of changes. Only the second one is measured, right after the list of the first one."""
    pairs = 5 * len(GAPS)
    if reason := why_not():
        async with serving(resources=1, devices=10) as running:
            samples = await _following_events(running, pairs)
        yield Result(measures.FOLLOWING, samples, note=f"simulated events: {reason}")
        return
    async with workplace() as (directory, kubelet):
        with Zram() as disks, Uevents() as events:
            async with devhost(directory, kubelet, ZRAM_CONFIG):
                await kubelet.all_listed(1)
                samples, whole = await _following_zram(kubelet, disks, events, pairs)
    p50, p99 = (percentile(whole, percent) for percent in (50, 99))
    note = f"zram, 5 to 100 ms apart; with the kernel's work before its event p50 {p50:.2f}, p99 {p99:.2f}"
    yield Result(measures.FOLLOWING, samples, note=note)


async def _following_zram(
    kubelet: Recorder, disks: Zram, events: Uevents, pairs: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milliseconds of each second plug and unplug, from the kernel's event and from the request.

    The kernel may wait for several milliseconds before it emits the event of a removal. Disks return before
    they leave the list.
    """
    samples, whole = [], []
    for pair in range(pairs // 2):
        gap = GAPS[pair % len(GAPS)]
        await kubelet.quiet(RECOVERY)
        first = await asyncio.to_thread(disks.plug)
        await asyncio.sleep(gap)
        second, began = await asyncio.to_thread(_timed, disks.plug)
        device, path = f"block-zram{second}", f"/devices/virtual/block/zram{second}"
        shown = await kubelet.first(ZRAM, began, lambda listing: listing.is_healthy(device))  # noqa: B023
        samples.append((shown.at - await events.at(f"add@{path}", began)) * 1e3)
        whole.append((shown.at - began) * 1e3)
        await kubelet.quiet(RECOVERY)
        await asyncio.to_thread(disks.unplug, first)
        await asyncio.sleep(gap)
        _, began = await asyncio.to_thread(_timed, lambda: disks.unplug(second))  # noqa: B023
        shown = await kubelet.first(ZRAM, began, lambda listing: not listing.is_healthy(device))  # noqa: B023
        samples.append((shown.at - await events.at(f"remove@{path}", began)) * 1e3)
        whole.append((shown.at - began) * 1e3)
    return tuple(samples), tuple(whole)


async def _following_events(running: Running, pairs: int) -> tuple[float, ...]:
    """The same with devices that become unhealthy and healthy again."""
    kubelet, samples = running.kubelet, []
    for pair in range(pairs):
        action = "healthy" if pair % 2 else "unhealthy"
        await kubelet.quiet(RECOVERY)
        running.tell(f"{action} 0")
        await asyncio.sleep(GAPS[pair // 2 % len(GAPS)])
        began = time.monotonic()
        running.tell(f"{action} 1")
        shown = await kubelet.first(
            resource(0),
            began,
            lambda listing: listing.is_healthy("synthetic-00001") is (action == "healthy"),  # noqa: B023
        )
        samples.append((shown.at - began) * 1e3)
    return tuple(samples)


async def changes() -> AsyncIterator[Result]:
    """Events of the synthetic backend, among many resources and among many devices."""
    yield await _changes(measures.EVENT_100, resources=100, devices=10, pairs=25)
    yield await _changes(measures.EVENT_BIG, resources=1, devices=10_000, pairs=10)
    yield await _changes(measures.EVENT_BIG_FRESH, resources=1, devices=10_000, pairs=5, fresh=True)


async def _changes(line: Measure, *, resources: int, devices: int, pairs: int, fresh: bool = False) -> Result:
    async with serving(resources=resources, devices=devices, fresh=fresh) as running:
        samples = await events(running, resources, devices, 2 + pairs, REST)
    return Result(line, samples[4:])


async def events(
    running: Running, resources: int, devices: int, pairs: int, quiet: float = QUIET
) -> tuple[float, ...]:
    """Milliseconds until a list shows a change of health; a different device each time, if there are enough.

    ``devices`` are those of each resource.
    """
    kubelet, samples = running.kubelet, []
    for number in (pair % (resources * devices) for pair in range(pairs)):
        name = resource(number % resources)
        for action in ("unhealthy", "healthy"):
            await kubelet.quiet(quiet)
            samples.append(await change(running, name, number, healthy=action == "healthy"))
    return tuple(samples)


async def change(running: Running, name: str, number: int, *, healthy: bool) -> float:
    """Milliseconds until a list of a resource shows that a device is healthy, or is not."""
    began, device = time.monotonic(), f"synthetic-{number:05}"
    running.tell(f"{'healthy' if healthy else 'unhealthy'} {number}")
    shown = await running.kubelet.first(name, began, lambda listing: listing.is_healthy(device) is healthy)
    return (shown.at - began) * 1e3


async def reload() -> AsyncIterator[Result]:
    """An edit of the file that doubles the length of every list, and its reversal."""
    samples = []
    async with workplace() as (directory, kubelet):
        configs = [synthetic(directory, resources=10, devices=10, replicas=n) for n in (1, 2)]
        async with devhost(directory, kubelet, configs[0]) as running:
            await kubelet.all_listed(10, 10)
            for turn in range(1, 11):
                await kubelet.quiet(QUIET)
                began = time.monotonic()
                running.config.write_text(configs[turn % 2], encoding="utf-8")
                shown = [
                    await kubelet.first(
                        resource(number),
                        began,
                        lambda listing: len(listing.healthy()) == (20 if turn % 2 else 10),  # noqa: B023
                    )
                    for number in range(10)
                ]
                samples.append((max(listing.at for listing in shown) - began) * 1e3)
                await asyncio.sleep(2.5)  # devices that vanished stay in the list for 2 s
    yield Result(measures.RELOAD, tuple(samples))
