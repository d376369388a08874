"""What a container gets: device nodes, looked up by their numbers when it is allocated, and variables.

No node is ever opened here: those of DFL and OPAE open for one program at a time, and one that stays open
while its card is pulled out can crash the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from devhost.backend import AllocationError, AttributeValue, DeviceNode, Edits
from devhost.backend.sysfs import Sysfs, natural

from .nodes import node
from .options import FpgaUse
from .unit import Kind, Unit

VARIABLES = {"FPGA_PCI_{RESOURCE}": "pciBusID", "FPGA_AFU_{RESOURCE}": "afuId"}
"""Variables with an attribute of each device, in the order of ids; devices that lack it are left out."""

NODES = "FPGA_NODES_{RESOURCE}"
"""The variable with the nodes in the container."""


def edits(sysfs: Sysfs, units: Sequence[Unit], use: FpgaUse, *, is_live: bool) -> Edits:
    """What one container needs to use these units.

    Args:
        is_live: whether the nodes are real ones; in a recorded tree plain files stand for them.

    Raises:
        AllocationError: one cannot be used as it is now.
    """
    ordered = sorted(units, key=lambda unit: natural(unit.device.id))
    paths: dict[str, None] = {}
    for unit in ordered:
        try:
            for place in _places(unit, use):
                paths[node(sysfs, place, is_live=is_live)] = None
        except AllocationError as error:
            raise AllocationError(f"{unit.device.id}: {error.message}") from error
    env = {NODES: ",".join(paths)}
    for variable, attribute in VARIABLES.items():
        if text := _joined(value for unit in ordered for value in _values(unit, attribute)):
            env[variable] = text
    if use.program is not None:
        env.pop("FPGA_AFU_{RESOURCE}", None)  # it will be another one when the container starts
    return Edits(tuple(map(DeviceNode, paths)), env=env)


def lack(sysfs: Sysfs, unit: Unit, *, is_live: bool) -> str:
    """Why a container could not get a unit's own nodes; empty where it could."""
    try:
        for place in unit.nodes:
            node(sysfs, place, is_live=is_live)
    except AllocationError as error:
        return error.message
    return ""


def _places(unit: Unit, use: FpgaUse) -> Iterable[str]:
    """The sysfs directories of all nodes that this use of a unit comes with."""
    kind = unit.device.attributes.get("kind")
    if not unit.nodes and use.program is None:  # a chip that was never programmed has none yet
        hint = ": nothing is programmed in it, which needs an entry with `program`" if unit.slots else ""
        raise AllocationError(f"it has no device node that a container could use{hint}")
    yield from unit.nodes
    if use.development:
        if not unit.development:
            hint = "an accelerator function has none: use kind: region" if kind == Kind.AF else "it has none"
            raise AllocationError(f"development: true asks for the node that programs it; {hint}")
        yield from unit.development
    if use.management:
        if not unit.management:
            raise AllocationError("management: true asks for a management node; it has none here")
        yield from unit.management


def _values(unit: Unit, attribute: str) -> Iterable[AttributeValue | None]:
    if attribute == "pciBusID" and unit.addresses:
        return unit.addresses
    return (unit.device.attributes.get(attribute),)


def _joined(values: Iterable[AttributeValue | None]) -> str:
    return ",".join(str(value) for value in values if value)
