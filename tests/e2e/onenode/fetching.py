"""Downloads and commands that may fail because of the machine or its network, with progress."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from .waiting import PAUSE

T = TypeVar("T")

PAUSES = (5.0, 20.0)
"""Seconds before the second and the third try."""

REPORT = 15.0
"""Seconds between two lines of progress."""


NAME = "e2e"
"""The prefix of each line. Other users of this module set a different one."""


class Unavailable(Exception):
    """What this machine or its network does not provide, so that it is no fault of the project; one line."""


class Unreachable(Unavailable):
    """There was no answer; a later try may succeed."""


def say(text: str) -> None:
    """Prints one line of progress."""
    sys.stdout.write(f"{NAME}: {text}\n")
    sys.stdout.flush()


def persistently(attempt: Callable[[], T]) -> T:
    """Retries what failed because of the network, a bounded number of times.

    Raises:
        Unreachable: every try failed.
    """
    for pause in PAUSES:
        try:
            return attempt()
        except Unreachable as error:
            say(f"{error}; trying again in {pause:.0f} s")
            time.sleep(pause)
    return attempt()


def run(
    command: Sequence[str | Path],
    *,
    directory: Path,
    environment: Mapping[str, str],
    limit: float,
    progress: Callable[[str], str],
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, with a line of progress at intervals.

    Args:
        limit: seconds.
        progress: makes a line from the command's standard error so far.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``limit``.
    """
    began = reported = time.monotonic()
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
        try:
            while process.poll() is None:
                now = time.monotonic()
                if now - began > limit:
                    raise subprocess.TimeoutExpired(command, limit)
                if now - reported > REPORT:
                    reported = now
                    say(f"{progress(_text(errors.name))} ({now - began:.0f} s)")
                time.sleep(PAUSE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return subprocess.CompletedProcess(command, process.returncode, _text(out.name), _text(errors.name))


def _text(file: str) -> str:
    return Path(file).read_text(errors="replace")
