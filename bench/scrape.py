"""The size of ``/metrics`` and the time to read it, when every resource was used."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

from devhost_testing.kubelet.wire import PluginConnection

from devhost.kubelet.api import RECEIVE_LIMIT

from . import measures
from .footprint import LISTEN
from .measure import Result
from .process import Running, resource, serving

RESOURCES, DEVICES = 200, 10
SCRAPES = 40


async def measure() -> AsyncIterator[Result]:
    """Series before the resources are used are only a note, because their number grows with use."""
    async with serving(*LISTEN, resources=RESOURCES, devices=DEVICES) as running:
        unused = _series(await running.scrape())
        await _use(running)
        samples = []
        for _ in range(SCRAPES):
            began = time.perf_counter()
            answer = await running.scrape()
            samples.append((time.perf_counter() - began) * 1e3)
    note = f"{unused} before their use; {len(answer) / 1e3:.0f} kB"
    yield Result(measures.SERIES, (_series(answer),), note=note)
    yield Result(measures.SCRAPE, tuple(samples))


async def _use(running: Running) -> None:
    """Two events, a preference and an Allocate for each resource."""
    for action in ("unhealthy", "healthy"):
        began = time.monotonic()
        running.tell(*(f"{action} {number}" for number in range(RESOURCES)))
        for number in range(RESOURCES):
            await running.kubelet.first(
                resource(number),
                began,
                lambda listing: listing.is_healthy(f"synthetic-{number:05}") is (action == "healthy"),  # noqa: B023
            )
    for number in range(RESOURCES):
        name, device = resource(number), f"synthetic-{number + RESOURCES:05}"
        path = running.kubelet.resources[name].socket
        connection = PluginConnection(name, path, path, RECEIVE_LIMIT)
        await connection.dial(10.0)
        await connection.preference([device], [], 1)
        await connection.allocate([device])
        await connection.close()


def _series(answer: bytes) -> int:
    _, _, body = answer.partition(b"\r\n\r\n")
    return sum(not line.startswith(b"#") for line in body.splitlines())
