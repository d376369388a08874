"""Notifies systemd of the state of ``devhost run``: ready, reloading, stopping, alive, and a status line.

Source: sd_notify(3), sd_watchdog_enabled(3). Without ``NOTIFY_SOCKET`` nothing is ever sent.

Each message contains the whole state, so the next one replaces a lost one. Sending never blocks: if the
socket is full, the message is sent again a second later.

*Ready* means that the first plan is made, so that resources are offered. It does not depend on a kubelet: the
unit starts before the kubelet, and a circular dependency would block the boot.

``WATCHDOG=1`` is sent by the event loop, so only while that runs. :mod:`.watchdog` is faster and logs the
stack of every thread; the watchdog of systemd also notices what stops that thread: a C library that holds the
interpreter's lock.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress

from devhost.backend.errors import cut

from .log import get

log = get(__name__)

BEAT = 30.0
"""Seconds between two messages without changes and without a watchdog of systemd."""

PACE = 1.0
"""The minimum number of seconds between two messages after the start: each one checks every resource."""

SHORTEST = 0.05
"""The minimum number of seconds between two messages, even if systemd requests more of them."""

_DIGITS = 20
"""Digits of the largest number of systemd, 2^64."""

_LONGEST = 300
"""The maximum length of the status line, which ``systemctl status`` shows on one line."""


class SystemdNotifier:
    """The connection to systemd for the lifetime of the process.

    It removes ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` from the environment, so that no
    program that a backend starts can send notifications for devhost. ``pace`` is the minimum number of
    seconds between two messages after the start, and before a retry.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ, pace: float = PACE) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self.beat = _beat(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        if self._address and self._address[0] not in "/@":
            log.warning("unsupported address in NOTIFY_SOCKET", address=self._address)
            self._address = ""
        self._socket: socket.socket | None = None
        self._changed = asyncio.Event()
        self._ready = self._reloading = self._stopping = False
        self._complained = ""
        self._pace = min(pace, self.beat / 2)

    def changed(self) -> None:
        """The state may have changed; :meth:`run` sends it."""
        self._changed.set()

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Surrounds a reload of the configuration. Sends nothing before the service is ready."""
        if not self._ready or self._stopping:
            yield
            return
        self._reloading = True
        self._send(["RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}"])
        try:
            yield
        finally:
            self._reloading = False
            self._send([self._phase()])
            self.changed()

    async def run(
        self,
        ready: Callable[[], bool],
        line: Callable[[], str],
        stopped: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        """Sends notifications until cancelled; returns at once without ``NOTIFY_SOCKET``.

        ``ready`` is whether the first plan is made; once true it stays true. ``line`` returns the status line
        of the service. ``stopped`` waits until the service begins to stop.
        """
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as self._socket:
            leaving = asyncio.create_task(stopped())
            leaving.add_done_callback(lambda _: self._leave())
            try:
                while True:
                    self._changed.clear()
                    self._ready = self._ready or ready()
                    sent = self._send([self._phase(), f"STATUS={self._words(line)}", "WATCHDOG=1"])
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self.beat if sent else self._pace):
                            await self._changed.wait()
                    if self._ready:
                        await asyncio.sleep(self._pace)
            finally:
                leaving.cancel()
                self._socket = None

    def _leave(self) -> None:
        self._stopping = True
        self._send([self._phase(), "STATUS=stopping"])

    def _words(self, line: Callable[[], str]) -> str:
        if self._stopping or not self._ready:
            return "stopping" if self._stopping else "looking for devices"
        try:
            return cut(" ".join(line().split()), _LONGEST)
        except Exception:
            log.exception("cannot build the status line for systemd")  # this must not stop the heartbeat
            return ""

    def _phase(self) -> str:
        if self._stopping:
            return "STOPPING=1"
        return "READY=1" if self._ready and not self._reloading else ""

    def _send(self, assignments: list[str]) -> bool:
        """Whether the message was sent, or never can be."""
        if self._socket is None:
            return True
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        try:
            self._socket.sendto("\n".join(filter(None, assignments)).encode(errors="replace"), address)
        except BlockingIOError:
            return False
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._complained:
                self._complained = reason
                log.warning("cannot notify systemd", socket=self._address, reason=reason)
            return True
        self._complained = ""
        return True


def line(resources: int, problems: int, first: str, waiting: Sequence[str] = ()) -> str:
    """The status line of a host: ``14 resources, 2 problems; first: …``.

    ``first`` is the most important problem; empty if there is none. ``waiting`` are the backends of required
    entries that have not listed their devices yet.
    """
    if waiting and not problems:
        return f"{_count(resources, 'resource')}, waiting for {', '.join(waiting)}"
    text = f"{_count(resources, 'resource')}, {_count(problems, 'problem')}"
    return f"{text}; first: {first}" if first else text


def _count(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _beat(usec: str, pid: str) -> float:
    """Seconds between two messages: half of the timeout of systemd, if its watchdog is for this process."""
    known = usec.isdecimal() and len(usec) <= _DIGITS
    if known and int(usec) and pid in ("", str(os.getpid())):
        return min(BEAT, max(SHORTEST, int(usec) / 2_000_000))
    return BEAT
