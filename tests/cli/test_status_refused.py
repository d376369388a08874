"""Output and exit code of ``devhost status`` without a document: one line, never a traceback."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from kit.command import DEVHOST
from kit.waiting import until

DEADLINE = 60


async def _status(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(*DEVHOST, "status", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def _answered(path: Path, said: bytes, *arguments: str) -> tuple[int | None, str, str]:
    """The result of asking a program that reads nothing, sends this, and closes."""
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        other.setblocking(False)
        loop = asyncio.get_running_loop()
        asking = asyncio.create_task(_status("--socket", str(path), *arguments))
        peer, _ = await loop.sock_accept(other)
        if said:
            await loop.sock_recv(peer, 4096)
        else:
            await until(lambda: _has_asked(peer))
        await loop.sock_sendall(peer, said)
        peer.close()
    return await asking


def _has_asked(peer: socket.socket) -> bool:
    with suppress(BlockingIOError):
        return bool(peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


OF_ANOTHER_VERSION = {
    **{"devhost": {}, "kubelet": {"dir": 7}, "resources": [{}]},
    **{key: {} for key in ("held", "backends", "observers", "refusals", "dra", "problems")},
}


OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("arguments", [[], ["--watch"], ["--output", "json"], ["--all", "--watch"]], ids=str)
@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"", "closed without an answer"),
        (OK + b'{"devhost": ', "closed the connection during its answer"),
        (OK + b"[" * 100_000 + b"\n", "did not answer with a status document"),
        (b"\xff\n", "did not answer with a status document"),
        (OK + json.dumps(OF_ANOTHER_VERSION).encode() + b"\n", "devhost.version is missing"),
    ],
    ids=["reset", "cut", "deep", "not UTF-8", "another version"],
)
async def test_an_invalid_answer_is_one_line_and_exit_code_1(
    tmp_path: Path, said: bytes, message: str, arguments: list[str]
) -> None:
    code, out, err = await _answered(tmp_path / "s.sock", said, *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("devhost: ") and message in err and err.endswith(")\n")


async def test_a_file_that_is_not_a_socket_is_one_line_and_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path):
        code, out, err = await _status("--socket", str(path))
        assert (code, out, err.count("\n")) == (3, "", 1)
        assert err.startswith(f"devhost: {path} is not a socket (")
