"""The plugin server of one resource: v1beta1.DevicePlugin on a separate unix socket.

Each resource needs a server, because the kubelet's requests carry no resource name. Each registration gets a
new server on a new path: a kubelet up to 1.36 confuses two connections of one resource, and one from 1.37 on
refuses a path that is still connected.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from operator import is_
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from devhost.allocation.allocator import Allocated, Allocator, UnhealthyDevice, UnknownDevice
from devhost.allocation.claims import DeviceHeld
from devhost.allocation.inventory import Entry, Snapshot
from devhost.allocation.resource_backend import MissingPath
from devhost.backend.backoff import TokenBucket
from devhost.backend.errors import AllocationError, BackendTimeout, DevhostError
from devhost.backend.incident import Recurring
from devhost.backend.model import Edits
from devhost.planning.claims import holder_field
from devhost.planning.naming import digest
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime import rpc
from devhost.runtime.log import get, printable
from devhost.runtime.reconciler import together
from devhost.telemetry.metrics import CallFailure, Metrics

from .api import HEALTHY, RECEIVE_LIMIT, UNHEALTHY, VERSION
from .api import api_pb2 as pb

log = get(__name__)

CONNECTIONS = 16
"""Most connections to one socket; others are closed at once. A kubelet and a probe use one each."""

STREAMS = 512
"""Most calls in progress on one connection. A client learns this limit first, and lets further calls wait."""

QUIET = 60.0
"""Seconds for which further undecodable requests of one method are counted instead of logged."""

NAMED = 64
"""Most devices that the line about an Allocate names: a container may get 100 000."""

SOCKET_PREFIX = "dh-"
"""The names of all devhost sockets in the kubelet's directory begin like this."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def socket_name(resource: str) -> str:
    """A fresh socket name for a resource, short for every resource name."""
    return f"{SOCKET_PREFIX}{digest(resource)}-{os.urandom(3).hex()}.sock"


def server_stem(name: str) -> str:
    """The part that all socket names of one resource have in common."""
    return name.rpartition("-")[0]


class PluginServer:
    """Serves one resource until stopped.

    Any number of peers may connect and send anything: connections and calls are bounded, and an idle
    connection is closed. The kubelet's connection, with its list stream, is never idle. ``changed`` is called
    when a stream was opened or has ended.
    """

    def __init__(
        self,
        resource: Allocator,
        directory: Path,
        metrics: Metrics,
        changed: Callable[[], None],
        *,
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self.path = directory / socket_name(resource.name)
        self.lost = False
        """Whether the kubelet's list stream ended, and not because this server stopped."""
        self.opened = False
        """Whether the kubelet has ever opened a list stream."""
        self._resource = resource
        self._timing = timing
        self._metrics = metrics
        self._changed = changed
        self._ending = asyncio.Event()
        self._streams: dict[asyncio.Event, None] = {}  # in the order they were opened
        self._sent = asyncio.Event()
        self._held = False
        self._round = 0
        self._encoder = ListEncoder()
        self._unsubscribe: Callable[[], None] = lambda: None
        self._server = rpc.Server(
            self.path, {"v1beta1.DevicePlugin": self._methods()}, _options(timing), "--kubelet-dir"
        )
        self._undecodable: dict[str, Recurring] = {}
        self._recording: set[asyncio.Task[None]] = set()

    @property
    def streams(self) -> int:
        return len(self._streams)

    @property
    def up_to_date(self) -> bool:
        """Whether every open list stream has sent the newest list."""
        return not any(stream.is_set() for stream in self._streams)

    async def start(self) -> None:
        """Binds the socket and serves. Raises ``EnvironmentFailure`` if no socket can be made."""
        await self._server.start()
        self._unsubscribe = self._resource.inventory.subscribe(self._wake)

    async def stop(self) -> None:
        """Ends the streams first, then the server, then unlinks the socket. Safe to call twice.

        If the socket cannot be unlinked, it stays: see :meth:`unlink`.
        """
        self._ending.set()
        self._unsubscribe()
        self._wake()
        try:
            await self._server.stop(self._timing.stop_grace)
        finally:
            self.unlink()

    def unlink(self) -> bool:
        """Removes the socket; returns whether it is gone. No other process makes one with its name."""
        try:
            self.path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return True

    async def drained(self, within: float) -> None:
        """Waits until every stream has sent the newest list, for at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self._held and not self.up_to_date:
                    self._sent.clear()
                    await self._sent.wait()

    def hold(self) -> None:
        """Sends no list from now on: it would replace that of another plugin."""
        self._held = True
        self._sent.set()

    def resend(self) -> None:
        """Sends the same list again: another plugin's list has replaced it."""
        self._round += 1
        self._wake()

    def _wake(self) -> None:
        for stream in self._streams:
            stream.set()

    def _methods(self) -> rpc.Methods:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(self._options, None, pb.DevicePluginOptions.SerializeToString),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch, None, None),
            "GetPreferredAllocation": unary(
                self._prefer, None, pb.PreferredAllocationResponse.SerializeToString
            ),
            "Allocate": unary(self._allocate, None, pb.AllocateResponse.SerializeToString),
            "PreStartContainer": unary(self._prepare, None, pb.PreStartContainerResponse.SerializeToString),
        }

    async def _decoded(self, message: type[M], data: bytes, context: Any, method: str) -> M:
        """The request in ``data``; if it cannot be decoded, the call fails with INVALID_ARGUMENT."""
        try:
            return message.FromString(data)
        except DecodeError as error:
            wrong = rpc.undecodable(message, error)
            self._undecodable.setdefault(method, Recurring(QUIET)).report(
                lambda more: log.warning(
                    "request cannot be decoded",
                    resource=self._resource.name,
                    method=method,
                    reason=wrong,
                    bytes=len(data),
                    more=more,
                )
            )
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self._resource.name} {method}: {wrong}")
            raise  # unreachable: abort() raises

    async def _options(self, data: bytes, context: Any) -> pb.DevicePluginOptions:
        await self._decoded(pb.Empty, data, context, "GetDevicePluginOptions")
        return plugin_options(prepares=self._resource.prepares)

    async def _list_and_watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        """Each stream remembers what it sent, so streams never take lists from each other.

        A stream with a slow reader waits in ``yield``; its next list is the newest one.
        """
        await self._decoded(pb.Empty, data, context, "ListAndWatch")
        news = asyncio.Event()
        news.set()
        self._streams[news] = None
        self.opened = True
        self._changed()
        sent = (-1, self._round)
        latest = (b"", self._round)
        pace = [TokenBucket(size, interval) for size, interval in self._timing.lists]
        try:
            while True:
                await news.wait()
                await self._until_allowed(pace)
                snapshot = self._resource.inventory.snapshot
                wanted = snapshot.revision, self._round
                if self._ending.is_set() and (wanted == sent or self._held):
                    return
                if wanted != sent and not self._held:
                    encoded = await self._encoder.encoded(snapshot)
                    sent, before, latest = wanted, latest, (hashlib.blake2b(encoded).digest(), wanted[1])
                    if latest != before:  # a device may have come back meanwhile
                        yield encoded
                        self._record_sent(pace, snapshot)
                    del encoded  # while the stream waits
                if self._ending.is_set():
                    return
                if self._held or (self._resource.inventory.snapshot.revision, self._round) == sent:
                    news.clear()
                    self._sent.set()
        finally:
            # The kubelet's stream is the first one; other clients may close theirs at any time.
            self.lost = self.lost or (not self._ending.is_set() and next(iter(self._streams)) is news)
            del self._streams[news]
            self._sent.set()
            self._changed()

    def _record_sent(self, pace: Sequence[TokenBucket], snapshot: Snapshot) -> None:
        now, cause = time.monotonic(), snapshot.caused_at
        for bucket in pace:
            bucket.take(now)
        self._metrics.add("lists_total", self._resource.name)
        if cause is not None:
            self._metrics.observe("event_to_list_seconds", self._resource.name, seconds=now - cause)

    async def _until_allowed(self, pace: Sequence[TokenBucket]) -> None:
        """Waits until all buckets allow another list, or the server stops."""
        now = time.monotonic()
        if delay := max((bucket.delay(now) for bucket in pace), default=0.0):
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._ending.wait()

    async def _prefer(self, data: bytes, context: Any) -> pb.PreferredAllocationResponse:
        """Never fails, since that would fail the pod. An empty answer leaves the choice to the kubelet."""
        began = time.perf_counter()
        request = await self._decoded(pb.PreferredAllocationRequest, data, context, "GetPreferredAllocation")
        response = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            try:
                available, must = list(container.available_deviceIDs), list(container.must_include_deviceIDs)
                await self._resource.settle(available, must)
                chosen = await self._resource.prefer(available, must, container.allocation_size)
            except Exception:
                log.exception("choosing devices failed", resource=self._resource.name)
                chosen = []
            response.container_responses.add(deviceIDs=chosen)
        backend = self._resource.inventory.backend
        self._metrics.observe("prefer_seconds", backend, seconds=time.perf_counter() - began)
        return response

    async def _allocate(self, data: bytes, context: Any) -> pb.AllocateResponse:
        request = await self._decoded(pb.AllocateRequest, data, context, "Allocate")
        began = time.perf_counter()
        response = pb.AllocateResponse()
        answered: list[tuple[Sequence[str], Allocated]] = []
        fault = self._resource.fault
        try:
            with together():
                for container in request.container_requests:
                    tokens = list(container.devices_ids)
                    work = self._allocated(tokens, response)
                    allocated = await self._answer(context, work, _ALLOCATE, began)
                    answered.append((tokens, allocated))
        finally:
            if self._resource.fault != fault:
                self._changed()
            if answered:  # the answer is sent before: the kubelet admits no other pod until it has it
                asyncio.get_running_loop().call_soon(self._start_recording, answered)
        self._metrics.add("allocations_total", self._resource.name)
        self._observe(_ALLOCATE, began)
        return response

    async def _allocated(self, tokens: list[str], response: pb.AllocateResponse) -> Allocated:
        """Adds what a container gets to the response, unless the kubelet would not receive that."""
        allocated = await self._resource.allocate(tokens)
        granted = allocated.granted
        try:
            response.container_responses.append(container_response(granted.edits, granted.left_out))
            if (size := response.ByteSize()) > RECEIVE_LIMIT:
                reason = f"the answer has {size} bytes, and the kubelet receives at most {RECEIVE_LIMIT}"
                raise AllocationError(f"{self._resource.name}: {reason}")
        except BaseException:
            allocated.cancel()
            raise
        return allocated

    def _start_recording(self, answered: Sequence[tuple[Sequence[str], Allocated]]) -> None:
        recording = asyncio.create_task(self._record(answered))
        self._recording.add(recording)  # the loop keeps no task alive
        recording.add_done_callback(self._recording.discard)

    async def _record(self, answered: Sequence[tuple[Sequence[str], Allocated]]) -> None:
        for tokens, allocated in answered:
            await allocated.record()
            given = self._resource.given(tokens)
            log.info("allocated", resource=self._resource.name, devices=_named(tokens), given=_named(given))

    async def _prepare(self, data: bytes, context: Any) -> pb.PreStartContainerResponse:
        request = await self._decoded(pb.PreStartContainerRequest, data, context, "PreStartContainer")
        began = time.perf_counter()
        if self._recording:  # on what terms the container got its devices may not be known yet
            await asyncio.wait(self._recording)
        await self._answer(context, self._resource.prepare(list(request.devices_ids)), _PREPARE, began)
        self._observe(_PREPARE, began)
        return pb.PreStartContainerResponse()

    def _observe(self, call: _Call, began: float) -> None:
        self._metrics.observe(call.seconds, self._resource.name, seconds=time.perf_counter() - began)

    async def _answer(self, context: Any, work: Awaitable[T], call: _Call, began: float) -> T:
        """The result of ``work``; its failure becomes the gRPC status that the kubelet shows."""
        try:
            return await work
        except DevhostError as error:
            code, kind = _status(error)
            held_by = error.held_by if isinstance(error, UnhealthyDevice | DeviceHeld) else ()
            fields = {"reason": str(error), **holder_field(held_by), "code": code.name}
            log.warning(call.failed, resource=self._resource.name, **fields)
            self._metrics.add(call.failures, self._resource.name, kind)
            self._observe(call, began)
            await context.abort(code, printable(str(error)))
            raise  # unreachable: abort() raises


class _Call(NamedTuple):
    """How a call is shown: the log line of a failure, and the metrics of failures and durations."""

    failed: str
    failures: str
    seconds: str


_ALLOCATE = _Call("allocation failed", "allocation_failures_total", "allocate_seconds")
_PREPARE = _Call("preparing devices failed", "prepare_failures_total", "prepare_seconds")


def _options(timing: KubeletTiming) -> tuple[tuple[str, int], ...]:
    """Channel arguments of gRPC (include/grpc/impl/channel_arg_names.h)."""
    return (
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", CONNECTIONS),
        ("grpc.server_handshake_timeout_ms", round(timing.handshake * 1000)),
        ("grpc.max_connection_idle_ms", round(timing.idle * 1000)),
        ("grpc.max_concurrent_streams", STREAMS),
        # refuses calls below the limit while the memory of answered ones is not free yet
        ("grpc.http.overload_protection", 0),
    )


def plugin_options(*, prepares: bool) -> pb.DevicePluginOptions:
    """The options of a resource.

    PreStartContainer is required only if a backend uses it or the entry has ``checkStarts``: while a plugin
    that requires it is away, containers of running pods cannot restart.
    """
    return pb.DevicePluginOptions(pre_start_required=prepares, get_preferred_allocation_available=True)


def register_request(endpoint: str, resource: str, *, prepares: bool) -> pb.RegisterRequest:
    """A Register request; ``endpoint`` is the socket's name within the kubelet's directory."""
    return pb.RegisterRequest(
        version=VERSION, endpoint=endpoint, resource_name=resource, options=plugin_options(prepares=prepares)
    )


PART = 256
"""Tokens of a list that are encoded together."""

PARTS = 4
"""Parts that are encoded in one go: about 10 ms."""


class ListEncoder:
    """Encodes complete lists: each message replaces what the kubelet knew about the resource.

    Protobuf joins the encoded parts of a repeated field when they follow each other. A part with the same
    entries as in the list before is not encoded again.
    """

    def __init__(self) -> None:
        self._parts: Sequence[tuple[Sequence[Entry], bytes]] = ()

    async def encoded(self, snapshot: Snapshot) -> bytes:
        entries = tuple(snapshot.entries.values())
        parts: list[tuple[Sequence[Entry], bytes]] = []
        made = 0
        for start in range(0, len(entries), PART):
            part = entries[start : start + PART]
            known = self._parts[len(parts)] if len(parts) < len(self._parts) else ((), b"")
            if len(part) != len(known[0]) or not all(map(is_, part, known[0])):
                known = part, device_list(part).SerializeToString()
                made += 1
                if made % PARTS == 0:
                    await asyncio.sleep(0)
            parts.append(known)
        self._parts = parts if len(parts) > 1 else ()
        return b"".join(part for _, part in parts)


def device_list(entries: Iterable[Entry]) -> pb.ListAndWatchResponse:
    response = pb.ListAndWatchResponse()
    add = response.devices.add  # in place: a list of messages would be copied, which takes twice the time
    for entry in entries:
        name = entry.token
        device = add(ID=name, health=HEALTHY if entry.health.healthy else UNHEALTHY)
        for node in entry.numa_nodes:
            device.topology.nodes.add(ID=node)
    return response


def container_response(edits: Edits, left_out: Collection[str] = ()) -> pb.ContainerAllocateResponse:
    """What a container gets. ``left_out`` are host paths of optional parts that do not exist."""
    return pb.ContainerAllocateResponse(
        envs=dict(edits.env),
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
            if m.host_path not in left_out
        ],
        devices=[
            pb.DeviceSpec(
                container_path=n.container_path or n.path, host_path=n.path, permissions=n.permissions
            )
            for n in edits.nodes
            if n.path not in left_out
        ],
        annotations=dict(edits.annotations),
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ",".join(ids[:NAMED]) + more


_STATUS: tuple[tuple[type[DevhostError], grpc.StatusCode, CallFailure], ...] = (
    (UnknownDevice, grpc.StatusCode.INVALID_ARGUMENT, CallFailure.INVALID),
    (UnhealthyDevice, grpc.StatusCode.FAILED_PRECONDITION, CallFailure.UNHEALTHY),
    (MissingPath, grpc.StatusCode.FAILED_PRECONDITION, CallFailure.MISSING),
    (AllocationError, grpc.StatusCode.FAILED_PRECONDITION, CallFailure.REFUSED),
    (BackendTimeout, grpc.StatusCode.DEADLINE_EXCEEDED, CallFailure.TIMEOUT),
    (DevhostError, grpc.StatusCode.INTERNAL, CallFailure.ERROR),
)
"""How each failure is answered; the first matching row counts."""


def _status(error: DevhostError) -> tuple[grpc.StatusCode, CallFailure]:
    return next((code, failure) for kind, code, failure in _STATUS if isinstance(error, kind))
