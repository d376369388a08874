"""What a container gets: device nodes, looked up by number at Allocate, and variables.

Nothing here opens a node: only one program at a time can open those of DFL and OPAE, and a node that stays
open while its card is removed can crash the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from devhost.backend import AllocateRequest, AllocationError, AttributeValue, DeviceNode, Edits, claim
from devhost.backend.sysfs import Sysfs, is_regular, natural, node_number

from .model import DeviceKind, Unit
from .options import DEVELOPMENT, MANAGEMENT, FpgaUse
from .options import NODES as NODES_USE

_LINK = re.compile(r"(?:\.\./)?([\w-][\w.-]*(/[\w-][\w.-]*)*)")
"""Targets of the links in ``/dev/char``."""

_NUMBER = re.compile(r"[0-9]{1,7}:[0-9]{1,7}")


def node(sysfs: Sysfs, place: str, *, is_live: bool) -> str:
    """The path in ``/dev`` of the node of the device at ``place`` in sysfs.

    This is the name that the kernel gives; if another device has it, the target of udev's link in
    ``/dev/char``, which has one for each number. In a recorded tree, not ``is_live``, plain files represent
    nodes. Raises ``AllocationError`` if the device has no node.
    """
    return numbered(sysfs, place, is_live=is_live)[0]


def numbered(sysfs: Sysfs, place: str, *, is_live: bool) -> tuple[str, str]:
    """The same path, with the number of the node: ``major:minor``."""
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
        raise AllocationError(f"{usual} is {found or 'not a device node'}, expected c{number}")
    raise AllocationError(f"{usual} does not exist, expected c{number}")


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
    """What one container needs to use these units, those of the devices of ``request``."""
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
    """Why a container cannot get the nodes of a unit; empty if it can."""
    try:
        for place in unit.nodes:
            node(sysfs, place, is_live=is_live)
    except AllocationError as error:
        return error.message
    return ""


def _places(unit: Unit, use: FpgaUse) -> Iterable[str]:
    """The sysfs directories of all nodes that a container gets with a unit."""
    for what, reason in unusable_for(unit).items():
        if what in use.uses:
            raise AllocationError(reason)
    yield from unit.nodes
    if use.development:
        yield from unit.development
    if use.management:
        yield from unit.management


def unusable_for(unit: Unit) -> dict[str, str]:
    """What a unit lacks for some resources: the reason by the name of the use (``Device.unusable_for``)."""
    found = {}
    if not unit.nodes:  # a chip has none until it is programmed
        hint = " until it is programmed (use an entry with `program`)" if unit.slots else ""
        found[NODES_USE] = f"it has no device node that a container could use{hint}"
    if not unit.development:
        is_af = unit.device.attributes.get("kind") == DeviceKind.AF
        has_none = "an accelerator function has none (use kind: region)" if is_af else "it has none"
        found[DEVELOPMENT] = f"development: true needs the node of the management engine, and {has_none}"
    if not unit.management:
        found[MANAGEMENT] = "management: true needs a management node, and it has none here"
    return found


def _values(unit: Unit, attribute: str) -> Iterable[AttributeValue | None]:
    if attribute == "pciBusID" and unit.addresses:
        return unit.addresses
    return (unit.device.attributes.get(attribute),)


def _joined(values: Iterable[AttributeValue | None]) -> str:
    return ",".join(str(value) for value in values if value)
