"""Getting things over a network, or from a machine, that may not give them; and saying how far it is."""

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
"""Seconds between two lines about something that takes long."""


NAME = "e2e"
"""Who speaks. Whatever else fetches programs by this module says so with a name of its own."""


class Unavailable(Exception):
    """What this machine or its network does not give, and so no fault of the project; one line."""


class Unreachable(Unavailable):
    """Nobody answers. It may be better a moment later."""


def say(text: str) -> None:
    """One line for whoever waits."""
    sys.stdout.write(f"{NAME}: {text}\n")
    sys.stdout.flush()


def persistently(attempt: Callable[[], T]) -> T:
    """Tries again, a bounded number of times, what failed for the network's sake.

    Raises:
        Unreachable: it failed each time.
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
    """Runs a command to its end, with a line now and then.

    Args:
        limit: seconds.
        progress: from what the command has written to its standard error so far to what is said of it.

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
