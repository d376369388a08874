"""Sockets of other instances for one resource: which are older, which newer, and which have ended."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from devhost.kubelet.kubelet_socket import KubeletSocket
from devhost.kubelet.rivals import Instances
from devhost.kubelet.server import socket_name

TOY = "example.com/toy"
START = 3600.0
"""Seconds; a test takes less."""


async def instances(directory: Path) -> tuple[KubeletSocket, Instances]:
    kubelet = KubeletSocket(directory)
    await kubelet.look()
    found = Instances(kubelet, TOY, START)
    found.begin(directory / socket_name(TOY))
    return kubelet, found


async def test_an_instance_that_does_not_listen_yet_has_not_ended(tmp_path: Path) -> None:
    kubelet, found = await instances(tmp_path)
    name = socket_name(TOY)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / name))
        await kubelet.look()
        found.sort(settled=True)
        assert found.starting
        assert found.newer | found.older == set()
        other.listen()
        found.sort(settled=True)
        assert not found.starting
        assert found.newer == {name}
        assert found.gone(frozenset(found.newer)) == set()
    assert found.gone(frozenset(found.newer)) == {name}


@pytest.mark.parametrize("age", [START + 1, -START], ids=["old", "before the clock was set back"])
async def test_an_instance_that_never_listened_has_ended(tmp_path: Path, age: float) -> None:
    kubelet, found = await instances(tmp_path)
    name, then = socket_name(TOY), time.time() - age
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / name))
        os.utime(tmp_path / name, (then, then))
        await kubelet.look()
        found.sort(settled=True)
        assert not found.starting
        assert found.gone(frozenset(found.newer)) == {name}
