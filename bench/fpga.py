"""The additional memory of the fpga backend in a process that serves other devices of the same machine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from . import measures
from .footprint import SETTLE
from .measure import Result
from .process import devhost, workplace

MACHINES = Path(__file__).parents[1] / "plugins" / "fpga" / "tests" / "machines"
sys.path.append(os.fspath(MACHINES))  # the machine models of the backend's tests

PAIRS = 3
"""How often both processes are measured, one after the other, so that other load affects both."""

CARDS = 8

WITHOUT = """\
version: 1
resources:
  - {name: bench.example.com/chip, backend: udev, where: {subsystem: misc}}
"""

WITH = f"""{WITHOUT}\
  - {{name: bench.example.com/fpga, backend: fpga, where: {{kind: af}}}}
"""


async def measure() -> AsyncIterator[Result]:
    """Resident memory with udev and fpga, minus that with only udev."""
    pairs = [(await _resident(WITHOUT, 1), await _resident(WITH, 2)) for _ in range(PAIRS)]
    grown = tuple(both - alone for alone, both in pairs)
    yield Result(measures.MEMORY_FPGA, grown, note=", ".join(f"{a:.1f} → {b:.1f}" for a, b in pairs))


def machine(root: Path) -> None:
    """A machine with eight Intel cards with one port each, and eight nodes known to udev."""
    from fpga_tree import FpgaTree  # type: ignore[import-not-found]

    root.mkdir()
    tree: Any = FpgaTree(root)
    for number in range(CARDS):
        tree.device(f"virtual/misc/chip{number}", "misc", f"chip{number}", f"10:{number}")
        card = tree.function(f"0000:{number:02x}:00.0", below=f"0000:{0x10 * (number + 1):02x}:00.0")
        container = tree.container(card)
        tree.engine(container)
        tree.port(container, 0)


async def _resident(config: str, resources: int) -> float:
    async with workplace() as (directory, kubelet):
        machine(directory / "root")
        async with devhost(directory, kubelet, config, "--root", os.fspath(directory / "root")) as running:
            await kubelet.all_listed(resources, CARDS)
            await asyncio.sleep(SETTLE)
            return running.resident()
