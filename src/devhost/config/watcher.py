"""Notices that the configuration file is another than before: by its content, never by event names.

What is no file, or cannot be opened, is told apart by what it is, so that the complaint is about what there
is now. Nothing here waits for a writer (a named pipe) nor reads without end (a link to a device).

That covers an editor's rename, a plain overwrite, a symlink turned, and the swap of ``..data`` with
which the kubelet updates a ConfigMap. (A ``subPath`` mount never changes: no program can see an edit.)
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from devhost.backend.files import Fingerprint, fingerprint
from devhost.discovery.uevents import DirectoryWatch

POLL = 5.0
"""Seconds between looks when inotify says nothing."""

CALM = 0.1
"""Seconds the content must stay the same before it is read: editors write in several steps."""

AGAIN = 15.0
"""Seconds after which a file that was refused is read again though it is the same: what is wrong may be a
directory of ``backendPaths`` or a drop-in, and has been mended there."""

MOST_LOOKS = 8
"""Looks at a file that keeps changing, before it is read as it is."""


class ConfigWatch:
    """Says when to read a file: after each change of its content, its vanishing included.

    Args:
        read: reads it; told whether it is another than the last time.
        refused: whether it was refused the last time.
        seen: what it was like when it was first read.
        blind: see :class:`.DirectoryWatch`.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bool], Awaitable[None]],
        refused: Callable[[], object],
        seen: Fingerprint,
        blind: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._path = path
        self._read = read
        self._refused = refused
        self._seen = seen
        self._watch = DirectoryWatch(self._directories, POLL, blind)

    async def run(self) -> None:
        """Watches for ever."""
        last = time.monotonic()
        async for _ in self._watch.changes():
            if changed := fingerprint(self._path) != self._seen:
                await self._calm()
            elif not self._refused() or time.monotonic() < last + AGAIN:
                continue
            await self._read(changed)
            last = time.monotonic()

    async def _calm(self) -> None:
        for _ in range(MOST_LOOKS):
            self._seen = fingerprint(self._path)
            await asyncio.sleep(CALM)
            if fingerprint(self._path) == self._seen:
                return

    def _directories(self) -> list[Path]:
        """Where a change would show: beside the path itself, and beside what it points to."""
        target = Path(os.path.realpath(self._path))  # Path.resolve raises for links that lead to each other
        return list(dict.fromkeys((self._path.absolute().parent, target.parent)))
