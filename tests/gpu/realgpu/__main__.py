"""``make gpu``: runs the tests of ``tests/gpu`` on this machine's GPUs; they print one table in the end.

python -m realgpu [pytest's arguments]

The exit code is that of pytest, and 77 if there is no usable GPU.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .presence import SWITCH, why_not

TESTS = "tests/gpu"
UNAVAILABLE = 77
"""The exit code that test drivers since Automake's take for "skipped"."""


def main(arguments: list[str]) -> int:
    if reason := why_not():
        sys.stderr.write(f"gpu: skipped, {reason}\n")
        return UNAVAILABLE
    os.chdir(Path(__file__).resolve().parents[3])
    command = [sys.executable, "-m", "pytest", *(arguments or [TESTS])]
    return os.execve(command[0], command, os.environ | {SWITCH: "1"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
