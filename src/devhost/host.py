"""The process: one task tree, from the configuration file to the kubelet and back to the exit.

Everything that happens (an event, a timer, an edited file, a signal) ends in the same two steps: make
the plan anew, and bring what is served in line with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .backend import Event
from .cdi import SpecDirectory
from .config.difference import difference
from .discovery import ANYTHING, Discovery
from .errors import BackendTimeout, ConfigError, EnvironmentFailure
from .events import UeventMonitor
from .kubelet.api import MAX_SOCKET_PATH, PLUGIN_DIRECTORY
from .kubelet.holders import Holders
from .kubelet.podresources import PodResources, beside
from .kubelet.registration import KubeletSocket
from .kubelet.server import socket_name
from .loading import Loaded
from .pace import Backoff
from .plan import Plan, make_plan
from .reload import ConfigWatch
from .service import ResourceService
from .source import Source
from .telemetry.log import get
from .telemetry.metrics import Metrics
from .worker import Lane

log = get(__name__)

FIRST_PLAN = 2.0
"""Seconds the first plan waits for backends that have not answered yet.

Planning without them could give a device to one resource and take it back a moment later."""

RELOAD_DEADLINE = 30.0
"""Seconds reading the configuration may take; importing drop-ins is part of it."""

SHUTDOWN = 4.0
"""Seconds for leaving the kubelet in good order; then the process goes anyway."""


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
    ) -> None:
        self.config = config
        self.settings = loaded.settings
        self.generation = 1
        self.last_reload = LastReload(time.time())
        self.plan = Plan()
        self.discoveries: dict[str, Discovery] = {}
        self.services: dict[str, ResourceService] = {}
        self.kubelet = KubeletSocket(kubelet_dir)
        self.holders = Holders(
            PodResources(pod_resources or beside(kubelet_dir)),
            lambda: [(name, service.inventory) for name, service in self.services.items()],
            self._holders_changed,
        )
        self._catalog = loaded.catalog
        self._reload = reload
        self._root = root
        self._metrics = metrics or Metrics()
        self._changed = changed
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self._planning = False
        self._timer: asyncio.TimerHandle | None = None
        self._reader = Lane("reload")
        own = kubelet_dir == Path(PLUGIN_DIRECTORY)
        self._specifications = SpecDirectory(
            self.settings.cdi_directory, "" if own else str(kubelet_dir.absolute())
        )
        self._reading = asyncio.Lock()

    async def run(self) -> None:
        """Serves until :meth:`stop`.

        Raises:
            EnvironmentFailure: the kubelet's directory exists and cannot be used.
        """
        check_kubelet_dir(self.kubelet.directory)
        self.kubelet.sweep()
        self.kubelet.look()
        self.kubelet.subscribe(self._look_who_is_there())
        monitor = self._monitor()
        self._metrics.config_loaded(self.generation)
        try:
            async with self._group:
                self._spawn("kubelet", self.kubelet.run)
                self._spawn("config", ConfigWatch(self.config, self._read).run)
                self._sources()
                await self._first_answers()
                self._planning = True
                self.replan(None)
                self._spawn("holders", self.holders.run)
                self._spawn("sweep", self._sweep)
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
            self._specifications.close()
            for discovery in self.discoveries.values():
                discovery.source.close()

    def stop(self) -> None:
        """Leaves the kubelet in good order and ends :meth:`run`."""
        self._stop.set()

    async def stopped(self) -> None:
        """Waits until something, such as a signal, stops the host."""
        await self._stop.wait()

    def ready(self) -> tuple[bool, str]:
        """Whether every wanted resource has a live list stream; else which have not."""
        if not self._planning:
            return False, "looking for devices"
        waiting = sorted(
            f"{service.name} ({service.registration.standing.state})"
            for service in self.services.values()
            if not service.registration.streams
        )
        return not waiting, f"no list stream yet: {', '.join(waiting)}" if waiting else ""

    def reload(self) -> None:
        """Reads the configuration again, as after an edit, and looks for devices anew."""
        self._spawn("reload", lambda: self._read(forced=True))

    def replan(self, caused_at: float | None) -> None:
        """Makes the plan anew and brings the services in line with it."""
        if not self._planning or self._stop.is_set():
            return
        found = {name: tuple(d.devices.values()) for name, d in self.discoveries.items()}
        self.plan = make_plan(found, self.settings)
        self._metrics.planned(Counter(refusal.kind for refusal in self.plan.refusals))
        entries = {(entry.backend, entry.name) for entry in self.settings.resources}
        for name, service in list(self.services.items()):
            planned = self.plan.resources.get(name)
            discovery = self.discoveries.get(service.entry.backend)
            if planned is not None and service.fits(planned, self.discoveries[planned.entry.backend]):
                continue
            if planned is None and discovery and (service.entry.backend, service.entry.name) in entries:
                service.empty(caused_at)
            else:
                self._retire(name)
        for name, planned in self.plan.resources.items():
            discovery = self.discoveries[planned.entry.backend]
            if name in self.services:
                self.services[name].update(planned, discovery, caused_at)
            else:
                service = ResourceService(
                    planned,
                    discovery,
                    self.kubelet,
                    self._metrics,
                    self._changed,
                    self._specifications,
                    self.holders.wake,
                )
                service.update(planned, discovery, caused_at)
                self.services[name] = service
                self._enlist(service)
                self.holders.wake()  # somebody may hold its devices since before there was this service
        self._schedule()
        self._changed()

    def _schedule(self) -> None:
        """Plans again when time alone will have changed something."""
        now = time.monotonic()
        waits = [service.next_change() for service in self.services.values()]
        waits += [discovery.ward.next_change(now) for discovery in self.discoveries.values()]
        due = [wait for wait in waits if wait is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due:
            self._timer = asyncio.get_running_loop().call_later(min(due) + 0.01, self.replan, None)

    def _holders_changed(self) -> None:
        """A vanished device that was released may leave now."""
        self._schedule()
        self._changed()

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
        before = self._tasks.pop(f"retire {service.name}", None)

        async def run() -> None:
            if before is not None:
                await asyncio.wait([before])
            await service.run()

        self._spawn(f"resource {service.name}", run)

    def _retire(self, name: str) -> None:
        """Takes a resource away from the kubelet: an empty list, then silence."""
        service = self.services.pop(name)
        running = self._tasks.pop(f"resource {name}")
        log.info("resource removed", resource=name)

        async def leave() -> None:
            await service.drain()
            await asyncio.wait([running])
            if name not in self.services:
                service.gone()
                await service.withdraw()

        self._spawn(f"retire {name}", leave)

    def _sources(self) -> None:
        """Starts, stops and exchanges backends so that they are those the settings need."""
        needed = self.settings.backend_names()
        for name in [name for name in self.discoveries if name not in needed]:
            self._dismiss(name)
        for name in needed:
            backend, options = self._catalog.get(name), self.settings.backends.get(name)
            wanted = self.settings.wanted(name)
            running = self.discoveries.get(name)
            if backend is None:
                continue  # config.load refuses a file that needs a missing backend
            if running and running.source.kind is backend and running.source.options == options:
                if running.source.context.wanted != wanted:
                    running.source.context.wanted = wanted
                    running.look(ANYTHING)
                continue
            source = Source(backend, options, self._root, wanted)
            discovery = Discovery(source, self._metrics, self.replan)
            if running:
                discovery.succeed(running)
                self._dismiss(name)
            self._metrics.backend_added(name)
            self.discoveries[name] = discovery
            self._spawn(f"look {name}", discovery.run)
            self._spawn(f"watch {name}", discovery.watch)
            if source.probes:
                self._spawn(f"probe {name}", discovery.probe)

    def _dismiss(self, name: str) -> None:
        discovery = self.discoveries.pop(name)
        for title in (f"look {name}", f"watch {name}", f"probe {name}"):
            if task := self._tasks.pop(title, None):  # not each backend has watch() and probe()
                task.cancel()
        discovery.source.close()
        self._metrics.backend_removed(name)

    async def _first_answers(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PLAN):
                for discovery in list(self.discoveries.values()):
                    await discovery.answered.wait()

    def _monitor(self) -> UeventMonitor | None:
        try:
            monitor = UeventMonitor(self._dispatch)
        except (OSError, ImportError) as error:  # pyudev finds libudev only when it is first used
            log.warning("no uevents; devices are looked for once a minute", reason=str(error))
            return None
        log.info("listening for uevents", source=monitor.source)
        return monitor

    def _dispatch(self, event: Event) -> None:
        for discovery in self.discoveries.values():
            if discovery.concerns(event):
                discovery.look(event)

    async def _read(self, *, forced: bool = False) -> None:
        """Reads the configuration again; a bad one changes nothing."""
        async with self._reading:
            try:
                loaded = await self._reader.call(RELOAD_DEADLINE, self._reload)
            except ConfigError as error:
                self._rejected(tuple(map(str, error.complaints)))
                return
            except BackendTimeout as error:
                self._rejected((f"{self.config}: a drop-in of backendPaths does not finish: {error}",))
                return
            change = difference(self.settings, loaded.settings)
            if change or forced or self.last_reload.complaints:
                self._adopt(loaded, str(change))
            if forced:
                for discovery in self.discoveries.values():
                    discovery.recheck()

    def _rejected(self, complaints: tuple[str, ...]) -> None:
        self.last_reload = LastReload(time.time(), complaints)
        self._metrics.config_rejected()
        log.error("configuration refused, the old one stays", file=str(self.config), wrong=len(complaints))
        for complaint in complaints:
            log.error(complaint)
        self._changed()

    def _adopt(self, loaded: Loaded, change: str) -> None:
        self.settings, self._catalog = loaded.settings, loaded.catalog
        self.generation += 1
        self._metrics.config_loaded(self.generation)
        self.last_reload = LastReload(time.time())
        log.info("configuration loaded", generation=self.generation, change=change)
        self._specifications.directory = self.settings.cdi_directory
        self._sources()
        self.replan(None)
        self._spawn("sweep", self._sweep)

    async def _sweep(self) -> None:
        """Removes CDI specifications of resources that an earlier configuration had."""
        retiring = {name.removeprefix("retire ") for name in self._tasks if name.startswith("retire ")}
        templates = [entry.name for entry in self.settings.resources]
        try:
            removed = await self._specifications.sweep(templates, self.services.keys() | retiring)
        except EnvironmentFailure as error:
            log.warning("stale CDI specifications may be left", reason=str(error))
        else:
            for path in removed:
                log.info("removed a stale CDI specification", path=str(path))

    async def _leave(self) -> None:
        log.info("stopping")
        if self._timer is not None:
            self._timer.cancel()
        leaving = [t for name, t in self._tasks.items() if name.startswith(("resource ", "retire "))]
        if leaving:
            await asyncio.wait(leaving, timeout=SHUTDOWN)
        for task in self._tasks.values():
            task.cancel()

    def _spawn(self, name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
        task = self._group.create_task(_contained(name, work), name=name)
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]


async def _contained(name: str, work: Callable[[], Coroutine[None, None, None]]) -> None:
    """Runs a task again after a bug in it, with back-off: one resource's bug must not end the others."""
    backoff = Backoff(1.0, 60.0)
    while True:
        try:
            await work()
        except Exception:
            log.exception("a task failed and is started again", task=name)
            await asyncio.sleep(backoff.delay())
        else:
            return


def check_kubelet_dir(directory: Path) -> None:
    """Whether devhost can work in the kubelet's directory; an absent one may still come.

    Raises:
        EnvironmentFailure: it is not a directory, or may not be written to.
    """
    try:
        exists = directory.exists()
    except PermissionError:
        exists = True
    if not exists:
        return
    if not directory.is_dir():
        raise EnvironmentFailure(f"{directory} is not a directory", "give another --kubelet-dir")
    if len(os.fsencode(directory / socket_name(""))) > MAX_SOCKET_PATH:
        raise EnvironmentFailure(
            f"a socket in {directory} would have a path longer than {MAX_SOCKET_PATH} bytes",
            "give a shorter --kubelet-dir",
        )
    if not os.access(directory, os.W_OK | os.X_OK):
        raise EnvironmentFailure(
            f"cannot write to the kubelet's directory {directory}",
            "run devhost as root, or give a --kubelet-dir it may write to",
        )


def on_signals(host: Host) -> None:
    """SIGTERM and SIGINT stop the host, SIGHUP makes it read its configuration again."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, host.reload)

    def stop(number: int) -> None:
        host.stop()
        loop.remove_signal_handler(number)  # a second one ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
