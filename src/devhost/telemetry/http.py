"""Metrics, probes and the status page over HTTP, in the event loop itself.

A server in a thread would go on answering "healthy" while the loop is stuck; this one cannot. It speaks
as much HTTP/1.1 as scrapers, probes and browsers need: GET and HEAD of a few fixed paths, one request a
connection, everything bounded in size, number and time.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from devhost.backend.errors import EnvironmentFailure, UsageError

from . import log
from .connections import Connections, farewell, send, while_present
from .printable import printable

_REQUEST = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~\x80-\xff]+) HTTP/1\.[0-9]")
"""A request line: method, target, version (RFC 9112, 3)."""
_ABSOLUTE = re.compile(r"https?://[^/?]+(?=[/?]|$)", re.IGNORECASE)
"""What an absolute target has before its path (RFC 9112, 3.2.2)."""
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""One part of a host name: so long at most in DNS (RFC 1035, 2.3.4), with the underscore that some have."""
_SCOPE = re.compile(r"[!-~]{1,15}")
"""A network interface behind an IPv6 address: Linux has names of 15 bytes at most (IFNAMSIZ)."""

MAX_HEAD = 8192
"""Bytes of request line and headers; curl and kubelet probes send about 150, Prometheus about 500."""
MAX_CONNECTIONS = 128
"""Connections served at a time: more than the loop accepts in one turn (100), so that in a flood of those
that say nothing one with a request is heard before it would have to give way."""
MAX_STREAMS = 8
"""Connections that answers without end may take: a page left open must not keep out probes and scrapers."""
HEAD_DEADLINE = 5.0
"""Seconds a client has to send its request."""
BODY_DEADLINE = 30.0
"""Seconds a client has to take the answer: 2 MB, of ten thousand devices, through half a megabit a second."""
STREAM_DEADLINE = 30.0
"""Seconds a client has to take each part of an answer without end."""

_log = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen; an empty ``host`` means every address, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> Listen:
    """Reads ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``; port 0 takes any free one.

    An IPv4 address may be in brackets, too: who writes a template knows no more than that it is an address.

    Raises:
        UsageError: it is none of these.
    """
    hint = "write HOST:PORT, :PORT for every address, or [IPV6]:PORT"
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise UsageError(f"cannot listen on {printable(text)!r}: it has no port", hint)
    if len(port) > 5 or int(port) > 65535:
        raise UsageError(f"cannot listen on {printable(text)!r}: a port is at most 65535", hint)
    if host.startswith("[") and host.endswith("]"):
        if not _is_address(host[1:-1]):
            raise UsageError(f"cannot listen on {printable(text)!r}: no IPv6 address in the brackets", hint)
        return Listen(host[1:-1], int(port))
    if ":" in host:
        raise UsageError(f"cannot listen on {printable(text)!r}: an IPv6 address needs brackets", hint)
    if host and not _is_name(host):
        raise UsageError(f"cannot listen on {printable(text)!r}: that is no host name or address", hint)
    return Listen(host, int(port))


def _is_address(text: str) -> bool:
    address, percent, scope = text.partition("%")
    families = (socket.AF_INET6,) if percent else (socket.AF_INET6, socket.AF_INET)
    if percent and not _SCOPE.fullmatch(scope):
        return False
    for family in families:
        with suppress(OSError, ValueError):
            socket.inet_pton(family, address)
            return True
    return False


def _is_name(host: str) -> bool:
    """Whether ``host`` can be a name or an IPv4 address; the resolver fails on others in ways of its own."""
    return len(host) <= 253 and all(map(_LABEL.fullmatch, host.removesuffix(".").split(".")))


@dataclass(frozen=True, slots=True)
class Response:
    """What a path answers; ``headers`` come beside those that every answer has."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    def encode(self, *, head_only: bool = False) -> bytes:
        """The bytes of the whole answer; without the body for HEAD."""
        own = {"Content-Length": str(len(self.body)), **self.headers}
        return _head(self.status, self.content_type, own) + (b"" if head_only else self.body)


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer without end: what ``parts`` gives, until the client leaves or the server stops.

    ``parts`` is called only for a client that is served. It can be slow: whoever makes the parts must not
    queue them. ``once`` makes the whole answer of a client for whom no stream is free: it asks again later.
    """

    parts: Callable[[], AsyncGenerator[bytes, None]]
    once: Callable[[], Awaitable[bytes]]
    content_type: str

    def head(self) -> bytes:
        """What goes before the parts."""
        return _head(HTTPStatus.OK, self.content_type, {})


def _head(status: HTTPStatus, content_type: str, headers: Mapping[str, str]) -> bytes:
    lines = {
        "Content-Type": content_type,
        **headers,
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode("ascii")


Answer = Response | Stream
Route = Callable[[], Awaitable[Answer]]
Verdict = tuple[bool, str]
"""Whether all is well, and the reason if not."""
Check = Callable[[], Verdict | Awaitable[Verdict]]
"""Tells whether all is well; may take its time, which is to be bounded."""


def _plain(status: HTTPStatus, text: str = "", **headers: str) -> Response:
    return Response(f"{text or status.phrase}\n".encode(), status=status, headers=headers)


def probe(check: Check) -> Route:
    """A path that answers 200 ``ok`` or 503 with the reason."""

    async def answer() -> Answer:
        said = check()
        ok, reason = await said if isinstance(said, Awaitable) else said
        if ok:
            return _plain(HTTPStatus.OK, "ok")
        return _plain(HTTPStatus.SERVICE_UNAVAILABLE, printable(reason) or "not ok")

    return answer


def page(render: Callable[[], Awaitable[bytes]], content_type: str) -> Route:
    """A path that answers 200 with what ``render`` returns."""

    async def answer() -> Answer:
        return Response(await render(), content_type)

    return answer


class HttpServer:
    """Serves ``routes``, a mapping of path to route.

    ``start`` binds and returns the address that is really used, ``stop`` ends every connection.
    """

    def __init__(self, listen: Listen, routes: Mapping[str, Route]) -> None:
        self._listen = listen
        self._routes = dict(routes)
        self._streams = 0
        self._connections = Connections(
            self._serve,
            limit=MAX_CONNECTIONS,
            busy=_plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections").encode(),
            log=_log,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> Listen:
        """Begins to listen.

        Raises:
            EnvironmentFailure: the address is in use, not ours, or not permitted.
        """
        try:
            self._server = await self._bind()
        except (socket.gaierror, UnicodeError) as error:  # the latter from IDNA
            scope = self._listen.host.partition("%")[2]
            reason = f"no network interface {scope} here" if scope else "the host name cannot be resolved"
            raise EnvironmentFailure(
                f"cannot listen on {self._listen}: {reason}",
                "give an address of this machine with --listen",
            ) from error
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot listen on {self._listen}: {_reason(error)}", _mend(error)
            ) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return Listen(host, port)

    async def _bind(self) -> asyncio.Server:
        accept = self._connections.accept
        if self._listen.host:
            host, port = self._listen.host, self._listen.port
            return await asyncio.start_server(accept, host, port, limit=MAX_HEAD)
        everywhere = _every_address(self._listen.port)
        return await asyncio.start_server(accept, sock=everywhere, limit=MAX_HEAD)

    async def stop(self) -> None:
        """Stops listening and ends every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._connections.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, head_only = await self._answer(reader)
        if isinstance(answer, Stream) and not head_only:
            await self._stream(answer, reader, writer)
            return
        data = answer.head() if isinstance(answer, Stream) else answer.encode(head_only=True)
        body = answer.body if isinstance(answer, Response) and not head_only else b""
        with self._connections.waiting():
            async with asyncio.timeout(BODY_DEADLINE):
                await send(writer, data)
                await send(writer, body)
            if isinstance(answer, Response) and 400 <= answer.status < 500:
                await farewell(reader, writer)

    async def _stream(
        self, stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._streams += 1
        try:
            await while_present(reader, writer, _push(stream, writer))
        finally:
            self._streams -= 1

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[Answer, bool]:
        try:
            with self._connections.waiting():
                async with asyncio.timeout(HEAD_DEADLINE):
                    head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), False
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise ConnectionResetError from error  # opened and closed: a TCP probe
            return _plain(HTTPStatus.BAD_REQUEST), False
        except TimeoutError:
            return _plain(HTTPStatus.REQUEST_TIMEOUT), False
        request = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if request is None:
            return _plain(HTTPStatus.BAD_REQUEST), False
        method, target = (part.decode("latin-1") for part in request.groups())
        if method not in ("GET", "HEAD"):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET, HEAD"), False
        path = _path(target)
        if path is None:
            return _plain(HTTPStatus.BAD_REQUEST), method == "HEAD"
        return await self._route(path), method == "HEAD"

    async def _route(self, path: str) -> Answer:
        route = self._routes.get(path)
        if route is None:
            return _plain(HTTPStatus.NOT_FOUND)
        try:
            answer = await route()
            if isinstance(answer, Stream) and self._streams >= MAX_STREAMS:
                return Response(await answer.once(), answer.content_type)
            return answer
        except Exception:  # noqa: BLE001 - the client learns that it failed, the log why
            _log.exception("request failed", path=path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)


def _path(target: str) -> str | None:
    """The path of a target such as ``/healthz?verbose`` or ``http://node:9400/healthz``; None of any other.

    Proxies send the second form, and a server has to take it (RFC 9112, 3.2.2). Who is meant is not asked.
    """
    if absolute := _ABSOLUTE.match(target):
        target = target[absolute.end() :]
        target = target if target.startswith("/") else f"/{target}"
    return target.partition("?")[0] if target.startswith("/") else None


async def _push(stream: Stream, writer: asyncio.StreamWriter) -> None:
    writer.write(stream.head())
    async with aclosing(stream.parts()) as parts:
        async for part in parts:
            async with asyncio.timeout(STREAM_DEADLINE):
                await send(writer, part)


def _every_address(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, or for IPv4 where the kernel has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            # IPv6 is compiled in but switched off (ipv6.disable, disable_ipv6)
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port))


def _reason(error: OSError) -> str:
    known = {
        errno.EADDRINUSE: "another process uses this port",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EACCES: "no permission for this port",
    }
    # asyncio since Python 3.13 leaves the number out when no address could be bound
    return known.get(error.errno or errno.EADDRNOTAVAIL, error.strerror or "the kernel refused")


def _mend(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "choose a port from 1024 up with --listen"
    return "choose another one with --listen"
