"""What the kubelet reports of the resources that plugins serve, devhost's own and those of others.

Two plugins under one name disturb each other without a notice: a kubelet since 1.25 leaves the
stream of the older one open. GetAllocatableResources shows it: it has the healthy devices of every
resource, whichever plugin listed them. :class:`Rivals` asks it for all resources at once;
:mod:`.registration` draws the conclusions. Where the kubelet does not answer it, only the sockets in the
directory say something.

ListAndWatch of another plugin is never called: many plugins lose health updates to a second stream.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.discovery.reconciler import LOOP_CLOCK, Clock, Reconciler

from .api import KUBELET_SOCKET
from .podresources import PodResources, Unanswered
from .resource import Resource
from .server import SOCKET_PREFIX
from .sockets import dead, described

GAP = 0.3
"""Least seconds from the beginning of one question to the next."""

NEWS = 1.0
"""The same for questions that only a change in the kubelet's directory caused: each list that a kubelet
receives changes its checkpoint there."""

LULL = 0.02
"""Seconds from a wish to the question: resources that start together share it."""

DROPPED_AFTER = 3
"""Answers in a row that must lack a resource before it counts as dropped, and registers again."""

NAMED = 3
"""Sockets of other plugins that a message names at most."""


class Rivals:
    """Asks the kubelet when a subscriber wants to know, or when its directory changed.

    Args:
        source: the kubelet's podresources service.
        directory: the kubelet's device-plugin directory.
        clock: a fake one in tests.
    """

    def __init__(self, source: PodResources, directory: Path, clock: Clock = LOOP_CLOCK) -> None:
        self.listed: Mapping[str, frozenset[str]] | None = None
        """Healthy ids by resource in the newest answer; ``None`` where the kubelet does not answer."""
        self.asked = -math.inf
        """When the newest question that has ended was asked, in monotonic seconds."""
        self._source = source
        self._directory = directory
        self._clock = clock
        self._loop = Reconciler(self._ask, first=None, settle=LULL, gap=GAP, clock=clock)
        self._subscribers: set[Callable[[], None]] = set()
        self._described: dict[tuple[str, int, int], str] = {}

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after each question; returns what ends that."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def ask(self, within: float = 0.0) -> None:
        """Has the kubelet asked within so many seconds, as far as :data:`GAP` allows."""
        self._loop.wake(max(within, LULL))

    def directory_changed(self) -> None:
        """A plugin came or left, or sent a list."""
        if self._subscribers:
            self.ask(self.asked + NEWS - self._clock.time())

    async def run(self) -> None:
        """Asks whenever it is due; never ends by itself."""
        await self._loop.run()

    async def _ask(self) -> None:
        began = self._clock.time()
        try:
            self.listed = await self._source.allocatable()
        except Unanswered:
            self.listed = None
        self.asked = began
        for subscriber in tuple(self._subscribers):
            subscriber()

    def newest(self) -> Path | None:
        """The socket of another plugin that was made last, if a process listens on one."""
        return next((path for path, text in self._others() if text), None)

    def named(self) -> str:
        """The sockets of other plugins on which a process listens, the newest first; may be empty."""
        found = [text for _, text in self._others() if text]
        more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
        names = ", ".join(found[:NAMED]) + more
        return f"one of {names}" if len(found) > 1 else names

    def _others(self) -> list[tuple[Path, str]]:
        """Connects to each socket once, so that no plugin sees repeated connections."""
        found: list[tuple[float, Path, str]] = []
        seen: dict[tuple[str, int, int], str] = {}
        with suppress(OSError):
            for path in self._directory.iterdir():
                if path.name == KUBELET_SOCKET or path.name.startswith(SOCKET_PREFIX):
                    continue
                with suppress(OSError):
                    there = path.lstat()
                    if not stat.S_ISSOCK(there.st_mode):
                        continue
                    key = (path.name, there.st_ino, there.st_ctime_ns)
                    text = self._described.get(key)
                    if text is None:
                        text = "" if dead(path) else described(path)
                    seen[key] = text
                    found.append((there.st_mtime, path, text))
        self._described = seen
        return [(path, text) for _, path, text in sorted(found, key=lambda one: one[0], reverse=True)]


class Answers:
    """What the kubelet's answers show about a registration; each conclusion takes more than one.

    Args:
        since: monotonic seconds of the registration; answers to earlier questions do not count.
    """

    def __init__(self, resource: Resource, rivals: Rivals, since: float) -> None:
        self.foreign = False
        """Whether the kubelet has healthy devices of the resource that are not in its list."""
        self.dropped = False
        """Whether it had the devices of the list, and now has none, though the list has healthy ones."""
        self._resource = resource
        self._rivals = rivals
        self._applied = since
        self._strange: frozenset[str] = frozenset()
        self._known = False
        self._missing = 0

    @property
    def doubtful(self) -> bool:
        """Whether one more answer would decide."""
        return bool((self._strange and not self.foreign) or (self._missing and not self.dropped))

    def pending(self) -> bool:
        """Whether there is an answer to a question that was asked since the last one that was applied."""
        return self._rivals.asked > self._applied

    def apply(self) -> None:
        """Draws the conclusions from the newest answer."""
        self._applied = self._rivals.asked
        if self._rivals.listed is None:
            return
        snapshot = self._resource.inventory.snapshot
        listed = self._rivals.listed.get(self._resource.name, frozenset())
        strange = listed - snapshot.entries.keys()
        # twice the same: a list that devhost has just sent may not have arrived yet
        self.foreign = bool(strange & self._strange)
        self._strange = strange
        self._known = self._known or bool(listed & snapshot.entries.keys())
        self._missing = self._missing + 1 if self._known and snapshot.healthy and not listed else 0
        self.dropped = self._missing >= DROPPED_AFTER
