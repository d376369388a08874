"""Saying how far it is."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line for whoever waits."""
    sys.stdout.write(f"image: {text}\n")
    sys.stdout.flush()
