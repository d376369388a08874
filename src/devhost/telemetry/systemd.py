"""Tells systemd how ``devhost run`` stands: ready, reloading, stopping, alive, and in one line what is wrong.

Source: sd_notify(3), sd_watchdog_enabled(3). Where ``NOTIFY_SOCKET`` is not set nothing is ever sent.

Each message says the whole state, so one that gets lost is mended by the next. Nothing waits: what systemd
has no room for now is said again a second later.

*Ready* means that the first plan is made, so that resources are offered. Whether a kubelet is there plays no
part: the unit starts before the kubelet, and a boot must not wait in a circle.

``WATCHDOG=1`` is sent by the event loop, so only while it turns. :mod:`.watchdog` is quicker and says what
every thread was doing; systemd's notices what stops that thread too: a C library that keeps the
interpreter's lock.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress

from .log import get

log = get(__name__)

BEAT = 30.0
"""Seconds between two messages where nothing changes and systemd asks for no watchdog."""

PACE = 1.0
"""Seconds between two messages at least, once ready: each costs a look at every resource."""

SHORTEST = 0.05
"""Seconds between two messages where systemd asks for more than a process beside a kubelet should say."""

_DIGITS = 20
"""Of the largest number that systemd can name, 2^64."""

_LONGEST = 300
"""Characters of the status line, which ``systemctl status`` shows as one."""


class SystemdNotifier:
    """A line to systemd for as long as the process lives.

    Takes ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` out of the environment: no program that a
    backend starts may speak for devhost.
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop("NOTIFY_SOCKET", "")
        self.beat = _beat(environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", ""))
        if self._address and self._address[0] not in "/@":
            log.warning("systemd is told nothing: unknown kind of NOTIFY_SOCKET", address=self._address)
            self._address = ""
        self._socket: socket.socket | None = None
        self._changed = asyncio.Event()
        self._ready = self._reloading = self._stopping = False
        self._complained = ""

    def changed(self) -> None:
        """Something may be different now; :meth:`run` will look."""
        self._changed.set()

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Around reading the configuration again. Says nothing before the service is ready."""
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
        """Tells what there is to tell until cancelled; returns at once where nobody listens.

        Args:
            ready: whether the first plan is made; once true it stays so.
            line: how the service stands, in some words.
            stopped: waits until the service begins to leave.
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

    @property
    def _pace(self) -> float:
        return min(PACE, self.beat / 2)

    def _leave(self) -> None:
        self._stopping = True
        self._send([self._phase(), "STATUS=stopping"])

    def _words(self, line: Callable[[], str]) -> str:
        if self._stopping or not self._ready:
            return "stopping" if self._stopping else "looking for devices"
        try:
            return " ".join(line().split())[:_LONGEST]
        except Exception:
            log.exception("cannot say how the service stands")  # no reason to count as hung
            return ""

    def _phase(self) -> str:
        if self._stopping:
            return "STOPPING=1"
        return "READY=1" if self._ready and not self._reloading else ""

    def _send(self, assignments: list[str]) -> bool:
        """Whether systemd has it, or never will."""
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
                log.warning("cannot tell systemd", socket=self._address, reason=reason)
            return True
        self._complained = ""
        return True


def line(resources: int, problems: int, first: str, waiting: Sequence[str] = ()) -> str:
    """How a host stands, in some words: ``14 resources, 2 problems; first: …``.

    Args:
        first: the most important problem; empty where there is none.
        waiting: the backends that have not listed their devices yet, of entries that should have some.
    """
    if waiting and not problems:
        return f"{_count(resources, 'resource')}, waiting for {', '.join(waiting)}"
    told = f"{_count(resources, 'resource')}, {_count(problems, 'problem')}"
    return f"{told}; first: {first}" if first else told


def _count(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"


def _beat(usec: str, pid: str) -> float:
    """Seconds between two messages: half of what systemd waits, if the watchdog is meant for this process."""
    known = usec.isdecimal() and len(usec) <= _DIGITS
    if known and int(usec) and pid in ("", str(os.getpid())):
        return min(BEAT, max(SHORTEST, int(usec) / 2_000_000))
    return BEAT
