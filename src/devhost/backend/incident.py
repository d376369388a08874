"""Log once: a problem is logged when it begins, and when it is over, however often it is met in between.

::

    trouble = Incident()
    try:
        read()
    except OSError as error:
        if trouble.news(str(error)):
            log.warning("cannot read the state: %s", error)
    else:
        if trouble.over():
            log.info("the state can be read again")
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST = 10
"""Reasons logged of one problem by default: one with a new number each time must not fill the log."""


class Incident:
    """One problem from its beginning to its end, and which of its reasons were logged; true while it lasts.

    Args:
        most: reasons that are logged of it at most.
    """

    __slots__ = ("_logged", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._logged: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._logged)

    def news(self, reason: str) -> bool:
        """Notes that the problem exists, for this reason; true if that is to be logged."""
        if reason in self._logged or len(self._logged) >= self._most:
            return False
        self._logged.add(reason)
        return True

    def over(self) -> bool:
        """Notes that the problem does not exist; true if it has just ended."""
        ended = bool(self._logged)
        self._logged.clear()
        return ended


class Recurring:
    """Problems without an end that could be noticed: the first is logged, and then at most one a while.

    Args:
        quiet: seconds after a logged one in which others are only counted.
        clock: seconds that only go forward.
    """

    __slots__ = ("_clock", "_more", "_quiet", "_until")

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._until = float("-inf")
        self._more = 0

    def tell(self, log: Callable[[int], None]) -> None:
        """Notes that it happened; calls ``log``, if it is time, with how many were not logged before."""
        now = self._clock()
        if now < self._until:
            self._more += 1
            return
        more, self._more, self._until = self._more, 0, now + self._quiet
        log(more)
