"""The DRA side of a host: whether there is a DRA front end, and what it works with.

Nothing of :mod:`devhost.dra` is imported until a resource has ``serve: dra``, or slices of an earlier run
remain: it needs an API client and TLS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from devhost.allocation.allocations import Allocations
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.backend.errors import EnvironmentFailure
from devhost.discovery.scanner import Scanner
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.planning.claims import Reason
from devhost.planning.moves import Move
from devhost.planning.plan import Plan
from devhost.planning.settings import RECORD, DraOptions, Serve, Settings
from devhost.planning.sides import NO_UNITS, Sides
from devhost.runtime.log import get
from devhost.runtime.tasks import Tasks
from devhost.telemetry.document import DraStatus
from devhost.telemetry.metrics import Metrics

from .services import Services
from .timing import Timing

if TYPE_CHECKING:
    from devhost.dra.credentials import Access
    from devhost.dra.front_end import DraFrontEnd

log = get(__name__)


class DraSide:
    """Starts the DRA front end when the configuration needs it; then it runs until the process ends."""

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
        alone: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.options = options
        self.sides: Sides | None = None
        """Which devices each side offers; ``None`` while there is only the device plugin."""
        self.front_end: DraFrontEnd | None = None
        self.failure = ""
        """Why there is no front end although slices of an earlier run remain."""
        self._needed = False
        """Whether the settings need the driver."""
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

        Raises:
            EnvironmentFailure: their files cannot be read, although there may be some.
        """
        try:
            records = await self._files.read_all()
        except EnvironmentFailure as error:
            if _driver(settings) or left_by_earlier_run(self.options)[0]:
                raise
            log.info("the files of claims cannot be read", reason=str(error))
            return
        for record in records:
            self._allocations.own_driver(record.driver)
            self._allocations.claims.prepared(record.claim, record.devices)

    def start(self, settings: Settings) -> None:
        """Begins with what an earlier run left. Call it before the first plan."""
        previous, published, units = left_by_earlier_run(self.options)
        records = self._files.records.values()
        self._needed, self._started = bool(_driver(settings)), True
        driver = _driver(settings) or previous or next((record.driver for record in records), "")
        if driver:
            self._open(driver, *((published, units) if driver == previous else ()))

    def follow_settings(self, settings: Settings, plan: Plan) -> None:
        """The settings that were just adopted may need the front end."""
        self._needed = bool(_driver(settings))
        if self._started and self.front_end is None and (driver := _driver(settings)):
            sides = self.sides
            self._open(driver)
            if sides is None and self.sides is not None:
                self.sides.commit(plan)  # what lists show now leaves them with the next plan
            self.spawn()

    def spawn(self) -> None:
        """Runs the front end, if there is one."""
        if self.front_end is not None:
            self.front_end.spawn(self._tasks)

    def follow(self, plan: Plan, settings: Settings, scanners: Mapping[str, Scanner]) -> None:
        """Takes a new plan."""
        if self.front_end is not None:
            self.front_end.follow(plan, settings, scanners)

    def scanned(self) -> None:
        """A backend has scanned: a device node may be another one, also if no device has changed."""
        if self.front_end is not None:
            self.front_end.scanned()

    def next_change(self) -> float | None:
        """Seconds until time alone changes the slices; ``None`` if it will not."""
        return self.front_end.inventory.next_change() if self.front_end else None

    @property
    def driver(self) -> str:
        """The driver that is served; empty if none is."""
        return self.front_end.driver if self.front_end else ""

    def report(self) -> DraStatus | None:
        """The state of the driver; ``None`` if there is none."""
        if self.front_end is None:
            return None
        from devhost.dra.report import report

        return report(self.front_end)

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong: each subject with the reason."""
        if self.failure:
            yield "dra", self.failure
        if self.front_end is not None:
            from devhost.dra.report import faults

            yield from faults(self.front_end)

    def moves(self) -> Sequence[Move]:
        """The devices that change sides, by the resource that they leave."""
        return self.front_end.inventory.moves() if self.front_end else ()

    def unhealthy(self) -> Iterator[tuple[str, str, Reason]]:
        """The devices that are unhealthy, or gone while claims hold them: resource, device and reason."""
        if self.front_end is not None:
            from devhost.dra.report import unhealthy

            yield from unhealthy(self.front_end)

    @property
    def registered(self) -> bool:
        """Whether the kubelet uses the driver; also while none is needed."""
        return self.front_end is None or not self._needed or self.front_end.registered

    def missing(self) -> str:
        """Why pods cannot use the driver yet; empty if they can, or none is configured."""
        return self.front_end.missing() if self.front_end and self._needed else ""

    def _open(
        self,
        driver: str,
        published: Mapping[tuple[str, str], str] = NO_UNITS,
        units: Mapping[tuple[str, str], str] = NO_UNITS,
    ) -> None:
        """Makes the front end: the settings need it, or it removes what an earlier run left.

        Without it, pods of an earlier run could not end. It waits for files with the access that are missing.
        """
        assert self.options is not None
        self._allocations.own_driver(driver)
        self.sides = self.sides or Sides(time.monotonic, self._timing.dra)
        self.sides.start(published, units)
        try:
            found = access(self.options)
        except EnvironmentFailure as error:
            self.failure = (
                f"slices of {driver} may remain, and devhost has no access to the API server: {error}"
            )
            log.error("DRA driver cannot be stopped cleanly", driver=driver, reason=str(error))
            return
        self.failure = ""
        self.front_end = front_end_class()(
            driver,
            self.options,
            found,
            sides=self.sides,
            claims=self._allocations.claims,
            files=self._files,
            listed=self._services.listed,
            pods=self._pods,
            replan=self._replan,
            changed=self._changed,
            metrics=self._metrics,
            timing=self._timing.allocation,
            pace=self._timing.dra,
            alone=self._alone,
        )


def front_end_class() -> type[DraFrontEnd]:
    """Imports the front end, which takes too long for the event loop of a process that serves."""
    from devhost.dra.front_end import DraFrontEnd

    return DraFrontEnd


def _driver(settings: Settings) -> str:
    """The driver that the settings need; empty if no resource has ``serve: dra``."""
    needed = any(entry.serve is Serve.DRA for entry in settings.resources)
    return settings.dra_driver if needed else ""


def access(options: DraOptions) -> Access:
    """The access to the API server; its files are read when they are needed.

    Raises:
        EnvironmentFailure: there is none.
    """
    from devhost.dra.credentials import from_files

    return from_files(options.kubeconfig, os.environ)


def left_by_earlier_run(
    options: DraOptions | None,
) -> tuple[str, Mapping[tuple[str, str], str], Mapping[tuple[str, str], str]]:
    """The driver of an earlier run, the devices that its slices may hold, and their units; or empty."""
    if options is None:
        return "", {}, {}
    with suppress(OSError):
        for file in sorted(options.plugins_dir.glob(f"*/{RECORD}")):
            from devhost.dra.record import SliceRecord

            record = SliceRecord(file)
            if devices := record.load():
                return file.parent.name, devices, record.units
    return "", {}, {}
