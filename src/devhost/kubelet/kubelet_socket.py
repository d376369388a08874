"""The kubelet's device plugin directory: the kubelet's own socket, and those of plugins.

A kubelet is identified by its socket: device, inode and time of change. A different identity is a different
kubelet. inotify only triggers another look, and a slow poll covers what it misses.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from devhost.backend.errors import EnvironmentFailure
from devhost.planning.timing import KUBELET
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog
from devhost.runtime.sockets import refuses, too_long
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker

from .api import KUBELET_SOCKET
from .server import SOCKET_PREFIX, server_stem, socket_name

HINT = "run devhost as root, with the directory mounted writable, or choose a writable --kubelet-dir"


def check_directory(directory: Path) -> None:
    """Checks that devhost can work in the kubelet's directory. A missing directory is no error.

    Raises ``EnvironmentFailure`` if it is not a directory, or is not writable.
    """
    try:
        found = directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        why = error.strerror or str(error)
        raise EnvironmentFailure(f"cannot reach the kubelet's directory {directory}: {why}", HINT) from None
    if not stat.S_ISDIR(found.st_mode):
        raise EnvironmentFailure(f"{directory} is not a directory", "choose another --kubelet-dir")
    for modes, what in ((os.R_OK, "read"), (os.W_OK | os.X_OK, "write to")):
        if not os.access(directory, modes):
            refused = errno.EROFS if os.statvfs(directory).f_flag & os.ST_RDONLY else errno.EACCES
            why = os.strerror(refused)
            raise EnvironmentFailure(f"cannot {what} the kubelet's directory {directory}: {why}", HINT)
    if wrong := too_long(directory / socket_name("")):
        raise EnvironmentFailure(wrong, "choose a shorter --kubelet-dir")


log = get(__name__)

ABSENT = "kubelet.sock is absent: waiting for the kubelet"
"""Reason: the kubelet's directory has no socket."""

NO_DIRECTORY = "the kubelet's directory does not exist: waiting for the kubelet"
"""Reason: the directory is missing."""

NOT_A_DIRECTORY = "the kubelet's directory is not a directory: another file has its path"
"""Reason: another kind of file has its path."""

REMOVED = "the kubelet's directory was removed, and this container still has the old one mounted (restart it)"
"""Reason: the directory was removed. A container that has it mounted never sees a new one at its path."""

Identity = tuple[int, int, int]
"""Device, inode and time of change of a ``kubelet.sock``."""


class _Seen(NamedTuple):
    """What the kubelet's directory had at one look; ``absence`` is why it has no socket of the kubelet's."""

    identity: Identity | None
    directory: Identity | None
    servers: Mapping[str, frozenset[str]]
    absence: str


def identity(path: Path) -> Identity | None:
    """The identity of a file; ``None`` if it is absent or cannot be seen."""
    try:
        found = os.stat(path)  # noqa: PTH116 - one call, no Path object per poll
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


class KubeletSocket:
    """Watches the kubelet's directory for all resources, with one inotify instance."""

    def __init__(
        self,
        directory: Path,
        poll: float = KUBELET.poll,
        identify: Callable[[Path], Identity | None] = identity,
        worker: FileWorker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identify = identify
        self._clock = clock
        self.directory = directory
        self._poll = poll
        self.path = directory / KUBELET_SOCKET
        self.identity: Identity | None = None
        self.failure = ""
        """Why there is no kubelet, as logged; empty while its socket exists."""
        self.since = time.time()
        """Wall-clock seconds at which the socket appeared or disappeared, or :attr:`unread` changed."""
        self.unread = ""
        """Why the directory cannot be read now; what was seen last stays. Empty if it was read."""
        self.servers: Mapping[str, frozenset[str]] = {}
        """Names of the sockets in the directory that belong to a devhost, by resource (``server_stem``)."""
        self.left_behind: set[str] = set()
        """Resources (``server_stem``) whose socket a killed devhost left behind."""
        self._seen: _Seen | None = None
        self._worker = worker or FileWorker("kubelet directory", "")
        self._reading = asyncio.Lock()
        self._read_at = -math.inf
        """When the last reading that succeeded began; monotonic seconds."""
        self._next: asyncio.Task[bool] | None = None
        """The reading that has not begun yet."""
        self._failures = FailureLog(
            log,
            "the kubelet's directory cannot be read",
            "the kubelet's directory can be read again",
            dir=self.directory,
        )
        self._subscribers: set[Callable[[], None]] = set()

    @property
    def trouble(self) -> str:
        """Why there is no kubelet, or why that is unknown."""
        return self.unread or self.failure

    def usable(self) -> tuple[bool, str]:
        """Whether a kubelet uses this directory or may still appear in it; if not, why."""
        return (False, REMOVED) if self.failure == REMOVED else (True, "")

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after each change in the directory; returns a function that ends this."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    async def open(self) -> None:
        """Removes sockets that an earlier devhost left behind, and looks for the first time.

        Raises ``EnvironmentFailure`` if the directory exists and cannot be used, or does not answer.
        """
        for path, removed in await self._worker.file(f"use {self.directory}", self._prepare):
            self.left_behind.add(server_stem(path.name))
            if removed:
                log.info("removed a stale socket", path=str(path))
        if not await self.look():
            raise EnvironmentFailure(self.unread)

    async def look(self, within: float = 0.0) -> bool:
        """Reads the directory on the thread, and calls the subscribers if something has changed.

        It returns whether that was possible, and so whether the event loop may use what is in the directory:
        a file system that hangs would stop it. Callers share one reading, which begins after the call; one
        that began less than ``within`` seconds before, and succeeded, is enough.
        """
        if not self.unread and self._clock() - self._read_at < within:
            return True
        if self._next is None:
            self._next = asyncio.create_task(self._look())
        return await asyncio.shield(self._next)

    async def _look(self) -> bool:
        async with self._reading:
            self._next = None
            began = self._clock()
            try:
                seen = await self._worker.file(f"read {self.directory}", self._read)
            except EnvironmentFailure as error:
                self._fails(str(error))
                return False
        self._read_at = began
        self._failures.succeeded()
        self._follow(seen)
        return True

    def _fails(self, reason: str) -> None:
        self._failures.failed(reason)
        if reason != self.unread:
            self.unread, self.since = reason, time.time()
            self._notify()

    def _read(self) -> _Seen:
        found = self._identify(self.path)
        absence = _absence(self.directory) if found is None else ""
        # always listed: two changes within one clock tick have the same time of change
        return _Seen(found, self._identify(self.directory), self._list(), absence)

    def _follow(self, seen: _Seen) -> None:
        if seen == self._seen and not self.unread:
            return
        if self.unread:
            self.unread, self.since = "", time.time()
        before, self._seen = self._seen, seen
        self.identity, self.servers = seen.identity, seen.servers
        self._report(before.identity if before else None, seen.absence)
        self._notify()

    def _notify(self) -> None:
        for subscriber in tuple(self._subscribers):
            subscriber()

    def _report(self, before: Identity | None, absence: str) -> None:
        """Logs once that the kubelet appeared, and once that it disappeared."""
        known, self.failure = self.failure, absence
        if self.identity is None:
            if self.failure != known:
                log.warning("no kubelet", dir=str(self.directory), reason=self.failure)
        else:
            # the kubelet also sets its mode: a new time of change alone is no new socket
            if known or before is None or self.identity[:2] != before[:2]:
                log.info("kubelet socket found", path=str(self.path))
        if bool(known) != bool(self.failure):
            self.since = time.time()

    def _list(self) -> dict[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}  # it was removed or cannot be read; then no plugin is known
        for name in names:
            if name.startswith(SOCKET_PREFIX):
                found.setdefault(server_stem(name), set()).add(name)
        return {stem: frozenset(sockets) for stem, sockets in found.items()}

    async def run(self, blind: Callable[[str], None] = lambda reason: None) -> None:
        """Watches until cancelled, also an absent directory. For ``blind`` see :class:`.DirectoryWatch`."""
        # no Reconciler: the watch waits, polls and retries
        paths = lambda: [self.directory, *_nearest(self.directory)]  # noqa: E731 - called on the thread
        try:
            async for _ in DirectoryWatch(paths, self._poll, self._worker, blind).changes():
                await self.look()
        finally:
            self._worker.close()

    def _prepare(self) -> list[tuple[Path, bool]]:
        """Checks the directory, and finds sockets on which no process listens; whether each was removed."""
        check_directory(self.directory)
        stale = filter(refuses, self.directory.glob(f"{SOCKET_PREFIX}*.sock"))
        return [(path, _removed(path)) for path in stale]


def _absence(directory: Path) -> str:
    """Why the directory has no kubelet.sock. A removed directory has no links (``stat(2)``)."""
    try:
        found = directory.stat()
        if not stat.S_ISDIR(found.st_mode):
            return NOT_A_DIRECTORY
        with suppress(FileNotFoundError):
            os.stat(directory / KUBELET_SOCKET)  # noqa: PTH116 - identity() does not report why
    except (FileNotFoundError, NotADirectoryError):
        return NO_DIRECTORY
    except OSError as error:
        return f"cannot read the kubelet's directory: {error.strerror}"
    return ABSENT if found.st_nlink else REMOVED


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def _nearest(directory: Path) -> list[Path]:
    """The nearest ancestor that exists: a missing directory appears there first."""
    # not Path.is_dir, which raises if a directory above cannot be searched
    return [next((parent for parent in directory.parents if os.path.isdir(parent)), Path("/"))]  # noqa: PTH112
