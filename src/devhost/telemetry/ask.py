"""The client of the status socket: finds the running host and asks it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import types
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import is_dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlencode

import h11

from devhost import __version__
from devhost.backend.errors import DevhostError, EnvironmentFailure, UsageError, cut
from devhost.runtime import rundir
from devhost.runtime.log import printable
from devhost.runtime.sockets import live

from .document import StatusDocument, form

DEADLINE = 5.0
"""Seconds that the host has to answer."""
MAX_DOCUMENT = 1 << 27
"""Bytes of a document: 100,000 devices take about 20 MB."""

_READ = 1 << 20
"""Bytes that are read at once."""
_REFUSAL = 1 << 16
"""Bytes of an error."""

_NAME_IT = "name the socket of a running host with --status-socket"
_AGAIN = "try again, because it may have been stopping; if it happens again, see its log"
_OTHER = f"is it another program, or another version of devhost than {__version__}?"
_HINTS = {500: "see the log of devhost for the reason", 503: "try again in a few seconds"}
_TEXT = 200
"""Characters of a line of text in an answer that are shown."""


class Received(NamedTuple):
    """The status of a host, and its JSON as received: a newer devhost may write more."""

    document: StatusDocument
    json: Any


class NoneHere(EnvironmentFailure):
    """No devhost serves what is asked about."""


async def find(kubelet_dir: Path | None = None, socket: Path | None = None) -> Path:
    """The socket of the selected host; without arguments, of the only one on this node.

    Raises ``UsageError`` if several run on this node, or both arguments are given, and
    ``EnvironmentFailure`` if none runs.
    """
    if socket is not None and kubelet_dir is not None:
        raise UsageError("--status-socket and --kubelet-dir cannot be combined", "give one of them")
    if socket is not None:
        return socket
    if kubelet_dir is not None:
        path = rundir.runtime_dir() / rundir.socket_name(kubelet_dir)
        if path not in rundir.status_sockets() or not live(path):
            raise EnvironmentFailure(
                f"no devhost on this node serves {printable(str(kubelet_dir))}", _where_else()
            )
        return path
    found = running()
    if len(found) > 1:
        dirs = [await _kubelet_dir(path) for path in found]
        raise UsageError(
            f"several devhosts are running on this node, for {', '.join(dirs)}", "choose with --kubelet-dir"
        )
    return found[0]


def running() -> list[Path]:
    """The sockets of all hosts that run on this node. Raises ``EnvironmentFailure`` if none runs."""
    found = [path for path in rundir.status_sockets() if live(path)]
    if not found and (other := rundir.of_another_user()):
        raise EnvironmentFailure(
            f"the devhost on this node runs as {other} and answers only that user",
            f"run the command as {other}",
        )
    if not found:
        raise NoneHere("no devhost is running on this node", _where_else())
    return found


async def fetch(path: Path, *, deadline: float = DEADLINE, largest: int = MAX_DOCUMENT) -> Received:
    """The current document of the host that listens on ``path``, of at most ``largest`` bytes.

    Raises ``EnvironmentFailure`` if no process listens there, or access is denied, and ``DevhostError`` if
    the host does not answer within ``deadline`` seconds, or not with a document.
    """
    return _answer(await _asked(path, "GET", "/status", deadline, largest), path)


async def probe(path: Path, name: str) -> str:
    """The answer ``ok`` of ``/healthz`` or ``/readyz``.

    Raises the same as :func:`fetch`, and ``DevhostError`` if the host answers that it is not.
    """
    return (await _asked(path, "GET", f"/{name}", DEADLINE, _REFUSAL)).decode(errors="replace")


async def request(
    path: Path, word: str, parameters: Mapping[str, str], *, deadline: float
) -> dict[str, object]:
    """The answer of the host that listens on ``path`` to a command; see ``telemetry/status.py``.

    Raises the same as :func:`fetch`, and ``DevhostError`` if the host refuses.
    """
    target = f"/{word}?{urlencode(parameters, errors='surrogateescape')}"
    answer = _decoded(await _asked(path, "POST", target, deadline, MAX_DOCUMENT), path)
    if not isinstance(answer, dict):
        raise DevhostError(f"the process on {_shown(path)} did not answer as devhost does", _OTHER)
    return answer


async def watch(
    path: Path, *, deadline: float = DEADLINE, largest: int = MAX_DOCUMENT
) -> AsyncGenerator[Received, None]:
    """Yields the document now and after each change; ends when the host ends.

    Use it in ``contextlib.aclosing``, otherwise the connection may stay open until the loop ends. Raises the
    same as :func:`fetch`, and ``DevhostError`` if the connection ended although the host still runs.
    """
    async with AsyncExitStack() as stack:
        async with _within(deadline, path):
            exchange = await stack.enter_async_context(_connected(path))
            await exchange.send("GET", "/watch")
            line: bytes | None = await exchange.first(largest)
        while line is not None:
            yield _answer(line, path)
            line = await exchange.line(largest)
    if live(path):
        raise DevhostError(
            f"the devhost on {_shown(path)} closed the connection",
            "it was restarted, or this command read too slowly; try again",
        )


async def _asked(path: Path, method: str, target: str, deadline: float, largest: int) -> bytes:
    """The answer to one request."""
    async with _within(deadline, path), _connected(path) as exchange:
        await exchange.send(method, target)
        return await exchange.first(largest)


@asynccontextmanager
async def _within(deadline: float, path: Path) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline):
            yield
    except TimeoutError as error:
        raise DevhostError(
            f"the devhost on {_shown(path)} did not answer within {deadline:.0f} s",
            "see its log for the reason",
        ) from error


@asynccontextmanager
async def _connected(path: Path) -> AsyncIterator[_Exchange]:
    rundir.check_length(path)
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=_READ)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        if _is_other_file(path):
            raise EnvironmentFailure(f"{_shown(path)} is not a socket", _where_else()) from error
        raise EnvironmentFailure(f"no devhost listens on {_shown(path)}", _where_else()) from error
    except OSError as error:
        hint = "ask as the user it runs as, or as root" if isinstance(error, PermissionError) else _NAME_IT
        raise EnvironmentFailure(f"cannot ask {_shown(path)}: {error.strerror or error}", hint) from error
    try:
        yield _Exchange(path, reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)  # closes the transport in this loop


class _Exchange:
    """One request to a host, and its answer.

    Every failure is a ``DevhostError``.
    """

    def __init__(self, path: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._path = path
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self._rest = bytearray()
        self._answered = False

    async def send(self, method: str, target: str) -> None:
        """Sends the request, and receives the head of the answer."""
        head = h11.Request(
            method=method, target=target, headers=[("Host", "devhost"), ("Connection", "close")]
        )
        self._writer.write((self._http.send(head) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        response = await self._event()
        if not isinstance(response, h11.Response):
            if self._answered:
                raise _no_document(self._path)
            raise DevhostError(f"the devhost on {_shown(self._path)} closed without an answer", _AGAIN)
        if response.status_code != HTTPStatus.OK:
            while len(self._rest) < _REFUSAL and (data := await self._data()):
                self._rest += data
            raise _refused(response.status_code, bytes(self._rest), self._path)

    async def first(self, largest: int) -> bytes:
        """The first line of the body."""
        if (line := await self.line(largest)) is None:
            raise DevhostError(
                f"the devhost on {_shown(self._path)} closed the connection during its answer", _AGAIN
            )
        return line

    async def line(self, largest: int) -> bytes | None:
        """The next line of the body; ``None`` if the host has ended, also in the middle of a line."""
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            if (searched := len(self._rest)) > largest:
                most = f"{largest >> 20} MiB"
                raise DevhostError(
                    f"the process on {_shown(self._path)} sent a line longer than {most}", _OTHER
                )
            if not (data := await self._data()):
                return None
            self._rest += data
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    async def _data(self) -> bytes:
        """The next part of the body; empty at its end, or if the host has ended."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def _event(self) -> object:
        """The next part of the answer; ``None`` if the host has ended."""
        data = b"not read yet"
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                try:
                    data = await self._reader.read(_READ)
                except OSError:  # the kernel resets a connection that is closed before the request is read
                    data = b""
                self._answered = self._answered or bool(data)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if not data:
                return None
            raise _no_document(self._path) from error
        return event


def _decoded(body: bytes, path: Path) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _no_document(path) from error


def _no_document(path: Path) -> DevhostError:
    return DevhostError(f"the process on {_shown(path)} did not answer with a status document", _OTHER)


def _answer(body: bytes, path: Path) -> Received:
    found = _decoded(body, path)
    try:
        return Received(read(found, StatusDocument), found)
    except Differs as error:
        where = f"it{error}" if str(error).startswith(" ") else str(error).removeprefix(".")
        raise DevhostError(
            f"the process on {_shown(path)} did not answer with a status document: {where}", _OTHER
        ) from None


def _refused(status: int, body: bytes, path: Path) -> DevhostError:
    """The error in an answer: a JSON object if a command failed, else a line of text."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        code = answer.get("exitCode")
        kinds = {kind.exit_code: kind for kind in (UsageError, EnvironmentFailure)}
        kind = kinds.get(code, DevhostError) if isinstance(code, int) else DevhostError
        return kind(printable(answer["error"]), printable(str(answer.get("hint", ""))))
    line = cut(printable(body.decode(errors="replace").strip().partition("\n")[0]), _TEXT)
    hint = _HINTS.get(status, _OTHER)
    return DevhostError(f"{_shown(path)} answered with status {status}: {line or 'no reason'}", hint)


def _is_other_file(path: Path) -> bool:
    with suppress(OSError):
        return not stat.S_ISSOCK(path.stat().st_mode)
    return False


def _shown(path: Path) -> str:
    return printable(str(path))


async def _kubelet_dir(path: Path) -> str:
    try:
        return printable((await fetch(path)).document.kubelet.dir)
    except DevhostError:
        return f"{_shown(path)} (no answer)"


def _where_else() -> str:
    hint = "start it with `devhost run`, or name its socket with --status-socket"
    if os.geteuid() != 0:
        hint += "; a devhost that runs as root answers only root"
    return hint


class Differs(Exception):
    """Where a value differs from the expected form, such as ``.kubelet.dir is missing``."""


def read(value: object, kind: Any) -> Any:
    """A JSON object as ``kind``, a class of the document; raises ``Differs`` if it has another form.

    Additional keys, and words that are not in a Literal, are accepted: a newer devhost may write them.
    """
    return _reader(kind)(value)


@cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    if is_dataclass(kind):
        return _object(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Sequence:
        return _each(_reader(arguments[0]))
    if origin is types.UnionType:
        of = _reader(arguments[0])
        return lambda value: None if value is None else of(value)
    # JSON has only one type of number
    of_type = str if origin is Literal else int | float if kind is float else kind

    def same(value: object) -> object:
        if not isinstance(value, of_type):
            raise Differs(" has another type")
        return value

    return same


def _object(kind: Any) -> Callable[[object], object]:
    hints = get_type_hints(kind)
    keys, optional = form(kind).keys, form(kind).optional
    members = [(name, key, _reader(hints[name]), key not in optional) for name, key in keys.items()]

    def made(value: object) -> object:
        if not isinstance(value, dict):
            raise Differs(" has another type")
        given = {}
        key = ""
        try:
            for name, key, of, required in members:
                if key in value:
                    given[name] = of(value[key])
                elif required:
                    raise Differs(" is missing")
        except Differs as error:
            raise Differs(f".{key}{error}") from None
        return kind(**given)

    return made


def _each(of: Callable[[object], object]) -> Callable[[object], object]:
    def made(value: object) -> object:
        if not isinstance(value, list):
            raise Differs(" has another type")
        found: list[object] = []
        try:
            found.extend(map(of, value))  # has those before an error
        except Differs as error:
            raise Differs(f"[{len(found)}]{error}") from None
        return found

    return made
