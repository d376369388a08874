"""A client of the Kubernetes API server, as small as the DRA front end needs it.

HTTP/1.1 by ``h11`` over one connection at a time and per watch; TLS trusts only the given certificate
authority. ``devhost run`` imports asyncio without OpenSSL to save memory, so TLS is done here with
``ssl.SSLObject`` over a plain stream.

Every call has a deadline and ends in one of three ways: an answer, :class:`ApiError`, or
:class:`Unreachable`. Lists and watches also raise :class:`Malformed`. A request on a connection that was
closed, or that seems dead, is sent once more on a new one, and so is one with credentials that have been
replaced; so a caller must expect that a write was done although the first answer was lost.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

import h11

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.frozen import frozen

from .answers import (
    ADDRESS,
    ApiError,
    ApiFailure,
    ApiRequest,
    Json,
    Malformed,
    Unreachable,
    connection_failure,
)
from .credentials import Access, Credentials

__all__ = ["ApiError", "ApiFailure", "KubeApi", "Malformed", "Object", "Unreachable"]

Object = dict[str, Any]

MOST_BYTES = 16 << 20
"""Bytes of an answer, or of one line of a watch, that are read; one object has at most 2 MiB."""

PATIENCE = 2.0
"""Seconds that a call waits when the server is busy and wants the request again (429 with ``Retry-After``);
after a longer time, or after :data:`TRIES`, the caller gets the error. API Priority and Fairness sends 1."""

TRIES = 3
"""How often a call is sent to a busy server."""

SPARE = 30.0
"""Seconds for which an unused connection is kept: a firewall may forget it without a sign."""

TIMEOUT = 10.0
"""Seconds for a call, retries included; for a watch, until its first answer."""

FIRST_TRY = 2.0
"""Seconds that a read on a kept connection may take before it is sent again on a new one."""

WATCH = 45
"""Seconds after which the server is asked to end a watch. It sends a bookmark shortly before."""

IDLE = WATCH + 10.0
"""Seconds without any byte after which a watch ends: its connection is dead."""

KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 3}
"""A peer that does not answer the kernel for 25 seconds is gone."""

METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
"""``Accept`` for objects without ``spec`` and ``status`` (API concepts, "Metadata-only fetches")."""

_JSON = "application/json"
_MERGE = "application/strategic-merge-patch+json"
_APPLY = "application/apply-patch+yaml"
"""Its bodies are YAML, which every JSON text is."""

_READ = 1 << 16
_HEAD = 1 << 16


class _Closed(Exception):
    """The server closed a connection before it sent any part of an answer."""


@frozen
class _Message:
    """A request; ``accept`` is the kind of its answer, and ``kind`` that of its body."""

    method: str
    path: str
    body: bytes = b""
    accept: str = _JSON
    kind: str = _JSON


class _Stream:
    """A connection, with TLS or without."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        tls: ssl.SSLContext | None,
        host: str,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._received, self._to_send, server_hostname=host) if tls else None

    async def handshake(self) -> None:
        """Agrees on a key, and checks the server's certificate."""
        while self._tls is not None:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._exchange()
        await self._flush()

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        if self._tls is None:
            return await self._reader.read(_READ)
        while True:
            try:
                return self._tls.read(_READ)
            except ssl.SSLWantReadError:
                await self._exchange()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes) -> None:
        if self._tls is None:
            self._writer.write(data)
        else:
            self._tls.write(data)
        await self._flush()

    def close(self) -> None:
        """Closes the connection at once."""
        self._writer.transport.abort()

    async def _flush(self) -> None:
        if data := self._to_send.read():
            self._writer.write(data)
        await self._writer.drain()

    async def _exchange(self) -> None:
        await self._flush()
        if data := await self._reader.read(_READ):
            self._received.write(data)
        else:
            self._received.write_eof()


class _Connection:
    """One HTTP connection."""

    def __init__(self, stream: _Stream, credentials: Credentials) -> None:
        self.credentials = credentials
        self.spare_since = 0.0
        """When it was last used, in monotonic seconds."""
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD)
        self.used = False

    async def request(self, head: h11.Request, body: bytes) -> h11.Response:
        """Sends a request and reads the head of the answer.

        Raises ``_Closed`` if the server had closed the connection, and ``OSError``, ``ssl.SSLError`` or
        ``h11.RemoteProtocolError`` if it failed.
        """
        try:
            data = self._http.send(head) or b""
            if body:
                data += self._http.send(h11.Data(data=body)) or b""
            await self._stream.write(data + (self._http.send(h11.EndOfMessage()) or b""))
            while True:
                event = await self._event(first=True)
                if isinstance(event, h11.Response):
                    return event
        except (ConnectionError, ssl.SSLError, _Closed) as error:
            if self.used:
                raise _Closed from None
            if isinstance(error, ssl.SSLError):
                raise
            raise ConnectionResetError("the API server closed the connection") from None
        finally:
            self.used = True

    async def parts(self) -> AsyncGenerator[bytes, None]:
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return

    def reusable(self) -> bool:
        """Whether another request may follow; if so, the connection is ready for it."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    def close(self) -> None:
        self._stream.close()

    async def _event(self, *, first: bool = False) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.read()
            if first and not data:
                raise _Closed
            self._http.receive_data(data)
        return event


class KubeApi:
    """The API server; for the errors of its methods see the module.

    ``access`` is where it is, whom to trust, and the token. For ``timeout``, ``first_try`` and ``idle`` see
    the constants of these names. ``most`` are the bytes of an answer, or of one line of a watch; longer ones
    are refused. ``answered`` is called with the method of each request and the HTTP code of its answer, which
    is ``none`` if the API server did not answer. ``clock`` gives monotonic seconds.
    """

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = TIMEOUT,
        first_try: float = FIRST_TRY,
        idle: float = IDLE,
        most: int = MOST_BYTES,
        answered: Callable[[str, str], None] = lambda method, code: None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._timeout = timeout
        self._first_try = first_try
        self._idle = idle
        self._most = most
        self._answered = answered
        self._sleep = sleep
        self._clock = clock
        self._server = ""
        self._spare: _Connection | None = None
        self._keeps = True

    async def get(self, path: str) -> Object:
        return await self._call("GET", path)

    async def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        metadata_only: bool = False,
        limit: int = 0,
    ) -> AsyncGenerator[Object, None]:
        """The pages of a list, each with at most ``limit`` objects, all of which have their metadata.

        Raises ``ApiError`` 410 if the list took so long that its beginning is outdated.
        """
        parameters = dict(query or {})
        if limit:
            parameters["limit"] = str(limit)
        accept = METADATA.format("List") if metadata_only else _JSON
        while True:
            page = await self._call("GET", _with(path, parameters), accept=accept)
            following = _following(page)
            yield page
            if not following:
                return
            if following == parameters.get("continue"):
                raise Unreachable("the API server's list has the same page twice")
            parameters["continue"] = following

    async def watch(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        resource_version: str = "",
        *,
        metadata_only: bool = False,
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """The changes since a version: type and object of each, which has its metadata.

        The watch ends after about :data:`WATCH` seconds, or when its connection is dead; a new one from the
        last version misses nothing. ``opened`` is called when the server has accepted the watch. Raises
        ``ApiError`` 410 if the version is outdated, so that a new list is needed.
        """
        parameters = {
            **(query or {}),
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH),
        }
        accept = METADATA.format("") if metadata_only else _JSON
        message = _Message("GET", _with(path, parameters), accept=accept)
        with self._unanswered("GET"):
            async with self._deadline(self._timeout):
                connection, response = await self._start(message)
        request = ApiRequest("GET", path, watch=True)
        try:
            if response.status_code >= 300:
                async with self._deadline(self._timeout):
                    raise self._refusal(request, response, await self._body(connection))
            opened()
            buffer = bytearray()
            async with aclosing(connection.parts()) as parts:
                while (part := await self._next(parts)) is not None:
                    buffer += part
                    *lines, rest = buffer.split(b"\n") if b"\n" in part else (buffer,)
                    buffer = rest
                    if max(map(len, (*lines, rest))) > self._most:
                        raise Unreachable(f"the API server sent more than {self._most} bytes in one line")
                    for line in lines:
                        if line.strip():
                            yield _change(bytes(line), request)
        finally:
            connection.close()

    async def create(self, path: str, body: Object) -> Object:
        """Creates an object in the collection at ``path``; gives it as stored.

        Raises ``ApiError`` 409 if there is one of that name.
        """
        return await self._call("POST", path, body)

    async def update(self, path: str, body: Object) -> Object:
        """Replaces the object at ``path``; gives it as stored.

        Raises ``ApiError`` 409 if it has changed since it was read.
        """
        return await self._call("PUT", path, body)

    async def patch(self, path: str, body: Object) -> Object:
        """Changes the object at ``path`` by a strategic merge patch; gives it as stored.

        Raises ``ApiError`` 409 if it has another version than ``body``.
        """
        return await self._call("PATCH", path, body, kind=_MERGE)

    async def apply(self, path: str, body: Object, manager: str, *, force: bool = False) -> Object:
        """Makes the object at ``path`` have the fields of ``body`` (server-side apply); gives it as stored.

        Fields that ``manager`` applied before, and that ``body`` lacks, are removed. What others have set
        changes only with ``force``. Raises ``ApiError`` 409 if others have set a field to another value.
        """
        query = {"fieldManager": manager, "force": str(force).lower()}
        return await self._call("PATCH", _with(path, query), body, kind=_APPLY)

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> None:
        """Deletes the object at ``path``, if it still has this uid and version; it may be gone already.

        Raises ``ApiError`` 409 if it is another one.
        """
        wanted = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in wanted.items() if value},
        }
        try:
            await self._call("DELETE", path, options)
        except ApiError as error:
            if not error.absent:
                raise

    def keep(self) -> None:
        """Keeps a connection for the next call, until :meth:`close`."""
        self._keeps = True

    def close(self) -> None:
        """Keeps no connection for the next call, also not those of calls that have not ended yet."""
        self._keeps = False
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    async def _call(
        self, method: str, path: str, body: Object | None = None, *, accept: str = _JSON, kind: str = _JSON
    ) -> Object:
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else b""
        message = _Message(method, path, data, accept, kind)
        with self._unanswered(method):
            async with self._deadline(self._timeout):
                for attempt in range(1, TRIES + 1):
                    try:
                        return await self._once(message)
                    except ApiError as error:
                        wanted = error.retry_after if error.status == 429 else None
                        if wanted is None or wanted > PATIENCE or attempt == TRIES:
                            raise
                        await self._sleep(wanted * random.uniform(1.0, 1.5))
        raise AssertionError("the last try ends the call")

    @contextmanager
    def _unanswered(self, method: str) -> Iterator[None]:
        """Reports a request that gets no answer."""
        try:
            yield
        except Unreachable:
            self._answered(method, "none")
            raise

    async def _once(self, message: _Message) -> Object:
        connection, response = await self._start(message)
        try:
            answer = await self._body(connection)
        except BaseException:
            connection.close()
            raise
        if self._keeps and self._spare is None and connection.reusable():
            connection.spare_since = self._clock()
            self._spare = connection
        else:
            connection.close()
        if response.status_code >= 300:
            raise self._refusal(ApiRequest(message.method, message.path), response, answer)
        return _object(answer)

    async def _start(self, message: _Message) -> tuple[_Connection, h11.Response]:
        """Sends a request and gives the head of its answer; again if the credentials have been replaced."""
        given = await self._current()
        try:
            connection, response = await self._counted(given, message)
        except OSError:  # also of TLS: either side may have another certificate by now
            newer = await self._current(fresh=True)
            if newer is given:
                raise
        else:
            if response.status_code != 401:
                return connection, response
            try:
                newer = await self._current(fresh=True)
            except BaseException:
                connection.close()
                raise
            if newer is given:
                return connection, response
            connection.close()
        return await self._counted(newer, message)

    async def _current(self, *, fresh: bool = False) -> Credentials:
        try:
            found = await self._access.current(fresh=fresh)
        except EnvironmentFailure as error:
            raise Unreachable(f"no access to the API server: {error.message}", error.hint) from None
        self._server = found.server
        return found

    async def _counted(self, given: Credentials, message: _Message) -> tuple[_Connection, h11.Response]:
        """Sends a request, and reports the code of its answer."""
        connection, response = await self._send(given, message)
        self._answered(message.method, str(response.status_code))
        return connection, response

    async def _send(self, given: Credentials, message: _Message) -> tuple[_Connection, h11.Response]:
        head, body = _head(given, message), message.body
        connection, self._spare = self._spare, None
        if connection is not None:
            fits = connection.credentials is given and self._clock() - connection.spare_since < SPARE
            try:
                if fits:
                    # a write is not sent again for being slow: it would be done twice
                    async with asyncio.timeout(self._first_try if message.method == "GET" else None):
                        return connection, await connection.request(head, body)
            except (_Closed, TimeoutError):
                pass
            except BaseException:
                connection.close()
                raise
            connection.close()
        connection = await _connect(given)
        try:
            return connection, await connection.request(head, body)
        except BaseException:
            connection.close()
            raise

    async def _next(self, parts: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next part of a watch; ``None`` at its end, and when its connection is silent or lost."""
        async with self._deadline(self._timeout + self._idle):
            try:
                async with asyncio.timeout(self._idle):
                    return await anext(parts, None)
            except TimeoutError:
                return None

    async def _body(self, connection: _Connection) -> bytes:
        data = bytearray()
        async with aclosing(connection.parts()) as parts:
            async for part in parts:
                data += part
                if len(data) > self._most:
                    raise Unreachable(f"the API server's answer is longer than {self._most} bytes")
        return bytes(data)

    def _refusal(self, request: ApiRequest, response: h11.Response, data: bytes) -> ApiFailure:
        """The error of a refused request."""
        if response.status_code < 400:
            return Unreachable(
                f"{self._server} is no API server: its answer is a redirect (HTTP {response.status_code})",
                "correct the address",
            )
        status: Object = {}
        with suppress(ValueError, RecursionError):
            found = json.loads(data)
            status = found if isinstance(found, dict) else {}
        retry = dict(response.headers).get(b"retry-after", b"")
        return ApiError(
            response.status_code,
            str(status.get("reason") or ""),
            str(status.get("message") or ""),
            float(retry) if retry.isdigit() else None,
            request,
            self._access.source,
        )

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        """Limits the time of a block, and gives the errors of a connection a text for people."""
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                yield
        except Exception as error:
            if timeout.expired() and isinstance(error, TimeoutError):
                message = f"the API server {self._server} did not answer within {seconds:g} s"
                raise Unreachable(message, "check that it runs, its address, and the network") from None
            if isinstance(error, h11.RemoteProtocolError):
                reason, hint = "its answer is not valid HTTP, or ended early", ADDRESS
            else:
                reason, hint = connection_failure(error)
            if not reason:
                raise
            raise Unreachable(f"cannot use the API server {self._server}: {reason}", hint) from None


async def _connect(given: Credentials) -> _Connection:
    reader, writer = await asyncio.open_connection(given.host, given.port)
    try:
        own = writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            own.setsockopt(socket.IPPROTO_TCP, option, value)
        stream = _Stream(reader, writer, given.tls, given.server_name)
        await stream.handshake()
    except BaseException:
        writer.transport.abort()
        raise
    return _Connection(stream, given)


def _head(given: Credentials, message: _Message) -> h11.Request:
    headers = [
        ("Host", given.authority),
        ("Accept", message.accept),
        ("User-Agent", "devhost"),
    ]
    if given.token:
        headers.append(("Authorization", f"Bearer {given.token}"))
    if message.body:
        headers += [("Content-Type", message.kind), ("Content-Length", str(len(message.body)))]
    return h11.Request(method=message.method, target=given.path + message.path, headers=headers)


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Unreachable("the API server's answer is not JSON", ADDRESS) from None
    if not isinstance(found, dict):
        raise Unreachable("the API server's answer is not an object", ADDRESS)
    return found


def _following(page: Object) -> str:
    """What continues a list after a page of it; empty if it is the last."""
    whole = Json(page, "the API server's list")
    whole.at("metadata").required("resourceVersion")
    if "items" not in page:
        raise Malformed("the API server's list has no items")
    for item in whole.items("items"):
        item.at("metadata").required("name")
        _check(item.at("metadata"))
    return whole.at("metadata").text("continue")


def _check(metadata: Json) -> None:
    """Checks the metadata of an object, as far as it is used."""
    for key in ("name", "uid", "resourceVersion"):
        metadata.text(key)
    metadata.number("generation")
    for key, value in metadata.at("annotations").mapping().items():
        if not isinstance(value, str):
            raise Malformed(f"the annotation {key} in {metadata.path} of {metadata.what} is not text")
    for owner in metadata.items("ownerReferences"):
        owner.text("uid")


def _change(line: bytes, request: ApiRequest) -> tuple[str, Object]:
    change = _object(line)
    whole = Json(change, "a change in the API server's watch")
    kind, changed = whole.required("type"), whole.at("object")
    if kind == "ERROR":
        raise ApiError(
            changed.number("code") or 500, changed.text("reason"), changed.text("message"), request=request
        )
    metadata = changed.at("metadata")
    metadata.required("resourceVersion" if kind == "BOOKMARK" else "name")
    _check(metadata)
    return kind, dict(changed.mapping())
