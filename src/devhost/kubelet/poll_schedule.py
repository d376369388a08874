"""The schedule of the question who holds what: as seldom as what can be learned allows. Pure.

A kubelet serves 100 such questions a second to all clients together, in bursts of 10. This asks for all
resources at once and never twice within half a second, whatever wakes it; and not at all while no container
holds anything and the kubelet has been known for long enough to list all its pods.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from devhost.allocation.allocations import Kubelet
from devhost.backend.backoff import Backoff

from .timing import NODE, Timing


class PollSchedule:
    """Decides from what was answered so far; all times are seconds of one monotonic clock.

    Args:
        draw: chance for the jitter of the back-off, from 0 to 1.
        timing: of the questions.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        *,
        timing: Timing = NODE,
    ) -> None:
        self._backoff = Backoff(*timing.question_failed, draw=draw)
        self._gap, self._first = timing.question_gap, timing.question_first
        self._patience = timing.question_new
        self._asked: float | None = None
        self._retry: float | None = None
        self._kubelet: Kubelet | None = None
        self._another = False
        self._met = 0.0

    @property
    def last(self) -> float:
        """When the last question was asked; minus infinity before the first."""
        return float("-inf") if self._asked is None else self._asked

    def due(self, wanted: float | None) -> float | None:
        """When to ask next; ``None`` while there is nothing to learn. A time that is past means now.

        Args:
            wanted: when the allocations would like the next list.
        """
        if self._asked is None:
            return float("-inf")
        if self._retry is not None:
            return self._retry
        known = self._asked - self._met
        wishes = [self._asked + max(self._first, known)] if known < self._patience else []
        if wanted is not None:
            wishes.append(self._asked if self._another else wanted)
        return max(min(wishes), self._asked + self._gap) if wishes else None

    def answered(self, asked: float, kubelet: Kubelet) -> None:
        """The question that was asked then has its answer."""
        self._asked, self._retry, self._another = asked, None, False
        self._backoff.reset()
        if kubelet != self._kubelet:
            self._kubelet, self._met = kubelet, asked

    def failed(self, asked: float, now: float) -> None:
        """It has none: the next one waits, even if it is wanted, and waits longer each time."""
        self._asked = asked
        self._retry = now + max(self._gap, self._backoff.delay())

    def restarted(self, now: float) -> None:
        """There is another kubelet: what failed with the old one may be tried again soon.

        While anything is held it is asked soon in any case: that a container let go shows only with a kubelet
        that has named the container before.
        """
        self._another = True
        if self._retry is not None:
            self._backoff.reset()
            self._retry = min(self._retry, now + self._gap)
