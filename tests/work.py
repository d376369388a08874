"""How much a request makes devhost do, counted in executed lines: the same on every machine."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import devhost
from devhost.planning.timing import Timing

PACKAGE = str(Path(devhost.__file__).parent)

CALLBACK = (asyncio.events.__file__, "_run")
"""The file and the name of the function in which the event loop calls what is due."""


class Work:
    """Counts the lines of devhost that are executed."""

    def __init__(self) -> None:
        self.of_loop = 0
        """Those in the thread of the event loop."""
        self._elsewhere = 0
        self._loop = threading.get_ident()
        self._own: dict[str, bool] = {}
        """Whether a file is devhost's. Code objects are slow keys: each look-up hashes their constants."""
        self._longest = self._begin = 0

        # called for every line, so they do little: a bound method would be made for each
        def of_loop(frame: FrameType, event: str, argument: object) -> Any:
            self.of_loop += 1
            return of_loop

        def elsewhere(frame: FrameType, event: str, argument: object) -> Any:
            self._elsewhere += 1
            return elsewhere

        self._line_of_loop, self._line_elsewhere = of_loop, elsewhere

    @property
    def lines(self) -> int:
        return self.of_loop + self._elsewhere

    @property
    def longest(self) -> int:
        """The most lines that the event loop executed in one go: for one callback, or one step of a task."""
        return max(self._longest, self.of_loop - self._begin)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        file, caller = frame.f_code.co_filename, frame.f_back
        if caller is not None and (caller.f_code.co_filename, caller.f_code.co_name) == CALLBACK:
            self._longest, self._begin = self.longest, self.of_loop
        own = self._own.get(file)
        if own is None:
            own = self._own[file] = file.startswith(PACKAGE) and not file.startswith(f"{PACKAGE}/testing")
        if not own:
            return None
        return self._line_of_loop if threading.get_ident() == self._loop else self._line_elsewhere

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


LOOK = 0.01
LOOKS = 15
"""So many looks in a row, with seconds in between, must find no work; then nothing follows.

These are turns of the event loop because on a busy machine each of them takes longer. What follows a request
at a distance of :data:`PROMPT` or less is found.
"""

IDLE = 300
"""Most lines in that time of devhost's own regular looks."""

LONGEST = 30.0
"""Seconds after which what still goes on is taken for work that never ends."""

PROMPT = 0.05
"""Seconds between two things that devhost does after a request, if it is served with :func:`prompt`."""


def prompt(timing: Timing) -> Timing:
    """The same, but what devhost does later about a request follows without a pause of seconds."""
    soon = {"question_gap": PROMPT, "rivals_gap": PROMPT, "rivals_changed": PROMPT, "given_soon": PROMPT}
    kubelet = replace(timing.kubelet, **soon)
    allocation = replace(timing.allocation, list_allocated=PROMPT)
    return replace(timing, kubelet=kubelet, allocation=allocation, dra=replace(timing.dra, schedulers=PROMPT))


async def quiet(work: Work) -> None:
    """Waits until devhost rests."""
    clock = asyncio.get_running_loop().time
    end = clock() + LONGEST
    before, looks = work.lines, 0
    while looks < LOOKS and clock() < end:
        await asyncio.sleep(LOOK)
        looks += 1
        if work.lines - before > IDLE:
            before, looks = work.lines, 0


async def counted(request: Callable[[], Awaitable[object]]) -> tuple[int, int]:
    """The lines that a request takes, and the most of them in one go."""
    work = Work()
    with work.counted():
        await asyncio.sleep(0)
        await request()
        await quiet(work)  # what follows an answer is part of it
    return work.lines, work.longest


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
