"""Which pods the kubelet may still be admitting, so that they may get more devices. Pure.

A kubelet admits one pod after another: it asks for one resource of a container after another, then for the
next container, and does not name the pod (``HandlePodAdditions`` of the kubelet, ``Allocate`` of its device
manager). Its list has what a pod got so far, so a pod that a list names may be about to get more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from devhost.backend.model import Holder
from devhost.planning.claims import Pod, pod_of

from .timing import AllocationTiming


class Admissions:
    """Numbers the Allocates of all resources, and knows where an admission is certainly over.

    It is over when a later Allocate was for another pod, or none has followed for
    :attr:`.AllocationTiming.admission`. ``clock`` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], timing: AllocationTiming) -> None:
        self._clock = clock
        self._pause = timing.admission
        self._running = 0
        self._ended = -math.inf
        self._first = 0
        self.number = 0
        """That of the newest Allocate."""

    def begin(self) -> None:
        if not self._running and self._clock() - self._ended >= self._pause:
            self._first = self.number + 1
        self.number += 1
        self._running += 1

    def end(self) -> None:
        self._running -= 1
        self._ended = self._clock()

    def is_recent(self, number: int) -> bool:
        """Whether the admission of this Allocate may go on, if it was for the pod of the newest one."""
        return number >= self._first > 0 and self._clock() < self._until()

    def _until(self) -> float:
        return (self._clock() if self._running else self._ended) + self._pause

    def ends(self, allocated: Iterable[tuple[Holder | None, int]]) -> Callable[[Pod], float]:
        """From when a pod gets nothing more, in monotonic seconds.

        ``allocated`` has the holder of each token, ``None`` while it is not known, and the number of its
        Allocate; 0 if an earlier run of devhost answered it.
        """
        last: dict[Pod, int] = {}
        for holder, number in allocated:
            if holder is not None:
                last[pod_of(holder)] = max(number, last.get(pod_of(holder), 0))
        newest = max(last.values(), default=0)

        def end(pod: Pod) -> float:
            own = last.get(pod, 0)
            if own < newest or own < self._first:
                return -math.inf
            return self._until()

        return end
