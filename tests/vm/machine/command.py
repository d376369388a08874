"""Commands that build parts: each has a limit and a log, and ends with the program that started it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .store import CannotMake, Unavailable

TAIL = 12
"""Lines of a log that a failure shows."""

ELSEWHERE = re.compile(
    r"^E: (Failed to fetch|Unable to fetch)|Could not resolve|Could not connect|Temporary failure resolving"
    r"|Connection (failed|refused|reset|timed out)|Network is unreachable|Hash Sum mismatch"
    r"|No space left on device|Operation not permitted|Cannot allocate memory"
)
"""Messages of apt and its programs about a problem of the network or this computer, rather than a recipe."""

BOUND = ("setpriv", "--pdeathsig", "KILL", "--")
"""The kernel kills the command when this process ends, in whatever way."""

ENCLOSED = (*BOUND, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
"""And with it everything that it started; what it mounted is seen by nobody else, and ends with it."""


def run(
    *command: str | Path,
    log: Path,
    limit: float,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    error: type[CannotMake] = CannotMake,
) -> None:
    """Runs a command to its end, in mount and pid namespaces of its own.

    Args:
        limit: seconds.
        env: added to the environment.
        error: what to raise.

    Raises:
        Unavailable: it took longer, or this computer or its network did not let it do its work.
        CannotMake: it failed; or ``error``.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*ENCLOSED, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{Path(command[0]).name} took longer than {limit:.0f} s; {log}") from None
        finally:
            process.kill()
            process.wait()
    if code:
        lines = log.read_text(errors="replace").splitlines()
        kind = Unavailable if any(map(ELSEWHERE.search, lines)) else error
        raise kind("\n".join([f"{Path(command[0]).name} ended with {code}; {log} ends so:", *lines[-TAIL:]]))
