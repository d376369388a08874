"""Running programs that may hang, and what may be out of their reach; for the tools that make something."""

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
"""The exit code that test drivers since Automake's take for "skipped"."""

UNREACHABLE = re.compile(
    r"Failed to fetch|Could not (resolve|connect)|[Tt]emporary failure (in|resolving)"
    r"|Name or service not known"
    r"|Network is unreachable|Connection (refused|timed out|reset)|Max retries exceeded|NewConnectionError"
    r"|no such host|i/o timeout|dial tcp|TLS handshake timeout",
)
"""What apt, pip and buildah say when nobody answers."""


class Unavailable(Exception):
    """What this machine or its network does not give, and so no fault of the project; one line."""


class Failed(Exception):
    """What is wrong; one line, or what a program said."""


LAST = 40
"""How many lines of what a program said tell why it failed."""


def leave_on_sigterm() -> None:
    """Lets SIGTERM end this process as an exception does: what it runs is killed, what it made is removed."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def run(
    command: Sequence[str | Path],
    *,
    limit: float,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> str:
    """Runs a program to its end and returns what it printed.

    Args:
        limit: seconds, after which it is killed.
        environment: instead of the one this process has.

    Raises:
        Unavailable: it failed because nobody answered.
        Failed: it failed, or was not done in time; with the last lines it printed.
    """
    name = Path(command[0]).name
    # files and no pipes: what a killed program leaves behind would keep a pipe open
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
            raise Failed(f"{name} was not done after {limit:.0f} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with everything it has started
                process.wait()
        output.seek(0)
        errors.seek(0)
        printed, complaints = output.read(), errors.read()
    if code == 0:
        return printed
    lines = [line for line in f"{printed}\n{complaints}".splitlines() if line.strip()][-LAST:]
    if unreachable := next((line for line in lines if UNREACHABLE.search(line)), ""):
        raise Unavailable(f"{name}: {unreachable.strip()}")
    raise Failed("\n".join([f"{name} failed with exit code {code}; the last of what it said:", *lines]))
