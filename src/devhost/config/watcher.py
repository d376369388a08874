"""Notices that the configuration file changed: by its content, never by event names.

What is not a file, or cannot be opened, is distinguished by its kind, so that the error describes the present
state. Nothing here waits for a writer (a named pipe) or reads without end (a link to a device).

That covers an editor's rename, a plain overwrite, a changed symlink, and the swap of ``..data`` with
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
"""Seconds between checks without an inotify event."""

CALM = 0.1
"""Seconds the content must stay the same before it is read: editors write in several steps."""

AGAIN = 15.0
"""Seconds after which a refused file is read again although it is the same: the fault may have been in a
directory of ``backendPaths`` or in a drop-in, and fixed there."""

MOST_LOOKS = 8
"""Checks of a file that keeps changing, before it is read as it is."""


class ConfigWatch:
    """Has a file read after each change of its content, and when it vanishes.

    Args:
        read: reads it; its argument is whether the file changed since the last time.
        refused: whether it was refused the last time.
        seen: the fingerprint of what was read first.
        blind: see :class:`.DirectoryWatch`.
        poll: seconds between checks without an inotify event.
        again: seconds after which a refused file is read again, see :data:`AGAIN`.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bool], Awaitable[None]],
        refused: Callable[[], object],
        seen: Fingerprint,
        blind: Callable[[str], None] = lambda reason: None,
        *,
        poll: float = POLL,
        again: float = AGAIN,
    ) -> None:
        self._path = path
        self._read = read
        self._refused = refused
        self._seen = seen
        self._again = again
        self._watch = DirectoryWatch(self._directories, poll, blind)

    async def run(self) -> None:
        """Watches; never ends by itself."""
        last = time.monotonic()
        # no Reconciler: the watch already wakes, polls and backs off, and a refused file is no failed pass
        async for _ in self._watch.changes():
            if changed := fingerprint(self._path) != self._seen:
                await self._calm()
            elif not self._refused() or time.monotonic() < last + self._again:
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
