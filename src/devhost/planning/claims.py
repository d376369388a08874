"""What containers hold, and whether a device may therefore be offered through a resource. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import NamedTuple

from devhost.backend.claim import device as device_claim
from devhost.backend.errors import few
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import AnyHolder, ClaimHolder, Device, Holder

from .amounts import CapacityUse
from .settings import PLUGIN, Side

Key = tuple[str, str]
"""A device across backends: the backend's name and the device's id."""

UNNAMED = "a container that the kubelet has not named yet"
"""The holder in words while the kubelet has not named it."""


_BINDS_POD = re.compile(r"iommu:.*|node:/dev/vfio/(?:noiommu-)?[0-9]+")


def binds_pod(claim: str) -> bool:
    """Whether a claim means "only one pod" instead of "only one device": an IOMMU group, or its node.

    The kernel gives a group to one process (Documentation/driver-api/vfio.rst). Each of its functions is a
    device by itself, and one virtual machine may use all of them.
    """
    return claim.startswith(("iommu:", "node:/dev/vfio/")) and _BINDS_POD.fullmatch(claim) is not None


def pod_claims(device: Device) -> list[str]:
    """The claims of a device that bind a pod, in a stable order."""
    return sorted(filter(binds_pod, device.claims | device.part_of))


@frozen
class Reason:
    """Why a device is not available, and the containers that the text refers to.

    The text names no pod, because it is also shown to readers who must not see pod names. ``held_by`` has the
    names.
    """

    text: str
    held_by: tuple[AnyHolder, ...] = ()


def pod(holder: AnyHolder | None) -> str:
    """What a reason calls a container or a ResourceClaim, without its name."""
    if isinstance(holder, ClaimHolder):
        return "a claim"
    return "a pod" if holder else UNNAMED


def holder_field(held_by: Sequence[AnyHolder]) -> dict[str, str]:
    """The field of a log line that names the containers to which its reason refers."""
    return {"holder": few([str(one) for one in held_by])} if held_by else {}


class Held(NamedTuple):
    """One device that a container or a ResourceClaim holds, and the tokens through which it does.

    ``exclusive`` is whether the resource shares its devices with no other, ``holder`` is ``None`` until the
    kubelet has named the container. A token may represent several devices, and several tokens one device;
    ``tokens`` are all those of the holder that represent the same devices, in no order.
    ``moving`` is why the resource keeps a device that no container holds (see :mod:`.sides`); empty if one
    does. ``parts`` is what a claim uses of a device that claims share by amount.
    """

    resource: str
    tokens: tuple[str, ...]
    backend: str
    device: Device
    exclusive: bool
    holder: AnyHolder | None
    side: Side = PLUGIN
    moving: str = ""
    parts: Sequence[CapacityUse] = ()

    @property
    def key(self) -> Key:
        """The device across backends."""
        return self.backend, self.device.id

    @property
    def uses(self) -> frozenset[str]:
        """Everything that the device uses up, and the device itself."""
        return self.device.claims | self.device.part_of | {device_claim(self.backend, self.device.id)}

    def reason(self, text: str) -> Reason:
        return Reason(text, (self.holder,) if self.holder else ())

    def holds(self, what: str) -> str:
        """A sentence: who holds ``what``, and when it will be free."""
        until = "that claim is released" if isinstance(self.holder, ClaimHolder) else "that pod ends"
        return f"{pod(self.holder)} holds {what} through {self.resource}; it is free when {until}"


def held_by_claims(held: Iterable[Held]) -> Mapping[Key, Sequence[Held]]:
    """What claims hold, by device."""
    found: dict[Key, list[Held]] = {}
    for one in held:
        if isinstance(one.holder, ClaimHolder):
            found.setdefault(one.key, []).append(one)
    return found


def claims_of(held: Iterable[Held]) -> Sequence[ClaimHolder]:
    """The claims that hold any of these, in a stable order."""
    return sorted({one.holder for one in held if isinstance(one.holder, ClaimHolder)})


def users(claims: frozenset[str], held: Iterable[Held]) -> tuple[AnyHolder, ...]:
    """The containers and claims that use any of these, see :meth:`devhost.backend.Context.held`."""
    if not claims:
        return ()
    using = (one for one in held if one.holder and not claims.isdisjoint(one.uses))
    return tuple(dict.fromkeys(one.holder for one in using if one.holder))


class Objection(NamedTuple):
    """Why others must not have a device, and what is held of it, or of what conflicts with it."""

    reason: Reason
    held: Held


def first(objections: Iterable[Objection | None]) -> Objection | None:
    """The one to report of several; a set has no order, and the plan must be deterministic."""
    return min(
        filter(None, objections),
        key=lambda one: (bool(one.held.moving), one.reason.text, [*map(str, one.reason.held_by)]),
        default=None,
    )


class ClaimIndex:
    """What containers hold, found by device and by claim."""

    def __init__(self, held: Iterable[Held]) -> None:
        self._through: dict[Key, dict[tuple[str, Side], Held]] = {}
        self._wholes: dict[str, list[Held]] = {}
        self._parts: dict[str, list[Held]] = {}
        for one in held:
            resources = self._through.setdefault(one.key, {})
            if not resources:
                for claim in one.device.claims:
                    self._wholes.setdefault(claim, []).append(one)
                for claim in one.device.part_of:
                    self._parts.setdefault(claim, []).append(one)
            through = one.resource, one.side
            before = resources.setdefault(through, one)
            if before.moving and not one.moving:
                resources[through] = one

    def __bool__(self) -> bool:
        return bool(self._through)

    def has_any(self, keys: Iterable[Key]) -> bool:
        return any(key in self._through for key in keys)

    def objection(
        self,
        key: Key,
        device: Device,
        resource: str,
        exclusive: bool,
        side: Side = PLUGIN,
        together: Collection[Key] = (),
    ) -> Objection | None:
        """Why a device must not be offered through a resource; ``None`` if it may be.

        A held device stays with the resource through which it is held, and on its side, of which each DRA
        driver is one. Another resource of the same side may offer it only if neither is exclusive. No
        resource offers a device whose claims conflict with those of a held device, except for those in
        ``together``: they are offered together.
        """
        objections = [
            Objection(one.reason(one.moving or one.holds("it")), one)
            for (name, other), one in self._through.get(key, {}).items()
            if other != side or (name != resource and (exclusive or one.exclusive))
        ]
        objections += self._claimed(key, device, together)
        return first(objections)

    def conflict(self, key: Key, device: Device, together: Collection[Key] = ()) -> Objection | None:
        """Why a device must not be allocated now: another device that is held conflicts with it.

        Those in ``together`` do not count: they are allocated together.
        """
        return first(self._claimed(key, device, together))

    def _claimed(self, key: Key, device: Device, together: Collection[Key] = ()) -> Iterator[Objection]:
        for claim, one in self._conflicts(device):
            if one.key != key and one.key not in together:
                what = f"{one.device.id} of backend {one.backend}"
                why = f"{what}: {one.moving}" if one.moving else one.holds(what)
                yield Objection(one.reason(f"{claim} is in use: {why}"), one)

    def _conflicts(self, device: Device) -> Iterator[tuple[str, Held]]:
        """What conflicts with a device by itself; :class:`PodClaims` has what binds pods."""
        for claim in device.claims:
            if binds_pod(claim):
                continue
            for one in self._wholes.get(claim, ()):
                yield claim, one
            for one in self._parts.get(claim, ()):
                yield claim, one
        for claim in device.part_of:
            for one in () if binds_pod(claim) else self._wholes.get(claim, ()):
                yield claim, one


@mutable
class HeldDevices:
    """The devices that containers hold, of all resources, each with every claim that it has had meanwhile.

    A device may gain or lose a claim while a container holds it (it is bound to another driver). Every claim
    counts until the device is released, except for nodes of which no container can have got any.
    """

    _newest: dict[Key, Device] = field(default_factory=dict)
    _joined: dict[Key, Device] = field(default_factory=dict)
    _wholes: dict[str, set[Key]] = field(default_factory=dict)
    """The devices that have each claim as a whole."""
    _parts: dict[str, set[Key]] = field(default_factory=dict)
    """The devices that have each claim in part."""
    binding: set[str] = field(init=False, default_factory=set)
    """Those of the claims that bind pods."""
    changed: set[Key] = field(init=False, default_factory=set)
    """The devices that have changed while a container had them, until the reader removes them."""

    def __getitem__(self, key: Key) -> Device:
        return self._joined[key]

    def get(self, key: Key) -> Device | None:
        return self._joined.get(key)

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._joined))

    def update(self, key: Key, device: Device) -> bool:
        """Takes the present state of a device; true if its claims or attributes have changed."""
        if self._newest.get(key) is device:
            return False
        self._newest[key] = device
        known = self._joined.get(key)
        if known is not None:
            device = replace(
                device, claims=device.claims | known.claims, part_of=device.part_of | known.part_of
            )
        self._joined[key] = device
        if known is not None and device != known:
            self.changed.add(key)
        self._know(key, device.claims, device.part_of)
        return device != known

    def settle(self, given: Mapping[Key, frozenset[str]], fixed: Mapping[Key, frozenset[str]]) -> bool:
        """Takes what containers were given as claims of their devices; true if these have other claims then.

        ``given`` are further claims of devices. ``fixed`` are the claims on nodes that containers of a device
        were given, if they have no others: what the device has had meanwhile is nothing to them.
        """
        changed = False
        for key in given.keys() | fixed.keys():
            known = self._joined.get(key)
            if known is None:
                continue
            claims = known.claims
            if key in fixed:
                stays = fixed[key] | self._newest[key].claims
                claims = frozenset(one for one in claims if one in stays or not one.startswith("node:"))
            claims |= given.get(key, frozenset())
            if claims != known.claims:
                self._joined[key] = replace(known, claims=claims)
                self._forget(key, known.claims - claims)
                self._know(key, claims - known.claims)
                self.changed.add(key)
                changed = True
        return changed

    def _know(self, key: Key, claims: Iterable[str], part_of: Iterable[str] = ()) -> None:
        for owners, some in ((self._wholes, claims), (self._parts, part_of)):
            for claim in some:
                owners.setdefault(claim, set()).add(key)
                if binds_pod(claim):
                    self.binding.add(claim)

    def _forget(self, key: Key, claims: Iterable[str], part_of: Iterable[str] = ()) -> None:
        for owners, some in ((self._wholes, claims), (self._parts, part_of)):
            for claim in some:
                owners[claim].discard(key)
                if not owners[claim]:
                    del owners[claim]
                if claim not in self._wholes and claim not in self._parts:
                    self.binding.discard(claim)

    def sharing(self, device: Device) -> set[Key]:
        """The held devices that conflict with this one, which may be one of them, or that bind its pod.

        Many devices may be parts of one thing.
        """
        found: set[Key] = set()
        for claim in device.claims | device.part_of:
            found.update(self._wholes.get(claim, ()))
            if claim in device.claims or binds_pod(claim):
                found.update(self._parts.get(claim, ()))
        return found

    def keep(self, keys: Collection[Key]) -> None:
        """Forgets the devices that no container holds any longer."""
        for key in self._joined.keys() - keys:
            device = self._joined.pop(key)
            del self._newest[key]
            self._forget(key, device.claims, device.part_of)


Pod = tuple[str, str]
"""A pod's namespace and name."""

IN_USE = "its IOMMU group is in use by another pod"
"""Why a device is not available although no container holds it."""


class Occupant(NamedTuple):
    """The pods of a holder, and whether they may still get more: a kubelet may be admitting them."""

    pods: frozenset[Pod]
    may_get_more: bool = False


def pod_of(holder: Holder) -> Pod:
    return holder.namespace, holder.pod


class PodClaims:
    """What binds pods, and the pods that have it, as far as they are known.

    ``occupant`` gives the pods of a holder; none if they are not known.
    """

    def __init__(self, held: Iterable[Held], occupant: Callable[[AnyHolder], Occupant]) -> None:
        self._by_claim: dict[str, list[tuple[Held, Occupant]]] = {}
        for one in held:
            claims = () if one.holder is None or one.moving else pod_claims(one.device)
            if one.holder is not None and claims and (found := occupant(one.holder)).pods:
                for claim in claims:
                    self._by_claim.setdefault(claim, []).append((one, found))

    def __bool__(self) -> bool:
        return bool(self._by_claim)

    def objection(self, key: Key, device: Device, own: Collection[Pod] = ()) -> Reason | None:
        """Why a device is only for other pods; ``None`` if it is not.

        ``own`` are the pods that have the device, or request it. Without them, it is for any pod: what a pod
        has then counts only once that pod gets nothing more, because it may get this device too.
        """
        found: dict[AnyHolder, None] = {}
        for claim in pod_claims(device) if self._by_claim else ():
            for one, other in self._by_claim.get(claim, ()):
                is_other = other.pods.isdisjoint(own) if own else not other.may_get_more
                if one.key != key and one.holder is not None and is_other:
                    found[one.holder] = None
        return Reason(IN_USE, tuple(sorted(found, key=str))) if found else None


NOTHING_BOUND = PodClaims((), lambda holder: Occupant(frozenset()))
"""No pod has anything that binds it."""
