"""Commands of devhost, run to their end in this process: a process of their own starts for 0.2 s.

What is about the process, such as signals, closed descriptors and limits, starts one.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from devhost.cli.program import call


def devhost(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command as the program does; also where an event loop runs, which it blocks."""
    words = ["devhost", *map(os.fspath, arguments)]
    output, errors, codes = io.StringIO(), io.StringIO(), list[int]()
    with mock.patch.object(sys, "argv", words), redirect_stdout(output), redirect_stderr(errors):
        thread = threading.Thread(target=lambda: codes.append(call()))
        thread.start()
        thread.join()
    return subprocess.CompletedProcess(words, codes[0], output.getvalue(), errors.getvalue())
