"""A stalled event loop ends the process, so that the kubelet notices.

A kubelet never pings a plugin (its gRPC client has no keepalive): one that is frozen keeps its devices
allocatable, and each pod that wants one waits for ever. Only closed sockets tell it. So when the loop has
answered nothing for :data:`STALL` seconds, the process says what every thread is doing and goes at once;
whatever runs it starts it again.

Age is counted in the watchdog's own ticks and no clock is asked. A process that was stopped (SIGSTOP, a
frozen cgroup, a suspended machine) or starved did not tick either, so that time does not count.

A call of a C library that keeps the interpreter's lock stops this thread too. The liveness probe on
``/healthz``, which the loop answers, is what notices that.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from .log import get

log = get(__name__)

STALL = 20.0
"""Seconds without an answer after which the loop counts as stalled.

Far above the longest piece of work the loop ever does in one go, and below the patience of people who
wait for a pod."""

TICK = 2.0
"""Seconds between two questions to the loop; each costs it one callback."""

TELL = 2.0
"""Seconds the last words may take: what stalls the loop may be a full pipe behind stderr."""

EXIT_STALLED = 4
"""Exit code of a process whose event loop stalled."""

_DEPTH = 40
"""Innermost frames shown of each thread."""


class Watchdog:
    """Watches the running loop for as long as the ``with`` block lasts.

    Args:
        stall: seconds without an answer that end the process.
        tick: seconds between two questions.
        leave: ends the process; called on the watchdog's own thread.
        report: seconds that logging the stacks may take.
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
        threading.Thread(target=self._watch, args=(loop,), name="watchdog", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        answered = threading.Event()
        answered.set()
        missed = 0
        while not self._over.wait(self._tick):
            if answered.is_set():
                missed = 0
                answered.clear()
                try:
                    loop.call_soon_threadsafe(answered.set)
                except RuntimeError:
                    return  # the loop is closed: there is nothing left to watch
                continue
            missed += 1
            if missed >= self._patience:
                self._tell(missed * self._tick)
                self._leave(EXIT_STALLED)
                return

    def _tell(self, seconds: float) -> None:
        teller = threading.Thread(target=_last_words, args=(seconds,), name="last words", daemon=True)
        teller.start()
        teller.join(self._report)


def _last_words(seconds: float) -> None:
    log.error("the event loop has stalled; leaving so that the kubelet notices", seconds=seconds)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            log.error("what a thread was doing", thread=names.get(ident, ident), stack=_stack(frame))


def _stack(innermost: FrameType | None) -> list[str]:
    """Where a thread is, innermost call first. No file is read: that could hang as well."""
    calls: list[str] = []
    frame = innermost
    while frame is not None and len(calls) < _DEPTH:
        calls.append(f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return calls
