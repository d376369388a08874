"""Log once: a problem is logged when it begins and when it is over, however often it occurs in between.

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
"""Reasons of one problem that are logged by default: a text that changes each time must not fill the log."""


class Incident:
    """One problem from its beginning to its end, and which of its reasons were logged; true while it lasts.

    Args:
        most: the number of reasons that are logged.
    """

    __slots__ = ("_logged", "_most")

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._logged: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._logged)

    def news(self, reason: str) -> bool:
        """Records that the problem exists, for this reason; true if that should be logged."""
        if reason in self._logged or len(self._logged) >= self._most:
            return False
        self._logged.add(reason)
        return True

    def over(self) -> bool:
        """Records that the problem does not exist; true if it has just ended."""
        ended = bool(self._logged)
        self._logged.clear()
        return ended


class Recurring:
    """Problems whose end cannot be detected: the first is logged, and then at most one per interval.

    Args:
        quiet: seconds after a logged occurrence in which others are only counted.
        clock: monotonic seconds.
    """

    __slots__ = ("_clock", "_more", "_quiet", "_until")

    def __init__(self, quiet: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet = quiet
        self._clock = clock
        self._until = float("-inf")
        self._more = 0

    def report(self, log: Callable[[int], None]) -> None:
        """Records an occurrence; calls ``log``, if it is time, with the number of those not logged."""
        now = self._clock()
        if now < self._until:
            self._more += 1
            return
        more, self._more, self._until = self._more, 0, now + self._quiet
        log(more)
