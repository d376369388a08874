"""Clients of the status socket that read nothing are limited, so that others get their answer."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from kit.waiting import until
from status_values import document

from devhost.backend.errors import DevhostError
from devhost.runtime.http import Limits
from devhost.telemetry import ask
from devhost.telemetry.status import LIMITS, StatusServer

SHORT = replace(LIMITS, body_deadline=2.0, stream_deadline=2.0)


class Scene:
    """A server, and clients that send requests and read nothing."""

    def __init__(self, path: Path, limits: Limits) -> None:
        self.path = path
        self.document = document()
        self.document["devhost"]["config"] = "x" * 3_000_000  # more than the kernel buffers for a client
        self.server = StatusServer(
            lambda: self.document, kubelet_dir=path.parent, socket=path, interval=0, limits=limits
        )

    @asynccontextmanager
    async def silent(self, count: int, want: str) -> AsyncIterator[list[socket.socket]]:
        async with AsyncExitStack() as stack:
            clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
            for client in clients:
                client.connect(str(self.path))
                client.sendall(f"GET /{want} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            yield clients


def got_something(client: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


def dropped(client: socket.socket) -> bool:
    """Whether the server has closed its end, even if the client has unread data."""
    poll = select.poll()
    poll.register(client, 0)
    return bool(poll.poll(0))


@pytest.fixture
async def scene(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "s.sock", getattr(request, "param", LIMITS))
    async with asyncio.timeout(120):
        await scene.server.start()
        yield scene
        await scene.server.stop()


async def nobody_watches(scene: Scene) -> bool:
    async with aclosing(ask.watch(scene.path, deadline=60)) as documents:
        with suppress(DevhostError):
            await anext(documents)
            return True
    return False


@pytest.mark.parametrize("scene", [SHORT], indirect=True)
async def test_clients_that_read_nothing_do_not_block_others_for_long(scene: Scene) -> None:
    async with scene.silent(SHORT.connections, "status") as clients:
        await until(lambda: all(map(got_something, clients)))
        await until(lambda: all(map(dropped, clients)))
        assert (await ask.fetch(scene.path, deadline=60)).json == scene.document


@pytest.mark.parametrize("scene", [SHORT], indirect=True)
async def test_watchers_that_read_nothing_are_disconnected(scene: Scene) -> None:
    async with scene.silent(SHORT.streams, "watch") as clients:
        await until(lambda: all(map(got_something, clients)))
        await until(lambda: all(map(dropped, clients)))


async def test_watchers_leave_slots_for_single_requests(scene: Scene) -> None:
    async with scene.silent(LIMITS.connections, "watch") as clients:
        await until(lambda: sum(map(dropped, clients)) == LIMITS.connections - LIMITS.streams)
        await until(lambda: all(map(got_something, clients)))
        assert (await ask.fetch(scene.path, deadline=60)).json == scene.document
        with pytest.raises(DevhostError, match="too many watchers"):
            await anext(ask.watch(scene.path, deadline=60))
    while True:
        watching = ask.watch(scene.path, deadline=60)
        with suppress(DevhostError):  # until the places of those are free
            assert (await anext(watching)).json == scene.document
            break
    await watching.aclose()


@pytest.mark.parametrize("scene", [replace(LIMITS, streams=1, stream_deadline=0.05)], indirect=True)
async def test_a_disconnected_watcher_learns_that_the_host_still_runs(scene: Scene) -> None:
    watching = ask.watch(scene.path, deadline=60, largest=4_000_000)
    about = scene.document["devhost"]
    large, about["config"] = about["config"], "x"  # a small one is sent at once, also on a busy machine
    assert (await anext(watching)).json == scene.document
    about["config"] = large
    while not await nobody_watches(scene):
        scene.document["devhost"]["generation"] += 1  # and nobody asks for the next one
        scene.server.changed()
        await asyncio.sleep(0.001)
    with pytest.raises(DevhostError, match="closed the connection") as caught:
        async for _ in watching:
            pass
    assert "this command read too slowly" in caught.value.hint
