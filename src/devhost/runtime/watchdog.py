"""Ends the process when the event loop stalls, so that the kubelet notices.

A kubelet never pings a plugin (its gRPC client has no keepalive): the devices of a frozen plugin stay
allocatable, and each pod that requests one waits for ever. A kubelet notices only closed sockets. Therefore,
if the loop does not answer for :data:`STALL` seconds, the process logs the stack of every thread and exits at
once, to be restarted.

Time is counted in ticks of the watchdog, without a clock. A process that was stopped (SIGSTOP, a frozen
cgroup, a suspended machine) or starved did not tick either, so that time does not count.

A call of a C library that holds the interpreter's lock stops this thread as well. The liveness probe on
``/healthz``, which the loop answers, notices that.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType

from devhost.backend.threads import NoThread, start

from .log import flush, get

log = get(__name__)

STALL = 20.0
"""Seconds without an answer after which the loop counts as stalled.

This is far longer than any uninterrupted work of the loop, and short enough for users who wait for a pod."""

TICK = 4.0
"""Seconds between two checks of the loop; each one wakes the loop and a thread."""

TELL = 2.0
"""Seconds for the final log lines: the loop may have stalled because stderr is a full pipe."""

EXIT_STALLED = 4
"""Exit code of a process whose event loop stalled."""

_DEPTH = 40
"""The number of innermost frames shown for each thread."""


class Watchdog:
    """Watches the running loop for as long as the ``with`` block lasts.

    The process ends after ``stall`` seconds without an answer, checked every ``tick`` seconds. ``leave`` ends
    it, on the thread of the watchdog. Logging the stacks may take ``report`` seconds.
    """

    def __init__(
        self,
        stall: float = STALL,
        tick: float = TICK,
        leave: Callable[[int], object] = os._exit,
        report: float = TELL,
    ) -> None:
        self._patience = max(1, round(stall / tick))
        self._tick = tick
        self._leave = leave
        self._report = report
        self._over = threading.Event()

    def __enter__(self) -> Watchdog:
        loop = asyncio.get_running_loop()
        try:
            start("watchdog", self._watch, loop)
        except NoThread as error:
            log.warning("the event loop is not watched", reason=str(error))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        answered = threading.Event()
        answered.set()
        missed = 0
        while not self._over.wait(self._tick) and not loop.is_closed():
            if answered.is_set():
                missed = 0
                answered.clear()
                try:
                    loop.call_soon_threadsafe(answered.set)
                except RuntimeError:
                    return  # it was closed meanwhile, there is nothing to watch
                continue
            missed += 1
            if missed >= self._patience:
                self._report_stall(missed * self._tick)
                self._leave(EXIT_STALLED)
                return

    def _report_stall(self, seconds: float) -> None:
        until = time.monotonic() + self._report
        with suppress(NoThread):  # the loop may hold a lock that the log needs
            start("final-log", _log_stacks, seconds).join(self._report)
        flush(until - time.monotonic())


def _log_stacks(seconds: float) -> None:
    log.error("event loop stalled, exiting", seconds=seconds)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            log.error("stack of a thread", thread=names.get(ident, ident), stack=_stack(frame))


def _stack(innermost: FrameType | None) -> list[str]:
    """The stack of a thread, innermost call first. It reads no file, because that could hang as well."""
    calls: list[str] = []
    frame = innermost
    while frame is not None and len(calls) < _DEPTH:
        calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return calls
