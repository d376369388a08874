"""What lies in ``/dev``: directories listed again only when they changed.

Knowing a directory's names answers "is this node there" for all its nodes at once, and finds nodes
that sysfs does not know: those made at boot for modules that are loaded when somebody opens them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devhost.backend.sysfs import node_number, prefix_of

DEV = "/dev"

SKIPPED = frozenset(
    {"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/fd", "/dev/char", "/dev/block"}
)
"""Directories that hold no devices to hand out, or only links to all of them."""

MAX_DIRECTORIES = 4096
"""Directories listed at most; ``/dev/cpu`` alone has one for each processor."""

SETTLED = 50_000_000
"""Nanoseconds: time stamps are that coarse at worst, so a directory that changed since may change
again within the same stamp."""


@dataclass(slots=True)
class Listing:
    """The names in one directory; ``special`` are those that may be nodes: neither directories nor links,
    and plain files only in a tree.

    ``numbers`` fills up with the device numbers that were asked for.
    """

    identity: tuple[int, int, int]
    names: frozenset[str]
    special: frozenset[str]
    directories: tuple[str, ...]
    settled: bool
    numbers: dict[str, str] = field(default_factory=dict)


class NodeTree:
    """The directories of ``/dev`` below ``root``, as of the last :meth:`refresh`.

    ``edition`` grows whenever a listing is new.
    """

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._listings: dict[str, Listing] = {}
        self._suspect: set[str] = set()
        self.edition = 0

    def suspect(self, path: str) -> None:
        """Something happened to the node ``path``: its directory is listed again next time."""
        self._suspect.add(path.rpartition("/")[0] or "/")

    def suspect_all(self) -> None:
        """Every directory is listed again next time."""
        self._suspect.update(self._listings)

    def refresh(self) -> bool:
        """Looks at the directories again; whether any listing is new."""
        before, self._listings = self._listings, {}
        suspect, self._suspect = self._suspect, set()
        waiting = [DEV]
        changed = False
        while waiting and len(self._listings) < MAX_DIRECTORIES:
            path = waiting.pop()
            known = None if path in suspect else before.get(path)
            listing = self._list(path, known)
            if listing is None:
                continue
            changed = changed or listing is not known
            self._listings[path] = listing
            waiting += listing.directories
        changed = changed or before.keys() != self._listings.keys()
        self.edition += changed
        return changed

    def _list(self, path: str, known: Listing | None) -> Listing | None:
        try:
            now = time.time_ns()
            status = os.stat(self._prefix + path)  # noqa: PTH116 - a plain string path
            identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if known is not None and known.settled and known.identity == identity:
                return known
            names, special, directories = set(), set(), []
            with os.scandir(self._prefix + path) as entries:
                for entry in entries:
                    names.add(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(f"{path}/{entry.name}")
                    elif not entry.is_symlink() and (
                        self._prefix or not entry.is_file(follow_symlinks=False)
                    ):
                        special.add(entry.name)
        except OSError:
            return None
        settled = now - status.st_mtime_ns > SETTLED
        below = tuple(directory for directory in directories if directory not in SKIPPED)
        return Listing(identity, frozenset(names), frozenset(special), below, settled)

    def __bool__(self) -> bool:
        """Whether there is a ``/dev`` at all; a recorded tree may lack it."""
        return DEV in self._listings

    def directories(self) -> Collection[str]:
        """Every directory that is listed."""
        return self._listings.keys()

    def listing(self, directory: str) -> Listing | None:
        """The listing of one directory; ``None`` when it is not there or not below ``/dev``."""
        return self._listings.get(directory)

    def missing(self, directory: str, names: Collection[str]) -> Collection[str]:
        """Those of ``names`` that ``directory`` does not have; none where there is no ``/dev``."""
        listing = self._listings.get(directory)
        if listing is not None:
            return [name for name in names if name not in listing.names]
        if not self:
            return ()
        return [name for name in names if not os.path.lexists(f"{self._prefix}{directory}/{name}")]

    def undeclared(self, declared: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
        """Nodes that sysfs does not speak of, each with its device key (``c10:200``).

        Args:
            declared: the names sysfs speaks of, by directory.
        """
        for directory, listing in self._listings.items():
            for name in listing.special.difference(declared.get(directory, ())):
                number = listing.numbers.get(name)
                if number is None:
                    number = listing.numbers[name] = node_number(f"{self._prefix}{directory}/{name}")
                if number:
                    yield f"{directory}/{name}", number
