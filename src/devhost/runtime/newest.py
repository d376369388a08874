"""The newest state of something, made once for all watchers, and only if there are any."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere

D = TypeVar("D")
T = TypeVar("T")

INTERVAL = 0.25
"""The minimum time in seconds between two states for one watcher; longer if they take long to make."""
REST = 10
"""The minimum pause before the next state, as a multiple of the time to make one, so that a burst of changes
does not keep the event loop busy with reports."""


@frozen
class _Made(Generic[T]):
    """The form of a state, the number of changes before it, and its time."""

    changes: int
    began: float
    form: T


class Newest(Generic[D, T]):
    """A state in some form, rebuilt only after a change and only if a watcher wants it.

    Watchers skip intermediate states and get the newest; nothing is queued. Watchers that want it at the same
    time wait for the same one.

    Args:
        state: makes the current state, a value that never changes later; called in the event loop.
        form: makes what watchers get; called in a thread, because on a node with many devices it takes about
            a hundred milliseconds, which would delay a device list or an Allocate.
        interval: the minimum number of seconds between two states for one watcher.
        rest: the minimum pause between two states, as a multiple of the time to make one.
        stale: seconds after which a new watcher gets a new state even without a change.
        refresh: seconds after which existing watchers get a new state even without a change.
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
        """The state changed. This is inexpensive."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def now(self) -> T:
        """The current state. Without a change it is rebuilt only when it is stale."""
        return await self._since(_time() - self._stale)

    async def recent(self, age: float) -> T:
        """A state at most ``age`` seconds old, or ten times the time to make it. It may lack changes.

        For clients that poll: few states are made, regardless of the number of clients and changes.
        """
        latest = self._latest
        if latest is not None and _time() - latest.began <= max(age, self._rest * self._took):
            return latest.form
        return await self.now()

    async def follow(self) -> AsyncGenerator[T, None]:
        """Yields the current state, and again after changes."""
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
        """A state without changes since, and not older than ``oldest``."""
        asked = self._changes
        while (latest := self._latest) is None or latest.changes < asked or latest.began < oldest:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(self._made)
            # a watcher that is cancelled must not cancel it for the others
            await asyncio.shield(self._making)
        return latest.form

    async def _make(self) -> None:
        began, changes = _time(), self._changes
        form = await elsewhere(self._form, self._state())
        self._took = _time() - began
        self._latest = _Made(changes, began, form)

    def _made(self, _: object) -> None:
        self._making = None


def _time() -> float:
    return asyncio.get_running_loop().time()
