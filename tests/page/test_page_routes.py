"""The page over a socket: answers, watchers, and the end of streams."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NamedTuple, cast

import page_document as made
import pytest
from kit.waiting import until
from status_values import document_of

from devhost.runtime.http import Answer, HttpServer, Limits, Listen, Route, Stream, probe
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.page import StatusPage, node_name

LIMITS = Limits()


class Slow(NamedTuple):
    """A client that does not read until it resumes."""

    reader: asyncio.StreamReader
    transport: asyncio.Transport


class Scene:
    """A server with the page of a document that tests change."""

    def __init__(self, limits: Limits) -> None:
        self.document = made.busy_node()
        self.asked = self.streams = 0
        self.page = StatusPage(self._now, node=made.NODE, interval=0, rest=0)
        routes = {**self.page.routes(), "/healthz": probe(lambda: (True, ""))}
        routes["/events"] = self._counted(routes["/events"])
        self.server = HttpServer(routes, limits)
        self.address = Listen("", 0)

    def _counted(self, route: Route) -> Route:
        """The same route; ``streams`` is the number of its active streams."""

        async def answer() -> Answer:
            stream = cast("Stream", await route())

            async def parts() -> AsyncGenerator[bytes, None]:
                self.streams += 1
                try:
                    async with aclosing(stream.parts()) as sent:
                        async for part in sent:
                            yield part
                finally:
                    self.streams -= 1

            return Stream(parts, stream.instead, stream.content_type)

        return answer

    def _now(self) -> StatusDocument:
        self.asked += 1
        return document_of(self.document)

    def change(self, reason: str) -> None:
        self.document["refusals"][0]["reason"] = reason
        self.page.changed()

    async def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        async with self.connected(path, method) as (reader, _):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return int(first.split()[1]), headers, body

    @asynccontextmanager
    async def connected(
        self, path: str, method: str = "GET"
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port, limit=1 << 24)
        writer.write(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[asyncio.StreamReader]:
        """A stream after its first event."""
        async with self.connected("/events") as (reader, _):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in head
            await event(reader)
            yield reader

    @asynccontextmanager
    async def slow(self) -> AsyncIterator[Slow]:
        """A stream whose client reads only the first event and has a small buffer."""
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect((self.address.host, self.address.port))
        reader, writer = await asyncio.open_connection(sock=peer, limit=1 << 24)
        writer.write(b"GET /events HTTP/1.0\r\n\r\n")
        await reader.readuntil(b"\n\n")
        transport = cast("asyncio.Transport", writer.transport)
        transport.pause_reading()
        yield Slow(reader, transport)
        transport.abort()
        await asyncio.sleep(0)


async def event(reader: asyncio.StreamReader) -> str:
    text = (await reader.readuntil(b"\n\n")).decode()
    assert text.startswith("data: <div ") and text.count("\n") == 2
    return text


@pytest.fixture
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = Scene(getattr(request, "param", LIMITS))
    async with asyncio.timeout(120):
        scene.address = await scene.server.start(Listen("127.0.0.1", 0))
        yield scene
        await scene.server.stop()


async def test_the_page_is_html_with_a_strict_policy_and_without_cookies(scene: Scene) -> None:
    status, headers, body = await scene.get("/")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith(b'<!doctype html><html lang="en">') and made.LOST.encode() in body
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
    assert headers["cache-control"] == "no-store"
    assert "set-cookie" not in headers and "access-control-allow-origin" not in headers


async def test_one_answer_is_the_whole_page(scene: Scene) -> None:
    body = (await scene.get("/"))[2].decode()
    for part in ("prefers-color-scheme", "EventSource", '<link rel="icon" id="icon" href="data:'):
        assert part in body
    assert (
        "src=" not in body
        and 'rel="stylesheet"' not in body
        and "http://" not in body.replace("http://www.w3.org", "")
    )


async def test_the_document_is_served_unchanged(scene: Scene) -> None:
    status, headers, body = await scene.get("/status.json")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == scene.document


async def test_head_has_no_body_and_uses_no_stream(scene: Scene) -> None:
    for path in ("/", "/status.json", "/events"):
        status, _, body = await scene.get(path, "HEAD")
        assert (status, body) == (200, b"")


async def test_a_change_reaches_every_watcher_and_is_rendered_once(scene: Scene) -> None:
    async with scene.watching() as one, scene.watching() as other:
        before = scene.asked
        scene.change("quite another reason")
        assert "quite another reason" in await event(one)
        assert "quite another reason" in await event(other)
        assert scene.asked == before + 1


async def test_nothing_is_rendered_without_watchers(scene: Scene) -> None:
    async with scene.watching():
        pass
    await until(lambda: scene.streams == 0)
    before = scene.asked
    for n in range(5):
        scene.change(f"reason {n}")
    await scene.get("/healthz")
    assert scene.asked == before


@pytest.mark.parametrize("scene", [Limits(stream_deadline=300.0)], indirect=True)
async def test_a_slow_reader_gets_the_newest_state(scene: Scene) -> None:
    scene.document["refusals"] *= 200
    async with scene.slow() as slow, scene.watching() as quick:
        for n in range(25):
            scene.change(f"reason {n}.")
            while f"reason {n}." not in await event(quick):
                pass
        slow.transport.resume_reading()
        got = 1
        while "reason 24." not in await event(slow.reader):
            got += 1
        assert got < 25


@pytest.mark.parametrize("scene", [Limits(stream_deadline=0.05)], indirect=True)
async def test_a_reader_that_stops_reading_loses_its_stream(scene: Scene) -> None:
    async with scene.slow():
        n = 0
        while scene.streams:
            scene.change(f"{n} " + "x" * 100_000)
            n += 1
            await asyncio.sleep(0.001)


async def test_streams_never_use_up_the_connections_for_probes(scene: Scene) -> None:
    assert LIMITS.streams < LIMITS.connections / 2
    watching = [scene.watching() for _ in range(LIMITS.streams)]
    for one in watching:
        await one.__aenter__()
    scene.change("what the ninth sees")

    async def seen() -> bool:
        return b"what the ninth sees" in (await scene.get("/events"))[2]

    await until(seen)  # what was made a moment before is given to all who ask again
    status, headers, body = await scene.get("/events")
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    first, second = body.decode().removesuffix("\n\n").split("\n\n")
    event, retry, again = first.splitlines()
    assert (event, retry.removeprefix("retry: ")) == ("event: poll", again.removeprefix("data: "))
    assert 4000 <= int(retry.removeprefix("retry: ")) <= 6000, "a page asks again after so many milliseconds"
    assert second.startswith("data: <div ") and "what the ninth sees" in second
    assert (await scene.get("/healthz"))[0] == (await scene.get("/"))[0] == 200
    await watching[0].__aexit__(None, None, None)
    await until(lambda: scene.streams < LIMITS.streams)
    async with scene.watching():
        pass
    for one in watching[1:]:
        await one.__aexit__(None, None, None)


async def test_stop_ends_every_stream(scene: Scene) -> None:
    async with scene.watching() as one, scene.watching() as other:
        await scene.server.stop()
        for reader in (one, other):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await event(reader)
    assert scene.streams == 0


async def test_hidden_pods_are_not_in_any_answer() -> None:
    page = StatusPage(lambda: document_of(made.busy_node()), node=made.NODE, pods=False)
    server = HttpServer(page.routes())
    scene = Scene(LIMITS)
    scene.address = await server.start(Listen("127.0.0.1", 0))
    async with asyncio.timeout(60):
        answers = (await scene.get("/"))[2] + (await scene.get("/status.json"))[2]
        async with scene.connected("/events") as (reader, _):
            answers += await reader.readuntil(b"\n\n")
    await server.stop()
    assert b"nvidia.com/gpu" in answers
    assert b"train-llama" not in answers and b"upf-0" not in answers


def test_the_node_name_comes_from_the_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "worker-3")
    assert node_name() == "worker-3"
    monkeypatch.delenv("NODE_NAME")
    assert node_name()
