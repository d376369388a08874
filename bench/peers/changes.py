"""Devices that are plugged in and pulled out, fall ill and get well, while a plugin serves them."""

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
"""Seconds after which a change counts as not seen by a plugin that looks every 5 s, or not at all."""

RDMA_PATIENCE = 75.0
"""The same for k8s-rdma-shared-dev-plugin, which looks every 60 s."""

WELL_PATIENCE = 30.0
"""Seconds for a device to be well again; devhost asks a GPU again after 10 s."""

PERIOD = 5.0
"""Seconds between two looks of most plugins: a change is made at a random moment of it."""

XID = 79
"""The GPU has fallen off the bus."""

NAMES = {NVIDIA.title: "nvidia", INTEL_GPU.title: "intel", INTEL_FPGA.title: "fpga", RDMA.title: "rdma"}
"""What the machine calls the devices of a plugin."""

KINDS = ((NVIDIA, "gpu"), (INTEL_FPGA, "fpga"), (RDMA, "rdma"))
"""Whose devices can fall ill; an Intel GPU does so for its plugin only by what another program tells it."""

Answers = AsyncIterator[tuple[str, Plugin, Outcome]]
Event = tuple[str, str]
"""Subsystem and ``sys_path``."""


async def plugged(plugins: Sequence[Plugin], repeats: int) -> Answers:
    """From a device that is plugged in, and pulled out, to the list that shows it; and the change after that.

    Each is asked of a plugin that has just been started; only the last one comes after another change.
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
"""Makes it: what the kernel calls it, by how many devices the list changes, and which devices it tells of."""


async def _changed(plugin: Plugin, kind: Plugin, changes: Sequence[Change], repeats: int) -> Outcome:
    """How long the last of some changes takes to be seen, each time by a plugin that has just begun."""
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
    """The last adapter goes, and one comes: its number of tokens says nothing of how many there are."""
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
    """One more device of the kind that a plugin offers."""
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
    """The last device of the kind that a plugin offers goes."""
    machine = at.machine
    path = machine.present[NAMES[kind.title]][-1]
    events = _events(at, path)
    if kind is NVIDIA:
        del machine.nvidia.nvml.gpus[machine.nvidia.uuids[path.rpartition("/")[2]]]
        machine.nvidia.nvml.write()
    machine.remove(path)
    return "remove", -1, events[::-1]


def _events(at: Node, path: str) -> list[Event]:
    """What the kernel tells of: the function, and what its driver made of it."""
    place = at.machine.root / path.lstrip("/")
    found = [("pci", path)]
    for kind in ("drm", "fpga_region", "infiniband"):
        found += [(kind, f"{path}/{kind}/{each.name}") for each in sorted(place.glob(f"{kind}/*"))]
    return found


async def ill(plugins: Sequence[Plugin], _repeats: int) -> Answers:
    """From a fault of a device to the list that shows it Unhealthy, or no more, and back after the repair."""
    for plugin in plugins:
        for kind, name in KINDS:
            if plugin in (DEVHOST, kind):
                async with serving(plugin) as running:
                    fell, well = await _ill(running, kind)
                yield f"ill-{name}", plugin, fell
                yield f"well-{name}", plugin, well


async def _ill(running: Running, kind: Plugin) -> tuple[Outcome, Outcome]:
    at, resource = running.node, next(iter(kind.offers))
    limit = RDMA_PATIENCE if running.plugin is RDMA else PATIENCE
    await asyncio.sleep(1 + random.uniform(0, PERIOD))
    before, began = at.kubelet.allocatable()[resource], time.monotonic()
    events = await asyncio.to_thread(_break, at, kind)
    await running.uevent("change", *events)
    fell, well = [], []
    with suppress(TooLate):
        fell.append(await _count(at, resource, lambda now: now < before, limit) - began)
        await asyncio.sleep(1 + random.uniform(0, PERIOD))
        began = time.monotonic()
        await asyncio.to_thread(_mend, at, kind)
        await running.uevent("change", *events)
        well.append(await _count(at, resource, lambda now: now == before, WELL_PATIENCE) - began)
    return _outcome(fell, limit), _outcome(well, WELL_PATIENCE) if fell else Outcome()


def _file(at: Node, kind: Plugin) -> Path:
    """The file of a device whose text tells how it is."""
    name = "dfl-port.0/afu_id" if kind is INTEL_FPGA else "mlx5_0/ports/1/state"
    return next((at.machine.root / "sys/devices").rglob(name))


def _break(at: Node, kind: Plugin) -> list[Event]:
    machine = at.machine
    if kind is NVIDIA:
        address = next(iter(machine.nvidia.uuids))
        machine.nvidia.nvml.event(machine.nvidia.uuids[address], XID)
        return [("pci", machine.nvidia.paths[address])]
    return _write(at, kind, "f" * 32 if kind is INTEL_FPGA else "1: DOWN")


def _mend(at: Node, kind: Plugin) -> None:
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
