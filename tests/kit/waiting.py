"""Waiting for what no event tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object]) -> None:
    """Waits for a condition, at most a minute."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
