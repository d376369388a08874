"""The cost of backends whose hardware the node does not have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

from . import measures
from .footprint import IDLE, LISTEN, SETTLE
from .measure import Measure, Result
from .process import Running, devhost, workplace

PAIRS = 3
"""How often both processes are measured side by side, so that other load affects both."""

NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "kmsg", "mem")
"""Device nodes that almost every machine has."""

UDEV = "version: 1\nresources:\n" + "".join(
    f"  - {{name: bench.example.com/{node}, backend: udev, where: {{devNode: /dev/{node}}}}}\n"
    for node in NODES
)
ALL = f"""{UDEV}\
  - {{name: bench.example.com/gpu, backend: gpu}}
  - {{name: bench.example.com/rdma, backend: rdma}}
  - {{name: bench.example.com/sriov, backend: sriov}}
  - {{name: bench.example.com/fpga, backend: fpga}}
  - {{name: bench.example.com/neuron, backend: neuron}}
"""
MEASURES = (measures.MEMORY_ABSENT, measures.THREADS_ABSENT, measures.CPU_ABSENT)


async def measure() -> AsyncIterator[Result]:
    """Memory, threads and CPU with all six backends, minus those with only udev, on this machine."""
    pairs = []
    for _ in range(PAIRS):
        async with AsyncExitStack() as stack:
            alone, every = [await _started(stack, config) for config in (UDEV, ALL)]
            names = ("gpu", "rdma", "sriov", "fpga", "neuron")
            if there := [name for name in names if f"bench.example.com/{name}" in every.kubelet.resources]:
                for one in MEASURES:
                    yield Result(one, skipped=f"this machine has devices of {', '.join(there)}")
                return
            before = alone.cpu_seconds(), every.cpu_seconds()
            await asyncio.sleep(IDLE)
            pairs.append((_figures(alone, before[0]), _figures(every, before[1])))
    for one, figures in zip(
        MEASURES, zip(*((zip(*pair, strict=True)) for pair in pairs), strict=True), strict=True
    ):
        yield _result(one, [(a, b) for a, b in figures])


async def _started(stack: AsyncExitStack, config: str) -> Running:
    directory, kubelet = await stack.enter_async_context(workplace())
    running = await stack.enter_async_context(devhost(directory, kubelet, config, *LISTEN))
    present = sum(Path("/dev", node).exists() for node in NODES)  # noqa: ASYNC240
    await kubelet.until(lambda: len(kubelet.resources) >= present, "the device nodes of this machine")
    await asyncio.sleep(SETTLE)
    return running


def _figures(running: Running, before: float) -> tuple[float, float, float]:
    return running.resident(), running.threads(), (running.cpu_seconds() - before) / IDLE * 100


def _result(measure: Measure, figures: list[tuple[float, float]]) -> Result:
    """A difference, at least zero."""
    digits = 0 if measure is measures.THREADS_ABSENT else 2 if measure is measures.CPU_ABSENT else 1
    note = ", ".join(f"{alone:.{digits}f} → {every:.{digits}f}" for alone, every in figures)
    return Result(measure, tuple(max(0.0, every - alone) for alone, every in figures), note=note)
