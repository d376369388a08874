"""How much a request makes devhost do, counted in executed lines: the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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


REST = 1.0
"""Seconds without work after which nothing follows. Questions to the kubelet have shorter gaps."""

IDLE = 1000
"""Most lines in that time of devhost's own regular looks."""


async def quiet(work: Work) -> None:
    """Waits until devhost rests, for at most half a minute."""
    clock = asyncio.get_running_loop().time
    end = clock() + 30
    before, since = work.lines, clock()
    while clock() - since < REST and clock() < end:
        await asyncio.sleep(0.1)
        if work.lines - before > IDLE:
            before, since = work.lines, clock()


async def counted(request: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """The lines that a request takes, and the most lines between two turns of the loop."""
    work, turns = Work(), [0]

    async def tick() -> None:
        while True:
            before = work.of_loop
            await asyncio.sleep(0.005)  # not 0, which would keep a core busy; it adds 40,000 lines
            turns.append(work.of_loop - before)

    with work.counted():
        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        await request()
        await quiet(work)  # what follows an answer is part of it
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
    return work.lines, max(turns)


async def rested() -> None:
    """Waits until nothing follows a start."""
    work = Work()
    with work.counted():
        await quiet(work)


def grows_linearly(found: Mapping[str, Sequence[int]], plan: str, constant: int) -> None:
    """Asserts that no request takes more than twice as many lines for a list of twice the length.

    Args:
        found: the lines of each request at a list and at one of twice its length.
        plan: the request that makes a plan. How often devhost plans, and looks at what containers have, while
            a request is measured depends on the machine: a request may take two plans more.
        constant: lines that any request may take besides.
    """
    spare = 2 * found[plan][1]
    for name, (small, large) in found.items():
        most = 2.3 * small + constant + (0 if name == plan else spare)
        assert large <= most, f"{name}: {small} lines, {large} for twice the length"


async def least(request: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """The same as :func:`counted`, for a request that may be repeated: the least of three."""
    found = [await counted(request) for _ in range(3)]
    return min(lines for lines, _ in found), max(longest for _, longest in found)
