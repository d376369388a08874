"""The named tasks of the process: a bug in one of them does not end the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import NamedTuple

from devhost.backend.backoff import Backoff
from devhost.backend.errors import exhausted, not_imported
from devhost.runtime.log import get

log = get(__name__)

LONGEST_PAUSE = 60.0
"""Longest delay in seconds before a failed task restarts. After a longer run, the back-off starts again, and
the task no longer counts as failing."""

BUG = "a bug in devhost ended it, and it is started again: the log has the traceback"

Work = Callable[[], Coroutine[None, None, None]]


class Failing(NamedTuple):
    """Why a task has failed, and since when it does so, in wall-clock seconds."""

    reason: str
    since: float


class Tasks:
    """Named tasks, which run in the context :attr:`group`.

    ``clock`` gives monotonic seconds. ``changed`` is called when :attr:`failing` has changed.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._changed = changed
        self.failing: dict[str, Failing] = {}
        """The tasks that have failed and not run for :data:`LONGEST_PAUSE` since, by name."""
        self.group = asyncio.TaskGroup()
        """The context of the tasks, which ends when every task has ended."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._all: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()

    def spawn(self, name: str, work: Work) -> None:
        """Starts ``work``, and restarts it with back-off whenever it fails."""
        task = self.group.create_task(self._contained(name, work), name=name)
        self._running[name] = task
        self._all.add(task)
        task.add_done_callback(lambda done: self._forget(name, done))

    def take(self, name: str) -> asyncio.Task[None] | None:
        """Returns the task and frees its name for another one; ``None`` if no such task runs."""
        return self._running.pop(name, None)

    def cancel(self, name: str) -> None:
        if task := self.take(name):
            self._end(task)

    def cancel_all(self, but: tuple[str, ...] = ()) -> None:
        """Cancels all running tasks, including those whose name another task has now.

        Tasks whose names begin with one of ``but`` go on. One that is ending is not interrupted.
        """
        for task in self._all - self._ending:
            if not task.get_name().startswith(but):
                self._end(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        # not known from task.cancelling(), which asyncio.timeout() also increases for a moment
        self._ending.add(task)
        task.cancel()

    def named(self, prefix: str = "") -> dict[str, asyncio.Task[None]]:
        """The running tasks whose names begin with ``prefix``, by the rest of the name."""
        return {n.removeprefix(prefix): task for n, task in self._running.items() if n.startswith(prefix)}

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        self._ending.discard(task)
        if self._running.get(name) is task:
            del self._running[name]
            self._works(name)

    async def _contained(self, name: str, work: Work) -> None:
        backoff = Backoff(1.0, LONGEST_PAUSE)
        while True:
            began = self._clock()
            try:
                async with self._recovering(name):
                    await work()
            except Exception as error:
                if lack := exhausted(error):
                    reason = str(lack)
                    log.error("a task waits for file descriptors", task=name, reason=reason)
                elif lack := not_imported(error):
                    reason = str(lack)
                    log.error("a task cannot import its code", task=name, reason=reason)
                else:
                    reason = BUG
                    log.exception("a task failed and is started again", task=name)
                since = self.failing[name].since if name in self.failing else time.time()
                self.failing[name] = Failing(reason, since)
                self._changed()
                if self._clock() - began > LONGEST_PAUSE:
                    backoff.reset()
                await self._sleep(backoff.delay())
            else:
                return

    @asynccontextmanager
    async def _recovering(self, name: str) -> AsyncIterator[None]:
        """While a task runs that has failed before, which works again once it has run for long."""
        if name not in self.failing:
            yield
            return
        waiting = asyncio.create_task(self._recover(name))
        try:
            yield
        finally:
            waiting.cancel()

    async def _recover(self, name: str) -> None:
        await self._sleep(LONGEST_PAUSE)
        self._works(name)

    def _works(self, name: str) -> None:
        if self.failing.pop(name, None) is not None:
            self._changed()
