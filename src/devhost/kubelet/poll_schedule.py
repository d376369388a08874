"""Decides when to ask the kubelet who holds what, as rarely as possible. Pure.

A kubelet serves 100 such calls a second to all clients together, in bursts of 10. devhost asks for all
resources at once and never twice within half a second. It does not ask at all while no container holds
anything and the kubelet has run for long enough to list all its pods.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from devhost.allocation.allocations import Kubelet
from devhost.backend.backoff import Backoff

from .timing import NODE, KubeletTiming


class PollSchedule:
    """Decides from the answers so far; all times are monotonic seconds.

    ``draw`` gives random numbers from 0 to 1 for the jitter of the back-off.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        *,
        timing: KubeletTiming = NODE,
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
        """When the kubelet was last asked; minus infinity before the first call."""
        return float("-inf") if self._asked is None else self._asked

    def due(self, wanted: float | None) -> float | None:
        """When to ask next; ``None`` for not at all. A time in the past means now.

        ``wanted`` is when the allocations need the next list.
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
        """The call at ``asked`` was answered by this kubelet."""
        self._asked, self._retry, self._another = asked, None, False
        self._backoff.reset()
        if kubelet != self._kubelet:
            self._kubelet, self._met = kubelet, asked

    def failed(self, asked: float, now: float) -> None:
        """The call at ``asked`` failed. The next one waits, longer each time, even if a list is wanted."""
        self._asked = asked
        self._retry = now + max(self._gap, self._backoff.delay())

    def restarted(self, now: float) -> None:
        """There is a new kubelet: a call that failed with the old one is tried again soon.

        While anything is held, it is asked soon in any case: only a kubelet that has named a container can
        show later that the container has ended.
        """
        self._another = True
        if self._retry is not None:
            self._backoff.reset()
            self._retry = min(self._retry, now + self._gap)
