"""Updates the allocations with who holds which device, by asking the kubelet at intervals.

:mod:`devhost.allocation.leases` interprets the lists. :class:`PollSchedule` decides when to ask, as rarely as
possible: a kubelet serves 100 such calls a second to all clients together, in bursts of 10. devhost asks for
all resources at once and never twice within half a second. It does not ask at all while no container holds
anything and the kubelet has run for long enough to list all its pods.

While the kubelet does not answer, nothing changes: what was allocated counts as held, and the status shows
why holders are unknown.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from devhost.allocation.allocations import Allocations, Kubelet, Listing, ResourceAllocations
from devhost.backend.backoff import Backoff
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.planning.tokens import STAND_IN, stood_for
from devhost.runtime.log import get
from devhost.runtime.reconciler import Reconciler

from .podresources import NobodyThere, PodResources, Unanswered

log = get(__name__)

FAILURES = 2
"""Failures in a row after which the kubelet counts as silent: a restart causes one or two."""

LULL = 0.1
"""Seconds from a wake to the call, so that pods that start together share one."""


@frozen
class KubeletCondition:
    """Whether the kubelet answers; ``last`` and ``since`` are wall-clock seconds.

    ``last`` is the time of its last answer. ``reason`` is empty exactly while the kubelet answers. ``silent``
    is whether it has been asked and has not answered since ``since``.
    """

    reason: str = "the kubelet has not been asked yet"
    last: float | None = None
    silent: bool = False
    since: float = 0.0


class PollSchedule:
    """Decides from the answers so far; all times are monotonic seconds.

    ``draw`` gives random numbers from 0 to 1 for the jitter of the back-off.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        *,
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self._backoff = Backoff(*timing.question_failed, draw=draw)
        self._gap, self._first = timing.question_gap, timing.question_first
        self._patience = timing.question_new
        self._asked: float | None = None
        self._retry: float | None = None
        self._kubelet: Kubelet | None = None
        self._another = False
        self._met = 0.0

    @property
    def last(self) -> float:
        """When the kubelet was last asked; minus infinity before the first call."""
        return float("-inf") if self._asked is None else self._asked

    def due(self, wanted: float | None) -> float | None:
        """When to ask next; ``None`` for not at all. A time in the past means now.

        ``wanted`` is when the allocations need the next list.
        """
        if self._asked is None:
            return float("-inf")
        if self._retry is not None:
            return self._retry
        known = self._asked - self._met
        wishes = [self._asked + max(self._first, known)] if known < self._patience else []
        if wanted is not None:
            wishes.append(self._asked if self._another else wanted)
        return max(min(wishes), self._asked + self._gap) if wishes else None

    def answered(self, asked: float, kubelet: Kubelet) -> None:
        """The call at ``asked`` was answered by this kubelet."""
        self._asked, self._retry, self._another = asked, None, False
        self._backoff.reset()
        if kubelet != self._kubelet:
            self._kubelet, self._met = kubelet, asked

    def failed(self, asked: float, now: float) -> None:
        """The call at ``asked`` failed. The next one waits, longer each time, even if a list is wanted."""
        self._asked = asked
        self._retry = now + max(self._gap, self._backoff.delay())

    def restarted(self, now: float) -> None:
        """There is a new kubelet: a call that failed with the old one is tried again soon.

        While anything is held, it is asked soon in any case: only a kubelet that has named a container can
        show later that the container has ended.
        """
        self._another = True
        if self._retry is not None:
            self._backoff.reset()
            self._retry = min(self._retry, now + self._gap)


class PodResourcesPoller:
    """Asks the kubelet for as long as :meth:`run` runs.

    ``changed`` is called when the holder of a device, or the condition, has changed.
    """

    def __init__(
        self,
        source: PodResources,
        allocations: Allocations,
        changed: Callable[[], None],
        *,
        timing: KubeletTiming = KUBELET,
    ) -> None:
        self.source = source
        self.condition = KubeletCondition()
        self.listing: Listing | None = None
        """The newest list; ``None`` before the first one."""
        self._allocations = allocations
        self._subscribers: list[Callable[[], None]] = []
        self._changed = changed
        self._schedule = PollSchedule(timing=timing)
        self._timing = timing
        self._failures = 0
        self._silence = Incident()
        self._tried = asyncio.Event()
        self._asking = asyncio.Lock()
        self._restarts = 0
        self._loop = Reconciler(self._ask_if_due, settle=LULL)
        allocations.watch(self.wake)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each list; returns how to end that."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def wake(self) -> None:
        """A list may be due sooner: a container got devices, or a held device vanished."""
        self._loop.wake()

    def restarted(self) -> None:
        """There is a new kubelet."""
        self._restarts += 1
        self._schedule.restarted(time.monotonic())
        self._loop.wake(0.0)

    def due(self) -> float | None:
        """When the kubelet is asked next, in monotonic seconds; ``None`` while it is not to be asked."""
        return self._schedule.due(self._allocations.due(self._schedule.last))

    async def run(self) -> None:
        await self._loop.run()

    async def first_answer(self, within: float) -> None:
        """Waits for the kubelet's first answer, if there is a kubelet; at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._tried.wait()

    async def first_list(self, within: float) -> None:
        """Asks for the first list, and waits for it, at most ``within`` seconds; without effect after it.

        A kubelet without an answer is not asked again at once: claims are prepared meanwhile.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within), self._asking:
                again = self._schedule.last + self._timing.question_gap
                if self.listing is None and time.monotonic() >= again:
                    await self._ask_once()

    def follow(self, resource: str) -> None:
        """Includes a resource in the allocations, even if it is not served."""
        self._allocations.follow(resource)
        self.wake()

    def has_token(self, resource: str, token: str) -> bool | None:
        """Whether a container holds this token; ``None`` until the next list shows it."""
        self.wake()
        return self._allocations.has_token(resource, token)

    async def confirm(
        self, allocations: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False
    ) -> None:
        """Asks the kubelet now, if it may not know who holds these tokens.

        A kubelet that has lost its checkpoint allocates what containers hold. Returns at once for tokens that
        no container is known to hold. Waits :attr:`KubeletTiming.confirm` seconds at most. ``offered`` is
        whether the kubelet only offers the tokens. It then knows that their containers have ended, or has
        forgotten them. Otherwise it is asked if an earlier kubelet named the holders.
        """
        replaced = (stood_for(token, allocations) for token in tokens if token.startswith(STAND_IN))
        concerned = {*tokens, *(token for token in replaced if token is not None)}
        named_by = allocations.leases.named_by(concerned)
        if not named_by or (not offered and named_by == {(*(self.source.identity() or ()), self._restarts)}):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.confirm):
                await self._ask()

    async def _ask_if_due(self) -> float | None:
        """One pass: asks if it is due; returns the seconds until the next call."""
        due = self.due()
        if due is not None and due <= time.monotonic():
            await self._ask()
            due = self.due()
        return None if due is None else max(0.0, due - time.monotonic())

    async def _ask(self) -> None:
        async with self._asking:
            await self._ask_once()

    async def _ask_once(self) -> None:
        asked, restarts = time.monotonic(), self._restarts
        try:
            found = await self.source.list()
            listing = replace(found, kubelet=(*found.kubelet, restarts))
        except Unanswered as error:
            self._schedule.failed(asked, time.monotonic())
            self._failed(error.message)
            if isinstance(error, NobodyThere):
                self._tried.set()
            return
        self._schedule.answered(asked, listing.kubelet)
        self._failures = 0
        recovered = bool(self.condition.reason)
        self.condition = replace(self.condition, reason="", silent=False, last=time.time())
        if recovered:
            self._silence.over()
            log.info("the kubelet reports the holders of devices", socket=str(self.source.socket))
        changed = self._allocations.apply(listing) or recovered
        self.listing = listing
        self._tried.set()
        if changed:
            self._changed()
        for callback in list(self._subscribers):
            callback()

    def _failed(self, reason: str) -> None:
        self._failures += 1
        if self._failures < FAILURES:
            return
        if not self.condition.silent:
            self.condition = replace(self.condition, silent=True, since=time.time())
        if self._silence.news(reason):
            log.warning("holders of devices are unknown", reason=reason)
        if reason != self.condition.reason:
            self.condition = replace(self.condition, reason=reason)
            self._changed()
