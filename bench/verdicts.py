"""The time from a verdict to the list that shows it, and the memory of many verdicts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost.telemetry import ask

from . import measures
from .measure import Result
from .process import Running, resource, serving

TIMES = 60
WARM_UP = 4
MANY = 1000


async def listed() -> AsyncIterator[Result]:
    """From the renaming or the removal of a file to the list."""
    async with serving(resources=1, devices=100) as running:
        yield Result(measures.VERDICT, (await _samples(running))[2 * WARM_UP :])


async def memory() -> AsyncIterator[Result]:
    """What verdicts on a thousand devices add, with what is remembered of an unhealthy device."""
    async with serving(resources=1, devices=MANY) as running:
        _write(running, 0)
        await asyncio.sleep(3.0)
        before = running.resident()
        for number in range(1, MANY):
            _write(running, number)
        await asyncio.sleep(5.0)
        added = running.resident() - before
        document = (await ask.fetch(running.config.parent / "status.sock")).document
        assert len(document.verdicts) == MANY, len(document.verdicts)
        yield Result(measures.MEMORY_VERDICTS, (added,))


async def _samples(running: Running) -> tuple[float, ...]:
    kubelet, samples = running.kubelet, []
    for _ in range(TIMES + WARM_UP):
        for cordoned in (True, False):
            await kubelet.quiet(0.2)
            began = time.monotonic()
            if cordoned:
                file = _write(running, 0)
            else:
                file.unlink()
            shown = await kubelet.first(
                resource(0),
                began,
                lambda listing: len(listing.healthy()) == (99 if cordoned else 100),  # noqa: B023
            )
            samples.append((shown.at - began) * 1e3)
    return tuple(samples)


def _write(running: Running, number: int) -> Path:
    """Cordons a device as a program does: a complete file, renamed."""
    directory = running.config.parent / "state" / "verdicts"
    directory.mkdir(parents=True, exist_ok=True)
    verdict = {
        "devices": [f"synthetic-{number:05}"],
        "kind": "cordon",
        "reason": f"fan {number} replaced",
        "by": "bench",
    }
    part = directory / f".v{number}"
    part.write_text(json.dumps(verdict))
    return part.rename(directory / f"v{number}.json")
