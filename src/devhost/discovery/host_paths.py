"""The host paths without which devices cannot be given: those of ``give``, and those that an Allocate missed.

They are looked at apart from the scans, because one may be on a file system that hangs. Such a path counts as
missing, as long as the look at it does not end, and delays nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from os.path import commonpath

from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import BackendTimeout
from devhost.planning.timing import DiscoveryTiming
from devhost.runtime.reconciler import Clock, Reconciler
from devhost.runtime.worker import MAX_ABANDONED, SILENCE, NotCalled

from .health import HealthTracker
from .runner import BackendRunner

MOST_HANGING = MAX_ABANDONED - 1
"""Looks that may hang before only paths are looked at that have answered: one thread remains for these."""


class HostPaths:
    """Looks for the host paths of one backend's devices, and notes in ``health`` which are missing.

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
