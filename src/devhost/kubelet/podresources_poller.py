"""Keeps the ledger told of who holds which device, by asking the kubelet now and then.

What a list means is decided in :mod:`devhost.allocation.allocations`, when to ask in :mod:`.poll_schedule`.
Where the kubelet does not answer, nothing changes: what was allocated counts as held, and the status says
that, and why, it is not known who holds it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from devhost.allocation.allocations import Allocations, ResourceAllocations
from devhost.backend.incident import Incident
from devhost.planning.tokens import stood_for
from devhost.telemetry.log import get

from .podresources import NobodyThere, PodResources, Unanswered
from .poll_schedule import PollSchedule

log = get(__name__)

BELIEVED = 2
"""Failures in a row after which the kubelet counts as silent: a restart costs one or two."""

LULL = 0.1
"""Seconds from a wish to thinking about it: pods that start together, and their answers, come first."""


CONFIRMED = 2.0
"""Seconds that an Allocate waits for a list: the kubelet admits no other pod meanwhile."""


@dataclass(slots=True)
class Hearing:
    """What there is to say of podresources; ``last`` is the wall-clock time of the last answer.

    ``reason`` is empty exactly while the kubelet answers; ``silent`` is whether it has been asked, and does
    not answer, since ``since``.
    """

    reason: str = "the kubelet has not been asked yet"
    last: float | None = None
    silent: bool = False
    since: float = 0.0


class PodResourcesPoller:
    """Asks for as long as :meth:`run` runs.

    Args:
        source: the kubelet's service.
        ledger: who wants to know.
        changed: called when somebody else holds a device than before, or the hearing is another.
    """

    def __init__(
        self,
        source: PodResources,
        ledger: Allocations,
        changed: Callable[[], None],
    ) -> None:
        self.source = source
        self.hearing = Hearing()
        self._ledger = ledger
        self._changed = changed
        self._timetable = PollSchedule()
        self._failures = 0
        self._silence = Incident()
        self._wake = asyncio.Event()
        self._tried = asyncio.Event()
        self._waking: asyncio.TimerHandle | None = None
        self._asking = asyncio.Lock()
        self._restarts = 0
        ledger.watch(self.wake)

    def wake(self) -> None:
        """Something may be wanted sooner than before: a container got devices, a held one vanished."""
        if self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(LULL, self._woken)

    def restarted(self) -> None:
        """There is another kubelet."""
        self._restarts += 1
        self._timetable.restarted(time.monotonic())
        self._wake.set()

    def due(self) -> float | None:
        """When the kubelet is asked next, in monotonic seconds; ``None`` while there is nothing to learn."""
        return self._timetable.due(self._ledger.due(self._timetable.last))

    async def run(self) -> None:
        """Asks whenever it is due, for ever; asleep while it is not."""
        while True:
            self._wake.clear()
            due = self.due()
            if due is None or (wait := due - time.monotonic()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if due is None else wait):
                        await self._wake.wait()
            else:
                await self._ask()

    async def first_word(self, within: float) -> None:
        """Waits for the kubelet's first answer, if one is there to answer; at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._tried.wait()

    async def confirm(
        self, account: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False
    ) -> None:
        """Asks the kubelet now, where it may not know who holds these tokens.

        A kubelet that has lost its checkpoint allocates what containers hold. Does nothing, and takes no
        time, for tokens that no container is known to hold. Waits :data:`CONFIRMED` seconds at most.

        Args:
            offered: whether the kubelet only offers the tokens. It then knows that their containers have
                ended, or has forgotten them. Else it is asked where an earlier kubelet named the holders.
        """
        held = account.tokens()
        if not held:
            return
        concerned = set(held).intersection(tokens)
        concerned.update(name for token in tokens if (name := stood_for(token, held)) is not None)
        named_by = {account.named_by(token) for token in concerned} - {None}
        if not named_by or (not offered and named_by == {(*(self.source.identity() or ()), self._restarts)}):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(CONFIRMED):
                await self._ask()

    def _woken(self) -> None:
        self._waking = None
        self._wake.set()

    async def _ask(self) -> None:
        async with self._asking:
            await self._ask_once()

    async def _ask_once(self) -> None:
        asked, restarts = time.monotonic(), self._restarts
        try:
            found = await self.source.list()
            listing = replace(found, kubelet=(*found.kubelet, restarts))
        except Unanswered as error:
            self._timetable.failed(asked, time.monotonic())
            self._silent(error.message)
            if isinstance(error, NobodyThere):
                self._tried.set()
            return
        self._timetable.answered(asked, listing.kubelet)
        self._failures = 0
        self.hearing.last = time.time()
        self._silence.over()
        self.hearing.silent = False
        news = bool(self.hearing.reason)
        if news:
            self.hearing.reason = ""
            log.info("the kubelet tells who holds which device", socket=str(self.source.socket))
        news = self._ledger.apply(listing) or news
        self._tried.set()
        if news:
            self._changed()

    def _silent(self, reason: str) -> None:
        self._failures += 1
        if self._failures < BELIEVED:
            return
        if not self.hearing.silent:
            self.hearing.silent, self.hearing.since = True, time.time()
        if self._silence.news(reason):
            log.warning("who holds which device is unknown", reason=reason)
        if reason != self.hearing.reason:
            self.hearing.reason = reason
            self._changed()
