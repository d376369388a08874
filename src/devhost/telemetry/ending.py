"""The exit code for each way in which a command can end, and what is printed then."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from devhost.backend.errors import ConfigError, DevhostError, EnvironmentFailure, exhausted

CANNOT_WRITE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to standard output, for any kind of file."""

WITHOUT_OUTPUT = 5
"""The exit code of a command whose output could not be written."""


class OutputFailed(Exception):
    """The command's output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _Stream(io.FileIO):
    """A standard stream that discards what cannot be written because of the errors ``ignored``."""

    def __init__(self, descriptor: int, ignored: Collection[int]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._ignored = ignored

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in self._ignored:
                raise
            return memoryview(data).nbytes


class _Output(io.TextIOWrapper):
    """The output of a command. What another thread prints, such as a backend, goes to standard error."""

    def write(self, text: str, /) -> int:
        mine = threading.current_thread() is threading.main_thread()
        return super().write(text) if mine else sys.stderr.write(text)


def own_streams() -> None:
    """Separates the output of a command from what libraries print, and from who reads it.

    What a backend, a library or a child process writes to descriptor 1 goes to standard error, so that it is
    not in the middle of JSON. The command goes on to its exit code, which is often the answer, when nothing
    reads its output (``devhost check F | head``) or standard error.
    """
    out, error = sys.stdout, sys.stderr
    sys.stderr = io.TextIOWrapper(_raw(2, CANNOT_WRITE), error.encoding, error.errors, line_buffering=True)
    sys.stdout = _Output(_raw(os.dup(1), (errno.EPIPE,)), out.encoding, out.errors, line_buffering=True)
    os.dup2(2, 1)


def _raw(descriptor: int, ignored: Collection[int]) -> io.BufferedWriter:
    return io.BufferedWriter(_Stream(descriptor, ignored))


@contextmanager
def output() -> Iterator[None]:
    """Around code that prints the output of a command; raises ``OutputFailed`` if it could not be written."""
    try:
        yield
    except OSError as error:
        if error.errno in CANNOT_WRITE and error.filename is None:
            raise OutputFailed(error) from error  # click would exit with 1 if the pipe's reader is gone
        raise


def ended(command: Callable[[], object]) -> int:
    """Calls a command; the exit code. Raises ``ImportError`` if a package is missing."""
    try:
        code = _ended(command)
    except ImportError:
        raise
    except BaseException as error:  # noqa: BLE001 - a fault of the program, or Ctrl-C at its end
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    try:
        sys.stdout.flush()
    except OSError as error:
        code = code or _without_output(error)
    return code


def _ended(command: Callable[[], object]) -> int:
    try:
        result = command()
        return result if isinstance(result, int) else 0
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OutputFailed as failure:
        return _without_output(failure.error)
    except Exception as error:
        if (reason := failure_of(error)) is None:
            raise
        for line in reason.diagnostics if isinstance(reason, ConfigError) else [f"devhost: {reason}"]:
            _print(str(line))
        return reason.exit_code


def failure_of(error: Exception) -> DevhostError | None:
    """Why a command failed that raised this; ``None`` if that is a fault of the program."""
    if isinstance(error, DevhostError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentFailure("the process has no memory left", "raise its limit, such as ulimit -v")
    return exhausted(error)


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _without_output(error: OSError) -> int:
    """Reports that the output could not be written; the exit code."""
    # What is still buffered would be written again, and fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno == errno.EPIPE:  # the reader closed the pipe (`devhost discover | head`)
        return 0
    _print(f"devhost: cannot write the output: {error.strerror}")
    return WITHOUT_OUTPUT
