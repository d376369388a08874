"""Everything that can be observed at the simulated kubelet, as typed values in an append-only log."""

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
    """One device of a ListAndWatch message; ``health`` is the plugin's own word for it."""

    id: str
    health: str
    numa_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened at ``at`` (seconds of the monotonic clock) to ``resource``, if to one."""

    kind: ClassVar[str] = "event"
    at: float
    resource: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The event as plain JSON values; protocol messages keep the field names of ``api.proto``."""
        return {"event": self.kind} | {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The registration server answers; ``wiped`` are the sockets that were removed before."""

    kind: ClassVar[str] = "started"
    profile: str
    wiped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The kubelet is gone; after a ``crash`` its socket file is still there."""

    kind: ClassVar[str] = "stopped"
    crash: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginEvent(Event):
    """Something about one plugin; ``endpoint`` is the socket's name as it was registered."""

    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterReceived(PluginEvent):
    """A Register call has come in; the options are those of the request, which decide nothing."""

    kind: ClassVar[str] = "register-received"
    version: str
    pre_start_required: bool
    preferred_allocation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionsRead(PluginEvent):
    """The plugin has answered GetDevicePluginOptions."""

    kind: ClassVar[str] = "options-read"
    pre_start_required: bool
    preferred_allocation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered(PluginEvent):
    """Register was answered OK."""

    kind: ClassVar[str] = "registered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRefused(PluginEvent):
    """Register was answered with code UNKNOWN and the text ``reason``, or its caller gave up."""

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
    """A ListAndWatch stream is over; ``reason`` is ``EOF`` or the error's text."""

    kind: ClassVar[str] = "stream-ended"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected(PluginEvent):
    """The kubelet has closed its connection to this plugin, which need not be the one that ended."""

    kind: ClassVar[str] = "disconnected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted(PluginEvent):
    """Another live plugin of the resource answers from now on (1.37 and newer)."""

    kind: ClassVar[str] = "promoted"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRemoved(Event):
    """The stop grace is over: the node shows the resource with capacity 0 from now on."""

    kind: ClassVar[str] = "resource-removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEvent(Event):
    """Something on behalf of one container of a pod."""

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
    """Allocate has been called; nothing limits how long the answer may take."""

    kind: ClassVar[str] = "allocate-sent"
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated(ContainerEvent):
    """Allocate was answered; ``response`` is kept for as long as the pod lives."""

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
    """The container could not be started; the pod stays and the kubelet would try again."""

    kind: ClassVar[str] = "start-failed"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodReleased(Event):
    """The pod is over and its devices are free; plugins are not told."""

    kind: ClassVar[str] = "pod-released"
    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsListed(Event):
    """Somebody asked podresources: so many pods were named, or there is a ``reason`` why none were."""

    kind: ClassVar[str] = "pods-listed"
    pods: int
    reason: str


E = TypeVar("E", bound=Event)

Record = Callable[..., None]
"""Logs an event now: called with the event's type and its fields other than ``at``."""


class EventLog:
    """The events in the order they happened. A position counts events from 0 and never shifts.

    Args:
        keep: number of latest events to remember; all of them by default.
    """

    def __init__(self, keep: int | None = None) -> None:
        self._events: deque[Event] = deque(maxlen=keep)
        self._total = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._listeners: list[Callable[[Event], None]] = []

    @property
    def position(self) -> int:
        """Number of events so far: what to give as ``since`` in order to see only later ones."""
        return self._total

    def __iter__(self) -> Iterator[Event]:
        return iter(tuple(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: type[E], resource: str = "", since: int = 0) -> list[E]:
        """The events of one type, in order; of one resource if it is named."""
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
        """Waits until ``condition()`` is true, looking again after each event; returns its value.

        Raises:
            TimeoutError: it was not within ``timeout`` seconds; the text lists the latest events.
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
