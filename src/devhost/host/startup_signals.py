"""Handles signals that come while ``devhost run`` starts, instead of their default actions.

Importing the host and its backends takes a few tenths of a second. A SIGHUP during that time must cause a
reload, not end the process. SIGTERM and SIGINT can end the process at once: nothing is served yet. This
module imports nothing that takes time.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

HARMLESS = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    signal.SIGPWR,
    signal.SIGXFSZ,
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Signals that are ignored. The programs that devhost starts inherit that.

They are sent for other purposes, such as to every process of a name, and by default each ends a process.
SIGQUIT, SIGABRT and the signals of faults keep their default."""

_held: set[int] = set()


def hold() -> None:
    """Remembers SIGHUP, and lets SIGTERM and SIGINT end the process with exit code 0.

    This holds until the event loop handles these signals. The signals of
    :data:`HARMLESS`, which would end the process too, have no effect. Call it from the main thread.
    """
    for harmless in HARMLESS:
        signal.signal(harmless, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _nothing)  # not ignored: programs that devhost starts may need its default
    signal.signal(signal.SIGHUP, _remember)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def reload_wanted() -> bool:
    """Whether SIGHUP has come since :func:`hold`, or since the last call."""
    wanted = signal.SIGHUP in _held
    _held.clear()
    return wanted


def _remember(number: int, _frame: FrameType | None) -> None:
    _held.add(number)


def _nothing(number: int, _frame: FrameType | None) -> None:
    """Handles a signal that means nothing to devhost."""


def _end(_number: int, _frame: FrameType | None) -> None:
    # An exception would be raised inside an import, and the import of a plugin catches every exception.
    os._exit(0)
