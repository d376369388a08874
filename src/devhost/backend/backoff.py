"""How long to wait: back-off for what failed, pacing for what is requested too often.

Both only compute delays, and the caller sleeps, on a thread or in the event loop::

    backoff = Backoff(first=1.0, cap=60.0)
    while not connected():
        time.sleep(backoff.delay())
    backoff.reset()
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Backoff:
    """Delays in seconds that double from ``first`` up to ``cap``, each spread by ``jitter``.

    The spread keeps a hundred resources that failed together from coming back together: a delay
    ``d`` is drawn evenly from ``[d * (1 - jitter), d]``, so ``cap`` is never exceeded.
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


@dataclass(slots=True)
class Pacer:
    """Keeps a piece of work from taking more than ``1 / (1 + rest)`` of the time.

    The first request after a quiet time runs at once; while requests keep coming, each run is
    followed by a pause of ``rest`` times its own duration, between ``least`` and ``most`` seconds.
    """

    rest: float = 4.0
    least: float = 0.004
    most: float = 1.0
    _free_at: float = field(init=False, default=0.0)

    def ran(self, began: float, ended: float) -> None:
        """Notes a run; both times in seconds of one monotonic clock."""
        self._free_at = ended + min(self.most, max(self.least, self.rest * (ended - began)))

    def pause(self, now: float) -> float:
        """Seconds from ``now`` until the next run may begin; 0 when it may begin at once."""
        return max(0.0, self._free_at - now)
