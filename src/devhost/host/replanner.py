"""Replanning: makes the plan from what exists, and brings the services in line with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from devhost.allocation.allocations import Allocations
from devhost.backend.where import selected
from devhost.discovery.manager import BackendManager
from devhost.discovery.verdict_follower import VerdictFollower
from devhost.planning import naming
from devhost.planning.plan import Found, Plan, PlannedResource, RefusalKind
from devhost.planning.planner import Planner, held_now, plan_devices
from devhost.planning.settings import ResourceSettings, Serve, Settings

from .dra_side import DraSide
from .reload import Configuration
from .service import Occasion, ResourceService, ServiceParts, Services, terms
from .shown.now import NONE

if TYPE_CHECKING:
    from devhost.discovery.handover import Handover


class Replanner:
    """Follows devices, settings and allocations with a plan, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        configuration: Configuration,
        backends: BackendManager,
        allocations: Allocations,
        services: Services,
        parts: ServiceParts,
        verdicts: VerdictFollower,
        dra: DraSide,
    ) -> None:
        self.plan = Plan()
        self.plans = 0
        """How many plans have been made."""
        self.started = False
        """Whether the first plan has been made, so that devices are offered."""
        self.handover: Handover | None = None
        """The hooks for devices that are given and released, if there are any."""
        self._configuration = configuration
        self._backends = backends
        self._allocations = allocations
        self._services = services
        self._parts = parts
        self._verdicts = verdicts
        self._dra = dra
        self._planner = Planner()
        self._settings = configuration.settings
        """Those for which the plan was made."""
        self._stopped = False
        self._planned_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._steps: Iterator[None] | None = None
        """What is left of a plan that takes long."""
        self._next: asyncio.Handle | None = None
        self._caused_at: float | None = None

    def start(self) -> None:
        """Makes the first plan, in one piece. Before this, no event leads to a plan."""
        self.started = True
        self._follow(None)

    def stop(self) -> None:
        """Makes no plan from now on."""
        self._stopped = True
        self._cancel_timer()
        if self._next is not None:
            self._next.cancel()

    async def prepare(self, settings: Settings) -> None:
        """Plans for settings before they take effect, while everything else goes on."""
        planner, found = Planner(), self._found()
        steps = planner.steps(found, settings, held_now(found, self._allocations, None))
        while self.started and self._piece(steps):  # noqa: ASYNC110 - it waits for nothing
            await asyncio.sleep(0)
        self._planner, self._steps = planner, None
        self._parts.publication.show()  # of the settings before

    def replan(self, caused_at: float | None = None) -> None:
        """Makes the plan, and brings the services in line with it; a plan that takes long does so later.

        ``caused_at`` is the monotonic time of the event that led to it.
        """
        if not self.started or self._stopped:
            return
        if self._caused_at is None or (caused_at is not None and caused_at < self._caused_at):
            self._caused_at = caused_at
        if self._next is None or self._configuration.settings is not self._settings:
            self._go_on()

    def _go_on(self) -> None:
        """Continues the plan. Once all is made that takes long, what has changed since then follows."""
        if self._next is not None:
            self._next.cancel()  # if the settings have changed before its turn
            self._next = None
        settings, sides = self._configuration.settings, self._dra.sides
        # otherwise the old plan would be shown with other settings
        if settings is self._settings:
            if self._steps is None:
                found = self._found()
                held = held_now(found, self._allocations, sides)
                self._steps = self._planner.steps(found, settings, held, sides)
            if self._piece(self._steps):
                self._next = asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._steps = None
        caused_at, self._caused_at = self._caused_at, None
        self._follow(caused_at)

    def _piece(self, steps: Iterator[None]) -> bool:
        """Does some steps; true if there are more."""
        until = time.monotonic() + self._parts.timing.plan_piece
        for _ in steps:
            if time.monotonic() >= until:
                return True
        return False

    def _found(self) -> Found:
        """Every device of every backend."""
        return self._allocations.completed(
            {name: one.devices for name, one in self._backends.scanners.items()}
        )

    def _follow(self, caused_at: float | None) -> None:
        self._planned_at = time.monotonic()
        settings, backends = self._configuration.settings, self._backends.scanners
        self._settings, found = settings, self._found()
        if self._verdicts.judge is not None:
            self._verdicts.judge.apply()  # to the devices that exist now
        if self.handover is not None:
            self.handover.apply()
        self.plan = plan_devices(found, settings, self._allocations, self._dra.sides, self._planner)
        refused = self.plan.reasons()
        binding, given = self._allocations.pod_claims(), self._allocations.given
        basis = {name: terms(one, binding, given) for name, one in backends.items()}

        def occasion(entry: ResourceSettings) -> Occasion:
            return Occasion(caused_at, basis[entry.backend], refused.get(entry.index, NONE))

        self._retire(occasion)
        self._update(occasion)
        self._dra.follow(self.plan, settings, backends)
        self._schedule()
        self.plans += 1
        self._parts.publication.soon()

    def allocations_changed(self) -> None:
        """The holders of devices have changed: a vanished device that was released may leave its list now."""
        self._parts.preferred.settle()
        if self._depends_on_holders():
            self.replan()
        self._schedule()
        self._parts.publication.soon()

    def _depends_on_holders(self) -> bool:
        """Whether the plan, its reasons or those of tokens refer to containers."""
        return (
            self._allocations.binds_pods()
            or any(one.kind is RefusalKind.HELD for one in self.plan.refusals)
            or any(service.inventory.names_holders for service in self._services.values())
        )

    def _retire(self, occasion: Callable[[ResourceSettings], Occasion]) -> None:
        """Ends services that are not in the plan; one without devices stays as long as its entry does."""
        entries = {(entry.backend, entry.name): entry for entry in self._configuration.settings.resources}
        for name, service in list(self._services.items()):
            planned = self._listed(name)
            backends = self._backends.scanners
            if planned is not None and service.fits(planned, backends[planned.entry.backend]):
                continue
            entry = entries.get((service.entry.backend, service.entry.name))
            stays = planned is None and service.entry.backend in backends
            if (
                stays
                and entry is not None
                and (entry.serve is Serve.PLUGIN or self._allocations.of(name).is_held())
            ):
                service.empty(entry, occasion(entry))
            else:
                self._services.retire(name)

    def _listed(self, name: str) -> PlannedResource | None:
        """What the plan gives a resource to list; one with ``serve: dra`` has no list."""
        planned = self.plan.resources.get(name)
        return planned if planned is not None and planned.entry.serve is Serve.PLUGIN else None

    def _update(self, occasion: Callable[[ResourceSettings], Occasion]) -> None:
        """Gives each planned resource its devices, and starts those that are new."""
        for name, planned in (*self.plan.resources.items(), *self._held()):
            entry = planned.entry
            if entry.serve is Serve.DRA:
                continue
            backend = self._backends.scanners[entry.backend]
            if (running := self._services.get(name)) is not None:
                running.update(planned, backend, occasion(entry))
            else:
                service = ResourceService(planned, backend, self._allocations.of(name), self._parts)
                service.update(planned, backend, occasion(entry))
                self._services.start(service)
                self._parts.pod_resources.wake()  # containers may hold its devices already

    def _held(self) -> Iterator[tuple[str, PlannedResource]]:
        """The resources that are not served and have no device, of which containers hold something.

        Such a resource stays while devhost runs, and so over a restart: its containers may start again.
        """
        backends = self._backends.scanners
        for name in sorted(self._allocations.resources() or ()):
            if name in self.plan.resources or name in self._services:
                continue
            for entry in self._configuration.settings.resources:
                backend = backends.get(entry.backend)
                if entry.serve is not Serve.PLUGIN or backend is None or not backend.listed:
                    continue  # nothing is known of its devices yet
                if entry.name == name or (naming.fields(entry.name) and self._may_expand(entry, name)):
                    yield name, PlannedResource(name, entry, ())
                    break

    def _may_expand(self, entry: ResourceSettings, name: str) -> bool:
        """Whether the name of a resource comes from the template of an entry, by a device that is held."""
        seen = (
            selected(entry.where, held.device.attributes, held.device.inherited)
            for held in self._allocations.of(name).held()
            if held.backend == entry.backend
        )
        return any(one is not None and entry.named(one) == name for one in seen)

    def _schedule(self) -> None:
        """Plans again when time alone changes something."""
        now = time.monotonic()
        waits = [service.next_change() for service in self._services.values()]
        waits += [
            backend.health.next_change(now, self._planned_at) for backend in self._backends.scanners.values()
        ]
        waits += [self._dra.next_change(), self._allocations.next_change()]
        due = [wait for wait in waits if wait is not None]
        self._cancel_timer()
        if due and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(min(due) + 0.01, self.replan)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
