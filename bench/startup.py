"""The time from the start of the process to the first lists. An additional first run warms the caches."""

from __future__ import annotations

from collections.abc import AsyncIterator

from . import measures
from .measure import Measure, Result
from .process import devhost, synthetic, workplace

WARM_UP = 1
RUNS = 9


async def measure() -> AsyncIterator[Result]:
    """10 and 100 resources, and 10 000 devices."""
    yield await _start(measures.START_10, resources=10, devices=10)
    yield await _start(measures.START_100, resources=100, devices=10)
    yield await _start(measures.START_BIG, resources=1, devices=10_000)


async def _start(line: Measure, *, resources: int, devices: int) -> Result:
    samples = []
    for _ in range(WARM_UP + RUNS):
        async with workplace() as (directory, kubelet):
            config = synthetic(directory, resources=resources, devices=devices)
            async with devhost(directory, kubelet, config) as running:
                samples.append(await kubelet.all_listed(resources, devices) - running.began)
    return Result(line, tuple(samples[WARM_UP:]))
