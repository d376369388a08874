"""What this process has open."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def open_descriptors() -> set[tuple[str, str]]:
    """The descriptors of this process, each with what it leads to.

    Two of these are compared by ``<=`` or ``-``, and not by number: gRPC, and threads of earlier tests, close
    what they have open in their own time.
    """
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            found.add((entry.name, str(entry.readlink())))
    return found
