"""The DRA front end of one driver: composed here from the parts of this package.

The host has only :class:`devhost.host.dra_side.DraSide`, which knows whether there is a driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from devhost.allocation.allocations import Listing
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimAllocations
from devhost.backend.backoff import Backoff
from devhost.backend.errors import EnvironmentFailure
from devhost.discovery.scanner import Scanner
from devhost.planning.plan import Plan
from devhost.planning.settings import DraOptions, Settings
from devhost.planning.sides import Listed, Sides
from devhost.planning.timing import ALLOCATION, DRA, AllocationTiming, DraTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog, Reconciler, Retry, together
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Metrics

from .credentials import Access
from .inventory import DraInventory
from .kube import KubeApi
from .mover import Mover
from .now import DriverNow
from .prepare import Elsewhere, Preparer, nowhere
from .publisher import Publisher
from .record import SliceRecord
from .server import DraServer
from .upkeep import KubeletClaims, Refresher, Upkeep

if TYPE_CHECKING:
    from .claim_status import ClaimStatus

log = get(__name__)

FIRST_LIST = 5.0
"""Seconds that the first claim waits for the kubelet's first list, which may name claims without record."""


class PodLists(Protocol):
    """The lists of pods that the kubelet reports."""

    @property
    def listing(self) -> Listing | None:
        """The newest one."""
        ...

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls back after each list; returns how to end that."""
        ...

    async def first_list(self, within: float) -> None:
        """Asks for the first list, and waits for it, at most ``within`` seconds; without effect after it."""
        ...


class DraFrontEnd:
    """Publishes the devices of one driver and prepares claims for them.

    ``sides`` has taken the record of the earlier run, and ``files``, those of prepared claims, have been
    read. ``listed`` is what the device plugin lists, by resource. ``replan`` is called when a device is free
    to be offered, ``changed`` when the status has changed. ``timing`` has the deadlines of the backends,
    ``pace`` how long it waits. ``alone`` waits until the devhost that served the driver before has ended, if
    the two take turns. ``leads`` is whether it also looks at what leaves the device plugin: of all drivers,
    one does.
    """

    def __init__(
        self,
        driver: str,
        options: DraOptions,
        access: Access,
        *,
        sides: Sides,
        claims: ClaimAllocations,
        files: ClaimFiles,
        listed: Callable[[], Mapping[str, Listed]],
        pods: PodLists,
        replan: Callable[[], None],
        changed: Callable[[], None],
        metrics: Metrics,
        timing: AllocationTiming = ALLOCATION,
        pace: DraTiming = DRA,
        alone: Callable[[], Awaitable[None]] | None = None,
        leads: Callable[[], bool] = lambda: True,
        elsewhere: Elsewhere = nowhere,
    ) -> None:
        self.driver = driver
        self.node = options.node
        self.claims = claims
        self.files = files
        self.failure = ""
        """Why the kubelet cannot call the driver; empty if it can."""
        self.unread = ""
        """Why it is not known what another process prepared; empty if it is, or there was none."""
        self._options = options
        self._pace = pace
        self._alone = alone
        self._pods = pods
        self._held: Listing | None = None
        """The list that :meth:`_hold` took last; each plan takes it again."""
        self._sides = sides
        self._replan = replan
        self._changed = changed
        self._api = KubeApi(access, answered=partial(metrics.add, "dra_api_requests_total", driver))
        self.inventory = DraInventory(
            driver,
            options.node,
            sides,
            files,
            claims,
            leads,
            lambda resource, device: self.publisher.accepted(resource, device),
        )
        record = SliceRecord(options.record(driver))
        self.publisher = Publisher(
            self._api,
            driver,
            options.node,
            record,
            sides,
            replan=replan,
            changed=self._api_changed,
            metrics=metrics,
            timing=pace,
        )
        self._preparer = Preparer(
            driver,
            self._api,
            self.inventory,
            claims,
            files,
            timing=timing,
            ready=self._ready,
            elsewhere=elsewhere,
        )
        self._mover = Mover(
            driver,
            options.node,
            self._api,
            sides,
            self.inventory.keys,
            listed,
            replan,
            changed=self._api_changed,
            timing=pace,
            leads=leads,
        )
        self.upkeep = Upkeep(
            self._preparer, files, claims, self.inventory, KubeletClaims(options.plugins_dir), timing=timing
        )
        self._refresher = Refresher(self._preparer, self.inventory, files, timing=timing)
        self._refreshing = Reconciler(self._refresh, backoff=Backoff(1.0, 60.0))
        self._status: ClaimStatus | None = None
        self._reports = asyncio.Event()
        """Set once the configuration has wanted the status of claims."""
        self._metrics = metrics
        metrics.begin("driver", driver)
        self._server = self._new_server()
        self._serving = False
        self._served = alone is not None
        """Whether this process, or the one before it, may have served the driver."""
        self._reading = asyncio.Lock()
        """Held while the files of another process are read."""
        self._taken = asyncio.Event()
        """Set while the sockets are this process's, and what another one did before is known."""
        self._lost = asyncio.Event()
        self._lost.set()
        failures = FailureLog(log, "DRA driver cannot be served", "DRA driver is served again", driver=driver)
        self._sockets = Reconciler(self._keep_serving, backoff=Backoff(1.0, 30.0), failures=failures)

    def follow(self, plan: Plan, settings: Settings, scanners: Mapping[str, Scanner]) -> None:
        self._preparer.metadata = settings.dra_metadata
        self._preparer.refusals.keep(settings.dra_status)
        if settings.dra_status:
            self._reports.set()
        self.inventory.follow(plan, settings, scanners)
        self._hold()
        self.publisher.follow(self.inventory.offers, complete=self.inventory.complete)
        self._mover.wake()
        self._refreshing.wake()

    def scanned(self) -> None:
        """A backend has scanned: a device node may be another one, also if no device has changed."""
        self._refreshing.wake()

    def now(self, *, needed: bool) -> DriverNow:
        """The state of the driver; ``needed`` is whether the settings need it."""
        return DriverNow(
            driver=self.driver,
            node=self.node,
            needed=needed,
            over=not needed and self.idle,
            registered=self.registered,
            refusal=self.refusal,
            api_failure=self.api_failure,
            status_failure=self._status.failure if self._status is not None else "",
            status=self.publisher.status,
            published=self.publisher.published(),
            inventory=self.inventory.now,
            claims=self.files.now(),
            prepared_devices=len(self.files.devices),
            calls=dict(self._server.calls),
            heard_at=self.publisher.heard_at,
            kept=self.upkeep.kept,
            flaws=(*self.upkeep.failures, *self._refresher.failures),
            unwritten=self.files.unwritten,
        )

    @property
    def registered(self) -> bool:
        """Whether the kubelet uses the driver."""
        return self._serving and self._server.registration.registered is True

    @property
    def refusal(self) -> str:
        """Why the kubelet does not use the driver; empty if it does, or has not answered yet."""
        return "; ".join(filter(None, (self.failure, self.unread))) or self._server.registration.error

    @property
    def api_failure(self) -> str:
        """What does not work with the API server, and why; empty if everything does."""
        found = self.publisher.status.error, self._mover.failures.reason
        return "; ".join(dict.fromkeys(filter(None, found)))

    def _api_changed(self) -> None:
        if self._sides.api_failed(self.api_failure, self.driver):
            self._replan()  # the reasons of moving devices are in the plan
        self._changed()

    def spawn(self, tasks: Tasks, tag: str = "") -> Sequence[str]:
        """Runs everything; what has been published stays when the tasks end. Gives their names.

        ``tag`` is the end of each name, if there are several drivers.
        """
        work = {
            "dra sockets": self.serve,
            "dra slices": self._publish,
            "dra moves": self._mover.run,
            "dra claims": self._keep_files,
            "dra files": self._refreshing.run,
            "dra status": self._report_status,
        }
        named = {f"{name} {tag}".rstrip(): run for name, run in work.items()}
        for name, run in named.items():
            tasks.spawn(name, run)
        return list(named)

    @property
    def idle(self) -> bool:
        """Whether the driver has no slice, and no claim is prepared.

        While another program has the sockets or the slices, it has none, unless they are recorded.
        """
        if self._sides.has_record(self.driver) or self.claims.has(self.driver):
            return False
        if self.publisher.only_foreign or (self.failure and not self._served):
            return True
        status = self.publisher.status
        return not (status.slices or status.synced_at is None or status.error)

    def forget(self) -> None:
        """The driver has ended."""
        self._sides.api_failed("", self.driver)
        self._metrics.end("driver", self.driver)

    async def serve(self) -> None:
        """Lets the kubelet call the driver, until cancelled; its slices stay."""
        self._api.keep()
        try:
            await self._sockets.run()
        finally:
            self._api.close()
            await self._server.stop()  # last, because the end of the process may interrupt it

    async def _publish(self) -> None:
        """Keeps the slices at the API server as planned, until cancelled.

        Only while the sockets are this process's: another driver of the same name has the same slices.
        """
        while True:
            await self._taken.wait()
            publishing = asyncio.create_task(self.publisher.run())
            lost = asyncio.create_task(self._lost.wait())
            try:
                await asyncio.wait((publishing, lost), return_when=asyncio.FIRST_COMPLETED)
            finally:
                lost.cancel()
                publishing.cancel()
                await asyncio.wait([publishing])  # suppress() would also ignore the end of this task
            if not publishing.cancelled():
                publishing.result()  # raises why it failed

    async def _keep_files(self) -> None:
        """Keeps the files of claims in agreement with the kubelet's pods, until cancelled."""
        loop = Reconciler(self._compare, first=None)

        def listed() -> None:
            self._hold()
            loop.wake()

        end = self._pods.subscribe(listed)
        listed()  # the first list may have come before
        try:
            await loop.run()
        finally:
            end()

    async def _compare(self) -> None:
        await self._taken.wait()
        if (listing := self._pods.listing) is not None:
            was = self.upkeep.kept, self.upkeep.failures
            await self.upkeep.follow(listing)
            if (self.upkeep.kept, self.upkeep.failures) != was:
                self._changed()

    async def _report_status(self) -> None:
        """Keeps the status of prepared claims at the API server, until cancelled."""
        await self._reports.wait()
        await self._taken.wait()
        from .claim_status import ClaimStatus  # only where it is wanted

        self._status = ClaimStatus(
            self.driver,
            self._api,
            self.inventory,
            self.files,
            self._preparer.refusals,
            changed=self._changed,
            gap=self._pace.statuses,
        )
        await self._status.run()

    async def _refresh(self) -> float:
        await self._taken.wait()
        was = self._refresher.failures, self.files.unwritten
        try:
            return await self._refresher.refresh()
        finally:
            if (self._refresher.failures, self.files.unwritten) != was:
                self._changed()

    def _hold(self) -> None:
        """Claims that the newest list names hold their devices, also without a record."""
        self._held = self._pods.listing
        if self._held is not None:
            self.upkeep.hold(self._held)

    async def _ready(self) -> None:
        """Waits until every claim is known that holds a device."""
        await self._taken.wait()
        if self._pods.listing is None:
            await self._pods.first_list(FIRST_LIST)
        if self._held is not self._pods.listing:
            self._hold()

    async def take_over(self) -> None:
        """Takes what the devhost before has prepared and released, once that one has ended.

        Also if the sockets cannot be made: then no claim is prepared meanwhile.

        Raises:
            EnvironmentFailure: the files of the claims cannot be read.
        """
        async with self._reading:
            if not self._taken.is_set():
                await self._read_again()

    async def _read_again(self) -> None:
        """Takes what another process has prepared and released while the sockets were its own."""
        before = set(self.files.records)
        try:
            now = {record.claim.uid: record for record in await self.files.read_again()}
        except EnvironmentFailure as error:
            self._set_unread(f"the files of claims cannot be read: {error}")
            raise
        self._set_unread("")
        with together():
            for uid in before - now.keys():
                self.claims.released(uid, self.driver)
            for record in now.values():
                self.claims.prepared(record.claim, record.devices, self.driver)

    def _set_unread(self, reason: str) -> None:
        if reason != self.unread:
            self.unread = reason
            self._changed()

    def _new_server(self) -> DraServer:
        return DraServer(
            self._preparer,
            self.inventory,
            self.driver,
            self._options,
            self._metrics,
            changed=self._changed,
            answered=self.inventory.notify,
            patience=self._pace.unregistered,
        )

    async def _keep_serving(self) -> float:
        if self._serving and self._server.exists():
            self._server.registration.check()
            return self._pace.sockets
        if self._serving:
            log.warning("the sockets of the DRA driver were removed", driver=self.driver)
            self._serving = False
            self._taken.clear()
            self._lost.set()
            await self._server.stop()
            self._server = self._new_server()
        try:
            await self._server.start()
        except EnvironmentFailure as error:
            self.failure = str(error)
            self._changed()
            raise Retry(self.failure) from error
        self._serving = True  # the kubelet may find it; claims wait until the devhost before has ended
        if self._alone is not None:
            await self._alone()
        if self.failure or self._alone is not None:
            try:
                async with self._reading:
                    await self._read_again()
            except EnvironmentFailure as error:
                self._serving = False
                await self._server.stop()
                self._server = self._new_server()
                raise Retry(str(error)) from error
        self.failure = ""
        self._served = True
        self._lost.clear()
        self._taken.set()
        self._changed()
        return self._pace.sockets
