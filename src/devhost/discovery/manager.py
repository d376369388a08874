"""Runs the backends that the configuration needs, each with the options it has now.

A backend that is asked to (``devhost release``) releases its driver: until that is ended on request, a driver
of the backend is loaded again, or its time is over. A release is recorded in a file of the runtime directory,
which a reboot clears, so that a restart of devhost does not end it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from devhost.backend import Event
from devhost.backend.backoff import Backoff, Pacer
from devhost.backend.errors import (
    DAMAGED,
    BackendError,
    BackendTimeout,
    EnvironmentFailure,
    NotYet,
    UsageError,
)
from devhost.backend.files import replace_file
from devhost.backend.frozen import frozen
from devhost.backend.incident import Incident
from devhost.backend.sysfs import read_bytes, read_line
from devhost.planning.settings import Skipped
from devhost.planning.timing import DISCOVERY, DiscoveryTiming
from devhost.runtime.log import get, utc
from devhost.runtime.reconciler import FailureLog, Reconciler, Retry
from devhost.runtime.tasks import Failing, Tasks
from devhost.runtime.worker import FileWorker, WorkerThread
from devhost.telemetry.metrics import Metrics

from .catalog import Needed
from .runner import RELEASE_DEADLINE, BackendRunner, HeldClaims
from .scanner import Scanner

AFTER_EVENT = 0.2
"""Seconds from an event to the call that it causes: events come in bursts, and calls cause events."""

POLL = 0.1
"""Seconds between checks whether the backend has started, or a hanging call has returned."""


class ProvisioningState(StrEnum):
    """The state of provisioning."""

    WAITING = "waiting"
    """It waits for something that it cannot do itself."""
    OK = "ok"
    FAILED = "failed"


@frozen
class ProvisioningCondition:
    """The current state; ``reason`` is empty while it is ok, ``since`` is in wall-clock seconds.

    ``held`` are the claims of the containers to which the reason refers.
    """

    state: ProvisioningState
    reason: str
    since: float
    held: frozenset[str] = frozenset()


class Provisioning:
    """Calls one backend's ``provision``. Calls ``changed`` when the condition changed.

    It is called at the start, after the options have changed, when devices appear, when a container has
    released something that the backend may wait for, and at a long interval; with back-off until it succeeds.
    It runs concurrently with the scans, on a thread that outlives the backend object: two calls that write to
    hardware never run at the same time, not even if the first one hangs.

    A failure of provisioning does not degrade the backend, and makes no device unhealthy.
    """

    def __init__(
        self,
        scanner: Scanner,
        changed: Callable[[], None],
        timing: DiscoveryTiming = DISCOVERY,
    ) -> None:
        self.name = scanner.runner.name
        self.condition = ProvisioningCondition(
            ProvisioningState.WAITING, "the backend has not answered yet", time.time()
        )
        self._scanner = scanner
        self._changed = changed
        self._timing = timing
        self._worker = WorkerThread(f"{self.name}-provision", f"backend {self.name}", "when provisioning")
        self._has_complained = False
        self._failure = Incident()
        self._calls = Reconciler(self._pass, backoff=Backoff(0.5, 30.0), pacer=Pacer(), settle=AFTER_EVENT)
        self.run, self.wake = self._calls.run, self._calls.wake
        """Provisions now, when woken, and at intervals; never returns by itself."""

    @property
    def hung(self) -> bool:
        """Whether a call hangs past its deadline."""
        return self._worker.abandoned > 0

    def follow(self, scanner: Scanner) -> None:
        """Continues with another backend object, which has other options."""
        self._scanner = scanner
        self._calls.restart()

    def close(self) -> None:
        """Ends the thread; does not wait for it."""
        self._worker.close()

    async def _pass(self) -> float:
        if self.hung or not self._scanner.answered.is_set():
            return POLL
        before = self.condition.reason
        failure = await self._call(self._scanner)
        if self.condition.reason != before:
            self._calls.succeeded()  # it has made progress
        if failure is not None:
            # What the kernel refused stays refused after an event; what the backend waits for may have come.
            raise Retry(wakeable=isinstance(failure, NotYet))
        return self._timing.provision_resync

    async def _call(self, scanner: Scanner) -> BackendError | None:
        """Calls once; returns what was raised."""
        try:
            await scanner.runner.call(self._worker, self._timing.provision, scanner.runner.provision)
        except NotYet as error:
            self._show(ProvisioningState.WAITING, error.message, error.held)
            return error
        except BackendTimeout as error:
            self._show(ProvisioningState.FAILED, f"it takes longer than {self._timing.provision:g} s")
            return error
        except BackendError as error:
            self._show(ProvisioningState.FAILED, error.message, error.held)
            return error
        finally:
            scanner.request_scan()  # a device that is to change may have to leave the list first
        self._show(ProvisioningState.OK, "")
        return None

    def _show(self, state: ProvisioningState, reason: str, held: frozenset[str] = frozenset()) -> None:
        before = self.condition
        if (state, reason) == (before.state, before.reason):
            if held != before.held:
                self.condition = replace(before, held=held)
                self._changed()
            return
        self.condition = ProvisioningCondition(state, reason, time.time(), held)
        if state is ProvisioningState.FAILED:
            if self._failure.news(reason):
                log.error("provisioning failed", backend=self.name, reason=reason)
        elif state is ProvisioningState.WAITING:
            log.info("provisioning waits", backend=self.name, reason=reason)
        elif self._has_complained:  # otherwise there was usually nothing to do
            log.info("provisioned", backend=self.name)
        if state is not ProvisioningState.FAILED:
            self._failure.over()
        self._has_complained = state is not ProvisioningState.OK
        self._changed()


log = get(__name__)

LONGEST = 86400.0
"""The longest release in seconds: a forgotten one must not last for ever."""

_LIMIT = 65536
"""Bytes of the record that are read; one backend takes about 100."""


@frozen
class Release:
    """One release.

    ``ends`` is in seconds since the boot, ``until`` the same as wall-clock seconds, for people. ``modules``
    are the backend's kernel modules that are loaded, each with its identity.
    """

    ends: float
    until: float
    modules: Mapping[str, str] = field(default_factory=dict)


class Releases:
    """The releases of all backends, recorded in ``file``.

    ``clock`` returns seconds since the boot, also those in which the machine was suspended.
    """

    def __init__(
        self, root: Path, file: Path | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self._root = root
        self.file = file
        self._clock = clock or _since_boot
        self._failures = FailureLog(
            log, "releases are not recorded", "releases are recorded again", file=file
        )
        self._found = self._read()

    def __contains__(self, backend: str) -> bool:
        return backend in self._found

    @property
    def unrecorded(self) -> Failing | None:
        """Why ``file`` cannot be written or removed."""
        return self._failures.failing

    def reason(self, backend: str) -> str:
        """Why the devices of a backend are not offered; empty if its driver is not released."""
        if backend not in self._found:
            return ""
        return f"its driver is released until {self.until(backend)} (to end that: devhost resume {backend})"

    def until(self, backend: str) -> str:
        """When the release of a backend ends at the latest, as RFC 3339 in UTC."""
        return utc(self._found[backend].until)

    def begin(self, backend: str, seconds: float, modules: Collection[str]) -> None:
        """Begins a release, or changes when it ends. Reads and writes files."""
        seconds = min(seconds, LONGEST)
        loaded = dict(self._loaded(modules))
        self._found[backend] = Release(self._clock() + seconds, time.time() + seconds, loaded)
        self._write()

    def end(self, backend: str) -> bool:
        """Ends a release; whether there was one. Writes the file."""
        was_there = self._found.pop(backend, None) is not None
        if was_there:
            self._write()
        return was_there

    def over(self, modules: Mapping[str, Collection[str]]) -> dict[str, str]:
        """The releases that are over, each with the reason. Reads and writes files.

        ``modules`` are the kernel modules of each backend.
        """
        over, now = {}, self._clock()
        for backend, release in list(self._found.items()):
            loaded = dict(self._loaded(modules.get(backend, ())))
            if any(release.modules.get(name) != found for name, found in loaded.items()):
                over[backend] = "a driver was loaded"
            elif now >= release.ends:
                over[backend] = "its time is over"
            elif loaded != release.modules:  # unloaded: a directory of the same number is another driver
                self._found[backend] = Release(release.ends, release.until, loaded)
                self._write()
        removed = self.file is not None and self._found and not self.file.exists()
        if self._failures.reason or removed:
            self._write()
        return over

    def _loaded(self, modules: Collection[str]) -> Iterator[tuple[str, str]]:
        """The modules that are loaded, each with what identifies this loading of it."""
        for name in modules:
            directory = self._root / "sys/module" / name
            with suppress(OSError):  # sysfs never reuses an inode
                yield name, f"{directory.stat().st_ino} {read_line(os.fspath(directory / 'version'))}"

    def _read(self) -> dict[str, Release]:
        """The releases of an earlier process in this boot; none if the record is damaged."""
        data = read_bytes(os.fspath(self.file), _LIMIT) if self.file else None
        try:
            document = json.loads(data or b"{}")
            if document.get("boot") != self._boot():
                return {}
            found = {
                name: Release(fields["ends"], fields["until"], dict(fields["modules"]))
                for name, fields in document["released"].items()
                if utc(fields["until"])  # raises if it is no time
            }
            return {name: one for name, one in found.items() if one.ends <= self._clock() + LONGEST}
        except (*DAMAGED, OSError):
            return {}

    def _write(self) -> None:
        if self.file is None:
            return
        released = {name: asdict(one) for name, one in self._found.items()}
        try:
            if released:
                text = json.dumps({"boot": self._boot(), "released": released})
                replace_file(self.file, text.encode(), mode=0o600)
            else:
                self.file.unlink(missing_ok=True)
        except OSError as error:
            reason = f"cannot write {self.file}: {error.strerror or error}"
            self._failures.failed(f"{reason} (its directory must be writable for devhost)")
        else:
            self._failures.succeeded()

    @staticmethod
    def _boot() -> str:
        return (read_bytes("/proc/sys/kernel/random/boot_id") or b"").decode(errors="replace").strip()


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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
        self.watch_releases = self._release_ends.run
        """Ends releases whose time is over, or whose driver was loaded again."""
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
            if (
                running
                and running.runner.backend_class is one.backend
                and running.runner.options == one.options
            ):
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
        modules = scanner.runner.backend_class.modules
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

    async def _end_releases(self) -> float | None:
        """One pass; the next one is soon while a driver is released, else when that begins."""
        modules = {name: scanner.runner.backend_class.modules for name, scanner in self.scanners.items()}
        if not self.releases.unrecorded and not any(name in self.releases for name in modules):
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
            f"those that release a driver here: {', '.join(able)}"
            if able
            else "no backend here keeps one in use",
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
            self.provisioning[name] = Provisioning(scanner, self._changed, self._timing)
        self._changed()
        if not self._tasks.named(f"provision {name}"):
            self._tasks.spawn(f"provision {name}", self.provisioning[name].run)

    def _stop(self, name: str) -> None:
        scanner = self.scanners.pop(name)
        for work in ("scan", "paths", "watch", "probe", "links"):
            self._tasks.cancel(f"{work} {name}")
        scanner.runner.close()
        self._metrics.end("backend", name)
