"""The loops of one backend: from events and timers to validated devices, with errors and hangs contained.

A scan finds which devices exist, a probe (:mod:`.probing`) which of them are healthy. Neither waits for the
other, with one exception: the first list waits for the first probe, so that a device that is known to be
unhealthy is not offered for a moment after each start.

The last list of a failing backend stays. Once it has failed for :attr:`.DiscoveryTiming.stale_after`, its
devices are Unhealthy, with its error as the reason, until it answers again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from functools import partial
from itertools import chain
from os.path import commonpath
from typing import Protocol

from devhost.backend import Attribute, ContainerRequest, Edits, Event, MissingDriver
from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError, BackendTimeout, one_line, words
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.model import NOTHING, Device, Health
from devhost.planning.give import NO_GIVE, length
from devhost.planning.plan import differences
from devhost.planning.settings import ResourceSettings
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import first, get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler, Retry, Timer
from devhost.runtime.worker import MAX_ABANDONED, SILENCE, NotCalled
from devhost.telemetry.metrics import Failure, Metrics

from .health import ALL, Grounds, HealthOf, HealthTracker, Recovery, in_resource, worst
from .probing import NOT_FAILING, Probing
from .runner import BackendRunner
from .validation import RefusedDevice, valid_devices

MOST_HANGING = MAX_ABANDONED - 1
"""Looks that may hang before only paths are looked at that have answered: one thread remains for these."""


class HostPaths:
    """Looks for the host paths of one backend's devices, and notes in ``health`` which are missing.

    The paths are those of ``give``, and those that an Allocate missed. They are looked at apart from the
    scans, because one may be on a file system that hangs. Such a path counts as missing, as long as the look
    at it does not end, and delays nothing else.

    Calls ``looked`` after each look, with whether anything has changed. ``predecessor`` looked for those of
    the same devices.
    """

    def __init__(
        self,
        runner: BackendRunner,
        health: HealthTracker,
        looked: Callable[[bool], None],
        timing: DiscoveryTiming,
        predecessor: HostPaths | None,
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._health = health
        self._looked = looked
        self._timing = timing
        self.given: frozenset[str] = frozenset()
        """The host paths that ``give`` of the entries names."""
        self.tried: bool = predecessor.tried if predecessor else False
        """Whether there is an answer, or a path that has not answered in time."""
        self._found: Mapping[str, bool] = {}
        """Whether paths exist, of those that have answered the last look at them."""
        self._pauses = Backoff(timing.missing_resync, timing.resync)
        looks = Reconciler(self._look, pacer=Pacer(budget=timing.scan_budget), clock=clock)
        self.run, self.request = looks.run, looks.wake
        """Looks now, when that is requested, and again after a while; never returns by itself."""

    @property
    def awaited(self) -> bool:
        """Whether nothing is known yet of paths that devices need."""
        return bool(self.given) and not self.tried

    async def _look(self) -> float | None:
        await self.once()
        if self._health.missing_paths:
            return self._timing.missing_resync
        if self._health.absent or self.awaited:
            return self._pauses.delay()
        return self._timing.resync if self.given else None

    async def once(self) -> None:
        """Looks at every path that a device needs."""
        runner, wanted = self._runner, self._wanted()
        found: dict[str, bool] = {}
        hanging = runner.existence.hanging()
        if len(hanging) > MOST_HANGING:
            return  # what was known stays
        while rest := self._next(wanted, found, hanging):
            try:
                await runner.call("paths", SILENCE + 0.5, runner.existence.look, rest, found)
            except NotCalled:
                return  # what was known stays
            except BackendTimeout:
                hanging.update([path for path in rest if path not in found][:1])
                self._note(wanted, found, hanging)
        self._note(wanted, found, hanging)

    def _next(self, wanted: Sequence[str], found: Collection[str], hanging: Collection[str]) -> list[str]:
        """The paths to look at, those last that may be on the same file system as one that hangs."""
        rest = [path for path in wanted if path not in found and path not in hanging]
        if len(hanging) > MOST_HANGING:
            return []  # no thread is left
        if len(hanging) == MOST_HANGING:
            return [path for path in rest if path in self._found]
        return sorted(
            rest, key=lambda path: max((len(commonpath((path, one))) for one in hanging), default=0)
        )

    def _wanted(self) -> list[str]:
        return sorted(self.given.union(*self._health.missing_paths.values()))

    def _note(self, wanted: Sequence[str], looked: Mapping[str, bool], hanging: Collection[str]) -> None:
        """Notes what was found; a wanted path of which nothing is known has not answered."""
        known = {path: self._found[path] for path in wanted if path in self._found and path not in hanging}
        health, found = self._health, known | dict(looked)  # a look that hung may go on
        absent = {path: False for path in self.given.intersection(wanted) if not found.get(path, True)}
        absent |= {path: True for path in wanted if path not in found}
        self._found = found
        self._runner.existence.silent = frozenset(wanted) - found.keys()
        changed = absent != health.absent
        if changed:
            self._pauses.reset()
        health.absent = absent
        for device, paths in list(health.missing_paths.items()):
            if all(map(found.get, paths)):
                health.paths_restored(device)
                changed = True
        self.tried = True
        self._looked(changed)


log = get(__name__)

EVENT_LIMIT = 1000
"""Events kept for one scan; if there are more, the backend gets the event that anything may have changed."""

ANYTHING = Event()
"""The event that anything may have changed."""


class BackendState(StrEnum):
    """The state of a backend."""

    STARTING = "starting"
    OK = "ok"
    DEGRADED = "degraded"


@frozen
class BackendCondition:
    """The state of a backend with its details; ``since`` and ``last_scan`` are in wall-clock seconds."""

    state: BackendState = BackendState.STARTING
    reason: str = ""
    since: float = 0.0
    last_scan: float | None = None
    duration: float | None = None
    """Seconds that the last scan took."""
    refused: tuple[RefusedDevice, ...] = ()
    missing_drivers: tuple[MissingDriver, ...] = ()

    def inherited(self) -> BackendCondition:
        """The condition with which a successor begins, until it has scanned."""
        if self.state is BackendState.DEGRADED:
            # a new object does not mean that the backend works again: only an answer does
            return replace(self, last_scan=None)
        return BackendCondition(since=time.time(), refused=self.refused, missing_drivers=self.missing_drivers)


@frozen
class BackendNow:
    """A backend at one moment; ``cordons`` are the devices out of service on purpose.

    ``attributes`` are those that it declares.
    """

    condition: BackendCondition
    listed: bool
    devices: Mapping[str, Device]
    cordons: Mapping[str, Health] = field(default_factory=dict)
    event_source_error: str = ""
    attributes: Mapping[str, Attribute] = NOTHING

    def is_cordoned(self, device: str) -> bool:
        """Whether a device, by its id, is taken out of service."""
        return device in self.cordons or ALL in self.cordons


class Hooks(Protocol):
    """The hooks of plugins for devices that are given to containers (:mod:`.handover`)."""

    async def before(self, request: ContainerRequest, tokens: Sequence[str] = ()) -> None:
        """Called before containers get devices. Raises ``AllocationError`` if they must not."""

    def additions(self, backend: str, devices: Sequence[Device]) -> Edits:
        """What the hooks added for exactly these devices. May be called from any thread."""


class Scanner:
    """Keeps the devices of one backend up to date.

    Calls ``found`` whenever devices, their health or the condition changed, with the monotonic time of the
    first event that caused it (``None`` for a timer), and ``scanned`` after each successful scan. Unchanged
    devices of ``predecessor``, the previous scanner of the same hardware, stay the same objects, and a device
    or backend that was unhealthy stays unhealthy until there is a new answer.
    """

    def __init__(
        self,
        runner: BackendRunner,
        metrics: Metrics,
        found: Callable[[float | None], None],
        predecessor: Scanner | None = None,
        timing: DiscoveryTiming = DISCOVERY,
        clock: Clock = LOOP_CLOCK,
        scanned: Callable[[], None] = lambda: None,
    ) -> None:
        self.runner = runner
        self._metrics = metrics
        self._found = found
        self._after_scan = scanned
        self._timing = timing
        self._clock = clock
        self.devices: Mapping[str, Device] = {}
        self.requested: frozenset[str] = frozenset()
        """Names of the attributes that were requested when the backend found :attr:`devices`."""
        self.health = HealthTracker()
        self.handover: Hooks | None = None
        """The hooks for devices that are given and released, if there are any."""
        self.condition = BackendCondition(since=time.time())
        self.answered = asyncio.Event()
        """Set once there is an answer: devices, or why there are none."""
        self._scanned = asyncio.Event()
        self._listed = False
        self._events: list[Event] = []
        self._event_at: float | None = None
        self._full = False
        self._resynced_at: float | None = None
        self._failing = NOT_FAILING
        self._degraded = Incident()
        self._event_failures = FailureLog(
            log, "event source failed", "event source is back", backend=runner.name
        )
        self._stale_timer: Timer | None = None
        self.probing: Probing | None = None
        """Checks the health of devices; ``None`` for a backend without ``probe``."""
        if runner.abilities.probe:
            before = predecessor.probing if predecessor else None
            self.probing = Probing(runner, self._probed, timing, before, clock)
        if predecessor is not None:
            self.devices, self.requested = predecessor.devices, predecessor.requested
            self.condition, self._failing = predecessor.condition.inherited(), predecessor._failing
            self.health, self._degraded = predecessor.health, predecessor._degraded
            self.handover = predecessor.handover
            self._event_failures = predecessor._event_failures
            if self.probing is None:
                self.health.apply_probe({})
        former = predecessor.paths if predecessor else None
        self.paths: HostPaths = HostPaths(runner, self.health, self._looked, timing, former, clock)
        """Looks for the host paths that devices need."""
        self._seen, self._seen_requested = self.devices, self.requested
        self._scans = Reconciler(
            self._scan,
            backoff=Backoff(0.5, 30.0),
            pacer=Pacer(budget=timing.scan_budget),
            wakeable=False,
            clock=clock,
        )
        self._following = Reconciler(
            self._follow,
            backoff=Backoff(1.0, 60.0),
            failures=self._event_failures,
            wakeable=False,
            clock=clock,
        )

    @property
    def event_source_error(self) -> str:
        """Why the backend's own event source does not work; empty while it does."""
        return self._event_failures.reason

    @property
    def listed(self) -> bool:
        """Whether there is a list of devices, from this scanner or its predecessor."""
        return self._listed or bool(self.devices)

    def now(self) -> BackendNow:
        """The present state."""
        return BackendNow(
            self.condition,
            self.listed,
            self.devices,
            self.health.cordons,
            self.event_source_error,
            self.runner.backend_class.attributes,
        )

    def concerns(self, event: Event) -> bool:
        subsystems = self.runner.backend_class.subsystems
        return not event.subsystem or event.subsystem in subsystems or "*" in subsystems

    def request_scan(self, event: Event = ANYTHING) -> None:
        """Requests a scan soon, but no probe; many requests cause one scan."""
        if not event.sys_path and not event.dev_node:
            self._full = True
        if len(self._events) < EVENT_LIMIT:
            self._events.append(event)
        else:
            self._full = True
        if self._event_at is None:
            self._event_at = self._clock.time()
        self._scans.wake()
        if self.paths.given or self.health.absent or self.health.missing_paths:
            self.paths.request()

    def recheck(self) -> None:
        """Requests a scan and a probe, because the known state is in doubt."""
        self.request_scan()
        if self.probing:
            self.probing.request()

    def report_missing(self, device: str, paths: Sequence[str]) -> None:
        """Makes a device unhealthy until these missing host paths exist again: a pod could not get it."""
        self.health.report_missing(device, paths)
        self._found(None)
        self.recheck()

    async def run(self) -> None:
        """Scans now, at each event, and at the resync; never returns by itself."""
        self._full = True
        if self._failing.reason or (self.probing and self.probing.failing.reason):
            self._judge()  # the failures of the predecessor: the time until its devices are stale continues
        try:
            await self._scans.run()
        finally:
            self._judge_in(None)

    async def _scan(self) -> float:
        self._full |= self._clock.time() + 0.001 >= self._resync_at()  # a wait is rounded
        if not await self.scan_once():
            raise Retry
        return self._resync_at() - self._clock.time()

    def _resync_at(self) -> float:
        if self._resynced_at is None:
            return self._clock.time()
        return self._resynced_at + self._timing.resync

    async def watch(self) -> None:
        """Follows the backend's own event source, if it has one, and restarts it when it fails."""
        await self._scanned.wait()
        await self._following.run()

    async def _follow(self) -> None:
        try:
            events = self.runner.watch()
            if events is None:
                self._event_source_works()
                self._following.stop()
                return
            await self._forward(events)
            reason = "it ended"
        except Exception as error:  # noqa: BLE001 - third-party code may raise anything
            reason = words(error) if isinstance(error, BackendError) else one_line(error)
        before = self.event_source_error
        self._event_failures.failed(reason)
        if not before:
            self._found(None)
        raise Retry

    async def _forward(self, events: AsyncIterator[Event]) -> None:
        # a source that stays open works even without events: on most nodes nothing happens for days
        timer = self._clock.call_at(self._clock.time() + self._timing.silence, self._event_source_works)
        try:
            async for event in events:
                self._event_source_works()
                self.request_scan(event)
        finally:
            timer.cancel()

    def _event_source_works(self) -> None:
        before = self.event_source_error
        self._following.succeeded()
        if before:
            self._found(None)

    async def scan_once(self) -> bool:
        """Scans once; false if the backend failed, with the reason in :attr:`condition`."""
        events, self._events = self._events, []
        event_at, self._event_at = self._event_at, None
        full, self._full = self._full or not self._seen, False
        began, runner = self._clock.time(), self.runner
        if full:
            events = [*(event for event in events if event != ANYTHING), ANYTHING]
        requested = frozenset(runner.context.wanted)
        try:
            seen = self._validated(await runner.call("discover", None, runner.discover, events))
        except BackendError as error:
            # The next scan must be a full one, since the events of this one were not handled.
            self._events, self._full = [ANYTHING], True
            self._failing = self._failing.added(error.message, began)
            if runner.started:  # else there is nothing yet that could have events
                self._scanned.set()
            self._failed(error)
            return False
        # record how long the scan took
        ended = self._clock.time()
        if full:
            self._resynced_at = ended
        self.condition = replace(self.condition, last_scan=time.time(), duration=ended - began)
        self._metrics.observe("discovery_seconds", runner.name, seconds=ended - began)
        # pass the devices on to the probes and links
        self._seen, self._seen_requested = seen, requested
        if runner.link_cache:
            runner.link_cache.update(seen)
        if self.probing:
            self.probing.update(seen)
            if self._failing.reason:
                self.probing.request()  # the first success after a failure
        self._failing = NOT_FAILING
        self._scanned.set()
        # publish what has changed
        changed = runner.missing_drivers != self.condition.missing_drivers
        self.condition = replace(self.condition, missing_drivers=runner.missing_drivers)
        self._publish(event_at, changed=changed)
        self._after_scan()
        return True

    def _looked(self, changed: bool) -> None:
        """Handles the end of a look for host paths."""
        if self._scanned.is_set():
            self._publish(None, changed=changed)
        elif changed:
            self._found(None)

    def _probed(self, failure: BackendError | None) -> None:
        """Handles the end of a probe."""
        if failure is None:
            self._publish(None)
        else:
            self._failed(failure)

    def _failed(self, error: BackendError) -> None:
        self._metrics.add("backend_failures_total", self.runner.name, Failure.of(error))
        self._publish(None, changed=True)

    def _publish(self, event_at: float | None, *, changed: bool = False) -> None:
        if not self._waits():
            changed |= bool(differences(self.devices, self._seen)) or self.requested != self._seen_requested
            self.devices, self.requested = self._seen, self._seen_requested
            self._listed = self.condition.last_scan is not None
            self.health.forget(self.devices)
            if self.probing:
                changed |= self.health.apply_probe(self.probing.unhealthy)
        elif not self._failing.reason:
            return
        changed |= self._judge()
        self.answered.set()
        if changed:
            self._found(event_at)

    def _waits(self) -> bool:
        """Whether the first list waits for the first probe, or for the first look for host paths."""
        if self._listed or not self._seen:
            return False
        return self.paths.awaited or bool(self.probing and not self.probing.tried)

    def _judge(self) -> bool:
        """Updates the condition from the last failures; true if it changed."""
        now = self._clock.time()
        # a backend is degraded while a scan or a probe fails; the scan's reason is shown first
        streaks = [self._failing] + ([self.probing.failing] if self.probing else [])
        streaks = [streak for streak in streaks if streak.reason]
        before = self.condition, self.health.stale
        state = BackendState.DEGRADED if streaks else BackendState.OK
        reason = streaks[0].reason if streaks else ""
        # once that has lasted, its devices are unhealthy; until then, a timer judges again
        stale = (streak.reason for streak in streaks if now - streak.since >= self._timing.stale_after)
        self.health.stale = next(stale, "")
        fresh = bool(streaks) and not self.health.stale
        self._judge_in(
            min(streak.since for streak in streaks) + self._timing.stale_after - now if fresh else None
        )
        since = self.condition.since
        if state is not self.condition.state:
            if state is BackendState.OK and self._degraded.over():
                log.info("backend is back", backend=self.runner.name, devices=len(self.devices))
            since = time.time()
        self.condition = replace(self.condition, state=state, reason=reason, since=since)
        if state is BackendState.DEGRADED:
            another = bool(self._degraded)
            if self._degraded.news(reason):
                fields = {"backend": self.runner.name, "reason": reason}
                if another:
                    log.error("backend is degraded for another reason", **fields)
                else:
                    log.error("backend is degraded", **fields)
        return before != (self.condition, self.health.stale)

    def _judge_in(self, wait: float | None) -> None:
        """Schedules the next update of the condition after this many seconds, in place of any earlier one."""
        if self._stale_timer is not None:
            self._stale_timer.cancel()
        self._stale_timer = None
        if wait is not None:
            due = self._clock.time() + wait
            self._stale_timer = self._clock.call_at(due, partial(self._publish, None))

    def _validated(self, devices: Sequence[object]) -> Mapping[str, Device]:
        """The devices by id; invalid ones are omitted, recorded, and logged once."""
        backend = self.runner.backend_class
        good, refused = valid_devices(devices, backend.attributes, self._seen, backend.claim_kinds)
        self._log_refused(self.condition.refused, refused)
        self.condition = replace(self.condition, refused=refused)
        return good

    def _log_refused(self, before: Sequence[RefusedDevice], now: Sequence[RefusedDevice]) -> None:
        """Logs each once; if there are very many, some of them and the number of others."""
        if not (before or now):
            return
        backend, known = self.runner.name, set(before)
        new = [refusal for refusal in dict.fromkeys(now) if refusal not in known]
        for refusal in first(new, partial(log.error, backend=backend), "more devices refused"):
            log.error("device refused", backend=backend, device=refusal.device, reason=refusal.reason)
        still = {refusal.device for refusal in now}
        accepted = list(dict.fromkeys(one.device for one in before if one.device not in still))
        for device in first(
            accepted, partial(log.info, backend=backend), "more devices are no longer refused"
        ):
            log.info("device is no longer refused", backend=backend, device=device)


class EntryHealth:
    """The health of the devices of one entry, for both front ends: their own, and its ``healthyWhile``."""

    def __init__(self, scanner: Scanner, entry: ResourceSettings) -> None:
        self._scanner = scanner
        self._entry = entry
        self._recovery = Recovery()
        self._judged_at = 0.0

    def follow(self, scanner: Scanner, entry: ResourceSettings) -> None:
        """Uses this scanner and entry from now on."""
        if entry.healthy_while != self._entry.healthy_while:
            self._recovery = Recovery()  # failures of another condition do not count for this one
        self._scanner, self._entry = scanner, entry

    def now(self) -> HealthOf:
        """The health at this moment, for each device of the scanner."""
        known, now = self._scanner.health, time.monotonic()
        entry, recovery = self._entry, self._recovery
        uses, given = entry.uses, entry.given(known.absent)
        # after an edit the backend may not have read an attribute yet, as in _conditional()
        give = entry.give
        used = frozenset[str]() if give is NO_GIVE else give.attributes
        fits = give is not NO_GIVE and used <= self._scanner.requested
        each, texts = fits and give.depends_on_device, used if fits and give.env else ()
        harmless = give.harmless if texts else 0

        def usable(device: Device) -> Health:
            own = in_resource(device, known.of(device, now), uses)
            if each or any(length(device.attributes.get(name, "")) > harmless for name in texts):
                return worst(own, entry.given(known.absent, device))
            return own if given.healthy else worst(own, given)

        if not self._conditional():
            return usable
        self._judged_at = now
        recovery.forget(self._scanner.devices)

        def settled(device: Device) -> Health:
            return worst(usable(device), recovery.settle(device.id, entry.condition(device), now))

        return settled

    def grounds(self) -> Grounds:
        """What the health of devices depends on at this moment."""
        known, entry = self._scanner.health, self._entry
        conditional = self._conditional()
        particular = chain(known.particular(), self._recovery if conditional else ())
        return Grounds((known, *known.general(), entry, conditional), frozenset(particular))

    def _conditional(self) -> bool:
        """Whether the conditions of the entry count.

        After an edit the backend may not have read an attribute yet, which is no fault of the device.
        """
        return bool(self._entry.healthy_while) and self._entry.watched() <= self._scanner.requested

    def next_change(self) -> float | None:
        """Seconds until time alone changes a result of ``healthyWhile``; ``None`` if it will not."""
        return self._recovery.next_change(time.monotonic(), self._judged_at)
