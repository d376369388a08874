"""Reports of changes: at once, or once for everything that one request changes.

A report leads to work on everything that is held: a plan, or a look at what containers were given. A request
with many claims would otherwise cause it for each of them. Only reports wait for the end of a request: what
is held counts at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class _PendingReports:
    """What is to be reported when a request has been answered."""

    def __init__(self) -> None:
        self.answered = False
        self.reports: dict[Callable[[], None], None] = {}


_CURRENT: ContextVar[_PendingReports | None] = ContextVar("request", default=None)
"""The request for which a task runs. The tasks that it starts have the same one."""


class Report:
    """Calls back after a change, or once at the end of :func:`together`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __call__(self) -> None:
        request = _CURRENT.get()
        if request is None or request.answered:  # a task may outlive its request
            self._callback()
        else:
            request.reports[self._callback] = None


@contextmanager
def together() -> Iterator[None]:
    """Makes each :class:`Report` call back once at the end, for all tasks that are started meanwhile."""
    outer = _CURRENT.get()
    if outer is not None and not outer.answered:
        yield
        return
    request = _PendingReports()
    token = _CURRENT.set(request)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        request.answered = True
        for report in request.reports:
            report()
