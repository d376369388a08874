"""One trouble from its first sign to its end, so that the log tells of it once and once of its end."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST = 10
"""Reasons told of one trouble, if nobody says how many: one with ever new numbers must not fill the log."""


class Incident:
    """Which reasons of one trouble have been told; true while it lasts.

    Args:
        most: reasons told of it at most.
    """

    __slots__ = ("_most", "_told")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._told: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._told)

    def news(self, reason: str) -> bool:
        """The trouble is there, for this reason; true if that is to be told."""
        if reason in self._told or len(self._told) >= self._most:
            return False
        self._told.add(reason)
        return True

    def over(self) -> bool:
        """There is no trouble; true if it has just ended."""
        ended = bool(self._told)
        self._told.clear()
        return ended


class Recurring:
    """Incidents without an end that could be noticed: the first is logged, and then one in a while.

    Args:
        quiet: seconds after a logged incident in which others are only counted.
        clock: seconds that only go forward.
    """

    __slots__ = ("_clock", "_more", "_quiet", "_until")

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._until = float("-inf")
        self._more = 0

    def tell(self, log: Callable[[int], None]) -> None:
        """It has happened again: calls ``log``, if it is time, with how many were not logged before."""
        now = self._clock()
        if now < self._until:
            self._more += 1
            return
        more, self._more, self._until = self._more, 0, now + self._quiet
        log(more)
