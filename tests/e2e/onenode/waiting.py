"""Waits for a condition, with a limit and a useful error."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LIMIT = 180.0
"""Seconds. A healthy node needs a few for each step; the rest is for a busy machine."""

PAUSE = 0.1

HURRY = 10.0
"""Seconds for all waits together after :func:`hurry`."""

_deadline = math.inf


def hurry() -> None:
    """Shortens all waits from now on, because the run is ending."""
    global _deadline
    _deadline = time.monotonic() + HURRY


def until(
    what: str, condition: Callable[[], T], *, limit: float = LIMIT, seen: Callable[[], object] = str
) -> T:
    """The first true value of ``condition``.

    Args:
        what: the condition in words, for the error.
        seen: called at the end for the state that was found instead.

    Raises:
        TimeoutError: it did not come true within ``limit`` seconds.
    """
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > min(end, _deadline):
            raise TimeoutError(f"not within {limit:.0f} s: {what}; seen: {seen()}")
        time.sleep(PAUSE)
