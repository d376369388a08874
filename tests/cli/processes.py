"""Programs that run beside a test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def started(command: Sequence[str]) -> Iterator[None]:
    """The program runs meanwhile, and is killed then."""
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait(120)
