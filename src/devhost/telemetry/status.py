"""Serves the status document on a local unix socket.

A client sends one JSON line. ``{"want": "status"}`` is answered with one line, the document.
``{"want": "watch"}`` is answered with the document now and after each change, at most four per
second, until the client closes its side. ``{"want": "release", "backend": "gpu", "seconds": 600}`` and
``{"want": "resume", "backend": "gpu"}`` are answered when that is done, with ``{"until": "…"}`` and
``{"resumed": true}``. A request that is unknown or fails is answered with ``{"error": "..."}``. A client
that sends nothing, or does not read its answer, is disconnected.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from socket import socket as Socket

from devhost.backend.backoff import Backoff
from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.threads import elsewhere
from devhost.runtime import log, rundir
from devhost.runtime.connections import Connections, send, while_present
from devhost.runtime.newest import INTERVAL, Newest

from .document import StatusDocument, StatusSource, complete, json_line


@frozen
class Limits:
    """Limits for clients, and how often the socket's file is checked.

    Attributes:
        clients: connections served at a time.
        watchers: how many of them may watch, so that open terminals do not block other requests.
        request: the maximum length of a request in bytes.
        deadline: seconds a client has to send its request, and to read the answer.
        watch_deadline: seconds a watching client has to read each document: a user may stop its terminal
            for a moment.
        check: seconds between checks that the socket's file still exists: a job that clears runtime
            directories may remove it.
        retry: seconds before the first retry to create the socket; the delay grows with each further one.
    """

    clients: int = 16
    watchers: int = 8
    request: int = 4096
    deadline: float = 5.0
    watch_deadline: float = 30.0
    check: float = 10.0
    retry: float = 1.0


_log = log.get(__name__)


Request = Mapping[str, object]
Command = Callable[[Request], Awaitable[Mapping[str, object]]]
"""Does what a request wants, and returns the answer. A ``DevhostError`` is answered with its text."""


class AlreadyServed(EnvironmentFailure):
    """Another devhost serves the same kubelet directory."""


class StatusServer:
    """The status socket of one host.

    Args:
        document: describes the host now.
        kubelet_dir: the directory that this host serves; the socket's name is derived from it.
        socket: the path of the socket, if not in the runtime directory.
        interval: the minimum number of seconds between two documents to one watching client.
        limits: limits for clients.
        bind: creates the listening socket at a path, like :func:`~devhost.runtime.rundir.bind`.
        commands: what clients may request beside documents, by the word in ``want``.
    """

    def __init__(
        self,
        document: StatusSource,
        *,
        kubelet_dir: Path,
        socket: Path | None = None,
        interval: float = INTERVAL,
        limits: Limits | None = None,
        bind: Callable[[Path], Socket] = rundir.bind,
        commands: Mapping[str, Command] | None = None,
    ) -> None:
        self._document = document
        self._kubelet_dir = kubelet_dir
        self._socket_path = socket
        self._bind = bind
        self._commands = commands or {}
        self._path: Path | None = None
        self._lines = Newest(document, _line, interval=interval, stale=math.inf)
        self._server: asyncio.Server | None = None
        self._file = (0, 0)
        self._watchers = 0
        self._limits = limits or Limits()
        most, soon = self._limits.clients, self._limits.deadline
        busy = json_line({"error": f"more than {most} clients at a time; try again in {soon:.0f} s"})
        self._connections = Connections(self._serve, limit=most, busy=busy, log=_log)

    async def run(self) -> None:
        """Serves the status until it is cancelled, also if the socket's file is removed.

        It waits while another devhost serves the same directory, as in a rolling update.
        """
        backoff = Backoff(self._limits.retry, 10 * self._limits.retry)
        reason = ""
        while True:
            if self._server is not None and not self._there():
                reason = f"{self._path} was removed"
                _log.warning("status socket is not available", reason=reason)
            try:
                if not self._there():
                    await self.start()
            except EnvironmentFailure as error:
                if str(error) != reason:
                    reason = str(error)
                    _log.warning("status socket is not available", reason=reason)
                await asyncio.sleep(backoff.delay())
            else:
                if reason:
                    _log.info("status socket is open")
                reason = ""
                backoff.reset()
                await asyncio.sleep(self._limits.check)

    async def start(self) -> Path:
        """Creates the socket, replacing one of a dead process, and returns its path.

        Raises:
            AlreadyServed: a live devhost has it.
            EnvironmentFailure: the socket or its directory cannot be created or is not safe.
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
            server = await asyncio.start_unix_server(
                self._connections.accept, sock=listener, limit=self._limits.request
            )
        except OSError as error:  # for example if another process clears the directory at this moment
            listener.close()
            raise EnvironmentFailure(f"cannot serve {path}: {error.strerror}") from error
        if self._server is not None:
            self._server.close()  # new clients cannot find it; existing ones stay connected
        self._path, self._file, self._server = path, (made.st_dev, made.st_ino), server
        return path

    async def stop(self) -> None:
        """Ends every connection and removes the socket, unless it now belongs to another process."""
        if self._server is None or self._path is None:
            return
        self._server.close()
        self._server = None
        await self._connections.end()
        if self._there():
            with suppress(OSError):
                self._path.unlink()

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

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._limits.deadline):
                request = await reader.readline()
        except ValueError:  # StreamReader reports a line over its limit in this way
            request = b"too long"
        if not request:
            return  # the client only checked that the socket is served
        message = _parsed(request)
        want = message.get("want")
        if want == "watch" and self._watchers < self._limits.watchers:
            await self._watch(reader, writer)
            return
        if want == "status":
            answer = await elsewhere(_line, self._document())
        elif want == "watch":
            answer = json_line(
                {"error": f"more than {self._limits.watchers} watchers at a time; end one of them"}
            )
        elif isinstance(want, str) and want in self._commands:
            answer = json_line(await self._done(self._commands[want], message))
        else:
            words = " or ".join(f'{{"want": "{word}"}}' for word in ("status", "watch", *self._commands))
            answer = json_line({"error": f"expected {words}"})
        async with asyncio.timeout(self._limits.deadline):
            await send(writer, answer)

    async def _done(self, command: Command, message: Request) -> Mapping[str, object]:
        try:
            return await command(message)
        except DevhostError as error:
            return {"error": error.message, "hint": error.hint, "exitCode": error.exit_code}

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._watchers += 1
        try:
            await while_present(reader, writer, self._push(writer))
        finally:
            self._watchers -= 1

    async def _push(self, writer: asyncio.StreamWriter) -> None:
        async with aclosing(self._lines.follow()) as lines:
            async for line in lines:
                async with asyncio.timeout(self._limits.watch_deadline):
                    await send(writer, line)


def _line(found: StatusDocument | Callable[[], StatusDocument]) -> bytes:
    return json_line(complete(found))


def _parsed(request: bytes) -> Request:
    try:
        message = json.loads(request)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}
