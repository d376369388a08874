"""Notices that the configuration file is another than before: by its content, never by event names.

That covers an editor's rename, a plain overwrite, a symlink turned, and the swap of ``..data`` with
which the kubelet updates a ConfigMap. (A ``subPath`` mount never changes: no program can see an edit.)
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from .events import DirectoryWatch

POLL = 5.0
"""Seconds between looks when inotify says nothing."""

CALM = 0.1
"""Seconds the content must stay the same before it is read: editors write in several steps."""

MOST_LOOKS = 8
"""Looks at a file that keeps changing, before it is read as it is."""


class ConfigWatch:
    """Calls ``changed`` after each change of the file's content, its vanishing included."""

    def __init__(self, path: Path, changed: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self._changed = changed
        self._seen = self._digest()

    async def run(self) -> None:
        """Watches for ever."""
        async for _ in DirectoryWatch(self._directories, POLL).changes():
            if self._digest() == self._seen:
                continue
            await self._calm()
            await self._changed()

    async def _calm(self) -> None:
        for _ in range(MOST_LOOKS):
            self._seen = self._digest()
            await asyncio.sleep(CALM)
            if self._digest() == self._seen:
                return

    def _directories(self) -> list[Path]:
        """Where a change would show: beside the path itself, and beside what it points to."""
        target = Path(os.path.realpath(self._path))  # Path.resolve raises for links that lead to each other
        return list(dict.fromkeys((self._path.absolute().parent, target.parent)))

    def _digest(self) -> bytes | None:
        try:
            with self._path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").digest()
        except OSError:
            return None
