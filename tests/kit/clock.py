"""Clocks: one that the test moves, one that it puts forward, and time that jumps to the next timer."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any


class FakeTimer:
    """A callback that is due at some time."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class FakeClock:
    """Passes for ``devhost.runtime.reconciler.Clock``, and for a function that gives the time."""

    STEPS = 50
    """Turns that an event loop gets which does not report when nothing is left to do."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._order = itertools.count()
        self._timers: list[tuple[float, int, FakeTimer]] = []

    def time(self) -> float:
        return self.now

    __call__ = time

    def call_at(self, when: float, callback: Callable[[], object], /) -> FakeTimer:
        timer = FakeTimer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    @property
    def timers(self) -> list[float]:
        """When the timers are due that have not been cancelled."""
        return sorted(when for when, _, timer in self._timers if timer.callback)

    async def settle(self) -> None:
        """Lets everything run that does not wait for time to pass."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, QuietLoop):
            await loop.quiet()
            return
        for _ in range(self.STEPS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Lets so much time pass, with every timer at its time and in order."""
        await self.settle()
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if timer.callback:
                timer.callback()
                await self.settle()
        self.now = end
        await self.settle()


class AheadClock:
    """Real monotonic seconds, and what is added to them."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that reports when nothing is left to do until something arrives or time passes."""

    def __init__(self) -> None:
        self.awaited: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self))

    async def quiet(self) -> None:
        """Waits until nothing is left to do."""
        quiet = self.create_future()
        self.awaited.append(quiet)
        await quiet


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: QuietLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The loop gives a timeout of zero while it has something to do."""
        if timeout == 0 or not self._loop.awaited:
            return super().select(timeout)
        ready = super().select(0)
        while self._loop.awaited and not ready:
            one = self._loop.awaited.pop()
            if not one.done():
                one.set_result(None)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer whenever nothing else is left to do."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "every task waits for something that never comes"
            self._loop.now += timeout
        return ready


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in virtual time: a sleep of an hour takes no time at all."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(*arguments, **fixtures))

    return run
