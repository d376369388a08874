"""The gpu backend with a substitute for NVML: its scans, and the memory of its two processes."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devhost_gpu import Gpu
from devhost_gpu.options import GpuOptions

from devhost.discovery.runner import ServiceContext

from . import measures
from .footprint import SETTLE
from .measure import Measure, Result
from .process import devhost, resident, workplace

MACHINES = Path(__file__).parents[1] / "plugins" / "gpu" / "tests" / "machines"
sys.path.append(os.fspath(MACHINES))  # the machine models and the library of the backend's tests

Machine = Any
"""``NvidiaMachine`` of the models."""

RUNS = 20
SPLIT, PARTS = 2, 7
"""The number of split GPUs, and of instances of each."""

RESOURCE = "nvidia.com/gpu"
CONFIG = f"""\
version: 1
resources:
  - {{name: {RESOURCE}, backend: gpu, where: {{kind: gpu}}}}
  - {{name: "nvidia.com/mig-{{profile}}", backend: gpu, where: {{kind: mig}}}}
"""


def lacking() -> str:
    """What this machine lacks for the substitute for NVML; empty if nothing."""
    from gpu_nvml import compiler  # type: ignore[import-not-found]

    if find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed"
    return "" if compiler() else "there is no C compiler"


@contextmanager
def station(directory: Path) -> Iterator[Machine]:
    """Eight GPUs, two of them split, as files below ``directory / "root"``, and a library for them."""
    from gpu_nvidia import DGX, NvidiaMachine  # type: ignore[import-not-found]
    from gpu_nvml import build

    machine = NvidiaMachine(directory / "root", build(directory))
    for address in DGX:
        machine.nvml.link(machine.gpu(address), "switch", 12)
    for address in DGX[-SPLIT:]:
        for number in range(PARTS):
            machine.mig(address, 7 + number, 0)
    for node in ("null", "nvidiactl", "nvidia-uvm"):
        machine.tree.file(f"/dev/{node}", "c195:255")
    machine.nvml.write()
    os.environ.update(machine.nvml.environment)
    try:
        yield machine
    finally:
        for name in machine.nvml.environment:
            del os.environ[name]


async def measure() -> AsyncIterator[Result]:
    """The first scan of a new backend, the next scan, and resident memory."""
    lines = (measures.GPUS, measures.GPUS_AGAIN, measures.MEMORY_GPU)
    if reason := lacking():
        for line in lines:
            yield Result(line, skipped=reason)
        return
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as name, station(Path(name)):
        samples = [await _looks(Path(name) / "root") for _ in range(1 + RUNS)]
    for line, taken in zip(lines, zip(*samples[1:], strict=True), strict=False):
        yield Result(line, taken)
    yield await _memory(measures.MEMORY_GPU)


async def _looks(root: Path) -> tuple[float, float]:
    """Milliseconds from the creation of the backend to its list, and of the next scan."""
    began = time.perf_counter()
    backend = Gpu(GpuOptions(), ServiceContext("gpu", root, ("*",)))
    found = await asyncio.to_thread(backend.discover)
    first = time.perf_counter()
    await asyncio.to_thread(backend.discover)
    second = time.perf_counter()
    if len(found) != 8 + SPLIT * PARTS or not all(device.health for device in found):
        raise RuntimeError(f"{len(found)} GPUs and instances, or one is unhealthy")
    await _end(backend)
    return (first - began) * 1e3, (second - first) * 1e3


async def _end(backend: Gpu) -> None:
    """Makes the backend release the library, as at the end of its events."""

    async def listen() -> None:
        async for _ in backend.watch():
            pass

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.1)
    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening


async def _memory(line: Measure) -> Result:
    async with workplace() as (directory, kubelet):
        with station(directory):
            root = ("--root", os.fspath(directory / "root"))
            async with devhost(directory, kubelet, CONFIG, *root) as running:
                await kubelet.all_listed(2)
                await asyncio.sleep(SETTLE)
                own, other = running.resident(), sum(map(_resident, _children(running.pid)))
    note = f"devhost {own:.1f}, the process for NVML {other:.1f}"
    return Result(line, (own + other,), note=note, wrong="" if other else "there is no process for NVML")


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text("ascii").split()]


def _resident(pid: int) -> float:
    return resident(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
