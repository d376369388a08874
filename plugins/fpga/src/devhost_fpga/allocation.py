"""What a container gets: device nodes, looked up by number when it starts, and variables.

No node is ever opened here: those of DFL and OPAE open for one program at a time, and one that stays open
while its card is pulled out can crash the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from devhost.backend import AllocateRequest, AllocationError, AttributeValue, DeviceNode, Edits, claim
from devhost.backend.sysfs import Sysfs, is_regular, natural, node_number

from .model import Kind, Unit
from .options import FpgaUse

_LINK = re.compile(r"(?:\.\./)?([\w-][\w.-]*(/[\w-][\w.-]*)*)")
"""What links in ``/dev/char`` lead to."""

_NUMBER = re.compile(r"[0-9]{1,7}:[0-9]{1,7}")


def node(sysfs: Sysfs, place: str, *, is_live: bool) -> str:
    """The node in ``/dev`` of the device at ``place`` in sysfs.

    The kernel's own name for it comes first; where that is another device's, udev's list of all nodes by
    number, ``/dev/char``, has the right one if anything has.

    Args:
        is_live: whether the nodes are real ones; in a recorded tree plain files stand for them.

    Raises:
        AllocationError: there is none.
    """
    return numbered(sysfs, place, is_live=is_live)[0]


def numbered(sysfs: Sysfs, place: str, *, is_live: bool) -> tuple[str, str]:
    """That node, with its number: ``major:minor``.

    Raises:
        AllocationError: there is none.
    """
    if not sysfs.exists(place):
        raise AllocationError("it is gone")
    number = sysfs.text(f"{place}/dev")
    if not _NUMBER.fullmatch(number):
        raise AllocationError(f"the kernel made no device node for {place.rpartition('/')[2]}")
    usual = sysfs.node(place, f"/dev/{place.rpartition('/')[2]}")
    if _is(sysfs, usual, number, is_live=is_live):
        return usual, number
    link = _LINK.fullmatch(sysfs.link(f"/dev/char/{number}"))
    if link and _is(sysfs, f"/dev/{link[1]}", number, is_live=is_live):
        return f"/dev/{link[1]}", number
    found = node_number(sysfs.prefix + usual)
    if found or sysfs.exists(usual):
        raise AllocationError(f"{usual} is {found or 'no device node'}, and not c{number}")
    raise AllocationError(f"{usual} does not exist; it should be c{number}")


def node_claims(sysfs: Sysfs, places: Iterable[str]) -> frozenset[str]:
    """Claims of the nodes of the devices at ``places``, by the names that the kernel gives them."""
    return frozenset(claim.node(path) for path in map(sysfs.node, places) if path)


def _is(sysfs: Sysfs, path: str, number: str, *, is_live: bool) -> bool:
    found = node_number(sysfs.prefix + path)
    return found == f"c{number}" or (not found and not is_live and is_regular(sysfs.prefix + path))


_PCI, _AFU = "FPGA_PCI", "FPGA_AFU"

VARIABLES = {_PCI: "pciBusID", _AFU: "afuId"}
"""Prefixes of variables, and the attribute of each device that they list; devices without it are omitted."""

NODES = "FPGA_NODES"
"""Prefix of the variable that lists the nodes in the container."""


def edits(sysfs: Sysfs, units: Sequence[Unit], request: AllocateRequest, *, is_live: bool) -> Edits:
    """What one container needs to use these units.

    Args:
        units: those of the devices of ``request``.
        is_live: whether the nodes are real; in a recorded tree, plain files represent them.

    Raises:
        AllocationError: a unit cannot be used as it is now.
    """
    use: FpgaUse = request.options
    ordered = sorted(units, key=lambda unit: natural(unit.device.id))
    paths: dict[str, None] = {}
    for unit in ordered:
        try:
            for place in _places(unit, use):
                paths[node(sysfs, place, is_live=is_live)] = None
        except AllocationError as error:
            raise AllocationError(f"{unit.device.id}: {error.message}") from error
    env = {request.variable(NODES): ",".join(paths)}
    for prefix, attribute in VARIABLES.items():
        if prefix == _AFU and use.program is not None:
            continue  # programming before the container starts changes it
        if text := _joined(value for unit in ordered for value in _values(unit, attribute)):
            env[request.variable(prefix)] = text
    return Edits(tuple(map(DeviceNode, paths)), env=env)


def missing_node(sysfs: Sysfs, unit: Unit, *, is_live: bool) -> str:
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
