"""Uevents of the kernel and changes in directories, in the event loop.

There are no threads: the loop watches the descriptor of each source and reads it without blocking.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from devhost.backend import Event
from devhost.backend.backoff import Backoff
from devhost.backend.incident import Incident
from devhost.backend.inotify import by_soname, explained
from devhost.telemetry.log import get

with by_soname():
    import asyncinotify
    import pyudev

log = get(__name__)

RECEIVE_BUFFER = 16 * 1024 * 1024
"""Bytes. Loading a module on a large machine causes thousands of uevents at once (udevd requests 128 MiB)."""

DRAIN_LIMIT = 256
"""Uevents read at once before the event loop continues."""

SETTLE = 1.0
"""Seconds from a kernel event to another scan: udevd has finished by then, with or without an event here."""

RETRY = 12
"""The longest delay until inotify is retried, in polls."""

EventSink = Callable[[Event], None]


def udevd_runs(root: Path = Path("/")) -> bool:
    """Whether systemd-udevd serves this machine: its control socket exists (as libudev itself checks).

    Args:
        root: the directory used as ``/``.
    """
    return (root / "run/udev/control").exists()


class UeventMonitor:
    """Calls ``sink`` for each uevent, and with an empty :class:`Event` when some were lost.

    If udevd runs, its events are used, because its rules have then set names and permissions. The kernel's
    own events cause a second scan ``settle`` seconds later: udevd's events stay in the host's network
    namespace, while the kernel's also reach a pod. Without udevd, the kernel's events are used at once. They
    are also used at once if udevd serves the node but its events do not arrive here; the second scan then
    sees what the rules have set.

    Args:
        root: the directory used as the node's ``/``.
        own_root: the ``/`` of the namespaces that this process runs in.
        settle: see :data:`SETTLE`.
        buffer: see :data:`RECEIVE_BUFFER`.

    Raises:
        OSError: netlink sockets are not available, so that changes are only found at the resync.
        ImportError: there is no libudev.
    """

    def __init__(
        self,
        sink: EventSink,
        root: Path = Path("/"),
        *,
        own_root: Path = Path("/"),
        settle: float = SETTLE,
        buffer: int = RECEIVE_BUFFER,
    ) -> None:
        self._sink = sink
        self._settle = settle
        self._buffer = buffer
        self._late: asyncio.TimerHandle | None = None
        self._unreadable = Incident()
        self._loop = asyncio.get_running_loop()
        context = pyudev.Context()
        self.source = "udev" if udevd_runs(own_root) else "kernel"
        self._udev_unreachable = self.source == "kernel" and udevd_runs(root)
        self._monitors: list[pyudev.Monitor] = []
        try:
            for source in dict.fromkeys(("kernel", self.source)):
                self._monitors.append(self._open(context, source))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Stops listening."""
        for monitor in self._monitors:
            self._loop.remove_reader(monitor.fileno())
        self._monitors.clear()
        if self._late is not None:
            self._late.cancel()

    def _open(self, context: pyudev.Context, source: str) -> pyudev.Monitor:
        monitor = pyudev.Monitor.from_netlink(context, source)
        try:
            monitor.set_receive_buffer_size(self._buffer)
        except OSError:
            # Needs CAP_NET_ADMIN. Without it an overflow is more likely, but it is detected.
            log.debug("the uevent receive buffer keeps its default size")
        monitor.start()
        act: EventSink = self._scan_later
        if source == self.source:
            act = self._scan_now_and_later if self._udev_unreachable else self._sink
        self._loop.add_reader(monitor.fileno(), self._drain, monitor, act)
        return monitor

    def _drain(self, monitor: pyudev.Monitor, act: EventSink) -> None:
        for _ in range(DRAIN_LIMIT):
            try:
                device = monitor.poll(timeout=0)
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno != errno.ENOBUFS and self._unreadable.news(reason):
                    log.warning("reading uevents failed", reason=reason)
                act(Event())
                return
            if self._unreadable.over():
                log.info("uevents can be read again")
            if device is None:
                return
            act(
                Event(
                    device.subsystem or "",
                    device.action or "",
                    device.sys_path,
                    device.device_node or "",
                )
            )

    def _scan_now_and_later(self, event: Event) -> None:
        self._sink(event)
        self._scan_later(event)

    def _scan_later(self, _event: Event) -> None:
        if self._late is None:
            self._late = self._loop.call_later(self._settle, self._scan_now)

    def _scan_now(self) -> None:
        self._late = None
        self._sink(Event())


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


class DirectoryWatch:
    """Wakes its reader when anything in some directories changes, and at regular intervals.

    inotify is only an optimization: if a directory does not exist yet, or the inotify limit is exhausted
    (``fs.inotify.max_user_instances`` is 128 by default), it polls. inotify is retried with back-off.

    Args:
        paths: returns the directories to watch; called again after each change, so they may move.
        poll: seconds between two wakes without a change.
        blind: called with the reason when inotify stops working, and with an empty one when it works again.
    """

    def __init__(
        self, paths: Callable[[], list[Path]], poll: float, blind: Callable[[str], None] = lambda reason: None
    ) -> None:
        self._paths = paths
        self._poll = poll
        self._report_blind = blind
        self._reason = ""
        self._retry_at = 0.0
        self._backoff = Backoff(poll, RETRY * poll)
        self._inotify: asyncinotify.Inotify | None = None
        self._watched: dict[Path, tuple[asyncinotify.Watch, tuple[int, int]]] = {}
        self._blind = Incident()

    async def changes(self) -> AsyncIterator[None]:
        """Yields after each burst of changes, and at least every ``poll`` seconds."""
        try:
            while True:
                self._arm()
                yield
                await self._next()
        finally:
            if self._inotify is not None:
                self._inotify.close()
                self._inotify = None
                self._watched.clear()

    async def _next(self) -> None:
        if self._inotify is None or not self._watched:
            await asyncio.sleep(self._poll)
            return
        try:
            async with asyncio.timeout(self._poll):
                await self._inotify.get()
                while self._inotify.sync_get() is not None:
                    pass  # the rest of the burst
        except TimeoutError:
            return

    def _arm(self) -> None:
        """Watches the directories that exist now, also again if one was replaced (same path, new inode)."""
        if self._reason and time.monotonic() < self._retry_at:
            return
        try:
            if self._inotify is None:
                self._inotify = asyncinotify.Inotify(sync_timeout=0)
            wanted = {path: (stat.st_dev, stat.st_ino) for path in self._paths() if (stat := _stat(path))}
            # A new directory may have the inode of the old one, but the kernel has removed the watch then.
            alive = self._inotify.watches
            for path, (watch, identity) in list(self._watched.items()):
                if wanted.get(path) != identity or watch not in alive:
                    del self._watched[path]
                    self._drop(watch)
            for path, identity in wanted.items():
                if path not in self._watched:
                    self._watched[path] = (self._inotify.add_watch(path, _CHANGES), identity)
        except OSError as error:
            self._retry_at = time.monotonic() + self._backoff.delay()
            self._polls(explained(error))
        else:
            self._backoff.reset()
            self._polls("")

    def _polls(self, reason: str) -> None:
        """Logs and reports that inotify does not work, or that it works again."""
        if reason and self._blind.news(reason):
            log.warning("no inotify, polling instead", reason=reason, seconds=self._poll)
        if not reason and self._blind.over():
            log.info("inotify works again")
        if reason != self._reason:
            self._reason = reason
            self._report_blind(reason)

    def _drop(self, watch: asyncinotify.Watch) -> None:
        try:
            if self._inotify is not None:
                self._inotify.rm_watch(watch)
        except (OSError, KeyError, ValueError):
            return  # the kernel has removed it already, with the directory


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
