"""Signals that come while ``devhost run`` still starts: none of them takes its default action.

Importing the host and its backends takes a few tenths of a second. A SIGHUP then asks for the newest
configuration, not for the end of the process. A stop needs no order yet: nothing is served.
Imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

_held: set[int] = set()


def hold() -> None:
    """From now on SIGHUP is remembered, and SIGTERM and SIGINT end the process with exit code 0.

    Until the event loop takes them over. Call it from the main thread.
    """
    signal.signal(signal.SIGHUP, _remember)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def reload_wanted() -> bool:
    """Whether SIGHUP has come since :func:`hold`. The question forgets it."""
    wanted = signal.SIGHUP in _held
    _held.clear()
    return wanted


def _remember(number: int, _frame: FrameType | None) -> None:
    _held.add(number)


def _end(_number: int, _frame: FrameType | None) -> None:
    # An exception would be raised in whatever is being imported, and a plugin's import contains all of them.
    os._exit(0)
