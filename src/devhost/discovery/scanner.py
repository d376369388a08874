"""One backend's loops: events and timers in, validated devices out; errors and hangs stay in here.

Looks say what exists, probes (:mod:`.probing`) what is well; neither waits for the other, but for the
first list: it is held back for the first probe, so that a device known to be ill is not offered for a
moment after each start.

A failing backend keeps the list it last gave. Only when it has failed for :data:`STALE_AFTER` are its
devices shown Unhealthy, with its error as the reason; they return with its first answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from devhost.backend import Event, MissingDriver
from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError, BackendTimeout, one_line, words
from devhost.backend.incident import Incident
from devhost.backend.model import Device
from devhost.telemetry.log import get
from devhost.telemetry.metrics import BackendFailure, Metrics

from .health import HealthTracker
from .probing import Probing, Trouble
from .runner import BackendRunner
from .validation import RefusedDevice, sound_devices

log = get(__name__)

RESYNC = 60.0
"""Seconds between looks at everything, and between probes: the net under events that were lost."""

DENIED_RESYNC = 5.0
"""The same while some device waits for a node that was missing when a pod needed it."""

STALE_AFTER = 30.0
"""Seconds a backend may fail before its devices are no longer believed to be healthy."""

SILENCE = 60.0
"""Seconds for which an event source that had failed must be open to count as well without having spoken."""

EVENT_LIMIT = 1000
"""Events remembered for one look; past it the backend is told that anything may have changed."""

NAMED = 20
"""Refused devices that the log names at most after one look."""

ANYTHING = Event()
"""The event that says only that something may have changed."""


class State(StrEnum):
    """How a backend does."""

    STARTING = "starting"
    OK = "ok"
    DEGRADED = "degraded"


@dataclass(slots=True)
class Condition:
    """What there is to say of a backend; ``since`` is wall-clock seconds."""

    state: State = State.STARTING
    reason: str = ""
    since: float = 0.0
    last_look: float | None = None
    seconds: float | None = None
    refused: tuple[RefusedDevice, ...] = ()
    missing_drivers: tuple[MissingDriver, ...] = ()


class Scanner:
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
        source: BackendRunner,
        metrics: Metrics,
        found: Callable[[float | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self._metrics = metrics
        self._clock = clock
        self.devices: Mapping[str, Device] = {}
        self.ward = HealthTracker()
        self.condition = Condition(since=time.time())
        self.asked: frozenset[str] = frozenset()
        """Attribute names that the backend was asked for when it found :attr:`devices`."""
        self.answered = asyncio.Event()
        """Set once there is something to tell: devices, or why there are none."""
        self._found = found
        self._seen: Mapping[str, Device] = {}
        self._seen_asked: frozenset[str] = frozenset()
        self._looked = asyncio.Event()
        self._listed = False
        self._events: list[Event] = []
        self._event_at: float | None = None
        self._wake = asyncio.Event()
        self._backoff = Backoff(0.5, 30.0)
        self._pacer = Pacer()
        self._trouble = Trouble()
        self._degraded = Incident()
        self._deaf = Incident()
        self.deaf = ""
        """Why the backend's own event source tells nothing; empty while it does."""
        self._full = False
        self._resynced_at = clock()
        self._doubt: asyncio.TimerHandle | None = None
        self._probing = Probing(source.probe, self._probed, RESYNC, clock) if source.probes else None

    def succeed(self, before: Scanner) -> None:
        """Begins with what another discovery of the same hardware knew, which ends.

        Unchanged devices stay the same objects, and one that was ill is so until there is other news of it.
        So is the backend itself.
        """
        self.devices = self._seen = before.devices
        self.asked = self._seen_asked = before.asked
        self.ward = before.ward
        self._degraded, self._deaf, self.deaf = before._degraded, before._deaf, before.deaf
        self.condition.refused = before.condition.refused
        self.condition.missing_drivers = before.condition.missing_drivers
        if before.condition.state is State.DEGRADED:
            # it is not well only because it is asked by somebody else: that takes an answer
            self._trouble = replace(before._trouble)
            self.condition = replace(before.condition, last_look=None)
        if self._probing and before._probing:
            self._probing.succeed(before._probing)
        else:
            self.ward.probed({})

    @property
    def listed(self) -> bool:
        """Whether a list of devices, its own or that of its forerunner, is known."""
        return self._listed or bool(self.devices)

    def concerns(self, event: Event) -> bool:
        """Whether the backend wants to hear of this event."""
        subsystems = self.source.kind.subsystems
        return not event.subsystem or event.subsystem in subsystems or "*" in subsystems

    def look(self, event: Event = ANYTHING) -> None:
        """Asks for a look soon, and never for a probe; many requests are folded into one."""
        if not event.sys_path and not event.dev_node:
            self._full = True
        if len(self._events) < EVENT_LIMIT:
            self._events.append(event)
        else:
            self._full = True
        if self._event_at is None:
            self._event_at = self._clock()
        self._wake.set()

    def recheck(self) -> None:
        """Asks for a look and a probe: somebody has reason to doubt what is known."""
        self.look()
        if self._probing:
            self._probing.ask()

    def deny(self, device: str, missing: Sequence[str]) -> None:
        """A pod could not get this device because host paths are missing: unhealthy until they are back."""
        self.ward.deny(device, missing)
        self._found(None)
        self.recheck()

    async def run(self) -> None:
        """Looks now, at each event, and at the slow resync; never ends by itself."""
        self._full = True
        if self._trouble.reason or (self._probing and self._probing.trouble.reason):
            self._judge()  # a forerunner's: the time until its devices are believed no more goes on
        try:
            await self._look_for_ever()
        finally:
            self._doubt_at(None)

    async def _look_for_ever(self) -> None:
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
            due = self._resynced_at + (DENIED_RESYNC if self.ward.denied else RESYNC)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            self._full |= self._clock() >= due

    async def probe(self) -> None:
        """Probes beside :meth:`run`; ends at once if the backend has no probe, else never by itself."""
        if self._probing:
            await self._probing.run()

    async def watch(self) -> None:
        """Follows the backend's own event source, if it has one, and restarts it when it fails."""
        await self._looked.wait()
        backoff = Backoff(1.0, 60.0)
        while True:
            try:
                events = self.source.watch()
                if events is None:
                    self._hear()
                    return
                await self._follow(events, backoff)
                reason = "it ended"
            except Exception as error:  # noqa: BLE001 - a vendor's code may raise anything
                reason = words(error) if isinstance(error, BackendError) else one_line(error)
            before, self.deaf = self.deaf, reason
            if self._deaf.news(reason):
                log.warning("event source failed", backend=self.source.name, reason=reason)
            if not before:
                self._found(None)
            await asyncio.sleep(backoff.delay())

    async def _follow(self, events: AsyncIterator[Event], backoff: Backoff) -> None:
        # one that is open and silent for long is well: nothing happens on most nodes for days
        timer = asyncio.get_running_loop().call_later(SILENCE, self._hear)
        try:
            async for event in events:
                backoff.reset()
                self._hear()
                self.look(event)
        finally:
            timer.cancel()

    def _hear(self) -> None:
        """The event source works."""
        if self._deaf.over():
            log.info("event source is back", backend=self.source.name)
        if self.deaf:
            self.deaf = ""
            self._found(None)

    async def look_once(self) -> bool:
        """Asks the backend once; false if it failed, which :attr:`condition` then tells of."""
        events, self._events = self._events, []
        event_at, self._event_at = self._event_at, None
        full, self._full = self._full or not self._seen, False
        self._wake.clear()
        began = self._clock()
        if full:
            events = [*(event for event in events if event != ANYTHING), ANYTHING]
        asked = frozenset(self.source.context.wanted)
        try:
            seen = self._validated(await self.source.look(events))
            denied = self.ward.denied
            restored = await self.source.restored(denied) if denied else []
        except BackendError as error:
            # Whatever happened meanwhile, the next look must see all of it.
            self._events, self._full = [ANYTHING], True
            self._trouble.add(error.message, began)
            self._looked.set()
            self._failed(error)
            return False
        ended = self._clock()
        if full:
            self._resynced_at = ended
        self.condition.last_look, self.condition.seconds = time.time(), ended - began
        self._metrics.discovered(self.source.name, ended - began)
        for device in restored:
            self.ward.restored(device)
        self._seen, self._seen_asked = seen, asked
        if self.source.linkage:
            self.source.linkage.see(seen)
        if self._probing:
            self._probing.see(seen)
            if self._trouble.reason:
                self._probing.ask()
        self._trouble.over()
        self._looked.set()
        lacking = self.source.missing_drivers
        news = bool(restored) or lacking != self.condition.missing_drivers
        self.condition.missing_drivers = lacking
        self._show(event_at, news=news)
        return True

    async def probe_once(self) -> bool:
        """Probes once the devices that were found; false if that failed, as for :meth:`look_once`."""
        return await self._probing.once() if self._probing else True

    def _probed(self, failure: BackendError | None) -> None:
        """A probe has ended."""
        if failure is None:
            self._show(None)
        else:
            self._failed(failure)

    def _failed(self, error: BackendError) -> None:
        kind = BackendFailure.TIMEOUT if isinstance(error, BackendTimeout) else BackendFailure.ERROR
        self._metrics.backend_failed(self.source.name, kind)
        self._show(None, news=True)

    def _show(self, event_at: float | None, *, news: bool = False) -> None:
        """Publishes what is known now, if it is another than before."""
        if not self._holds_back():
            news |= _differ(self.devices, self._seen) or self.asked != self._seen_asked
            self.devices, self.asked = self._seen, self._seen_asked
            self._listed = self.condition.last_look is not None
            self.ward.forget(self.devices)
            if self._probing:
                news |= self.ward.probed(self._probing.sick)
        elif not self._trouble.reason:
            return
        news |= self._judge()
        self.answered.set()
        if news:
            self._found(event_at)

    def _holds_back(self) -> bool:
        """Whether the first list waits for the first probe."""
        probing = self._probing
        return bool(probing and self._seen and not (self._listed or probing.tried))

    def _judge(self) -> bool:
        """Works out how the backend does by what failed last; true if that is news."""
        condition, now = self.condition, self._clock()
        troubles = [self._trouble] + ([self._probing.trouble] if self._probing else [])
        troubles = [trouble for trouble in troubles if trouble.reason]
        before = condition.state, condition.reason, self.ward.stale
        state = State.DEGRADED if troubles else State.OK
        condition.reason = troubles[0].reason if troubles else ""
        stale = (trouble.reason for trouble in troubles if now - trouble.since >= STALE_AFTER)
        self.ward.stale = next(stale, "")
        fresh = bool(troubles) and not self.ward.stale
        self._doubt_at(min(trouble.since for trouble in troubles) + STALE_AFTER - now if fresh else None)
        if state is not condition.state:
            if state is State.OK and self._degraded.over():
                log.info("backend is back", backend=self.source.name, devices=len(self.devices))
            condition.state, condition.since = state, time.time()
        if state is State.DEGRADED:
            another = bool(self._degraded)
            if self._degraded.news(condition.reason):
                fields = {"backend": self.source.name, "reason": condition.reason}
                if another:
                    log.error("backend is degraded for another reason", **fields)
                else:
                    log.error("backend is degraded", **fields)
        self._metrics.backend_degraded(self.source.name, state is State.DEGRADED)
        return before != (condition.state, condition.reason, self.ward.stale)

    def _doubt_at(self, wait: float | None) -> None:
        """Has :meth:`_judge` called again after so many seconds, which no answer may do before."""
        if self._doubt is not None:
            self._doubt.cancel()
        self._doubt = None if wait is None else asyncio.get_running_loop().call_later(wait, self._show, None)

    def _validated(self, devices: Iterable[object]) -> Mapping[str, Device]:
        """The devices by id; what cannot be one is left out, noted, and logged once."""
        good, refused = sound_devices(devices, self.source.kind.attributes, self._seen)
        self._tell_refused(self.condition.refused, refused)
        self.condition.refused = refused
        return good

    def _tell_refused(self, before: Sequence[RefusedDevice], now: Sequence[RefusedDevice]) -> None:
        """Logs each once, of very many some and a count."""
        if not (before or now):
            return
        backend, known = self.source.name, set(before)
        new = [refusal for refusal in dict.fromkeys(now) if refusal not in known]
        for refusal in new[:NAMED]:
            log.error("device refused", backend=backend, device=refusal.device, reason=refusal.reason)
        if len(new) > NAMED:
            log.error("more devices refused", backend=backend, devices=len(new) - NAMED)
        still = {refusal.device for refusal in now}
        mended = list(dict.fromkeys(one.device for one in before if one.device not in still))
        for device in mended[:NAMED]:
            log.info("device is refused no more", backend=backend, device=device)
        if len(mended) > NAMED:
            log.info("more devices are refused no more", backend=backend, devices=len(mended) - NAMED)


def _differ(old: Mapping[str, Device], new: Mapping[str, Device]) -> bool:
    """Whether any device appeared, went or changed; those unchanged are the same objects."""
    return len(old) != len(new) or any(old.get(name) is not device for name, device in new.items())
