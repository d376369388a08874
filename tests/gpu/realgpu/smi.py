"""Runs nvidia-smi, whose report is the reference for what the backend finds."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

SMI = "nvidia-smi"
LIMIT = 60.0
"""Seconds; without the persistence daemon each call wakes the GPUs up."""

FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "memory.total",
    "compute_cap",
    "driver_version",
    "serial",
    "mig.mode.current",
)
ABSENT = re.compile(r"\[?(N/A|Not Supported|Unknown Error|Insufficient Permissions)\]?")
_INSTANCE = re.compile(r"\(UUID: (MIG-[^)]+)\)")


class Failed(Exception):
    """nvidia-smi failed; the text is one line."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. ``memory`` is in MiB; unreported values are empty or 0. ``split`` is whether MIG is on."""

    index: int
    uuid: str
    product: str
    address: str
    memory: int
    compute_capability: str
    driver: str
    serial: str
    split: bool


def gpus() -> list[Gpu]:
    """All GPUs that a program can use here.

    Raises:
        Failed: nvidia-smi failed.
    """
    return parse(_run(f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"))


def instances() -> set[str]:
    """The UUIDs of all MIG instances.

    Raises:
        Failed: nvidia-smi failed.
    """
    return set(_INSTANCE.findall(_run("-L")))


def parse(text: str) -> list[Gpu]:
    """The GPUs in the answer to ``--query-gpu`` for :data:`FIELDS`, as CSV without head and units.

    Raises:
        Failed: that is something else.
    """
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        cells = ["" if ABSENT.fullmatch(cell.strip()) else cell.strip() for cell in row]
        if len(cells) != len(FIELDS) or not cells[0].isdigit():
            raise Failed(f"unexpected answer of {SMI}: {', '.join(row)}")
        index, uuid, product, bus, memory, capability, driver, serial, mig = cells
        # nvidia-smi writes the domain with eight digits and in capitals
        address = bus.lower()[-len("0000:00:00.0") :]
        size = int(memory or 0)
        found.append(
            Gpu(int(index), uuid, product, address, size, capability, driver, serial, mig == "Enabled")
        )
    return found


def _run(*arguments: str) -> str:
    command: Sequence[str] = (SMI, *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{SMI} cannot be asked: {error}") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())
        raise Failed(f"{SMI} failed: {words or f'exit code {done.returncode}'}")
    return done.stdout
