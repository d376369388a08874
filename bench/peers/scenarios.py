"""Measurements of every plugin without faults: start, memory, CPU, restarts of the kubelet."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from .outcome import Outcome, ended
from .plugins import Plugin
from .programs import built
from .running import TooLate, last_start, node, ready, serving, started

SETTLE = 30.0
"""Seconds before memory is measured, in which a Go program releases the memory of its start."""

IDLE = 60.0
"""The seconds of the CPU measurement."""

PERIOD = 5.0
"""Seconds between two polls of some plugins: the kubelet is restarted at a random moment in between."""

EARLY, LATE = 10.0, 45.0
"""Seconds that a plugin runs before the kubelet, and that it has to register afterwards."""

BACKENDS = ("fpga", "gpu", "neuron", "rdma", "sriov", "udev")
PACKAGES = ("devhost", *(f"devhost-{name}" for name in BACKENDS))

Found = AsyncIterator[tuple[Plugin, Outcome]]


async def sizes(plugins: Sequence[Plugin], _repeats: int) -> Found:
    """The size of the program; for devhost, of everything installed except the interpreter."""
    for plugin in plugins:
        size = built(plugin.program).stat().st_size if plugin.program else installed(*PACKAGES)
        yield plugin, Outcome((size / 1e6,), "MB", "" if plugin.program else "installed, with its libraries")


def installed(*names: str) -> int:
    """The size of packages and of all their requirements, in bytes."""
    seen: set[str] = set()
    waiting = list(names)
    total = 0
    while waiting:
        name = re.split(r"[^A-Za-z0-9_.-]", waiting.pop(), maxsplit=1)[0].lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            package = distribution(name)
        except PackageNotFoundError:  # not required on this platform
            continue
        waiting += [each for each in package.requires or () if "extra ==" not in each]
        if name.startswith("devhost"):
            total += _own(name)
        else:
            files = (Path(str(file.locate())) for file in package.files or ())
            total += sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
    return total


def _own(name: str) -> int:
    """The size of a package of this project in bytes, which is installed as a link to its directory."""
    found = find_spec(name.replace("-", "_"))
    assert found is not None and found.submodule_search_locations
    place = Path(found.submodule_search_locations[0])
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and file.suffix != ".pyc")


async def starts(plugins: Sequence[Plugin], repeats: int) -> Found:
    """The time from the program's start to the complete list, with a running kubelet."""
    for plugin in plugins:
        samples = []
        for _ in range(1 + repeats):
            async with node() as at, started(plugin, at) as running:
                samples.append(await ready(running) - running.began())
        yield plugin, Outcome(tuple(samples[1:]))  # the first one reads the program from disk


async def memory(plugins: Sequence[Plugin], repeats: int) -> Found:
    """Resident memory at rest, each plugin on a separate machine."""

    async def one(plugin: Plugin) -> tuple[float, int]:
        async with serving(plugin) as running:
            await asyncio.sleep(SETTLE)
            return running.memory(), len(running.processes())

    rounds = [await asyncio.gather(*map(one, plugins)) for _ in range(repeats)]
    for plugin, found in zip(plugins, zip(*rounds, strict=True), strict=True):
        figures, counts = zip(*found, strict=True)
        yield plugin, Outcome(figures, "MB", f"{max(counts)} processes" if max(counts) > 1 else "")


async def idle(plugins: Sequence[Plugin], _repeats: int) -> Found:
    """CPU usage of one core during a minute without changes."""

    async def one(plugin: Plugin) -> Outcome:
        async with serving(plugin) as running:
            await asyncio.sleep(5)
            before = running.cpu()
            await asyncio.sleep(IDLE)
            return Outcome(((running.cpu() - before) / IDLE * 100,), "%")

    for plugin, outcome in zip(plugins, await asyncio.gather(*map(one, plugins)), strict=True):
        yield plugin, outcome


async def kubelet_restarts(plugins: Sequence[Plugin], repeats: int) -> Found:
    """The time from the new kubelet's start until it has every device again."""
    for plugin in plugins:
        samples: list[float] = []
        words = ""
        async with serving(plugin) as running:
            for _ in range(repeats):
                await asyncio.sleep(1 + random.uniform(0, PERIOD))
                await running.node.kubelet.restart()
                try:
                    samples.append(await ready(running) - last_start(running.node))
                except TooLate:
                    fate = ended(running.process.returncode, running.said())
                    words = f"not after restart {len(samples) + 1}: {fate}"
                    break
        yield plugin, Outcome(tuple(samples), words=words)


async def no_kubelet(plugins: Sequence[Plugin], _repeats: int) -> Found:
    """The plugin starts first, and the kubelet ten seconds later."""
    for plugin in plugins:
        async with node() as at:
            await at.kubelet.stop()
            async with started(plugin, at) as running:
                with suppress(TimeoutError):
                    await asyncio.wait_for(running.process.wait(), EARLY)
                if running.process.returncode is not None:
                    yield plugin, Outcome(words=ended(running.process.returncode, running.said()))
                    continue
                await at.kubelet.start()
                try:
                    offered = await at.listed(lambda: at.offers([plugin]), LATE)  # noqa: B023
                    yield plugin, Outcome((offered - last_start(at),))
                except TooLate as error:
                    yield plugin, Outcome(words=str(error))
