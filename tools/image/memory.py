"""Measures the resident memory of devhost as it runs in an image."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import checkout
from running import Failed, run

from bench import dra, footprint
from bench.measure import Result
from bench.process import PROGRAM

from .archive import Archive
from .telling import say

BENCHES: tuple[Callable[[], AsyncIterator[Result]], ...] = (
    footprint.few,
    footprint.default,
    dra.memory,
)

SHARED = ("/proc", "/sys", "/dev", "/tmp", os.fspath(checkout.ROOT))
"""Directories that the measured process has in common with the one that measures."""

TOLERANCE = 1.1
"""Above a limit by this factor the image is refused: another machine has other pages in memory."""


def measure(root: Path, archive: Archive) -> None:
    """Runs the image's devhost beside a simulated kubelet, and reports its memory.

    Args:
        root: the unpacked image, in a mount namespace that ends with the run.

    Raises:
        Failed: it takes much more than it may.
    """
    for path in SHARED:
        inside = root / path.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        run(["mount", "--rbind", path, str(inside)], limit=60)
    # the API server of the benches is localhost
    shutil.copyfile("/etc/hosts", root / "etc/hosts")
    os.environ[PROGRAM] = shlex.join(
        ["chroot", str(root), "env", "-i", *archive.config["Env"], *archive.config["Entrypoint"]]
    )
    for bench in BENCHES:
        asyncio.run(_report(bench))


async def _report(bench: Callable[[], AsyncIterator[Result]]) -> None:
    async for result in bench():
        say(f"{result.measure.title}: {result.text} ({result.measure.target})")
        if result.missed and max(result.samples) > TOLERANCE * max(result.measure.limits.values()):
            raise Failed(f"too much memory: {result.text}")
