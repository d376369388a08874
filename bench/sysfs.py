"""The udev backend: scans of many device nodes."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from devhost_testing.trees import Tree
from devhost_udev import Udev
from devhost_udev.options import UdevOptions

from devhost.backend import Event
from devhost.discovery.runner import ServiceContext

from . import measures
from .measure import Measure, Result

NODES = 10_000
RUNS = 5


async def measure(count: int = NODES, runs: int = RUNS) -> AsyncIterator[Result]:
    """The first scan, one after an event of one device, and one that reads everything again."""
    with tempfile.TemporaryDirectory(prefix="devhost-bench-") as directory:
        root = Path(directory)
        nodes(root, count)
        firsts = [_timed(_new(root), None, count) for _ in range(1 + runs)]
        backend = _new(root)
        _timed(backend, None, count)
        one = Event("misc", "change", f"/sys/devices/virtual/misc/node{count // 2}")
        samples: tuple[tuple[Measure, list[float]], ...] = (
            (measures.NODES, firsts[1:]),
            (measures.NODES_ONE, [_timed(backend, one, count) for _ in range(4 * runs)]),
            (measures.NODES_AGAIN, [_timed(backend, Event("misc"), count) for _ in range(runs)]),
        )
    for line, milliseconds in samples:
        yield Result(line, tuple(milliseconds))


def nodes(root: Path, count: int) -> None:
    """A tree with this number of character devices."""
    tree = Tree(root)
    for number in range(count):
        node = f"node{number}"
        tree.device(f"virtual/misc/{node}", "misc", node, f"{240 + number // 1000}:{number % 1000}")


def _new(root: Path) -> Udev:
    return Udev(UdevOptions(), ServiceContext("udev", root, ("*",)))


def _timed(backend: Udev, event: Event | None, count: int) -> float:
    """Milliseconds of a scan after this event."""
    gc.collect()  # garbage of an earlier scan must not count
    began = time.perf_counter()
    if event is not None:
        backend.notice(event)
    found = backend.discover()
    elapsed = time.perf_counter() - began
    if len(found) != count:
        raise RuntimeError(f"{len(found)} devices of {count}")
    return elapsed * 1e3
