"""An edited configuration, a mistake in it, and a faulty device."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence

from bench.measure import number

from .outcome import Outcome, ended
from .plugins import (
    DEVHOST,
    FPGA_RESOURCE,
    NVIDIA,
    NVIDIA_RESOURCE,
    RDMA,
    RDMA_RESOURCE,
    Plugin,
)
from .running import Node, Running, TooLate, node, serving, started

PATIENCE = 15.0
"""Seconds after which an edit counts as not seen."""

MOMENT = 8.0
"""Seconds that a plugin has to report a mistake."""

Answers = AsyncIterator[tuple[Plugin, Outcome]]

EDITS = {
    DEVHOST.title: ("replicas: 100", "replicas: 50"),
    NVIDIA.title: (
        "  migStrategy: none\n",
        "  migStrategy: none\nsharing:\n  timeSlicing:\n    resources: [{name: nvidia.com/gpu, replicas: 2}]",
    ),
    RDMA.title: ('"rdmaHcaMax": 100', '"rdmaHcaMax": 50'),
}
"""The edit of each plugin's file: old and new text."""

EDITED = {
    DEVHOST.title: (RDMA_RESOURCE, 8 * 50),
    NVIDIA.title: (NVIDIA_RESOURCE, 16),
    RDMA.title: (RDMA_RESOURCE, 50),
}
"""The number of devices of each resource after the edit."""

TYPOS = {
    DEVHOST.title: ("replicas: 100", "replica: 100"),
    NVIDIA.title: ("migStrategy: none", "migStrategie: mixed"),
    RDMA.title: ('"rdmaHcaMax"', '"rdmaHcaMaximum"'),
}
"""A key that does not exist."""


async def edited(plugins: Sequence[Plugin], repeats: int) -> Answers:
    """The time from an edit of the file to the list that shows it; if it is not noticed, from SIGHUP."""
    for plugin in plugins:
        if plugin.title not in EDITS:
            yield plugin, Outcome(words="has no file: a new pod with other flags")
            continue
        samples: list[float] = []
        words = ""
        for _ in range(repeats):
            async with serving(plugin) as running:
                await asyncio.sleep(1)
                file = plugin.configuration(running.node.place)
                assert file is not None
                text, began = file.read_text(encoding="utf-8").replace(*EDITS[plugin.title]), time.monotonic()
                file.write_text(text, encoding="utf-8")
                try:
                    samples.append(await _edit_shown(running) - began)
                except TooLate as error:
                    words = f"{error}; {await _after_hangup(running)}"
                    break
        yield plugin, Outcome(tuple(samples), words=words)


async def _edit_shown(running: Running) -> float:
    resource, count = EDITED[running.plugin.title]
    kubelet = running.node.kubelet
    return await running.node.listed(lambda: kubelet.allocatable().get(resource) == count, PATIENCE)


async def _after_hangup(running: Running) -> str:
    began = time.monotonic()
    running.process.send_signal(signal.SIGHUP)
    try:
        return f"{number(await _edit_shown(running) - began)} s after SIGHUP"
    except TooLate:
        code = running.process.returncode
        return "nor after SIGHUP" if code is None else f"ends with {code} after SIGHUP"


async def mistyped(plugins: Sequence[Plugin], _repeats: int) -> Answers:
    """The effect of a mistyped key in the file or, without a file, of a mistyped flag."""
    for plugin in plugins:
        async with node() as at:
            file = plugin.configuration(at.place)
            if file is None:
                wrong = Plugin(plugin.title, plugin.program, lambda _: ["-mod=region"], plugin.offers)
                async with started(wrong, at) as running:
                    yield plugin, await _fate(running)
                continue
            text = file.read_text(encoding="utf-8").replace(*TYPOS[plugin.title])
            async with started(plugin, at, config=text) as running:
                yield plugin, await _fate(running)


async def _fate(running: Running) -> Outcome:
    """How it ended, with its message; or what it offers."""
    try:
        code = await asyncio.wait_for(running.process.wait(), MOMENT)
    except TimeoutError:
        shown = running.node.kubelet.allocatable()
        return Outcome(words="ignores it and offers " + (_counts(shown) or "nothing"))
    return Outcome(words=ended(code, running.said()))


async def one_bad(plugins: Sequence[Plugin], _repeats: int) -> Answers:
    """The plugin starts on a machine with one faulty device."""
    for plugin in plugins:
        async with node() as at:
            await asyncio.to_thread(spoil, at, plugin)
            async with started(plugin, at) as running:
                yield plugin, await _fate(running)


def spoil(at: Node, plugin: Plugin) -> None:
    """Adds a fault to one device of each kind that the plugin offers."""
    machine = at.machine
    if NVIDIA_RESOURCE in plugin.offers:  # this GPU does not answer NVML
        machine.nvidia.lose(next(iter(machine.nvidia.uuids)))
    if FPGA_RESOURCE in plugin.offers:  # a card that cannot be programmed through this interface
        machine.add_fpga(9, programmable=False)
    if RDMA_RESOURCE in plugin.offers:  # a function whose driver did not create all nodes
        card = next((machine.root / "sys/devices").rglob("mlx5_0")).parents[1]
        for kind in ("infiniband_mad", "infiniband_verbs"):
            for place in (card / kind).iterdir():
                machine.remove(f"/{place.relative_to(machine.root)}")
    if plugin.offers.keys() & {"gpu.intel.com/i915"}:  # no nodes
        card = next((machine.root / "sys/devices").rglob("drm/card0")).parent
        for place in list(card.iterdir()):
            machine.remove(f"/{place.relative_to(machine.root)}")
    machine.make_nodes()


def _counts(shown: dict[str, int]) -> str:
    return ", ".join(f"{count} of {name.partition('/')[0]}/…" for name, count in sorted(shown.items()))
