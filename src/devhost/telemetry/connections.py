"""The open connections of one stream server: bounded in number, and ended with the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress

from .log import Log

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_SEND_BUFFER = 65536
"""Bytes the kernel may hold for a peer (it takes twice as many, socket(7)): left to itself it takes megabytes
for each that reads nothing, and for a watcher they would be states that are out of date."""
PIECE = 65536
"""Bytes handed over at one time: what a slow peer has yet to take is not copied for it."""


class Connections:
    """What ``asyncio.start_server`` calls for each connection.

    Args:
        serve: answers one connection, within deadlines; a peer that leaves (ConnectionError) or stalls
            (TimeoutError) is its ordinary end, anything else it raises is logged as a bug and ends that
            connection only.
        limit: connections served at one time.
        busy: what further connections receive before they are closed; when as many are receiving it, nothing.
    """

    def __init__(self, serve: Serve, *, limit: int, busy: bytes, log: Log) -> None:
        self._serve = serve
        self._limit = limit
        self._busy = busy
        self._log = log
        self._served: set[asyncio.Task[object]] = set()
        self._refused: set[asyncio.Task[object]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection to its end; raises nothing."""
        # drain() then means that the kernel has everything, so closing cannot wait for a slow reader
        writer.transport.set_write_buffer_limits(high=0)
        with suppress(OSError):  # it has left already
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        full = len(self._served) >= self._limit
        serve, tasks = (self._refuse, self._refused) if full else (self._serve, self._served)
        if len(tasks) >= self._limit:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None  # asyncio runs this in a task of its own
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        except asyncio.CancelledError:
            # Only end() cancels this task. Python 3.11 reports a cancelled connection task as an error, so it
            # ends as if it had finished.
            writer.transport.abort()
        except Exception:  # noqa: BLE001 - one connection's bug must not end the server
            self._log.exception("connection failed")
        finally:
            tasks.discard(task)
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._busy)
        await drain_refused(reader, writer)

    async def end(self) -> None:
        """Ends every connection now."""
        tasks = (*self._served, *self._refused)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed transports let go of their descriptors in the loop's next turn


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Hands ``data`` to the kernel, as fast as the peer takes it. The caller bounds the wait.

    Raises:
        ConnectionError: the peer has left.
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

    A watcher that leaves is noticed at once, not at the next change. What it still sends is dropped.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(_left(reader))
            task = tasks.create_task(pushing)
            leaving.add_done_callback(lambda _: task.cancel())
            task.add_done_callback(lambda _: leaving.cancel())
    except* (ConnectionError, TimeoutError):
        writer.transport.abort()  # it left, or stopped reading, while a state was on its way


async def _left(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


async def drain_refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what the peer still sends after a refusal: at most 1 MiB, at most one second.

    Closing with unread input makes the kernel reset the connection, and the peer would lose the very
    answer that explains what was wrong.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await writer.drain()
            with suppress(OSError):  # it has left already
                writer.write_eof()
            for _ in range(16):
                if not await reader.read(65536):
                    return
