"""Waiting for a condition in a machine where everything takes twenty times as long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 180.0
"""Seconds. Nothing here takes ten, unless the host is busy."""

PAUSE = 0.1


async def until(
    what: str, condition: Callable[[], T], *, limit: float = LIMIT, seen: Callable[[], object] = str
) -> T:
    """Waits for the first true value of ``condition``, without blocking the event loop.

    Args:
        what: a description of the condition, for the error.
        seen: returns the actual state, for the error.

    Raises:
        TimeoutError: it was not met within ``limit`` seconds.
    """
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit:.0f} s: {what}; seen: {seen()}")
        await asyncio.sleep(PAUSE)
    return value
