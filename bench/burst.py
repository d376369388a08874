"""A storm of uevents with a few real changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost_testing.zram import Zram, why_not

from . import measures
from .latency import ZRAM, ZRAM_CONFIG
from .measure import Result
from .process import devhost, resource, serving, workplace
from .recorder import Recorder

EVENTS = 1000
APART = 0.002
"""Seconds between two changes in the burst in which every event is a change."""

AFTER = 3.0
"""Seconds without a list after which the burst is over: vanished devices leave the list after 2."""

TTY = "bench.example.com/tty"
CONFIG = f"""{ZRAM_CONFIG}
  - name: {TTY}
    backend: udev
    where: {{subsystem: tty}}
"""


async def measure() -> AsyncIterator[Result]:
    """Uevents of the kernel as root, else events of the synthetic backend."""
    if reason := why_not():
        yield await _synthetic(f"simulated events: {reason}")
    else:
        yield await _kernel()


async def _kernel() -> Result:
    """Adds three zram devices and removes one while the kernel repeats its event for others.

    Writing an action to a device's ``uevent`` file makes the kernel emit the event
    (Documentation/ABI/testing/sysfs-uevent).
    """
    async with workplace() as (directory, kubelet):
        with Zram() as disks:
            async with devhost(directory, kubelet, CONFIG):
                await kubelet.all_listed(2)
                await asyncio.sleep(1)
                before = _count(kubelet)

                def storm() -> None:
                    files = [path / "uevent" for path in sorted(Path("/sys/class/tty").iterdir())]
                    plugged: list[int] = []
                    for number in range(EVENTS):
                        files[number % len(files)].write_text("change", encoding="ascii")
                        if number in (200, 400, 600):
                            plugged.append(disks.plug())
                        elif number == 800:
                            disks.unplug(plugged[0])

                await asyncio.to_thread(storm)
                await asyncio.sleep(AFTER)
                await kubelet.quiet(AFTER)
                shown = kubelet.resources[ZRAM].latest[-1].healthy()
                right = shown == _existing()
                lists = _count(kubelet) - before
    return _result(lists, right, "kernel events of tty, zram plugged and unplugged within")


async def _synthetic(note: str) -> Result:
    async with serving(resources=2, devices=10) as running:
        before = _count(running.kubelet)
        for number in range(EVENTS):
            running.tell(f"{'unhealthy' if number in (200, 400, 600) else 'touch'} {2 * (number // 200)}")
        await asyncio.sleep(AFTER)
        await running.kubelet.quiet(AFTER)
        shown = running.kubelet.resources[resource(0)].latest[-1]
        healthy = shown.healthy()
        unhealthy = {device.ID for device in shown.message.devices} - healthy
        right = unhealthy == {f"synthetic-{number:05}" for number in (2, 4, 6)}
        lists = _count(running.kubelet) - before
    return _result(lists, right, note)


async def churn() -> AsyncIterator[Result]:
    """A burst in which every event is a change: devices become unhealthy one after another."""
    async with serving(resources=1, devices=EVENTS) as running:
        before = _count(running.kubelet)
        began = time.monotonic()
        for number in range(EVENTS):
            running.tell(f"unhealthy {number}")
            await asyncio.sleep(max(0.0, began + (number + 1) * APART - time.monotonic()))
        lasted = time.monotonic() - began
        await asyncio.sleep(AFTER)
        await running.kubelet.quiet(AFTER)
        right = not running.kubelet.resources[resource(0)].latest[-1].healthy()
        lists = _count(running.kubelet) - before
    wrong = "" if right else "the last list does not match the last state"
    yield Result(measures.CHURN, (lists,), note=f"simulated events in {lasted:.1f} s", wrong=wrong)


def _existing() -> set[str]:
    return {f"block-{path.name}" for path in Path("/sys/class/block").glob("zram*")}


def _result(lists: int, right: bool, note: str) -> Result:
    wrong = "" if right else "the last list does not match the existing devices"
    return Result(measures.BURST, (lists,), note=note, wrong=wrong)


def _count(kubelet: Recorder) -> int:
    return sum(lists.count for lists in kubelet.resources.values())
