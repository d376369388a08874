"""The memory and CPU usage of devhost without changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from . import measures
from .measure import Result
from .process import Running, devhost, serving, workplace

DEFAULT = Path(__file__).parents[1] / "config/devhost.yaml"

SETTLE = 3.0
"""Seconds between the first lists and the measurement."""

SCRAPES, EVERY = 3, 5.0
"""The number of scrapes before memory is measured, and the seconds between two of them."""

LISTEN = ("--listen", "127.0.0.1:0")
"""The options of the DaemonSet, which also serves metrics and probes."""

IDLE = 65.0
"""Seconds without changes: more than a minute, so that a resync of the backends is included."""


async def few() -> AsyncIterator[Result]:
    """Resident memory with few devices."""
    async with serving(*LISTEN, resources=10, devices=10, settle=SETTLE) as running:
        await _scraped(running)
        yield Result(measures.MEMORY, (running.resident(),))


async def many() -> AsyncIterator[Result]:
    """Resident memory with many devices."""
    async with serving(*LISTEN, resources=1, devices=10_000, settle=SETTLE) as running:
        yield Result(measures.MEMORY_BIG, (running.resident(),))


async def default() -> AsyncIterator[Result]:
    """Resident memory with the default configuration and all backends on this machine."""
    async with workplace() as (directory, kubelet):
        config = DEFAULT.read_text(encoding="utf-8")
        async with devhost(directory, kubelet, config, *LISTEN) as running:
            await asyncio.sleep(SETTLE)
            await _scraped(running)
            yield Result(measures.MEMORY_DEFAULT, (running.resident(),))


async def _scraped(running: Running) -> None:
    for _ in range(SCRAPES):
        await running.scrape()
        await asyncio.sleep(EVERY)


async def idle() -> AsyncIterator[Result]:
    """CPU time of all threads during :data:`IDLE` seconds."""
    async with serving(resources=10, devices=10, settle=SETTLE) as running:
        before = running.cpu_seconds()
        await asyncio.sleep(IDLE)
        used = running.cpu_seconds() - before
        yield Result(measures.IDLE, (used / IDLE * 100,), note=f"{used:.2f} s in {IDLE:g} s")
