"""Whether host paths exist, where some may be on a file system that hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, MutableMapping

SILENCE = 4.0
"""Seconds after which a look at a path that has not ended counts as: the path does not exist."""


class Existence:
    """Looks at paths of a host whose root directory is ``root``. Its methods are called from any thread.

    Of each path, only looks hang that begin before it is known to be silent.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._began: dict[str, float] = {}
        """When the looks began that have not ended, by path."""
        self.silent: frozenset[str] = frozenset()
        """The paths that did not answer when they were last looked at."""

    def exists(self, path: str) -> bool:
        """Whether the host has this path; false at once if it is silent. May block."""
        return not self.is_silent(path) and self._exists(path)

    def is_silent(self, path: str) -> bool:
        """Whether the path does not answer, as far as that is known. Never blocks."""
        return path in self.silent or self.hangs(path)

    def _exists(self, path: str) -> bool:
        self._began.setdefault(path, time.monotonic())
        try:
            # not pathlib: any error means "no", and creating a Path takes three times as long as the check
            return os.path.exists(os.path.join(self._root, path.lstrip("/")))  # noqa: PTH110, PTH118
        finally:
            self._began.pop(path, None)

    def hangs(self, path: str) -> bool:
        """Whether an earlier look at this path does not end. Never blocks."""
        began = self._began.get(path)
        return began is not None and time.monotonic() - began >= SILENCE

    def hanging(self) -> set[str]:
        """The paths at which an earlier look does not end. Never blocks."""
        return {path for path in self._began.copy() if self.hangs(path)}

    def look(self, paths: Iterable[str], found: MutableMapping[str, bool]) -> None:
        """Stores for each path whether it exists, as soon as that is known. May block."""
        for path in paths:
            found[path] = self._exists(path)
