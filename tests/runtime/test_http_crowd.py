"""Many clients at the same time use few resources, and idle ones lose their connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from devhost.runtime.http import PIECE, Connections, HttpServer, Limits, Listen, page, probe, send

BIG = 20_000_000
HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
QUICK = Limits(connections=20, head_deadline=0.05, body_deadline=0.05)


@pytest.fixture
async def address() -> AsyncIterator[Listen]:
    whole = bytes(BIG)

    async def big() -> bytes:
        return whole

    routes = {"/healthz": probe(lambda: (True, "")), "/big": page(big, "text/plain")}
    server = HttpServer(routes, QUICK)
    async with asyncio.timeout(120):
        yield await server.start(Listen("127.0.0.1", 0))
        await server.stop()


async def _answer(address: Listen, request: bytes = HEALTHZ) -> bytes:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@asynccontextmanager
async def _crowd(address: Listen, count: int, request: bytes) -> AsyncIterator[None]:
    """Clients that send ``request``, read nothing, and stay connected."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(client, (address.host, address.port))
            with suppress(ConnectionError):  # it was refused already
                await loop.sock_sendall(client, request)
        yield


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"GET /heal",
        b"X\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * QUICK.head,
        b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n",
        HEALTHZ,
    ],
    ids=["nothing", "half", "nonsense", "method", "unknown", "too long", "reads nothing", "well"],
)
async def test_idle_clients_free_their_slots_after_the_deadlines(address: Listen, request_: bytes) -> None:
    async with _crowd(address, 3 * QUICK.connections, request_):
        while not (await _answer(address)).startswith(b"HTTP/1.1 200 "):
            await asyncio.sleep(0.01)


async def test_refused_clients_take_no_slots_of_later_ones() -> None:
    let_go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.write(b"served")

    connections = Connections(serve, limit=1, busy=lambda: b"busy")
    listening = await asyncio.start_server(connections.accept, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    async with asyncio.timeout(60):
        first, ending = await asyncio.open_connection(*address)
        refused, staying = await asyncio.open_connection(*address)
        assert await refused.read() == b"busy"
        let_go.set()
        assert await first.read() == b"served"
        again, coming = await asyncio.open_connection(*address)
        assert await again.read() == b"served", "while the refused one still stays"
        for writer in (ending, staying, coming):
            writer.close()
        listening.close()
        await connections.end()


async def test_a_client_that_reads_nothing_uses_little_memory() -> None:
    seen: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer)
        await send(writer, bytes(BIG))

    connections = Connections(serve, limit=1, busy=bytes)
    listening = await asyncio.start_server(connections.accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname(), limit=1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # what is read here is a socket
    async with asyncio.timeout(60):
        while not seen or not seen[0].transport.get_write_buffer_size():
            await asyncio.sleep(0)
        assert seen[0].transport.get_write_buffer_size() <= PIECE
        assert seen[0].get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * 65536
        writer.transport.abort()
        listening.close()
        await connections.end()


async def test_a_slow_client_gets_a_long_answer_completely() -> None:
    async def big() -> bytes:
        return bytes(BIG)

    server = HttpServer({"/big": page(big, "text/plain")})
    address = await server.start(Listen("127.0.0.1", 0))
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=4096)
    writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert f"Content-Length: {BIG}\r\n".encode() in head
    got = 0
    while part := await reader.read(1 << 20):
        assert not any(part[:16])
        got += len(part)
        await asyncio.sleep(0)
    assert got == BIG
    writer.close()
    await server.stop()
