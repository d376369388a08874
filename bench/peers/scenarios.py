"""What is asked of every plugin while nothing is wrong: start, memory, CPU, restarts of the kubelet."""

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
"""Seconds in service before memory is read: a Go program gives back what its start took within them."""

IDLE = 60.0
"""Seconds over which CPU time is counted."""

PERIOD = 5.0
"""Seconds between two looks of some plugins: the kubelet is restarted at a random moment of it."""

EARLY, LATE = 10.0, 45.0
"""Seconds that a plugin is there before the kubelet, and for it to register afterwards."""

PACKAGES = ("devhost", "devhost-gpu", "devhost-fpga", "devhost-rdma", "devhost-sriov", "devhost-udev")

Found = AsyncIterator[tuple[Plugin, Outcome]]


async def sizes(plugins: Sequence[Plugin], _repeats: int) -> Found:
    """The program's file; of devhost, everything that is installed for it beside the interpreter."""
    for plugin in plugins:
        size = built(plugin.program).stat().st_size if plugin.program else installed(*PACKAGES)
        yield plugin, Outcome((size / 1e6,), "MB", "" if plugin.program else "installed, with its libraries")


def installed(*names: str) -> int:
    """Bytes of the files of some packages and of all that they require."""
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
        except PackageNotFoundError:  # required only elsewhere
            continue
        waiting += [each for each in package.requires or () if "extra ==" not in each]
        if name.startswith("devhost"):
            total += _own(name)
        else:
            files = (Path(str(file.locate())) for file in package.files or ())
            total += sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
    return total


def _own(name: str) -> int:
    """Bytes of a package of this project, which is installed as a link to its directory."""
    found = find_spec(name.replace("-", "_"))
    assert found is not None and found.submodule_search_locations
    place = Path(found.submodule_search_locations[0])
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and file.suffix != ".pyc")


async def starts(plugins: Sequence[Plugin], repeats: int) -> Found:
    """From the program's beginning to the complete list; the kubelet is there."""
    for plugin in plugins:
        samples = []
        for _ in range(1 + repeats):
            async with node() as at, started(plugin, at) as running:
                samples.append(await ready(running) - running.began())
        yield plugin, Outcome(tuple(samples[1:]))  # the first one read the program from disk


async def memory(plugins: Sequence[Plugin], repeats: int) -> Found:
    """Resident memory at rest, each plugin on a machine of its own."""

    async def one(plugin: Plugin) -> tuple[float, int]:
        async with serving(plugin) as running:
            await asyncio.sleep(SETTLE)
            return running.memory(), len(running.processes())

    rounds = [await asyncio.gather(*map(one, plugins)) for _ in range(repeats)]
    for plugin, found in zip(plugins, zip(*rounds, strict=True), strict=True):
        figures, counts = zip(*found, strict=True)
        yield plugin, Outcome(figures, "MB", f"{max(counts)} processes" if max(counts) > 1 else "")


async def idle(plugins: Sequence[Plugin], _repeats: int) -> Found:
    """CPU of one core over a minute in which nothing happens."""

    async def one(plugin: Plugin) -> Outcome:
        async with serving(plugin) as running:
            await asyncio.sleep(5)
            before = running.cpu()
            await asyncio.sleep(IDLE)
            return Outcome(((running.cpu() - before) / IDLE * 100,), "%")

    for plugin, outcome in zip(plugins, await asyncio.gather(*map(one, plugins)), strict=True):
        yield plugin, outcome


async def kubelet_restarts(plugins: Sequence[Plugin], repeats: int) -> Found:
    """From the moment the new kubelet answers until it has every device again."""
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
