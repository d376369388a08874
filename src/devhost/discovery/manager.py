"""Which backends run: those the configuration needs, each with the options it has now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from devhost.backend import Event
from devhost.planning.settings import Settings
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics

from .catalog import Catalog
from .provisioning import Provisioning, State
from .runner import BackendRunner, HeldClaims
from .scanner import ANYTHING, Scanner
from .scanner import State as Health
from .tasks import Tasks

log = get(__name__)


class BackendManager:
    """Starts, stops and exchanges backends.

    Args:
        root: directory that stands for ``/`` where devices are looked for.
        tasks: where the loops of the backends run.
        found: called when devices, their health or the condition of a backend are another than before;
            see :class:`Scanner`.
        changed: called when a backend's provisioning stands otherwise.
        held: tells backends what containers use.
    """

    def __init__(
        self,
        root: Path,
        tasks: Tasks,
        metrics: Metrics,
        found: Callable[[float | None], None],
        changed: Callable[[], None] = lambda: None,
        held: HeldClaims = lambda: None,
    ) -> None:
        self.discoveries: dict[str, Scanner] = {}
        self.provisioning: dict[str, Provisioning] = {}
        self._root = root
        self._tasks = tasks
        self._metrics = metrics
        self._found = found
        self._changed = changed
        self._held = held

    def follow(self, settings: Settings, catalog: Catalog) -> None:
        """Makes the backends those that the settings need."""
        needed = _needed(settings, catalog)
        for name, hint in settings.not_installed().items():
            names = ", ".join(entry.name for entry in settings.skipped if entry.backend == name)
            log.info("backend is not installed", backend=name, entries=names, reason=hint)
        for name in [name for name in self.discoveries if name not in needed]:
            self._dismiss(name)
            self._tasks.cancel(f"provision {name}")
        for name in needed:
            backend, options = catalog.get(name), settings.backends.get(name)
            wanted, entries = settings.wanted(name), settings.said_to(name)
            running = self.discoveries.get(name)
            if backend is None:
                continue  # config.load refuses a file that needs a missing backend
            if running and running.source.kind is backend and running.source.options == options:
                context = running.source.context
                if (context.wanted, context.entries) != (wanted, entries):
                    context.wanted, context.entries = wanted, entries
                    running.look(ANYTHING)
                continue
            source = BackendRunner(backend, options, self._root, wanted, self._held, entries)
            discovery = Scanner(source, self._metrics, self._found)
            if running:
                source.succeed(running.source)
                discovery.succeed(running)
                self._dismiss(name)
            self._metrics.backend_added(name)
            self._metrics.backend_degraded(name, discovery.condition.state is Health.DEGRADED)
            self.discoveries[name] = discovery
            self._tasks.spawn(f"look {name}", discovery.run)
            self._tasks.spawn(f"watch {name}", discovery.watch)
            if source.probes:
                self._tasks.spawn(f"probe {name}", discovery.probe)
            if source.linkage:
                self._tasks.spawn(f"links {name}", source.linkage.run)
            if source.provisions:
                self._provision(name, discovery)

    async def answered(self, within: float) -> None:
        """Waits until every backend has something to tell, for at most ``within`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                for discovery in list(self.discoveries.values()):
                    await discovery.answered.wait()

    def dispatch(self, event: Event) -> None:
        """Tells those backends of an event that it concerns."""
        for name, discovery in self.discoveries.items():
            if discovery.concerns(event):
                discovery.look(event)
                if event.action in ("add", "move") and name in self.provisioning:
                    self.provisioning[name].wake()

    def recheck(self) -> None:
        """Asks all of them to look and to probe anew."""
        for discovery in self.discoveries.values():
            discovery.recheck()
        for provisioning in self.provisioning.values():
            provisioning.wake()

    def released(self) -> None:
        """A container has given something back: what waits for that goes on."""
        for provisioning in self.provisioning.values():
            if provisioning.condition.state is State.WAITING:
                provisioning.wake()

    def close(self) -> None:
        """Lets their threads end; waits for nobody."""
        for discovery in self.discoveries.values():
            discovery.source.close()
        for provisioning in self.provisioning.values():
            provisioning.close()

    def _provision(self, name: str, discovery: Scanner) -> None:
        """Has one that is kept for good: a call that hangs keeps later ones waiting, with any options."""
        if name in self.provisioning:
            self.provisioning[name].follow(discovery)
        else:
            self.provisioning[name] = Provisioning(discovery, lambda: self._provisioned(name))
        self._provisioned(name)
        if not self._tasks.named(f"provision {name}"):
            self._tasks.spawn(f"provision {name}", self.provisioning[name].run)

    def _provisioned(self, name: str) -> None:
        present = self.provisioning[name].condition.state
        self._metrics.provisioning(name, {state: state is present for state in State})
        self._changed()

    def _dismiss(self, name: str) -> None:
        discovery = self.discoveries.pop(name)
        for work in ("look", "watch", "probe", "links"):
            self._tasks.cancel(f"{work} {name}")
        discovery.source.close()
        self._metrics.backend_removed(name)


def _needed(settings: Settings, catalog: Catalog) -> tuple[str, ...]:
    """Those of which some resource has devices, and those that the file asks to change hardware.

    Virtual functions may be wanted for whatever else the node runs, and what devhost has made it takes back
    also when the last resource has gone. So a backend that provisions runs as soon as it has options.
    """
    named = settings.backend_names()
    others = (name for name in settings.backends if name not in named)
    return (*named, *(name for name in others if hasattr(catalog.get(name), "provision")))
