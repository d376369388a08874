"""The configuration in force, and reading it again after an edit or on request."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVarTuple

from devhost.backend.errors import BackendTimeout, ConfigError, EnvironmentFailure
from devhost.backend.files import Fingerprint, fingerprint
from devhost.backend.frozen import frozen
from devhost.config.last_good import LastGood
from devhost.config.loader import Loaded
from devhost.discovery.catalog import Catalog
from devhost.discovery.manager import BackendManager
from devhost.discovery.uevents import Monitors
from devhost.planning.settings import Settings
from devhost.planning.timing import NODE, ConfigTiming, Timing
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.tasks import Tasks
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker, WorkerThread

log = get(__name__)

RELOAD = "reload"
"""The name of the task that reads the file on request."""

MAX_CHECKS = 8
"""Checks of a file that keeps changing, before it is read as it is."""

InForce = tuple[Settings, Catalog]
Follower = Callable[[InForce | None, InForce], None]
"""A part of the host: takes the configuration before, ``None`` to follow in any case, and that in force."""

Ts = TypeVarTuple("Ts")


def follower(of: Callable[[Settings, Catalog], tuple[*Ts]], follow: Callable[[*Ts], object]) -> Follower:
    """A part that follows what ``of`` gives of a configuration, only when that differs."""

    def adopted(before: InForce | None, now: InForce) -> None:
        wanted = of(*now)
        if before is None or of(*before) != wanted:
            follow(*wanted)

    return adopted


@frozen
class LastReload:
    """The result of the last reading of the configuration; ``at`` is wall-clock seconds."""

    at: float
    complaints: tuple[str, ...] = ()


class Configuration:
    """What :class:`Reloader` keeps up to date and everything else reads."""

    def __init__(self, file: Path, loaded: Loaded) -> None:
        self.file = file
        self.settings = loaded.settings
        self.catalog = loaded.catalog
        self.generation = 1
        """The number of configurations that have taken effect."""
        self.copied = loaded.copied
        """The copy in use, if the file was refused at the start; ``None`` once the file is accepted."""
        self.sha256 = "" if loaded.copied else loaded.digest
        """The SHA-256 of the file in force; empty if it is not a regular file, or if the copy is in use."""
        self.last_reload = LastReload(time.time(), loaded.copied.complaints if loaded.copied else ())
        self.seen = loaded.seen or fingerprint(file)
        """The fingerprint of the file when it was first read."""
        self.read_from = None if loaded.copied else self.seen
        """The fingerprint of the file when it was last accepted."""

    def adopt(self, loaded: Loaded) -> None:
        self.settings, self.catalog, self.copied = loaded.settings, loaded.catalog, loaded.copied
        self.sha256 = loaded.digest
        self.generation += 1
        self.last_reload = LastReload(time.time())

    def rejected(self, complaints: tuple[str, ...]) -> None:
        """The file was refused; the configuration in force stays."""
        self.last_reload = LastReload(time.time(), complaints)


class ConfigWatch:
    """Reads the configuration file after each change of its content, and when it disappears.

    The names of events do not matter. That covers an editor's rename, a plain overwrite, a changed symlink,
    and the swap of ``..data`` with which the kubelet updates a ConfigMap. (A ``subPath`` mount never changes:
    no program can see an edit.) If the path is not a regular file, or cannot be opened, the kind of file or
    the error is compared instead, so that the reported error describes the present state. This never blocks
    on a named pipe or a device.

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
        timing: ConfigTiming = NODE.config,
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
        self._watch = DirectoryWatch(self._directories, timing.poll, worker, partial(self._blind, "inotify"))
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

    def _directories(self) -> list[Path]:
        """The directories in which a change would show: that of the path, and that of its target."""
        target = Path(os.path.realpath(self._path))  # Path.resolve raises for links that lead to each other
        return list(dict.fromkeys((self._path.absolute().parent, target.parent)))

    def _blind(self, source: str, reason: str) -> None:
        if reason != self._reasons.get(source, ""):
            self._reasons[source] = reason
            self._report_blind("; ".join(filter(None, self._reasons.values())))


class Reloader:
    """Reads the configuration for as long as the host runs.

    ``load`` reads the file, or raises ``ConfigError``. ``prepare`` does what takes long before settings are
    adopted. Then each of the ``followers`` follows, in their order, and ``replan`` is called. ``publish`` is
    called after each reading that had a result.
    """

    def __init__(
        self,
        configuration: Configuration,
        load: Callable[[], Loaded],
        prepare: Callable[[Settings], Awaitable[None]],
        followers: Iterable[Follower],
        replan: Callable[[], None],
        *,
        last_good: LastGood,
        backends: BackendManager,
        tasks: Tasks,
        monitors: Monitors,
        publish: Callable[[], None],
        changed: Callable[[], None],
        reloading: Callable[[], AbstractContextManager[None]],
        timing: Timing,
    ) -> None:
        self._configuration = configuration
        self._load = load
        self._prepare = prepare
        self._followers = followers
        self._followed: InForce | None = (configuration.settings, configuration.catalog)
        """What every part follows; ``None`` if one of them has failed to."""
        self._replan = replan
        self._last_good = last_good
        self._backends = backends
        self._tasks = tasks
        self._monitors = monitors
        self._publish = publish
        self._changed = changed
        self._reloading = reloading
        self._timing = timing
        self._worker = WorkerThread("reload")
        self._looks = FileWorker("config", "")
        self._reading = asyncio.Lock()
        self._running = False
        self._requested = False

    def report_start(self) -> None:
        if (copied := self._configuration.copied) is None:
            return
        for complaint in copied.complaints:
            log.error(
                "configuration refused, started from the copy of the last accepted one",
                file=str(self._configuration.file),
                reason=complaint,
                copy=str(copied.file),
                accepted=copied.at,
            )
        self._configuration.rejected(copied.complaints)
        self._publish()

    def watch(self) -> None:
        """Follows edits of the file from now on."""
        file = self._configuration.file
        watch = ConfigWatch(
            file,
            self.read,
            self._refused,
            self._configuration.seen,
            self._looks,
            self._monitors.reporter(file),
            timing=self._timing.config,
        )
        self._tasks.spawn("config", watch.run)

    async def start(self, within: float) -> None:
        """Starts to handle requests. Waits for the reading that earlier ones lead to, ``within`` seconds."""
        self._running = True
        if self._requested:
            self._spawn()
            await asyncio.wait([self._tasks.named()[RELOAD]], timeout=within)

    def request(self) -> None:
        """Reads the file and scans again; requests that wait become one."""
        waiting, self._requested = self._requested, True
        if self._running and not waiting:
            self._spawn()

    async def read(self, edited: bool = True, *, requested: bool = False) -> None:
        """Reads the file; an invalid one changes nothing, and is reported once until it is ``edited``."""
        async with self._reading:
            if requested:
                self._requested = False  # a later request needs another reading
            with self._reloading() if edited else nullcontext():
                await self._follow_file(edited, requested)

    def close(self) -> None:
        """Lets the reading threads end."""
        self._worker.close()
        self._looks.close()

    def _spawn(self) -> None:
        self._tasks.spawn(RELOAD, partial(self.read, requested=True))

    def _refused(self) -> bool:
        return bool(self._configuration.last_reload.complaints)

    async def _follow_file(self, edited: bool, requested: bool) -> None:
        configuration = self._configuration
        known = configuration.last_reload.complaints
        try:
            loaded = await self._worker.call(self._timing.reload, self._load)
        except ConfigError as error:
            complaints = tuple(map(str, error.diagnostics))
            if edited or complaints != known:
                self._rejected(complaints)
            return
        except BackendTimeout as error:
            if edited:
                reason = f"reading it, or the import of a drop-in of backendPaths, does not finish: {error}"
                self._rejected((f"{configuration.file}: {reason}",))
            return
        await self._last_good.keep(loaded.accepted)  # before devices are offered by it
        configuration.read_from = loaded.seen
        from devhost.config.difference import difference  # 0.2 MB, which no start needs

        change = difference(configuration.settings, loaded.settings)
        if change or requested or configuration.last_reload.complaints or self._followed is None:
            await self._prepare(loaded.settings)
            configuration.adopt(loaded)
            log.info(
                "configuration loaded",
                generation=configuration.generation,
                change=change or "nothing changed",
            )
            self._publish()
            before, self._followed = self._followed, None
            for follow in self._followers:
                follow(None if requested else before, (loaded.settings, loaded.catalog))
            self._followed = loaded.settings, loaded.catalog
            self._replan()
        elif configuration.sha256 != loaded.digest:
            configuration.sha256 = loaded.digest  # only comments are different
            self._changed()
        if requested:
            self._backends.recheck()

    def _rejected(self, complaints: tuple[str, ...]) -> None:
        file = str(self._configuration.file)
        self._configuration.rejected(complaints)
        for complaint in complaints:
            log.error("configuration refused, the old one stays", file=file, reason=complaint)
        self._publish()
        self._changed()
