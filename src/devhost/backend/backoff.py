"""How long to wait: back-off for what failed, pacing for what is requested too often.

Both only compute delays, and the caller sleeps, on a thread or in the event loop::

    backoff = Backoff(first=1.0, cap=60.0)
    while not connected():
        time.sleep(backoff.delay())
    backoff.reset()
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import field

from .frozen import mutable


@mutable
class Backoff:
    """Delays in seconds that double from ``first`` up to ``cap``, each shortened at random by ``jitter``.

    The jitter keeps a hundred resources that failed together from retrying together: a delay ``d`` is drawn
    uniformly from ``[d * (1 - jitter), d]``, so it never exceeds ``cap``.
    """

    first: float
    cap: float
    jitter: float = 0.5
    draw: Callable[[], float] = random.random
    _next: float = field(init=False, default=0.0)

    def delay(self) -> float:
        """The delay before the next try; each call doubles the one after it."""
        self._next = min(self.cap, self._next * 2 or self.first)
        return self._next * (1 - self.jitter * self.draw())

    def reset(self) -> None:
        """Starts again from ``first``, after a success that lasted."""
        self._next = 0.0


@mutable
class TokenBucket:
    """Permits for actions: the bucket starts full, and one permit returns every ``interval`` seconds.

    A few actions do not wait; only sustained ones are delayed. All times are seconds of one monotonic clock.
    """

    size: float
    interval: float
    _full_at: float = field(init=False, default=-math.inf)

    def delay(self, now: float, permits: float = 1.0) -> float:
        """Seconds from ``now`` until this many permits are available; 0 if they are available now."""
        return max(0.0, self._full_at - (self.size - permits) * self.interval - now)

    def take(self, now: float, permits: float = 1.0) -> None:
        """Takes permits, even if fewer are available: the next ones are then available later."""
        self._full_at = max(self._full_at, now) + permits * self.interval


@mutable
class Pacer:
    """Keeps a piece of work from taking more than ``1 / (1 + rest)`` of the time.

    Runs begin at once until they have taken ``budget`` seconds in total. After that, each run is followed by
    a pause of ``rest`` times its duration, at least ``least`` and at most ``most`` seconds. The budget
    refills at the same rate while nothing runs. Without a budget, only the first run after a quiet period
    begins at once.
    """

    rest: float = 4.0
    least: float = 0.004
    most: float = 1.0
    budget: float = 0.0
    _worked: TokenBucket = field(init=False)  # its permits are seconds of work

    def __post_init__(self) -> None:
        self._worked = TokenBucket(self.budget, 1 + self.rest)

    def ran(self, began: float, ended: float) -> None:
        """Records a run. Both times are seconds of one monotonic clock."""
        took = ended - began
        pause = min(self.most, max(self.least, self.rest * took))
        self._worked.take(began, (took + pause) / (1 + self.rest))

    def pause(self, now: float) -> float:
        """Seconds from ``now`` until the next run may begin; 0 when it may begin at once."""
        return self._worked.delay(now, 0.0)
