"""What the kernel itself did while something changed: one burst, or several because the machine is slow.

A program that waits for the end of a burst can only know a pause for an end. So that a change shows as one
list holds where it has no pause as long as that; on a machine that is busy enough it has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType

from .functions import DEVICES, driver_of
from .kernel import text

PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """One observation of the state: all PCI functions with their drivers, and a link."""

    began: float
    ended: float
    bound: dict[str, str]
    link: str


class Burst:
    """Entered, it watches; left, it knows.

    Args:
        link: the directory of an interface, whose state counts too.
    """

    def __init__(self, link: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._samples: list[Sample] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Burst:
        self._samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def is_one(self, pause: float, most: float) -> bool:
        """Whether the kernel made no pause of so many seconds, took no longer than ``most`` in all, and the
        link did not fall again after it."""
        samples = self._samples
        return longest_pause(samples) < pause and length(samples) < most and not falls_late(samples)

    def _watch(self) -> None:
        while not self._over.wait(PAUSE):
            new, last = self._sample(), self._samples[-1]
            # of an unchanged state, the first and the last sample are enough
            before = self._samples[-2] if len(self._samples) > 1 else None
            if before and (before.bound, before.link) == (last.bound, last.link) == (new.bound, new.link):
                self._samples.pop()
            self._samples.append(new)

    def _sample(self) -> Sample:
        began = self._clock()
        bound = {entry.name: driver_of(entry.name) for entry in DEVICES.iterdir()}
        state = text(self._link / "operstate")
        return Sample(began, self._clock(), bound, state)


def longest_pause(samples: list[Sample]) -> float:
    """The longest time in which perhaps no function changed, from the first change to the last, in seconds.

    A change between two samples may have been at the beginning of the one or the end of the other.
    """
    changes = [(one.began, other.ended) for one, other in pairwise(samples) if one.bound != other.bound]
    within = [ended - began for began, ended in changes]
    between = [ended - began for (began, _), (_, ended) in pairwise(changes)]
    return max(within + between, default=0.0)


def length(samples: list[Sample]) -> float:
    """Seconds that perhaps lie between the first change, also of the link, and the last."""
    changes = [
        (one.began, other.ended)
        for one, other in pairwise(samples)
        if (one.bound, one.link) != (other.bound, other.link)
    ]
    return changes[-1][1] - changes[0][0] if changes else 0.0


def falls_late(samples: list[Sample]) -> bool:
    """Whether the link was seen to go away when all functions were as they are in the end."""
    end = [sample.link for sample in samples if sample.bound == samples[-1].bound]
    return any((one, other) == ("up", "down") for one, other in pairwise(end))
