"""The newest state of something, put together once for all who watch it, and never for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

INTERVAL = 0.25
"""Seconds between two states that one watcher gets, or more where they take long to make."""
REST = 10
"""Times what making a state took: so long at least until the next one, so that no burst of changes keeps the
event loop busy with telling of itself."""


class Newest(Generic[T]):
    """What ``make`` says, made anew only after a change and only when somebody wants it.

    Whoever follows misses what lay between and gets the newest; nothing is queued for anybody.

    Args:
        make: puts the present state together; called in the event loop.
        interval: seconds between two states that one watcher gets.
        stale: seconds after which a newcomer gets a new one although no change was told.
        refresh: seconds after which those who follow get a new one although no change was told.
    """

    def __init__(
        self,
        make: Callable[[], T],
        *,
        interval: float = INTERVAL,
        stale: float = 0.0,
        refresh: float | None = None,
    ) -> None:
        self._make = make
        self._interval = interval
        self._stale = stale
        self._refresh = refresh
        self._changes = 0
        self._changed = asyncio.Event()
        self._latest: tuple[int, float, T] | None = None
        self._took = 0.0

    def changed(self) -> None:
        """The state would now read otherwise. Costs next to nothing."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def now(self) -> T:
        """The present state; one that no change has made wrong is made again only once it is stale."""
        if self._latest is None or _time() - self._latest[1] >= self._stale:
            return self._remade()
        return self._current()

    async def follow(self) -> AsyncGenerator[T, None]:
        """The present state, and again after changes, for as long as somebody asks."""
        state = self.now()
        while True:
            seen = self._changes
            next_time = _time() + max(self._interval, REST * self._took)
            yield state
            await asyncio.sleep(next_time - _time())
            state = await self._after(seen)

    async def _after(self, seen: int) -> T:
        try:
            async with asyncio.timeout(self._refresh):
                while self._changes == seen:
                    await self._changed.wait()
        except TimeoutError:
            return self.now()
        return self._current()

    def _current(self) -> T:
        if self._latest is None or self._latest[0] != self._changes:
            return self._remade()
        return self._latest[2]

    def _remade(self) -> T:
        began = _time()
        state = self._make()
        ended = _time()
        self._took = ended - began
        self._latest = (self._changes, ended, state)
        return state


def _time() -> float:
    return asyncio.get_running_loop().time()
