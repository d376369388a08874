"""Notices that the configuration file changed, by its content instead of by the names of events.

That covers an editor's rename, a plain overwrite, a changed symlink, and the swap of ``..data`` with
which the kubelet updates a ConfigMap. (A ``subPath`` mount never changes: no program can see an edit.)

If the path is not a regular file, or cannot be opened, the kind of file or the error is compared instead, so
that the reported error describes the present state. This never blocks on a named pipe or a device.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.files import Fingerprint, fingerprint
from devhost.backend.frozen import frozen
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker

log = get(__name__)

MAX_CHECKS = 8
"""Checks of a file that keeps changing, before it is read as it is."""


@frozen
class ConfigTiming:
    """Durations in seconds. The defaults are those of a node; tests pass shorter ones."""

    poll: float = 5.0
    """Between two checks if inotify reports no event."""

    settle: float = 0.1
    """The content must stay the same for so long before it is read: editors write in several steps."""

    retry: float = 15.0
    """After which a refused file is read again even if it is the same.

    The error may have been in a drop-in or in a directory of ``backendPaths``, and fixed there."""


NODE = ConfigTiming()


class ConfigWatch:
    """Reads the configuration file after each change of its content, and when it disappears.

    ``read`` reads it; its argument is whether the content changed since the last time. ``refused`` is whether
    the file was refused when it was last read, ``seen`` the fingerprint of what was read first. ``worker``
    looks at the file, which may be on a file system that hangs. ``blind`` is called with the reason why edits
    are not seen, or only by polling, and with an empty one when they are.
    """

    def __init__(
        self,
        path: Path,
        read: Callable[[bool], Awaitable[None]],
        refused: Callable[[], object],
        seen: Fingerprint,
        worker: FileWorker,
        blind: Callable[[str], None] = lambda reason: None,
        *,
        timing: ConfigTiming = NODE,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self._path = path
        self._read = read
        self._refused = refused
        self._seen = seen
        self._timing = timing
        self._clock = clock
        self._changed_checks = 0
        """Checks since the last reading that found other content than the check before."""
        self._settled_at = 0.0
        self._read_at = clock.time()
        self._worker = worker
        self._report_blind = blind
        self._reasons: dict[str, str] = {}
        self._failures = FailureLog(
            log, "edits of the configuration are not seen", "edits of the configuration are seen", file=path
        )
        self._watch = DirectoryWatch(self._directories, timing.poll, partial(self._blind, "inotify"), worker)
        self._reconciler = Reconciler(self._check, clock=clock)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reconciler.run())
            async for _ in self._watch.changes():
                self._reconciler.wake()

    async def _check(self) -> float:
        """Compares the content with what was seen last; gives the seconds to the next check."""
        now = self._clock.time()
        if now < self._settled_at:
            return self._settled_at - now
        try:
            seen = await self._worker.file(f"read {self._path}", fingerprint, self._path)
        except EnvironmentFailure as error:
            if self._failures.failed(str(error)):
                self._blind("file", str(error))
            return self._timing.poll
        self._failures.succeeded()
        self._blind("file", "")
        before, self._seen = self._seen, seen
        if self._seen != before and self._changed_checks < MAX_CHECKS:
            self._changed_checks += 1
            self._settled_at = now + self._timing.settle
            return self._timing.settle
        changed = self._changed_checks > 0
        if changed or (self._refused() and now >= self._read_at + self._timing.retry):
            await self._read(changed)
            self._changed_checks = 0
            self._read_at = self._clock.time()
        return self._timing.poll

    def _blind(self, source: str, reason: str) -> None:
        if reason != self._reasons.get(source, ""):
            self._reasons[source] = reason
            self._report_blind("; ".join(filter(None, self._reasons.values())))

    def _directories(self) -> list[Path]:
        """The directories in which a change would show: that of the path, and that of its target."""
        target = Path(os.path.realpath(self._path))  # Path.resolve raises for links that lead to each other
        return list(dict.fromkeys((self._path.absolute().parent, target.parent)))
