"""Bringing one backend's hardware to what the configuration says: when to ask, and what came of it.

A backend that has ``provision`` is called at the start, after its options have changed, when devices appear,
when a container has returned something the backend may wait for, and at a slow interval; with back-off until
it succeeds. It runs beside the scans, on a thread that outlives the backend object: two of the calls that
write to hardware never run at once, not even when the first one hangs.

Provisioning that fails does not degrade the backend, and makes no device unhealthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError, BackendTimeout, NotYet
from devhost.backend.incident import Incident
from devhost.telemetry.log import get

from .reconciler import LOOP_CLOCK, Clock, Reconciler, Retry
from .scanner import Scanner
from .timing import NODE, Timing
from .worker import WorkerThread

log = get(__name__)

AFTER_EVENT = 0.2
"""Seconds between an event and the call it leads to: events come in bursts, the call's own among them."""

POLL = 0.1
"""Seconds between checks whether the backend has started, or a call that hung has returned."""


class State(StrEnum):
    """The state of provisioning."""

    WAITING = "waiting"
    """It waits for something that it cannot bring about."""
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known about it; ``reason`` is empty while it is ok, ``since`` is wall-clock seconds."""

    state: State
    reason: str
    since: float


class Provisioning:
    """Calls one backend's ``provision``.

    Args:
        scanner: of the backend in service; :meth:`follow` exchanges it.
        changed: called with the backend's name when the condition changed.
        clock: a fake one in tests.
    """

    def __init__(
        self,
        scanner: Scanner,
        changed: Callable[[str], None],
        timing: Timing = NODE,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.name = scanner.runner.name
        self.condition = Condition(State.WAITING, "the backend has not answered yet", time.time())
        self._scanner = scanner
        self._changed = changed
        self._timing = timing
        self._worker = WorkerThread(f"{self.name}-provision", f"backend {self.name}", "when provisioning")
        self._has_complained = False
        self._failure = Incident()
        self._calls = Reconciler(
            self._pass, backoff=Backoff(0.5, 30.0), pacer=Pacer(), settle=AFTER_EVENT, clock=clock
        )

    @property
    def hung(self) -> bool:
        """Whether a call hangs past its deadline."""
        return self._worker.abandoned > 0

    def follow(self, scanner: Scanner) -> None:
        """Goes on with another backend object, which has other options."""
        self._scanner = scanner
        self._calls.restart()

    def wake(self) -> None:
        """Asks for a call soon: hardware has appeared, or there is a reason to doubt."""
        self._calls.wake()

    def close(self) -> None:
        """Lets the thread end; does not wait for it."""
        self._worker.close()

    async def run(self) -> None:
        """Calls now, when woken, and at intervals; never ends by itself."""
        await self._calls.run()

    async def _pass(self) -> float:
        if self.hung or not self._scanner.answered.is_set():
            return POLL
        before = self.condition.reason
        failure = await self._call(self._scanner)
        if self.condition.reason != before:
            self._calls.succeeded()  # it is a step further
        if failure is not None:
            # An event cannot change what the kernel refused, but it can bring what the backend waits for.
            raise Retry(wakeable=isinstance(failure, NotYet))
        return self._timing.provision_resync

    async def _call(self, scanner: Scanner) -> BackendError | None:
        """Calls once; returns what was raised."""
        try:
            await scanner.runner.provision(self._worker, self._timing.provision)
        except NotYet as error:
            self._show(State.WAITING, error.message)
            return error
        except BackendTimeout as error:
            self._show(State.FAILED, f"it goes on for more than {self._timing.provision:g} s")
            return error
        except BackendError as error:
            self._show(State.FAILED, error.message)
            return error
        finally:
            scanner.request_scan()  # what is to change may have to leave the list first
        self._show(State.OK, "")
        return None

    def _show(self, state: State, reason: str) -> None:
        before = self.condition
        if (state, reason) == (before.state, before.reason):
            return
        self.condition = Condition(state, reason, time.time())
        if state is State.FAILED:
            if self._failure.news(reason):
                log.error("provisioning failed", backend=self.name, reason=reason)
        elif state is State.WAITING:
            log.info("provisioning waits", backend=self.name, reason=reason)
        elif self._has_complained:  # else there was mostly nothing to do
            log.info("provisioned", backend=self.name)
        if state is not State.FAILED:
            self._failure.over()
        self._has_complained = state is not State.OK
        self._changed(self.name)
