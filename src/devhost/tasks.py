"""The tasks of the process by name, in one tree: a bug in one of them ends none of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager

from .pace import Backoff
from .telemetry.log import get

log = get(__name__)

Work = Callable[[], Coroutine[None, None, None]]


class Tasks:
    """Named tasks; use :attr:`group` as the context in which they live."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._running: dict[str, asyncio.Task[None]] = {}

    @property
    def group(self) -> AbstractAsyncContextManager[asyncio.TaskGroup]:
        """Left only when every task has ended."""
        return self._group

    def spawn(self, name: str, work: Work) -> None:
        """Starts ``work``, and again with back-off whenever it fails."""
        task = self._group.create_task(_contained(name, work), name=name)
        self._running[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))

    def take(self, name: str) -> asyncio.Task[None] | None:
        """The task of that name, which makes room for another; ``None`` if none runs."""
        return self._running.pop(name, None)

    def cancel(self, name: str) -> None:
        """Ends the task of that name, if one runs."""
        if task := self.take(name):
            task.cancel()

    def cancel_all(self) -> None:
        """Ends what still runs."""
        for task in self._running.values():
            task.cancel()

    def named(self, prefix: str = "") -> dict[str, asyncio.Task[None]]:
        """The running tasks whose names begin so, by the rest of the name; without a prefix, all of them."""
        return {n.removeprefix(prefix): task for n, task in self._running.items() if n.startswith(prefix)}

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if self._running.get(name) is task:
            del self._running[name]


async def _contained(name: str, work: Work) -> None:
    backoff = Backoff(1.0, 60.0)
    while True:
        try:
            await work()
        except Exception:
            log.exception("a task failed and is started again", task=name)
            await asyncio.sleep(backoff.delay())
        else:
            return
