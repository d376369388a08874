"""The tasks of the process by name, in one tree: a bug in one of them ends none of the others."""

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
"""Longest pause in seconds before a failed task starts again; one that ran for longer starts over."""

Work = Callable[[], Coroutine[None, None, None]]


class Tasks:
    """Named tasks; use :attr:`group` as the context in which they live.

    Args:
        clock: seconds that only go forward.
        sleep: waits for so many.
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
        """Left only when every task has ended."""
        return self._group

    def spawn(self, name: str, work: Work) -> None:
        """Starts ``work``, and again with back-off whenever it fails."""
        task = self._group.create_task(self._contained(name, work), name=name)
        self._running[name] = task
        self._all.add(task)
        task.add_done_callback(lambda done: self._forget(name, done))

    def take(self, name: str) -> asyncio.Task[None] | None:
        """The task of that name, which makes room for another; ``None`` if none runs."""
        return self._running.pop(name, None)

    def cancel(self, name: str) -> None:
        """Ends the task of that name, if one runs."""
        if task := self.take(name):
            task.cancel()

    def cancel_all(self) -> None:
        """Ends what still runs, also what has lost its name to another."""
        for task in self._all:
            task.cancel()

    def named(self, prefix: str = "") -> dict[str, asyncio.Task[None]]:
        """The running tasks whose names begin so, by the rest of the name; without a prefix, all of them."""
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
