"""Work on many tokens in pieces, between which the event loop does other things.

A container may request every token of a list, and ``check`` accepts lists of about 100 000 tokens. No single
request may keep the loop busy for 100 ms: another resource's Allocate, or a probe, would wait as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")

PIECE = 1024
"""Tokens that are handled in one go: about 10 ms for what Allocate does with each."""


async def pieces(items: Sequence[T], size: int = PIECE) -> AsyncIterator[Sequence[T]]:
    """Yields the items in slices; other work gets its turn between two of them. Nothing is copied for one."""
    if len(items) <= size:
        yield items
        return
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]
