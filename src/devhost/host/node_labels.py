"""Keeps the node's labels in step with its devices: asks backends what labels they give, and writes them.

A backend that has ``labels`` is asked when its devices are other ones, or are offered otherwise; never while
a kubelet waits. Files stay when devhost stops, for the hardware does, and a backend that has not looked
yet, or fails, changes nothing: labels that come and go would move pods.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devhost.backend import Offered
from devhost.backend.backoff import Backoff
from devhost.backend.errors import BackendError, EnvironmentFailure
from devhost.backend.incident import Incident
from devhost.backend.model import Device
from devhost.discovery.scanner import Scanner
from devhost.discovery.worker import FileWorker
from devhost.planning.plan import Plan
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics

from .node_label_files import FeatureDirectory, sorted_out

log = get(__name__)

MEND = (
    "labels.directory must be a directory that devhost may write to; "
    "labels: {write: false} where nobody reads it"
)

SETTLE = 1.0
"""Seconds between news and what is made of it: devices seldom come alone."""

PENDING = 2.0
"""Seconds between looks whether a backend has listed its devices."""

RESYNC = 60.0
"""Seconds after which all is done again: the net under files that somebody else has removed."""


_Basis = tuple[FeatureDirectory, list[Device], Offered, Collection[object]]
"""What a file is made of, and where it lies: as long as it is the same, there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The labels of one backend: the file, how many are in it, and what is wrong; empty if nothing is."""

    file: Path
    count: int = 0
    reason: str = ""


class NodeLabels:
    """Writes the files of the backends that run, and removes those of others.

    Args:
        directory: where the files go.
        write: whether any are wanted; without, only those of before are removed.
        discoveries: the backends that run, by name.
        plan: the present one.
        changed: called when :attr:`standing` is another.
        tag: as for :class:`FeatureDirectory`.
        metrics: hears what was written.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        directory: Path,
        write: bool,
        discoveries: Callable[[], Mapping[str, Scanner]],
        plan: Callable[[], Plan],
        changed: Callable[[], None] = lambda: None,
        tag: str = "",
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.standing: dict[str, Standing] = {}
        """By backend; only of those that have labels, and while files are wanted."""
        self._discoveries = discoveries
        self._plan = plan
        self._changed = changed
        self._tag = tag
        self._metrics = metrics or Metrics()
        self._wanted: frozenset[str] = frozenset()
        self._lane = FileWorker("labels", MEND)
        self._clock = clock
        self._resync_at = 0.0
        self._wake = asyncio.Event()
        self._backoff = Backoff(2.0, 60.0)
        self._told: dict[str, _Basis] = {}
        self._left: dict[Path, FeatureDirectory] = {}
        self._missing: dict[str, Incident] = {}
        self._unswept = Incident()
        self._place = FeatureDirectory(directory, tag)
        self._write = write

    def follow(self, directory: Path, write: bool) -> None:
        """From now on files go to ``directory``, or nowhere; those written before are removed."""
        if directory != self._place.directory:
            self._left[self._place.directory] = self._place
            self._place = FeatureDirectory(directory, self._tag)
            self._left.pop(directory, None)
        self._write = write
        self._told.clear()
        self.wake()

    def wake(self) -> None:
        """Devices, or what is made of them, may be others."""
        self._wake.set()

    async def run(self) -> None:
        """Does what is due when woken, and at a slow interval; never ends by itself."""
        while True:
            self._wake.clear()
            wait = await self.refresh()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            await asyncio.sleep(SETTLE)

    async def refresh(self) -> float:
        """Brings all files up to date; gives the seconds after which to do so again."""
        if (now := self._clock()) >= self._resync_at:
            self._resync_at = now + RESYNC
            self._told.clear()
        named = {
            name: discovery
            for name, discovery in self._discoveries().items()
            if self._write and discovery.runner.labels
        }
        for name in self._wanted - named.keys():
            self._metrics.labels_unwanted(name)
        for name in named.keys() - self._wanted:
            self._metrics.labels_wanted(name)
        self._wanted = frozenset(named)
        for name in [name for name in self.standing if name not in named]:
            del self.standing[name]
            self._told.pop(name, None)
            self._missing.pop(name, None)
            self._changed()
        well = await self._sweep(frozenset(named))
        offered = _offered(self._plan()) if named else {}  # it counts every device
        settled = True
        for name, discovery in named.items():
            if discovery.condition.last_scan is None:
                settled = False  # what it had before devhost started, or had other options, stands
            else:
                well &= await self._label(name, discovery, offered.get(name, {}))
        if not well:
            return self._backoff.delay()
        self._backoff.reset()
        return RESYNC if settled else PENDING

    def close(self) -> None:
        """Lets the thread end; waits for nobody, and removes nothing."""
        self._lane.close()

    async def _label(self, name: str, discovery: Scanner, offered: Offered) -> bool:
        """Writes the labels of one backend; false if that failed."""
        place, devices = self._place, list(discovery.devices.values())
        basis = (place, devices, offered, discovery.runner.context.entries)
        if self._told.get(name) == basis:
            return True
        try:
            labels, wrong = sorted_out((await discovery.runner.label(devices, offered)).items())
            anew = await self._lane.file(f"write {place.path(name)}", place.write, name, labels)
        except (BackendError, EnvironmentFailure, ValueError) as error:
            self._metrics.labels_failed(name)
            self._show(name, Standing(place.path(name), self._count(name), str(error)))
            return False
        self._metrics.labels_written(name, len(labels), anew)
        self._told[name] = basis
        more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        reason = f"no label: {'; '.join(wrong[:3])}{more}" if wrong else ""
        self._show(name, Standing(place.path(name), len(labels), reason))
        return True

    def _count(self, name: str) -> int:
        return self.standing[name].count if name in self.standing else 0

    def _show(self, name: str, standing: Standing) -> None:
        before = self.standing.get(name)
        if standing == before:
            return
        self.standing[name] = standing
        missing = self._missing.setdefault(name, Incident())
        if standing.reason:
            if missing.news(standing.reason):
                log.warning("labels are missing", backend=name, reason=standing.reason)
        else:
            missing.over()
            log.info("labels written", backend=name, file=str(standing.file), labels=standing.count)
        self._changed()

    async def _sweep(self, keep: frozenset[str]) -> bool:
        """Removes files that are not wanted any more; false if that failed."""
        try:
            for directory, place in list(self._left.items()):
                await self._lane.file(f"remove files from {directory}", place.sweep, frozenset())
                self._left.pop(directory, None)
            place = self._place
            await self._lane.file(f"remove files from {place.directory}", place.sweep, keep)
        except EnvironmentFailure as error:
            if self._unswept.news(str(error)):
                log.warning("a file with labels stays behind", reason=str(error))
            return False
        if self._unswept.over():
            log.info("files with labels can be removed again")
        return True


def _offered(plan: Plan) -> dict[str, dict[str, dict[str, int]]]:
    """What a plan offers, by backend."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for resource in plan.resources.values():
        devices = found.setdefault(resource.entry.backend, {})
        for device, replicas in resource.offers:
            devices.setdefault(device.id, {})[resource.name] = replicas
    return found
