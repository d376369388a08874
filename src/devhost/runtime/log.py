"""The log on stderr: fixed messages with fields, as text for people or JSON for programs.

    log = get(__name__)
    log.info("registered", resource=name, devices=4)

It is based on the standard library's logging, so messages of libraries and backends have the same format. A
plain logger passes fields as ``extra={"fields": {...}}``.

The output of a daemon never blocks who writes it: a thread passes it to the file descriptor. The reader of a
log can stop reading: a log collector whose disk is full, a stopped terminal. A pipe takes 64 KiB, and then a
write waits for ever. A daemon must not wait with it. So text goes into a queue of :data:`LIMIT` bytes. What
does not fit is dropped and counted. Once the reader is back, one line reports how much. The descriptor is not
made non-blocking: that would affect every process that shares it, such as the shell on the same terminal.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, TypeVar

from devhost.backend import threads
from devhost.backend.errors import MARK, cut
from devhost.backend.errors import printable as printable
from devhost.backend.threads import NoThread

T = TypeVar("T")

Format = Literal["text", "json"]
Level = Literal["debug", "info", "warning", "error"]

_NEEDS_QUOTES = re.compile(r'[\s"=\\]')
_DEPTH = 8
"""Levels of a field's value that JSON shows; those of devhost have at most two. MARK replaces others."""
LEAVING = 1.0
"""Seconds at the end of a daemon for the reader of its log to take the last lines."""
LONGEST = 16_384
"""Most characters of a message, and of a field: collectors split longer lines."""
_RESERVED = ("time", "level", "logger", "message", "exception")


# Commands that show a backend's failure themselves do not configure a log. Without this handler, Python would
# use its handler of last resort, which prints a message without its fields.
logging.getLogger("devhost").addHandler(logging.NullHandler())


class Log:
    """A logger whose calls take fields as keyword arguments."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, /, **fields: object) -> None:
        """A detail that only developers need."""
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        """A normal change of state."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """A problem that devhost survives. Its end is logged as well."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """A problem that a person must fix."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """A bug: an error with the traceback of the current exception."""
        self._write(logging.ERROR, message, fields, exc_info=True)

    def _write(
        self, level: int, message: str, fields: Mapping[str, object], *, exc_info: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            # without arguments %-formatting is skipped, so a message may contain a percent sign
            self._logger.log(level, message, extra={"fields": fields}, exc_info=exc_info, stacklevel=3)


def get(name: str) -> Log:
    """The log of a module: ``get(__name__)``."""
    return Log(logging.getLogger(name))


NAMED = 20
"""Most lines about things that have changed together."""


def first(items: Sequence[T], write: Callable[..., None], more: str, of: str = "devices") -> Iterator[T]:
    """The first :data:`NAMED` items, to be logged one by one; then logs the number of the others.

    ``write`` is a method of a :class:`Log`, ``more`` the message, and ``of`` the field with the number.
    """
    yield from items[:NAMED]
    if (left := len(items) - NAMED) > 0:
        write(more, **{of: left})


_outlets: list[Outlet] = []


@contextmanager
def unblocked() -> Iterator[None]:
    """Makes all output of this process wait in a queue for its reader, for a daemon.

    This includes what others write to ``sys.stdout`` and ``sys.stderr``. At the end, the reader has
    :data:`LEAVING` seconds to take what is left. Call :func:`configure` within the context.
    """
    before = sys.stdout, sys.stderr
    _outlets[:] = [Outlet(descriptor, _gap) for descriptor in (1, 2)]
    sys.stdout, sys.stderr = map(OutletStream, _outlets)
    try:
        yield
    finally:
        flush(LEAVING)
        sys.stdout, sys.stderr = before
        _outlets.clear()


def flush(within: float) -> None:
    """Gives the reader of the log so many seconds to take what waits for it; only for :func:`unblocked`."""
    until = time.monotonic() + within
    for outlet in _outlets:
        outlet.flush(until - time.monotonic())


def dropped() -> int:
    """The lines that this process could not write because their reader does not read, so far."""
    return sum(outlet.dropped for outlet in _outlets)


def _gap(count: int, reason: str) -> str:
    """The line about dropped lines, in the format of the log."""
    fields = {"lines": count, "reason": reason or "nothing read them"}
    message = "log lines were dropped"
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, None, None)
    record.fields = fields
    handlers = logging.getLogger().handlers
    handler = next((known for known in handlers if isinstance(known, _Stderr)), None)
    return handler.format(record) if handler else TextFormatter().format(record)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """The handler of devhost; its type lets a second :func:`configure` find and replace it."""


def configure(format: Format = "text", level: Level = "info") -> None:
    """Sends every log line of this process to stderr; a second call replaces the first.

    ``level`` applies to devhost and its backends. Libraries (grpc, asyncio …) log from ``warning`` on, at any
    level of devhost. The C core of gRPC bypasses Python's logging, and uses another format for errors that it
    also reports for calls. It is silenced unless ``GRPC_VERBOSITY`` is set, which has an effect only before
    grpc is first imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    handler = _Stderr(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    number = getattr(logging, level.upper())
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("devhost").setLevel(number)
    logging.captureWarnings(True)


class TextFormatter(logging.Formatter):
    """``12:00:01.123 INFO devhost.host.host registered resource=rdma/hca devices=4``, in local time.

    A traceback follows on lines that begin with ``|``, unlike any other line.
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        words = [
            f"{clock}.{int(record.msecs):03d}",
            record.levelname,
            record.name,
            printable(_short(record.getMessage().rstrip())),
        ]
        words += [f"{printable(key)}={_show(value)}" for key, value in _fields(record).items()]
        lines = [" ".join(words)]
        lines += [f"  | {printable(line)}" for line in _exception(record).splitlines()]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ``time`` (RFC 3339, UTC, ms), ``level``, ``logger``, ``message``, the fields.

    A field with one of these names, or ``exception``, gets an underscore appended.
    """

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{clock}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(_short(record.getMessage().rstrip())),
        }
        for key, value in _fields(record).items():
            line[f"{key}_" if key in _RESERVED else _key(key)] = _plain(value)
        exception = _exception(record)
        if exception:
            line["exception"] = "\n".join(map(printable, exception.splitlines()))
        return json.dumps(line, separators=(",", ":"))


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields = getattr(record, "fields", {})
    return fields if isinstance(fields, Mapping) else {"fields": fields}


def _exception(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[1] is not None:
        return "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    return ""


def _show(value: object) -> str:
    """A field's value as text, in quotes if it would be ambiguous without."""
    if isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, list | tuple | set | frozenset):
        text = ",".join(map(str, value))
    else:
        text = str(value)
    text = _short(text)
    safe = printable(text)
    if safe and safe == text and not _NEEDS_QUOTES.search(text):
        return text
    return '"' + printable(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _plain(value: object, depth: int = _DEPTH) -> object:
    """A field's value for JSON; NaN and infinity, which JSON lacks, become strings.

    Characters that do not print are escaped as everywhere else, so that one search finds the text in all
    places. Levels below ``depth`` are omitted, which also ends recursive lists.
    """
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Mapping):
        return {_key(key): _plain(one, depth - 1) for key, one in value.items()} if depth else MARK
    if isinstance(value, Sequence | Set) and not isinstance(value, str | bytes | bytearray | memoryview):
        return [_plain(one, depth - 1) for one in value] if depth else MARK
    return printable(_short(str(value)))


def _short(text: str) -> str:
    return cut(text, LONGEST)


def _key(key: object) -> str:
    return printable(str(key))


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


def duration(text: str) -> float | None:
    """The seconds in ``90s``, ``30m`` or ``2h``; ``None`` if it is none of these."""
    number, unit = text[:-1], {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(number) * unit if unit and re.fullmatch(r"[0-9]{1,6}", number) else None


def utc(seconds: float, precision: str = "seconds") -> str:
    """A time of the wall clock by RFC 3339."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


@lru_cache(1024)  # devices that appeared together have the same times
def iso(seconds: float) -> str:
    """The same to the millisecond, as in documents."""
    return utc(seconds, "milliseconds")
