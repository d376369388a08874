"""The rig of backends on machines of plain files, which are made with ``devhost_testing.trees``."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from devhost.backend import NotYet
from devhost.backend.sysfs import Sysfs


class Recording(Sysfs):
    """Records the text files that are read; a directory can vanish meanwhile, or refuse to be listed.

    A reader of a backend's own is recorded as ``class Recorded(Recording, FpgaSysfs)``.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.paths: list[str] = []
        self.refused = ""
        """The end of the path of such directories."""
        self.vanishing: tuple[str, str] | None = None
        """The end of a path, and the directory that is gone once that path has been read or listed."""

    def text(self, path: str) -> str:
        self.paths.append(path)
        found = super().text(path)
        self._vanish(path)
        return found

    def names(self, path: str) -> list[str]:
        found = super().names(path)
        self._vanish(path)
        return found

    def _vanish(self, path: str) -> None:
        if self.vanishing and path.endswith(self.vanishing[0]):
            shutil.rmtree(self.prefix + self.vanishing[1], ignore_errors=True)

    def identities(self, path: str) -> dict[str, int]:
        if self.refused and path.endswith(self.refused):
            raise PermissionError(13, "Permission denied", path)
        return super().identities(path)


class Provisioned(ABC):
    """A machine that a backend brings to what its options say: the calls of devhost, and what pods hold."""

    def __init__(self) -> None:
        self.held: frozenset[str] | None = frozenset()
        self.held_first: list[frozenset[str]] = []
        """What is answered before that, one for each question."""
        self.running: tuple[tuple[Any, ...], Any] | None = None
        """The options, and what follows them."""

    @abstractmethod
    def once(self, *wanted: Any) -> None:
        """One call, and the scan after it."""

    def bring(self, *wanted: Any) -> None:
        """Calls until it has nothing to wait for but pods."""
        for _ in range(4):
            try:
                self.once(*wanted)
            except NotYet as error:
                if "must be withdrawn" not in str(error):
                    raise
            else:
                return
        raise AssertionError("it never ends")

    def restart(self) -> None:
        """What devhost knew in memory is gone."""
        self.running = None

    def ask_held(self) -> frozenset[str] | None:
        return self.held_first.pop(0) if self.held_first else self.held
