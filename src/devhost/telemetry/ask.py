"""The client's side of the status socket: finds the running host and asks it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from devhost.errors import DevhostError, EnvironmentFailure, UsageError

from . import rundir
from .document import StatusDocument
from .printable import printable

DEADLINE = 5.0
"""Seconds the host has to answer."""
MAX_DOCUMENT = 1 << 27
"""Bytes of a document: 100,000 devices take about 20 MB."""


async def find(kubelet_dir: Path | None = None, socket: Path | None = None) -> Path:
    """The socket of the host that is meant; with neither argument, of the only one that runs here.

    Raises:
        UsageError: several run here, or both arguments are given.
        EnvironmentFailure: none runs here.
    """
    if socket is not None and kubelet_dir is not None:
        raise UsageError("--socket and --kubelet-dir cannot be combined", "give one of them")
    if socket is not None:
        return socket
    if kubelet_dir is not None:
        path = rundir.runtime_dir() / rundir.socket_name(kubelet_dir)
        if path not in rundir.sockets() or not _is_live(path):
            raise EnvironmentFailure(f"no devhost serves {printable(str(kubelet_dir))} here", _where_else())
        return path
    live = [path for path in rundir.sockets() if _is_live(path)]
    if not live:
        raise EnvironmentFailure("no devhost is running here", _where_else())
    if len(live) > 1:
        dirs = [await _kubelet_dir(path) for path in live]
        raise UsageError(
            f"several devhosts are running here, for {', '.join(dirs)}", "choose with --kubelet-dir"
        )
    return live[0]


async def fetch(path: Path) -> StatusDocument:
    """The document of the host that listens on ``path``, now.

    Raises:
        EnvironmentFailure: nobody listens there, or we may not ask.
        DevhostError: the host does not answer in time, or not with a document.
    """
    async with _asked(path, "status") as reader:
        try:
            async with asyncio.timeout(DEADLINE):
                line = await reader.readline()
        except TimeoutError as error:
            raise DevhostError(
                f"the devhost on {path} did not answer within {DEADLINE:.0f} s",
                "its log may say what it is busy with",
            ) from error
        if not line:
            raise DevhostError(f"the devhost on {path} closed without an answer", "its log says why")
        return _parse(line, path)


async def watch(path: Path) -> AsyncGenerator[StatusDocument, None]:
    """The document now, and again after each change; ends when the host does.

    Leave it early inside ``contextlib.aclosing``, or the connection stays until the loop ends.

    Raises:
        EnvironmentFailure, DevhostError: as for :func:`fetch`.
    """
    async with _asked(path, "watch") as reader:
        while line := await _next_line(reader):
            yield _parse(line, path)


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    try:
        line = await reader.readline()
    except ConnectionError:
        return b""
    return line if line.endswith(b"\n") else b""  # the host died in the middle of a document


@asynccontextmanager
async def _asked(path: Path, want: str) -> AsyncIterator[asyncio.StreamReader]:
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_DOCUMENT)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        raise EnvironmentFailure(f"no devhost listens on {path}", _where_else()) from error
    except OSError as error:
        hint = "ask as the user it runs as, or as root" if isinstance(error, PermissionError) else ""
        raise EnvironmentFailure(f"cannot ask {path}: {error.strerror or error}", hint) from error
    try:
        writer.write(json.dumps({"want": want}).encode() + b"\n")
        yield reader
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)  # lets the transport go in this loop


def _parse(line: bytes, path: Path) -> StatusDocument:
    try:
        document = json.loads(line)
    except ValueError:
        document = None
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        raise DevhostError(f"the devhost on {path} says: {printable(document['error'])}")
    if not isinstance(document, dict) or not StatusDocument.__required_keys__ <= document.keys():
        raise DevhostError(
            f"what listens on {path} does not speak devhost's status",
            "is it another program, or another version?",
        )
    return cast("StatusDocument", document)


def _is_live(path: Path) -> bool:
    try:
        return rundir.is_live(path)
    except OSError:
        return False


async def _kubelet_dir(path: Path) -> str:
    try:
        return printable((await fetch(path))["kubelet"]["dir"])
    except DevhostError:
        return f"{path} (no answer)"


def _where_else() -> str:
    hint = "start it with `devhost run`, or name its socket with --socket"
    if os.geteuid() != 0:
        hint += "; one that runs as root answers root only"
    return hint
