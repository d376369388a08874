"""Shows what has changed, after the lists: log, observers, node labels, status and metrics.

A plan ends with what the kubelet gets. What people and programs see follows in one step, so that it delays no
list: right after, or before a reader gets the status. What was shown last is kept here and nowhere else; what
has changed is a function of it and of what is true now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from devhost.discovery.verdict_follower import VerdictsNow

from . import device_log
from .changes import Removals, Step, changes, is_same
from .now import EntriesNow, Lost, Memory, Now, Reasons
from .orphans import lost
from .shortages import shortages


class Publication:
    """What is shown, and when.

    Args:
        collect: what is true now; it contains the memory that it gets.
        show: shows what has changed.
    """

    def __init__(self, collect: Callable[[Memory], Now], show: Callable[[Step], None]) -> None:
        self._collect = collect
        self._show = show
        self._shown: Now | None = None
        self._due: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def shown(self) -> Now:
        """What was shown last; nothing at first."""
        if self._shown is None:
            self._shown = nothing(self._collect(Memory()))
        return self._shown

    def soon(self) -> None:
        """Something has changed, such as a list, or who holds what."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._behind)

    def _behind(self) -> None:
        """Waits for the streams that were woken after the first change, which are in the queue by now."""
        self._due = asyncio.get_running_loop().call_soon(self.show)

    def show(self) -> None:
        """Shows everything that has changed. Without effect if nothing has."""
        if self._due is None:
            return
        self._due.cancel()
        self._due = None
        before = self.shown
        step = step_between(before, self._collect(before.memory))
        self._shown = step.now
        self._show(step)
        look_at = step.now.shortages.look_at
        if look_at is not None and self._timer is None:
            wait = max(0.0, look_at - step.now.clock)
            self._timer = asyncio.get_running_loop().call_later(wait, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self.soon()

    def now(self) -> Now:
        """What is true now, once everything that has changed is shown."""
        if self._due is None:
            return self._collect(self.shown.memory)
        self.show()
        return self.shown

    def first_observer(self) -> None:
        """Counts what is held as shown: observers alone get that, and there were none."""
        now = self._collect(self.shown.memory)
        self._shown = replace(self.shown, held=now.held, tokens=now.tokens)

    def close(self) -> None:
        """Shows nothing that has changed until now."""
        for waiting in (self._due, self._timer):
            if waiting is not None:
                waiting.cancel()
        self._due = self._timer = None


def nothing(now: Now) -> Now:
    """The moment before the first one: everything that there is appears after it."""
    return replace(
        now,
        plans=0,
        shortages=EntriesNow(now.shortages.outcomes),
        backends={},
        resources={},
        holdings={},
        held=(),
        differences={},
        tokens=dict,
        claimed=(),
        moves=(),
        verdicts=VerdictsNow(),
        memory=Memory(),
    )


def step_between(before: Now, now: Now) -> Step:
    """What differs between two moments, of which the second one remembers the first one."""
    lists = tuple(changes(before, now))
    same = {name for name in now.resources if is_same(before, now, name)}
    removals = {name: one for name, one in before.memory.removals.items() if name in same}
    reasons: dict[str, Reasons] = {name: one for name, one in before.memory.reasons.items() if name in same}
    changed = {one.resource: one for one in lists if one.resource in same}
    for name in changed.keys() | removals.keys():
        one, known = changed.get(name), removals.pop(name, Removals())
        left, came = (one.left, one.appeared) if one else ({}, ())
        known = known.after(left, came, now.resources[name].snapshot.devices, now.at)
        if known.leaving or known.departed:
            removals[name] = known
    for one in lists:
        if one.resource in now.resources and (
            found := device_log.reasons(reasons.pop(one.resource, {}), one)
        ):
            reasons[one.resource] = found
    entries = shortages(before, now) if now.plans else None
    memory = Memory(removals, reasons, lost(now) if now.holdings else Lost(), entries)
    return Step(before, replace(now, shortages=entries or now.shortages, memory=memory), lists)
