"""A token bucket: a few actions go out at once, and only sustained ones are spread. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Permits for actions: the bucket starts full, each action takes one, and one returns every ``interval``.

    Args:
        size: permits that a full bucket holds.
        interval: seconds after which one permit returns.
        clock: monotonic seconds.
    """

    def __init__(self, size: int, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = interval
        self._burst = (size - 1) * interval
        self._clock = clock
        self._full_at = clock()

    def delay(self) -> float:
        """Seconds until a permit is available; 0 if there is one now."""
        return max(0.0, self._full_at - self._burst - self._clock())

    def take(self) -> None:
        """Takes one permit. Without one the next is only available later."""
        self._full_at = max(self._full_at, self._clock()) + self._interval
