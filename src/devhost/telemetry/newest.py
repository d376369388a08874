"""The newest state of something, put together once for all who watch it, and never for nobody."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

D = TypeVar("D")
T = TypeVar("T")

INTERVAL = 0.25
"""Seconds between two states that one watcher gets, or more where they take long to make."""
REST = 10
"""Times what making a state took: so long at least until the next one, so that no burst of changes keeps the
event loop busy with telling of itself."""


@dataclass(frozen=True, slots=True)
class _Made(Generic[T]):
    """A state's form; after how many changes the state was taken, and when."""

    changes: int
    began: float
    form: T


class Newest(Generic[D, T]):
    """A state in some form, made anew only after a change and only when somebody wants it.

    Whoever follows misses what lay between and gets the newest; nothing is queued for anybody. Many who want
    it at one time wait for the same one.

    Args:
        state: puts the present state together, a value that nobody changes later; called in the event loop.
        form: what watchers get of it; called in a thread, for on a node with many devices it takes some
            hundred milliseconds in which a device list or an Allocate would have to wait.
        interval: seconds between two states that one watcher gets.
        rest: times what making a state took; so long at least passes between two of them.
        stale: seconds after which a newcomer gets a new one although no change was told.
        refresh: seconds after which those who follow get a new one although no change was told.
    """

    def __init__(
        self,
        state: Callable[[], D],
        form: Callable[[D], T],
        *,
        interval: float = INTERVAL,
        rest: float = REST,
        stale: float = 0.0,
        refresh: float | None = None,
    ) -> None:
        self._state = state
        self._form = form
        self._interval = interval
        self._rest = rest
        self._stale = stale
        self._refresh = refresh
        self._changes = 0
        self._changed = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self._latest: _Made[T] | None = None
        self._took = 0.0

    def changed(self) -> None:
        """The state would now read otherwise. Costs next to nothing."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def now(self) -> T:
        """The present state; one that no change has made wrong is made again only once it is stale."""
        return await self._since(_time() - self._stale)

    async def recent(self, age: float) -> T:
        """One that is at most ``age`` seconds old, or ten times what making it took. It may lack changes.

        For those who ask again and again: few are made, however many they are and however often the state
        changes.
        """
        latest = self._latest
        if latest is not None and _time() - latest.began <= max(age, self._rest * self._took):
            return latest.form
        return await self.now()

    async def follow(self) -> AsyncGenerator[T, None]:
        """The present state, and again after changes, for as long as somebody asks."""
        state = await self.now()
        while True:
            seen = self._seen
            next_time = _time() + max(self._interval, self._rest * self._took)
            yield state
            await asyncio.sleep(next_time - _time())
            state = await self._after(seen)

    async def _after(self, seen: int) -> T:
        try:
            async with asyncio.timeout(self._refresh):
                while self._changes == seen:
                    await self._changed.wait()
        except TimeoutError:
            return await self.now()
        return await self._since(-math.inf)

    @property
    def _seen(self) -> int:
        return self._latest.changes if self._latest else 0

    async def _since(self, oldest: float) -> T:
        """One that no change has made wrong, and that is not from before ``oldest``."""
        asked = self._changes
        while (latest := self._latest) is None or latest.changes < asked or latest.began < oldest:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(self._made)
            await asyncio.shield(self._making)  # whoever leaves meanwhile leaves it to the others
        return latest.form

    async def _make(self) -> None:
        began, changes = _time(), self._changes
        form = await asyncio.to_thread(self._form, self._state())
        self._took = _time() - began
        self._latest = _Made(changes, began, form)

    def _made(self, _: object) -> None:
        self._making = None


def _time() -> float:
    return asyncio.get_running_loop().time()
