"""Which devices a ResourceClaim holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from typing import Protocol

from devhost.backend.errors import AllocationError
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, ClaimHolder, Device, Holder
from devhost.planning.amounts import CapacityUse, shortage
from devhost.planning.claims import (
    ClaimIndex,
    Held,
    HeldDevices,
    Key,
    Occupant,
    Pod,
    PodClaims,
    Reason,
    first,
    pod_claims,
    pod_of,
)
from devhost.planning.plan import Found
from devhost.planning.settings import Serve
from devhost.runtime.reconciler import Report

from .given import Given, Node, Token
from .leases import Claims, ClaimUseDevice, Listing

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=-)")
"""The uid of a claim, as API servers make them, at the beginning of a CDI name."""

NAMED = 20
"""Most claims that a refusal names of those that share a device."""

_Through = tuple[str, str]
"""A DRA driver, and the resource through which it offers a device."""

_TOO_OFTEN = "one claim has it allocated more often than share.replicas allows"

_EXCLUDED = "the claim has another device that excludes it"


class DeviceHeld(AllocationError):
    """A container or another claim holds a device, or hardware that conflicts with it."""

    def __init__(self, message: str, held_by: Sequence[AnyHolder] = ()) -> None:
        super().__init__(message)
        self.held_by = tuple(held_by)


@frozen(slots=True)
class ClaimedDevice:
    """One device of a claim, as the claim's file records it.

    ``request`` is the claim's request (with a subrequest: ``request/subrequest``), ``device`` the device's
    name in its pool, ``share`` the share id of a device that several claims use, ``key`` the device of the
    backend. The first of ``cdi_ids`` is unique to the device; there are none before the file is made.
    ``admin`` access neither checks nor holds. ``exclusive`` is whether the resource shares its devices with
    no other. ``replicas`` is how many parts of the device may be in use at once, ``slots`` how many of them
    this is. If claims share the device by amount, ``parts`` is what counts instead. ``members`` are the ids
    of the devices that are one here, by an attribute: then ``key`` has the id of this unit, and the claim
    holds :attr:`keys`.
    """

    request: str
    pool: str
    device: str
    share: str
    key: Key
    resource: str
    cdi_ids: tuple[str, ...] = ()
    admin: bool = False
    replicas: int = 1
    exclusive: bool = True
    slots: int = 1
    members: tuple[str, ...] = ()
    parts: tuple[CapacityUse, ...] = ()

    @property
    def keys(self) -> tuple[Key, ...]:
        """What the claim holds: the device, or every member of the unit."""
        return tuple((self.key[0], one) for one in self.members) or (self.key,)

    @property
    def base(self) -> str:
        """The request without the subrequest."""
        return self.request.partition("/")[0]


@frozen(slots=True)
class ClaimRecord:
    """A prepared claim, and its devices in the order of the claim's allocation.

    ``metadata`` is where its metadata files are in containers
    (:func:`~devhost.allocation.cdi.claim_metadata.place_of`); empty if it has none.
    """

    claim: ClaimHolder
    driver: str
    devices: tuple[ClaimedDevice, ...]
    metadata: str = ""

    @property
    def requests(self) -> Mapping[str, ClaimedDevice]:
        """The requests, without subrequests, each with its first device."""
        return {one.base: one for one in reversed(self.devices)}


@frozen(slots=True)
class Claimed:
    """A device that a prepared claim holds, and the pods that are known to use the claim."""

    claim: ClaimHolder
    resource: str
    backend: str
    device: Device
    shares: int
    pods: frozenset[str]

    @property
    def key(self) -> tuple[ClaimHolder, str, str, str]:
        """What is the same as long as the claim holds the device."""
        return self.claim, self.resource, self.backend, self.device.id


class Ledger(Protocol):
    """All allocations: :class:`devhost.allocation.allocations.Allocations`."""

    @property
    def devices(self) -> HeldDevices: ...
    @property
    def given(self) -> Given: ...
    def present(self, key: Key) -> Device: ...
    def pod_claims(self) -> PodClaims: ...
    def pod_claims_of_tokens(self) -> PodClaims: ...
    @property
    def through_tokens(self) -> ClaimIndex: ...
    @property
    def from_other_drivers(self) -> ClaimIndex: ...
    @property
    def listed_claims(self) -> Claims: ...
    def give(
        self,
        resource: str,
        devices: Mapping[Key, Device],
        nodes: frozenset[str],
        claim: ClaimHolder | None = None,
        *,
        running: bool = False,
    ) -> None: ...
    def claims_changed(self, released: Collection[str], *, replan: bool) -> None: ...


class ClaimAllocations:
    """What prepared ResourceClaims hold.

    A claim holds its devices from Prepare until Unprepare, whether pods use them or not. It may have devices
    of several DRA drivers, and each of them prepares and releases its own.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        """The allocations of all resources, which these are a part of."""
        self._prepared: dict[str, dict[str, tuple[ClaimHolder, tuple[ClaimedDevice, ...]]]] = {}
        """By uid and driver."""
        self._reserved: dict[tuple[ClaimHolder, str], list[tuple[ClaimedDevice, ...]]] = {}
        """By claim and driver."""
        self._pods: dict[ClaimHolder, frozenset[Pod]] = {}
        self._of_key: dict[Key, dict[_Through, dict[ClaimHolder, list[ClaimedDevice]]]] = {}
        """Both by device and resource: so many claims may share a device that none looks at all of them."""
        self._in_use: Counter[Key] = Counter()
        """The slots of each device that claims have."""
        self._reports: list[Report] = []

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls back after each change of what prepared claims hold, once for all of one request."""
        self._reports.append(Report(changed))

    @contextmanager
    def reserved(
        self,
        claim: ClaimHolder,
        wanted: Sequence[ClaimedDevice],
        pods: Collection[Pod] = (),
        driver: str = "",
    ) -> Iterator[None]:
        """Checks that a claim may have these devices of a driver, and keeps them until the context ends.

        Between the check and the reservation nothing else runs in the event loop. What the claim holds
        already, it may have again. ``pods`` are those that the claim is reserved for, if they are known.
        Raises ``DeviceHeld`` if a container or another claim holds one, or hardware that conflicts with it.
        """
        holding = tuple(one for one in wanted if not one.admin)
        self._check(claim, holding, frozenset(pods) or self.pods(claim), driver)
        if pods:
            self._pods[claim] = frozenset(pods)
        reserved = claim, driver
        self._reserved.setdefault(reserved, []).append(holding)
        self._add(claim, holding, driver)
        self.ledger.claims_changed((), replan=False)
        try:
            yield
        finally:
            self._reserved[reserved].remove(holding)
            if not self._reserved[reserved]:
                del self._reserved[reserved]
            self._remove(claim, holding, driver)
            prepared = self._prepared.get(claim.uid, {})
            if not prepared:
                self._pods.pop(claim, None)
            _, kept = prepared.get(driver, (claim, ()))
            self.ledger.claims_changed((), replan=kept != holding)

    def prepared(self, claim: ClaimHolder, devices: Sequence[ClaimedDevice], driver: str = "") -> None:
        """The claim holds these devices of a driver, and no others of it."""
        holding = tuple(one for one in devices if not one.admin)
        known = (claim, driver) in self._reserved
        prepared = self._prepared.setdefault(claim.uid, {})
        former, before = prepared.get(driver, (claim, ()))
        prepared[driver] = (claim, holding)
        self._add(claim, holding, driver)
        self._remove(former, before, driver)
        gone = {one.resource for one in before} - {one.resource for one in holding}
        binds = any(pod_claims(self.ledger.present(key)) for _, key in _each(holding))
        self.ledger.claims_changed(gone, replan=not known or bool(gone) or binds)
        self._report()

    def released(self, uid: str, driver: str = "") -> None:
        """The claim holds nothing of a driver; without effect if it held nothing."""
        prepared = self._prepared.get(uid, {})
        if (before := prepared.pop(driver, None)) is not None:
            if prepared:
                self.gave(uid, (), driver)
            else:
                del self._prepared[uid]
                self._pods.pop(before[0], None)
                self.ledger.given.claims.pop(uid, None)
            self._remove(*before, driver)
            self.ledger.claims_changed({one.resource for one in before[1]}, replan=True)
            self._report()

    def gave(self, uid: str, nodes: Iterable[Node], driver: str = "") -> None:
        """The containers of a claim are given these nodes of a driver; those of its other drivers stay."""
        prepared = self._prepared.get(uid, {}).items()
        others = {key for of, (_, devices) in prepared if of != driver for _, key in _each(devices)}
        before = self.ledger.given.claims.get(uid) if others else None
        kept = (node for node in before.nodes if node.key in others) if before else ()
        self.ledger.given.gave_claim(uid, (*kept, *nodes))

    def claimed(self) -> Iterator[Claimed]:
        """What prepared claims hold, each device of a claim once."""
        for claim, devices in chain.from_iterable(one.values() for one in self._prepared.values()):
            pods = frozenset(name for _, name in self.pods(claim))
            for resource, key in dict.fromkeys((one.resource, key) for one, key in _each(devices)):
                device, shares = self.ledger.devices[key], _slots(key, devices)
                yield Claimed(claim, resource, key[0], device, shares, pods)

    @property
    def count(self) -> int:
        return len(self._prepared)

    def has(self, driver: str) -> bool:
        return any(driver in prepared for prepared in self._prepared.values())

    def pods(self, claim: ClaimHolder) -> frozenset[Pod]:
        return self._pods.get(claim, frozenset()).union(map(pod_of, self.users(claim)))

    def bound_elsewhere(self, key: Key, device: Device) -> Reason | None:
        """Why a new claim must not get a device, because pods are bound to it; ``None`` if it may.

        What a pod holds does not make its own devices unavailable.
        """
        bound = self.ledger.pod_claims()
        holders = tuple(self._holders(key)) if bound else ()
        own = [pod for claim in holders for pod in self.pods(claim)]
        return None if holders and not own else bound.objection(key, device, own)

    def users(self, claim: ClaimHolder) -> Sequence[Holder]:
        """The containers that use a claim, in the kubelet's order; by its newest list."""
        return users_of(claim, self.ledger.listed_claims)

    def held_devices(self) -> Iterator[Key]:
        """Every device that a claim holds; one may come more than once."""
        for _, _, one in self._all():
            yield from one.keys

    def held(self) -> Iterator[Held]:
        """Each claim with each of its devices, in a stable order."""
        found = {
            (claim, one.request, one.share, key): (one, driver)
            for claim, driver, one in self._all()
            for key in one.keys
        }
        for (claim, _, _, key), (one, driver) in sorted(found.items(), key=lambda item: item[0]):
            yield self._as_held(claim, one, key, driver)

    def of_driver(self, driver: str) -> Iterator[ClaimedDevice]:
        return (one for _, other, one in self._all() if other == driver)

    def held_otherwise(self, resource: str, unit: str, key: Key) -> Reason | None:
        """Why a device of a resource is not free as this unit, or by itself: a claim has it as another one.

        Schedulers do not know that: they allocate what slices name. ``None`` if it is free.
        """
        for (_, name), claims in self._of_key.get(key, {}).items():
            for claim, devices in claims.items() if name == resource else ():
                if (other := devices[0].key[1]) != unit:
                    return Reason(
                        f"a claim holds {key[1]} as {other}; it is free when that claim is released", (claim,)
                    )
        return None

    def _as_held(self, claim: ClaimHolder, one: ClaimedDevice, key: Key, driver: str) -> Held:
        token = "/".join(filter(None, (claim.uid, one.request, one.share)))
        device = self.ledger.devices[key]
        side = Serve.DRA, driver
        return Held(one.resource, (token,), key[0], device, one.exclusive, claim, side, parts=one.parts)

    def refuse_held(self, backend: str, resource: str, exclusive: bool, devices: Iterable[Device]) -> None:
        """Checks that containers may have devices through the device plugin.

        Raises ``DeviceHeld`` if a claim holds one of them, or a container has it from another driver, or they
        hold hardware that conflicts with it.
        """
        others = self.ledger.from_other_drivers
        for device in devices if self._of_key or others else ():
            key = (backend, device.id)
            claims = ClaimIndex(self.near(key, device))
            found = first(index.objection(key, device, resource, exclusive) for index in (claims, others))
            if found is not None:
                raise _held(resource, device, found.reason)

    def near(self, key: Key, device: Device, without: ClaimHolder | None = None) -> Iterator[Held]:
        """What claims hold of a device, and of the hardware that it has in common with others.

        One claim represents all that have a device through one resource. ``without`` is a claim that does not
        count.
        """
        for other in sorted({key} | self.ledger.devices.sharing(device)):
            for (driver, _), claims in self._of_key.get(other, {}).items():
                if (claim := next((one for one in claims if one != without), None)) is not None:
                    yield self._as_held(claim, claims[claim][0], other, driver)

    def _report(self) -> None:
        for report in self._reports:
            report()

    def _check(
        self, claim: ClaimHolder, wanted: Sequence[ClaimedDevice], pods: frozenset[Pod], driver: str
    ) -> None:
        ledger = self.ledger
        own = ClaimIndex(
            Held(one.resource, (), key[0], ledger.present(key), one.exclusive, claim, (Serve.DRA, driver))
            for one, key in _each((*wanted, *self._of_others(claim, driver)))
        )
        for one, key in _each(wanted):
            device = ledger.present(key)
            if own.conflict(key, device, one.keys) is not None:
                raise _held(one.resource, device, Reason(_EXCLUDED))
            near = ClaimIndex(self.near(key, device, claim))
            if pods and pod_claims(device):
                others = ledger.devices.sharing(device) - {key}
                held = chain.from_iterable(self._sharing(other, claim) for other in others)
                for several in (ledger.pod_claims_of_tokens(), PodClaims(held, self._occupant)):
                    if reason := several.objection(key, device, pods):
                        raise _held(one.resource, device, reason)
            found = first(
                index.objection(key, device, one.resource, one.exclusive, (Serve.DRA, driver), one.keys)
                for index in (near, ledger.through_tokens, ledger.from_other_drivers)
                if index
            )
            if found is not None:
                raise _held(one.resource, device, found.reason)
            if one.parts:
                self._check_parts(claim, one, device, wanted)
                continue
            free = one.replicas - self._in_use[key] + self._slots(key, claim)
            if (needed := _slots(key, wanted)) > free:
                sharing = list(islice(self._sharing(key, claim), NAMED))
                raise _held(one.resource, device, _without_share(one.replicas, free, needed, sharing))

    def _of_others(self, claim: ClaimHolder, driver: str) -> Iterator[ClaimedDevice]:
        """What a claim has of other drivers, prepared or reserved."""
        for of, (_, devices) in self._prepared.get(claim.uid, {}).items():
            yield from devices if of != driver else ()
        for (holder, of), several in self._reserved.items():
            yield from chain.from_iterable(several) if (holder, of != driver) == (claim, True) else ()

    def _check_parts(
        self, claim: ClaimHolder, one: ClaimedDevice, device: Device, wanted: Sequence[ClaimedDevice]
    ) -> None:
        held = (parts for other, parts in self._parts(one.key) if other != claim)
        needed = [two.parts for two in wanted if two.key == one.key]
        if reason := shortage(needed, held):
            sharing = islice(self._sharing(one.key, claim), NAMED)
            holders = dict.fromkeys(two.holder for two in sharing if two.holder is not None)
            raise _held(one.resource, device, Reason(reason, tuple(holders)))

    def _parts(self, key: Key) -> Iterator[tuple[ClaimHolder, Sequence[CapacityUse]]]:
        """What each claim has of a device, which may be prepared and reserved at once."""
        for claims in self._of_key.get(key, {}).values():
            for claim, devices in claims.items():
                for parts in {(one.request, one.share): one.parts for one in devices}.values():
                    yield claim, parts

    def _occupant(self, holder: AnyHolder) -> Occupant:
        assert isinstance(holder, ClaimHolder)
        return Occupant(self.pods(holder))

    def _sharing(self, key: Key, without: ClaimHolder) -> Iterator[Held]:
        for (driver, _), claims in self._of_key.get(key, {}).items():
            for claim, devices in claims.items():
                if claim != without:
                    yield self._as_held(claim, devices[0], key, driver)

    def _holders(self, key: Key) -> set[ClaimHolder]:
        return set().union(*self._of_key.get(key, {}).values())

    def _slots(self, key: Key, claim: ClaimHolder) -> int:
        some = (claims.get(claim, ()) for claims in self._of_key.get(key, {}).values())
        return _slots(key, chain.from_iterable(some))

    def _add(self, claim: ClaimHolder, devices: Iterable[ClaimedDevice], driver: str) -> None:
        for one, key in _each(devices):
            self.ledger.devices.update(key, self.ledger.present(key))
            before = self._slots(key, claim)
            resources = self._of_key.setdefault(key, {})
            resources.setdefault((driver, one.resource), {}).setdefault(claim, []).append(one)
            self._in_use[key] += self._slots(key, claim) - before

    def _remove(self, claim: ClaimHolder, devices: Iterable[ClaimedDevice], driver: str) -> None:
        for one, key in _each(devices):
            before = self._slots(key, claim)
            resources = self._of_key[key]
            through = driver, one.resource
            claims = resources[through]
            claims[claim].remove(one)
            if not claims[claim]:
                del claims[claim]
            if not claims:
                del resources[through]
            self._in_use[key] += self._slots(key, claim) - before
            if not resources:
                del self._of_key[key], self._in_use[key]

    def _all(self) -> Iterator[tuple[ClaimHolder, str, ClaimedDevice]]:
        for (claim, driver), several in self._reserved.items():
            for one in chain.from_iterable(several):
                yield claim, driver, one
        for prepared in self._prepared.values():
            for driver, (claim, devices) in prepared.items():
                for one in devices:
                    yield claim, driver, one


def users_of(claim: ClaimHolder, listed: Claims) -> Sequence[Holder]:
    """The containers that use a claim, in the kubelet's order, by one of its lists.

    The list names claims without their uid, and has the devices of a claim that was deleted until its pod
    ends. CDI names of prepared claims begin with the uid, so such a claim is not taken for its successor.
    """
    use = listed.get((claim.namespace, claim.name))
    if use is None:
        return ()
    names = [name.partition("=")[2] for one in use.devices for name in one.cdi_names]
    uids = {found[0] for name in names if (found := UUID.match(name))}
    return use.holders if claim.uid in uids or not uids else ()


def _each(devices: Iterable[ClaimedDevice]) -> Iterator[tuple[ClaimedDevice, Key]]:
    """What claims hold: each device, and of a unit each member."""
    return ((one, key) for one in devices for key in one.keys)


def _slots(key: Key, devices: Iterable[ClaimedDevice]) -> int:
    """The slots of a device that one claim has, which may be prepared and reserved at once."""
    return sum({(one.request, one.share): one.slots for one in devices if key in one.keys}.values())


def _without_share(replicas: int, free: int, needed: int, sharing: Sequence[Held]) -> Reason:
    """Why a claim does not get what it needs of a device that several may use."""
    if not sharing:
        return Reason(_TOO_OFTEN)
    if replicas == 1:
        return sharing[0].reason(sharing[0].holds("it"))
    holders = tuple(dict.fromkeys(one.holder for one in sharing if one.holder is not None))
    if free <= 0:
        return Reason(f"all {replicas} shares are in use", holders)
    return Reason(f"{free} of {replicas} shares are free, and the claim needs {needed}", holders)


def _held(resource: str, device: Device, reason: Reason) -> DeviceHeld:
    return DeviceHeld(f"{resource}: {device.id} cannot be allocated: {reason.text}", reason.held_by)


_PCI = "pci:"
_NO_LABEL = re.compile(r"[^a-z0-9]")


def folded(text: str) -> str:
    """A text in the form in which names are compared."""
    return _NO_LABEL.sub("-", text.lower())


class OtherDrivers:
    """What the kubelet's newest list has of drivers that are not devhost's own, in the terms of tokens.

    The kubelet lists the devices of all drivers by the names that the drivers give them. A device that is
    named so counts as held by the container, like one of which another plugin allocated a token, and by the
    same rules (see :mod:`.leases`): the driver is the resource, and ``pool/device`` for the token.

    A name means a device if it is the device's id or its PCI address (of a claim ``pci:<address>``), after
    both have been made lower case, with ``-`` for every character that is no letter and no digit. Names in
    slices are DNS labels, so ``0000:3b:00.0`` appears as ``0000-3b-00-0``. Names such as ``gpu-0`` mean no
    device here.

    The list does not show whether a claim has admin access, which takes nothing from anybody; such a device
    counts as held.

    ``held`` is whether a driver's token counts as held, so that its names are kept when a list lacks it.
    """

    def __init__(self, held: Callable[[str, str], bool]) -> None:
        self._held = held
        self._own: set[str] = set()
        self._names: dict[Token, frozenset[str]] = {}
        """What the tokens of the newest list, and those that are held, are called; by driver and token."""
        self.listing: Listing | None = None
        """The newest list as one whose resources are drivers, and whose devices theirs."""
        self._index: dict[str, _Index] = {}

    def own(self, driver: str) -> None:
        """Counts a driver as devhost's own from now on."""
        if driver not in self._own:
            self._own.add(driver)
            if self.listing is not None:
                self.take(self.listing)

    def take(self, listing: Listing) -> Listing:
        """Keeps the claims in a list."""
        holders: dict[str, dict[str, Holder | None]] = {}
        names: dict[Token, set[str]] = {}
        users: set[Holder] = set()
        for use in listing.claims.values():
            users.update(use.holders)
            for device in use.devices:
                if device.driver not in self._own:
                    token = f"{device.pool}/{device.device}"
                    holders.setdefault(device.driver, {}).setdefault(token, use.holders[0])
                    names.setdefault((device.driver, token), set()).update(_names(device))
        kept = {token: known for token, known in self._names.items() if self._held(*token)}
        self._names = kept | {token: frozenset(known) for token, known in names.items()}
        containers = dict.fromkeys(listing.containers, False) | dict.fromkeys(users, True)
        self.listing = replace(listing, holders=holders, containers=containers)
        return self.listing

    def named(self, driver: str, token: str, found: Found) -> dict[Key, Device]:
        """The devices that a token means."""
        named: dict[Key, Device] = {}
        for name in self._names.get((driver, token), ()):
            for backend, devices in found.items():
                index = self._index.get(backend)
                if index is None or index.devices is not devices:
                    index = self._index[backend] = _Index(devices)
                named.update({(backend, device.id): device for device in index.called(name)})
        return named


def _names(device: ClaimUseDevice) -> Iterator[str]:
    """What a driver calls a device."""
    yield folded(device.device)
    for name in device.cdi_names:
        yield folded(name.partition("=")[2])


class _Index:
    """The devices of one backend by the names that drivers may give them."""

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = devices
        self._called: dict[str, dict[str, Device]] = {}
        for device in devices.values():
            addresses = (claim.removeprefix(_PCI) for claim in device.claims if claim.startswith(_PCI))
            for name in (device.id, *addresses):
                self._called.setdefault(folded(name), {})[device.id] = device

    def called(self, name: str) -> Sequence[Device]:
        return tuple(self._called.get(name, {}).values())
