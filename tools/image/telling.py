"""Reports progress."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Prints a line of progress."""
    sys.stdout.write(f"image: {text}\n")
    sys.stdout.flush()
