"""Which verdicts are in force, and on which devices. Imported only where there are any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, Cause, Device, Health, sound_health, unhealthy
from devhost.discovery.health import ALL, HealthTracker, worst
from devhost.discovery.named import Match, Parts, named, whole
from devhost.discovery.scanner import Scanner
from devhost.runtime.log import get
from devhost.runtime.text import few
from devhost.runtime.worker import FileWorker

from .files import Reading, Verdict, VerdictDirectory, VerdictKind

log = get(__name__)

OLD = 7 * 86400.0
"""Seconds after which a cordon is a problem: it may have been forgotten."""

LOGGED = 20
"""The most problems that are logged at a time."""


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


Wrong = Callable[[Verdict, str, Sequence[Match]], None]


def _nothing(verdict: Verdict, name: str, matches: Sequence[Match]) -> None:
    """What is wrong was reported before."""


class Judge:
    """Follows a directory that exists, and the devices of one machine.

    ``wall`` gives wall-clock seconds. The clock may be set at any time: what is in force is decided again at
    each reading.
    """

    def __init__(
        self,
        directory: Path,
        root: Path,
        scanners: Mapping[str, Scanner],
        worker: FileWorker,
        wall: Callable[[], float],
    ) -> None:
        self.flaws: Sequence[Flaw] = ()
        """What has no effect."""
        self.in_force: tuple[Verdict, ...] = ()
        """The verdicts in force, also those without a device that exists."""
        self._directory = directory
        self._scanners = scanners
        self._wall = wall
        self._source = VerdictDirectory(directory, root)
        self._reading = Reading()
        self._unread = ""
        """Why the directory cannot be read; what it had stays in force."""
        self._basis: object = None
        self._devices: Mapping[str, tuple[Mapping[str, Device], HealthTracker]] = {}
        self._worker = worker

    async def read(self, now: float) -> tuple[bool, bool, float | None]:
        """Reads the directory, at this time in monotonic seconds.

        Returns whether others are in force, whether something else has no effect, and the seconds until
        something changes without a change of a file.
        """
        try:
            reading = await self._worker.file(f"read {self._directory}", self._source.read, now)
            unread = ""
        except EnvironmentFailure as error:
            reading, unread = self._reading, str(error)
        wall, last = self._wall(), self._reading
        in_force = tuple(one for one in reading.verdicts if one.holds(wall))
        others = in_force != self.in_force or last.ends != reading.ends
        flawed = unread != self._unread or last.flaws != reading.flaws
        self._reading, self.in_force, self._unread = reading, in_force, unread
        waits = [one.until - wall for one in in_force if one.until is not None]
        waits += [] if reading.again is None else [reading.again]
        return others, flawed, min(waits, default=None)

    def apply(self) -> None:
        """Applies what is in force to the devices that exist now."""
        devices = {name: (one.devices, one.health) for name, one in self._scanners.items()}
        complete = all(scanner.listed for scanner in self._scanners.values())
        basis = self.in_force, self._reading.ends, self._reading.flaws, self._unread, complete
        if basis == self._basis and _same(devices, self._devices):
            return
        self._basis, self._devices = basis, devices
        flaws = [Flaw(path, reason) for path, reason in self._reading.flaws.items()]
        if self._unread:
            flaws.append(Flaw(str(self._directory), self._unread))

        def wrong(verdict: Verdict, name: str, matches: Sequence[Match]) -> None:
            if matches or complete:  # a backend may not have listed it yet
                flaws.append(Flaw(str(self._directory / verdict.file), _why(name, matches)))

        overrule(self._scanners, self._matched(wrong))
        self._report(flaws)

    def applied(self) -> Iterator[Applied]:
        """What is in force, made for each request: a thousand verdicts take a few milliseconds."""
        return self._matched(_nothing)

    def _matched(self, wrong: Wrong) -> Iterator[Applied]:
        return matched(self._scanners, self.in_force, self._reading.ends, wrong)

    def forgotten(self) -> Sequence[Verdict]:
        """The cordons that are so old that they may have been forgotten."""
        now = self._wall()
        return [one for one in self.in_force if one.kind is VerdictKind.CORDON and one.since < now - OLD]

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


def matched(
    scanners: Mapping[str, Scanner],
    verdicts: Sequence[Verdict],
    ends: Mapping[str, str],
    wrong: Wrong = _nothing,
) -> Iterator[Applied]:
    """Verdicts with the devices that they apply to now, and their parts; for ``ends`` see :class:`.Reading`.

    Calls ``wrong`` with each name that means no device, and the devices that have it.
    """
    names = {name for one in verdicts for name in one.names} - {ALL}
    found = named(scanners, names | {ends[name] for name in names if name in ends})
    parts = Parts(scanners) if found else None
    for verdict in verdicts:
        devices: dict[tuple[str, str], None] = {}
        for name in verdict.names:
            matches = found.get(name) or found.get(ends.get(name, name), [])
            if name == ALL:
                devices[ALL, ALL] = None
            elif parts and (one := whole(matches)):
                devices.update(((backend, device.id), None) for backend, device in (*one, *parts.of(one)))
            else:
                wrong(verdict, name, matches)
        yield Applied(verdict, tuple(devices))


def overrule(scanners: Mapping[str, Scanner], applied: Iterable[Applied]) -> None:
    """Gives the health of each backend's devices what is in force, and nothing else."""
    cordons: dict[str, dict[str, Health]] = defaultdict(dict)
    reported: dict[str, dict[str, Health]] = defaultdict(dict)
    for one in applied:
        cordoned = one.verdict.kind is VerdictKind.CORDON
        into = cordons if cordoned else reported
        cause = Cause.CORDONED if cordoned else Cause.REPORTED
        health = sound_health(unhealthy(one.verdict.text, cause))
        for backend, device in one.devices:
            for name in scanners if backend == ALL else (backend,):
                into[name][device] = worst(into[name].get(device, HEALTHY), health)
    for name, scanner in scanners.items():
        scanner.health.cordons, scanner.health.reported = cordons[name], reported[name]


def _why(name: str, matches: Sequence[Match]) -> str:
    if not matches:
        return f"no device is called {name} (correct the name, or remove the file)"
    ids = few([f"{backend}/{device.id}" for backend, device in matches])
    return f"{name} is a name of {ids} (write the one that is meant)"


def _same(one: Mapping[str, tuple[object, object]], other: Mapping[str, tuple[object, object]]) -> bool:
    return one.keys() == other.keys() and all(
        mine is other[name][0] and health is other[name][1] for name, (mine, health) in one.items()
    )
