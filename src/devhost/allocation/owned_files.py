"""Files that devhost owns in directories which other programs use, too.

CDI specifications, node labels and device-info files share these rules:

* a file is written whole or not at all, readable for every user, and left untouched if it is right already;
* a file is owned by its name, which begins with a prefix of this devhost; no other file is ever changed.
  Where a specification prescribes names, a subclass keeps its own record of what it wrote;
* a symbolic link under such a name is replaced or removed like a file, and its target is left alone. A
  directory stays;
* unfinished files are hidden, and removed once no write can still be at work on them;
* when the configuration names another directory, files in the earlier ones are still removed;
* no call blocks the event loop: each runs on one thread, with a deadline.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, ParamSpec, TypeVar

from devhost.backend.files import holds, make_directory, read_regular, replace_file
from devhost.planning.naming import digest
from devhost.runtime.worker import FILE_DEADLINE, FileWorker

P = ParamSpec("P")
T = TypeVar("T")

UNFINISHED = 60.0
"""Seconds after which no write can still be at work on an unfinished file."""

MAX_BYTES = 4 << 20
"""A larger file is no own one: a claim, which has the largest ones, has at most 32 devices."""

_Signature = tuple[int, int, int]


def owner(tag: str = "") -> str:
    """What names of own files begin with.

    ``tag`` identifies the host; it is empty for the one that serves the node's kubelet. It keeps a trial from
    removing the files of the node's devhost.
    """
    return f"devhost-{digest(tag)}" if tag else "devhost"


class OwnedDirectory:
    """The own files of one directory. Every method may block, and raises ``OSError`` if it is refused.

    ``directory`` is made when first needed. For ``tag`` see :func:`owner`.
    """

    mark = "_"
    """What follows the owner in the names of own files; no other kind of file in the directory has it."""

    def __init__(self, directory: Path, tag: str = "") -> None:
        self.directory = directory
        self.prefix = f"{owner(tag)}{self.mark}"
        self._written: dict[str, tuple[_Signature, bytes]] = {}

    def write_file(self, name: str, data: bytes) -> bool:
        """Makes a file hold ``data``; true if it held something else."""
        path = self.directory / name
        signature = _signature(path)
        if signature is not None and self._written.get(name) == (signature, data):
            return False
        self._written.pop(name, None)
        make_directory(self.directory)
        # the target of a link may change at any time
        changed = signature is None or path.is_symlink() or not holds(path, data)
        if changed:
            # hidden, so that no program reads the unfinished file
            replace_file(path, data, f".{self.prefix}")
        if (signature := _signature(path)) is not None:
            self._written[name] = signature, data
        return changed

    def remove_file(self, name: str) -> bool:
        """Removes a file; false if there is none."""
        self._written.pop(name, None)
        path = self.directory / name
        if not os.path.lexists(path):  # a read-only file system refuses to remove even a missing file
            return False
        path.unlink(missing_ok=True)
        return True

    def read_file(self, name: str) -> bytes:
        """The content of a file; empty if there is none, or it is no regular file of usual size."""
        path = self.directory / name
        try:
            return read_regular(path, MAX_BYTES) if stat.S_ISREG(path.lstat().st_mode) else b""
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return b""

    def is_settled(self, name: str) -> bool:
        """Whether no write can still be at work on what a file belongs to."""
        try:
            return time.time() - (self.directory / name).lstat().st_mtime > UNFINISHED
        except FileNotFoundError:
            return False

    def names(self) -> list[str]:
        return [name for name in self._files() if name.startswith(self.prefix)]

    def remove_unfinished(self) -> list[Path]:
        """Removes what an earlier run did not finish writing."""
        removed = []
        for name in self._files():
            path = self.directory / name
            own = name.startswith(f".{self.prefix}") and name.endswith(".part")
            if own and self.is_settled(name):
                path.unlink(missing_ok=True)
                removed.append(path)
        return removed

    def _files(self) -> list[str]:
        try:
            with os.scandir(self.directory) as entries:
                return sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []


D = TypeVar("D", bound=OwnedDirectory)


class OwnedFiles(Generic[D]):
    """The own files of one kind: in the directory that the configuration names, and in earlier ones.

    ``directory_class`` makes the :class:`OwnedDirectory` for a directory. New files go to ``directory``,
    ``None`` for nowhere. ``name`` is that of the thread that does the work, ``hint`` is what the directory
    must be, for errors. For ``tag`` see :func:`owner`. One operation may take ``deadline`` seconds: the
    directory may be on a file system that hangs.
    """

    def __init__(
        self,
        directory_class: type[D],
        directory: Path | None,
        name: str,
        hint: str,
        tag: str = "",
        deadline: float = FILE_DEADLINE,
    ) -> None:
        self.current: D | None = None
        """Where new files go; ``None`` for nowhere."""
        self._directory_class = directory_class
        self._tag = tag
        self._worker = FileWorker(name, hint, deadline)
        self._directories: dict[Path, D] = {}
        self.move(directory)

    @property
    def directories(self) -> list[D]:
        return list(self._directories.values())

    @property
    def former(self) -> list[D]:
        """Those in which no new files are written."""
        return [one for one in self._directories.values() if one is not self.current]

    def move(self, directory: Path | None) -> None:
        self.current = None if directory is None else self.of(directory)

    def of(self, directory: Path) -> D:
        found = self._directories.get(directory)
        if found is None:
            found = self._directories[directory] = self._directory_class(directory, self._tag)
        return found

    def forget(self, former: D) -> None:
        if former is not self.current:
            self._directories.pop(former.directory, None)

    async def run(self, what: str, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call on the thread.

        ``what`` is what it does, for the error: ``write /a/b``. Raises ``EnvironmentFailure`` if the
        directory hangs, is full, or permission is denied.
        """
        return await self._worker.file(what, call, *args, **kwargs)

    def close(self) -> None:
        """Lets the thread end; waits for nothing, and removes nothing: the pods keep running."""
        self._worker.close()


def _signature(path: Path) -> _Signature | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
