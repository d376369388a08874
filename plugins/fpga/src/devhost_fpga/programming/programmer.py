"""Decides when a region is programmed, and when that is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from logging import Logger

from devhost.backend import AllocationError
from devhost_fpga.manager_state import REBIND, manager_of
from devhost_fpga.model import DeviceKind, FpgaSysfs, Interface, Slot, Unit
from devhost_fpga.options import Program

from . import loader
from .bitstream import Bitstream, name_of, opened
from .loader import ENGINES, Clock, Engines, Loader, Run, label, settled


def check_slots(unit: Unit, program: Program) -> None:
    """Refuses a device that cannot be programmed with any file."""
    if not unit.slots and unit.device.attributes.get("kind") == DeviceKind.CARD:
        raise AllocationError("XRT programs this device from the container (remove `program`)")
    if not unit.slots:
        raise AllocationError("the kernel has no interface to program this device (remove `program`)")
    for slot in unit.slots:
        if not slot.engine:
            raise AllocationError(
                f"the management engine of {label(slot)} is not visible: a virtual function has this port"
            )
        if program.afu_id and not slot.function:
            raise AllocationError(f"the kernel shows no AFU id of {label(slot)} (remove `afuId`)")
        if slot.interface is not Interface.FIRMWARE and not slot.function:
            raise AllocationError(
                f"the kernel shows no AFU id of {label(slot)}, so programming cannot be verified"
            )


def check_fit(sysfs: FpgaSysfs, unit: Unit, image: Bitstream) -> None:
    """Refuses a file that does not fit a device."""
    for slot in unit.slots:
        if slot.interface is Interface.FIRMWARE:
            if image.is_gbs:
                raise AllocationError(
                    "a GBS file is for DFL and OPAE cards, but this device needs a raw image"
                )
            name_of(sysfs, image.path)
        elif not (image.interface_id and image.afu_id):
            raise AllocationError("it is a raw image, so the resource must set `interfaceId` and `afuId`")
        _check_interface(slot, image)


def _check_interface(slot: Slot, image: Bitstream) -> None:
    if not image.interface_id or image.interface_id == slot.interface_id:
        return
    if not slot.interface_id:
        raise AllocationError(
            f"the file is for interface {image.interface_id}, but that of {label(slot)} is unknown"
        )
    raise AllocationError(
        f"the file is for interface {image.interface_id}, but {label(slot)} has {slot.interface_id}"
    )


def check_holders(
    unit: Unit, own: frozenset[str], held: frozenset[str] | None, beside: Iterable[Unit] = ()
) -> None:
    """Refuses to program while another container holds a part of the same FPGA, or it is unknown.

    Claims identify the FPGA: ``fpga:<name>`` is the whole, ``fpga:<name>/…`` a part. ``own`` are the claims
    of all devices that the container has, ``held`` those of all containers; ``None`` while they are not
    known. ``beside`` are other devices that the image affects.
    """
    if held is None:
        raise AllocationError(
            "it is not yet known which containers use its FPGA; the container starts once it is"
        )
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
"""Seconds for one container; the core gives PreStartContainer 25."""

MARGIN = 1.0
"""Seconds that must be left before another port is programmed, and that are reserved to read its id."""


class Programmer:
    """Programs bitstreams. Every method may be called from any thread, and raises ``AllocationError``.

    ``held`` is what containers use, see :meth:`devhost.backend.Context.held`. ``units`` are all units: a
    whole image affects every device of the same FPGA. ``run`` runs the programming process;
    :func:`.loader.run` by default. ``patience`` is seconds for one container.
    """

    def __init__(
        self,
        sysfs: FpgaSysfs,
        held: Callable[[], frozenset[str] | None],
        log: Logger,
        *,
        units: Callable[[], Iterable[Unit]] = tuple,
        run: Run | None = None,
        engines: Engines = ENGINES,
        clock: Clock | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._sysfs = sysfs
        self._held = held
        self._log = log
        self._units = units
        self._engines = engines
        self._clock = clock or Clock()
        self._patience = patience
        self._loader = Loader(sysfs, engines, run or loader.run)

    def check(self, unit: Unit, program: Program) -> None:
        """Refuses a device or file that can never work, before the container gets the device."""
        with _about(unit, program):
            check_slots(unit, program)
            with opened(self._sysfs.prefix, program) as image:
                check_fit(self._sysfs, unit, image)

    def check_device(self, unit: Unit, program: Program) -> None:
        """Refuses a device that cannot be programmed with any file; :meth:`check` reads the file."""
        with _about(unit, program):
            check_slots(unit, program)

    def program(self, units: Sequence[Unit], program: Program) -> None:
        """Programs the file into the devices of one container, except those that already have it.

        Blocks for little more than ``patience`` seconds. ``units`` are all devices of the resource that the
        container has. The error for one that could not be programmed names its programmed ports.
        """
        until = self._clock.now() + self._patience
        own = frozenset(claim for unit in units for claim in unit.device.claims)
        for unit in units:
            with _about(unit, program):
                check_slots(unit, program)
                for engine in dict.fromkeys(slot.engine for slot in unit.slots):
                    with self._engines.locked(engine, until - self._clock.now()):
                        self._program(unit, engine, program, own, until)

    def _program(self, unit: Unit, engine: str, program: Program, own: frozenset[str], until: float) -> None:
        slots = [slot for slot in unit.slots if slot.engine == engine]
        if program.afu_id and all(self._shown(slot, until) == program.afu_id for slot in slots):
            return  # without opening the file
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
            raise AllocationError(
                "there is no time left; programming continues when the container starts again"
            )
        self._loader.load(unit.device.id, slot, program, image, left)
        if slot.function:
            found = settled(self._sysfs, slot.function, until, self._clock)
            if flaw := found.flaw("its AFU id"):
                raise AllocationError(f"it was programmed, but {flaw}")
            if found.id != image.afu_id:
                raise AllocationError(
                    f"it was programmed, but its AFU id is {found.id} instead of {image.afu_id}"
                )
        self._log.info("programmed %s of %s with %s", label(slot), slot.engine, image.path)

    def _holds(self, unit: Unit, slot: Slot, program: Program, image: Bitstream, until: float) -> bool:
        if slot.function:
            return self._shown(slot, until) == image.afu_id
        return self._loader.is_loaded(unit.device.id, slot, program, image)

    def _beside(self, slot: Slot, program: Program) -> list[Unit]:
        """All devices that an image for this slot affects."""
        if program.partial:
            return []
        return [unit for unit in self._units() if any(one.engine == slot.engine for one in unit.slots)]

    def _shown(self, slot: Slot, until: float) -> str:
        """The AFU id of a slot; empty if it shows none.

        Raises ``AllocationError`` if it stayed busy, or will never recover.
        """
        found = settled(self._sysfs, slot.function, until - MARGIN, self._clock, lambda: self._stuck(slot))
        if found.is_busy:
            if stuck := self._stuck(slot):
                raise AllocationError(f"{label(slot)}: {stuck}")
            raise AllocationError(
                f"{label(slot)} has been busy with programming for too long; if that continues, {REBIND}"
            )
        return found.id

    def _stuck(self, slot: Slot) -> str:
        return manager_of(self._sysfs, slot.engine).stuck


@contextmanager
def _about(unit: Unit, program: Program) -> Iterator[None]:
    """Adds the device and the file to errors."""
    try:
        yield
    except AllocationError as error:
        raise AllocationError(
            f"{unit.device.id} cannot be programmed with {program.bitstream}: {error.message}"
        ) from error
