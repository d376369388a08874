"""Runs a program, and ends everything that it started when it has ended: ``supervisor.py SECONDS PROGRAM …``.

A test that hangs is ended without its fixtures, so the programs that it started would run on, also those in a
session of their own. Their next living ancestor is this process (``PR_SET_CHILD_SUBREAPER``, prctl(2)).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36

LATE = 124
"""The exit code if the program did not end within its time, as that of timeout(1)."""


def main() -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit(f"cannot adopt the children of {sys.argv[2]}: {os.strerror(ctypes.get_errno())}")
    program = subprocess.Popen(sys.argv[2:])
    try:
        return program.wait(float(sys.argv[1]))
    except subprocess.TimeoutExpired:
        return LATE
    finally:
        end_children()


def end_children() -> None:
    """Kills the children of this process until there are none: those of a child that ended become its own."""
    while found := children():
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def children() -> list[int]:
    """The children of this process, with those that have ended and are not waited for."""
    found = (file.read_text() for file in Path("/proc/self/task").glob("*/children"))
    return [int(pid) for line in found for pid in line.split()]


if __name__ == "__main__":
    sys.exit(main())
