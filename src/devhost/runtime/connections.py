"""The open connections of a stream server: limited in number, and closed with the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from .log import Log

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_SEND_BUFFER = 65536
"""The kernel's send buffer for a peer in bytes (it uses twice as many, socket(7)). By default it buffers
megabytes for each peer that reads nothing; for a watcher these would be outdated states."""
PIECE = 65536
"""Bytes written at one time, so that data for a slow peer is not copied."""


class Connections:
    """The callback of ``asyncio.start_server`` for connections.

    ``serve`` answers one connection, within deadlines. A peer that leaves (ConnectionError) or stalls
    (TimeoutError) ends it normally; any other exception is logged as a bug and ends only that connection.
    At most ``limit`` are served at a time. Further ones get what ``busy`` returns and are closed; beyond
    twice the limit, nothing is sent.
    """

    def __init__(self, serve: Serve, *, limit: int, busy: Callable[[], bytes], log: Log) -> None:
        self._serve = serve
        self._limit = limit
        self._busy = busy
        self._log = log
        self._served: set[asyncio.Task[None]] = set()
        self._refused: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begins to serve one connection, which :meth:`end` ends from now on."""
        # drain() then returns when the kernel has everything, so closing does not wait for a slow reader
        writer.transport.set_write_buffer_limits(high=0)
        with suppress(OSError):  # the peer has left already
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        full = len(self._served) >= self._limit
        serve, tasks = (self._refuse, self._refused) if full else (self._serve, self._served)
        if len(tasks) >= self._limit:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._to_its_end(serve, reader, writer))
        tasks.add(task)

        def ended(_: object) -> None:
            tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                writer.transport.abort()

        task.add_done_callback(ended)

    async def _to_its_end(
        self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serves one connection; raises nothing."""
        try:
            await serve(reader, writer)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        except Exception:  # noqa: BLE001 - one connection's bug must not end the server
            self._log.exception("connection failed")
        finally:
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._busy())
        await drain_refused(reader, writer)

    async def end(self) -> None:
        tasks = (*self._served, *self._refused)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # closed transports release their descriptors in the next iteration of the loop
        await asyncio.sleep(0)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Passes ``data`` to the kernel, as fast as the peer reads it. The caller limits the time.

    Raises ``ConnectionError`` if the peer has left.
    """
    rest = memoryview(data)
    while rest:
        writer.write(rest[:PIECE])
        await writer.drain()
        rest = rest[PIECE:]


async def while_present(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pushing: Coroutine[None, None, None]
) -> None:
    """Runs ``pushing``, which writes to a watcher, until it ends or the watcher has left.

    It notices at once that a watcher leaves, not at the next change. What the watcher sends is discarded.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(_left(reader))
            task = tasks.create_task(pushing)
            leaving.add_done_callback(lambda _: task.cancel())
            task.add_done_callback(lambda _: leaving.cancel())
    except* (ConnectionError, TimeoutError):
        writer.transport.abort()  # it left, or stopped reading, while a state was sent


async def _left(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


async def drain_refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what the peer still sends after a refusal: at most 1 MiB, at most one second.

    If a connection is closed with unread input, the kernel resets it, and the peer loses the answer that
    explains the error.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await writer.drain()
            with suppress(OSError):  # the peer has left already
                writer.write_eof()
            for _ in range(16):
                if not await reader.read(65536):
                    return
