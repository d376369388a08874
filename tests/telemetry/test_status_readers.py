"""Clients of the status socket that take nothing: each is bounded, so that others get their answer."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import cast

import pytest

from devhost.backend.errors import DevhostError
from devhost.telemetry import ask, status
from devhost.telemetry.document import StatusDocument
from devhost.telemetry.status import StatusServer


def _document() -> StatusDocument:
    """Larger than what the kernel holds for a client that takes nothing."""
    document = {
        "devhost": {
            "version": "0",
            "pid": 1,
            "startedAt": "2026-11-20T12:00:00Z",
            "config": "x" * 3_000_000,
            "root": "/",
            "configDigest": "",
            "generation": 1,
            "lastReload": {"at": "2026-11-20T12:00:00Z", "result": "ok", "complaints": []},
            "copy": None,
        },
        "kubelet": {
            "dir": "/kubelet",
            "socket": "present",
            "podResources": {"socket": "", "known": True, "reason": "", "listed": None},
        },
    }
    lists = ("entries", "resources", "backends", "observers", "held", "refusals", "problems")
    return cast("StatusDocument", {**document, **{name: [] for name in lists}})


class Scene:
    """A server, and clients that ask it and read nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.document = _document()
        self.server = StatusServer(lambda: self.document, kubelet_dir=path.parent, socket=path, interval=0)

    @property
    def clients(self) -> int:
        return len(self.server._connections._tasks)

    @asynccontextmanager
    async def silent(self, count: int, want: str) -> AsyncIterator[list[socket.socket]]:
        async with AsyncExitStack() as stack:
            clients = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
            for client in clients:
                client.connect(str(self.path))
                client.sendall(json.dumps({"want": want}).encode() + b"\n")
            yield clients

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)


def got_something(client: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path / "s.sock")
    async with asyncio.timeout(120):
        await scene.server.start()
        yield scene
        await scene.server.stop()


async def test_clients_that_ask_and_take_nothing_lock_nobody_out_for_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "DEADLINE", 0.5)
    async with scene.silent(status.MAX_CLIENTS, "status") as clients:
        await scene.until(lambda: all(map(got_something, clients)))
        await scene.until(lambda: scene.clients == 0)
        monkeypatch.undo()
        assert await ask.fetch(scene.path) == scene.document


async def test_watchers_that_take_nothing_lose_their_place(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "WATCH_DEADLINE", 0.5)
    async with scene.silent(status.MAX_WATCHERS, "watch") as clients:
        await scene.until(lambda: all(map(got_something, clients)))
        await scene.until(lambda: scene.server._watchers == scene.clients == 0)


async def test_watchers_leave_places_for_those_who_ask_once(scene: Scene) -> None:
    async with scene.silent(status.MAX_CLIENTS, "watch"):
        await scene.until(lambda: scene.server._watchers == scene.clients == status.MAX_WATCHERS)
        assert await ask.fetch(scene.path) == scene.document
        with pytest.raises(DevhostError, match="8 others are watching already"):
            await anext(ask.watch(scene.path))
    await scene.until(lambda: scene.server._watchers == 0)
    watching = ask.watch(scene.path)
    assert await anext(watching) == scene.document
    await watching.aclose()


async def test_a_watcher_that_was_dropped_is_told_that_the_host_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "MAX_DOCUMENT", 4_000_000)
    watching = ask.watch(scene.path)
    assert await anext(watching) == scene.document
    monkeypatch.setattr(status, "WATCH_DEADLINE", 0.05)
    while scene.server._watchers:
        scene.document["devhost"]["generation"] += 1  # and nobody asks for the next one
        scene.server.changed()
        await asyncio.sleep(0.001)
    with pytest.raises(DevhostError, match="tells nothing more") as caught:
        async for _ in watching:
            pass
    assert "nothing was read here for a while" in caught.value.hint
