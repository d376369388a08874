"""A drop-in backend that misbehaves according to its option ``mode`` after its first scan."""

from __future__ import annotations

import asyncio
import threading
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from devhost.backend import (
    AllocateRequest,
    Backend,
    Context,
    Device,
    DeviceNode,
    Edits,
    Event,
    hookimpl,
    option,
)

NUDGE = 0.02
"""Seconds between two events that cause a scan."""


class Mode(StrEnum):
    """Ways to misbehave."""

    CALM = "calm"
    HANG = "hang"
    RAISE = "raise"
    PYTHON = "python"
    C = "c"


@dataclass(frozen=True)
class RowdyOptions:
    """The keys under ``backends.rowdy``."""

    mode: str = option("calm", meaning="The kind of misbehaviour.")


class Rowdy(Backend):
    """A backend with one device that misbehaves."""

    name = "rowdy"
    Options = RowdyOptions
    discover_deadline = 1.0

    def __init__(self, options: RowdyOptions, context: Context) -> None:
        super().__init__(options, context)
        self._asked = False
        work = {Mode.PYTHON: _count, Mode.C: _sum}.get(Mode(options.mode))
        if work is not None:
            threading.Thread(target=work, daemon=True).start()

    def discover(self) -> list[Device]:
        """Returns the device the first time; then misbehaves."""
        asked, self._asked = self._asked, True
        if asked:
            self._misbehave()
        return [Device(id="rowdy")]

    def allocate(self, request: AllocateRequest) -> Edits:
        """Misbehaves like :meth:`discover`, every time."""
        self._misbehave()
        return Edits(nodes=(DeviceNode("/dev/null"),))

    async def watch(self) -> AsyncIterator[Event]:
        """Endless events."""
        while True:
            await asyncio.sleep(NUDGE)
            yield Event("rowdy", "change", "/sys/devices/virtual/rowdy")

    def _misbehave(self) -> None:
        if self.options.mode == Mode.HANG:
            time.sleep(1e6)
        if self.options.mode == Mode.RAISE:
            raise OSError(5, "the driver is busy")


def _count() -> Any:
    """Uses a core and requests the interpreter's lock all the time."""
    number = 0
    while True:
        number += 1


def _sum() -> Any:
    """Uses a core in C, without the lock: a checksum of a long buffer releases it (zlib of CPython)."""
    buffer = bytes(1 << 24)
    while True:
        zlib.crc32(buffer)


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend of this file."""
    return [Rowdy]
