"""The process: one task tree, from the configuration file to the kubelet and back to the exit.

Everything that happens (an event, a timer, an edited file, a signal) ends in the same two steps: make
the plan anew, and bring what is served in line with it.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from devhost.allocation.allocations import Allocations
from devhost.allocation.cdi.files import CdiGarbageCollector, SpecFiles
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.allocation.preferred.across_resources import PreferredAllocation
from devhost.backend.errors import BackendTimeout, ConfigError
from devhost.backend.files import fingerprint, hostless
from devhost.config.difference import difference
from devhost.config.last_good import LastGood
from devhost.config.loader import Loaded
from devhost.config.watcher import ConfigWatch
from devhost.discovery.catalog import Refusal
from devhost.discovery.manager import BackendManager
from devhost.discovery.observers import Observers
from devhost.discovery.provisioning import Provisioning
from devhost.discovery.scanner import Scanner
from devhost.discovery.tasks import Tasks
from devhost.discovery.uevents import UeventMonitor
from devhost.discovery.worker import WorkerThread
from devhost.kubelet.api import PLUGIN_DIRECTORY
from devhost.kubelet.podresources import PodResources, beside
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.kubelet.preflight import check_directory
from devhost.kubelet.registration import KubeletSocket
from devhost.kubelet.rivals import Rivals
from devhost.kubelet.self_check import SelfCheck
from devhost.planning.plan import Plan, RefusalKind
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics

from . import startup_signals
from .node_labels import NodeLabels
from .orphans import Orphans
from .publisher import News, Present
from .service import ResourceService
from .shortages import Shortages
from .survey import plan_devices

log = get(__name__)

FIRST_PLAN = 2.0
"""Seconds the first plan waits for backends that have not answered yet, and for the kubelet's word.

Planning without them could give a device to one resource and take it back a moment later, or give to one
what a container holds through another."""

RELOAD_DEADLINE = 30.0
"""Seconds reading the configuration may take; importing drop-ins is part of it."""

SHUTDOWN = 4.0
"""Seconds for leaving the kubelet in good order; then the process goes anyway."""

FAREWELL = 1.0
"""Seconds, meanwhile, in which observers may hear what they have not heard yet."""


@dataclass(slots=True)
class LastReload:
    """How the last reading of the configuration ended; ``at`` is wall-clock seconds."""

    at: float
    complaints: tuple[str, ...] = ()


class Host:
    """Serves the devices of one machine to one kubelet, until told to stop.

    Args:
        config: the configuration file.
        loaded: what was read from it.
        reload: reads it again; raises ConfigError.
        kubelet_dir: the kubelet's device-plugin directory.
        root: directory that stands for ``/`` where devices are looked for.
        changed: called when the status is another than before.
        pod_resources: the socket on which the kubelet tells who holds what; by default that beside
            ``kubelet_dir``.
        reloading: entered while the configuration is read again.
        last_good: keeps a copy of what is accepted; without it there is none.
    """

    def __init__(
        self,
        config: Path,
        loaded: Loaded,
        reload: Callable[[], Loaded],
        kubelet_dir: Path,
        root: Path = Path("/"),
        metrics: Metrics | None = None,
        changed: Callable[[], None] = lambda: None,
        pod_resources: Path | None = None,
        reloading: Callable[[], AbstractContextManager[None]] = nullcontext,
        last_good: LastGood | None = None,
    ) -> None:
        self.config = config
        self.settings = loaded.settings
        self.generation = 1
        self.copied = loaded.copied
        """What it runs on if the file was refused at the start; ``None`` once one is accepted."""
        self.last_reload = LastReload(time.time(), loaded.copied.complaints if loaded.copied else ())
        self.last_good = last_good or LastGood(config, None)
        self._accepted = loaded.accepted
        self._metrics = metrics or Metrics()
        self._changed = changed
        self.tasks = Tasks()
        self.plan = Plan()
        self.services: dict[str, ResourceService] = {}
        self.kubelet = KubeletSocket(kubelet_dir)
        self.own_sockets = SelfCheck(self.serving, changed)
        self.ledger = Allocations(time.monotonic, lambda: self.replan(None))
        self._roster = BackendManager(
            root, self.tasks, self._metrics, self.replan, self._changed, self.ledger.claims_in_use
        )
        self.shortages = Shortages(self.settings, self.discoveries)
        self.strand = Orphans(self.ledger, self.services, self.discoveries)
        source = PodResources(pod_resources or beside(kubelet_dir))
        self.holders = PodResourcesPoller(source, self.ledger, self._holders_changed)
        self._rivals = Rivals(source, kubelet_dir)
        self._catalog = loaded.catalog
        self._seen = loaded.seen or fingerprint(config)
        self.read_from = None if loaded.copied else self._seen
        self._reload = reload
        self._reloading = reloading
        self._metrics.planned(dict.fromkeys(RefusalKind, 0))
        self._vicinity = PreferredAllocation(
            lambda: {name: service.inventory for name, service in self.services.items()}, self._metrics
        )
        self.observers = Observers(self.tasks, self._metrics, self._changed)
        self._news = News(self.observers, self.ledger, lambda: self.generation, self._present)
        self.root = root
        self._stop = asyncio.Event()
        self._serving = False
        self._reload_wanted = False
        self._planning = False
        self._planned_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.unheard = ""
        """Why no uevents come; empty where they do."""
        self.polled: dict[str, str] = {}
        """The files and directories that inotify does not watch, and why."""
        self._reader = WorkerThread("reload")
        tag = "" if kubelet_dir == Path(PLUGIN_DIRECTORY) else str(kubelet_dir.absolute())
        self._specifications = SpecFiles(self.settings.cdi_directory, tag)
        self._clearing = CdiGarbageCollector(self._specifications, self.settings, self.ledger)
        self._infos = DeviceInfoFiles(self.settings.device_info_directory, self.ledger, tag)
        self.ledger.subscribe(lambda resource, tokens: self._roster.released())
        self.labelling = NodeLabels(
            self.settings.label_directory,
            self.settings.write_labels,
            lambda: self.discoveries,
            lambda: self.plan,
            self._changed,
            tag,
            self._metrics,
        )
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Serves until :meth:`stop`.

        Raises:
            EnvironmentFailure: the kubelet's directory exists and cannot be used.
        """
        check_directory(self.kubelet.directory)
        self.kubelet.sweep()
        self.kubelet.look()
        self.kubelet.subscribe(self._look_who_is_there())
        self.kubelet.subscribe(self._rivals.news)
        monitor = self._monitor()
        self._metrics.config_loaded(self.generation)
        if self.copied is not None:
            self._metrics.config_rejected()
            for complaint in self.copied.complaints:
                log.error(
                    "configuration refused, started from the copy of the last accepted one",
                    file=str(self.config),
                    reason=complaint,
                    copy=str(self.copied.file),
                    accepted=self.copied.at,
                )
        try:
            async with self.tasks.group:
                self.tasks.spawn("kubelet", lambda: self.kubelet.run(self._blind(self.kubelet.directory)))
                watch = ConfigWatch(
                    self.config,
                    self._read,
                    lambda: self.last_reload.complaints,
                    self._seen,
                    self._blind(self.config),
                )
                self.tasks.spawn("config", watch.run)
                self.tasks.spawn("config copy", lambda: self.last_good.run(self._changed))
                self.observers.follow(self._catalog, self._news.everything)
                if self.copied is not None:
                    self._news.configuration_read(str(self.config), self.copied.complaints)
                self._roster.follow(self.settings, self._catalog)
                self.tasks.spawn("holders", self.holders.run)
                self.tasks.spawn("rivals", self._rivals.run)
                self._serving = True
                if self._reload_wanted:
                    self._reload_wanted = False
                    self.reload()
                await asyncio.gather(
                    self._roster.answered(FIRST_PLAN),
                    self.holders.first_word(FIRST_PLAN),
                    self.last_good.keep(self._accepted),  # what is offered has its copy
                )
                self._planning = True
                self.replan(None)
                self.tasks.spawn("clear", self._clearing.run)
                self.tasks.spawn("device-info", self._infos.run)
                self.tasks.spawn("labels", self.labelling.run)
                try:
                    await self._stop.wait()
                finally:
                    # Said also where run() is cancelled: until Python 3.12, asyncio.wait_for, with which
                    # gRPC stops a server, may swallow a task's cancellation; then this is what ends it.
                    for service in self.services.values():
                        service.stop()
                await self._leave()
        finally:
            if monitor is not None:
                monitor.close()
            self._reader.close()
            self.shortages.close()
            self.last_good.close()
            self._specifications.close()
            self._infos.close()
            self.labelling.close()
            self._roster.close()
            self.observers.close()

    @property
    def discoveries(self) -> Mapping[str, Scanner]:
        """The backends that run, by name."""
        return self._roster.discoveries

    @property
    def provisioning(self) -> Mapping[str, Provisioning]:
        """Of the backends that have any, by name."""
        return self._roster.provisioning

    @property
    def refused_plugins(self) -> Sequence[Refusal]:
        """Packages and drop-ins that cannot be used."""
        return self._catalog.refused

    def stop(self) -> None:
        """Leaves the kubelet in good order and ends :meth:`run`."""
        self._stop.set()

    async def stopped(self) -> None:
        """Waits until something, such as a signal, stops the host."""
        await self._stop.wait()

    @property
    def planned(self) -> bool:
        """Whether the first plan is made, so that what there is is being offered."""
        return self._planning

    def ready(self) -> tuple[bool, str]:
        """Whether every wanted resource has a live list stream; else which have not, and why.

        Of a backend that has never listed its devices nobody knows which resources are wanted. While the host
        runs on a copy, since the file was refused at the start, it is not ready either: so a rollout stops.
        """
        if not self._planning:
            return False, "looking for devices"
        wanted = self.settings.backend_names()
        unknown = sorted(
            f"{name} ({discovery.condition.reason or discovery.condition.state})"
            for name, discovery in self.discoveries.items()
            if name in wanted and not discovery.listed
        )
        missing = ((name, service.missing()) for name, service in sorted(self.services.items()))
        waiting = [f"{name} ({reason})" for name, reason in missing if reason]
        found = (("no devices listed yet", unknown), ("no list stream yet", waiting))
        reasons = [f"{what}: {', '.join(who)}" for what, who in found if who]
        if self.copied is not None:
            first, *more = self.last_reload.complaints
            rest = f" and {len(more)} more" if more else ""
            reasons.insert(
                0, f"configuration refused, running on the copy of {self.copied.at}: {first}{rest}"
            )
        return not reasons, "; ".join(reasons)

    def serving(self) -> Mapping[str, Path]:
        """The sockets on which the kubelet knows resources now, by the resource's name."""
        found = ((name, service.registration.serving) for name, service in self.services.items())
        return {name: path for name, path in found if path is not None}

    def reload(self) -> None:
        """Reads the configuration again, as after an edit, and looks for devices anew.

        Before :meth:`run` has begun it is done as soon as it has, and not at all while the host leaves.
        """
        if self._stop.is_set():
            return
        waits, self._reload_wanted = self._reload_wanted, True
        if self._serving and not waits:
            self.tasks.spawn("reload", lambda: self._read(forced=True))

    def replan(self, caused_at: float | None) -> None:
        """Makes the plan anew and brings the services in line with it."""
        if not self._planning or self._stop.is_set():
            return
        self._planned_at = time.monotonic()
        found = {name: discovery.devices for name, discovery in self.discoveries.items()}
        self.plan = plan_devices(found, self.settings, self.ledger)
        refusals = Counter(refusal.kind for refusal in self.plan.refusals)
        self._metrics.planned({kind: refusals[kind] for kind in RefusalKind})
        refused = self.plan.reasons()
        entries = {(entry.backend, entry.name): entry for entry in self.settings.resources}
        for name, service in list(self.services.items()):
            planned = self.plan.resources.get(name)
            discovery = self.discoveries.get(service.entry.backend)
            if planned is not None and service.fits(planned, self.discoveries[planned.entry.backend]):
                continue
            entry = entries.get((service.entry.backend, service.entry.name))
            if planned is None and discovery and entry is not None:
                service.empty(entry, refused.get(entry.index, {}), caused_at)
            else:
                self._retire(name)
        for name, planned in self.plan.resources.items():
            discovery = self.discoveries[planned.entry.backend]
            if name in self.services:
                reasons = refused.get(planned.entry.index, {})
                self.services[name].update(planned, discovery, caused_at, reasons)
            else:
                service = ResourceService(
                    planned,
                    discovery,
                    self.kubelet,
                    self._metrics,
                    self._changed,
                    self._rivals,
                    self._specifications,
                    allocations=self.ledger.of(name),
                    device_info=self._infos,
                    news=self._news,
                    preferred=self._vicinity,
                    holders=self.holders,
                )
                service.update(planned, discovery, caused_at)
                self.services[name] = service
                self._enlist(service)
                self.holders.wake()  # somebody may hold its devices since before there was this service
        self.shortages.follow(self.settings, self.plan)
        self._news.held()
        self.strand.report()
        self._news.backends((name, discovery.condition) for name, discovery in self.discoveries.items())
        self.labelling.wake()
        self._schedule()
        self._changed()

    def _schedule(self) -> None:
        """Plans again when time alone will have changed something."""
        now = time.monotonic()
        waits = [service.next_change() for service in self.services.values()]
        waits += [d.ward.next_change(now, self._planned_at) for d in self.discoveries.values()]
        due = [wait for wait in waits if wait is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            self._timer = asyncio.get_running_loop().call_later(min(due) + 0.01, self.replan, None)

    def _holders_changed(self) -> None:
        """A vanished device that was released may leave now, and what is written of one that has left."""
        self._vicinity.settle()
        if any(service.inventory.names_holders for service in self.services.values()):
            self.replan(None)  # their reasons name containers
        self._schedule()
        self._clearing.wake()
        self._news.held()
        self.strand.report()
        self._changed()

    def _present(self) -> Iterator[Present]:
        for name, service in self.services.items():
            yield name, service.entry.backend, service.inventory.present()

    def _look_who_is_there(self) -> Callable[[], None]:
        """What to call after each change in the kubelet's directory: tells when the kubelet is another."""
        known = self.kubelet.identity

        def look() -> None:
            nonlocal known
            if self.kubelet.identity not in (known, None):
                known = self.kubelet.identity
                self.holders.restarted()

        return look

    def _enlist(self, service: ResourceService) -> None:
        """Starts serving a resource, once an earlier service of that name has left."""
        before = self.tasks.take(f"retire {service.name}")

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await service.run()

        self.tasks.spawn(f"resource {service.name}", run)

    def _retire(self, name: str) -> None:
        """Takes a resource away from the kubelet: an empty list, then silence."""
        service = self.services.pop(name)
        service.inventory.clear()  # now, not when the loop comes to it: others may get the devices at once
        running = self.tasks.take(f"resource {name}")
        log.info("resource removed", resource=name)

        async def leave() -> None:
            await service.drain()
            if running is not None:
                await asyncio.wait([running])
            if name not in self.services:
                service.gone()
            self._clearing.wake()

        self.tasks.spawn(f"retire {name}", leave)

    def _blind(self, path: Path) -> Callable[[str], None]:
        """What to call when inotify stops working for a file or directory, or works again."""

        def tell(reason: str) -> None:
            self.polled[str(path)] = reason
            self._changed()

        return tell

    def _monitor(self) -> UeventMonitor | None:
        if reason := hostless(self.root):
            log.warning("nothing of the host is below --root", reason=reason)
        try:
            monitor = UeventMonitor(self._roster.dispatch, self.root)
        except (OSError, ImportError) as error:  # pyudev finds libudev only when it is first used
            self.unheard = str(error)
            log.warning("no uevents; devices are looked for once a minute", reason=self.unheard)
            return None
        log.info("listening for uevents", source=monitor.source)
        return monitor

    async def _read(self, edited: bool = True, *, forced: bool = False) -> None:
        """Reads the configuration again; a bad one changes nothing, and is told once while not ``edited``."""
        async with self._reading:
            if forced:
                self._reload_wanted = False  # one that is asked for from now on may have more to find
            with self._reloading() if edited else nullcontext():
                await self._follow_file(edited, forced)

    async def _follow_file(self, edited: bool, forced: bool) -> None:
        try:
            loaded = await self._reader.call(RELOAD_DEADLINE, self._reload)
        except ConfigError as error:
            complaints = tuple(map(str, error.complaints))
            if edited or complaints != self.last_reload.complaints:
                self._rejected(complaints)
            return
        except BackendTimeout as error:
            if edited:
                self._rejected((f"{self.config}: a drop-in of backendPaths does not finish: {error}",))
            return
        await self.last_good.keep(loaded.accepted)  # before it takes effect: what is offered has its copy
        self.read_from = loaded.seen
        change = difference(self.settings, loaded.settings)
        if change or forced or self.last_reload.complaints:
            self._adopt(loaded, str(change))
        if forced:
            self._roster.recheck()

    def _rejected(self, complaints: tuple[str, ...]) -> None:
        self.last_reload = LastReload(time.time(), complaints)
        self._metrics.config_rejected()
        for complaint in complaints:
            log.error("configuration refused, the old one stays", file=str(self.config), reason=complaint)
        self._news.configuration_read(str(self.config), complaints)
        self._changed()

    def _adopt(self, loaded: Loaded, change: str) -> None:
        self.settings, self._catalog, self.copied = loaded.settings, loaded.catalog, loaded.copied
        self.generation += 1
        self._metrics.config_loaded(self.generation)
        self.last_reload = LastReload(time.time())
        log.info("configuration loaded", generation=self.generation, change=change)
        self._clearing.follow(self.settings)
        self._infos.move(self.settings.device_info_directory)
        self.labelling.follow(self.settings.label_directory, self.settings.write_labels)
        self.observers.follow(self._catalog, self._news.everything)
        self._news.configuration_read(str(self.config))
        self._roster.follow(self.settings, self._catalog)
        self.replan(None)
        self._clearing.wake()

    async def _leave(self) -> None:
        log.info("stopping")
        if self._timer is not None:
            self._timer.cancel()
        leaving = [*self.tasks.named("resource ").values(), *self.tasks.named("retire ").values()]
        told = asyncio.ensure_future(self.observers.flush(FAREWELL))
        await asyncio.wait([told, *leaving], timeout=SHUTDOWN)
        self.tasks.cancel_all()


def on_signals(host: Host) -> None:
    """SIGTERM and SIGINT stop the host, SIGHUP makes it read its configuration again.

    Also a SIGHUP that came while the process started (:mod:`.signals`).
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, host.reload)
    if startup_signals.reload_wanted():
        host.reload()

    def stop(number: int) -> None:
        host.stop()
        loop.remove_signal_handler(number)  # a second one ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
