"""A client of the Kubernetes API server, as small as the DRA front end needs it.

HTTP/1.1 by ``h11`` over one connection at a time and per watch; TLS trusts only the given certificate
authority. ``devhost run`` imports asyncio without OpenSSL to save memory, so TLS is done here with
``ssl.SSLObject`` over a plain stream.

Every call has a deadline and ends in one of three ways: an answer, :class:`ApiError`, or
:class:`Unreachable`. A request on a connection that the server has closed meanwhile is sent once more on a
new one; so a caller must expect that a write was done although the first answer was lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import urlencode

import h11

from .credentials import Credentials

Object = dict[str, Any]

MOST_BYTES = 16 << 20
"""Bytes of an answer, or of one line of a watch, that are read; one object has at most 2 MiB."""

PATIENCE = 2.0
"""Seconds that a call waits when the server is busy and wants the request again (429 with ``Retry-After``);
after a longer time, or after :data:`TRIES`, the caller gets the error. API Priority and Fairness sends 1."""

TRIES = 3
"""How often a call is sent to a busy server."""

METADATA = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1,application/json"
"""``Accept`` for objects without ``spec`` and ``status`` (API concepts, "Metadata-only fetches")."""

_READ = 1 << 16
_HEAD = 1 << 16


class ApiError(Exception):
    """The API server refused a request.

    Args:
        status: the HTTP status.
        reason: the ``reason`` of the returned Status.
        message: its ``message``.
        retry_after: seconds until the server wants the request again (429, 503), if it gave any.
        details: the whole of a message that was too long for a person.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        details: str = "",
    ) -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.details = details or message


class Unreachable(Exception):
    """The API server did not answer; ``message`` is one line for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class _Closed(Exception):
    """The server closed a connection before it sent any part of an answer."""


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
        """Agrees on a key, and checks the server's certificate.

        Raises:
            ssl.SSLError: the server is not the one that is trusted.
        """
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
        """Sends bytes."""
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

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD)
        self.used = False

    async def request(self, head: h11.Request, body: bytes) -> h11.Response:
        """Sends a request and reads the head of the answer.

        Raises:
            _Closed: the server had closed the connection.
            OSError, ssl.SSLError, h11.RemoteProtocolError: the connection failed.
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
        except (ConnectionError, _Closed):
            if self.used:
                raise _Closed from None
            raise ConnectionResetError("the API server closed the connection") from None
        finally:
            self.used = True

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """The body of the answer, part by part."""
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
        """Closes the connection at once."""
        self._stream.close()

    async def _event(self, *, first: bool = False) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._stream.read()
            if first and not data:
                raise _Closed
            self._http.receive_data(data)
        return event


class KubeApi:
    """The API server.

    Args:
        credentials: where it is, whom to trust, and the token.
        timeout: seconds for a call; for a watch, until its first answer.
        idle: seconds without any byte after which a watch fails: the server sends bookmarks about once a
            minute, so the connection is dead.
        most: bytes of an answer, or of one line of a watch; longer ones are refused.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        timeout: float = 10.0,
        idle: float = 180.0,
        most: int = MOST_BYTES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._credentials = credentials
        self._timeout = timeout
        self._idle = idle
        self._most = most
        self._sleep = sleep
        self._spare: _Connection | None = None

    async def get(self, path: str) -> Object:
        """The object at ``path``.

        Raises:
            ApiError, Unreachable: see the module.
        """
        return await self._call("GET", path)

    async def list(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        metadata_only: bool = False,
        limit: int = 0,
    ) -> AsyncGenerator[Object, None]:
        """The pages of a list, each with at most ``limit`` objects.

        Raises:
            ApiError: see the module; 410 if the list took so long that its beginning is outdated.
            Unreachable: see the module.
        """
        parameters = dict(query or {})
        if limit:
            parameters["limit"] = str(limit)
        accept = METADATA.format("List") if metadata_only else ""
        while True:
            page = await self._call("GET", _with(path, parameters), accept=accept)
            yield page
            metadata = page.get("metadata")
            following = metadata.get("continue") if isinstance(metadata, dict) else None
            if not following:
                return
            if following == parameters.get("continue"):
                raise Unreachable("the API server's list has the same page twice")
            parameters["continue"] = str(following)

    async def watch(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        resource_version: str = "",
        *,
        metadata_only: bool = False,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """The changes since a version: type and object of each, until the server ends the watch.

        Raises:
            ApiError: see the module; 410 if the version is outdated, so that a new list is needed.
            Unreachable: see the module.
        """
        parameters = {
            **(query or {}),
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
        }
        accept = METADATA.format("") if metadata_only else ""
        async with self._deadline(self._timeout):
            connection, response = await self._start("GET", _with(path, parameters), b"", accept)
        try:
            if response.status_code >= 400:
                async with self._deadline(self._timeout):
                    raise _refusal(response, await self._body(connection))
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
                            yield _change(bytes(line))
        finally:
            connection.close()

    async def create(self, path: str, body: Object) -> Object:
        """Creates an object in the collection at ``path``; gives it as stored.

        Raises:
            ApiError: see the module; 409 if there is one of that name.
            Unreachable: see the module.
        """
        return await self._call("POST", path, body)

    async def update(self, path: str, body: Object) -> Object:
        """Replaces the object at ``path``; gives it as stored.

        Raises:
            ApiError: see the module; 409 if it has changed since it was read.
            Unreachable: see the module.
        """
        return await self._call("PUT", path, body)

    async def delete(self, path: str, *, uid: str = "", resource_version: str = "") -> None:
        """Deletes the object at ``path``, if it still has this uid and version; it may be gone already.

        Raises:
            ApiError: see the module; 409 if it is another one.
            Unreachable: see the module.
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
            if error.status != 404:
                raise

    def close(self) -> None:
        """Closes the connection that is kept for the next call."""
        if self._spare is not None:
            self._spare.close()
            self._spare = None

    async def _call(self, method: str, path: str, body: Object | None = None, accept: str = "") -> Object:
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else b""
        async with self._deadline(self._timeout):
            for attempt in range(1, TRIES + 1):
                try:
                    return await self._once(method, path, data, accept)
                except ApiError as error:
                    wanted = error.retry_after if error.status == 429 else None
                    if wanted is None or wanted > PATIENCE or attempt == TRIES:
                        raise
                    await self._sleep(wanted * random.uniform(1.0, 1.5))
        raise AssertionError("the last try ends the call")

    async def _once(self, method: str, path: str, data: bytes, accept: str) -> Object:
        connection, response = await self._start(method, path, data, accept)
        try:
            answer = await self._body(connection)
        except BaseException:
            connection.close()
            raise
        if connection.reusable() and self._spare is None:
            self._spare = connection
        else:
            connection.close()
        if response.status_code >= 400:
            raise _refusal(response, answer)
        return _object(answer)

    async def _start(
        self, method: str, path: str, body: bytes, accept: str
    ) -> tuple[_Connection, h11.Response]:
        """Sends a request and gives the head of its answer; again with a new token after 401."""
        token = await self._credentials.token()
        connection, response = await self._send(self._head(method, path, body, accept, token), body)
        if response.status_code == 401:
            connection.close()
            token = await self._credentials.token(fresh=True)
            connection, response = await self._send(self._head(method, path, body, accept, token), body)
        return connection, response

    async def _send(self, head: h11.Request, body: bytes) -> tuple[_Connection, h11.Response]:
        connection, self._spare = self._spare, None
        if connection is not None:
            try:
                return connection, await connection.request(head, body)
            except _Closed:
                connection.close()
            except BaseException:
                connection.close()
                raise
        connection = await self._connect()
        try:
            return connection, await connection.request(head, body)
        except BaseException:
            connection.close()
            raise

    async def _connect(self) -> _Connection:
        given = self._credentials
        reader, writer = await asyncio.open_connection(given.host, given.port)
        try:
            stream = _Stream(reader, writer, given.tls, given.server_name)
            await stream.handshake()
        except BaseException:
            writer.transport.abort()
            raise
        return _Connection(stream)

    def _head(self, method: str, path: str, body: bytes, accept: str, token: str) -> h11.Request:
        given = self._credentials
        headers = [
            ("Host", given.authority),
            ("Accept", accept or "application/json"),
            ("User-Agent", "devhost"),
        ]
        if token:
            headers.append(("Authorization", f"Bearer {token}"))
        if body:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        return h11.Request(method=method, target=given.path + path, headers=headers)

    async def _next(self, parts: AsyncGenerator[bytes, None]) -> bytes | None:
        async with self._deadline(self._idle):
            return await anext(parts, None)

    async def _body(self, connection: _Connection) -> bytes:
        data = bytearray()
        async with aclosing(connection.parts()) as parts:
            async for part in parts:
                data += part
                if len(data) > self._most:
                    raise Unreachable(f"the API server's answer is longer than {self._most} bytes")
        return bytes(data)

    def _deadline(self, seconds: float) -> _Deadline:
        return _Deadline(seconds, self._credentials.server)


class _Deadline:
    """Limits the time of a block, and gives the errors of a connection a text for people."""

    def __init__(self, seconds: float, server: str) -> None:
        self._timeout = asyncio.timeout(seconds)
        self._server = server
        self._seconds = seconds

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            message = f"the API server {self._server} did not answer within {self._seconds:g} s"
            raise Unreachable(message) from None
        reason = _reason(error)
        if reason:
            raise Unreachable(f"cannot use the API server {self._server}: {reason}") from None


def _reason(error: BaseException | None) -> str:
    """An error of a connection in words; empty for any other."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {_line(error.verify_message)}"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(error, h11.RemoteProtocolError):
        return "its answer is not valid HTTP, or ended early"
    if isinstance(error, OSError):
        number = error.errno or 0
        # asyncio's own texts have Python tuples; numbers below 0 are those of the name resolver
        text = os.strerror(number) if number > 0 else error.strerror or str(error)
        return _line(text) or "the connection failed"
    return ""


def _refusal(response: h11.Response, data: bytes) -> ApiError:
    """The error of a refused request."""
    status: Object = {}
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        status = found if isinstance(found, dict) else {}
    retry = dict(response.headers).get(b"retry-after", b"")
    return ApiError(
        response.status_code,
        _line(str(status.get("reason") or "")),
        _line(str(status.get("message") or "")) or f"HTTP status {response.status_code}",
        float(retry) if retry.isdigit() else None,
        str(status.get("message") or ""),
    )


def _with(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _object(data: bytes) -> Object:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise Unreachable("the API server's answer is not JSON") from None
    if not isinstance(found, dict):
        raise Unreachable("the API server's answer is not an object")
    return found


def _change(line: bytes) -> tuple[str, Object]:
    change = _object(line)
    kind, changed = change.get("type"), change.get("object")
    if not isinstance(kind, str) or not isinstance(changed, dict):
        raise Unreachable("the API server's watch has a line without type and object")
    if kind == "ERROR":
        code = changed.get("code")
        raise ApiError(
            code if isinstance(code, int) else 500,
            str(changed.get("reason", "")),
            _line(str(changed.get("message", ""))),
        )
    return kind, changed


def _line(text: str) -> str:
    """A text on one line, of at most 500 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 500 else f"{line[:499]}…"
