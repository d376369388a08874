"""CPU usage while containers hold devices: devhost asks the kubelet which ones, again and again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost_testing.kubelet import KubeletSimulator

from . import measures
from .footprint import LISTEN, SETTLE
from .measure import Result
from .process import devhost, resource, synthetic
from .recorder import Recorder

PODS = 100
LASTING = 65.0
"""Seconds: more than a minute, so that a resync of the backends is included."""


async def measure(lasting: float = LASTING, pods: int = PODS) -> AsyncIterator[Result]:
    """Containers that stay, then one more that starts and ends each second while metrics are read."""
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as name:
        directory = Path(name)
        config = synthetic(directory, resources=10, devices=20)
        place = Recorder(directory / "device-plugins")  # not started: the simulator serves there
        async with (
            KubeletSimulator(place.directory, keep_events=1000) as kubelet,
            devhost(directory, place, config, *LISTEN) as running,
        ):
            names = [resource(number) for number in range(10)]
            await kubelet.wait_for(lambda: all(len(kubelet.healthy(one)) == 20 for one in names))
            for number in range(pods):
                await kubelet.admit(f"pod-{number}", "main", names[number % 10], 1)
            await asyncio.sleep(SETTLE)
            used, began = running.cpu_seconds(), time.monotonic()
            await asyncio.sleep(lasting)
            yield Result(measures.HELD, (_percent(running.cpu_seconds() - used, began),))
            used, began = running.cpu_seconds(), time.monotonic()
            while time.monotonic() - began < lasting:
                await kubelet.admit("another", "main", names[0], 1)
                await running.scrape()
                await asyncio.sleep(1.0)
                kubelet.release("another")
            yield Result(measures.POLLED, (_percent(running.cpu_seconds() - used, began),))


def _percent(used: float, since: float) -> float:
    return used / (time.monotonic() - since) * 100
