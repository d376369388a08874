"""The backend: joins what the families of drivers find, and answers the core."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Backend,
    Context,
    Device,
    Edits,
    Event,
    Health,
    MissingDriver,
    unhealthy,
)
from devhost.backend.errors import one_line
from devhost.backend.sysfs import Sysfs, is_live, pci_path

from .allocation import edits, missing_node
from .attributes import ATTRIBUTES
from .discovery import FAMILIES, DflCards, Remaining
from .model import CanProbe, Family, Unit
from .options import FpgaOptions, FpgaUse
from .watch import Watch

if TYPE_CHECKING:
    from .programming.programmer import Programmer


class Fpga(Backend):
    """FPGAs: accelerator functions, regions and cards."""

    name = "fpga"
    Options = FpgaOptions
    ResourceOptions = FpgaUse
    attributes = ATTRIBUTES
    subsystems = (
        "fpga",
        "fpga_region",
        "fpga_manager",
        "fpga_bridge",
        "dfl",
        "platform",
        "pci",
        "drm",
        "misc",
    )
    discover_deadline = 20.0  # a register may be read under a lock that programming holds

    def __init__(self, options: FpgaOptions, context: Context) -> None:
        super().__init__(options, context)
        self._sysfs = Sysfs(context.root)
        self._is_live = is_live(context.root)
        self._dfl_cards = DflCards(self._sysfs)
        # Replaced whole, never changed: probe(), allocate() and prepare() read them on other threads.
        self._families: Mapping[str, Family] = {}
        self._units: Mapping[str, Mapping[str, Unit]] = {}
        self._failed: Mapping[str, str] = {}
        self._probe_failures: dict[str, str] = {}
        self._watch = Watch(self._sysfs, context)

    def discover(self) -> list[Device]:
        """Every FPGA that could be handed out, also unhealthy ones.

        Raises:
            OSError: sysfs cannot be listed, whatever family asks for it.
        """
        found: dict[str, Mapping[str, Unit]] = {}
        failures: dict[str, str] = {}
        errors: list[Exception] = []
        taken: set[str] = set()
        names: set[str] = set()
        for name, family in self._present().items():
            try:
                units = self._scan(family, taken, names)
            except Exception as error:  # noqa: BLE001 - the code of one family fails for its own hardware only
                errors.append(error)
                failures[name] = one_line(error)
                units = self._last_units(name, failures[name])
            found[name] = {unit.device.id: unit for unit in units}
            names.update(found[name])
            taken.update(_hardware(family, units))
        if errors and len(errors) == len(found):
            raise errors[0]
        self._log_changes(found, failures)
        self._units = found
        every = self._all_units()
        self._watch.follow(every.values())
        return [unit.device for unit in every.values()]

    def missing_drivers(self) -> list[MissingDriver]:
        """FPGAs that no driver is bound to, as of the last scan."""
        lacking = [
            MissingDriver(
                unit.device.id,
                unit.device.health.reason or "no driver is bound to it",
                {name: value for name, value in unit.device.attributes.items() if name != "driver"},
            )
            for unit in self._all_units().values()
            if unit.lacks_driver
        ]
        return [*lacking, *self._dfl_cards.missing_drivers()]

    def allocate(self, request: AllocateRequest) -> Edits:
        """What a container needs to use these FPGAs.

        Raises:
            AllocationError: one is gone, or cannot be used as it is now.
        """
        units, use = self._units_of(request.devices), request.options
        if use.program is not None:
            for unit in units:
                self._programmer.check(unit, use.program)
        return edits(self._sysfs, units, request, is_live=self._is_live)

    def prepare(self, request: AllocateRequest) -> None:
        """Programs the regions that a container is about to use, where its resource says with what.

        Raises:
            AllocationError: they cannot be programmed.
        """
        if request.options.program is not None:
            self._programmer.program(self._units_of(request.devices), request.options.program)

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The unhealthy FPGAs, by checks that are too expensive for each scan."""
        wanted = {device.id for device in devices}
        verdicts: dict[str, Health] = {}
        for name, family in self._families.items():
            own = [unit for unit in self._units.get(name, {}).values() if unit.device.id in wanted]
            if not own or not isinstance(family, CanProbe):
                continue
            try:
                verdicts.update(family.probe(own))
            except Exception as error:  # noqa: BLE001 - as in discover()
                reason = _failure(name, one_line(error))
                if self._probe_failures.get(name) != reason:
                    self._probe_failures[name] = reason
                    self.context.log.warning("%s", reason)
                verdicts.update((unit.device.id, unhealthy(reason)) for unit in own)
            else:
                if self._probe_failures.pop(name, ""):
                    self.context.log.info("the health of devices of %s can be asked for again", name)
        return verdicts

    async def watch(self) -> AsyncGenerator[Event, None]:
        """Changes that make no event: ids after a container has programmed its region, states, errors."""
        async with aclosing(self._watch.events()) as events:  # so that it lets go at once
            async for event in events:
                yield event

    def _present(self) -> Mapping[str, Family]:
        """The families whose drivers are here, or were: their modules may be loaded at any time."""
        for name, (is_here, make) in FAMILIES.items():
            if name not in self._families and is_here(self._sysfs):
                self._families = {**self._families, name: make(self._sysfs, self.options)}
        return {name: self._families[name] for name in FAMILIES if name in self._families}

    def _scan(self, family: Family, taken: Collection[str], names: Collection[str]) -> list[Unit]:
        """A family's units, each the same object as before where nothing changed."""
        if isinstance(family, Remaining):
            family.leave_out(taken)
        before = self._all_units()
        units = [self._with_node_health(unit) for unit in family.scan() if unit.device.id not in names]
        return [before[unit.device.id] if before.get(unit.device.id) == unit else unit for unit in units]

    def _with_node_health(self, unit: Unit) -> Unit:
        """A unit that is healthy only if a container could get its nodes."""
        if not unit.device.health or not (reason := missing_node(self._sysfs, unit, is_live=self._is_live)):
            return unit
        return replace(unit, device=replace(unit.device, health=unhealthy(reason)))

    def _last_units(self, name: str, reason: str) -> list[Unit]:
        """The units a family had when its code last worked, Unhealthy now."""
        ill = unhealthy(_failure(name, reason))
        return [
            replace(unit, device=replace(unit.device, health=ill))
            for unit in self._units.get(name, {}).values()
        ]

    def _log_changes(self, found: Mapping[str, Mapping[str, Unit]], failures: Mapping[str, str]) -> None:
        """Logs what is new: a family that fails, a warning that somebody should know of."""
        for name, reason in failures.items():
            if self._failed.get(name) != reason:
                self.context.log.error("%s", _failure(name, reason))
        for name in self._failed.keys() - failures.keys():
            self.context.log.info("devices of %s can be listed again", name)
        self._failed = failures
        before = self._all_units()
        for units in found.values():
            for unit in units.values():
                last = before.get(unit.device.id)
                if unit.warning and (last is None or last.warning != unit.warning):
                    self.context.log.warning("%s: %s", unit.device.id, unit.warning)

    def _all_units(self) -> dict[str, Unit]:
        return {name: unit for units in self._units.values() for name, unit in units.items()}

    @cached_property
    def _programmer(self) -> Programmer:
        from .programming.programmer import Programmer

        context = self.context
        return Programmer(context.root, context.held, context.log, units=lambda: self._all_units().values())

    def _units_of(self, devices: Sequence[Device]) -> list[Unit]:
        units = self._all_units()
        for device in devices:
            if device.id not in units:
                raise AllocationError(f"{device.id} is gone")
        return [units[device.id] for device in devices]


def _hardware(family: Family, units: Sequence[Unit]) -> set[str]:
    """The directories in sysfs that a family speaks for: of what its units lie on, or as it says itself."""
    taken = set(getattr(family, "taken", ()))
    for unit in units:
        taken.update(unit.hardware)
        taken.update(filter(None, map(pci_path, (*unit.nodes, *(slot.engine for slot in unit.slots)))))
    return taken


def _failure(family: str, reason: str) -> str:
    return f"looking at the FPGAs of {family} failed: {reason}"
