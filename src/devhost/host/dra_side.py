"""The DRA side of a host: which DRA front ends there are, one for each driver, and what they work with.

Nothing of :mod:`devhost.dra` is imported until a resource has ``serve: dra``, or slices of an earlier run
remain: it needs an API client and TLS.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from devhost.allocation.allocations import Allocations
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.backend.backoff import Backoff
from devhost.backend.errors import EnvironmentFailure
from devhost.discovery.scanner import Scanner
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.planning.claims import Key, Reason
from devhost.planning.plan import Plan
from devhost.planning.settings import RECORD, DraOptions, Settings
from devhost.planning.timing import Timing
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Metrics

from .service import Services

if TYPE_CHECKING:
    from devhost.dra.credentials import Access
    from devhost.dra.front_end import DraFrontEnd
    from devhost.dra.inventory import DraDevice
    from devhost.planning.sides import Move, Sides
    from devhost.telemetry.document import DraStatus
    from devhost.telemetry.exposition import Gauge

log = get(__name__)

NO_DEVICES: Mapping[Key, str] = MappingProxyType({})


class DraSide:
    """Starts the front end of a DRA driver when the configuration needs it.

    It runs until the process ends. Of several, one that the configuration no longer needs ends once its
    slices and its claims are gone.
    """

    def __init__(
        self,
        options: DraOptions | None,
        tasks: Tasks,
        allocations: Allocations,
        files: ClaimFiles,
        services: Services,
        pods: PodResourcesPoller,
        metrics: Metrics,
        *,
        replan: Callable[[], None],
        changed: Callable[[], None],
        timing: Timing,
        alone: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.options = options
        self.sides: Sides | None = None
        """Which devices each side offers; ``None`` while there is only the device plugin."""
        self.front_ends: dict[str, DraFrontEnd] = {}
        """By driver."""
        self.moves: Sequence[Move] = ()
        """The devices that change sides, by the resource that they leave, as of the last plan."""
        self._failures: dict[str, str] = {}
        """Why there is no front end although slices of an earlier run remain, by driver."""
        self._needed: tuple[str, ...] = ()
        """The drivers that the settings need."""
        self._tasks_of: dict[str, Sequence[str]] = {}
        """The names of the tasks of each front end that runs."""
        self._started = False
        """Whether it has begun; settings that are adopted before are those that it begins with."""
        self._tasks = tasks
        self._allocations = allocations
        self._files = files
        self._services = services
        self._pods = pods
        self._metrics = metrics
        self._replan = replan
        self._changed = changed
        self._timing = timing
        self._alone = alone

    async def read_claims(self, settings: Settings) -> None:
        """Takes the claims that an earlier run prepared: they hold their devices on both sides.

        Raises ``EnvironmentFailure`` if their files cannot be read, although there may be some.
        """
        try:
            records = await self._files.read_all()
        except EnvironmentFailure as error:
            if settings.drivers or left_by_earlier_run(self.options):
                raise
            log.info("the files of claims cannot be read", reason=str(error))
            return
        for record in records:
            self._allocations.own_driver(record.driver)
            self._files.of(record.driver)
            self._allocations.claims.prepared(record.claim, record.devices, record.driver)

    async def take_over(self) -> None:
        """Takes what the devhost before has prepared and released, once that one has ended."""

        async def take_over() -> None:
            for front_end in list(self.front_ends.values()):
                await front_end.take_over()
            loop.stop()

        failures = FailureLog(
            log, "the files of claims cannot be read", "the files of claims can be read again"
        )
        loop = Reconciler(take_over, backoff=Backoff(1.0, 30.0), failures=failures)
        await loop.run()

    def start(self, settings: Settings) -> None:
        """Begins with what an earlier run left. Call it before the first plan."""
        published = left_by_earlier_run(self.options)
        self._needed, self._started = settings.drivers, True
        for driver in dict.fromkeys((*self._needed, *published, *self._files.drivers)):
            self._open(driver, *published.get(driver, ()))

    def follow_drivers(self, drivers: tuple[str, ...], plan: Plan) -> None:
        """The settings that were just adopted need front ends for these drivers."""
        self._needed = drivers
        new = [one for one in self._needed if one not in self.front_ends] if self._started else ()
        sides = self.sides
        for driver in new:
            self._open(driver)
        if sides is None and self.sides is not None:
            self.sides.commit(plan)  # what lists show now leaves them with the next plan
        self.spawn()

    def spawn(self) -> None:
        """Runs the front ends that do not run yet."""
        for driver, front_end in self.front_ends.items():
            if driver not in self._tasks_of:
                self._tasks_of[driver] = front_end.spawn(self._tasks, driver if self._tasks_of else "")

    def follow(self, plan: Plan, settings: Settings, scanners: Mapping[str, Scanner]) -> None:
        """Takes a new plan."""
        for front_end in self.front_ends.values():
            front_end.follow(plan, settings, scanners)
        self._end_idle()
        self.moves = [move for one in self.front_ends.values() for move in one.inventory.moves]

    def _end_idle(self) -> None:
        """Ends front ends that are not needed, and that have neither slices nor claims; but one stays."""
        for driver, front_end in list(self.front_ends.items()):
            if len(self.front_ends) > 1 and driver not in self._needed and front_end.idle:
                log.info("DRA driver ends", driver=driver)
                del self.front_ends[driver]
                for name in self._tasks_of.pop(driver, ()):
                    self._tasks.cancel(name)
                front_end.forget()
                # what it looked at is the task of another one now; a plan may be in progress
                asyncio.get_running_loop().call_soon(self._replan)

    def _leads(self, driver: str) -> bool:
        """Whether a driver is the first one, which has what concerns none or all of them."""
        return next(iter(self.front_ends), driver) == driver

    def _follow_front_end(self) -> None:
        if len(self.front_ends) > 1:
            asyncio.get_running_loop().call_soon(self._end_idle)
        self._changed()

    def scanned(self) -> None:
        """A backend has scanned: a device node may be another one, also if no device has changed."""
        for front_end in self.front_ends.values():
            front_end.scanned()

    def next_change(self) -> float | None:
        """Seconds until time alone changes the slices; ``None`` if it will not."""
        waits = [one.inventory.next_change() for one in self.front_ends.values()]
        return min((wait for wait in waits if wait is not None), default=None)

    def report(self) -> DraStatus | None:
        """The state of the drivers; ``None`` if there is none."""
        if not self.front_ends:
            return None
        from devhost.dra.report import report

        return report(*self.front_ends.values())

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong: each subject with the reason."""
        for failure in self._failures.values():
            yield "dra", failure
        for driver, front_end in self.front_ends.items():
            from devhost.dra.report import faults

            if driver in self._needed or not front_end.idle:
                yield from faults(front_end)

    def unhealthy(self) -> Iterator[tuple[str, str, Reason]]:
        """The devices that are unhealthy, or gone while claims hold them: resource, device and reason."""
        for front_end in self.front_ends.values():
            from devhost.dra.report import unhealthy

            yield from unhealthy(front_end)

    def gauges(self) -> Iterator[Gauge]:
        """The gauges of the drivers."""
        for front_end in self.front_ends.values():
            from devhost.dra.report import gauges

            yield from gauges(front_end)

    @property
    def registered(self) -> bool:
        """Whether the kubelet uses each driver that is needed."""
        return all(one.registered for one in self._those_needed())

    def missing(self) -> Mapping[str, str]:
        """Why pods cannot use drivers yet that are configured, by driver."""
        found = {one.driver: one.missing() for one in self._those_needed()}
        return {driver: reason for driver, reason in found.items() if reason}

    def _those_needed(self) -> Iterator[DraFrontEnd]:
        return (one for driver, one in self.front_ends.items() if driver in self._needed)

    def _open(
        self,
        driver: str,
        published: Mapping[tuple[str, str], str] = NO_DEVICES,
        units: Mapping[tuple[str, str], str] = NO_DEVICES,
    ) -> None:
        """Makes the front end: the settings need it, or it removes what an earlier run left.

        Without it, pods of an earlier run could not end. It waits for files with the access that are missing.
        """
        assert self.options is not None
        from devhost.planning.sides import Sides

        self._allocations.own_driver(driver)
        self.sides = self.sides or Sides(time.monotonic, self._timing.dra)
        self.sides.start(published, driver, units)
        try:
            found = access(self.options)
        except EnvironmentFailure as error:
            self._failures[driver] = (
                f"slices of {driver} may remain, and devhost has no access to the API server: {error}"
            )
            log.error("DRA driver cannot be stopped cleanly", driver=driver, reason=str(error))
            return
        self._failures.pop(driver, None)
        self.front_ends[driver] = front_end_class()(
            driver,
            self.options,
            found,
            sides=self.sides,
            claims=self._allocations.claims,
            files=self._files.of(driver),
            listed=self._services.listed,
            pods=self._pods,
            replan=self._replan,
            changed=self._follow_front_end,
            metrics=self._metrics,
            timing=self._timing.allocation,
            pace=self._timing.dra,
            alone=self._alone,
            leads=partial(self._leads, driver),
            elsewhere=self._find,
        )

    def _find(self, driver: str, pool: str, device: str) -> DraDevice | None:
        """A device of a driver by its names in slices."""
        front_end = self.front_ends.get(driver)
        return front_end.inventory.find(pool, device) if front_end else None


def front_end_class() -> type[DraFrontEnd]:
    """Imports the front end, which takes too long for the event loop of a process that serves."""
    from devhost.dra.front_end import DraFrontEnd

    return DraFrontEnd


def access(options: DraOptions) -> Access:
    """The access to the API server; its files are read when needed. ``EnvironmentFailure`` without any."""
    from devhost.dra.credentials import from_files

    return from_files(options.kubeconfig, os.environ)


def left_by_earlier_run(
    options: DraOptions | None,
) -> Mapping[str, tuple[Mapping[Key, str], Mapping[Key, str]]]:
    """By driver, the devices that slices of an earlier run may hold, and the units of members."""
    found: dict[str, tuple[Mapping[Key, str], Mapping[Key, str]]] = {}
    with suppress(OSError):
        for file in sorted(options.plugins_dir.glob(f"*/{RECORD}")) if options else ():
            from devhost.dra.record import SliceRecord

            record = SliceRecord(file)
            if devices := record.load():
                found[file.parent.name] = devices, record.units
    return found
