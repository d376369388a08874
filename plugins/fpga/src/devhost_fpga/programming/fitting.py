"""What is refused before anything is touched: a file that does not fit, a region that somebody else uses."""

from __future__ import annotations

from collections.abc import Iterable

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs
from devhost_fpga.unit import Interface, Kind, Slot, Unit

from .bitstream import Bitstream
from .firmware import name_of
from .loading import label
from .program import Program


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
        AllocationError: somebody else does, or might.
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
