"""The events of the simulated kubelet, as typed values in an append-only log."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from typing import Any, ClassVar, TypeVar

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from devhost.kubelet.api.api_pb2 import ContainerAllocateResponse

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One device of a ListAndWatch message; ``health`` is the plugin's value."""

    id: str
    health: str
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event at ``at`` (seconds of the monotonic clock), of ``resource`` if it concerns one."""

    kind: ClassVar[str] = "event"
    at: float
    resource: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON values; protocol messages keep the field names of ``api.proto``."""
        return {"event": self.kind} | {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The registration server answers; ``wiped`` are the sockets that it removed first."""

    kind: ClassVar[str] = "started"
    profile: str
    wiped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The kubelet stopped; after a ``crash`` its socket file still exists."""

    kind: ClassVar[str] = "stopped"
    crash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEvent(Event):
    """An event of one plugin; ``endpoint`` is the registered name of its socket."""

    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReceived(PluginEvent):
    """A Register call arrived; the options are those of the request, which are not used."""

    kind: ClassVar[str] = "register-received"
    version: str
    pre_start_required: bool
    preferred_allocation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsRead(PluginEvent):
    """The plugin answered GetDevicePluginOptions."""

    kind: ClassVar[str] = "options-read"
    pre_start_required: bool
    preferred_allocation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(PluginEvent):
    """Register was answered OK."""

    kind: ClassVar[str] = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRefused(PluginEvent):
    """Register was answered with code UNKNOWN and the text ``reason``, or its caller cancelled it."""

    kind: ClassVar[str] = "register-refused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOpened(PluginEvent):
    """ListAndWatch was called."""

    kind: ClassVar[str] = "stream-opened"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReceived(PluginEvent):
    """A complete list of devices, exactly as the plugin sent it."""

    kind: ClassVar[str] = "list-received"
    devices: tuple[ListedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded(PluginEvent):
    """A ListAndWatch stream ended; ``reason`` is ``EOF`` or the error's text."""

    kind: ClassVar[str] = "stream-ended"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected(PluginEvent):
    """The kubelet closed its connection to this plugin, not necessarily the one whose stream ended."""

    kind: ClassVar[str] = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted(PluginEvent):
    """Another live plugin of the resource is used from now on (1.37 and newer)."""

    kind: ClassVar[str] = "promoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRemoved(Event):
    """The grace period is over: the node shows the resource with capacity 0 from now on."""

    kind: ClassVar[str] = "resource-removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEvent(Event):
    """An event of one container of a pod."""

    pod: str
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceAsked(ContainerEvent):
    """GetPreferredAllocation: what was offered, and what the plugin answered."""

    kind: ClassVar[str] = "preference-asked"
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int
    answer: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateSent(ContainerEvent):
    """Allocate was called; the answer has no deadline."""

    kind: ClassVar[str] = "allocate-sent"
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated(ContainerEvent):
    """Allocate was answered; ``response`` is stored while the pod exists."""

    kind: ClassVar[str] = "allocated"
    device_ids: tuple[str, ...]
    response: ContainerAllocateResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionFailed(ContainerEvent):
    """The pod is rejected with ``reason``."""

    kind: ClassVar[str] = "admission-failed"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStarted(ContainerEvent):
    """PreStartContainer was answered."""

    kind: ClassVar[str] = "pre-started"
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailed(ContainerEvent):
    """The container could not be started; the pod stays, and a kubelet would retry."""

    kind: ClassVar[str] = "start-failed"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReleased(Event):
    """The pod ended and its devices are free; plugins are not notified."""

    kind: ClassVar[str] = "pod-released"
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsListed(Event):
    """A client called podresources and got this number of pods, or an error with this ``reason``."""

    kind: ClassVar[str] = "pods-listed"
    pods: int
    reason: str


E = TypeVar("E", bound=Event)

Record = Callable[..., None]
"""Logs an event, given its type and its fields except ``at``."""


class EventLog:
    """The latest ``keep`` events, oldest first. A position counts events from 0 and never changes."""

    def __init__(self, keep: int | None = None) -> None:
        self._events: deque[Event] = deque(maxlen=keep)
        self._total = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Event], None]] = []

    @property
    def position(self) -> int:
        """The number of events so far: pass it as ``since`` to get only later ones."""
        return self._total

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: type[E], resource: str = "", since: int = 0) -> list[E]:
        """The events of one type, in order; if a resource is given, only those of it."""
        skip = max(0, since - (self._total - len(self._events)))
        return [
            event
            for event in islice(self._events, skip, None)
            if isinstance(event, kind) and (not resource or event.resource == resource)
        ]

    def append(self, event: Event) -> None:
        self._events.append(event)
        self._total += 1
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        for listener in self._listeners:
            listener(event)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Calls ``listener`` with each event from now on, in the event loop; it must not block."""
        self._listeners.append(listener)

    async def wait_for(self, condition: Callable[[], T], timeout: float) -> T:
        """Waits until ``condition()`` is true, checking it after each event; returns its value.

        Raises ``TimeoutError`` with the latest events if it was not true within ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not (value := condition()):
                    await self._next()
                return value
        except TimeoutError:
            latest = "".join(f"\n  {event}" for event in list(self._events)[-12:]) or " none"
            raise TimeoutError(f"not true within {timeout} s; the latest events:{latest}") from None

    async def _next(self) -> None:
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return MessageToDict(value, preserving_proto_field_name=True)
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, tuple):
        return [_plain(member) for member in value]
    return value
