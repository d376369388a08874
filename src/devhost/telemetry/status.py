"""Serves the status over HTTP on a local unix socket, for the user of the process and root.

``GET /status`` answers the document, ``GET /watch`` a line with the document now and after each change, at
most four per second, until the client leaves. ``POST /release?backend=gpu&seconds=600`` and
``POST /resume?backend=gpu`` answer when that is done, with ``{"until": "…"}`` and ``{"resumed": true}``; if
it fails, with ``{"error": "…", "hint": "…", "exitCode": 2}``. Other refusals are a line of text.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from socket import socket as Socket
from typing import TYPE_CHECKING

from devhost.backend.backoff import Backoff
from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError
from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere
from devhost.runtime import rundir
from devhost.runtime.http import Answer, HttpServer, Limits, Response, Route, Stream
from devhost.runtime.log import get
from devhost.runtime.newest import INTERVAL, Newest
from devhost.runtime.reconciler import FailureLog, Reconciler

if TYPE_CHECKING:
    from .document import StatusDocument, StatusSource

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
        self._http = HttpServer(
            {"/status": self._status, "/watch": self._watch, **(probes or {})},
            limits,
            actions={f"/{word}": partial(_done, command) for word, command in (commands or {}).items()},
        )

    async def run(self) -> None:
        """Serves the status until it is cancelled, also if the socket's file is removed.

        It waits while another devhost serves the same directory, as in a rolling update.
        """
        failures = FailureLog(log, "status socket is not available", "status socket is open")

        async def keep() -> float:
            if self._path is not None and not self._there():
                failures.failed(f"{self._path} was removed")
                self._path = None
            if self._path is None:
                await self.start()
            return self._checks.check

        retry = self._checks.retry
        await Reconciler(keep, backoff=Backoff(retry, 10 * retry), failures=failures).run()

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
