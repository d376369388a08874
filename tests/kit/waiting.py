"""Waiting for what no event tells of, and work that goes on meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], T | Awaitable[T]], seconds: float = 60.0) -> T:
    """Waits for a condition, which may take time itself; returns what it then is."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


def wait_until(condition: Callable[[], object]) -> None:
    """The same for a test without an event loop."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.005)


@asynccontextmanager
async def listening(events: AsyncIterable[object]) -> AsyncIterator[asyncio.Event]:
    """Follows events until the context ends; what it yields is set at each of them."""
    seen = asyncio.Event()

    async def follow() -> None:
        async for _ in events:
            seen.set()

    async with background(follow()):
        yield seen


@asynccontextmanager
async def background(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Does something until the context ends; then raises what it failed with."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
