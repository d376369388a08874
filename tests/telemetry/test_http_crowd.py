"""Many clients at once, whatever they do, keep no probe out and take little memory."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from devhost.telemetry import http, log
from devhost.telemetry.connections import PIECE, Connections, send
from devhost.telemetry.http import HttpServer, Listen, page, probe

BIG = 20_000_000
HEALTHZ = b"GET /healthz HTTP/1.1\r\n\r\n"


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    whole = bytes(BIG)

    async def big() -> bytes:
        return whole

    routes = {"/healthz": probe(lambda: (True, "")), "/big": page(big, "text/plain")}
    serving = HttpServer(Listen("127.0.0.1", 0), routes)
    async with asyncio.timeout(120):
        serving._listen = await serving.start()
        yield serving
        await serving.stop()


async def _answer(server: HttpServer, request: bytes = HEALTHZ) -> bytes:
    reader, writer = await asyncio.open_connection(server._listen.host, server._listen.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@asynccontextmanager
async def _crowd(server: HttpServer, count: int, request: bytes) -> AsyncIterator[None]:
    """Clients that send ``request``, read nothing, and stay."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as clients:
        for _ in range(count):
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await loop.sock_connect(client, (server._listen.host, server._listen.port))
            with suppress(ConnectionError):  # it has lost its place already
                await loop.sock_sendall(client, request)
        yield


async def test_those_that_say_nothing_keep_no_probe_out(server: HttpServer) -> None:
    count = 2 * http.MAX_CONNECTIONS + 10
    address = server._listen
    idle = [await asyncio.open_connection(address.host, address.port) for _ in range(count)]
    assert (await _answer(server)).startswith(b"HTTP/1.1 200 ")
    reader, writer = idle[-1]
    writer.write(HEALTHZ)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 "), "the newest have kept their place"
    reader, _ = idle[0]
    with suppress(ConnectionError):
        assert await reader.read() == b"", "the oldest has lost it"
    for _, writer in idle:
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /heal",
        b"X\r\n\r\n",
        b"POST / HTTP/1.1\r\n\r\n",
        b"GET /none HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * http.MAX_HEAD,
        b"GET /big HTTP/1.1\r\n\r\n",
        HEALTHZ,
    ],
    ids=["half", "nonsense", "method", "unknown", "too long", "reads nothing", "well"],
)
async def test_whatever_a_crowd_asks_a_probe_is_answered(server: HttpServer, request_: bytes) -> None:
    for _ in range(3):
        async with _crowd(server, 200, request_):
            for _ in range(5):
                assert (await _answer(server)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("request_", [b"X\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"GET /no HTTP/1.1\r\n\r\n"])
async def test_one_that_was_told_its_mistake_and_stays_gives_way(
    request_: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 1)
    server = HttpServer(Listen("127.0.0.1", 0), {"/healthz": probe(lambda: (True, ""))})
    server._listen = await server.start()
    async with asyncio.timeout(60):
        for _ in range(10):
            reader, writer = await asyncio.open_connection(server._listen.host, server._listen.port)
            writer.write(request_)
            assert (await reader.readline()).startswith(b"HTTP/1.1 4")
            assert (await _answer(server)).startswith(b"HTTP/1.1 200 ")
            writer.close()
        await server.stop()


async def test_refusals_take_no_places_of_those_that_come_after_them() -> None:
    let_go = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_go.wait()
        writer.write(b"served")

    connections = Connections(serve, limit=1, busy=b"busy", log=log.get("devhost.test"))
    listening = await asyncio.start_server(connections.accept, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()
    async with asyncio.timeout(60):
        first, ending = await asyncio.open_connection(*address)
        refused, staying = await asyncio.open_connection(*address)
        assert await refused.read() == b"busy"
        let_go.set()
        assert await first.read() == b"served"
        while connections._tasks:
            await asyncio.sleep(0)
        again, coming = await asyncio.open_connection(*address)
        assert await again.read() == b"served", "while the refused one still stays"
        for writer in (ending, staying, coming):
            writer.close()
        listening.close()
        await connections.end()


async def test_one_that_takes_nothing_holds_little_memory_of_the_kernel_and_of_ours() -> None:
    seen: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer)
        await send(writer, bytes(BIG))

    connections = Connections(serve, limit=1, busy=b"", log=log.get("devhost.test"))
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


async def test_a_long_answer_arrives_whole_at_one_that_is_slow(server: HttpServer) -> None:
    address = server._listen
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=4096)
    writer.write(b"GET /big HTTP/1.1\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert f"Content-Length: {BIG}\r\n".encode() in head
    got = 0
    while part := await reader.read(1 << 20):
        assert not any(part[:16])
        got += len(part)
        await asyncio.sleep(0)
    assert got == BIG
    writer.close()
