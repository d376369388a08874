"""The kubelet's device plugin directory: the kubelet's own socket, and those of plugins.

A kubelet is known by the identity of its socket: device, inode and time of change. Another identity is
another kubelet. inotify only says when to look again, and a slow poll covers what it misses.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.discovery.uevents import DirectoryWatch
from devhost.telemetry.log import get

from .api import KUBELET_SOCKET
from .server import SOCKET_PREFIX, server_stem
from .sockets import refuses
from .timing import NODE

log = get(__name__)

ABSENT = "kubelet.sock is absent: waiting for the kubelet"
"""Reason: the kubelet's directory has no socket."""

NO_DIRECTORY = "the kubelet's directory does not exist: waiting for the kubelet"
"""Reason: the directory is missing."""

NOT_A_DIRECTORY = "the kubelet's directory is not a directory: something else is in its place"
"""Reason: a file has its name."""

REMOVED = (
    "the kubelet's directory was removed, and this container still has the old one: it has to start anew"
)
"""Reason: the directory was removed. A container that has it mounted never sees a new one of its name."""

Identity = tuple[int, int, int]
"""Device, inode and time of change of a ``kubelet.sock``."""


def identity(path: Path) -> Identity | None:
    """The identity of a file; ``None`` if it is absent or cannot be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one call, no Path object per poll
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


class KubeletSocket:
    """Watches the kubelet's directory for all resources at once: one inotify, whatever their number."""

    def __init__(
        self,
        directory: Path,
        poll: float = NODE.poll,
        identify: Callable[[Path], Identity | None] = identity,
    ) -> None:
        self._identify = identify
        self.directory = directory
        self._poll = poll
        self.path = directory / KUBELET_SOCKET
        self.identity: Identity | None = None
        self.failure = ""
        """Why there is no kubelet, in the words of the log; empty while its socket is there."""
        self.since = time.time()
        """Wall-clock seconds at which it went or came."""
        self.servers: Mapping[str, frozenset[str]] = {}
        """Names of the sockets in the directory that a devhost made, by resource (``server_stem``)."""
        self.left_behind: set[str] = set()
        """Of these resources (``server_stem``) an earlier devhost that was killed left a socket behind."""
        self._seen: tuple[Identity | None, Identity | None, Mapping[str, frozenset[str]]] | None = None
        self._subscribers: set[Callable[[], None]] = set()

    def usable(self) -> tuple[bool, str]:
        """Whether a kubelet is or may still appear in this directory; if not, why."""
        return (False, REMOVED) if self.failure == REMOVED else (True, "")

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` when anything in the directory did; returns what ends that."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def look(self) -> None:
        """Reads what is there now, and calls the subscribers if it has changed."""
        self.identity = self._identify(self.path)
        # always: two changes within one tick of the clock leave one time of change
        self.servers = self._list()
        seen = (self.identity, self._identify(self.directory), self.servers)
        if seen == self._seen:
            return
        before, self._seen = self._seen, seen
        self._tell(before[0] if before else None)
        for subscriber in tuple(self._subscribers):
            subscriber()

    def _tell(self, before: Identity | None) -> None:
        """Logs that the kubelet went or came, once each."""
        known = self.failure
        if self.identity is None:
            self.failure = _absence(self.directory)
            if self.failure != known:
                log.warning("no kubelet", dir=str(self.directory), reason=self.failure)
        else:
            self.failure = ""
            # the kubelet also sets its mode: a new time of change alone is not a new socket worth a line
            if known or before is None or self.identity[:2] != before[:2]:
                log.info("kubelet socket found", path=str(self.path))
        if bool(known) != bool(self.failure):
            self.since = time.time()

    def _list(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}  # it is gone again or cannot be read; then no plugin is known
        for name in names:
            if name.startswith(SOCKET_PREFIX):
                found.setdefault(server_stem(name), set()).add(name)
        return {stem: frozenset(sockets) for stem, sockets in found.items()}

    async def run(self, blind: Callable[[str], None] = lambda reason: None) -> None:
        """Watches for ever. The directory may be absent, and may be replaced.

        Args:
            blind: see :class:`.DirectoryWatch`.
        """
        # no Reconciler: the watch waits, polls and retries, and a look at the directory cannot fail
        watch = DirectoryWatch(lambda: [self.directory, *_nearest(self.directory)], self._poll, blind)
        async for _ in watch.changes():
            self.look()

    def remove_stale_sockets(self) -> None:
        """Removes sockets that an earlier devhost left behind; one that still answers is not touched."""
        for path in self.directory.glob(f"{SOCKET_PREFIX}*.sock"):
            if refuses(path):
                self.left_behind.add(server_stem(path.name))
                with suppress(OSError):
                    path.unlink()
                    log.info("removed a stale socket", path=str(path))


def _absence(directory: Path) -> str:
    """Why there is no kubelet.sock in it. A removed directory has no links any more (``stat(2)``)."""
    try:
        found = directory.stat()
        if not stat.S_ISDIR(found.st_mode):
            return NOT_A_DIRECTORY
        with suppress(FileNotFoundError):
            os.stat(directory / KUBELET_SOCKET)  # noqa: PTH116 - as identity(), which keeps the reason to itself
    except (FileNotFoundError, NotADirectoryError):
        return NO_DIRECTORY
    except OSError as error:
        return f"the kubelet's directory cannot be looked into: {error.strerror}"
    return ABSENT if found.st_nlink else REMOVED


def _nearest(directory: Path) -> list[Path]:
    """The nearest ancestor that exists: where a missing directory will show up."""
    # not Path.is_dir, which raises where a directory above may not be searched
    return [next((parent for parent in directory.parents if os.path.isdir(parent)), Path("/"))]  # noqa: PTH112
