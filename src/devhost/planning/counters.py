"""Shared counters: what keeps a scheduler from giving two devices that exclude each other (KEP-4815). Pure.

Each thing that one device claims, and that others claim or are part of, is a counter. It counts the parts:
one takes 1 of it, a device that claims the whole takes all. The counters of devices that have something in
common are one set, so a device needs only that set. What backends state (``Device.counters``) is added to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from devhost.backend.model import Device

from .claims import binds_pod
from .naming import slug

PER_SET = 32
"""Counters in a set at most, by the limits of ``ResourceSlice`` in ``resource.k8s.io/v1``."""

TOO_MANY = f"more than {PER_SET} counters would be needed to keep them apart"

Amounts = Mapping[str, int]
"""How much of each counter, by its name."""


class CounterSet(NamedTuple):
    """A set of counters: how much there is, and what each device takes of it."""

    name: str
    most: Amounts
    taken: Mapping[str, Amounts]


class _Thing(NamedTuple):
    """The devices that have a thing: those that claim it, and those that are part of it."""

    wholes: tuple[str, ...]
    parts: tuple[str, ...]

    @property
    def members(self) -> tuple[str, ...]:
        return self.wholes + self.parts

    @property
    def amount(self) -> int:
        """How much of it there is: a whole takes all, a part takes 1."""
        return max(len(self.parts), 1)

    def amounts(self) -> Mapping[str, int]:
        """How much of it each device takes."""
        return dict.fromkeys(self.wholes, self.amount) | dict.fromkeys(self.parts, 1)


def counted(devices: Sequence[Device]) -> tuple[Sequence[CounterSet], Mapping[str, str]]:
    """The counters of devices that exclude each other, and why some cannot be offered together, by device.

    A device takes counters of one set at most. The ids of the devices are unique.
    """
    sets = []
    apart: dict[str, str] = {}
    for things in _groups(devices):
        members = {one for thing in things.values() for one in thing.members}
        if len(things) > PER_SET:
            apart |= dict.fromkeys(members, TOO_MANY)
        else:
            sets.append(_set_of([one for one in devices if one.id in members], things))
    return sets, apart


def excluded(devices: Iterable[Device]) -> Mapping[str, str]:
    """The devices that one before them excludes, each with that one.

    Divided ones are the last, because without counters their parts are offered.
    """
    wholes: dict[str, str] = {}
    parts: dict[str, str] = {}
    found: dict[str, str] = {}
    for device in sorted(devices, key=attrgetter("divided")):
        claims, others = _things(device)
        before = [places[one] for one in claims for places in (wholes, parts) if one in places]
        before += [wholes[one] for one in others if one in wholes]
        if before:
            found[device.id] = before[0]
            continue
        wholes |= dict.fromkeys(claims, device.id)
        parts |= dict.fromkeys(others, device.id)
    return found


def _things(device: Device) -> tuple[Sequence[str], Sequence[str]]:
    """What a device claims, and what it is a part of, in a stable order."""
    claims = sorted(one for one in device.claims if not binds_pod(one))
    return claims, sorted(one for one in device.part_of - device.claims if not binds_pod(one))


def _groups(devices: Sequence[Device]) -> Iterable[Mapping[str, _Thing]]:
    """The things that are counters, by name: those of one set together, in the order of the devices."""
    wholes: dict[str, list[str]] = {}
    parts: dict[str, list[str]] = {}
    for device in devices:
        for texts, places in zip(_things(device), (wholes, parts), strict=True):
            for text in texts:
                places.setdefault(text, []).append(device.id)
    different: dict[_Thing, str] = {}
    for text in sorted(wholes):
        thing = _Thing(tuple(wholes[text]), tuple(parts.get(text, ())))
        if len(thing.members) > 1:
            different.setdefault(thing, text)
    of_device: dict[str, list[_Thing]] = {}
    for thing in different:
        for one in thing.members:
            of_device.setdefault(one, []).append(thing)
    done: set[_Thing] = set()
    for device in devices:
        joined = dict.fromkeys(one for one in of_device.get(device.id, ()) if one not in done)
        waiting = list(joined)
        while waiting:
            near = [one for member in waiting.pop().members for one in of_device[member] if one not in joined]
            joined |= dict.fromkeys(near)
            waiting += dict.fromkeys(near)
        if joined:
            done |= joined.keys()
            yield {different[one]: one for one in joined}


def _set_of(devices: Sequence[Device], things: Mapping[str, _Thing]) -> CounterSet:
    """The counters of these things. The set has the name of the first device that claims one of them."""
    most = {_name(text): thing.amount for text, thing in things.items()}
    taken: dict[str, dict[str, int]] = {one.id: {} for one in devices}
    owner = _owner(devices)
    if owner is not None and len({*most, *owner.counters}) <= PER_SET:
        most = {**owner.counters, **most}
        taken = {one.id: dict(_stated(one, owner)) for one in devices}
    for text, thing in things.items():
        for one, amount in thing.amounts().items():
            taken[one][_name(text)] = amount
    wholes = {one for thing in things.values() for one in thing.wholes}
    return CounterSet(slug(next(one.id for one in devices if one.id in wholes)), most, taken)


def _name(text: str) -> str:
    """The name of the counter of a thing: a part's own name is enough, because a set is of one device."""
    kind, _, name = text.partition(":")
    return name.rpartition("#")[2] if kind == "part" else slug(text)


def _owner(devices: Sequence[Device]) -> Device | None:
    """The device whose counters a set has: the only one that states some, or parts that state the same."""
    owners = [one for one in devices if one.counters]
    if len(owners) == 1 or (
        owners and all(one.consumes and one.counters == owners[0].counters for one in owners)
    ):
        return owners[0]
    return None


def _stated(device: Device, owner: Device) -> Amounts:
    """What a device takes of the counters that another one states, or this one."""
    if device.counters:
        return device.consumes or device.counters
    if owner.claims.isdisjoint(device.part_of):
        return {}
    return {name: amount for name, amount in device.consumes.items() if name in owner.counters}
