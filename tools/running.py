"""Runs programs that may hang or lack network access, for the build tools."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

UNAVAILABLE = 77
"""The exit code that means "skipped" to test drivers such as Automake."""

UNREACHABLE = re.compile(
    r"Failed to fetch|Could not (resolve|connect)|[Tt]emporary failure (in|resolving)"
    r"|Name or service not known"
    r"|Network is unreachable|Connection (refused|timed out|reset)|Max retries exceeded|NewConnectionError"
    r"|no such host|i/o timeout|dial tcp|TLS handshake timeout",
)
"""The messages of apt, pip and buildah if a server does not answer."""


class Unavailable(Exception):
    """A requirement that this machine or its network lacks, so not an error of the project; one line."""


class Failed(Exception):
    """An error; one line, or the output of a program."""


LAST = 40
"""The number of last lines of a program's output that are shown after a failure."""


def leave_on_sigterm() -> None:
    """Makes SIGTERM raise an exception: child processes are killed and temporary files removed."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> None:
    # timeout and make send the signal several times; the later ones must not interrupt this
    signal.signal(number, lambda number, frame: None)
    sys.exit(128 + number)


def run(
    command: Sequence[str | Path],
    *,
    limit: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """Runs a program to its end and returns its output.

    Args:
        limit: seconds after which it is killed.
        environment: the environment, if not that of this process.

    Raises:
        Unavailable: it failed because a server did not answer.
        Failed: it failed, or exceeded the limit; with its last lines of output.
    """
    name = Path(command[0]).name
    # files instead of pipes: children of a killed program would keep a pipe open
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not finish within {limit:.0f} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with all its children
                process.wait()
        output.seek(0)
        errors.seek(0)
        printed, complaints = output.read(), errors.read()
    if code == 0:
        return printed
    lines = [line for line in f"{printed}\n{complaints}".splitlines() if line.strip()][-LAST:]
    if unreachable := next((line for line in lines if UNREACHABLE.search(line)), ""):
        raise Unavailable(f"{name}: {unreachable.strip()}")
    raise Failed("\n".join([f"{name} failed with exit code {code}; its last output:", *lines]))
