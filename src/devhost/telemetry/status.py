"""Serves the status over HTTP on a local unix socket, for the user of the process and root.

``GET /status`` answers the document, ``GET /watch`` a line with the document now and after each change, at
most four per second, until the client leaves. ``POST /release?backend=gpu&seconds=600`` and
``POST /resume?backend=gpu`` answer when that is done, with ``{"until": "…"}`` and ``{"resumed": true}``; if
it fails, with ``{"error": "…", "hint": "…", "exitCode": 2}``. Other refusals are a line of text.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING, Generic, TypeVar

from devhost.backend.backoff import Backoff
from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError
from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere
from devhost.runtime import rundir
from devhost.runtime.http import Answer, HttpServer, Limits, Response, Route, Stream
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler

if TYPE_CHECKING:
    from .document import StatusDocument, StatusSource


D = TypeVar("D")
T = TypeVar("T")

INTERVAL = 0.25
"""The minimum time in seconds between two states for one watcher; longer if they take long to make."""
REST = 10
"""The minimum pause before the next state, as a multiple of the time to make one, so that a burst of changes
does not keep the event loop busy with reports."""


@frozen
class _Made(Generic[T]):
    """The form of a state, the number of changes before it, and its time."""

    changes: int
    began: float
    form: T


class Newest(Generic[D, T]):
    """A state in some form, rebuilt only after a change and only if a watcher wants it.

    Watchers skip intermediate states and get the newest; nothing is queued. Watchers that want it at the same
    time wait for the same one.

    Args:
        state: makes the current state, a value that never changes later; called in the event loop.
        form: makes what watchers get; called in a thread, because on a node with many devices it takes about
            a hundred milliseconds, which would delay a device list or an Allocate.
        interval: the minimum number of seconds between two states for one watcher.
        rest: the minimum pause between two states, as a multiple of the time to make one.
        stale: seconds after which a new watcher gets a new state even without a change.
        refresh: seconds after which existing watchers get a new state even without a change.
    """

    def __init__(
        self,
        state: Callable[[], D],
        form: Callable[[D], T],
        *,
        interval: float = INTERVAL,
        rest: float = REST,
        stale: float = 0.0,
        refresh: float | None = None,
    ) -> None:
        self._state = state
        self._form = form
        self._interval = interval
        self._rest = rest
        self._stale = stale
        self._refresh = refresh
        self._changes = 0
        self._changed = asyncio.Event()
        self._making: asyncio.Task[None] | None = None
        self._latest: _Made[T] | None = None
        self._took = 0.0

    def changed(self) -> None:
        """The state changed. This is inexpensive."""
        self._changes += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def now(self) -> T:
        """The current state. Without a change it is rebuilt only when it is stale."""
        return await self._since(_time() - self._stale)

    async def recent(self, age: float) -> T:
        """A state at most ``age`` seconds old, or ten times the time to make it. It may lack changes.

        For clients that poll: few states are made, regardless of the number of clients and changes.
        """
        latest = self._latest
        if latest is not None and _time() - latest.began <= max(age, self._rest * self._took):
            return latest.form
        return await self.now()

    async def follow(self) -> AsyncGenerator[T, None]:
        """Yields the current state, and again after changes."""
        state = await self.now()
        while True:
            seen = self._seen
            next_time = _time() + max(self._interval, self._rest * self._took)
            yield state
            await asyncio.sleep(next_time - _time())
            state = await self._after(seen)

    async def _after(self, seen: int) -> T:
        try:
            async with asyncio.timeout(self._refresh):
                while self._changes == seen:
                    await self._changed.wait()
        except TimeoutError:
            return await self.now()
        return await self._since(-math.inf)

    @property
    def _seen(self) -> int:
        return self._latest.changes if self._latest else 0

    async def _since(self, oldest: float) -> T:
        """A state without changes since, and not older than ``oldest``."""
        asked = self._changes
        while (latest := self._latest) is None or latest.changes < asked or latest.began < oldest:
            if self._making is None:
                self._making = asyncio.create_task(self._make())
                self._making.add_done_callback(self._made)
            # a watcher that is cancelled must not cancel it for the others
            await asyncio.shield(self._making)
        return latest.form

    async def _make(self) -> None:
        began, changes = _time(), self._changes
        form = await elsewhere(self._form, self._state())
        self._took = _time() - began
        self._latest = _Made(changes, began, form)

    def _made(self, _: object) -> None:
        self._making = None


def _time() -> float:
    return asyncio.get_running_loop().time()


LIMITS = Limits(connections=16, streams=8, head_deadline=5.0, body_deadline=5.0, stream_deadline=30.0)
"""Watchers leave connections to others. A user may stop the terminal of one for a moment."""

LINES = "application/x-ndjson"
"""A JSON document in each line."""


@frozen
class Checks:
    """How the socket's file is looked after, in seconds.

    ``check`` is between checks that it still exists: a job that clears runtime directories may remove it.
    ``retry`` is before the first retry to create it; the delay grows with each further one.
    """

    check: float = 10.0
    retry: float = 1.0


log = get(__name__)


Command = Callable[[Mapping[str, str]], Awaitable[Mapping[str, object]]]
"""Does what a request wants, and returns the answer. A ``DevhostError`` is answered with its text."""


class AlreadyServed(EnvironmentFailure):
    """Another devhost serves the same kubelet directory."""


class StatusServer:
    """The status socket of one host; its name is derived from ``kubelet_dir``, unless ``socket`` is its path.

    ``interval`` is the minimum number of seconds between two documents to one watching client. ``commands``
    are what clients may request beside documents, by the word in the path; ``probes`` what else is answered.
    """

    def __init__(
        self,
        document: StatusSource,
        *,
        kubelet_dir: Path,
        socket: Path | None = None,
        interval: float = INTERVAL,
        limits: Limits = LIMITS,
        checks: Checks | None = None,
        bind: Callable[[Path], Socket] = rundir.bind,
        commands: Mapping[str, Command] | None = None,
        probes: Mapping[str, Route] | None = None,
    ) -> None:
        self._document = document
        self._kubelet_dir = kubelet_dir
        self._socket_path = socket
        self._bind = bind
        self._path: Path | None = None
        self._lines = Newest(document, _line, interval=interval, stale=math.inf)
        self._file = (0, 0)
        self._checks = checks or Checks()
        self.failures = FailureLog(log, "status socket is not available", "status socket is open")
        self._http = HttpServer(
            {"/status": self._status, "/watch": self._watch, **(probes or {})},
            limits,
            actions={f"/{word}": partial(_done, command) for word, command in (commands or {}).items()},
        )

    async def run(self) -> None:
        """Serves the status until it is cancelled, also if the socket's file is removed.

        It waits while another devhost serves the same directory, as in a rolling update.
        """

        async def keep() -> float:
            if self._path is not None and not self._there():
                self.failures.failed(f"{self._path} was removed")
                self._path = None
            if self._path is None:
                await self.start()
            return self._checks.check

        retry = self._checks.retry
        await Reconciler(keep, backoff=Backoff(retry, 10 * retry), failures=self.failures).run()

    async def start(self) -> Path:
        """Creates the socket, replacing one of a dead process, and returns its path.

        Raises ``AlreadyServed`` if a live devhost has it, and ``EnvironmentFailure`` if the socket or its
        directory cannot be created or is not safe.
        """
        path = self._socket_path or rundir.make_runtime_dir() / rundir.socket_name(self._kubelet_dir)
        try:
            listener = self._bind(path)
        except FileExistsError as error:
            raise AlreadyServed(
                f"another devhost already serves {self._kubelet_dir}",
                f"`devhost status --status-socket {path}` shows it",
            ) from error
        try:
            made = path.lstat()
            await self._http.take(listener)
        except OSError as error:  # for example if another process clears the directory at this moment
            listener.close()
            raise EnvironmentFailure(f"cannot serve {path}: {error.strerror}") from error
        self._path, self._file = path, (made.st_dev, made.st_ino)
        return path

    async def stop(self) -> None:
        """Ends every connection and removes the socket, unless it now belongs to another process."""
        path, there = self._path, self._there()
        self._path = None
        if path is not None and there:  # while the listener is open, no other file can have its number
            with suppress(OSError):
                path.unlink()
        await self._http.stop()

    def _there(self) -> bool:
        """Whether the file of the socket exists, and is that of this process."""
        try:
            found = self._path.lstat() if self._path else None
        except OSError:
            return False
        return found is not None and (found.st_dev, found.st_ino) == self._file

    def changed(self) -> None:
        """The document changed: watching clients get the new one. This is inexpensive."""
        self._lines.changed()

    async def _status(self) -> Answer:
        return Response(await elsewhere(_line, self._document()), "application/json")

    async def _watch(self) -> Answer:
        return Stream(self._lines.follow, self._too_many, LINES)

    async def _too_many(self) -> Response:
        return Response(b"too many watchers; end one of them\n", status=HTTPStatus.SERVICE_UNAVAILABLE)


def _line(found: StatusDocument | Callable[[], StatusDocument]) -> bytes:
    from .document import complete, json_line  # 0.2 MB, only when the status is read

    return json_line(complete(found))


async def _done(command: Command, parameters: Mapping[str, str]) -> Response:
    from .document import json_line

    try:
        return Response(json_line(await command(parameters)), "application/json")
    except DevhostError as error:
        status = HTTPStatus.BAD_REQUEST if isinstance(error, UsageError) else HTTPStatus.CONFLICT
        answer = {"error": error.message, "hint": error.hint, "exitCode": error.exit_code}
        return Response(json_line(answer), "application/json", status)
