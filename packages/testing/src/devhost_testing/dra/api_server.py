"""An API server for tests: real sockets, and the part of Kubernetes that DRA drivers use.

It stores ResourceSlices, ResourceClaims with their status, DeviceClasses and Nodes; it answers get, list in
pages, watch, create, update, patch, delete and delete of a collection, with resource versions, generations,
preconditions and selectors. A test can make it fail in the ways of a real one.

Limits: any valid token may do everything, and there is no admission. Objects are not validated against a
schema: only the rules of a ResourceSlice in :mod:`.api_objects` are checked. It sets no defaults. Selectors
know only ``key=value``. A list that is read in pages is a snapshot, but a watch does not notice that an
object begins or stops to match its selector. Patches are strategic merge patches, in which conditions are
the only list that is merged; server-side apply knows only ``status.devices`` of a claim. There are no
finalizers, no garbage collection, no protobuf and no HTTP/2. Bookmarks are sent when the test asks for them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

import h11

from .api_objects import (
    NODES,
    ApiPath,
    ApiRefused,
    Change,
    Object,
    Objects,
    encoded,
    metadata_of,
    place,
    selected,
)


class Write(NamedTuple):
    """A create, update, patch or delete that was carried out."""

    verb: str
    path: str
    body: Object
    time: float


class Request(NamedTuple):
    """A request that arrived, with lower-case header names."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Object


@dataclass
class _Failure:
    status: int
    left: int
    retry_after: float | None
    methods: tuple[str, ...]


class ApiServer:
    """The simulated API server; listens on a port of 127.0.0.1 while used as a context manager.

    Args:
        tls: the certificate to serve with; ``None`` for plain HTTP.
        clock: the time of writes.

    Attributes:
        writes: what was written, oldest first; see :class:`Write`.
        requests: every request that arrived, oldest first.
        connections: how many connections were accepted.
        chunked: whether answers come in chunks, without their length.
        version: that at ``/version``.
    """

    def __init__(
        self, *, tls: ssl.SSLContext | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.objects = Objects()
        self.writes: list[Write] = []
        self.requests: list[Request] = []
        self.connections = 0
        self.chunked = False
        self.version = "v1.34.0"
        self._tls = tls
        self._clock = clock
        self._server: asyncio.Server | None = None
        self._token: str | None = None
        self._failures: list[_Failure] = []
        self._raw: list[bytes] = []
        self._bodies: dict[str, bytes] = {}
        self._refusals: list[tuple[int, bytes]] = []
        self._hang_ups = 0
        self._lost = 0
        self._going = asyncio.Event()
        self._going.set()
        self._writers: dict[asyncio.StreamWriter, bool] = {}  # whether it is idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: list[_Watch] = []
        self._dead: set[asyncio.StreamWriter] = set()
        self._absent = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def restart(self, tls: ssl.SSLContext) -> None:
        """Closes every connection, and serves with other certificates at the same port."""
        port = self.port
        await self.stop()
        self._tls = tls
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", port, ssl=tls)

    async def stop(self) -> None:
        """Closes the port and every connection."""
        if self._server is None:
            return
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None, "the server is not running"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Its address."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def watches(self) -> int:
        """How many watches are open."""
        return len(self._watches)

    @property
    def sent(self) -> int:
        """How many lines were sent to the watches that are open."""
        return sum(watch.sent for watch in self._watches)

    @property
    def sending(self) -> bool:
        """Whether a watch has something to send that it has not sent yet."""
        return any(watch.busy or watch.wake.is_set() for watch in self._watches)

    # What other clients do

    def put(self, path: str, value: Object) -> Object:
        """Creates or changes an object in the collection at ``path``, status included."""
        return self.objects.put(path, value)

    def remove(self, path: str) -> None:
        """Removes the object at ``path``, or every object of the collection."""
        where = place(path)
        for value in [self.objects.get(where)] if where.name else self.objects.all(where, {}):
            self.objects.delete(_named(where, value))

    def node(self, name: str, **status: Any) -> Object:
        """Adds a Node."""
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
        return self.put(NODES, body)

    def stored(self, path: str) -> list[Object]:
        """The object at ``path``, or those of the collection, by name."""
        where = place(path)
        return [self.objects.get(where)] if where.name else self.objects.all(where, {})

    # How it fails

    def require_token(self, token: str | None) -> None:
        """Answers 401 from now on to requests without this token; ``None`` accepts all."""
        self._token = token

    def fail_next(
        self, status: int, n: int = 1, retry_after: float | None = None, methods: tuple[str, ...] = ()
    ) -> None:
        """Answers the next requests, or the next with one of the HTTP methods, with an error."""
        self._failures.append(_Failure(status, n, retry_after, methods))

    def answer_next(self, raw: bytes) -> None:
        """Answers the next request with these bytes, and closes the connection."""
        self._raw.append(raw)

    def answer_at(self, path: str, body: bytes | None) -> None:
        """Answers requests for this path with 200 and a body, as a broken proxy; ``None`` ends that."""
        self._bodies.pop(path, None)
        if body is not None:
            self._bodies[path] = body

    def answer_write(self, status: int, body: bytes) -> None:
        """Answers the next create, update or patch with an error that has this body."""
        self._refusals.append((status, body))

    def hang_up_writes(self, n: int) -> None:
        """Closes the connection at the next creates or updates, and does not carry them out."""
        self._hang_ups += n

    def lose_answers(self, n: int = 1) -> None:
        """Carries out the next requests, but closes the connection instead of answering."""
        self._lost += n

    def hang(self) -> None:
        """Answers no request until :meth:`resume`."""
        self._going.clear()

    def resume(self) -> None:
        """Answers the requests that hang, and later ones."""
        self._going.set()

    def drop_fields(self, *names: str) -> None:
        """Drops these fields of objects that are written from now on, as a server that does not know them."""
        self.objects.dropped = frozenset(names)

    def refuse_attribute(self, name: str, most: int = 1000) -> None:
        """Refuses slices with devices that have this attribute; an answer names ``most`` devices at most."""
        self.objects.refused[name] = most

    def refuse_counters(self, *, refuse: bool = True) -> None:
        """Refuses devices that consume counters of another slice, as Kubernetes 1.34 with the gate."""
        self.objects.counters_apart = not refuse

    def refuse_taint_effects(self, *, refuse: bool = True) -> None:
        """Refuses taints without effect, and more than four of a device, as Kubernetes 1.34 with the gate."""
        self.objects.all_taints = not refuse

    def forget_history(self) -> None:
        """Answers 410 to open lists and watches, and to watches from an older version."""
        self.objects.forget()

    def end_watches(self) -> None:
        """Ends each watch as a server does after some minutes."""
        for watch in tuple(self._watches):
            watch.end()

    def bookmark(self) -> None:
        """Sends a bookmark to each watch that wants them."""
        for watch in self._watches:
            watch.bookmark = True
            watch.wake.set()

    def send_line(self, line: bytes) -> None:
        """Sends bytes to each watch as they are."""
        for watch in self._watches:
            watch.lines.append(line)
            watch.wake.set()

    def kill_connections(self) -> None:
        """Lets the present connections die silently: they stay open, and nothing arrives on either side."""
        self._dead |= self._writers.keys()

    def lack(self, group: str) -> None:
        """Answers from now on as a server without this API group; an empty one gives all back."""
        self._absent = f"/apis/{group}/" if group else ""

    def close_connections(self, *, idle: bool = False) -> None:
        """Closes the connections at once, or only those that wait for a request."""
        for writer, waits in tuple(self._writers.items()):
            if waits or not idle:
                writer.transport.abort()

    # HTTP

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self._writers[writer] = True
        try:
            with suppress(ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
                await self._converse(reader, writer)
        finally:
            del self._writers[writer]
            self._dead.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER)
        while (request := await _received(http, reader)) is not None:
            self._writers[writer] = False
            await self._arrival(writer)
            self.requests.append(request)
            await self._going.wait()
            if self._raw:
                writer.write(self._raw.pop(0))
                await _close(writer)
                return
            if self._hang_ups and request.method in ("POST", "PUT"):
                self._hang_ups -= 1
                return
            status, headers, body = self._answer(request)
            if self._lost:
                self._lost -= 1
                return
            out = _Out(http, writer, self._arrival, chunked=self.chunked or isinstance(body, _Watch))
            if isinstance(body, _Watch):
                await self._stream(body, out, reader)
            else:
                await out.head(status, headers, len(body))
                await out.data(body)
            await out.end()
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                await _close(writer)
                return
            http.start_next_cycle()
            self._writers[writer] = True

    async def _arrival(self, writer: asyncio.StreamWriter) -> None:
        """Waits until something that is sent over a connection arrives: for ever on one that is dead."""
        if writer in self._dead:
            await asyncio.Event().wait()

    async def _stream(self, watch: _Watch, out: _Out, reader: asyncio.StreamReader) -> None:
        self._watches.append(watch)
        self.objects.listeners.append(watch.wake.set)
        gone = asyncio.create_task(reader.read(1))
        gone.add_done_callback(lambda _: watch.end())
        try:
            await out.head(200, {}, 0)
            async for line in watch.run():
                await out.data(line)
                watch.sent += 1
        finally:
            gone.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await gone
            self._watches.remove(watch)
            self.objects.listeners.remove(watch.wake.set)

    def _answer(self, request: Request) -> tuple[int, dict[str, str], bytes | _Watch]:
        headers: dict[str, str] = {}
        if self._refusals and request.method in ("POST", "PUT", "PATCH"):
            status, refusal = self._refusals.pop(0)
            return status, headers, refusal
        if request.path in self._bodies:
            return 200, headers, self._bodies[request.path]
        if self._absent and request.path.startswith(self._absent):
            return 404, {"Content-Type": "text/plain"}, b"404 page not found\n"
        try:
            self._refuse(request, headers)
            if request.path == "/version":
                return 200, headers, encoded({"gitVersion": self.version})
            where = place(request.path)
            found = self._carry_out(request, where)
        except ApiRefused as error:
            return error.status, headers, encoded(_status(error))
        status = 201 if request.method == "POST" else 200
        return status, headers, found if isinstance(found, _Watch) else encoded(found)

    def _refuse(self, request: Request, headers: dict[str, str]) -> None:
        for failure in self._failures:
            if not failure.methods or request.method in failure.methods:
                failure.left -= 1
                if failure.left <= 0:
                    self._failures.remove(failure)
                if failure.retry_after is not None:
                    headers["Retry-After"] = str(int(failure.retry_after))
                raise ApiRefused(failure.status, "Simulated", "the test wants this request to fail")
        if self._token is not None and request.headers.get("authorization") != f"Bearer {self._token}":
            raise ApiRefused(401, "Unauthorized", "Unauthorized")

    def _carry_out(self, request: Request, where: ApiPath) -> Object | _Watch:
        partial = "as=PartialObjectMetadata" in request.headers.get("accept", "")
        if request.method == "GET" and where.name:
            found = self.objects.get(where)
            return metadata_of(found) if partial else found
        if request.method == "GET" and request.query.get("watch") in ("1", "true"):
            return _Watch(self.objects, where, request.query, partial=partial)
        if request.method == "GET":
            return self._list(where, request.query, partial=partial)
        if request.query.get("dryRun") == "All":
            return self.objects.kept(where.kind, request.body)
        found = self._write(request, where)
        self.writes.append(Write(request.method.lower(), request.path, request.body, self._clock()))
        return found

    def _write(self, request: Request, where: ApiPath) -> Object:
        if request.method == "POST" and not where.name:
            return self.objects.create(where, request.body)
        if request.method == "PUT" and where.name:
            return self.objects.update(where, request.body)
        if request.headers.get("content-type") == "application/apply-patch+yaml":
            manager, force = request.query.get("fieldManager", ""), request.query.get("force") == "true"
            return self.objects.apply(where, request.body, manager, force=force)
        if request.method == "PATCH" and where.name:
            return self.objects.patch(where, request.body)
        if request.method == "DELETE" and where.name:
            return self.objects.delete(where, request.body.get("preconditions"))
        if request.method == "DELETE":
            for value in self.objects.all(where, request.query):
                self.objects.delete(_named(where, value))
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        raise ApiRefused(405, "MethodNotAllowed", "the server does not allow this method on the resource")

    def _list(self, where: ApiPath, query: Mapping[str, str], *, partial: bool) -> Object:
        version, found, following, remaining = self.objects.page(where, query)
        metadata: Object = {"resourceVersion": str(version)}
        if following:
            metadata.update({"continue": following, "remainingItemCount": remaining})
        if partial:
            items = [metadata_of(value) for value in found]
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": metadata,
                "items": items,
            }
        kind = where.kind
        return {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": metadata,
            "items": found,
        }


class _Watch:
    """One open watch."""

    def __init__(self, objects: Objects, where: ApiPath, query: Mapping[str, str], *, partial: bool) -> None:
        self.wake = asyncio.Event()
        self.sent = 0
        self.busy = True
        self.bookmark = False
        self.lines: list[bytes] = []
        self._objects = objects
        self._where = where
        self._query = query
        self._partial = partial
        self._ended = False
        self._initial: list[Object] = []
        version = query.get("resourceVersion", "")
        if version in ("", "0"):
            self._initial = objects.all(where, query)
            self._version = objects.version
        else:
            objects.all(where, query)  # refuses unknown selectors
            if not version.isdecimal():
                raise ApiRefused(400, "BadRequest", f"Invalid value: {version!r}: resourceVersion")
            self._version = int(version)

    def end(self) -> None:
        """Ends the watch."""
        self._ended = True
        self.wake.set()

    async def run(self) -> AsyncIterator[bytes]:
        """The lines of the watch."""
        for value in self._initial:
            yield self._line("ADDED", value)
        while not self._ended:
            self.busy = True
            self.wake.clear()
            try:
                changes = self._objects.changes(self._where, self._version)
            except ApiRefused as error:
                yield self._raw("ERROR", _status(error))
                return
            for change in changes:
                self._version = change.version
                if selected(change.kind, change.value, self._query):
                    yield self._change(change)
            if self.bookmark and self._query.get("allowWatchBookmarks") == "true":
                self._version = self._objects.version
                yield self._line("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})
            self.bookmark = False
            while self.lines:
                yield self.lines.pop(0)
            self.busy = False
            await self.wake.wait()

    def _change(self, change: Change) -> bytes:
        return self._line(change.type, change.value)

    def _line(self, kind: str, value: Object) -> bytes:
        return self._raw(kind, metadata_of(value) if self._partial else value)

    def _raw(self, kind: str, value: Object) -> bytes:
        return encoded({"type": kind, "object": value}) + b"\n"


class _Out:
    """One answer on its way."""

    def __init__(
        self,
        http: h11.Connection,
        writer: asyncio.StreamWriter,
        arrival: Callable[[asyncio.StreamWriter], Awaitable[None]],
        *,
        chunked: bool,
    ) -> None:
        self._http = http
        self._arrival = arrival
        self._writer = writer
        self._chunked = chunked

    async def head(self, status: int, headers: Mapping[str, str], length: int) -> None:
        framing = {"Transfer-Encoding": "chunked"} if self._chunked else {"Content-Length": str(length)}
        fields = {"Content-Type": "application/json", **framing, **headers}
        await self._send(h11.Response(status_code=status, headers=list(fields.items())))

    async def data(self, body: bytes) -> None:
        step = 1000 if self._chunked else max(1, len(body))
        for start in range(0, len(body), step):
            await self._send(h11.Data(data=body[start : start + step]))

    async def end(self) -> None:
        await self._send(h11.EndOfMessage())

    async def _send(self, event: Any) -> None:
        await self._arrival(self._writer)
        self._writer.write(self._http.send(event) or b"")
        await self._writer.drain()


async def _received(http: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    """The next request; ``None`` when the client has closed the connection."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(1 << 16))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            break
        else:
            return None
    assert head is not None
    target = urlsplit(head.target.decode())
    headers = {name.decode(): value.decode() for name, value in head.headers}
    given = json.loads(body) if body else {}
    return Request(head.method.decode(), target.path, dict(parse_qsl(target.query)), headers, given)


async def _close(writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def _named(where: ApiPath, value: Object) -> ApiPath:
    metadata = value["metadata"]
    return replace(where, name=metadata["name"], namespace=metadata.get("namespace", ""))


def _status(error: ApiRefused) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "code": error.status,
    }
