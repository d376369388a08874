"""The client of the status socket: finds the running host and asks it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints, is_typeddict

from devhost import __version__
from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError
from devhost.runtime import rundir
from devhost.runtime.log import printable

from .document import StatusDocument

DEADLINE = 5.0
"""Seconds that the host has to answer."""
MAX_DOCUMENT = 1 << 27
"""Bytes of a document: 100,000 devices take about 20 MB."""

_NAME_IT = "name the socket of a running host with --status-socket"
_AGAIN = "try again, because it may have been stopping; if it happens again, see its log"
_OTHER = "is it another program?"


async def find(kubelet_dir: Path | None = None, socket: Path | None = None) -> Path:
    """The socket of the selected host; without arguments, of the only one on this node.

    Raises:
        UsageError: several run on this node, or both arguments are given.
        EnvironmentFailure: none runs on this node.
    """
    if socket is not None and kubelet_dir is not None:
        raise UsageError("--status-socket and --kubelet-dir cannot be combined", "give one of them")
    if socket is not None:
        return socket
    if kubelet_dir is not None:
        path = rundir.runtime_dir() / rundir.socket_name(kubelet_dir)
        if path not in rundir.sockets() or not _is_live(path):
            raise EnvironmentFailure(
                f"no devhost on this node serves {printable(str(kubelet_dir))}", _where_else()
            )
        return path
    live = running()
    if len(live) > 1:
        dirs = [await _kubelet_dir(path) for path in live]
        raise UsageError(
            f"several devhosts are running on this node, for {', '.join(dirs)}", "choose with --kubelet-dir"
        )
    return live[0]


def running() -> list[Path]:
    """The sockets of all hosts that run on this node.

    Raises:
        EnvironmentFailure: none runs on this node.
    """
    live = [path for path in rundir.sockets() if _is_live(path)]
    if not live and (other := rundir.of_another_user()):
        raise EnvironmentFailure(
            f"the devhost on this node runs as {other} and answers only that user",
            f"run the command as {other}",
        )
    if not live:
        raise EnvironmentFailure("no devhost is running on this node", _where_else())
    return live


async def fetch(path: Path, *, deadline: float = DEADLINE, largest: int = MAX_DOCUMENT) -> StatusDocument:
    """The current document of the host that listens on ``path``.

    Args:
        deadline: seconds that the host has to answer.
        largest: the maximum size of a document in bytes.

    Raises:
        EnvironmentFailure: no process listens there, or access is denied.
        DevhostError: the host does not answer in time, or not with a document.
    """
    async with _connected(path, "status", deadline, largest) as (_, document):
        return document


async def request(path: Path, message: Mapping[str, object], *, deadline: float) -> dict[str, object]:
    """The answer of the host that listens on ``path`` to a command; see ``telemetry/status.py``.

    Raises:
        EnvironmentFailure: as for :func:`fetch`.
        DevhostError: as for :func:`fetch`, or the host refuses.
    """
    async with _sent(path, message, deadline, MAX_DOCUMENT) as (_, line):
        answer = _decoded(line, path)
    if not isinstance(answer, dict):
        raise DevhostError(f"the process on {_shown(path)} did not answer as devhost does", _OTHER)
    if isinstance(answer.get("error"), str):
        raise _refused(answer, path)
    return answer


async def watch(
    path: Path, *, deadline: float = DEADLINE, largest: int = MAX_DOCUMENT
) -> AsyncGenerator[StatusDocument, None]:
    """Yields the document now and after each change; ends when the host ends.

    Use it in ``contextlib.aclosing``, otherwise the connection may stay open until the loop ends.

    Raises:
        EnvironmentFailure: as for :func:`fetch`.
        DevhostError: as for :func:`fetch`, or the connection ended although the host still runs.
    """
    async with _connected(path, "watch", deadline, largest) as (reader, document):
        yield document
        while line := await _next_line(reader, path, largest):
            yield _parse(line, path)
    if _is_live(path):
        raise DevhostError(
            f"the devhost on {_shown(path)} closed the connection",
            "it was restarted, or this command read too slowly; try again",
        )


async def _next_line(reader: asyncio.StreamReader, path: Path, largest: int) -> bytes:
    try:
        line = await reader.readline()
    except OSError:
        return b""
    except ValueError as error:
        raise _too_long(path, largest) from error
    return line if line.endswith(b"\n") else b""  # the host died in the middle of a document


@asynccontextmanager
async def _connected(
    path: Path, want: str, deadline: float, largest: int
) -> AsyncIterator[tuple[asyncio.StreamReader, StatusDocument]]:
    """The connection and the first document from it."""
    async with _sent(path, {"want": want}, deadline, largest) as (reader, line):
        yield reader, _parse(line, path)


@asynccontextmanager
async def _sent(
    path: Path, message: Mapping[str, object], deadline: float, largest: int
) -> AsyncIterator[tuple[asyncio.StreamReader, bytes]]:
    """The connection on which a request was sent, and the first line of the answer."""
    writer = None
    try:
        try:
            async with asyncio.timeout(deadline):
                reader, writer = await _connect(path, largest)
                writer.write(json.dumps(message).encode() + b"\n")
                line = await _first_line(reader, path, largest)
        except TimeoutError as error:
            raise DevhostError(
                f"the devhost on {_shown(path)} did not answer within {deadline:.0f} s",
                "see its log for the reason",
            ) from error
        yield reader, line
    finally:
        if writer is not None:
            writer.transport.abort()
            await asyncio.sleep(0)  # closes the transport in this loop


async def _connect(path: Path, largest: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    rundir.check_length(path)
    try:
        return await asyncio.open_unix_connection(path, limit=largest)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        if _is_other_file(path):
            raise EnvironmentFailure(f"{_shown(path)} is not a socket", _where_else()) from error
        raise EnvironmentFailure(f"no devhost listens on {_shown(path)}", _where_else()) from error
    except OSError as error:
        hint = "ask as the user it runs as, or as root" if isinstance(error, PermissionError) else _NAME_IT
        raise EnvironmentFailure(f"cannot ask {_shown(path)}: {error.strerror or error}", hint) from error


async def _first_line(reader: asyncio.StreamReader, path: Path, largest: int) -> bytes:
    try:
        line = await reader.readline()
    except OSError:  # the kernel resets a connection that is closed before our request is read
        line = b""
    except ValueError as error:
        raise _too_long(path, largest) from error
    if not line:
        raise DevhostError(f"the devhost on {_shown(path)} closed without an answer", _AGAIN)
    return line


def _too_long(path: Path, largest: int) -> DevhostError:
    """Converts the ValueError of StreamReader for a long line."""
    most = f"{largest >> 20} MiB"
    return DevhostError(f"the process on {_shown(path)} sent a line longer than {most}", _OTHER)


def _decoded(line: bytes, path: Path) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            raise DevhostError(
                f"the devhost on {_shown(path)} closed the connection during its answer", _AGAIN
            ) from error
        raise DevhostError(
            f"the process on {_shown(path)} did not answer with a status document", _OTHER
        ) from error


def _parse(line: bytes, path: Path) -> StatusDocument:
    document = _decoded(line, path)
    if isinstance(document, dict) and isinstance(document.get("error"), str):
        raise _refused(document, path)
    if different := difference(document, StatusDocument):
        raise DevhostError(
            f"the process on {_shown(path)} did not answer with a status document: {different}",
            f"is it another program, or another version of devhost than {__version__}?",
        )
    return cast("StatusDocument", document)


def _refused(answer: Mapping[str, object], path: Path) -> DevhostError:
    error = printable(str(answer["error"]))
    kinds = {kind.exit_code: kind for kind in (DevhostError, UsageError, EnvironmentFailure)}
    kind = kinds.get(cast("int", answer.get("exitCode")))
    if kind is None:
        return DevhostError(f"the devhost on {_shown(path)} answered with an error: {error}")
    return kind(error, printable(str(answer.get("hint", ""))))


def _is_other_file(path: Path) -> bool:
    with suppress(OSError):
        return not stat.S_ISSOCK(path.stat().st_mode)
    return False


def _shown(path: Path) -> str:
    return printable(str(path))


def _is_live(path: Path) -> bool:
    try:
        return rundir.is_live(path)
    except OSError:
        return False


async def _kubelet_dir(path: Path) -> str:
    try:
        return printable((await fetch(path))["kubelet"]["dir"])
    except DevhostError:
        return f"{_shown(path)} (no answer)"


def _where_else() -> str:
    hint = "start it with `devhost run`, or name its socket with --status-socket"
    if os.geteuid() != 0:
        hint += "; a devhost that runs as root answers only root"
    return hint


_Check = Callable[[object], str]
"""The first difference from the expected form, such as ``.kubelet.dir is missing``; empty if none."""


def difference(value: object, kind: type) -> str:
    """Where ``value`` differs from ``kind``, a TypedDict; empty if it does not.

    Additional keys, and words that are not in a Literal, are accepted: a newer devhost may write them.
    """
    found = _check(kind)(value)
    return f"it{found}" if found.startswith(" ") else found.removeprefix(".")


@cache
def _check(kind: Any) -> _Check:
    if is_typeddict(kind):
        checks = {name: _check(of) for name, of in get_type_hints(kind).items()}
        return _keys(checks, kind.__optional_keys__)
    arguments = get_args(kind)
    if get_origin(kind) is list:
        return _each(_check(arguments[0]))
    if get_origin(kind) is types.UnionType:
        (of,) = (argument for argument in arguments if argument is not type(None))
        check = _check(of)
        return lambda value: "" if value is None else check(value)
    if get_origin(kind) is Literal:
        kind = str
    if kind is float:
        kind = int | float  # JSON has only one type of number
    return lambda value: "" if isinstance(value, kind) else " has another type"


def _keys(checks: dict[str, _Check], optional: Collection[str]) -> _Check:
    def differs(value: object) -> str:
        if not isinstance(value, dict):
            return " has another type"
        for key, check in checks.items():
            if key not in value:
                if key in optional:
                    continue
                return f".{key} is missing"
            if found := check(value[key]):
                return f".{key}{found}"
        return ""

    return differs


def _each(check: _Check) -> _Check:
    def differs(value: object) -> str:
        if not isinstance(value, list):
            return " has another type"
        for place, one in enumerate(value):
            if found := check(one):
                return f"[{place}]{found}"
        return ""

    return differs
