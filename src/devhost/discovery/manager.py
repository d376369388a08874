"""Runs the backends that the configuration needs, each with the options it has now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from devhost.backend import Event
from devhost.backend.errors import EnvironmentFailure, UsageError
from devhost.planning.settings import Skipped
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler
from devhost.runtime.tasks import Tasks
from devhost.runtime.worker import FileWorker
from devhost.telemetry.metrics import Metrics

from .catalog import Needed
from .provisioning import Provisioning, ProvisioningState
from .releases import LONGEST, Releases
from .runner import RELEASE_DEADLINE, BackendRunner, HeldClaims
from .scanner import BackendState, Scanner

log = get(__name__)


class BackendManager:
    """Starts, stops and replaces backends.

    Calls ``found`` as :class:`Scanner` does, ``changed`` when the condition of a backend's provisioning
    changed, and ``scanned`` with the name of a backend after each of its successful scans. ``released`` is
    the file that records which backends have released their drivers.
    """

    def __init__(
        self,
        root: Path,
        tasks: Tasks,
        metrics: Metrics,
        found: Callable[[float | None], None],
        changed: Callable[[], None],
        held: HeldClaims,
        timing: DiscoveryTiming = DISCOVERY,
        released: Path | None = None,
        scanned: Callable[[str], None] = lambda backend: None,
    ) -> None:
        self.scanners: dict[str, Scanner] = {}
        self.provisioning: dict[str, Provisioning] = {}
        self._root = root
        self._tasks = tasks
        self._metrics = metrics
        self._found = found
        self._changed = changed
        self._held = held
        self._scanned = scanned
        self._timing = timing
        self.releases = Releases(root, released)
        self._files = FileWorker("releases", "")
        self._release_ends = Reconciler(self._end_releases, first=timing.releases)
        self._unchecked = FailureLog(log, "releases cannot be checked", "releases can be checked again")

    def follow(self, needed: Mapping[str, Needed], skipped: Sequence[Skipped] = ()) -> None:
        """Starts and stops backends so that those run that are needed; ``skipped`` entries have none."""
        for name, hint in {entry.backend: entry.hint for entry in skipped}.items():
            names = ", ".join(entry.name for entry in skipped if entry.backend == name)
            log.info("backend is not installed", backend=name, entries=names, reason=hint)
        for name in [name for name in self.scanners if name not in needed]:
            self._stop(name)
            self._tasks.cancel(f"provision {name}")
        for name, one in needed.items():
            running = self.scanners.get(name)
            if running and running.runner.kind is one.backend and running.runner.options == one.options:
                context = running.runner.context
                wants = one.wanted, one.entries, one.given
                if (context.wanted, context.entries, running.paths.given) != wants:
                    context.wanted, context.entries, running.paths.given = wants
                    running.request_scan()
                continue
            before = running.runner if running else None
            runner = BackendRunner(
                one.backend, one.options, self._root, one.wanted, self._held, one.entries, before
            )
            scanner = Scanner(
                runner,
                self._metrics,
                self._found,
                running,
                self._timing,
                scanned=partial(self._scanned, name),
            )
            scanner.paths.given = one.given
            if running:
                self._stop(name)
            self._metrics.begin("backend", name)
            degraded = scanner.condition.state is BackendState.DEGRADED
            self._metrics.set("backend_degraded", name, to=degraded)
            self.scanners[name] = scanner
            runner.context.released = name in self.releases
            scanner.health.released = self.releases.reason(name)
            self._tasks.spawn(f"scan {name}", scanner.run)
            self._tasks.spawn(f"paths {name}", scanner.paths.run)
            self._tasks.spawn(f"watch {name}", scanner.watch)
            if scanner.probing:
                self._tasks.spawn(f"probe {name}", scanner.probing.run)
            if runner.link_cache:
                self._tasks.spawn(f"links {name}", runner.link_cache.run)
            if one.provisions or name in self.provisioning:
                self._provision(name, scanner)
        self._release_ends.wake(self._timing.releases)

    async def answered(self, within: float) -> None:
        """Waits until every backend has answered, for at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for scanner in list(self.scanners.values()):
                    await scanner.answered.wait()

    def dispatch(self, event: Event) -> None:
        for name, scanner in self.scanners.items():
            if scanner.concerns(event):
                scanner.request_scan(event)
                if event.action in ("add", "move") and name in self.provisioning:
                    self.provisioning[name].wake()

    def recheck(self) -> None:
        """Asks all backends for a scan and a probe."""
        for scanner in self.scanners.values():
            scanner.recheck()
        for provisioning in self.provisioning.values():
            provisioning.wake()

    async def release(self, name: str, seconds: float) -> str:
        """Makes a backend release its driver; returns until when at the latest (RFC 3339).

        Raises ``UsageError`` if no such backend runs, it keeps no driver in use, or ``seconds`` is out of
        range; ``EnvironmentFailure`` if the release cannot be recorded; and ``BackendError`` if something
        stays open: the backend opens nothing else until the release ends.
        """
        scanner = self._releasing(name)
        if not 1 <= seconds <= LONGEST:
            raise UsageError(f"a release lasts from 1 to {LONGEST:.0f} seconds, not {seconds:g}")
        modules = scanner.runner.kind.modules
        begin = self.releases.begin
        await self._files.file("record the release", begin, name, seconds, modules)
        self._follow_release(name)
        log.warning("driver released on request", backend=name, until=self.releases.until(name))
        if (runner := scanner.runner).started:
            await runner.call("discover", RELEASE_DEADLINE, runner.backend.release)
        return self.releases.until(name)

    async def resume(self, name: str, why: str = "on request") -> bool:
        """Ends the release of a backend; whether there was one. Raises the same as :meth:`release`."""
        self._releasing(name)
        ended = await self._files.file("record the end of the release", self.releases.end, name)
        if ended:
            log.info("driver is used again", backend=name, reason=why)
            self._follow_release(name)
        return ended

    async def watch_releases(self) -> None:
        """Ends releases whose time is over, or whose driver was loaded again."""
        await self._release_ends.run()

    async def _end_releases(self) -> float | None:
        """One pass; the next one is soon while a driver is released, else when that begins."""
        modules = {name: scanner.runner.kind.modules for name, scanner in self.scanners.items()}
        if not any(name in self.releases for name in modules):
            return None
        try:
            over = await self._files.file("look for drivers", self.releases.over, modules)
            for name, why in over.items():
                if name in self.scanners:
                    await self.resume(name, why)
        except EnvironmentFailure as error:
            self._unchecked.failed(str(error))
        else:
            self._unchecked.succeeded()
        return self._timing.releases

    def _releasing(self, name: str) -> Scanner:
        able = sorted(one for one, scanner in self.scanners.items() if scanner.runner.abilities.release)
        if name in able:
            return self.scanners[name]
        what = "keeps no driver in use" if name in self.scanners else "does not run"
        raise UsageError(
            f"backend {name} {what}",
            f"those that release a driver here: {', '.join(able)}" if able else "nothing has to be released",
        )

    def _follow_release(self, name: str) -> None:
        scanner, reason = self.scanners[name], self.releases.reason(name)
        was_released = scanner.runner.context.released
        scanner.runner.context.released = bool(reason)
        scanner.health.released = reason
        self._release_ends.wake(self._timing.releases)
        if bool(reason) != was_released:
            scanner.recheck()
        self._found(None)

    def released(self) -> None:
        """A container has released something: provisioning that waits for that continues."""
        for provisioning in self.provisioning.values():
            if provisioning.condition.state is ProvisioningState.WAITING:
                provisioning.wake()

    def close(self) -> None:
        """Lets their threads end; does not wait for them."""
        self._files.close()
        for scanner in self.scanners.values():
            scanner.runner.close()
        for provisioning in self.provisioning.values():
            provisioning.close()

    def _provision(self, name: str, scanner: Scanner) -> None:
        """Uses one object per backend: a call that hangs also delays later ones with other options."""
        if name in self.provisioning:
            self.provisioning[name].follow(scanner)
        else:
            self.provisioning[name] = Provisioning(scanner, self._provisioned, self._timing)
        self._provisioned(name)
        if not self._tasks.named(f"provision {name}"):
            self._tasks.spawn(f"provision {name}", self.provisioning[name].run)

    def _provisioned(self, name: str) -> None:
        present = self.provisioning[name].condition.state
        self._metrics.show("provisioning", name, {(state,): state is present for state in ProvisioningState})
        self._changed()

    def _stop(self, name: str) -> None:
        scanner = self.scanners.pop(name)
        for work in ("scan", "paths", "watch", "probe", "links"):
            self._tasks.cancel(f"{work} {name}")
        scanner.runner.close()
        self._metrics.end("backend", name)
