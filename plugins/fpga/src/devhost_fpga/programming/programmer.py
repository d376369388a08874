"""When a region is programmed, when nothing is done, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import Logger
from pathlib import Path

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs
from devhost_fpga.busy import REBIND
from devhost_fpga.unit import Slot, Unit

from .bitstream import Bitstream, opened
from .engines import ENGINES, Engines
from .fitting import check_fit, check_holders, check_slots
from .loading import Loader, label
from .program import Program
from .reading import Clock, manager_of, settled
from .running import Run, run

PATIENCE = 20.0
"""Seconds for all that one container waits for; the core gives PreStartContainer 25."""

MARGIN = 1.0
"""Seconds that must be left to begin with one more port, and that are kept to read its id afterwards."""


class Programmer:
    """Programs what resources say. Every method may be called from any thread.

    Args:
        root: what stands for ``/``.
        held: what containers use, see :meth:`devhost.backend.Context.held`.
        log: where it is told what was programmed.
        units: all that exist: a whole image concerns every device of the same FPGA.
        run: runs the process that programs.
        engines: what goes on with them.
        clock: time.
    """

    def __init__(
        self,
        root: Path,
        held: Callable[[], frozenset[str] | None],
        log: Logger,
        *,
        units: Callable[[], Iterable[Unit]] = tuple,
        run: Run = run,
        engines: Engines = ENGINES,
        clock: Clock | None = None,
    ) -> None:
        self._sysfs = Sysfs(root)
        self._held = held
        self._log = log
        self._units = units
        self._engines = engines
        self._clock = clock or Clock()
        self._loader = Loader(self._sysfs, engines, run)

    def check(self, unit: Unit, program: Program) -> None:
        """Refuses what can never work, before the container gets the device.

        Raises:
            AllocationError: the device cannot be programmed at all, or not with this file.
        """
        with _about(unit, program):
            check_slots(unit, program)
            with opened(self._sysfs.prefix, program) as image:
                check_fit(self._sysfs, unit, image)

    def program(self, units: Sequence[Unit], program: Program) -> None:
        """Sees to it that the devices of one container hold the file, and does nothing where they do.

        Blocks for :data:`PATIENCE` seconds and a little more at most.

        Args:
            units: all that the container has of the resource.

        Raises:
            AllocationError: a device does not hold it; the text says which of its ports do.
        """
        until = self._clock.now() + PATIENCE
        own = frozenset(claim for unit in units for claim in unit.device.claims)
        for unit in units:
            with _about(unit, program):
                check_slots(unit, program)
                for engine in dict.fromkeys(slot.engine for slot in unit.slots):
                    with self._engines.alone(engine, until - self._clock.now()):
                        self._see_to(unit, engine, program, own, until)

    def _see_to(self, unit: Unit, engine: str, program: Program, own: frozenset[str], until: float) -> None:
        slots = [slot for slot in unit.slots if slot.engine == engine]
        if program.afu_id and all(self._shown(slot, until) == program.afu_id for slot in slots):
            return  # the file is not even needed
        with opened(self._sysfs.prefix, program) as image:
            check_fit(self._sysfs, unit, image)
            missing = [slot for slot in slots if not self._holds(unit, slot, program, image, until)]
            done = [label(slot) for slot in slots if slot not in missing]
            for slot in missing:
                check_holders(unit, own, self._held(), self._beside(slot, program))
                try:
                    self._fill(unit, slot, program, image, until)
                except AllocationError as error:
                    already = f"; already programmed: {', '.join(done)}" if done else ""
                    raise AllocationError(f"{label(slot)}: {error.message}{already}") from error
                done.append(label(slot))

    def _fill(self, unit: Unit, slot: Slot, program: Program, image: Bitstream, until: float) -> None:
        left = until - self._clock.now() - MARGIN
        if left < MARGIN:
            raise AllocationError("there is no time left; it goes on when the container is started again")
        self._loader.load(unit.device.id, slot, program, image, left)
        if slot.function:
            found = settled(self._sysfs, slot.function, until, self._clock)
            if flaw := found.flaw("its AFU id"):
                raise AllocationError(f"it was programmed, but {flaw}")
            if found.id != image.afu_id:
                raise AllocationError(
                    f"it was programmed, but its AFU id is {found.id} instead of {image.afu_id}"
                )
        self._log.info("%s of %s programmed with %s", label(slot), slot.engine, image.path)

    def _holds(self, unit: Unit, slot: Slot, program: Program, image: Bitstream, until: float) -> bool:
        if slot.function:
            return self._shown(slot, until) == image.afu_id
        return self._loader.is_loaded(unit.device.id, slot, program, image)

    def _beside(self, slot: Slot, program: Program) -> list[Unit]:
        """The devices that an image for this slot concerns too."""
        if program.partial:
            return []
        return [unit for unit in self._units() if any(one.engine == slot.engine for one in unit.slots)]

    def _shown(self, slot: Slot, until: float) -> str:
        """The id of what a slot holds, empty where it shows none.

        Raises:
            AllocationError: it was busy all the time, or will be for ever.
        """
        found = settled(self._sysfs, slot.function, until - MARGIN, self._clock, lambda: self._stuck(slot))
        if found.is_busy:
            if stuck := self._stuck(slot):
                raise AllocationError(f"{label(slot)}: {stuck}")
            raise AllocationError(
                f"{label(slot)} is being reconfigured, and was so for too long; if that lasts, {REBIND}"
            )
        return found.id

    def _stuck(self, slot: Slot) -> str:
        return manager_of(self._sysfs, slot.engine).stuck


@contextmanager
def _about(unit: Unit, program: Program) -> Iterator[None]:
    """Says of what it was that something was refused."""
    try:
        yield
    except AllocationError as error:
        raise AllocationError(
            f"{unit.device.id} cannot be programmed with {program.bitstream}: {error.message}"
        ) from error
