"""Changes in directories: watches the descriptor of inotify in the event loop, and reads without blocking."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from devhost.backend.backoff import Backoff
from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import by_soname, explained
from devhost.backend.incident import Incident

from .log import get
from .worker import FileWorker

with by_soname():
    import asyncinotify

log = get(__name__)

RETRY = 12
"""The longest delay until inotify is retried, in polls."""

_CHANGES = (
    asyncinotify.Mask.CREATE
    | asyncinotify.Mask.DELETE
    | asyncinotify.Mask.MOVED_FROM
    | asyncinotify.Mask.MOVED_TO
    | asyncinotify.Mask.CLOSE_WRITE
    | asyncinotify.Mask.ATTRIB
    | asyncinotify.Mask.DELETE_SELF
    | asyncinotify.Mask.MOVE_SELF
)

_Watched = dict[Path, tuple[asyncinotify.Watch, tuple[int, int]]]
"""The watch of each path, and what was there: device and inode."""


class DirectoryWatch:
    """Wakes its reader when anything in some directories changes, and at regular intervals.

    inotify is only an optimization: if a directory does not exist yet, or the inotify limit is exhausted
    (``fs.inotify.max_user_instances`` is 128 by default), it polls. inotify is retried with back-off.
    ``paths`` returns the directories to watch; it is called again after each change, so they may move.
    ``poll`` is the seconds between two wakes without a change. ``worker`` looks at the paths and watches them
    on its thread, because they may be on a file system that hangs. What reads the files reports that.
    ``blind`` is called with the reason when inotify stops working, and with an empty one when it works again.
    """

    def __init__(
        self,
        paths: Callable[[], list[Path]],
        poll: float,
        worker: FileWorker,
        blind: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._paths = paths
        self._worker = worker
        self._poll = poll
        self._report_blind = blind
        self._reason = ""
        self._retry_at = 0.0
        self._backoff = Backoff(poll, RETRY * poll)
        self._inotify: asyncinotify.Inotify | None = None
        self._watched: _Watched = {}
        self._blind = Incident()

    async def changes(self) -> AsyncIterator[None]:
        """Yields after each burst of changes, and at least every ``poll`` seconds."""
        try:
            while True:
                await self._arm()
                yield
                await self._next()
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
                self._watched = {}

    async def _next(self) -> None:
        # all watches of a process wake at the same moments, so that an idle one wakes less often
        now = asyncio.get_running_loop().time()
        due = (now // self._poll + 1) * self._poll
        if self._inotify is None or not self._watched:
            await asyncio.sleep(due - now)
            return
        try:
            async with asyncio.timeout_at(due):
                await self._inotify.get()
                while self._inotify.sync_get() is not None:
                    pass  # the rest of the burst
        except TimeoutError:
            return

    async def _arm(self) -> None:
        """Watches the directories that exist now, also again if one was replaced (same path, new inode)."""
        if self._reason and time.monotonic() < self._retry_at:
            return
        try:
            if self._inotify is None:
                self._inotify = asyncinotify.Inotify(sync_timeout=0)
            error = await self._worker.file("watch", self._follow, self._inotify, self._watched)
        except EnvironmentFailure:
            self._inotify, self._watched = None, {}  # the call may still use these, if it ever goes on
            return
        except OSError as caught:
            error = caught
        if error is None:
            self._backoff.reset()
            self._polls("")
        else:
            self._retry_at = time.monotonic() + self._backoff.delay()
            self._polls(explained(error))

    def _follow(self, inotify: asyncinotify.Inotify, watched: _Watched) -> OSError | None:
        """Watches what exists now, and returns an error of inotify. May block."""
        wanted = {path: (stat.st_dev, stat.st_ino) for path in self._paths() if (stat := _stat(path))}
        # A new directory may have the inode of the old one, but the kernel has removed the watch then.
        alive = inotify.watches
        for path, (watch, identity) in list(watched.items()):
            if wanted.get(path) != identity or watch not in alive:
                del watched[path]
                with suppress(OSError, KeyError, ValueError):  # the kernel has removed it with the directory
                    inotify.rm_watch(watch)
        try:
            for path, identity in wanted.items():
                if path not in watched:
                    watched[path] = (inotify.add_watch(path, _CHANGES), identity)
        except OSError as error:
            return error
        return None

    def _polls(self, reason: str) -> None:
        """Logs and reports that inotify does not work, or that it works again."""
        if reason and self._blind.news(reason):
            log.warning("no inotify, polling instead", reason=reason, seconds=self._poll)
        if not reason and self._blind.over():
            log.info("inotify works again")
        if reason != self._reason:
            self._reason = reason
            self._report_blind(reason)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
