"""The named tasks of the process: a bug in one of them does not end the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager

from devhost.backend.backoff import Backoff
from devhost.backend.descriptors import exhausted
from devhost.telemetry.log import get

log = get(__name__)

LONGEST_PAUSE = 60.0
"""Longest delay in seconds before a failed task restarts. After a longer run, the back-off starts again."""

Work = Callable[[], Coroutine[None, None, None]]


class Tasks:
    """Named tasks, which run in the context :attr:`group`.

    Args:
        clock: monotonic seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._group = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._all: set[asyncio.Task[None]] = set()

    @property
    def group(self) -> AbstractAsyncContextManager[asyncio.TaskGroup]:
        """The context of the tasks, which ends when every task has ended."""
        return self._group

    def spawn(self, name: str, work: Work) -> None:
        """Starts ``work``, and restarts it with back-off whenever it fails."""
        task = self._group.create_task(self._contained(name, work), name=name)
        self._running[name] = task
        self._all.add(task)
        task.add_done_callback(lambda done: self._forget(name, done))

    def take(self, name: str) -> asyncio.Task[None] | None:
        """Returns the task and frees its name for another one; ``None`` if no such task runs."""
        return self._running.pop(name, None)

    def cancel(self, name: str) -> None:
        """Cancels the task of that name, if one runs."""
        if task := self.take(name):
            task.cancel()

    def cancel_all(self) -> None:
        """Cancels all running tasks, including those whose name another task has now."""
        for task in self._all:
            task.cancel()

    def named(self, prefix: str = "") -> dict[str, asyncio.Task[None]]:
        """The running tasks whose names begin with ``prefix``, by the rest of the name."""
        return {n.removeprefix(prefix): task for n, task in self._running.items() if n.startswith(prefix)}

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        self._all.discard(task)
        if self._running.get(name) is task:
            del self._running[name]

    async def _contained(self, name: str, work: Work) -> None:
        backoff = Backoff(1.0, LONGEST_PAUSE)
        while True:
            began = self._clock()
            try:
                await work()
            except Exception as error:
                if lack := exhausted(error):
                    log.error("a task waits for file descriptors", task=name, reason=str(lack))
                else:
                    log.exception("a task failed and is started again", task=name)
                if self._clock() - began > LONGEST_PAUSE:
                    backoff.reset()
                await self._sleep(backoff.delay())
            else:
                return
