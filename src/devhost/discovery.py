"""One backend's loop: events and timers in, validated devices out; errors and hangs stay in here.

A failing backend keeps the list it last gave. Only when it has been silent for :data:`STALE_AFTER`
are its devices shown Unhealthy, with its error as the reason; they return with its first answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .backend import Event
from .errors import BackendError, BackendTimeout, one_line
from .health import Ward
from .model import Device
from .pace import Backoff, Pacer
from .soundness import name_of, unsound
from .source import Source
from .telemetry.log import get
from .telemetry.metrics import BackendFailure, Metrics

log = get(__name__)

RESYNC = 60.0
"""Seconds between looks when no event comes: the net under events that were lost."""

DENIED_RESYNC = 5.0
"""The same while some device waits for a node that was missing when a pod needed it."""

STALE_AFTER = 30.0
"""Seconds a backend may fail before its devices are no longer believed to be healthy."""

EVENT_LIMIT = 1000
"""Events remembered for one look; past it the backend is told that anything may have changed."""

ANYTHING = Event()
"""The event that says only that something may have changed."""


class State(StrEnum):
    """How a backend does."""

    STARTING = "starting"
    OK = "ok"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class RefusedDevice:
    """Something a backend returned that cannot be a device. ``device`` names it as well as possible."""

    device: str
    reason: str


@dataclass(slots=True)
class Condition:
    """What there is to say of a backend; ``since`` is wall-clock seconds."""

    state: State = State.STARTING
    reason: str = ""
    since: float = 0.0
    last_look: float | None = None
    seconds: float | None = None
    refused: tuple[RefusedDevice, ...] = ()


class Discovery:
    """Keeps the devices of one source up to date.

    Args:
        source: the backend in service.
        metrics: hears of looks and failures.
        found: called in the loop whenever devices, their health or the condition changed. Its argument
            is the monotonic time of the first event that led to it, ``None`` for a timer.
        clock: monotonic seconds, those of the event loop.
    """

    def __init__(
        self,
        source: Source,
        metrics: Metrics,
        found: Callable[[float | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self._metrics = metrics
        self._clock = clock
        self.devices: Mapping[str, Device] = {}
        self.ward = Ward()
        self.condition = Condition(since=time.time())
        self.answered = asyncio.Event()
        self._found = found
        self._events: list[Event] = []
        self._event_at: float | None = None
        self._wake = asyncio.Event()
        self._backoff = Backoff(0.5, 30.0)
        self._pacer = Pacer()
        self._good_at = clock()
        self._full = False

    def concerns(self, event: Event) -> bool:
        """Whether the backend wants to hear of this event."""
        subsystems = self.source.kind.subsystems
        return not event.subsystem or event.subsystem in subsystems or "*" in subsystems

    def look(self, event: Event = ANYTHING) -> None:
        """Asks for a look soon; many requests are folded into one."""
        if not event.sys_path and not event.dev_node:
            self._full = True
        if len(self._events) < EVENT_LIMIT:
            self._events.append(event)
        else:
            self._full = True
        if self._event_at is None:
            self._event_at = self._clock()
        self._wake.set()

    def deny(self, device: str, missing: Sequence[str]) -> None:
        """A pod could not get this device because host paths are missing: unhealthy until they are back."""
        self.ward.deny(device, missing)
        self._found(None)
        self.look()

    async def run(self) -> None:
        """Looks now, at each event, and at the slow resync; never ends by itself."""
        self._events.append(ANYTHING)
        while True:
            await asyncio.sleep(self._pacer.pause(self._clock()))
            began = self._clock()
            failed = not await self.look_once()
            self._pacer.ran(began, self._clock())
            if failed:
                # Events do not shorten the wait: a driver in trouble is not helped by more calls.
                await asyncio.sleep(self._backoff.delay())
                continue
            self._backoff.reset()
            try:
                async with asyncio.timeout(DENIED_RESYNC if self.ward.denied else RESYNC):
                    await self._wake.wait()
            except TimeoutError:
                self._events.append(ANYTHING)
                self._full = True

    async def watch(self) -> None:
        """Follows the backend's own event source, if it has one, and restarts it when it fails."""
        await self.answered.wait()
        backoff = Backoff(1.0, 60.0)
        while True:
            try:
                events = self.source.watch()
                if events is None:
                    return
                await self._follow(events, backoff)
                log.warning("event source ended", backend=self.source.name)
            except Exception as error:  # noqa: BLE001 - a vendor's code may raise anything
                log.warning("event source failed", backend=self.source.name, error=one_line(error))
            await asyncio.sleep(backoff.delay())

    async def _follow(self, events: AsyncIterator[Event], backoff: Backoff) -> None:
        async for event in events:
            backoff.reset()
            self.look(event)

    async def look_once(self) -> bool:
        """Asks the backend once; false if it failed, which :attr:`condition` then tells of."""
        events, self._events = self._events, []
        event_at, self._event_at = self._event_at, None
        probe, self._full = self._full or not self.devices, False
        if probe:
            events = [*(event for event in events if event != ANYTHING), ANYTHING]
        self._wake.clear()
        began = self._clock()
        try:
            devices = self._validated(await self.source.look(events))
            changed = self.condition.state is not State.OK or _differ(self.devices, devices)
            if probe:
                changed |= self.ward.probed(await self.source.probe(tuple(devices.values())))
            if self.ward.denied:
                for device in await self.source.restored(self.ward.denied):
                    self.ward.restored(device)
                    changed = True
        except BackendError as error:
            # Whatever happened meanwhile, the next look must see all of it, and probe again.
            self._events, self._full = [ANYTHING], True
            self._failed(error)
            return False
        self.devices = devices
        self.ward.stale = ""
        self.ward.forget(devices)
        self._good_at = self._clock()
        self.condition.last_look, self.condition.seconds = time.time(), self._good_at - began
        if self.condition.state is not State.OK:
            if self.condition.state is State.DEGRADED:
                log.info("backend is back", backend=self.source.name, devices=len(devices))
            self.condition.state, self.condition.reason = State.OK, ""
            self.condition.since = time.time()
        self._metrics.discovered(self.source.name, self.condition.seconds)
        self._metrics.backend_degraded(self.source.name, False)
        self.answered.set()
        if changed:
            self._found(event_at)
        return True

    def _failed(self, error: BackendError) -> None:
        if self.condition.state is not State.DEGRADED:
            log.error("backend is degraded", backend=self.source.name, reason=error.message)
            self.condition.state, self.condition.since = State.DEGRADED, time.time()
        self.condition.reason = error.message
        timeout = isinstance(error, BackendTimeout)
        self._metrics.backend_failed(
            self.source.name, BackendFailure.TIMEOUT if timeout else BackendFailure.ERROR
        )
        self._metrics.backend_degraded(self.source.name, True)
        if self._clock() - self._good_at >= STALE_AFTER:
            self.ward.stale = error.message
        self.answered.set()
        self._found(None)

    def _validated(self, devices: Iterable[object]) -> dict[str, Device]:
        """The devices by id; what cannot be one is left out, noted, and logged once."""
        declared = self.source.kind.attributes
        good: dict[str, Device] = {}
        refused: list[RefusedDevice] = []
        for device in devices:
            known = isinstance(device, Device) and type(device.id) is str and self.devices.get(device.id)
            flaw = "" if known is device else unsound(device, declared)
            if flaw or not isinstance(device, Device):
                refused.append(RefusedDevice(name_of(device), flaw))
            elif device.id in good:
                refused.append(RefusedDevice(name_of(device), "another device has the same id"))
            else:
                good[device.id] = self._canonical(device)
        for refusal in set(refused).difference(self.condition.refused):
            log.error(
                "device refused", backend=self.source.name, device=refusal.device, reason=refusal.reason
            )
        self.condition.refused = tuple(refused)
        return good

    def _canonical(self, device: Device) -> Device:
        """The object known already if nothing changed, so that all later comparisons are by identity."""
        known = self.devices.get(device.id)
        if known is device:
            return device
        if any(node < 0 for node in device.numa_nodes):
            # The kernel's -1 means "no node"; the kubelet would take it as a node of its own.
            device = replace(device, numa_nodes=tuple(node for node in device.numa_nodes if node >= 0))
        return known if known is not None and known == device else device


def _differ(old: Mapping[str, Device], new: Mapping[str, Device]) -> bool:
    """Whether any device appeared, went or changed; those unchanged are the same objects."""
    return len(old) != len(new) or any(old.get(name) is not device for name, device in new.items())
