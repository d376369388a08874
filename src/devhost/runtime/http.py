"""Metrics, probes, the status and its page over HTTP, in the event loop.

A server in a thread would still answer "healthy" while the loop is stuck. This server supports the part of
HTTP/1.1 that scrapers, probes, browsers and curl need: GET and HEAD of a few fixed paths, POST without a
body, one request per connection, everything limited in size, number and time. ``h11`` parses the requests and
frames the answers.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import field
from functools import cache, partial
from http import HTTPStatus
from urllib.parse import parse_qsl

import h11

from devhost.backend.errors import EnvironmentFailure, UsageError, exhausted, not_imported
from devhost.backend.frozen import frozen
from devhost.backend.incident import Recurring
from devhost.backend.threads import elsewhere

from .log import get, printable

log = get(__name__)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

_SEND_BUFFER = 65536
"""The kernel's send buffer for a peer in bytes (it uses twice as many, socket(7)). By default it buffers
megabytes for each peer that reads nothing; for a watcher these would be outdated states."""
PIECE = 65536
"""Bytes written at one time, so that data for a slow peer is not copied."""


class Connections:
    """The callback of ``asyncio.start_server`` for connections.

    ``serve`` answers one connection, within deadlines. A peer that leaves (ConnectionError) or stalls
    (TimeoutError) ends it normally; any other exception is logged as a bug and ends only that connection.
    At most ``limit`` are served at a time. Further ones get what ``busy`` returns and are closed; beyond
    twice the limit, nothing is sent.
    """

    def __init__(self, serve: Serve, *, limit: int, busy: Callable[[], bytes]) -> None:
        self._serve = serve
        self._limit = limit
        self._busy = busy
        self._served: set[asyncio.Task[None]] = set()
        self._refused: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begins to serve one connection, which :meth:`end` ends from now on."""
        # drain() then returns when the kernel has everything, so closing does not wait for a slow reader
        writer.transport.set_write_buffer_limits(high=0)
        with suppress(OSError):  # the peer has left already
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        full = len(self._served) >= self._limit
        serve, tasks = (self._refuse, self._refused) if full else (self._serve, self._served)
        if len(tasks) >= self._limit:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._to_its_end(serve, reader, writer))
        tasks.add(task)

        def ended(_: object) -> None:
            tasks.discard(task)
            if task.cancelled():  # perhaps before it began
                writer.transport.abort()

        task.add_done_callback(ended)

    async def _to_its_end(
        self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serves one connection; raises nothing."""
        try:
            await serve(reader, writer)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        except Exception:
            log.exception("connection failed")
        finally:
            writer.close()

    async def _refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._busy())
        await drain_refused(reader, writer)

    async def end(self) -> None:
        tasks = (*self._served, *self._refused)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # closed transports release their descriptors in the next iteration of the loop
        await asyncio.sleep(0)


async def send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Passes ``data`` to the kernel, as fast as the peer reads it. The caller limits the time.

    Raises ``ConnectionError`` if the peer has left.
    """
    rest = memoryview(data)
    while rest:
        writer.write(rest[:PIECE])
        await writer.drain()
        rest = rest[PIECE:]


async def while_present(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pushing: Coroutine[None, None, None]
) -> None:
    """Runs ``pushing``, which writes to a watcher, until it ends or the watcher has left.

    It notices at once that a watcher leaves, not at the next change. What the watcher sends is discarded.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            leaving = tasks.create_task(_left(reader))
            task = tasks.create_task(pushing)
            leaving.add_done_callback(lambda _: task.cancel())
            task.add_done_callback(lambda _: leaving.cancel())
    except* (ConnectionError, TimeoutError):
        writer.transport.abort()  # it left, or stopped reading, while a state was sent


async def _left(reader: asyncio.StreamReader) -> None:
    while await reader.read(4096):
        pass


async def drain_refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what the peer still sends after a refusal: at most 1 MiB, at most one second.

    If a connection is closed with unread input, the kernel resets it, and the peer loses the answer that
    explains the error.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await writer.drain()
            with suppress(OSError):  # the peer has left already
                writer.write_eof()
            for _ in range(16):
                if not await reader.read(65536):
                    return


_ABSOLUTE = re.compile(r"https?://[^/?]+(?=[/?]|$)", re.IGNORECASE)
"""The part of an absolute target before its path (RFC 9112, 3.2.2)."""
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,63}")
"""A part of a host name: DNS limits its length (RFC 1035, 2.3.4); some have an underscore."""
_SCOPE = re.compile(r"[!-~]{1,15}")
"""A network interface after an IPv6 address: in Linux a name has at most 15 bytes (IFNAMSIZ)."""


@frozen
class Limits:
    """Limits for one client, and for all of them together."""

    head: int = 8192
    """Bytes of request line and headers; curl and kubelet probes send about 150, Prometheus about 500."""
    connections: int = 128
    """Connections served at a time."""
    streams: int = 8
    """How many of them may be endless streams, so that open pages do not lock out probes and scrapers."""
    head_deadline: float = 5.0
    """Seconds a client has to send its request."""
    body_deadline: float = 30.0
    """Seconds a client has to read the answer.

    The page of ten thousand devices, 2 MB, takes 30 s at half a megabit per second."""
    stream_deadline: float = 30.0
    """Seconds a client has to read each part of an endless stream."""

    @property
    def open(self) -> int:
        """Connections that are open at a time: as many may be refused as served."""
        return 2 * self.connections


@frozen
class Listen:
    """The address to listen on; an empty ``host`` means every address, IPv4 and IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str) -> Listen:
    """Parses ``HOST:PORT``, ``:PORT`` or ``[IPV6]:PORT``; port 0 means any free port.

    An IPv4 address may be in brackets as well, because a template does not know which kind it gets. Raises
    ``UsageError`` if it is none of these.
    """
    hint = "write HOST:PORT, :PORT for every address, or [IPV6]:PORT"
    if "/" in text:
        raise UsageError(f"cannot listen on {printable(text)!r}: this is no address but a URL or path", hint)
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise UsageError(f"cannot listen on {printable(text)!r}: it has no port", hint)
    if len(port) > 5 or int(port) > 65535:
        raise UsageError(f"cannot listen on {printable(text)!r}: a port is at most 65535", hint)
    if host.startswith("[") and host.endswith("]"):
        if not _is_address(host[1:-1]):
            raise UsageError(f"cannot listen on {printable(text)!r}: no IPv6 address in the brackets", hint)
        return Listen(host[1:-1], int(port))
    if ":" in host and _is_address(host):
        raise UsageError(f"cannot listen on {printable(text)!r}: an IPv6 address needs brackets", hint)
    if host and not _is_name(host):
        raise UsageError(f"cannot listen on {printable(text)!r}: not a host name or address", hint)
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
    """Whether ``host`` can be a name or an IPv4 address; the resolver fails in various ways on others."""
    return len(host) <= 253 and all(map(_LABEL.fullmatch, host.removesuffix(".").split(".")))


@frozen
class Response:
    """The answer of a path; ``headers`` are added to those of every answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


@frozen
class Stream:
    """An endless stream: the items of ``parts``, until the client leaves or the server stops.

    ``parts`` is called only for a client that is served. The client may be slow, so parts must not be queued.
    ``instead`` makes the answer for a client if no stream is free.
    """

    parts: Callable[[], AsyncGenerator[bytes, None]]
    instead: Callable[[], Awaitable[Response]]
    content_type: str


Answer = Response | Stream
Route = Callable[[], Awaitable[Answer]]
Action = Callable[[Mapping[str, str]], Awaitable[Response]]
"""What a POST does; it gets the parameters in the URL."""
CheckResult = tuple[bool, str]
"""Whether the check passed, and the reason if not."""
Check = Callable[[], CheckResult | Awaitable[CheckResult]]
"""A check. It may take some time, which must be limited."""


def _plain(status: HTTPStatus, text: str = "", **headers: str) -> Response:
    return Response(f"{text or status.phrase}\n".encode(), status=status, headers=headers)


def probe(check: Check) -> Route:
    """A path that answers 200 ``ok`` or 503 with the reason."""

    async def answer() -> Answer:
        result = check()
        ok, reason = await result if isinstance(result, Awaitable) else result
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
    """Serves paths until it is stopped. ``routes`` answer a GET of each path, ``actions`` a POST."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        limits: Limits | None = None,
        *,
        actions: Mapping[str, Action] | None = None,
    ) -> None:
        self._routes = dict(routes)
        self._actions = dict(actions or {})
        self._limits = limits or Limits()
        self._streams = 0
        self._parses = False
        self._importing = asyncio.Lock()
        self._lacks = Recurring(60.0)
        self._connections = Connections(self._serve, limit=self._limits.connections, busy=_too_many)
        self._server: asyncio.Server | None = None

    @property
    def listens(self) -> bool:
        """Whether it has an address."""
        return self._server is not None

    async def start(self, at: Listen) -> Listen:
        """Listens on TCP, and returns the actual address. Raises ``EnvironmentFailure`` if it is unusable."""
        accept, head = self._connections.accept, self._limits.head
        try:
            if at.host:
                self._server = await asyncio.start_server(accept, at.host, at.port, limit=head)
            else:
                self._server = await asyncio.start_server(accept, sock=_every_address(at.port), limit=head)
        except (socket.gaierror, UnicodeError) as error:  # the latter from IDNA
            scope = at.host.partition("%")[2]
            reason = f"no network interface {scope}" if scope else "the host name cannot be resolved"
            raise EnvironmentFailure(
                f"cannot listen on {at}: {reason}", "give an address of this machine with --listen"
            ) from error
        except OSError as error:
            raise EnvironmentFailure(f"cannot listen on {at}: {_reason(error)}", _hint(error)) from error
        host, port = self._server.sockets[0].getsockname()[:2]
        return Listen(host, port)

    async def take(self, listener: socket.socket) -> None:
        """Serves a unix socket that listens, instead of the one before, whose connections stay."""
        server = await asyncio.start_unix_server(
            self._connections.accept, sock=listener, limit=self._limits.head
        )
        if self._server is not None:
            self._server.close()
        self._server = server

    async def stop(self) -> None:
        """Stops listening and ends every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._connections.end()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._parser_imported()
        except ImportError as error:
            writer.write(_UNPARSED % self._not_imported(error).body)
            await drain_refused(reader, writer)
            return
        exchange = _Exchange(self._limits)
        answer = await self._answer(exchange, reader)
        if isinstance(answer, Stream) and not exchange.head_only:
            self._streams += 1
            try:
                await while_present(reader, writer, exchange.push(answer, writer))
            finally:
                self._streams -= 1
            return
        async with asyncio.timeout(self._limits.body_deadline):
            for data in exchange.encode(answer):
                await send(writer, data)
        if isinstance(answer, Response) and 400 <= answer.status < 500:
            await drain_refused(reader, writer)

    async def _parser_imported(self) -> None:
        """Returns when h11 is imported. The first connection begins that: a node may never have one."""
        async with self._importing:
            if self._parses:
                return
            try:
                await elsewhere(lambda: h11.Connection)
            except OSError as error:
                if exhausted(error):  # connections have taken all descriptors, which the event loop logs
                    raise ConnectionAbortedError from error
                raise
            self._parses = True

    async def _answer(self, exchange: _Exchange, reader: asyncio.StreamReader) -> Answer:
        try:
            async with asyncio.timeout(self._limits.head_deadline):
                request = await exchange.receive(reader)
        except h11.RemoteProtocolError as error:
            return _plain(HTTPStatus(error.error_status_hint))
        except TimeoutError:
            return _plain(HTTPStatus.REQUEST_TIMEOUT)
        if not request.http_version.startswith(b"1."):
            return _plain(HTTPStatus.BAD_REQUEST)
        method = request.method.decode("ascii")
        if method not in (known := _methods(True, self._actions)):
            return _plain(HTTPStatus.METHOD_NOT_ALLOWED, Allow=", ".join(known))
        split = _split(request.target.decode("ascii"))
        if split is None:
            return _plain(HTTPStatus.BAD_REQUEST)
        path, query = split
        route, action = self._routes.get(path), self._actions.get(path)
        if route is None and action is None:
            return _plain(HTTPStatus.NOT_FOUND)
        if action and method == "POST":
            if any(name == b"origin" for name, _ in request.headers):
                return _plain(HTTPStatus.FORBIDDEN, "a page in a browser may not do this")
            if _has_body(request):
                return _plain(HTTPStatus.BAD_REQUEST, "write the parameters into the URL, as ?name=value")
            return await self._made(path, partial(action, dict(parse_qsl(query, keep_blank_values=True))))
        if route and method != "POST":
            return await self._made(path, route)
        return _plain(HTTPStatus.METHOD_NOT_ALLOWED, Allow=", ".join(_methods(route, action)))

    async def _made(self, path: str, route: Route) -> Answer:
        try:
            answer = await route()
            if isinstance(answer, Stream) and self._streams >= self._limits.streams:
                return await answer.instead()
            return answer
        except ImportError as error:
            return self._not_imported(error)
        except Exception:
            log.exception("request failed", path=path)
            return _plain(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _not_imported(self, error: ImportError) -> Response:
        """The answer to a request whose code cannot be imported."""
        reason = str(not_imported(error))
        self._lacks.report(lambda more: log.error("requests cannot be answered", reason=reason, more=more))
        return _plain(HTTPStatus.INTERNAL_SERVER_ERROR, printable(reason))


_UNPARSED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n%s"
"""The answer to a request that nothing can parse."""


def _methods(reads: object, acts: object) -> tuple[str, ...]:
    """The methods of a server, or of a path, that can be read and that does something."""
    return (*(("GET", "HEAD") if reads else ()), *(("POST",) if acts else ()))


def _has_body(request: h11.Request) -> bool:
    headers = dict(request.headers)
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _split(target: str) -> tuple[str, str] | None:
    """Path and query of a target such as ``/healthz?verbose`` or ``http://node:9400/healthz``.

    ``None`` for others. Proxies send the second form, and a server must accept it (RFC 9112, 3.2.2). The host
    is ignored.
    """
    if absolute := _ABSOLUTE.match(target):
        target = target[absolute.end() :]
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return (path, query) if path.startswith("/") else None


@cache
def _too_many() -> bytes:
    answer = _plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
    return b"".join(_Exchange(Limits()).encode(answer))


class _Exchange:
    """One request and its answer, as bytes."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head)
        self.head_only = False

    async def receive(self, reader: asyncio.StreamReader) -> h11.Request:
        """Reads the request.

        Raises ``RemoteProtocolError`` if it is not HTTP, or longer than permitted, ``ConnectionResetError``
        if the client left without a request, as a TCP probe does.
        """
        size = 0
        while (event := self._http.next_event()) is h11.NEED_DATA:
            # one byte more than permitted, so that h11 reports the excess
            data = await reader.read(self._limits.head + 1 - size)
            size += len(data)
            self._http.receive_data(data)
        if not isinstance(event, h11.Request):
            raise ConnectionResetError
        self.head_only = event.method == b"HEAD"
        return event

    def encode(self, answer: Answer) -> list[bytes]:
        """The bytes of the whole answer, without copying the body; for a stream only the head."""
        body = answer.body if isinstance(answer, Response) else None
        headers = {
            "Content-Type": answer.content_type,
            **({"Content-Length": str(len(body))} if body is not None else {}),
            **(answer.headers if isinstance(answer, Response) else {}),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
        status = answer.status if isinstance(answer, Response) else HTTPStatus.OK
        response = h11.Response(status_code=status, headers=list(headers.items()), reason=status.phrase)
        head = self._http.send(response)
        return [head or b"", *(self._body(body) if body and not self.head_only else ())]

    def _body(self, data: bytes) -> list[bytes]:
        return self._http.send_with_data_passthrough(h11.Data(data=data)) or []

    async def push(self, stream: Stream, writer: asyncio.StreamWriter) -> None:
        """Sends an endless stream."""
        writer.write(b"".join(self.encode(stream)))
        async with aclosing(stream.parts()) as parts:
            async for part in parts:
                async with asyncio.timeout(self._limits.stream_deadline):
                    for data in self._body(part):
                        await send(writer, data)


def _every_address(port: int) -> socket.socket:
    """One socket for IPv4 and IPv6, or only for IPv4 if the kernel has no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            # IPv6 is compiled in but disabled (ipv6.disable, disable_ipv6)
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port))


def _reason(error: OSError) -> str:
    known = {
        errno.EADDRINUSE: "another process uses this port",
        errno.EADDRNOTAVAIL: "this machine has no such address",
        errno.EACCES: "no permission for this port",
    }
    # since Python 3.13 asyncio omits the error number if no address could be bound
    return known.get(error.errno or errno.EADDRNOTAVAIL, error.strerror or "the kernel refused")


def _hint(error: OSError) -> str:
    if error.errno == errno.EACCES:
        return "choose a port from 1024 up with --listen"
    return "choose another one with --listen"
