"""Uevents of the kernel, in the event loop.

There are no threads: the loop watches the descriptor of each source and reads it without blocking.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

from devhost.backend import Event
from devhost.backend.files import by_soname, missing_host_reason
from devhost.backend.incident import Incident
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog

with by_soname():
    import pyudev

log = get(__name__)

RECEIVE_BUFFER = 16 * 1024 * 1024
"""Bytes. Loading a module on a large machine causes thousands of uevents at once (udevd requests 128 MiB)."""

DRAIN_LIMIT = 256
"""Uevents read at once before the event loop continues."""

SETTLE = 1.0
"""Seconds from a kernel event to another scan: udevd has finished by then, with or without an event here."""

_UEVENTS = 15
"""NETLINK_KOBJECT_UEVENT."""

EventSink = Callable[[Event], None]


def udevd_runs(root: Path = Path("/")) -> bool:
    """Whether systemd-udevd serves the machine below ``root``: its control socket exists, as for libudev."""
    return (root / "run/udev/control").exists()


class UeventMonitor:
    """Calls ``sink`` for each uevent, and with an empty :class:`Event` when some were lost.

    If udevd runs, its events are used, because its rules have then set names and permissions. The kernel's
    own events cause a second scan ``settle`` seconds later: udevd's events stay in the host's network
    namespace, while the kernel's also reach a pod. Without udevd, the kernel's events are used at once. They
    are also used at once if udevd serves the node but its events do not arrive here; the second scan then
    sees what the rules have set. ``root`` is the ``/`` of the node, ``own_root`` that of the namespaces in
    which this process runs.

    Raises ``OSError`` without netlink sockets, so that changes are only found at the resync, and
    ``ImportError`` without libudev.
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
        self._failures = FailureLog(log, "reading uevents failed", "uevents can be read again")
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
                pending = _pending_error(monitor)
                reason = os.strerror(pending) if pending else error.strerror or str(error)
                if errno.ENOBUFS not in (pending, error.errno):
                    self._failures.failed(reason)
                act(Event())
                return
            self._failures.succeeded()
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


def _pending_error(monitor: pyudev.Monitor) -> int:
    """Reads and so ends the error of a monitor's socket: 0, or ENOBUFS after events were lost (netlink(7)).

    Until then the socket counts as readable, and pyudev refuses to read from it.
    """
    with socket.socket(fileno=os.dup(monitor.fileno())) as same:
        return same.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)


_HINT = "allow netlink sockets: RestrictAddressFamilies= of the systemd unit, or seccomp"


def _refusal() -> str:
    """Why netlink sockets cannot be used: libudev does not report it."""
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _UEVENTS).close()
    except OSError as error:
        return error.strerror or str(error.errno)
    return "libudev refuses"


class Monitors:
    """Receives uevents, and keeps why an event source does not work."""

    def __init__(self, dispatch: EventSink, root: Path, changed: Callable[[], None]) -> None:
        self.uevents_failure = ""
        """Why there are no uevents; empty if there are."""
        self.polled: dict[str, str] = {}
        """Why inotify does not watch a file or directory, by its path."""
        self.host_failures = FailureLog(
            log, "the host's directories are not below --root", "the host's directories are below --root"
        )
        """Why no device can be found."""
        self._dispatch = dispatch
        self._root = root
        self._changed = changed
        self._uevents: UeventMonitor | None = None
        self._can_receive = True
        self._refused = Incident()

    def open(self) -> None:
        """Starts to receive uevents, if that is possible."""
        self.look()

    def look(self) -> None:
        """Starts to receive uevents if there are none.

        Looks also whether there is a host below the root; in a pod, its directories must be mounted there.
        """
        if self._uevents is None and self._can_receive:
            self._receive()
        if reason := missing_host_reason(self._root):
            self.host_failures.failed(f"{reason} (mount the host's directories there)")
        else:
            self.host_failures.succeeded()

    def _receive(self) -> None:
        failure = ""
        try:
            self._uevents = UeventMonitor(self._dispatch, self._root)
        except OSError as error:
            failure = f"cannot receive uevents: {error.strerror or _refusal()} ({_HINT})"
        except ImportError:  # pyudev finds libudev only when it is first used, and runs programs for that
            self._can_receive = False
            failure = "cannot receive uevents: libudev is missing (install libudev, then restart devhost)"
        else:
            log.info("listening for uevents", source=self._uevents.source)
        if failure and self._refused.news(failure):
            log.warning("no uevents; devices are scanned once a minute", reason=failure)
        if failure != self.uevents_failure:
            self.uevents_failure = failure
            self._changed()

    def close(self) -> None:
        """Stops receiving uevents."""
        if self._uevents is not None:
            self._uevents.close()

    def reporter(self, path: Path) -> Callable[[str], None]:
        """A function to call when inotify stops working for a path, with the reason, or works again."""
        return partial(self._report, str(path))

    def _report(self, path: str, reason: str) -> None:
        self.polled[path] = reason
        self._changed()
