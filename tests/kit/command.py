"""Programs that run to their end, each as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

DEVHOST = (sys.executable, "-m", "devhost")


def completed(*command: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """The exit code and the output of a program; the options are those of ``subprocess.run``."""
    return subprocess.run([*map(os.fspath, command)], capture_output=True, text=True, timeout=240, **options)
