"""Devices that are plugged and unplugged, and become unhealthy and healthy, while a plugin serves them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .machine import ADAPTERS
from .outcome import Outcome, merged
from .plugins import (
    DEVHOST,
    INTEL_FPGA,
    INTEL_GPU,
    NVIDIA,
    RDMA,
    RDMA_RESOURCE,
    TOKENS,
    Plugin,
)
from .running import Node, Running, TooLate, serving

PATIENCE = 15.0
"""Seconds after which a change counts as not seen by a plugin that polls every 5 s or never."""

RDMA_PATIENCE = 75.0
"""The same for k8s-rdma-shared-dev-plugin, which polls every 60 s."""

REPAIR_PATIENCE = 30.0
"""Seconds for a device to become healthy again; devhost checks a GPU again after 10 s."""

PERIOD = 5.0
"""Seconds between two polls of most plugins: a change is made at a random moment in between."""

XID = 79
"""The GPU fell off the bus."""

NAMES = {NVIDIA.title: "nvidia", INTEL_GPU.title: "intel", INTEL_FPGA.title: "fpga", RDMA.title: "rdma"}
"""The devices of each plugin on the machine."""

KINDS = ((NVIDIA, "gpu"), (INTEL_FPGA, "fpga"), (RDMA, "rdma"))
"""Plugins whose devices can become unhealthy; for the Intel GPU plugin only another program reports
health."""

Answers = AsyncIterator[tuple[str, Plugin, Outcome]]
Event = tuple[str, str]
"""Subsystem and ``sys_path``."""


async def plugged(plugins: Sequence[Plugin], repeats: int) -> Answers:
    """The time from plugging and unplugging a device to the list that shows it; and that of the next change.

    Each is measured with a newly started plugin; only the last one follows another change.
    """
    for plugin in plugins:
        if plugin is RDMA:
            came, went = await _all_adapters(plugin)
            yield "plugged", plugin, came
            yield "unplugged", plugin, went
            continue
        kinds = (NVIDIA, INTEL_GPU, INTEL_FPGA, RDMA) if plugin is DEVHOST else (plugin,)
        for name, changes in (("plugged", (_plug,)), ("unplugged", (_unplug,)), ("again", (_unplug, _plug))):
            found = [await _changed(plugin, kind, changes, repeats) for kind in kinds]
            yield name, plugin, merged(found)


Change = Callable[[Node, Plugin], tuple[str, int, list[Event]]]
"""Makes a change: the kernel's action, the difference in the number of devices, and the devices of its
events."""


async def _changed(plugin: Plugin, kind: Plugin, changes: Sequence[Change], repeats: int) -> Outcome:
    """The time until the last of some changes is seen, each time by a newly started plugin."""
    resource = next(iter(kind.offers))
    samples: list[float] = []
    for _ in range(repeats):
        async with serving(plugin) as running:
            at = running.node
            try:
                for change in changes:
                    await asyncio.sleep(1 + random.uniform(0, PERIOD))
                    before, began = at.kubelet.allocatable()[resource], time.monotonic()
                    action, by, events = await asyncio.to_thread(change, at, kind)
                    await running.uevent(action, *events)
                    seen = await _count(
                        at,
                        resource,
                        lambda now: (now - before) * by > 0,  # noqa: B023
                        PATIENCE,
                    )
            except TooLate:
                break
            samples.append(seen - began)
    return _outcome(samples, PATIENCE)


async def _all_adapters(plugin: Plugin) -> tuple[Outcome, Outcome]:
    """Removes the last adapter, or adds one: the number of tokens does not reveal the number of adapters."""
    out, in_ = [], []
    async with serving(plugin) as running:
        at = running.node
        began = time.monotonic()
        for path in list(at.machine.present["rdma"]):
            await asyncio.to_thread(at.machine.remove, path)
        with suppress(TooLate):
            out.append(await _count(at, RDMA_RESOURCE, lambda now: now == 0, RDMA_PATIENCE) - began)
            await asyncio.sleep(1 + random.uniform(0, PERIOD))
            began = time.monotonic()
            await asyncio.to_thread(_plug, at, RDMA)
            in_.append(await _count(at, RDMA_RESOURCE, lambda now: now == TOKENS, RDMA_PATIENCE) - began)
    return _outcome(in_, RDMA_PATIENCE), _outcome(out, RDMA_PATIENCE)


def _plug(at: Node, kind: Plugin) -> tuple[str, int, list[Event]]:
    """Adds a device of the kind that a plugin offers."""
    machine = at.machine
    if kind is NVIDIA:
        path = machine.add_nvidia_gpu("0000:e7:00.0")
    elif kind is INTEL_GPU:
        path = machine.add_intel_gpu(7)
    elif kind is INTEL_FPGA:
        path = machine.add_fpga(9)
    else:
        path = machine.add_adapter(ADAPTERS)
    machine.make_nodes()
    return "add", 1, _events(at, path)


def _unplug(at: Node, kind: Plugin) -> tuple[str, int, list[Event]]:
    """Removes the last device of the kind that a plugin offers."""
    machine = at.machine
    path = machine.present[NAMES[kind.title]][-1]
    events = _events(at, path)
    if kind is NVIDIA:
        del machine.nvidia.nvml.gpus[machine.nvidia.uuids[path.rpartition("/")[2]]]
        machine.nvidia.nvml.write()
    machine.remove(path)
    return "remove", -1, events[::-1]


def _events(at: Node, path: str) -> list[Event]:
    """The devices of the kernel's events: the function, and those of its driver."""
    place = at.machine.root / path.lstrip("/")
    found = [("pci", path)]
    for kind in ("drm", "fpga_region", "infiniband"):
        found += [(kind, f"{path}/{kind}/{each.name}") for each in sorted(place.glob(f"{kind}/*"))]
    return found


async def faults(plugins: Sequence[Plugin], _repeats: int) -> Answers:
    """The time from a fault to the list without the device or with it Unhealthy, and from its repair."""
    for plugin in plugins:
        for kind, name in KINDS:
            if plugin in (DEVHOST, kind):
                async with serving(plugin) as running:
                    fell, repaired = await _fault(running, kind)
                yield f"fault-{name}", plugin, fell
                yield f"repair-{name}", plugin, repaired


async def _fault(running: Running, kind: Plugin) -> tuple[Outcome, Outcome]:
    at, resource = running.node, next(iter(kind.offers))
    limit = RDMA_PATIENCE if running.plugin is RDMA else PATIENCE
    await asyncio.sleep(1 + random.uniform(0, PERIOD))
    before, began = at.kubelet.allocatable()[resource], time.monotonic()
    events = await asyncio.to_thread(_break, at, kind)
    await running.uevent("change", *events)
    fell, repaired = [], []
    with suppress(TooLate):
        fell.append(await _count(at, resource, lambda now: now < before, limit) - began)
        await asyncio.sleep(1 + random.uniform(0, PERIOD))
        began = time.monotonic()
        await asyncio.to_thread(_repair, at, kind)
        await running.uevent("change", *events)
        repaired.append(await _count(at, resource, lambda now: now == before, REPAIR_PATIENCE) - began)
    return _outcome(fell, limit), _outcome(repaired, REPAIR_PATIENCE) if fell else Outcome()


def _file(at: Node, kind: Plugin) -> Path:
    """The file of a device that shows its health."""
    name = "dfl-port.0/afu_id" if kind is INTEL_FPGA else "mlx5_0/ports/1/state"
    return next((at.machine.root / "sys/devices").rglob(name))


def _break(at: Node, kind: Plugin) -> list[Event]:
    machine = at.machine
    if kind is NVIDIA:
        address = next(iter(machine.nvidia.uuids))
        machine.nvidia.nvml.event(machine.nvidia.uuids[address], XID)
        return [("pci", machine.nvidia.paths[address])]
    return _write(at, kind, "f" * 32 if kind is INTEL_FPGA else "1: DOWN")


def _repair(at: Node, kind: Plugin) -> None:
    if kind is not NVIDIA:
        _write(at, kind, "d8424dc4a4a3c413f89e433683f9040b" if kind is INTEL_FPGA else "4: ACTIVE")


def _write(at: Node, kind: Plugin, text: str) -> list[Event]:
    file = _file(at, kind)
    file.write_text(f"{text}\n", encoding="utf-8")
    device = file.parent if kind is INTEL_FPGA else file.parents[2]
    return [("platform" if kind is INTEL_FPGA else "infiniband", f"/{device.relative_to(at.machine.root)}")]


async def _count(at: Node, resource: str, fits: Callable[[int], bool], limit: float) -> float:
    return await at.listed(lambda: fits(at.kubelet.allocatable().get(resource, 0)), limit)


def _outcome(samples: Sequence[float], limit: float) -> Outcome:
    return Outcome(tuple(samples)) if samples else Outcome(words=f"not within {limit:g} s")
