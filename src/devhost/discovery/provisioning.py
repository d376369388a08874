"""Provisions the hardware of one backend as the configuration requires, and keeps the state of that.

``provision`` of a backend is called at the start, after its options have changed, when devices appear, when a
container has released something that the backend may wait for, and at a long interval; with back-off until it
succeeds. It runs concurrently with the scans, on a thread that outlives the backend object: two calls that
write to hardware never run at the same time, not even if the first one hangs.

A failure of provisioning does not degrade the backend, and makes no device unhealthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendError, BackendTimeout, NotYet
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import Reconciler, Retry
from devhost.runtime.worker import WorkerThread

from .scanner import Scanner

log = get(__name__)

AFTER_EVENT = 0.2
"""Seconds from an event to the call that it causes: events come in bursts, and calls cause events."""

POLL = 0.1
"""Seconds between checks whether the backend has started, or a hanging call has returned."""


class ProvisioningState(StrEnum):
    """The state of provisioning."""

    WAITING = "waiting"
    """It waits for something that it cannot do itself."""
    OK = "ok"
    FAILED = "failed"


@frozen
class ProvisioningCondition:
    """The current state; ``reason`` is empty while it is ok, ``since`` is in wall-clock seconds.

    ``held`` are the claims of the containers to which the reason refers.
    """

    state: ProvisioningState
    reason: str
    since: float
    held: frozenset[str] = frozenset()


class Provisioning:
    """Calls one backend's ``provision``. Calls ``changed`` with its name when the condition changed."""

    def __init__(
        self,
        scanner: Scanner,
        changed: Callable[[str], None],
        timing: DiscoveryTiming = DISCOVERY,
    ) -> None:
        self.name = scanner.runner.name
        self.condition = ProvisioningCondition(
            ProvisioningState.WAITING, "the backend has not answered yet", time.time()
        )
        self._scanner = scanner
        self._changed = changed
        self._timing = timing
        self._worker = WorkerThread(f"{self.name}-provision", f"backend {self.name}", "when provisioning")
        self._has_complained = False
        self._failure = Incident()
        self._calls = Reconciler(self._pass, backoff=Backoff(0.5, 30.0), pacer=Pacer(), settle=AFTER_EVENT)
        self.run, self.wake = self._calls.run, self._calls.wake
        """Provisions now, when woken, and at intervals; never returns by itself."""

    @property
    def hung(self) -> bool:
        """Whether a call hangs past its deadline."""
        return self._worker.abandoned > 0

    def follow(self, scanner: Scanner) -> None:
        """Continues with another backend object, which has other options."""
        self._scanner = scanner
        self._calls.restart()

    def close(self) -> None:
        """Ends the thread; does not wait for it."""
        self._worker.close()

    async def _pass(self) -> float:
        if self.hung or not self._scanner.answered.is_set():
            return POLL
        before = self.condition.reason
        failure = await self._call(self._scanner)
        if self.condition.reason != before:
            self._calls.succeeded()  # it has made progress
        if failure is not None:
            # What the kernel refused stays refused after an event; what the backend waits for may have come.
            raise Retry(wakeable=isinstance(failure, NotYet))
        return self._timing.provision_resync

    async def _call(self, scanner: Scanner) -> BackendError | None:
        """Calls once; returns what was raised."""
        try:
            await scanner.runner.call(self._worker, self._timing.provision, scanner.runner.provision)
        except NotYet as error:
            self._show(ProvisioningState.WAITING, error.message, error.held)
            return error
        except BackendTimeout as error:
            self._show(ProvisioningState.FAILED, f"it takes longer than {self._timing.provision:g} s")
            return error
        except BackendError as error:
            self._show(ProvisioningState.FAILED, error.message, error.held)
            return error
        finally:
            scanner.request_scan()  # a device that is to change may have to leave the list first
        self._show(ProvisioningState.OK, "")
        return None

    def _show(self, state: ProvisioningState, reason: str, held: frozenset[str] = frozenset()) -> None:
        before = self.condition
        if (state, reason) == (before.state, before.reason):
            if held != before.held:
                self.condition = replace(before, held=held)
                self._changed(self.name)
            return
        self.condition = ProvisioningCondition(state, reason, time.time(), held)
        if state is ProvisioningState.FAILED:
            if self._failure.news(reason):
                log.error("provisioning failed", backend=self.name, reason=reason)
        elif state is ProvisioningState.WAITING:
            log.info("provisioning waits", backend=self.name, reason=reason)
        elif self._has_complained:  # otherwise there was usually nothing to do
            log.info("provisioned", backend=self.name)
        if state is not ProvisioningState.FAILED:
            self._failure.over()
        self._has_complained = state is not ProvisioningState.OK
        self._changed(self.name)
