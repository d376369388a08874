"""The log on stderr: fixed messages with fields, as text for people or JSON for programs.

    log = get(__name__)
    log.info("registered", resource=name, devices=4)

It is based on the standard library's logging, so messages of libraries and backends have the same format. A
plain logger passes fields as ``extra={"fields": {...}}``.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Literal

from devhost.backend.errors import MARK, cut
from devhost.backend.errors import printable as printable

from .outlet import Outlet, OutletStream

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


_outlets: list[Outlet] = []


@contextmanager
def unblocked() -> Iterator[None]:
    """Makes all output of this process wait in a queue for its reader, for a daemon; see :mod:`.outlet`.

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
