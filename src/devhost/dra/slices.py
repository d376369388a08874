"""The ResourceSlices of one resource: which devices are in which slice, and how each is described. Pure.

The limits are those of ``ResourceSlice`` and ``Device`` in ``resource.k8s.io/v1``. The API server refuses a
whole slice for one value that breaks them, so such a value is left out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any

from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import AttributeValue, Cause, Device, Health, sound_reason
from devhost.backend.sysfs import BDF
from devhost.planning.amounts import Amount, flaw, quantity
from devhost.planning.naming import (
    MAX_ATTRIBUTE,
    MAX_NAME,
    MAX_SUBDOMAIN,
    digest,
    looks_hashed,
    resource_attribute,
    slug,
)
from devhost.planning.settings import OF_ANY, Effect, Version

from .aliases import NOTHING, Aliased

if TYPE_CHECKING:
    from devhost.planning.counters import CounterSet

SLOTS = "slots"
"""The capacity of a shared device, of which a claim uses one or more."""

TAINT_EFFECTS = "taints.effect"
"""The field whose refusal means that the API server takes only :func:`.taints_before`."""

LISTS = "strings"
"""The field of an attribute that is a list. An API server that drops it refuses the attribute."""

PER_SLICE = 64
"""Devices in a slice: the limit if one of them has a taint, which any device may get."""

MAX_ENTRIES = 32
"""Attributes and capacities of a device together."""

MAX_MEMBERS = 16
"""Members of all lists of a device: the API allows 48 values, with each of the other attributes as one."""

MOST_BEFORE = 4
"""Taints that a device may have before Kubernetes 1.35, where the effect ``None`` does not exist either."""

SETS = 8
"""Counter sets in a slice, which then has no devices."""

MAX_SLICES = 10_000
"""Slices of a pool: their numbers have four digits, so that the order of names is the order of slices."""

STANDARD = "resource.kubernetes.io"
"""The domain of attributes that all drivers share."""

OWN = ("resource", "backend", "id", "pcieSwitch")
"""Attributes in the driver's domain that devhost sets itself."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_IDENTIFIER = re.compile(r"[^A-Za-z0-9_]")
_MAX_IDENTIFIER = 32
_NUMBER = r"(?:0|[1-9][0-9]{0,18})"
"""One that has more digits may not fit into 64 bits: schedulers fail on such a version in every selector."""
_WORD = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-{_WORD}(?:\.{_WORD})*)?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
"""Semantic Versioning 2.0.0, section 2, 9 and 10."""
_NUMBERS = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})\.([0-9]{1,19})(?:\.[0-9]+)*")
"""A version that is none of these if it has leading zeros, or more than three numbers."""
_END = "-00000000-0000"
_ROOM = MAX_SUBDOMAIN - len(_END)
_NUMBERED = re.compile(r"-[0-9a-f]{8}-[0-9]{4}")
"""The end of a slice's name: a hash and the number of the slice."""
UNCOUNTED = "this API server does not support shared counters"
"""Why devices that exclude each other are not offered together."""
REFUSED = "the API server refused it"
"""Why an attribute or a device is left out that the API server names in a refusal."""
_LETTERS = re.compile(r"[A-Za-z]+")
_SHARING = ("allowMultipleAllocations", "capacity", "requestPolicy")


@frozen
class Offered:
    """A device that the plan offers through claims, ``replicas`` times at once, with its aliases.

    ``effects`` are those of the taints of its entry, ``members`` the ids of the devices that are one here, if
    it is a unit. With ``counters``, others that exclude it are offered too. ``amounts`` are those that claims
    use instead of replicas.
    """

    device: Device
    health: Health
    replicas: int = 1
    aliased: Aliased = NOTHING
    effects: Mapping[Cause, Effect] = OF_ANY
    members: tuple[str, ...] = ()
    counters: bool = False
    amounts: tuple[Amount, ...] = ()

    @property
    def shared(self) -> bool:
        """Whether several claims can have it."""
        return self.replicas > 1 or bool(self.amounts)

    def shares(self) -> dict[str, Any]:
        """What claims use of a shared device: its capacities in the terms of JSON."""
        if not self.amounts:
            return {SLOTS: _slots(self.replicas)}
        sized = ((one, one.size(self.device.attributes)) for one in self.amounts)
        return {one.name: one.published(size) for one, size in sized if size is not None}


@frozen(slots=True)
class Slot:
    """Where a device is published, under which name and how.

    ``place`` is its place among the :data:`PER_SLICE` of the slice. Devices are in the order of their places;
    a device's index in the slice is less if places before it are empty. ``body`` is the device in the terms
    of JSON and must not be changed.
    """

    device_id: str
    device: str
    slice_index: int
    place: int
    body: Mapping[str, Any]


@frozen(slots=True)
class DesiredSlice:
    """One slice: its devices in the terms of JSON, their ids in the same order, and a hash of the devices.

    A slice has devices, or ``counters`` that they share; its hash is that of either.
    """

    index: int
    devices: tuple[Mapping[str, Any], ...]
    ids: tuple[str, ...]
    digest: str
    counters: tuple[Mapping[str, Any], ...] = ()


@frozen(slots=True)
class LeftOut:
    """An attribute that is not published, or a whole device (no ``attribute``), and the reason for a user."""

    device_id: str
    attribute: str
    reason: str


@frozen(slots=True)
class Accepted:
    """What the API server takes of a device's attributes: none of ``rejected``, and lists if ``lists``."""

    rejected: frozenset[str] = frozenset()
    lists: bool = True


EVERYTHING = Accepted()


@frozen(slots=True)
class _Terms:
    """Everything but the device that its description depends on."""

    taints: bool
    all_effects: bool
    sharing: bool
    capacity: bool
    accepted: Accepted


@frozen(slots=True)
class _Described:
    """A device in the terms of JSON, and what it was made of; no ``body`` if it is left out."""

    offer: Offered
    terms: _Terms
    name: str
    body: Mapping[str, Any] | None
    left_out: tuple[LeftOut, ...]


class Pool:
    """The slices of one resource. A device keeps its slice and its place until it goes.

    So one device that comes, goes or changes is a change of one slice. ``driver`` is a DNS subdomain of 63
    characters at most.
    """

    def __init__(self, driver: str, node: str, resource: str, backend: str) -> None:
        self.driver = driver
        self.node = node
        self.resource = resource
        self.backend = backend
        self.name = pool_name(node, resource)
        self._prefix = _prefix(driver, node, resource)
        self._places: dict[str, tuple[int, int]] = {}
        self._adopted: dict[str, tuple[int, int]] = {}
        self._described: dict[str, _Described] = {}
        self._slots: dict[str, Slot] = {}
        self._slices: list[DesiredSlice] = []
        self._counters: list[DesiredSlice] = []
        self.counter_sets: Sequence[CounterSet] = ()
        """The counters of the latest :meth:`slices`."""

    def object_name(self, index: int) -> str:
        """The name of the ResourceSlice with this number; the order of names is the order of numbers.

        Raises ``ValueError`` if there cannot be so many slices.
        """
        if not 0 <= index < MAX_SLICES:
            raise ValueError(f"a pool has at most {MAX_SLICES} slices, so none has number {index}")
        return f"{self._prefix}-{index:04d}"

    def device_name(self, device_id: str) -> str:
        """The name of a device in its slice: a DNS label, another one for every id."""
        return slug(device_id)

    def adopt(self, names: Mapping[int, Sequence[str]]) -> None:
        """Takes over the places of devices in slices that exist already, before the first :meth:`slices`.

        ``names`` are those of the devices by the number of their slice, in their order.
        """
        adopted: dict[str, tuple[int, int]] = {}
        for index in sorted(names):
            if 0 <= index < MAX_SLICES:
                for place, name in enumerate(names[index][:PER_SLICE]):
                    adopted.setdefault(name, (index, place))
        self._adopted = adopted

    def slices(
        self,
        offers: Sequence[Offered],
        *,
        dropped: Collection[str] = (),
        rejected: Collection[tuple[str, str]] = (),
    ) -> tuple[list[DesiredSlice], list[LeftOut]]:
        """The slices for these devices, and what they leave out. A pool without devices is one empty slice.

        A new device gets the first free place, in the order of ``offers``. ``dropped`` are fields that the
        API server is known to ignore. Without ``taints``, unhealthy devices are left out; without
        ``taints.effect``, they have only the taints of :func:`.taints_before`; without
        ``allowMultipleAllocations``, those with several replicas; without ``sharedCounters``, those that an
        earlier one excludes; without ``strings``, lists. ``rejected`` is what the API server refused: the id
        of a device, and the key of one of its attributes in the slice. ``""`` and the key of its capacity
        mean the whole device.
        """
        left_out: list[LeftOut] = []
        described = self._describe(offers, dropped, rejected)
        names: dict[str, str] = {}
        bodies: dict[str, Mapping[str, Any]] = {}
        for identity, one in described.items():
            left_out += one.left_out
            if one.body is None:
                continue
            other = names.setdefault(one.name, identity)
            if other != identity:
                reason = f"device {other} has the same name {one.name} in slices"
                left_out.append(LeftOut(identity, "", reason))
                continue
            bodies[identity] = one.body
        if any(offer.counters for offer in offers):
            self._count(offers, bodies, left_out, supported="sharedCounters" not in dropped)
        else:
            self._counters, self.counter_sets = [], ()
        self._described = described
        self._seat(bodies)
        self._slices = self._arranged(bodies)
        self._slots = {
            identity: Slot(identity, described[identity].name, *self._places[identity], body)
            for identity, body in bodies.items()
        }
        return self._slices + self._counters, left_out

    def _count(
        self,
        offers: Sequence[Offered],
        bodies: dict[str, Mapping[str, Any]],
        left_out: list[LeftOut],
        *,
        supported: bool,
    ) -> None:
        """Adds counters to devices that exclude each other, or leaves out all but the first of them."""
        from devhost.planning.counters import counted, excluded  # only where an entry has counters

        devices = [*{one.device.id: one.device for one in offers if one.device.id in bodies}.values()]
        sets, apart = counted(devices)
        if not supported:
            apart = {**{one: UNCOUNTED for some in sets for one in some.taken}, **apart}
            sets = ()
        for identity, other in excluded(one for one in devices if one.id in apart).items():
            del bodies[identity]
            left_out.append(LeftOut(identity, "", f"{other} excludes it, and {apart[identity]}"))
        self.counter_sets = sets
        for some in sets:
            for identity, taken in some.taken.items():
                beyond = next((name for name, amount in taken.items() if amount > some.most[name]), "")
                if beyond:
                    del bodies[identity]
                    reason = f"it takes {taken[beyond]} of {beyond}, and its whole has {some.most[beyond]}"
                    left_out.append(LeftOut(identity, "", reason))
                    continue
                consumes = [{"counterSet": some.name, "counters": _counters(taken)}]
                body = {**bodies[identity], "consumesCounters": consumes}
                before = self._slots.get(identity)
                bodies[identity] = before.body if before is not None and before.body == body else body
        content = [{"name": one.name, "counters": _counters(one.most)} for one in sets]
        shared = [tuple(content[start : start + SETS]) for start in range(0, len(content), SETS)]
        self._counters = [
            DesiredSlice(MAX_SLICES - number, (), (), hash_of(some), some)
            for number, some in enumerate(shared, 1)
        ]

    def spec(self, slice: DesiredSlice, generation: int, count: int) -> dict[str, Any]:
        """The ``spec`` of a ResourceSlice in a pool of ``count`` slices of this generation."""
        spec: dict[str, Any] = {
            "driver": self.driver,
            "nodeName": self.node,
            "pool": {"name": self.name, "generation": generation, "resourceSliceCount": count},
        }
        if slice.devices:  # the API server omits an empty list in its answers
            spec["devices"] = [dict(device) for device in slice.devices]
        if slice.counters:
            spec["sharedCounters"] = [dict(one) for one in slice.counters]
        return spec

    def slot(self, device_id: str) -> Slot | None:
        """Where the latest :meth:`slices` have a device."""
        return self._slots.get(device_id)

    def accepted(self, device_id: str) -> Accepted | None:
        """What the latest :meth:`slices` may have of a device's attributes; ``None`` for an unknown one."""
        known = self._described.get(device_id)
        return known.terms.accepted if known else None

    def _describe(
        self, offers: Sequence[Offered], dropped: Collection[str], rejected: Collection[tuple[str, str]]
    ) -> dict[str, _Described]:
        """The devices in the terms of JSON, by id; those that are unchanged are kept."""
        sharing = not any(name.startswith(_SHARING) for name in dropped)
        accepted = Accepted(lists=LISTS not in dropped)
        all_effects = TAINT_EFFECTS not in dropped
        usual = _Terms("taints" not in dropped, all_effects, sharing, "capacity" not in dropped, accepted)
        refused: dict[str, set[str]] = {}
        for identity, attribute in rejected:
            refused.setdefault(identity, set()).add(attribute)
        described: dict[str, _Described] = {}
        for offer in offers:
            identity = offer.device.id
            if identity in described:
                continue
            terms = usual
            if identity in refused:
                terms = replace(usual, accepted=replace(accepted, rejected=frozenset(refused[identity])))
            known = self._described.get(identity)
            if known is None or known.offer != offer or known.terms != terms:
                known = self._description(offer, terms)
            described[identity] = known
        return described

    def _description(self, offer: Offered, terms: _Terms) -> _Described:
        identity = offer.device.id
        name = self.device_name(identity)
        if reason := _withheld(offer, terms):
            return _Described(offer, terms, name, None, (LeftOut(identity, "", reason),))
        shared, aliased = offer.shared, offer.aliased
        capacity: dict[str, Any] = {}
        if terms.capacity and not shared:
            capacity = {key: {"value": value} for key, value in aliased.capacity}
        attributes = attributes_of(
            offer.device,
            self.resource,
            self.backend,
            self.driver,
            aliased,
            len(offer.amounts) or offer.replicas > 1,
            terms.accepted,
        )
        body: dict[str, Any] = {"name": name, "attributes": attributes.values}
        if shared:
            body["allowMultipleAllocations"] = True
            capacity = offer.shares()
            way = "share.capacity" if offer.amounts else "share.replicas"
            for key in (key for key, _ in aliased.capacity if key not in capacity):
                attributes.leave(key, f"the device has {way}, and each claim would use all of it")
        if capacity:
            body["capacity"] = capacity
        taints = taints_of(self.driver, offer.health, offer.effects) if terms.taints else {}
        if taints := taints if terms.all_effects else taints_before(taints):
            value = taint_value(offer.health.reason)
            body["taints"] = [
                {"key": key, "value": value, "effect": effect.value} for key, effect in taints.items()
            ]
        return _Described(offer, terms, name, body, tuple(attributes.left_out))

    def _seat(self, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives every new device a place: the one that was adopted, else the first free one."""
        places = {identity: place for identity, place in self._places.items() if identity in bodies}
        fresh = [identity for identity in bodies if identity not in places]
        taken = set(places.values())
        homeless = []
        for identity in fresh:
            adopted = self._adopted.get(self._described[identity].name)
            if adopted is None or adopted in taken:
                homeless.append(identity)
            else:
                places[identity] = adopted
                taken.add(adopted)
        self._adopted = {}
        number = 0
        for identity in homeless:
            while (place := divmod(number, PER_SLICE)) in taken:
                number += 1
            places[identity] = place
            number += 1
        self._places = places

    def _arranged(self, bodies: Mapping[str, Mapping[str, Any]]) -> list[DesiredSlice]:
        """The slices up to the last one that has a device, and at least one."""
        count = 1 + max((index for index, _ in self._places.values()), default=0)
        members: list[list[str]] = [[] for _ in range(count)]
        for identity, (index, _) in sorted(self._places.items(), key=lambda item: item[1]):
            members[index].append(identity)
        return [
            self._slice(index, tuple(ids), tuple([bodies[identity] for identity in ids]))
            for index, ids in enumerate(members)
        ]

    def _slice(
        self, index: int, ids: tuple[str, ...], devices: tuple[Mapping[str, Any], ...]
    ) -> DesiredSlice:
        """A slice; the one from before if it has the same devices."""
        if index < len(self._slices):
            before = self._slices[index]
            if before.ids == ids and all(map(is_, before.devices, devices)):
                return before
        return DesiredSlice(index, devices, ids, hash_of(devices))


@mutable
class Attributes:
    """The attributes of one device, by the key that they have in the slice."""

    identity: str
    limit: int
    accepted: Accepted
    own_domain: str
    values: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    named: set[str] = field(default_factory=set)
    """The names of aliases, without the driver's domain."""
    members: int = 0
    """Of all lists."""

    def add_declared(self, name: str, value: AttributeValue) -> None:
        """Adds one of the backend's attributes; its key is the name as an identifier of C."""
        key = _NO_IDENTIFIER.sub("_", name)
        if not _IDENTIFIER.fullmatch(key):
            key = f"_{key}"
        if len(key) > _MAX_IDENTIFIER:
            self.leave(name, f"its name has more than the {_MAX_IDENTIFIER} characters that a slice allows")
        elif key in OWN:
            self.leave(name, "devhost publishes its own attribute with this name")
        elif key in self.values or key in self.named:
            self.leave(name, f"another attribute is published as {key}")
        else:
            self.add(key, value, name)

    def add(self, key: str, value: AttributeValue, name: str = "") -> None:
        """Adds an attribute, or notes why it is left out."""
        self._put(key, _value(key, value), _flaw(value), name)

    def add_alias(self, key: str, value: AttributeValue) -> None:
        """Adds an attribute by the name that the configuration gives it; it may be a list."""
        bare = key.removeprefix(self.own_domain)  # with the driver's domain it is the same name
        if bare in self.named:
            self.leave(key, f"another attribute is published as {bare}")
            return
        self.named.add(bare)
        if bare in self.values:
            if self.values[bare] != _value(bare, value):
                self.leave(key, "devhost publishes its own attribute with this name")
        elif not isinstance(value, tuple):
            self.add(key, value)
        elif not self.accepted.lists and len(value) == 1:
            self.add(key, value[0])
        elif not self.accepted.lists:
            self.leave(key, f"it has {len(value)} values, and this API server does not support lists")
        else:
            flaw = next(filter(None, map(_flaw, value)), "")
            if not flaw and (self.members + len(value) > MAX_MEMBERS):
                flaw = f"the lists of the device have more than {MAX_MEMBERS} members"
            if self._put(key, {LISTS: value}, flaw):
                self.members += len(value)

    def _put(self, key: str, value: Mapping[str, Any], flaw: str, name: str = "") -> bool:
        if key in self.accepted.rejected:
            flaw = REFUSED
        elif not flaw and len(self.values) >= self.limit:
            flaw = f"the device has more than the {MAX_ENTRIES} attributes that a slice allows"
        if flaw:
            self.leave(name or key, flaw)
        else:
            self.values[key] = value
        return not flaw

    def leave(self, name: str, reason: str) -> None:
        self.left_out.append(LeftOut(self.identity, name, reason))


def attributes_of(
    device: Device,
    resource: str,
    backend: str,
    driver: str,
    aliased: Aliased = NOTHING,
    shares: int = 0,
    accepted: Accepted = EVERYTHING,
) -> Attributes:
    """The attributes of a device of a resource, as far as the API server accepts them.

    There are fewer if it has capacities: those that claims share, or else those of its entry.
    """
    limit = MAX_ENTRIES - (shares or len(aliased.capacity))
    attributes = Attributes(device.id, limit, accepted, f"{driver}/")
    attributes.add("resource", resource_attribute(resource))
    attributes.add("backend", backend)
    attributes.add("id", device.id)
    for key, value in standard_attributes(device).items():
        attributes.add(key, value)
    for key, value in aliased.attributes:
        attributes.add_alias(key, value)
    for key, reason in aliased.left_out:
        attributes.leave(key, reason)
    if not aliased.only:
        for declared, value in device.attributes.items():
            attributes.add_declared(declared, value)
    return attributes


def standard_attributes(device: Device) -> dict[str, AttributeValue]:
    """Where a device is: the attributes by which claims put devices of several kinds close together.

    ``pcieSwitch`` is the upstream port of the nearest switch. A switch is an upstream and a downstream port,
    so there are at least two bridges between it and the root port. The first address of another PCI domain
    is that of a controller whose devices are in a separate domain, as Intel VMD.
    """
    found: dict[str, AttributeValue] = {}
    path = [address.lower() for address in device.pcie_path]
    if len(path) > 1 and not BDF.fullmatch(path[-1]):
        path[-1] = path[-2]  # a unit, below the last bridge
    if path and all(map(BDF.fullmatch, path)):
        domain = path[-1].partition(":")[0]
        own = [address for address in path if address.partition(":")[0] == domain]
        if len(own) > 3:
            found["pcieSwitch"] = own[-3]
        found[f"{STANDARD}/pcieRoot"] = f"pci{path[0].rpartition(':')[0]}"
    if function := _function(device, path):
        found[f"{STANDARD}/pciBusID"] = function
    if len(device.numa_nodes) == 1 and device.numa_nodes[0] >= 0:
        found[f"{STANDARD}/numaNode"] = device.numa_nodes[0]
    return found


def _function(device: Device, path: Sequence[str]) -> str:
    """The address of the PCI function that a device is; empty if it is none, or several."""
    claimed = [
        address
        for kind, _, text in (one.partition(":") for one in device.claims)
        if kind == "pci" and BDF.fullmatch(address := text.lower())
    ]
    identity = device.id.lower()
    if BDF.fullmatch(identity) and (not claimed or identity in claimed):
        return identity  # of a unit, it may be that of what its members have in common
    if len(claimed) == 1:
        return claimed[0]
    return path[-1] if path and path[-1] in claimed else ""


def _withheld(offer: Offered, terms: _Terms) -> str:
    """Why a device is left out; empty if it is not."""
    rejected = terms.accepted.rejected
    if "" in rejected or (offer.shared and not rejected.isdisjoint(offer.shares())):
        return REFUSED
    if reason := offer.aliased.foreign or flaw(offer.amounts, offer.device.attributes):
        return reason
    if not terms.taints and is_tainted(offer.health, offer.effects):
        reason = sound_reason(offer.health.reason)
        return f"it is unhealthy ({reason}), and this API server does not support taints of devices"
    if offer.shared and not terms.sharing:
        why = "the entry has share.capacity" if offer.amounts else "share.replicas is more than 1"
        return f"{why}, and this API server does not support devices in several claims"
    return ""


def _flaw(value: AttributeValue) -> str:
    """Why a value cannot be in a slice; empty if it can."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if -(2**63) <= value < 2**63 else "its value has more than 64 bits"
    if not isinstance(value, str):
        return "its value is a list"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "its value is not valid Unicode"
    return "" if size <= MAX_ATTRIBUTE else f"its value has {size} bytes, and a slice allows {MAX_ATTRIBUTE}"


def _value(key: str, value: AttributeValue) -> Mapping[str, Any]:
    """A value in the terms of JSON; a semantic version only if the attribute is named after one.

    The type must not change with the number of the next version, because CEL does not compare text with a
    version: 570.86.15 and 570.86.05 are versions, the latter as 570.86.5.
    """
    if not isinstance(value, str):
        return _typed("bool" if isinstance(value, bool) else "int", value)
    if not key.lower().endswith("version"):
        return _typed("version" if isinstance(value, Version) else "string", value)
    if found := _NUMBERS.fullmatch(value):
        return _typed("version", ".".join(str(int(number)) for number in found.groups()))
    return _typed("version" if _SEMVER.fullmatch(value) else "string", value)


@lru_cache(maxsize=1024)
def _typed(kind: str, value: AttributeValue) -> Mapping[str, Any]:
    """A value with its type; devices share it in memory, because most values of a node are equal."""
    return {kind: value}


def _counters(amounts: Mapping[str, int]) -> Mapping[str, Any]:
    return {name: {"value": quantity(amount)} for name, amount in sorted(amounts.items())}


def _slots(replicas: int) -> dict[str, Any]:
    """The capacity of a shared device: a claim gets one slot unless it requests several."""
    most = quantity(replicas)
    valid = {"min": "1", "max": most, "step": "1"}
    return {"value": most, "requestPolicy": {"default": "1", "validRange": valid}}


def pool_name(node: str, resource: str) -> str:
    """The name of the pool of a resource: a DNS subdomain, another one for every resource of every node."""
    return _shortened(f"{node}/{_joined(resource)}", MAX_SUBDOMAIN, f"{node}/{resource}")


def _joined(resource: str) -> str:
    """A DNS subdomain for a resource, another one for every resource: ``nvidia.com-gpu``.

    It ends in a hash unless the resource can be read from it.
    """
    domain, _, name = resource.partition("/")
    legal = re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
    joined = f"{domain}-{legal}"
    above, dot, last = joined.rpartition(".")
    readable = f"{above}{dot}{last.replace('-', '/', 1)}" == resource
    return joined if readable and not looks_hashed(joined) else f"{joined.rstrip('-')}-{digest(resource)}"


def _shortened(text: str, limit: int, identity: str) -> str:
    """A text of at most ``limit`` characters that ends in a hash of ``identity`` if it had to be cut."""
    return text if len(text) <= limit else f"{text[: limit - 9].rstrip('-./')}-{digest(identity)}"


def hash_of(content: Sequence[Mapping[str, Any]]) -> str:
    """The hash of what a slice has: its devices, or its counters."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return digest(text, 32)


def may_be_ours(name: str, driver: str, node: str) -> bool:
    """Whether a pool of devhost may have a slice of this name, and no other program gave it."""
    words = name[: -len(_END)]
    return _NUMBERED.fullmatch(name, len(words)) is not None and words.startswith(
        f"{driver}-{node}-"[:_ROOM].rstrip("-.")
    )


def _prefix(driver: str, node: str, resource: str) -> str:
    """What the names of a pool's slices begin with.

    It always has a hash, because names of slices are unique in the cluster, and two nodes, ``a`` and
    ``a-b``, could have the same name for slices of two resources, ``b-c.com/d`` and ``c.com/d``.
    """
    words = f"{driver}-{node}-{_joined(resource)}"[:_ROOM].rstrip("-.")
    return f"{words}-{digest(chr(0).join((driver, node, resource)))}"


def taints_of(driver: str, health: Health, effects: Mapping[Cause, Effect]) -> dict[str, Effect]:
    """The taints of a device by their key, in the domain of its driver; none if it is healthy.

    ``effects`` has that of each cause with its own key. All other causes have the key ``unhealthy``.
    """
    if health.healthy:
        return {}
    own = {cause: effects[cause] for cause in Cause if cause in health.causes and cause in effects}
    if health.causes - own.keys():
        own.setdefault(Cause.UNHEALTHY, effects.get(Cause.UNHEALTHY, Effect.NO_SCHEDULE))
    return {f"{driver}/{cause.value}": effect for cause, effect in own.items()}


def is_tainted(health: Health, effects: Mapping[Cause, Effect]) -> bool:
    """Whether claims that tolerate nothing do not get a device; for ``effects`` see :func:`taints_of`."""
    return any(effect is not Effect.NONE for effect in taints_of("", health, effects).values())


def taints_before(taints: Mapping[str, Effect]) -> dict[str, Effect]:
    """The most severe of these taints, as far as Kubernetes 1.34 takes them."""
    effective = [(key, effect) for key, effect in taints.items() if effect is not Effect.NONE]
    return dict(sorted(effective, key=lambda one: one[1] is not Effect.NO_EXECUTE)[:MOST_BEFORE])


def taint_value(reason: str | None) -> str:
    """The words of a reason as the value of a taint.

    Without digits: a temperature or a counter in a reason would change the slice all the time.
    """
    value = ""
    for word in _LETTERS.findall(reason or ""):
        longer = f"{value}-{word}" if value else word
        if len(longer) > MAX_NAME:
            break
        value = longer
    return value or Cause.UNHEALTHY.value
