"""Polls files whose changes cause no uevent.

The kernel sends no uevent when a container programs its region, a register shows an error, or a manager
changes its state. None of the polled files blocks: probes read the registers under the lock that programming
holds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from devhost.backend import Context, Event
from devhost.backend.errors import BackendError

from .model import FpgaSysfs, Reading, Unit

IDLE_PAUSE = 10.0
"""Seconds between two readings."""

FIRST_PAUSE = 0.5
"""Seconds until the first reading while a region is being programmed; the pause doubles each time."""

MAX_FILES = 4096
"""Limit of polled files; a card has about thirty."""

SPREAD = 0.2
"""Random part of a pause, so that nodes do not poll at the same time."""


class Watch:
    """Polls the files that units name, and reports changes."""

    def __init__(
        self,
        sysfs: FpgaSysfs,
        context: Context,
        sleep: Callable[[float], Awaitable[None]] | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._sysfs = sysfs
        self._context = context
        self._sleep = sleep or self._pause
        self._draw = draw
        # Replaced, never modified: discover() writes them on its thread, the event loop reads them.
        self._files: Mapping[str, str] = {}
        self._is_busy = False
        self._quick = FIRST_PAUSE
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._known: Mapping[str, Reading] = {}

    def follow(self, units: Iterable[Unit]) -> None:
        """Sets the units to watch. May be called from any thread."""
        files: dict[str, str] = {}
        is_busy = False
        for unit in units:
            is_busy = is_busy or unit.is_busy
            for file in unit.watched:
                if len(files) < MAX_FILES:
                    files.setdefault(file, file.rpartition("/")[0])
        began = is_busy and not self._is_busy
        self._files, self._is_busy = files, is_busy
        loop, wake = self._loop, self._wake
        if began and loop is not None and wake is not None:
            with suppress(RuntimeError):  # the loop has just been closed
                loop.call_soon_threadsafe(wake.set)

    async def events(self) -> AsyncGenerator[Event, None]:
        """An event whenever one of the files has changed; never ends."""
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                await self._sleep(self._next() * (1 - SPREAD * self._draw()))
                for path in await self._changed():
                    yield Event("fpga", "change", path)
        finally:
            self._loop = self._wake = None

    def _next(self) -> float:
        """Seconds until the next reading: short at the beginning of programming."""
        if not self._is_busy:
            self._quick = FIRST_PAUSE
            return IDLE_PAUSE
        pause, self._quick = self._quick, min(IDLE_PAUSE, self._quick * 2)
        return pause

    async def _changed(self) -> list[str]:
        """The directories with a file that changed since the last reading."""
        files, before = self._files, self._known
        if not files:
            self._known = {}
            return []
        try:
            now = await self._context.run_blocking(self._readings, tuple(files))
        except BackendError:  # a driver hangs: scans report it, and polling continues
            return []
        self._known = now
        return list(
            dict.fromkeys(files[file] for file, reading in now.items() if before.get(file) != reading)
        )

    def _readings(self, files: Iterable[str]) -> dict[str, Reading]:
        return {file: self._sysfs.reading(file) for file in files}

    async def _pause(self, seconds: float) -> None:
        """Waits for these seconds, or until programming begins."""
        assert self._wake is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()
