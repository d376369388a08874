"""The loop behind everything that devhost keeps up to date: wake, wait, run a pass, retry with back-off.

A *pass* compares the actual state with the desired state and changes what differs. It does not depend on the
reason for the pass, so a wake carries no data, and many wakes cause one pass. The result of a pass decides
when the next one runs:

* it returns seconds: after this time, or when woken before;
* it returns ``None``: when woken;
* it raises a :class:`~devhost.backend.errors.DevhostError`: after a back-off with jitter, which starts again
  from its shortest delay once a pass has succeeded. Each failure is logged once, and so is its end.

Every other exception is a bug: :meth:`Reconciler.run` raises it, and runs the pass again when it is called
again.

A request may change many things, such as one for many claims. Each change would lead to work on everything
that is held: a plan, or a look at what containers were given. So a :class:`Report` comes once, when the
request is answered. Only reports wait: what is held counts at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, Protocol

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import DevhostError
from devhost.backend.incident import Incident
from devhost.runtime.log import Log

from .tasks import Failing

Pass = Callable[[], Awaitable[float | None]]


class Timer(Protocol):
    """What :meth:`Clock.call_at` returns."""

    def cancel(self) -> None:
        """Keeps the callback from being called."""


class Clock(Protocol):
    """The source of time: the methods of an event loop that deal with it."""

    def time(self) -> float:
        """Monotonic seconds."""

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        """Calls ``callback`` in the event loop at ``when``."""


class LoopClock:
    """The clock of the event loop that is running when a method is called.

    Without a running loop it is ``time.monotonic``, the clock of event loops.
    """

    def time(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer:
        return asyncio.get_running_loop().call_at(when, callback)


LOOP_CLOCK = LoopClock()
"""The default clock. It has no state, so one instance serves all event loops."""


async def sleep(seconds: float, clock: Clock) -> None:
    """Waits for so many seconds of a clock; returns at once if there are none left."""
    if seconds > 0:
        over = asyncio.Event()
        timer = clock.call_at(clock.time() + seconds, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


class Retry(DevhostError):
    """A pass failed and is run again with back-off.

    ``reason`` is for the log; it is empty if the pass has reported the failure itself. ``wakeable`` is
    whether a wake ends the back-off; ``None`` for the reconciler's default. The back-off lasts at least
    ``after`` seconds.
    """

    def __init__(
        self, reason: str = "", hint: str = "", *, wakeable: bool | None = None, after: float = 0.0
    ) -> None:
        super().__init__(reason, hint)
        self.wakeable = wakeable
        self.after = after


class FailureLog:
    """Logs one kind of failure once for each reason, and its end once.

    The message ``failed`` also has the field ``reason``. ``level`` is that of this message; ``recovered``
    always has the level ``info``. ``fields`` are in both messages. ``changed`` is called when :attr:`reason`
    has changed.
    """

    def __init__(
        self,
        log: Log,
        failed: str,
        recovered: str,
        *,
        level: Literal["warning", "error"] = "warning",
        changed: Callable[[], None] = lambda: None,
        **fields: object,
    ) -> None:
        self.reason = ""
        """Why it fails; empty while it does not."""
        self.since = 0.0
        """When that began, in wall-clock seconds."""
        self.changed = changed
        self._incident = Incident()
        self._log = log
        self._failed = failed
        self._recovered = recovered
        self._level = level
        self._fields = fields

    @property
    def failing(self) -> Failing | None:
        """The failure as it is logged, while it lasts."""
        return Failing(f"{self._failed}: {self.reason}", self.since) if self.reason else None

    def failed(self, reason: str) -> bool:
        """Reports a failure with this reason; true if it was logged."""
        self._show(reason)
        if not self._incident.news(reason):
            return False
        write = self._log.error if self._level == "error" else self._log.warning
        write(self._failed, **self._fields, reason=reason)
        return True

    def succeeded(self) -> None:
        self._show("")
        if self._incident.over():
            self._log.info(self._recovered, **self._fields)

    def _show(self, reason: str) -> None:
        if reason != self.reason:
            self.since = self.since if self.reason else time.time()
            self.reason = reason
            self.changed()


class Reconciler:
    """Runs passes, one at a time: when woken, when the last pass requested it, and after a failure.

    Args:
        failures: logs failures; ``None`` if the pass logs them itself.
        first: seconds from the start of :meth:`run` to the first pass; ``None`` to wait for a wake.
        settle: seconds from a wake to the pass that it causes: events come in bursts.
        gap: least seconds from the beginning of one pass to the beginning of the next.
        pacer: the pause after a pass, in proportion to its duration.
        wakeable: whether a wake ends a back-off. It should not if failing is expensive: more calls do not
            help a failing driver.
    """

    def __init__(
        self,
        reconcile: Pass,
        *,
        backoff: Backoff | None = None,
        failures: FailureLog | None = None,
        first: float | None = 0.0,
        settle: float = 0.0,
        gap: float = 0.0,
        pacer: Pacer | None = None,
        wakeable: bool = True,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self._reconcile = reconcile
        self._backoff = backoff or Backoff(1.0, 60.0)
        self._failures = failures
        self._first = first
        self._settle = settle
        self._gap = gap
        self._pacer = pacer
        self._wakeable = wakeable
        self._clock = clock
        self._woken_for = math.inf
        """When the pass is due that wakes have requested."""
        self._timed_for = math.inf
        """When the pass is due that the last one, or its failure, has requested."""
        self._free_at = -math.inf
        """No pass runs before this time, even if one is due."""
        self._holding = False
        """Whether wakes must wait for the end of the back-off."""
        self._restarted = False
        self._stopped = False
        self._changed = asyncio.Event()

    def wake(self, within: float | None = None) -> None:
        """Requests a pass within so many seconds, by default ``settle``. The earliest request counts."""
        due = self._clock.time() + (self._settle if within is None else within)
        if due < self._woken_for:
            self._woken_for = due
            self._changed.set()

    def restart(self) -> None:
        """Requests a pass at once, even during a back-off: the next pass will not repeat what failed."""
        self._restarted = True
        self._holding = False
        self._backoff.reset()
        self.wake(0.0)
        self._changed.set()

    @property
    def stopped(self) -> bool:
        """Whether the current pass is the last one."""
        return self._stopped

    def stop(self) -> None:
        """Makes :meth:`run` return, after the current pass if there is one."""
        self._stopped = True
        self._changed.set()

    def succeeded(self) -> None:
        """Reports that what failed works again. A long pass may call this before it returns."""
        self._backoff.reset()
        if self._failures:
            self._failures.succeeded()

    async def run(self) -> None:
        """Runs passes until :meth:`stop`. Raises what a pass raises, unless it is a :class:`DevhostError`."""
        self._timed_for = math.inf if self._first is None else self._clock.time() + self._first
        self._holding = False
        while await self._due():
            self._woken_for, self._restarted = math.inf, False
            began = self._clock.time()
            finished = False
            try:
                self._timed_for = await self._pass()
                finished = True
            finally:
                if not finished:
                    self._woken_for = -math.inf
            ended = self._clock.time()
            if self._pacer:
                self._pacer.ran(began, ended)
            self._free_at = max(began + self._gap, ended + (self._pacer.pause(ended) if self._pacer else 0.0))

    async def _pass(self) -> float:
        """Runs a pass; returns the time of the next."""
        self._holding = False
        try:
            again = await self._reconcile()
        except DevhostError as error:
            if self._failures and error.message:
                self._failures.failed(str(error))
            if self._restarted:
                return math.inf
            retry = error if isinstance(error, Retry) else Retry()
            self._holding = not (self._wakeable if retry.wakeable is None else retry.wakeable)
            again = max(self._backoff.delay(), retry.after)
        else:
            self.succeeded()
        return math.inf if again is None else self._clock.time() + again

    async def _due(self) -> bool:
        """Waits until a pass is due; false once it is stopped."""
        await asyncio.sleep(0)  # let other tasks run between consecutive passes
        while not self._stopped:
            wanted = self._timed_for if self._holding else min(self._timed_for, self._woken_for)
            due = max(wanted, self._free_at)
            if due <= self._clock.time():
                return True
            self._changed.clear()
            timer = None if math.isinf(due) else self._clock.call_at(due, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                if timer is not None:
                    timer.cancel()
        return False


class _PendingReports:
    """What is to be reported when a request has been answered."""

    def __init__(self) -> None:
        self.answered = False
        self.reports: dict[Callable[[], None], None] = {}


_CURRENT: ContextVar[_PendingReports | None] = ContextVar("request", default=None)
"""The request for which a task runs. The tasks that it starts have the same one."""


class Report:
    """Calls back after a change, or once at the end of :func:`together`."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __call__(self) -> None:
        request = _CURRENT.get()
        if request is None or request.answered:  # a task may outlive its request
            self._callback()
        else:
            request.reports[self._callback] = None


@contextmanager
def together() -> Iterator[None]:
    """Makes each :class:`Report` call back once at the end, for all tasks that are started meanwhile."""
    outer = _CURRENT.get()
    if outer is not None and not outer.answered:
        yield
        return
    request = _PendingReports()
    token = _CURRENT.set(request)
    try:
        yield
    finally:
        _CURRENT.reset(token)
        request.answered = True
        for report in request.reports:
            report()
