"""Serves the status document on a local unix socket.

A client sends one JSON line. ``{"want": "status"}`` is answered with one line, the document.
``{"want": "watch"}`` is answered with the document now and again after each change, at most four a
second, until the client closes its side. A request that is not understood is answered with
``{"error": "..."}``.
"""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import aclosing
from pathlib import Path

from devhost.errors import EnvironmentFailure

from . import log, rundir
from .connections import Connections, while_present
from .document import Source
from .newest import INTERVAL, Newest
from .oneline import line

MAX_CLIENTS = 16
MAX_REQUEST = 4096
"""Bytes of a request line."""
DEADLINE = 5.0
"""Seconds a client has to send its request."""

_log = log.get(__name__)


class AlreadyServed(EnvironmentFailure):
    """Another devhost serves the same kubelet directory."""


class StatusServer:
    """The status socket of one host.

    Args:
        document: describes the host now.
        kubelet_dir: the directory this host serves; the socket's name is made from it.
        socket: where to put the socket instead of the runtime directory.
        interval: seconds between two documents to one watching client.
    """

    def __init__(
        self, document: Source, *, kubelet_dir: Path, socket: Path | None = None, interval: float = INTERVAL
    ) -> None:
        self._document = document
        self._kubelet_dir = kubelet_dir
        self._path = socket
        self._lines = Newest(document, line, interval=interval, stale=math.inf)
        self._server: asyncio.Server | None = None
        self._file = (0, 0)
        busy = line({"error": f"more than {MAX_CLIENTS} clients at a time"})
        self._connections = Connections(self._serve, limit=MAX_CLIENTS, busy=busy, log=_log)

    async def start(self) -> Path:
        """Makes the socket, replacing one left by a dead process, and returns its path.

        Raises:
            AlreadyServed: a live devhost has it.
            EnvironmentFailure: the socket or its directory cannot be made or is not safe.
        """
        path = self._path or rundir.make_runtime_dir() / rundir.socket_name(self._kubelet_dir)
        try:
            listener = rundir.bind(path)
        except FileExistsError as error:
            raise AlreadyServed(
                f"another devhost already serves {self._kubelet_dir}",
                f"`devhost status --socket {path}` shows it",
            ) from error
        self._path = path
        made = path.lstat()
        self._file = (made.st_dev, made.st_ino)
        self._server = await asyncio.start_unix_server(
            self._connections.accept, sock=listener, limit=MAX_REQUEST
        )
        return path

    async def stop(self) -> None:
        """Ends every connection and removes the socket, unless it is somebody else's by now."""
        if self._server is None or self._path is None:
            return
        self._server.close()
        self._server = None
        await self._connections.end()
        try:
            found = self._path.lstat()
            if (found.st_dev, found.st_ino) == self._file:
                self._path.unlink()
        except OSError:
            pass  # the runtime directory has gone before us

    def changed(self) -> None:
        """The document would now read otherwise: watching clients get the new one. Costs next to nothing."""
        self._lines.changed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(DEADLINE):
                request = await reader.readline()
        except ValueError:  # how StreamReader reports a line over its limit
            request = b"too long"
        if not request:
            return  # somebody looked whether we are alive
        want = _want(request)
        if want == "watch":
            await while_present(reader, writer, self._push(writer))
        elif want == "status":
            await _send(writer, await asyncio.to_thread(line, self._document()))
        else:
            await _send(writer, line({"error": 'expected {"want": "status"} or {"want": "watch"}'}))

    async def _push(self, writer: asyncio.StreamWriter) -> None:
        async with aclosing(self._lines.follow()) as lines:
            async for line in lines:
                await _send(writer, line)


async def _send(writer: asyncio.StreamWriter, line: bytes) -> None:
    writer.write(line)
    await writer.drain()


def _want(request: bytes) -> object:
    try:
        message = json.loads(request)
    except (ValueError, RecursionError):
        return None
    return message.get("want") if isinstance(message, dict) else None
