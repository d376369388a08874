"""Follows the directory of verdicts, and applies what is in force to the devices that exist."""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, Device, Health, sound_health, unhealthy
from devhost.discovery.health import ALL, HealthTracker, worst
from devhost.discovery.named import Match, named
from devhost.discovery.scanner import Scanner
from devhost.discovery.timing import NODE, Timing
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, Reconciler
from devhost.runtime.text import few
from devhost.runtime.watch import DirectoryWatch
from devhost.runtime.worker import FileWorker

if TYPE_CHECKING:
    from .files import Reading, Verdict, VerdictDirectory

log = get(__name__)

DIRECTORY = "verdicts"
"""The name of the directory, below that for the state of devhost."""

OLD = 7 * 86400.0
"""Seconds after which a cordon is a problem: it may have been forgotten."""

LOGGED = 20
"""The most problems that are logged at a time."""

GAP = 0.02
"""Least seconds between two readings, if the directory keeps changing."""


@frozen
class Applied:
    """A verdict in force, and the devices that it applies to now: backend and id."""

    verdict: Verdict
    devices: tuple[tuple[str, str], ...]


@frozen
class Flaw:
    """Why a file, or one of its names, has no effect."""

    file: str
    reason: str


class VerdictFollower:
    """The verdicts on the devices of one machine.

    Args:
        directory: where the files are; it need not exist. ``None`` for no verdicts.
        root: the ``/`` of the machine.
        replan: called when other verdicts are in force, with the monotonic time at which that was found.
        changed: called when other files have no effect.
        wall: wall-clock seconds. The clock may be set at any time: what is in force is decided again at each
            reading.
    """

    def __init__(
        self,
        directory: Path | None,
        root: Path,
        scanners: Mapping[str, Scanner],
        replan: Callable[[float | None], None],
        changed: Callable[[], None] = lambda: None,
        timing: Timing = NODE,
        clock: Clock = LOOP_CLOCK,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.directory = directory
        self.applied: Sequence[Applied] = ()
        """What is in force."""
        self.flaws: Sequence[Flaw] = ()
        """What has no effect."""
        self._root = root
        self._scanners = scanners
        self._replan = replan
        self._changed = changed
        self._timing = timing
        self._clock = clock
        self._wall = wall
        self._source: VerdictDirectory | None = None
        self._reading: Reading | None = None
        self._in_force: tuple[Verdict, ...] = ()
        self._unread = ""
        """Why the directory cannot be read; what it had stays in force."""
        self._basis: object = None
        self._devices: Mapping[str, tuple[Mapping[str, Device], HealthTracker]] = {}
        self._passes = Reconciler(self.look, gap=GAP, clock=clock)
        self._worker = FileWorker("verdicts", "")

    async def run(self, blind: Callable[[str], None] = lambda reason: None) -> None:
        """Reads the directory after each change; for ``blind`` see :class:`.DirectoryWatch`."""
        if self.directory is None:
            return
        watch = DirectoryWatch(self._watched, self._timing.verdicts, blind)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._passes.run())
            async for _ in watch.changes():
                self._passes.wake()

    async def look(self) -> float | None:
        """Reads the directory; seconds until something changes without a change of a file."""
        if self.directory is None or (self._source is None and not self._is_there()):
            return None
        from .files import Reading, VerdictDirectory  # only on nodes with verdicts

        if self._source is None:
            self._source = VerdictDirectory(self.directory, self._root)
        began = self._clock.time()
        try:
            reading = await self._worker.file(f"read {self.directory}", self._source.read, began)
            unread = ""
        except EnvironmentFailure as error:
            reading, unread = self._reading or Reading(), str(error)
        return self._follow(reading, unread, began)

    def apply(self) -> None:
        """Applies what is in force to the devices that exist now. Call it before each plan."""
        if self._reading is None:
            return
        devices = {name: (one.devices, one.health) for name, one in self._scanners.items()}
        complete = all(scanner.listed for scanner in self._scanners.values())
        basis = self._in_force, self._reading.ends, self._reading.flaws, self._unread, complete
        if basis == self._basis and _same(devices, self._devices):
            return
        self._basis, self._devices = basis, devices
        flaws = [Flaw(path, reason) for path, reason in self._reading.flaws.items()]
        if self._unread:
            flaws.append(Flaw(str(self.directory), self._unread))
        self.applied = list(self._matched(self._reading.ends, complete, flaws))
        self._overrule()
        self._report(flaws)

    def forgotten(self) -> Iterator[Verdict]:
        """The cordons that are so old that they may have been forgotten."""
        now = self._wall()
        for one in self.applied:
            if one.verdict.kind == "cordon" and one.verdict.since < now - OLD:
                yield one.verdict

    @property
    def in_force(self) -> Sequence[Verdict]:
        """The verdicts in force, also those without a device that exists."""
        return self._in_force

    def close(self) -> None:
        """Lets the thread end."""
        self._worker.close()

    def _is_there(self) -> bool:
        """Whether there is anything, not only a directory: what else it is, is a problem."""
        return self.directory is not None and os.path.lexists(self.directory)

    def _watched(self) -> list[Path]:
        """The directory; until it exists, the one in which it appears."""
        assert self.directory is not None
        return [self.directory if self.directory.is_dir() else self.directory.parent]

    def _follow(self, reading: Reading, unread: str, began: float) -> float | None:
        now = self._wall()
        in_force = tuple(one for one in reading.verdicts if one.holds(now))
        last = self._reading
        others = in_force != self._in_force or (last is not None and last.ends != reading.ends)
        flawed = unread != self._unread or (last.flaws if last else {}) != reading.flaws
        self._reading, self._in_force, self._unread = reading, in_force, unread
        if others:
            self._replan(began)
        if flawed:
            self.apply()
            self._changed()
        waits = [one.until - now for one in in_force if one.until is not None]
        waits += [] if reading.again is None else [reading.again]
        return min(waits, default=None)

    def _matched(self, ends: Mapping[str, str], complete: bool, flaws: list[Flaw]) -> Iterator[Applied]:
        """The verdicts in force with their devices; adds the names that are of several, or of none.

        ``complete`` is whether every backend has listed its devices, so that a name may be of none.
        """
        names = {name for one in self._in_force for name in one.names} - {ALL}
        found = named(self._scanners, names | {ends[name] for name in names if name in ends})
        for verdict in self._in_force:
            matches: dict[tuple[str, str], None] = {}
            for name in verdict.names:
                hits = found.get(name) or found.get(ends.get(name, name), [])
                if name == ALL:
                    matches[ALL, ALL] = None
                elif is_one(hits):
                    matches.update(((backend, device.id), None) for backend, device in hits)
                elif hits or complete:
                    flaws.append(Flaw(str(self._path(verdict)), _why(name, hits)))
            yield Applied(verdict, tuple(matches))

    def _path(self, verdict: Verdict) -> Path:
        assert self.directory is not None
        return self.directory / verdict.file

    def _overrule(self) -> None:
        """Gives the health of each backend's devices what is in force."""
        cordons: dict[str, dict[str, Health]] = defaultdict(dict)
        reported: dict[str, dict[str, Health]] = defaultdict(dict)
        for one in self.applied:
            into = cordons if one.verdict.kind == "cordon" else reported
            health = sound_health(unhealthy(one.verdict.text))
            for backend, device in one.devices:
                for name in self._scanners if backend == ALL else (backend,):
                    into[name][device] = worst(into[name].get(device, HEALTHY), health)
        for name, scanner in self._scanners.items():
            scanner.health.cordons, scanner.health.reported = cordons[name], reported[name]

    def _report(self, flaws: Sequence[Flaw]) -> None:
        """Logs what has no effect now and did before, or the reverse."""
        before, self.flaws = self.flaws, flaws
        new = [one for one in flaws if one not in before]
        for one in new[:LOGGED]:
            log.warning("a verdict has no effect", file=one.file, reason=one.reason)
        if len(new) > LOGGED:
            log.warning("more verdicts have no effect", files=len(new) - LOGGED)
        bad = {one.file for one in flaws}
        over = sorted({one.file for one in before} - bad)
        for file in over[:LOGGED]:
            log.info("a verdict is no longer without effect", file=file)


def is_one(matches: Sequence[Match]) -> bool:
    """Whether a name is that of one device, which several backends may find: their claims show that."""
    if not matches:
        return False
    together, rest = {*matches[0][1].claims}, [*matches[1:]]
    while joined := [match for match in rest if not together.isdisjoint(match[1].claims)]:
        for match in joined:
            together |= match[1].claims
            rest.remove(match)
    return not rest


def _why(name: str, matches: Sequence[Match]) -> str:
    if not matches:
        return f"no device is called {name} (correct the name, or remove the file)"
    ids = few([f"{backend}/{device.id}" for backend, device in matches])
    return f"{name} is a name of {ids} (write the one that is meant)"


def _same(one: Mapping[str, tuple[object, object]], other: Mapping[str, tuple[object, object]]) -> bool:
    """Whether the backends have the same objects."""
    return one.keys() == other.keys() and all(
        mine is other[name][0] and health is other[name][1] for name, (mine, health) in one.items()
    )
