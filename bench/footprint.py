"""The memory and CPU usage of devhost without changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from . import measures
from .measure import Result
from .process import serving

SETTLE = 3.0
"""Seconds between the first lists and the measurement."""

SCRAPES, EVERY = 3, 15.0
"""The number of scrapes before memory is measured, and the seconds between two of them."""

LISTEN = ("--listen", "127.0.0.1:0")
"""The options of the DaemonSet, which also serves metrics and probes."""

IDLE = 65.0
"""Seconds without changes: more than a minute, so that a resync of the backends is included."""


async def measure() -> AsyncIterator[Result]:
    """Resident memory with few and with many devices, and CPU usage without changes."""
    async with serving(*LISTEN, resources=10, devices=10, settle=SETTLE) as running:
        for _ in range(SCRAPES):
            await running.scrape()
            await asyncio.sleep(EVERY)
        yield Result(measures.MEMORY, (running.resident(),))
    async with serving(*LISTEN, resources=1, devices=10_000, settle=SETTLE) as running:
        yield Result(measures.MEMORY_BIG, (running.resident(),))


async def idle() -> AsyncIterator[Result]:
    """CPU time of all threads during :data:`IDLE` seconds."""
    async with serving(resources=10, devices=10, settle=SETTLE) as running:
        before = running.cpu_seconds()
        await asyncio.sleep(IDLE)
        used = running.cpu_seconds() - before
        yield Result(measures.IDLE, (used / IDLE * 100,), note=f"{used:.2f} s in {IDLE:g} s")
