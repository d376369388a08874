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
    """The first true value of ``condition``; the event loop runs on meanwhile.

    Args:
        what: what is waited for, for the error.
        seen: asked at the end for what was there instead.

    Raises:
        TimeoutError: it did not come true within ``limit`` seconds.
    """
    end = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {limit:.0f} s: {what}; seen: {seen()}")
        await asyncio.sleep(PAUSE)
    return value
