"""How much a request makes devhost do, counted in executed lines: the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import devhost

PACKAGE = str(Path(devhost.__file__).parent)


class Work:
    """Counts the lines of devhost that are executed."""

    def __init__(self) -> None:
        self.lines = 0
        self.of_loop = 0
        """Those of them in the thread of the event loop."""
        self._loop = threading.get_ident()
        self._own: dict[CodeType, bool] = {}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        own = self._own.get(code)
        if own is None:
            file = code.co_filename
            own = self._own[code] = file.startswith(PACKAGE) and not file.startswith(f"{PACKAGE}/testing")
        return self._line if own else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines += 1
        self.of_loop += threading.get_ident() == self._loop
        return self._line

    @contextmanager
    def counted(self) -> Iterator[None]:
        before = sys.gettrace()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)


async def quiet(work: Work) -> None:
    """Waits until devhost does nothing, for at most a few seconds."""
    for _ in range(50):
        before = work.lines
        await asyncio.sleep(0.1)
        if work.lines == before:
            return


async def counted(request: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """The lines that a request takes, and the most lines between two turns of the loop."""
    work, turns = Work(), [0]

    async def tick() -> None:
        while True:
            before = work.of_loop
            await asyncio.sleep(0)
            turns.append(work.of_loop - before)

    with work.counted():
        await quiet(work)
        work.lines = 0
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        await request()
        await quiet(work)  # what follows an answer is part of it
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    return work.lines, max(turns)
