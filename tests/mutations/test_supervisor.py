"""A test that hangs because of a fault leaves no program behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from supervisor import LATE

SUPERVISOR = Path(__file__).with_name("supervisor.py")

STARTS = """
import os, sys, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()))
    os.write(writing, b".")
    time.sleep(600)
os.read(reading, 1)
"""


@pytest.mark.parametrize(
    ("end", "code"), [("os._exit(3)", 3), ("os.kill(os.getpid(), 9)", 256 - 9), ("time.sleep(600)", LATE)]
)
def test_what_a_program_started_ends_with_it(tmp_path: Path, end: str, code: int) -> None:
    started = tmp_path / "pid"
    limit = "5" if code == LATE else "600"
    command = [sys.executable, SUPERVISOR, limit, sys.executable, "-c", STARTS + end, str(started)]
    # the output has an end only once no program has it open
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300, check=False)
    assert done.returncode == code
    assert code == LATE or started.exists()
    if started.exists() and (pid := started.read_text()):  # a busy machine may not come so far in time
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
