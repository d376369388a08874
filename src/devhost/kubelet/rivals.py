"""Which other device plugins, and which other instances of devhost, serve a resource.

If two plugins register one resource, neither is notified: a kubelet since 1.25 leaves the stream of the older
one open. GetAllocatableResources shows it: its answer has the healthy devices of every resource, from all
plugins. :class:`Rivals` calls it for all resources at once; :mod:`.registration` draws the conclusions. If
the kubelet does not answer, only the sockets in its directory show other plugins. :class:`Instances` are
those of a rolling update.

ListAndWatch of another plugin is never called: many plugins lose health updates to a second stream.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from devhost.allocation.allocator import Allocator
from devhost.planning.timing import KUBELET, KubeletTiming
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, Reconciler
from devhost.runtime.sockets import dead, described

from .api import KUBELET_SOCKET
from .kubelet_socket import KubeletSocket
from .podresources_poller import PodResources, Unanswered
from .server import SOCKET_PREFIX, server_stem, socket_name

LULL = 0.002
"""Seconds from a request to the call, so that resources that start together share one."""

DROPPED_AFTER = 3
"""Answers in a row that must lack a resource before it counts as dropped and is registered again."""

NAMED = 3
"""Most sockets of other plugins that a message names."""


class Rivals:
    """Asks the kubelet on request, and when its directory changed."""

    def __init__(
        self,
        source: PodResources,
        directory: Path,
        *,
        timing: KubeletTiming = KUBELET,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.listed: Mapping[str, frozenset[str]] | None = None
        """Healthy ids by resource in the newest answer; ``None`` where the kubelet does not answer."""
        self.asked = -math.inf
        """When the newest call that has ended began, in monotonic seconds."""
        self._source = source
        self._directory = directory
        self._timing = timing
        self._clock = clock
        self._loop = Reconciler(self._ask, first=None, settle=LULL, gap=timing.rivals_gap, clock=clock)
        self._subscribers: set[Callable[[], None]] = set()
        self._described: dict[tuple[str, int, int], str] = {}

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after each call; returns a function that ends this."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def ask(self, within: float = 0.0) -> None:
        """Asks the kubelet within so many seconds, but not sooner than ``timing`` allows."""
        self._loop.wake(max(within, LULL))

    def directory_changed(self) -> None:
        """A plugin may have registered, exited or sent a list."""
        if self._subscribers:
            self.ask(self.asked + self._timing.rivals_changed - self._clock.time())

    async def run(self) -> None:
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
        """The newest socket of another plugin on which a process listens."""
        return next((path for path, text in self._others() if text), None)

    def named(self) -> str:
        """The sockets of other plugins on which a process listens, newest first; may be empty."""
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

    ``since`` is when it was registered, in monotonic seconds; answers to earlier questions do not count.
    """

    def __init__(self, resource: Allocator, rivals: Rivals, since: float) -> None:
        self.foreign = False
        """Whether the kubelet has healthy devices of the resource that devhost does not list."""
        self.dropped = False
        """Whether the kubelet had devhost's devices and now has none, although devhost lists healthy ones."""
        self._resource = resource
        self._rivals = rivals
        self._applied = since
        self._unlisted: frozenset[str] = frozenset()
        self._known = False
        self._missing = 0

    @property
    def doubtful(self) -> bool:
        """Whether another answer is needed to decide."""
        return bool((self._unlisted and not self.foreign) or (self._missing and not self.dropped))

    def pending(self) -> bool:
        """Whether there is a newer answer than the last one applied."""
        return self._rivals.asked > self._applied

    def apply(self) -> None:
        """Draws the conclusions from the newest answer."""
        self._applied = self._rivals.asked
        if self._rivals.listed is None:
            return
        snapshot = self._resource.inventory.snapshot
        listed = self._rivals.listed.get(self._resource.name, frozenset())
        unlisted = listed - snapshot.entries.keys()
        # in two answers: a list that devhost has just sent may not have arrived yet
        self.foreign = bool(unlisted & self._unlisted)
        self._unlisted = unlisted
        self._known = self._known or bool(listed & snapshot.entries.keys())
        self._missing = self._missing + 1 if self._known and snapshot.healthy and not listed else 0
        self.dropped = self._missing >= DROPPED_AFTER


class Instances:
    """The sockets of other instances for one resource, sorted into older and newer than the own socket.

    For ``start`` see :class:`.KubeletTiming`.
    """

    def __init__(self, kubelet: KubeletSocket, resource: str, start: float) -> None:
        self.older: set[str] = set()
        self.newer: set[str] = set()
        self.starting = False
        """Whether there is a socket that is not sorted yet, because its process may still start."""
        self.stem = server_stem(socket_name(resource))
        self._kubelet = kubelet
        self._start = start
        self._own = ""

    def begin(self, own: Path) -> None:
        """This process now serves the resource on ``own``: all other sockets that exist are older."""
        self._own = own.name
        self.older, self.newer = set(self.others()), set()

    def end(self) -> None:
        """This process has no socket for the resource."""
        self._own = ""

    def others(self) -> frozenset[str]:
        return self._kubelet.servers.get(self.stem, frozenset()) - {self._own}

    def live(self) -> list[str]:
        """The sockets of other instances on which a process listens."""
        return sorted(name for name in self.others() if not self.dead(name))

    def sort(self, *, settled: bool) -> None:
        """Sorts new sockets: with ``settled`` all of them count as newer than the own socket."""
        self.starting = False
        for name in self.others() - self.older - self.newer:
            if self._starts(name):
                self.starting = True
                continue
            later = settled or self.born(name) > self.born(self._own)
            (self.newer if later else self.older).add(name)

    def gone(self, known: frozenset[str]) -> frozenset[str]:
        """The known sockets that no longer exist, or on which no process listens."""
        others = self.others()
        return known - others | {name for name in known & others if self.dead(name)}

    def dead(self, name: str) -> bool:
        return dead(self._kubelet.directory / name)

    def _starts(self, name: str) -> bool:
        """Whether a socket is so new that its process may not listen on it yet."""
        return self.dead(name) and 0 <= time.time() - self.born(name)[0] / 1e9 < self._start

    def born(self, name: str) -> tuple[int, str]:
        """When a socket was created; the name decides between sockets of the same clock tick."""
        try:
            return os.stat(self._kubelet.directory / name).st_mtime_ns, name  # noqa: PTH116 - called in loops
        except OSError:
            return 0, name

    def displaced_by(self, name: str) -> str:
        """The message that another instance registered the resource later."""
        return (
            f"another devhost registered it after this one: {described(self._kubelet.directory / name)}; "
            "run only one devhost for this resource on the node"
        )
