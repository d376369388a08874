"""When a region is programmed, when nothing is done, and when it is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import Logger
from pathlib import Path

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs
from devhost_fpga.manager_state import REBIND
from devhost_fpga.model import Interface, Kind, Slot, Unit, read
from devhost_fpga.options import Program

from .bitstream import Bitstream, name_of, opened
from .loader import ENGINES, Clock, Engines, Loader, Read, Run, label, manager_of, run, settled


def check_slots(unit: Unit, program: Program) -> None:
    """Refuses a device that nothing can be programmed into, whatever the file.

    Raises:
        AllocationError: always for as long as the device is what it is.
    """
    if not unit.slots and unit.device.attributes.get("kind") == Kind.CARD:
        raise AllocationError("XRT programs this device itself, from within the container: remove `program`")
    if not unit.slots:
        raise AllocationError("the kernel gives no way to program this device: remove `program`")
    for slot in unit.slots:
        if not slot.engine:
            raise AllocationError(f"what programs {label(slot)} is out of sight: it is a virtual function's")
        if program.afu_id and not slot.function:
            raise AllocationError(f"the kernel tells no AFU id of {label(slot)}: remove `afuId`")
        if slot.interface is not Interface.FIRMWARE and not slot.function:
            raise AllocationError(f"nothing shows the AFU id of {label(slot)}, so nothing could be verified")


def check_fit(sysfs: Sysfs, unit: Unit, image: Bitstream) -> None:
    """Refuses a file that is not for a device.

    Raises:
        AllocationError: the text says what differs.
    """
    for slot in unit.slots:
        if slot.interface is Interface.FIRMWARE:
            if image.is_gbs:
                raise AllocationError("a GBS file is for DFL and OPAE cards, this device takes raw images")
            name_of(sysfs, image.path)
        elif not (image.interface_id and image.afu_id):
            raise AllocationError("it is a raw image, so the resource must say `interfaceId` and `afuId`")
        _check_interface(slot, image)


def _check_interface(slot: Slot, image: Bitstream) -> None:
    if not image.interface_id or image.interface_id == slot.interface_id:
        return
    if not slot.interface_id:
        raise AllocationError(
            f"the file is for interface {image.interface_id}, and that of {label(slot)} is not known"
        )
    raise AllocationError(
        f"the file is for interface {image.interface_id}, and {label(slot)} has {slot.interface_id}"
    )


def check_holders(
    unit: Unit, own: frozenset[str], held: frozenset[str] | None, beside: Iterable[Unit] = ()
) -> None:
    """Refuses while another container holds any part of the same FPGA.

    What is the same FPGA is told by the claims: ``fpga:<which>`` is the whole, ``fpga:<which>/…`` a part.

    Args:
        own: claims of all devices that the container has.
        held: those of all containers; ``None`` while they are not known.
        beside: other devices that the image concerns, whatever they claim.

    Raises:
        AllocationError: another process does, or might.
    """
    if held is None:
        raise AllocationError("which containers use its FPGA is not yet known; it is programmed once it is")
    wholes = {claim.partition("/")[0] for claim in unit.device.claims if claim.startswith("fpga:")}
    theirs = held - own
    for claim in sorted(theirs):
        whole, _, part = claim.partition("/")
        if whole in wholes:
            raise AllocationError(f"another container uses {part or 'the whole'} of the same FPGA")
    for other in beside:
        if not theirs.isdisjoint(other.device.claims):
            raise AllocationError(f"another container uses {other.device.id} of the same FPGA")


PATIENCE = 20.0
"""Seconds for all that one container waits for; the core gives PreStartContainer 25."""

MARGIN = 1.0
"""Seconds that must be left to begin with one more port, and that are kept to read its id afterwards."""


class Programmer:
    """Programs what resources say. Every method may be called from any thread.

    Args:
        root: what stands for ``/``.
        held: what containers use, see :meth:`devhost.backend.Context.held`.
        log: gets what was programmed.
        units: all that exist: a whole image concerns every device of the same FPGA.
        run: runs the process that programs.
        engines: what goes on with them.
        clock: time.
        patience: seconds for all that one container waits for.
        read: reads a file of a driver.
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
        patience: float = PATIENCE,
        read: Read = read,
    ) -> None:
        self._sysfs = Sysfs(root)
        self._held = held
        self._log = log
        self._units = units
        self._engines = engines
        self._clock = clock or Clock()
        self._patience = patience
        self._read = read
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

        Blocks for ``patience`` seconds and a little more at most.

        Args:
            units: all that the container has of the resource.

        Raises:
            AllocationError: a device does not hold it; the text says which of its ports do.
        """
        until = self._clock.now() + self._patience
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
            found = settled(self._sysfs, slot.function, until, self._clock, read=self._read)
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
        found = settled(
            self._sysfs, slot.function, until - MARGIN, self._clock, lambda: self._stuck(slot), self._read
        )
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
