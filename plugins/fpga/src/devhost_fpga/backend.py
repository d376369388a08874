"""The backend: combines the devices of all driver families."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
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
from devhost.backend.incident import Incident
from devhost.backend.sysfs import is_live, pci_path

from .allocation import NODES, VARIABLES, edits, missing_node, unusable_for
from .attributes import ATTRIBUTES
from .discovery import FAMILIES, DflCards, make
from .model import CanExclude, CanProbe, Family, FpgaSysfs, Unit
from .options import FpgaOptions, FpgaUse
from .watch import Watch

if TYPE_CHECKING:
    from .programming.loader import Run
    from .programming.programmer import Programmer


class Fpga(Backend):
    """FPGAs: accelerator functions, regions and cards. ``run`` runs the process that programs regions."""

    name = "fpga"
    Options = FpgaOptions
    ResourceOptions = FpgaUse
    attributes = ATTRIBUTES
    variables = (f"{NODES}_*", *(f"{prefix}_*" for prefix in VARIABLES))
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

    def __init__(
        self,
        options: FpgaOptions,
        context: Context,
        *,
        sysfs: FpgaSysfs | None = None,
        run: Run | None = None,
    ) -> None:
        super().__init__(options, context)
        self._sysfs = sysfs or FpgaSysfs(context.root)
        self._run = run
        self._is_live = is_live(context.root)
        self._dfl_cards = DflCards(self._sysfs)
        # Replaced, never modified: probe(), allocate() and prepare() read them on other threads.
        self._families: Mapping[str, Family] = {}
        self._units: Mapping[str, Mapping[str, Unit]] = {}
        self._scan_failures: defaultdict[str, Incident] = defaultdict(Incident)
        self._probe_failures: defaultdict[str, Incident] = defaultdict(Incident)
        self._watch = Watch(self._sysfs, context)

    def discover(self) -> list[Device]:
        """Every FPGA, also the unhealthy ones. Raises ``OSError`` if no family can list sysfs."""
        found: dict[str, Mapping[str, Unit]] = {}
        errors: list[Exception] = []
        taken: set[str] = set()
        names: set[str] = set()
        for name, family in self._present().items():
            try:
                units = self._scan(family, taken, names)
                if self._scan_failures[name].over():
                    self.context.log.info("scans of %s FPGAs succeed again", name)
            except Exception as error:  # noqa: BLE001 - a failing family must not affect the others
                errors.append(error)
                units = self._last_units(name, error)
            taken.update(_hardware(units))
            found[name] = {unit.device.id: unit for unit in self._settled(units)}
            names.update(found[name])
        if errors and len(errors) == len(found):
            raise errors[0]
        self._log_warnings(found.values())
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
        """What a container needs to use these FPGAs."""
        units, program = self._units_of(request.devices), request.options.program
        if program is not None:
            for unit in units:
                self._programmer.check(unit, program)
        return edits(self._sysfs, units, request, is_live=self._is_live)

    def prepare(self, request: AllocateRequest) -> None:
        """Programs the regions that a container is about to use, if its resource names a bitstream."""
        if request.options.program is not None:
            self._programmer.program(self._units_of(request.devices), request.options.program)

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The health of FPGAs by checks that are too expensive for each scan."""
        wanted = {device.id for device in devices}
        verdicts: dict[str, Health] = {}
        for name, family in self._families.items():
            own = [unit for unit in self._units.get(name, {}).values() if unit.device.id in wanted]
            if not own or not isinstance(family, CanProbe):
                continue
            try:
                verdicts.update(family.probe(own))
            except Exception as error:  # noqa: BLE001 - as in discover()
                reason = _failure(name, error)
                if self._probe_failures[name].news(reason):
                    self.context.log.warning("%s", reason)
                verdicts.update((unit.device.id, unhealthy(reason)) for unit in own)
            else:
                if self._probe_failures[name].over():
                    self.context.log.info("health checks of %s FPGAs succeed again", name)
        return verdicts

    def watch(self) -> AsyncGenerator[Event, None]:
        """Changes without a uevent: ids of regions that containers program, states, errors."""
        return self._watch.events()

    def _present(self) -> Mapping[str, Family]:
        """The families whose drivers are loaded, or were at an earlier scan."""
        for name, is_here in FAMILIES.items():
            if name not in self._families and is_here(self._sysfs):
                self._families = {**self._families, name: make(name, self._sysfs, self.options)}
        return {name: self._families[name] for name in FAMILIES if name in self._families}

    def _scan(self, family: Family, taken: Collection[str], names: Collection[str]) -> list[Unit]:
        """The units of a family; an unchanged unit stays the same object."""
        if isinstance(family, CanExclude):
            family.exclude(taken)
        before = self._all_units()
        found = (unit for unit in family.scan() if unit.device.id not in names)
        units = [self._with_uses(self._with_node_health(unit)) for unit in found]
        return [before[unit.device.id] if before.get(unit.device.id) == unit else unit for unit in units]

    def _settled(self, units: Iterable[Unit]) -> Iterator[Unit]:
        """The units without those that went during the scan, which would have another id, read half-way.

        If only its nodes went, as in a reset, a unit stays as it was last seen, and is unhealthy. The nodes
        of a region of the kernel's own classes, which has no ``hardware``, go as it is programmed.
        """
        before, exists = self._all_units(), self._sysfs.exists
        for unit in units:
            if all(map(exists, unit.nodes)):
                yield unit
            elif not unit.hardware:
                yield self._with_node_health(unit)
            elif (last := before.get(unit.device.id)) and any(map(exists, unit.hardware)):
                yield self._with_node_health(last)

    def _with_node_health(self, unit: Unit) -> Unit:
        """The unit, unhealthy if a container cannot get its nodes."""
        if not unit.device.health or not (reason := missing_node(self._sysfs, unit, is_live=self._is_live)):
            return unit
        return replace(unit, device=replace(unit.device, health=unhealthy(reason)))

    def _with_uses(self, unit: Unit) -> Unit:
        """The unit, with what it cannot be used for."""
        reasons = unusable_for(unit)
        for entry in self.context.entries:
            program = entry.program if isinstance(entry, FpgaUse) else None
            if program is not None and not unit.is_busy:
                try:
                    self._programmer.check_device(unit, program)
                except AllocationError as error:
                    reasons[program.use] = error.message
        return replace(unit, device=replace(unit.device, unusable_for=reasons)) if reasons else unit

    def _last_units(self, name: str, error: Exception) -> list[Unit]:
        """The units that a family found when it last succeeded, now unhealthy."""
        reason = _failure(name, error)
        if self._scan_failures[name].news(reason):
            self.context.log.error("%s", reason)
        return [
            replace(unit, device=replace(unit.device, health=unhealthy(reason)))
            for unit in self._units.get(name, {}).values()
        ]

    def _log_warnings(self, found: Iterable[Mapping[str, Unit]]) -> None:
        before = self._all_units()
        for units in found:
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
        return Programmer(
            self._sysfs, context.held, context.log, units=lambda: self._all_units().values(), run=self._run
        )

    def _units_of(self, devices: Sequence[Device]) -> list[Unit]:
        units = self._all_units()
        for device in devices:
            if device.id not in units:
                raise AllocationError(f"{device.id} is gone")
        return [units[device.id] for device in devices]


def _hardware(units: Sequence[Unit]) -> set[str]:
    """The directories in sysfs that belong to these units."""
    taken: set[str] = set()
    for unit in units:
        taken.update(unit.hardware)
        taken.update(filter(None, map(pci_path, (*unit.nodes, *(slot.engine for slot in unit.slots)))))
    return taken


def _failure(family: str, error: Exception) -> str:
    return f"reading the {family} FPGAs failed: {one_line(error)}"
