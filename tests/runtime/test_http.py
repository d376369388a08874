from __future__ import annotations

import asyncio
import socket
import struct
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from addresses import free_address

from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.runtime.http import (
    HttpServer,
    Limits,
    Listen,
    Response,
    Route,
    Stream,
    page,
    parse_listen,
    probe,
)

Answer = tuple[int, dict[str, str], bytes]


class Host:
    """Replaces the host: the results of the probes."""

    health: tuple[bool, str] = (True, "")
    ready: tuple[bool, str] = (False, "a/b: no stream")

    async def metrics(self) -> bytes:
        return b"devhost_streams 1\n"


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def server(host: Host) -> AsyncIterator[Listen]:
    routes = {
        "/metrics": page(host.metrics, "text/plain; version=0.0.4; charset=utf-8"),
        "/healthz": probe(lambda: host.health),
        "/readyz": probe(lambda: host.ready),
    }
    serving = HttpServer(routes)
    yield await serving.start(Listen("127.0.0.1", 0))
    await serving.stop()


@asynccontextmanager
async def _serving(routes: Mapping[str, Route], limits: Limits) -> AsyncIterator[Listen]:
    server = HttpServer(routes, limits)
    async with asyncio.timeout(60):
        yield await server.start(Listen("127.0.0.1", 0))
        await server.stop()


async def _exchange(address: Listen, request: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    async with asyncio.timeout(60):
        writer.write(request)
        raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    if not raw:
        return 0, {}, b""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split(" ")[1]), headers, body


async def _get(address: Listen, path: str, method: str = "GET") -> Answer:
    return await _exchange(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_metrics_are_served_in_the_text_format(server: Listen) -> None:
    status, headers, body = await _get(server, "/metrics")
    assert (status, body) == (200, b"devhost_streams 1\n")
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert headers["content-length"] == str(len(body)) and headers["connection"] == "close"


async def test_head_has_the_same_headers_and_no_body(server: Listen) -> None:
    got, head = await _get(server, "/metrics"), await _get(server, "/metrics", "HEAD")
    assert head == (got[0], got[1], b"")


async def test_probes_answer_200_or_503_with_the_reason(server: Listen, host: Host) -> None:
    assert (await _get(server, "/healthz"))[::2] == (200, b"ok\n")
    assert (await _get(server, "/readyz"))[::2] == (503, b"a/b: no stream\n")
    host.ready = (True, "")
    assert (await _get(server, "/readyz?verbose=1"))[::2] == (200, b"ok\n")


async def test_an_unknown_path_is_404_and_another_method_405(server: Listen) -> None:
    assert (await _get(server, "/nope"))[0] == 404
    status, headers, _ = await _get(server, "/metrics", "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"\r\n\r\n",
        b"GET /metrics\r\n\r\n",
        b"GET  /metrics HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1 \r\n\r\n",
        b"GET /met\x01rics HTTP/1.1\r\n\r\n",
        b"GET metrics HTTP/1.1\r\n\r\n",
        b"GET * HTTP/1.1\r\n\r\n",
        b"GET x:9400 HTTP/1.1\r\n\r\n",
        b"GET http:///metrics HTTP/1.1\r\n\r\n",
        b"GET ftp://x/metrics HTTP/1.1\r\n\r\n",
        b"G\x00T /metrics HTTP/1.1\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"GET / HTTP/1.x\r\n\r\n",
        b"\x00\xff\r\n\r\n",
    ],
)
async def test_what_is_not_http_is_400(server: Listen, request_: bytes) -> None:
    assert (await _exchange(server, request_))[0] == 400


@pytest.mark.parametrize(
    "target",
    ["http://node:9400/healthz", "HTTP://x/healthz?verbose", "https://[::1]:1/healthz", "http://u@x/healthz"],
)
async def test_an_absolute_target_is_accepted(server: Listen, target: str) -> None:
    assert (await _get(server, target))[::2] == (200, b"ok\n")
    assert (await _get(server, target, "HEAD"))[::2] == (200, b"")


async def test_an_absolute_target_without_path_means_the_root() -> None:
    async def root() -> bytes:
        return b"root\n"

    serving = HttpServer({"/": page(root, "text/plain")})
    address = await serving.start(Listen("127.0.0.1", 0))
    for target in ("http://node:9400", "http://node?x=/y", "http://node/"):
        assert (await _get(address, target))[::2] == (200, b"root\n")
    await serving.stop()


@pytest.mark.parametrize(
    "line", ["OPTIONS *", "OPTIONS /healthz", "CONNECT x:443", "POST http://x/", "get /"]
)
async def test_other_methods_are_405_for_every_target(server: Listen, line: str) -> None:
    status, headers, _ = await _exchange(server, f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_an_incomplete_request_is_400_when_the_client_closes(server: Listen) -> None:
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"GET / HTTP/1.1\r\n")
    writer.write_eof()
    assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_headers_beyond_the_limit_are_431_and_the_answer_arrives(server: Listen) -> None:
    status, _, _ = await _exchange(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n")
    assert status == 431


async def test_a_request_of_the_maximum_length_is_answered_and_a_longer_one_refused(host: Host) -> None:
    start, end = b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"\r\n\r\n"
    fill = 300 - len(start) - len(end)
    async with _serving({"/healthz": probe(lambda: host.health)}, Limits(head=300)) as address:
        assert (await _exchange(address, start + b"x" * fill + end))[0] == 200
        assert (await _exchange(address, start + b"x" * (fill + 2) + end))[0] == 431


async def test_http_1_1_without_host_is_400_and_http_1_0_needs_none(server: Listen) -> None:
    assert (await _exchange(server, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 400
    assert (await _exchange(server, b"GET /healthz HTTP/1.0\r\n\r\n"))[::2] == (200, b"ok\n")


async def test_a_stream_is_framed_for_every_http_client() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield b"first\n"
        yield b"second\n"

    async def instead() -> Response:
        raise AssertionError("a stream is free")

    async def stream() -> Stream:
        return Stream(parts, instead, "text/event-stream")  # type: ignore[arg-type]  # a generator is both

    def read(address: Listen) -> bytes:
        with urllib.request.urlopen(f"http://{address}/events", timeout=240) as answer:
            return bytes(answer.readline())

    async with _serving({"/events": stream}, Limits()) as address:
        assert await asyncio.to_thread(read, address) == b"first\n"
        assert b"first\nsecond\n" in (await _exchange(address, b"GET /events HTTP/1.0\r\n\r\n"))[2]


async def test_a_client_that_sends_nothing_gets_408_and_frees_its_slot() -> None:
    async with _serving({}, Limits(head_deadline=0.01, connections=1)) as address:
        assert (await _exchange(address, b"GET / HT"))[0] == 408
        while (status := (await _exchange(address, b""))[0]) == 503:
            await asyncio.sleep(0.01)  # the server may still be closing the first connection
        assert status == 408


async def test_a_client_that_does_not_read_is_disconnected(host: Host) -> None:
    size = 50_000_000

    async def big() -> bytes:
        return bytes(size)

    routes = {"/big": page(big, "text/plain"), "/healthz": probe(lambda: host.health)}
    async with _serving(routes, Limits(body_deadline=0.05, connections=1)) as address:
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1024)
        writer.write(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readexactly(1)
        while (await _get(address, "/healthz"))[0] != 200:
            await asyncio.sleep(0.01)  # the one place there is free again
        assert len(await reader.read()) < size
        writer.close()


async def test_a_connection_that_only_opens_and_closes_is_not_an_error(
    server: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection((server.host, server.port)):
        pass
    assert (await _get(server, "/healthz"))[0] == 200
    assert caplog.records == []


async def test_a_connection_over_the_limit_is_503_until_another_one_ends() -> None:
    let_go, asked = asyncio.Event(), asyncio.Semaphore(0)

    async def slow() -> bytes:
        asked.release()
        await let_go.wait()
        return b"done\n"

    async with _serving({"/slow": page(slow, "text/plain")}, Limits(connections=3)) as address:
        answers = [asyncio.create_task(_get(address, "/slow")) for _ in range(3)]
        for _ in range(3):
            await asked.acquire()
        for _ in range(4):  # refusals are bounded by themselves, and none of these stays
            status, _, body = await _get(address, "/slow")
            assert (status, body) == (503, b"too many connections\n")
        let_go.set()
        assert {status for status, _, _ in await asyncio.gather(*answers)} == {200}
        assert (await _get(address, "/slow"))[0] == 200


async def test_a_client_that_resets_while_it_is_refused_is_not_logged(
    server: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        peer = socket.create_connection((server.host, server.port))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.sendall(b"POST / HTTP/1.1\r\n\r\n")
        peer.close()  # with a reset: what is sent to it then fails, and so does shutting it down
        await asyncio.sleep(0)
    assert (await _get(server, "/healthz"))[0] == 200
    assert caplog.records == []


async def test_a_route_that_raises_is_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def bad() -> bytes:
        raise ValueError("secret")

    serving = HttpServer({"/bad": page(bad, "text/plain")})
    address = await serving.start(Listen("127.0.0.1", 0))
    status, _, body = await _get(address, "/bad")
    await serving.stop()
    assert (status, body) == (500, b"Internal Server Error\n")
    assert caplog.messages == ["request failed"]


async def test_a_route_whose_code_cannot_be_imported_answers_what_to_do_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def gone() -> bytes:
        raise ModuleNotFoundError("No module named 'gone'")

    serving = HttpServer({"/gone": page(gone, "text/plain")})
    address = await serving.start(Listen("127.0.0.1", 0))
    answers = [await _get(address, "/gone") for _ in range(2)]
    await serving.stop()
    for status, _, body in answers:
        assert status == 500
        assert body.startswith(b"code cannot be imported: No module named 'gone' (restart devhost")
    assert caplog.messages == ["requests cannot be answered"]


async def test_stop_ends_open_connections_and_frees_the_port() -> None:
    serving = HttpServer({})
    host, _, port = free_address().rpartition(":")
    address = await serving.start(Listen(host, int(port)))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    async with asyncio.timeout(60):
        writer.write(b"GET /")
        await _get(address, "/nope")  # answered after the first connection was taken
        await serving.stop()
        await serving.stop()
        with pytest.raises(ConnectionResetError):
            if not await reader.read():
                raise ConnectionResetError
    writer.close()
    again = HttpServer({})
    assert await again.start(address) == address
    await again.stop()


async def test_a_port_in_use_is_reported_in_one_line(server: Listen) -> None:
    with pytest.raises(
        EnvironmentFailure, match=f"cannot listen on {server}: another process uses this port"
    ):
        await HttpServer({}).start(server)


async def test_an_address_of_another_machine_is_reported_in_one_line() -> None:
    with pytest.raises(EnvironmentFailure, match=r"192\.0\.2\.1:0: this machine has no such address"):
        await HttpServer({}).start(Listen("192.0.2.1", 0))


async def test_an_unknown_host_name_is_reported_in_one_line() -> None:
    with pytest.raises(EnvironmentFailure, match="the host name cannot be resolved"):
        await HttpServer({}).start(Listen("no-such-host.invalid", 0))


async def test_no_host_means_every_address() -> None:
    serving = HttpServer({})
    address = await serving.start(Listen("", 0))
    assert (await _get(Listen("127.0.0.1", address.port), "/"))[0] == 404
    await serving.stop()


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:9090", Listen("127.0.0.1", 9090)),
        (":9090", Listen("", 9090)),
        ("[::1]:9090", Listen("::1", 9090)),
        ("node-1.example:80", Listen("node-1.example", 80)),
        ("127.0.0.1:0", Listen("127.0.0.1", 0)),
    ],
)
def test_a_listen_address_is_parsed_and_formatted_alike(text: str, listen: Listen) -> None:
    assert parse_listen(text) == listen
    assert str(listen) == text


def test_an_address_of_both_families_may_be_in_brackets() -> None:
    assert parse_listen("[127.0.0.1]:9090") == Listen("127.0.0.1", 9090)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9090",
        "host",
        "host:",
        ":http",
        "::1:80",
        "[::1]",
        "[x]:80",
        ":65536",
        ":" + "9" * 5000,
        "a b:1",
        ":-1",
        "ä:1",
        ":²",
    ],
)
def test_a_wrong_listen_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on") as caught:
        parse_listen(text)
    assert "HOST:PORT" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://localhost:9400", "this is no address but a URL or path"),
        (":80:80", "not a host name or address"),
        ("::1:80", "an IPv6 address needs brackets"),
    ],
)
def test_only_an_ipv6_address_is_asked_to_have_brackets(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        parse_listen(text)
