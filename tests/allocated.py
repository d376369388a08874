"""Allocate without a kubelet: what a container gets, once it counts as given."""

from __future__ import annotations

from collections.abc import Sequence

from devhost.allocation.allocator import Allocator
from devhost.allocation.resource_backend import Granted


async def allocated(allocator: Allocator, tokens: Sequence[str]) -> Granted:
    """The answer, after it is recorded as the server does."""
    answer = await allocator.allocate(tokens)
    await answer.record()
    return answer.granted
