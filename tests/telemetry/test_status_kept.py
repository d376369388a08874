"""The status socket is served as long as devhost runs, even if its file is removed."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
from kit.waiting import background, until
from test_status_socket import Source

from devhost.runtime import rundir
from devhost.runtime.rundir import socket_name
from devhost.telemetry import ask
from devhost.telemetry.status import Checks, StatusServer

CHECKS = Checks(check=0.02, retry=0.01)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run" / socket_name(tmp_path / "kubelet")


@pytest.fixture
async def server(tmp_path: Path, path: Path) -> AsyncIterator[StatusServer]:
    server = StatusServer(Source(), kubelet_dir=tmp_path / "kubelet", checks=CHECKS)
    async with asyncio.timeout(60), running(server):
        yield server


@asynccontextmanager
async def running(server: StatusServer) -> AsyncIterator[None]:
    """The server runs, and stops at the end."""
    try:
        async with background(server.run()):
            yield
    finally:
        await server.stop()


@pytest.mark.parametrize("taken", ["the socket", "its directory"])
async def test_a_removed_socket_is_recreated_and_logged_once(
    server: StatusServer, path: Path, caplog: pytest.LogCaptureFixture, taken: str
) -> None:
    caplog.set_level(logging.INFO, "devhost")
    await until(path.exists)
    if taken == "the socket":
        path.unlink()
    else:
        shutil.rmtree(path.parent)
    await until(path.exists)
    assert (await ask.fetch(path, deadline=60)).json == Source()()
    await until(lambda: len(caplog.records) == 2)
    await asyncio.sleep(0.1)
    assert caplog.messages == [
        "status socket is not available",
        "status socket is open",
    ]
    assert vars(caplog.records[0])["fields"] == {"reason": f"{path} was removed"}


async def test_connected_clients_keep_watching_after_the_socket_is_removed(
    server: StatusServer, path: Path
) -> None:
    await until(path.exists)
    async with aclosing(ask.watch(path, deadline=60)) as documents:
        await anext(documents)
        path.unlink()
        await until(path.exists)
        server.changed()
        await anext(documents)


async def test_a_socket_of_another_devhost_in_its_place_is_not_touched(
    server: StatusServer, path: Path, tmp_path: Path
) -> None:
    await until(path.exists)
    path.unlink()
    other = StatusServer(Source(str(tmp_path / "other")), kubelet_dir=tmp_path / "kubelet")
    await other.start()
    await asyncio.sleep(0.1)
    assert (await ask.fetch(path, deadline=60)).json["kubelet"]["dir"] == str(tmp_path / "other")
    await other.stop()
    assert not path.exists()
    await until(path.exists)
    assert (await ask.fetch(path, deadline=60)).json["kubelet"]["dir"] == "/kubelet"


async def test_a_directory_removed_while_the_socket_is_made_is_retried(tmp_path: Path, path: Path) -> None:
    removed = []

    def bind(where: Path) -> socket.socket:
        listener = rundir.bind(where)
        if len(removed) < 3:
            removed.append(where.unlink())
        return listener

    server = StatusServer(Source(), kubelet_dir=tmp_path / "kubelet", checks=CHECKS, bind=bind)
    async with asyncio.timeout(60), running(server):
        await until(lambda: len(removed) == 3 and path.exists())
        assert (await ask.fetch(path, deadline=60)).json == Source()()
