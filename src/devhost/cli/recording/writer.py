"""Writes a tree of directories, links and small files, within limits.

Every link is relative and stays inside the tree, so that the tree can be moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure

from .area import Bounds


class Full(Exception):
    """A limit of the tree is reached; the text names it."""


class FileType(StrEnum):
    """The type of an entry of the tree."""

    DIRECTORY = "directory"
    LINK = "link"
    NAME = "name"
    """A placeholder file for something whose content is not in the tree; it may contain a node's number."""
    FILE = "file"
    WITHHELD = "withheld"
    """Nothing: a file cannot represent what is on the machine, so the path stays out of the tree."""


class Writer:
    """Makes entries below ``tree``. Paths begin with ``/``, which is the tree itself.

    ``revision`` increases with each entry that is new or gets its content.
    """

    def __init__(self, tree: Path, bounds: Bounds) -> None:
        self._tree = str(tree)
        self._bounds = bounds
        self._kinds: dict[str, FileType] = {}
        self.bytes = 0
        self.revision = 0

    def count(self, *kinds: FileType) -> int:
        counted = Counter(self._kinds.values())
        return sum(counted[kind] for kind in kinds)

    def has(self, path: str, *kinds: FileType) -> bool:
        return self._kinds.get(path) in kinds

    def directory(self, path: str) -> None:
        """Makes a directory; its parent exists already."""
        if self._admit(path, FileType.DIRECTORY):
            self._do(path, lambda: Path(self._tree + path).mkdir())

    def link(self, path: str, target: str) -> None:
        """Makes a link. A target that is absolute or outside becomes a relative one inside the tree."""
        if self._admit(path, FileType.LINK):
            inside = contained(path.rpartition("/")[0], target)
            self._do(path, lambda: Path(self._tree + path).symlink_to(inside))

    def name(self, path: str, text: str = "") -> None:
        """Makes a placeholder file."""
        if self._admit(path, FileType.NAME, len(text)):
            self._do(path, lambda: Path(self._tree + path).write_bytes(text.encode()))

    def file(self, path: str, content: bytes) -> None:
        """Makes a file with content, also in place of a placeholder."""
        if self._admit(path, FileType.FILE, len(content), instead_of=FileType.NAME):
            self._do(path, lambda: Path(self._tree + path).write_bytes(content))

    def withhold(self, path: str) -> None:
        """Keeps a file out of the tree, and removes its placeholder."""
        if self._admit(path, FileType.WITHHELD, instead_of=FileType.NAME):
            self._do(path, lambda: Path(self._tree + path).unlink(missing_ok=True))

    def _admit(self, path: str, kind: FileType, size: int = 0, instead_of: FileType | None = None) -> bool:
        """Whether an entry can be made at ``path``: within the limits, and not in place of another entry."""
        known = self._kinds.get(path)
        if known is not None and known is not instead_of:
            return False
        if known is None and len(self._kinds) >= self._bounds.entries:
            raise Full(f"the limit of {self._bounds.entries} files, links and directories is reached")
        if self.bytes + size > self._bounds.bytes:
            raise Full(f"the limit of {self._bounds.bytes >> 20} MiB is reached")
        self._kinds[path] = kind
        self.bytes += size
        self.revision += 1
        return True

    def _do(self, path: str, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write {path} of the tree: {error.strerror or error}",
                "choose a directory on a file system with free space",
            ) from error


def contained(directory: str, target: str) -> str:
    """The text of a link in ``directory`` that leads to ``target``, as seen from the root.

    ``..`` at the root leads to the root, as in the kernel.
    """
    depth = directory.count("/")
    if target.startswith("/"):
        target = "../" * depth + target.lstrip("/")
    kept = []
    for part in target.split("/"):
        if part in ("", ".") or (part == ".." and depth == 0):
            continue
        depth += -1 if part == ".." else 1
        kept.append(part)
    return "/".join(kept) or "."
