"""Output that never blocks who writes it: a thread passes it to the file descriptor.

The reader of a log can stop reading: a log collector whose disk is full, a stopped terminal. A pipe takes
64 KiB, and then a write waits for ever. A daemon must not wait with it. So text goes into a queue of
:data:`LIMIT` bytes. What does not fit is dropped and counted. Once the reader is back, one line reports how
much.

The descriptor is not made non-blocking: that would affect every process that shares it, such as the shell on
the same terminal.
"""

from __future__ import annotations

import io
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from devhost.backend import threads
from devhost.backend.threads import NoThread

LIMIT = 1 << 20
"""Bytes that wait for the reader: some thousand lines."""

PIECE = 1 << 16
"""Most bytes that are written at a time."""

SURE = 4096
"""Bytes that a pipe takes without waiting whenever it is writable (PIPE_BUF of pipe(7))."""

Gap = Callable[[int, str], str]
"""The line that reports a number of dropped lines, given the system's reason, which is empty if the reader
was too slow."""


class Outlet:
    """Passes text to a file descriptor, in order. Methods may be called from any thread.

    ``gap`` (see :data:`Gap`) is called on the outlet's thread.
    """

    def __init__(
        self,
        descriptor: int,
        gap: Gap,
        *,
        limit: int = LIMIT,
        start: threads.Start = threads.start,
    ) -> None:
        self.descriptor = descriptor
        self.dropped = 0
        """Lines that were dropped so far."""
        self._gap = gap
        self._limit = limit
        self._begin = start
        self._news = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._size = 0
        self._unreported = 0
        self._reason = ""
        self._full = False
        self._writing = False
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Puts text into the queue, or drops it. Never blocks."""
        data = text.encode("utf-8", "backslashreplace")
        with self._news:
            if self._full or self._size + len(data) > self._limit:
                self._full = True  # until the queue is empty, so that a gap has one report, in its place
                self._drop(data)
                return
            if self._thread is None and not self._start():
                self._write_now(data)
                return
            self._queue.append(data)
            self._size += len(data)
            self._news.notify_all()

    def flush(self, within: float) -> bool:
        """Waits until everything is written, at most ``within`` seconds; whether it is."""
        until = time.monotonic() + within
        with self._news:
            while self._queue or self._writing:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._news.wait(left)
        return True

    def _start(self) -> bool:
        try:
            self._thread = self._begin("log", self._run)
        except NoThread:
            return False
        return True

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._queue:
                    self._news.wait()
                waiting, self._writing = self._taken(), True
                count, report = (0, b"") if self._full else self._report()
            rest, reason = self._put(report + waiting)
            with self._news:
                self._size -= len(waiting)
                self._writing = False
                if len(rest) <= len(waiting):
                    self._unreported -= count
                if rest:
                    self._drop(rest[-len(waiting) :], reason)
                if self._full and not self._queue:
                    self._full = False
                    self._queue.append(b"")  # so that the gap is reported without another line
                self._news.notify_all()

    def _taken(self) -> bytes:
        """What is to be written next. It counts as waiting until it is written."""
        parts, size = [self._queue.popleft()], 0
        while self._queue and size + len(parts[-1]) < PIECE:
            size += len(parts[-1])
            parts.append(self._queue.popleft())
        return b"".join(parts)

    def _report(self) -> tuple[int, bytes]:
        """How many lines were dropped and not reported, and the line about them; empty if none were."""
        count = self._unreported
        line = f"{self._gap(count, self._reason)}\n" if count else ""
        return count, line.encode("utf-8", "backslashreplace")

    def _drop(self, data: bytes, reason: str = "") -> None:
        lines = data.count(b"\n")
        self.dropped += lines
        self._unreported += lines
        self._reason = reason

    def _put(self, data: bytes) -> tuple[bytes, str]:
        """Writes everything, which may block; gives what cannot be written, and why not."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self.descriptor, rest[:PIECE]) :]
            except BlockingIOError:  # another process has made it non-blocking
                self._await_reader(None)
            except OSError as error:
                return bytes(rest), error.strerror or ""
        return b"", ""

    def _write_now(self, data: bytes) -> None:
        """Writes without a thread as much as can be written without waiting, and drops the rest."""
        count, report = self._report()
        rest, reason = report + data, ""
        while rest and self._await_reader(0):
            try:
                rest = rest[os.write(self.descriptor, rest[:SURE]) :]
            except OSError as error:
                reason = error.strerror or ""
                break
        if len(rest) <= len(data):
            self._unreported -= count
        self._drop(rest[-len(data) :], reason)

    def _await_reader(self, patience: int | None) -> bool:
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return bool(poll.poll(patience))


class OutletStream(io.TextIOBase):
    """A text stream into an outlet, in place of ``sys.stdout`` or ``sys.stderr``.

    So the output of a library, a backend or the interpreter never blocks either.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def write(self, text: str) -> int:
        self._outlet.write(text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._outlet.descriptor

    def isatty(self) -> bool:
        return os.isatty(self._outlet.descriptor)

    def flush(self) -> None:
        """Has no effect: text is written as soon as the reader takes it."""
