"""The process: one task tree, from the configuration file to the kubelet and back to the exit.

Every event, timer, edit of the file and signal leads to the same two steps: make the plan, and bring the
services in line with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.allocations import Allocations
from devhost.allocation.allocator import LatePreference
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.cdi.claim_metadata import MetadataFiles
from devhost.allocation.cdi.files import CdiGarbageCollector, SpecFiles
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.allocation.given_record import BOOT_ID, GivenRecord
from devhost.backend.model import Device
from devhost.config.last_good import LastGood
from devhost.config.loader import Loaded
from devhost.discovery.catalog import Catalog, Needed
from devhost.discovery.manager import BackendManager
from devhost.discovery.observers import Batch, Observers
from devhost.discovery.scanner import Scanner
from devhost.discovery.uevents import Monitors
from devhost.discovery.unserved import dead_links
from devhost.discovery.verdict_follower import DIRECTORY as VERDICTS
from devhost.discovery.verdict_follower import VerdictFollower
from devhost.kubelet.api import PLUGIN_DIRECTORY
from devhost.kubelet.given import GivenKeeper
from devhost.kubelet.kubelet_socket import KubeletSocket
from devhost.kubelet.podresources_poller import PodResources, PodResourcesPoller, RestartMonitor, beside
from devhost.kubelet.rivals import Rivals
from devhost.kubelet.self_check import SelfCheck
from devhost.kubelet.server import SOCKET_PREFIX
from devhost.planning.plan import Plan
from devhost.planning.settings import DraOptions, Inject, Settings, Skipped
from devhost.planning.timing import NODE, Timing
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog
from devhost.runtime.sockets import live
from devhost.runtime.tasks import Tasks
from devhost.telemetry.metrics import Metrics, ProblemKind

from .dra_side import DraSide
from .node_labels import NodeLabels
from .reload import Configuration, Reloader, follower
from .replanner import Replanner
from .service import ServiceParts, Services
from .shown import device_log, shortages
from .shown.entries import NO_LINKS, EntryOutcomes
from .shown.gauges import gauges
from .shown.now import (
    ConfigurationNow,
    EntriesNow,
    Fault,
    KubeletNow,
    Memory,
    Now,
    ObserverNow,
    PodsNow,
    Step,
    failing,
)
from .shown.problems import ROOT, found_by, readiness
from .shown.publication import EventPublisher, Publication, tokens
from .shown.shortages import report

if TYPE_CHECKING:
    from devhost.allocation.preferred import PreferredAllocation
    from devhost.config.rollout import Rollout
    from devhost.dra.node_condition import NodeCondition

log = get(__name__)

KUBELET_DIRECTORY = Path(PLUGIN_DIRECTORY)
"""The kubelet's device plugin directory on almost every node."""

ANSWERING = (
    "dra sockets",
    "given",
    "kubelet",
    "observer ",
    "own sockets",
    "pod resources",
    "resource ",
    "retire ",
    "rivals",
)
"""How the names of the tasks begin that answer the kubelet, and record what it was answered."""


class Host:
    """Serves the devices of one machine to one kubelet, until it is stopped.

    ``reload`` reads the configuration again, or raises ``ConfigError``. ``root`` is the directory in which
    devices are found; ``/`` except in tests and recordings. ``pod_resources`` is the socket on which the
    kubelet reports who holds what; by default next to ``kubelet_dir``. ``last_good`` keeps a copy of each
    accepted configuration. ``state_dir`` has the record of what containers were given, and verdicts; without
    it there are none. ``dra`` is what a configuration with ``dra`` needs. ``released`` is the file that
    records which backends have released their drivers. ``patience`` is seconds for which a new file that
    leaves entries without devices makes the host not ready. ``alone`` waits until the devhost that served
    before has ended, if the two take turns. ``pod_metrics`` is whether metrics name pods.
    """

    def __init__(
        self,
        config: Path,
        loaded: Loaded,
        reload: Callable[[], Loaded],
        kubelet_dir: Path = KUBELET_DIRECTORY,
        root: Path = Path("/"),
        metrics: Metrics | None = None,
        changed: Callable[[], None] = lambda: None,
        pod_resources: Path | None = None,
        reloading: Callable[[], AbstractContextManager[None]] = nullcontext,
        last_good: LastGood | None = None,
        state_dir: Path | None = None,
        boot_id: Path = BOOT_ID,
        timing: Timing = NODE,
        dra: DraOptions | None = None,
        released: Path | None = None,
        patience: float | None = None,
        alone: Callable[[], Awaitable[None]] | None = None,
        pod_metrics: bool = False,
    ) -> None:
        self.started = time.time()
        self.metrics = metrics = metrics or Metrics()
        tag = "" if kubelet_dir == KUBELET_DIRECTORY else str(kubelet_dir.absolute())
        self.root = root
        self._timing = timing
        self._changed = changed
        self._accepted = loaded.accepted
        self._alone, self._knows_gifts = alone, alone is None
        self._stop = asyncio.Event()
        self.tasks = Tasks(changed=changed)
        self.configuration = Configuration(config, loaded)
        settings = self.configuration.settings

        # what exists, and who holds it
        self.allocations = Allocations(time.monotonic, self.replan, timing.allocation)
        self.backends = BackendManager(
            root,
            self.tasks,
            metrics,
            self.replan,
            changed,
            self._in_use,
            timing.discovery,
            released,
            self._scanned,
        )
        self.monitors = Monitors(self.backends.dispatch, root, changed)
        self.verdicts = VerdictFollower(
            state_dir and state_dir / VERDICTS,
            root,
            self.scanners,
            self.replan,
            changed,
            timing.discovery,
        )

        # the kubelet, and what it reports
        source = PodResources(pod_resources or beside(kubelet_dir), time.monotonic, timing=timing.kubelet)
        self.kubelet = KubeletSocket(kubelet_dir, timing.kubelet.poll)
        self.pod_resources = PodResourcesPoller(
            source, self.allocations, self._allocations_changed, timing=timing.kubelet
        )
        self.rivals = Rivals(source, kubelet_dir, timing=timing.kubelet)

        # what is served, and who is notified
        self.services = Services(self.tasks, lambda: self.cdi_garbage.wake())
        self.self_check = SelfCheck(self.services.sockets, changed, timing=timing.kubelet)
        self.observers = Observers(self.tasks, metrics, changed, timing.discovery)
        self.publisher = EventPublisher(self.observers)

        def preferred() -> PreferredAllocation:
            from devhost.allocation.preferred import PreferredAllocation

            return PreferredAllocation(self.services.inventories, metrics, timing=timing.allocation)

        # the files that devhost writes
        self.last_good = last_good or LastGood(config, None)
        self._cdi_files = SpecFiles(settings.cdi_directory, tag)
        self.cdi_garbage = CdiGarbageCollector(
            self._cdi_files, settings, self.allocations, self._devices, root
        )
        self.device_info = DeviceInfoFiles(settings.device_info_directory, self.allocations, tag)
        self.node_labels = NodeLabels(
            settings.label_directory,
            settings.write_labels,
            self.scanners,
            changed,
            tag,
            metrics,
            timing=timing,
        )
        self._claim_files = ClaimFiles(
            settings.cdi_directory,
            tag,
            boot_id=boot_id,
            metadata=None if dra is None else MetadataFiles(dra.plugins_dir, tag),
        )
        self._record = GivenRecord(state_dir, kubelet_dir, boot_id)
        self.given = GivenKeeper(
            self.allocations,
            self.services.allocators,
            lambda: {name: one.devices for name, one in self.scanners.items()},
            lambda: {name for name, one in self.scanners.items() if one.listed},
            kubelet_dir,
            self._record,
            self._claim_files,
            root,
            self.replan,
            timing.kubelet,
        )
        self.allocations.subscribe(self._released)

        # the second front end
        self.dra = DraSide(
            dra,
            self.tasks,
            self.allocations,
            self._claim_files,
            self.services,
            self.pod_resources,
            metrics,
            replan=self.replan,
            changed=changed,
            timing=timing,
            alone=alone,
        )

        self.outside: Callable[[], Iterable[Fault]] = tuple
        """What fails of the process beside the host; set before :meth:`run`."""

        self.node_condition: NodeCondition | None = None
        """Keeps the condition of the node; set before :meth:`run`, if it is wanted."""

        # what reacts, and what is shown then
        self.publication = Publication(self._collected, self._show)
        metrics.name_gauges(lambda: gauges(self.now(), pods=pod_metrics))
        self._looked, self._dead = 0, NO_LINKS
        self._reported: Sequence[tuple[ProblemKind, str, FailureLog]] = (
            ("backend", ROOT, self.monitors.host_failures),
            ("labels", "labels.directory", self.node_labels.removal),
            ("resource", "cdi.directory", self.cdi_garbage.failures),
            ("resource", "deviceInfo.directory", self.device_info.failures),
        )
        """What is a problem while it fails: its kind and subject."""
        for _, _, failures in self._reported:
            failures.changed = changed
        self.allocations.claims.subscribe(self.publication.soon)
        self.pod_resources.subscribe(self._pods_listed)
        parts = ServiceParts(
            self.kubelet,
            self.rivals,
            self.pod_resources,
            self._cdi_files,
            self.device_info,
            LatePreference(preferred),
            self.publisher,
            self.publication,
            self.given,
            metrics,
            changed,
            timing,
        )
        self.replanner = Replanner(
            self.configuration,
            self.backends,
            self.allocations,
            self.services,
            parts,
            self.verdicts,
            self.dra,
        )
        self.rollout: Rollout | None = None
        """Whether a new file has left entries without devices, if that matters."""
        if patience is not None:
            from devhost.config.rollout import Rollout, RolloutRecord

            self.rollout = Rollout(RolloutRecord(state_dir, config), patience, changed)
        self.reloader = Reloader(
            self.configuration,
            reload,
            self.replanner.prepare,
            (
                follower(lambda now, _: (_with_cdi(now),), self.cdi_garbage.follow),
                follower(lambda now, _: (now.cdi_directory,), self._claim_files.move),
                follower(lambda now, _: (now.drivers,), lambda new: self.dra.follow_drivers(new, self.plan)),
                follower(lambda now, _: (now.device_info_directory,), self.device_info.move),
                follower(lambda now, _: (now.label_directory, now.write_labels), self.node_labels.follow),
                follower(lambda _, catalog: (_plugins(catalog),), lambda _: self._follow_plugins()),
                follower(_backends, self.backends.follow),
            ),
            self.replan,
            last_good=self.last_good,
            backends=self.backends,
            tasks=self.tasks,
            monitors=self.monitors,
            publish=self.publication.soon,
            changed=changed,
            reloading=reloading,
            timing=timing,
        )

    async def run(self) -> None:
        """Serves until :meth:`stop`.

        Raises ``EnvironmentFailure`` if the kubelet's directory exists and cannot be used.
        """
        await self.kubelet.open()
        self.kubelet.subscribe(RestartMonitor(self.kubelet, self.pod_resources).look)
        self.kubelet.subscribe(self.rivals.directory_changed)
        self.monitors.open()
        polled = self.monitors.reporter(self.kubelet.directory)
        try:
            async with self.tasks.group:
                self.tasks.spawn("kubelet", partial(self.kubelet.run, polled))
                self.tasks.spawn("own sockets", self.self_check.run)
                self.tasks.spawn("config copy", partial(self.last_good.run, self._changed))
                self.reloader.watch()
                self.observers.follow(self.configuration.catalog, self._everything)
                self.reloader.report_start()
                self.backends.follow(*_backends(self.configuration.settings, self.configuration.catalog))
                self.tasks.spawn("releases", self.backends.watch_releases)
                self.tasks.spawn("pod resources", self.pod_resources.run)
                self.tasks.spawn("rivals", self.rivals.run)
                await self.reloader.start(self._timing.first_plan)  # so that the first list follows the file
                if self.node_condition is not None:
                    self.tasks.spawn("node condition", self.node_condition.run)
                await asyncio.gather(
                    self.backends.answered(self._timing.first_plan),
                    self.pod_resources.first_answer(self._timing.first_plan),
                    self.last_good.keep(self._accepted),  # the copy exists before anything is offered
                    self.dra.read_claims(self.configuration.settings),
                    self.given.read(),
                    self.verdicts.look(),
                    *([self.rollout.read()] if self.rollout else ()),
                )
                await self.given.prepare(self.configuration.settings)
                await self._follow_hooks()
                self.dra.start(self.configuration.settings)
                self.replanner.start()
                self.dra.spawn()
                self.tasks.spawn("clear", partial(self._once_alone, self.cdi_garbage.run))
                self.tasks.spawn("device-info", partial(self._once_alone, self.device_info.run))
                self.tasks.spawn("labels", self.node_labels.run)
                self.tasks.spawn("given", partial(self._once_alone, self._keep_given))
                blind = self.monitors.reporter(self.verdicts.directory or Path())
                self.tasks.spawn("verdicts", partial(self.verdicts.run, blind))
                if self.rollout is not None:
                    self.tasks.spawn("rollout", self.rollout.run)
                try:
                    await self._stop.wait()
                finally:
                    # Also if run() is cancelled: gRPC stops a server with asyncio.wait_for, which until
                    # Python 3.12 may swallow a cancellation. Then only this ends the task.
                    self.services.stop()
                await self._leave()
        finally:
            for part in (
                self.monitors,
                self.reloader,
                self.publication,
                self.last_good,
                self._cdi_files,
                self._claim_files,
                self.given,
                self.verdicts,
                self.device_info,
                self.node_labels,
                self.backends,
                self.observers,
                *([self.rollout] if self.rollout else ()),
                *([self.replanner.handover] if self.replanner.handover else ()),
            ):
                part.close()

    async def _leave(self) -> None:
        log.info("stopping")
        self.replanner.stop()
        self.publication.show()
        flushed = asyncio.ensure_future(self.observers.flush(self._timing.flush))
        await asyncio.wait([flushed, *self.services.leaving()], timeout=self._timing.leave)
        self.tasks.cancel_all()

    def serves(self) -> bool:
        """Whether the kubelet can use everything that backends have found."""
        listed = all(scanner.listed for scanner in self.scanners.values())
        registered = not any(service.missing() for service in self.services.values())
        return self.planned and listed and registered and self.dra.registered

    def others(self) -> bool:
        """Whether other devhosts serve the same kubelet."""
        return any(map(live, self.kubelet.directory.glob(f"{SOCKET_PREFIX}*.sock")))

    def rest(self) -> None:
        """Changes nothing any longer, but answers the kubelet until :meth:`stop`: another devhost acts."""
        self.replanner.stop()
        self.services.rest()
        self.tasks.cancel_all(but=ANSWERING)

    def stop(self) -> None:
        """Stops serving in good order and ends :meth:`run`."""
        self._stop.set()

    async def stopped(self) -> None:
        """Waits until the host is stopped, as by a signal."""
        await self._stop.wait()

    def reload(self) -> None:
        """Reads the configuration again, as after an edit, and scans again.

        Before :meth:`run` begins, this waits for it. While the host stops, it has no effect.
        """
        if not self._stop.is_set():
            self.reloader.request()

    def replan(self, caused_at: float | None = None) -> None:
        """Makes the plan, and brings the services in line with it."""
        if not self._stop.is_set():
            self.replanner.replan(caused_at)

    def ready(self) -> tuple[bool, str]:
        """Whether everything that is wanted is offered to pods; if not, what is not, and why."""
        return readiness(self.now())

    def now(self) -> Now:
        """What is true now, to be shown."""
        return self.publication.now()

    def _collected(self, memory: Memory) -> Now:
        configuration, kubelet, node = self.configuration, self.kubelet, self.node_condition
        backends = {name: one.now() for name, one in self.scanners.items()}
        wrong = node and failing(node.failures.reason, node.failures.since)
        polled = sorted((path, reason) for path, reason in self.monitors.polled.items() if reason)
        uevents = self.monitors.uevents_failure
        held = self.allocations.held()
        holdings = {one.resource: one.now() for one in self.allocations.in_use()}
        return Now(
            at=time.time(),
            clock=time.monotonic(),
            started=self.started,
            root=self.root,
            planned=self.planned,
            generation=configuration.generation,
            configuration=ConfigurationNow(
                configuration.file, configuration.sha256, configuration.read_from, configuration.copied
            ),
            settings=configuration.settings,
            last_reload=configuration.last_reload,
            last_good=failing(self.last_good.outdated, self.last_good.since),
            rollout=failing(self.rollout.reason, self.rollout.since) if self.rollout else None,
            plan=self.plan,
            plans=self.replanner.plans,
            dead_links=self._dead_links(),
            shortages=memory.shortages or EntriesNow(EntryOutcomes(configuration.settings, None, backends)),
            backends=backends,
            provisioning={name: one.condition for name, one in self.backends.provisioning.items()},
            released={name: reason for name in backends if (reason := self.backends.releases.reason(name))},
            labels=dict(self.node_labels.files),
            refused_plugins=configuration.catalog.refused,
            resources={name: one.now() for name, one in self.services.items()},
            holdings=holdings,
            held=held,
            tokens=cache(partial(tokens, held, holdings)),
            claimed=self.allocations.claimed() if self.observers and self.planned else (),
            differences=self.allocations.given.differences,
            dra=self.dra.now(held, backends),
            moves=self.dra.moves,
            kubelet=KubeletNow(kubelet.directory, kubelet.identity, failing(kubelet.trouble, kubelet.since)),
            self_check=failing(self.self_check.failures.reason, self.self_check.failures.since),
            pod_resources=PodsNow(self.pod_resources.source.socket, self.pod_resources.condition),
            faults=list(self._faults()),
            node=(node.node, wrong) if node and wrong else None,
            event_sources={**({"uevents": uevents} if uevents else {}), **dict(polled)},
            verdicts=self.verdicts.now(),
            observers=[ObserverNow(one.plugin, one.condition, one.waiting) for one in self.observers],
            failing=dict(self.tasks.failing),
            memory=memory,
        )

    def _faults(self) -> Iterator[Fault]:
        found = any(one.devices for one in self.scanners.values())
        for kind, subject, failures in self._reported:
            if failures.failing and not (subject == ROOT and found):  # a backend may need no such directory
                yield kind, subject, failures.failing
        for name, scanner in self.scanners.items():
            links = scanner.runner.link_cache
            if links and links.failures.failing:
                yield "backend", name, links.failures.failing
        for plugin, why in self.replanner.handover.uncalled.items() if self.replanner.handover else ():
            yield "plugin", plugin, why
        yield from self.outside()
        for record in (self.given, self.backends.releases, self.rollout, self.replanner.handover):
            if record is not None and record.unrecorded:
                yield "record", str(record.file), record.unrecorded

    def _dead_links(self) -> Mapping[int, str]:
        """The links of entries that lead to nothing: looked up once for each plan, behind its lists."""
        if self._looked != self.replanner.plans:
            self._looked = self.replanner.plans
            self._dead = dead_links(self.root, self.configuration.settings, self.plan)
        return self._dead

    @property
    def scanners(self) -> Mapping[str, Scanner]:
        """The backends that run, by name."""
        return self.backends.scanners

    @property
    def plan(self) -> Plan:
        return self.replanner.plan

    @property
    def planned(self) -> bool:
        """Whether the first plan has been made, so that devices are offered."""
        return self.replanner.started

    def _follow_plugins(self) -> None:
        self.observers.follow(self.configuration.catalog, self._everything)
        self.tasks.spawn("hooks", self._follow_hooks)

    async def _follow_hooks(self) -> None:
        """Uses the hooks of the plugins; most nodes have none."""
        catalog = self.configuration.catalog
        if self.replanner.handover is None:
            if not any(plugin.backends for plugin in catalog.observers):
                return
            from devhost.discovery.handover import Handover

            record = self._record.file
            handover = Handover(
                self.tasks,
                self.observers.count,
                lambda: self.scanners,
                self.allocations.held,
                self.replan,
                record and record.with_name(record.name.replace("given", "used", 1)),
                self._alone,
                self._timing.discovery,
            )
            for given in await handover.read():  # they count as held until the kubelet's lists lack them
                resource, devices = self.allocations.of(given.resource), tuple(map(Device, given.devices))
                if missing := [token for token in given.tokens if token not in resource]:
                    resource.allocated(given.backend, dict.fromkeys(missing, devices))
            self.replanner.handover = handover
            self.tasks.spawn("used devices", handover.run)
            self.allocations.claims.subscribe(self._handed_back)
        self.replanner.handover.follow(catalog)
        self.replan()

    def _handed_back(self) -> None:
        """Devices may have been released, which may have to be prepared for the next container."""
        if self.replanner.handover is not None:
            self.replan()

    def _show(self, step: Step) -> None:
        before, now = step.before, step.now
        device_log.write(step)
        self.publisher.follow(step)
        shortages.write(step)
        if now.plans != before.plans:
            self._follow_rollout(now.shortages.outcomes)
            self.node_labels.offer(now.plan)
        report(before.memory.lost, now.memory.lost)
        self.given.follow(before.differences, now.differences)
        self._changed()

    def _pods_listed(self) -> None:
        """Observers alone learn which pods use claims."""
        if self.observers:
            self.publication.soon()

    def _everything(self) -> Iterator[Batch]:
        """The present state as events, for a new observer."""
        if not self.observers:
            self.publication.first_observer()
            self.publication.soon()  # what claims hold
        return self.publisher.everything(self.publication.shown)

    def _follow_rollout(self, outcomes: EntryOutcomes) -> None:
        if self.rollout is not None:
            found = found_by(self.configuration.settings, outcomes)
            self.rollout.follow(self.configuration.sha256, found)

    async def _once_alone(self, work: Callable[[], Awaitable[None]]) -> None:
        """Does what depends on all that containers were given, also by the devhost before."""
        if self._alone is not None:
            await self._alone()
        await work()

    async def _keep_given(self) -> None:
        if self._alone is not None:
            await self.given.read()
            await self.dra.take_over()
            self._knows_gifts = True
            self.backends.released()
        await self.given.run()

    def _in_use(self) -> frozenset[str] | None:
        """See :meth:`.Context.held`; unknown while the devhost before may still give devices."""
        return self.allocations.claims_in_use() if self._knows_gifts else None

    def _devices(self) -> Iterator[Device]:
        for scanner in self.scanners.values():
            yield from scanner.devices.values()

    def _scanned(self, backend: str) -> None:
        """A backend has scanned: a device node may be another one, also if no device has changed."""
        self.monitors.look()
        for service in self.services.values():
            if service.entry.backend == backend:
                service.wake()
        self.dra.scanned()
        if self.cdi_garbage.unserved:
            self.cdi_garbage.wake()

    def _allocations_changed(self) -> None:
        """The kubelet has reported other holders."""
        self.replanner.allocations_changed()
        for service in self.services.values():
            service.wake()
        self.cdi_garbage.wake()

    def _released(self, resource: str, tokens: tuple[str, ...]) -> None:
        self.backends.released()
        self._handed_back()


def _with_cdi(settings: Settings) -> Settings:
    """What the specifications of CDI depend on."""
    entries = tuple(entry for entry in settings.resources if entry.inject is Inject.CDI)
    return Settings(entries, cdi_directory=settings.cdi_directory)


def _backends(settings: Settings, catalog: Catalog) -> tuple[Mapping[str, Needed], tuple[Skipped, ...]]:
    """What backends depend on, and the entries without one."""
    return catalog.needed(settings), settings.skipped


def _plugins(catalog: Catalog) -> tuple[object, ...]:
    """The observers, other objects after each reading, and what was refused; most nodes have neither."""
    return (*map(id, catalog.observers), *catalog.refused)
