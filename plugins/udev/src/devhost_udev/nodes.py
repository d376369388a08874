"""The content of ``/dev``, whose directories are listed again only when they have changed.

The listing of a directory shows which of its nodes exist, and finds nodes that are not in sysfs: those that
are created at boot for modules that are loaded when a process opens them.
"""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from devhost.backend.frozen import mutable
from devhost.backend.sysfs import link_target, natural, node_number, prefix_of

DEV = "/dev"

SKIPPED = frozenset(
    {"/dev/pts", "/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/fd", "/dev/char", "/dev/block"}
)
"""Directories without devices to allocate, or only with links to all of them."""

MAX_DIRECTORIES = 4096
"""The most directories that are listed; ``/dev/cpu`` alone has one for each processor."""

MAX_LINKED = 40
"""The most links from one to the next, as in the kernel (path_resolution(7))."""

MAX_LINKS = 64
"""The most symbolic links of one node; udevd makes about ten for a disk. Also the most linked directories
that are looked into."""

SETTLED = 50_000_000
"""The coarsest resolution of time stamps in nanoseconds: a directory that changed more recently may change
again with the same time stamp."""


@mutable
class Listing:
    """The names in one directory.

    ``special`` are those that may be nodes: neither directories nor links, and regular files only in a
    recorded tree. ``links`` are the symbolic links, with the paths that they lead to. ``numbers`` caches the
    device numbers that were read.
    """

    identity: tuple[int, int, int]
    names: frozenset[str]
    special: frozenset[str]
    links: dict[str, str]
    directories: tuple[str, ...]
    settled: bool
    numbers: dict[str, str] = field(default_factory=dict)


class NodeTree:
    """The directories of ``/dev`` below ``root``, at the time of the last :meth:`refresh`.

    ``edition`` is incremented whenever a listing has changed.
    """

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._listings: dict[str, Listing] = {}
        self._suspect: set[str] = set()
        self.edition = 0

    def suspect(self, path: str) -> None:
        """Lists the directory of the node ``path`` again at the next refresh, because it may have changed."""
        self._suspect.add(path.rpartition("/")[0] or "/")

    def suspect_all(self) -> None:
        """Lists all directories again at the next refresh."""
        self._suspect.update(self._listings)

    def refresh(self) -> bool:
        """Lists directories that have changed; whether there were any."""
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
            links: dict[str, str] = {}
            with os.scandir(self._prefix + path) as entries:
                for entry in entries:
                    names.add(entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(f"{path}/{entry.name}")
                    elif entry.is_symlink() and not entry.name.startswith("."):  # udevd's temporary names
                        links[entry.name] = self._target(path, entry.name)
                    elif not entry.is_symlink() and (
                        self._prefix or not entry.is_file(follow_symlinks=False)
                    ):
                        special.add(entry.name)
        except OSError:
            return None
        settled = now - status.st_mtime_ns > SETTLED
        below = tuple(directory for directory in directories if directory not in SKIPPED)
        return Listing(identity, frozenset(names), frozenset(special), links, below, settled)

    def _target(self, directory: str, name: str) -> str:
        """The path that a symbolic link leads to, below the same root."""
        return posixpath.normpath(
            posixpath.join(directory, link_target(f"{self._prefix}{directory}/{name}"))
        ).removeprefix(self._prefix)

    def links(self) -> dict[str, list[str]]:
        """The symbolic links to each node, in natural order: first links to it, then paths through linked
        directories."""
        targets = {
            f"{directory}/{name}": target
            for directory, listing in self._listings.items()
            for name, target in listing.links.items()
        }
        found: dict[str, list[str]] = {}
        through: list[tuple[str, str]] = []
        for link in sorted(targets, key=natural):
            target = _resolved(targets[link], targets)
            if target in self._listings:
                through.append((link, target))
            elif target:
                found.setdefault(target, []).append(link)
        for link, top in through[:MAX_LINKS]:
            for directory, listing in self._listings.items():
                if directory == top or directory.startswith(f"{top}/"):
                    for name in sorted(listing.special | listing.links.keys(), key=natural):
                        node = _resolved(f"{directory}/{name}", targets)
                        if node and node not in self._listings:
                            found.setdefault(node, []).append(f"{link}{directory.removeprefix(top)}/{name}")
        return {node: links[:MAX_LINKS] for node, links in found.items()}

    def __bool__(self) -> bool:
        """Whether there is a ``/dev``; a recorded tree may lack it."""
        return DEV in self._listings

    def directories(self) -> Collection[str]:
        return self._listings.keys()

    def listing(self, directory: str) -> Listing | None:
        """The listing of a directory; ``None`` if it does not exist or is not below ``/dev``."""
        return self._listings.get(directory)

    def missing(self, directory: str, names: Collection[str]) -> Collection[str]:
        """The ``names`` that ``directory`` does not have; none if there is no ``/dev``."""
        listing = self._listings.get(directory)
        if listing is not None:
            return [name for name in names if name not in listing.names]
        if not self:
            return ()
        return [name for name in names if not os.path.lexists(f"{self._prefix}{directory}/{name}")]

    def undeclared(self, declared: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
        """Nodes that are not in sysfs, each with its device key (``c10:200``).

        ``declared`` are the names that are in sysfs, by directory.
        """
        for directory, listing in self._listings.items():
            for name in listing.special.difference(declared.get(directory, ())):
                number = listing.numbers.get(name)
                if number is None:
                    number = listing.numbers[name] = node_number(f"{self._prefix}{directory}/{name}")
                if number:
                    yield f"{directory}/{name}", number


def _resolved(path: str, targets: Mapping[str, str]) -> str:
    """Where a path leads to through symbolic links; empty if they form a loop."""
    for _ in range(MAX_LINKED):
        done, rest = "", path.split("/")[1:]
        while rest:
            done = f"{done}/{rest.pop(0)}"
            if (target := targets.get(done)) is not None:
                path = "/".join((target, *rest))
                break
        else:
            return path
    return ""
