"""Bringing one backend's hardware to what the configuration says: when to ask, and what came of it.

A backend that has ``provision`` is asked at the start, after its options have changed, when devices appear,
when a container has given something back that it may wait for, and at a slow interval; with back-off until
it succeeds. It runs beside the looks, on a lane that outlives the backend's exchange: whatever a backend
writes to hardware, two of its calls never run at once, not even when the first one hangs.

Provisioning that fails does not degrade the backend, and no device turns ill for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError, BackendTimeout, NotYet
from devhost.backend.incident import Incident
from devhost.telemetry.log import get

from .scanner import Scanner
from .worker import WorkerThread

log = get(__name__)

DEADLINE = 60.0
"""Seconds one ``provision`` may take before it counts as hung: adapters take a second for a few functions."""

RESYNC = 60.0
"""Seconds between calls while all is well: the net under hardware that went and came back unnoticed."""

AFTER_EVENT = 0.2
"""Seconds between an event and the call it leads to: events come in bursts, the call's own among them."""

POLL = 0.1
"""Seconds between looks whether the backend has started, or a call that hung has returned."""


class State(StrEnum):
    """How it stands."""

    WAITING = "waiting"
    """For something that comes by itself, or by somebody else's doing."""
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Condition:
    """What there is to say of it; ``reason`` is empty while it is ok, ``since`` is wall-clock seconds."""

    state: State
    reason: str
    since: float


class Provisioning:
    """Calls one backend's ``provision``.

    Args:
        discovery: of the backend in service; :meth:`follow` exchanges it.
        changed: called when the condition is another.
        clock: monotonic seconds, those of the event loop.
    """

    def __init__(
        self,
        discovery: Scanner,
        changed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        name = discovery.source.name
        self.condition = Condition(State.WAITING, "the backend has not answered yet", time.time())
        self._discovery = discovery
        self._changed = changed
        self._lane = WorkerThread(f"{name}-provision", f"backend {name}", "when provisioning")
        self._wake = asyncio.Event()
        self._pacer = Pacer()
        self._clock = clock
        self._has_complained = False
        self._failure = Incident()

    @property
    def hung(self) -> bool:
        """Whether a call hangs past its deadline."""
        return self._lane.abandoned > 0

    def follow(self, discovery: Scanner) -> None:
        """Goes on with another backend object, which has other options."""
        self._discovery = discovery
        self._wake.set()

    def wake(self) -> None:
        """Asks for a call soon: hardware has appeared, or somebody has reason to doubt."""
        self._wake.set()

    def close(self) -> None:
        """Lets the thread end; waits for nobody."""
        self._lane.close()

    async def run(self) -> None:
        """Calls now, when woken, and at intervals; never ends by itself."""
        backoff = Backoff(0.5, 30.0)
        while True:
            discovery = self._discovery
            if self.hung or not discovery.answered.is_set():
                await self._rest(POLL, discovery, events=False)
                continue
            await asyncio.sleep(self._pacer.pause(self._clock()))
            self._wake.clear()
            began, before = self._clock(), self.condition.reason
            failure = await self._call(discovery)
            self._pacer.ran(began, self._clock())
            if self.condition.reason != before:
                backoff.reset()  # it is a step further
            if failure is None:
                await self._rest(RESYNC, discovery)
            else:
                # Events do not shorten the wait after a failure: what the kernel refused it refuses again.
                await self._rest(backoff.delay(), discovery, events=isinstance(failure, NotYet))

    async def _rest(self, seconds: float, discovery: Scanner, *, events: bool = True) -> None:
        """Waits so long, or until an event; other options never wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._discovery is discovery:
                    await self._wake.wait()
                    if events:
                        break
                    self._wake.clear()
                else:
                    return
        if self._wake.is_set():
            await asyncio.sleep(AFTER_EVENT)

    async def _call(self, discovery: Scanner) -> BackendError | None:
        """One call; gives what it raised."""
        try:
            await discovery.source.provision(self._lane, DEADLINE)
        except NotYet as error:
            self._show(State.WAITING, error.message)
            return error
        except BackendTimeout as error:
            self._show(State.FAILED, f"it goes on for more than {DEADLINE:g} s")
            return error
        except BackendError as error:
            self._show(State.FAILED, error.message)
            return error
        finally:
            discovery.look()  # what is to change may have to leave the list first, and is shown when it has
        self._show(State.OK, "")
        return None

    def _show(self, state: State, reason: str) -> None:
        before = self.condition
        if (state, reason) == (before.state, before.reason):
            return
        self.condition = Condition(state, reason, time.time())
        name = self._discovery.source.name
        if state is State.FAILED:
            if self._failure.news(reason):
                log.error("provisioning failed", backend=name, reason=reason)
        elif state is State.WAITING:
            log.info("provisioning waits", backend=name, reason=reason)
        elif self._has_complained:  # else there was mostly nothing to do, and no reason to speak of it
            log.info("provisioned", backend=name)
        if state is not State.FAILED:
            self._failure.over()
        self._has_complained = state is not State.OK
        self._changed()
