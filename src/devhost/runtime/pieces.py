"""Work on many items in pieces, between which the event loop does other things.

A container may request every token of a list, and ``check`` accepts lists of about 100 000 tokens. No single
request may keep the loop busy for 100 ms: another resource's Allocate, or a probe, would wait as long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

PIECE = 1024
"""Items that are handled in one go: about 10 ms for what Allocate does with each token."""


async def in_pieces(items: Sequence[T], work: Callable[[Sequence[T]], object], size: int = PIECE) -> None:
    """Calls ``work`` with slices of the items; other work gets its turn between two of them."""
    if len(items) <= size:  # nothing is copied
        work(items)
        return
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        work(items[start : start + size])
