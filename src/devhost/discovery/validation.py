"""Validates the devices that a backend returns: types, ids and declared attributes.

A third-party backend may return anything. Valid devices can be planned, compared, listed and shown without
further type checks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from operator import is_not
from typing import Any

from devhost.backend import Attribute, MissingDriver, claim
from devhost.backend.errors import cut, one_line, printable
from devhost.backend.frozen import frozen
from devhost.backend.model import PURPOSE, Device, sound_health, sound_reason
from devhost.planning.tokens import id_flaw

from .health import is_health

NUMA_LIMIT = 1024
"""Limit of NUMA node ids (``CONFIG_NODES_SHIFT`` of Linux is at most 10)."""

_LARGEST = (1 << 64) - 1
"""The largest number that hardware has; Python does not print one of more than 4300 digits."""

_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")

_VALUE_TYPES = {str: (str,), int: (int,), bool: (bool,), list: (tuple,)}


@frozen(slots=True)
class RefusedDevice:
    """An invalid device that a backend returned. ``device`` is its id, or another description."""

    device: str
    reason: str


def valid_devices(
    returned: Sequence[object],
    declared: Mapping[str, Attribute],
    known: Mapping[str, Device],
    kinds: Collection[str] = (),
) -> tuple[Mapping[str, Device], tuple[RefusedDevice, ...]]:
    """Separates what a backend returned into valid devices, by id, and refused ones.

    ``declared`` are the backend's ``attributes``, ``kinds`` its ``claim_kinds``. Devices that are equal to
    those of the last scan, ``known``, stay the same objects, so that all later comparisons are by identity.
    """
    if (others := _others(returned, declared, known, kinds)) is not None:
        return ({**known, **others} if others else known), ()
    good: dict[str, Device] = {}
    refused: list[RefusedDevice] = []
    for device in returned:
        before = known.get(device.id) if isinstance(device, Device) and type(device.id) is str else None
        flaw = "" if before is not None and before is device else flaw_of(device, declared, kinds)
        if flaw or not isinstance(device, Device):
            refused.append(RefusedDevice(name_of(device), flaw))
        elif device.id in good:
            refused.append(RefusedDevice(name_of(device), "another device has the same id"))
        else:
            good[device.id] = _canonical(device, before)
    return good, tuple(refused)


def _others(
    returned: Sequence[object],
    declared: Mapping[str, Attribute],
    known: Mapping[str, Device],
    kinds: Collection[str],
) -> dict[str, Device] | None:
    """The devices that are other objects; ``None`` if that is not all that has changed since the last scan.

    Usually the others are few, and come in the same order. Then Python executes nothing for each device.
    """
    if len(returned) != len(known):
        return None
    pairs = compress(zip(returned, known.values(), strict=True), map(is_not, returned, known.values()))
    others: dict[str, Device] = {}
    for device, before in pairs:
        if not isinstance(device, Device) or type(device.id) is not str or device.id != before.id:
            return None
        if flaw_of(device, declared, kinds):
            return None
        others[device.id] = _canonical(device, before)
    return others


def _canonical(device: Device, before: Device | None) -> Device:
    if before is device:
        return device
    if (health := sound_health(device.health)) is not device.health:
        device = replace(device, health=health)
    if device.unusable_for:
        reasons = {use: sound_reason(why) for use, why in device.unusable_for.items()}
        if reasons != device.unusable_for:
            device = replace(device, unusable_for=reasons)
    if odd := {name for name, value in device.attributes.items() if not _is_plain(name, value)}:
        # Text from hardware that is more than text: it would reach variables, paths and other programs.
        plain = {name: value for name, value in device.attributes.items() if name not in odd}
        left_out = device.left_out | odd
        device = replace(device, attributes=plain, inherited=device.inherited - odd, left_out=left_out)
    if device.withheld and (reason := sound_reason(device.withheld)) != device.withheld:
        device = replace(device, withheld=reason)
    if device.reserved and (reason := sound_reason(device.reserved)) != device.reserved:
        device = replace(device, reserved=reason)
    if any(node < 0 for node in device.numa_nodes):
        # The kernel's -1 means "no node"; the kubelet would treat it as a node.
        device = replace(device, numa_nodes=tuple(node for node in device.numa_nodes if node >= 0))
    return before if before is not None and before == device else device


def _is_plain(name: str, value: object) -> bool:
    """Whether an attribute has no character that does not print: no line break, no control character."""
    texts = value if isinstance(value, tuple) else (value,)
    return name.isprintable() and all(text.isprintable() for text in texts if isinstance(text, str))


def flaw_of(device: object, declared: Mapping[str, Attribute], kinds: Collection[str] = ()) -> str:
    """Why a value that a backend returned is not a valid device; empty if it is."""
    try:
        return _flaw(device, declared, kinds)
    except Exception as error:  # noqa: BLE001 - a third-party mapping may raise on any access
        return f"reading its fields failed: {one_line(error)}"


def name_of(device: object) -> str:
    """The id or another description of a device, shortened for the log."""
    try:
        name = str(device.id) if isinstance(device, Device) else repr(device)
    except Exception:  # noqa: BLE001 - a third-party object may raise on any access
        name = type(device).__name__
    return cut(printable(name), 80)


def _flaw(device: object, declared: Mapping[str, Attribute], kinds: Collection[str]) -> str:
    if not isinstance(device, Device):
        return f"the backend returned {type(device).__name__}, not Device"
    given: Any = device  # the fields may not have the types of their annotations
    if not isinstance(given.id, str):
        return f"its id is {type(given.id).__name__}, not a string"
    if not given.id:
        return "it has no id"
    if flaw := id_flaw(given.id):
        return f"its id {flaw}"
    if not (isinstance(given.attributes, Mapping) and is_health(given.health)):
        return "its attributes are not a mapping, or its health is not a Health of true or false and a reason"
    if not (isinstance(given.claims, frozenset) and isinstance(given.part_of, frozenset)):
        return "its claims or part_of are not a frozenset"
    flaws = [flaw for text in (*given.claims, *given.part_of) if (flaw := claim.flaw(text, kinds))]
    if flaws:
        return f"its {min(flaws)}"  # a set has no order
    if not isinstance(given.numa_nodes, tuple) or not all(map(_is_node, given.numa_nodes)):
        return f"its numa_nodes are not a tuple of whole numbers below {NUMA_LIMIT}"
    if not _strings(given.pcie_path):
        return "its pcie_path is not a tuple of strings"
    if not isinstance(given.withheld, str | None):
        return "its withheld is neither a string nor None"
    if not isinstance(given.reserved, str | None):
        return "its reserved is neither a string nor None"
    if given.reserved and not _is_plain(PURPOSE, given.attributes.get(PURPOSE, "\0")):
        return f"it is reserved, but has no attribute {PURPOSE!r} of printable text"
    if not isinstance(given.unusable_for, Mapping) or (
        given.unusable_for
        and not all(isinstance(text, str) for pair in given.unusable_for.items() for text in pair)
    ):
        return "its unusable_for is not a mapping of strings to strings"
    if not (isinstance(given.inherited, frozenset) and given.inherited <= given.attributes.keys()):
        return "its inherited is not a frozenset of names of its attributes"
    if not _strings(given.former_ids):
        return "its former_ids are not a tuple of strings"
    if not (isinstance(given.left_out, frozenset) and all(isinstance(name, str) for name in given.left_out)):
        return "its left_out is not a frozenset of strings"
    if not isinstance(given.divided, bool) or (given.divided and not given.withheld):
        return "its divided is not a bool, or it is not withheld"
    for field in ("counters", "consumes"):
        if not _counts(getattr(given, field)):
            return f"its {field} are not a mapping of DNS labels to whole numbers above zero"
    for name, value in given.attributes.items():
        if flaw := _attribute_flaw(name, value, declared):
            return flaw
    return ""


def _attribute_flaw(name: object, value: object, declared: Mapping[str, Attribute]) -> str:
    if not isinstance(name, str):
        return f"attribute name {name!r} is not a string"
    attribute = declared.get(name) or _family(name, declared)
    if attribute is None:
        return f"attribute {name!r} is not declared by the backend"
    if not isinstance(value, _VALUE_TYPES.get(attribute.type, (tuple,))) or (
        attribute.type is int and isinstance(value, bool)
    ):
        if attribute.type is list:
            return f"attribute {name!r} is {type(value).__name__}, and should be a tuple of strings"
        return f"attribute {name!r} is {type(value).__name__}, declared as {attribute.type.__name__}"
    if isinstance(value, int) and not -_LARGEST <= value <= _LARGEST:
        return f"attribute {name!r} is a number of more than 64 bits"
    if attribute.type is list and not _strings(value):
        return f"attribute {name!r} has members that are not strings"
    if attribute.words:
        values = value if isinstance(value, tuple) else (value,)
        if odd := [one for one in values if one not in attribute.words]:
            return f"attribute {name!r} is {odd[0]!r}, declared as one of {', '.join(attribute.words)}"
    return ""


def missing_driver_flaw(found: object, declared: Mapping[str, Attribute]) -> str:
    """Why what a backend returned for hardware without a driver is not valid; empty if it is."""
    if not isinstance(found, MissingDriver):
        return "something that is not a MissingDriver"
    given: Any = found
    if not (isinstance(given.subject, str) and isinstance(given.reason, str)):
        return "a MissingDriver whose subject or reason is not a string"
    if not isinstance(given.attributes, Mapping) or not isinstance(given.makes_device, bool):
        return "a MissingDriver whose attributes are not a mapping, or whose makes_device is not a bool"
    flaws = (_attribute_flaw(name, value, declared) for name, value in given.attributes.items())
    return next((f"a MissingDriver whose {flaw}" for flaw in flaws if flaw), "")


def _is_node(node: object) -> bool:
    return type(node) is int and node < NUMA_LIMIT


def _counts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _LABEL.fullmatch(name) and type(amount) is int and 0 < amount < 2**63
        for name, amount in value.items()
    )


def _strings(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(member, str) for member in value)


def _family(name: str, declared: Mapping[str, Attribute]) -> Attribute | None:
    for key, attribute in declared.items():
        if key.endswith("*") and name.startswith(key[:-1]):
            return attribute
    return None
