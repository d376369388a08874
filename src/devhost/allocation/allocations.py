"""Who holds what: the tokens that containers have, and the devices behind each. Pure.

When a token counts as held, and when a release is believed, is in :mod:`.leases`.

Allocations outlive the resources: those of a resource that has left the configuration are kept until
everything has been released. The plan reads them, so that no other container gets what one holds, even if the
configuration changes.

After a start of devhost only the kubelet knows who holds what, and it knows resources and tokens, but not
devices. A token is made from its device's id, so the device is found by it:

* of a configured resource, among the devices of its backend;
* an id that an earlier version of the backend gave (``Device.former_ids``) counts for every device that may
  have had it;
* of any other resource, or if that backend has no such device, among the devices of all backends. Such a
  resource may have left the configuration, or another plugin may serve it with the same hardware. Both count:
  a device that a container uses is not free, even if another plugin allocated it;
* a device that another DRA driver gave to a container counts like a token of another plugin, see
  :class:`.OtherDrivers`;
* a token for all devices with one value of an attribute counts for all that the entry selects now;
* a token for all devices of a resource counts for every device that the resource has had since the start;
  if the configuration no longer has the resource, its devices stay unknown;
* of several devices, those whose nodes the container was not given do not count (:meth:`.Given.possible`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from itertools import chain
from types import TracebackType
from typing import Any, Self

from devhost.backend.claim import holder as held_by_pod
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID, AnyHolder, ClaimHolder, Device, Holder
from devhost.planning.claims import (
    NOTHING_BOUND,
    ClaimIndex,
    Held,
    HeldDevices,
    Key,
    Occupant,
    PodClaims,
    first,
    pod_claims,
    pod_of,
)
from devhost.planning.plan import Found, Plan, RefusalKind, in_units
from devhost.planning.settings import PLUGIN, ResourceSettings, Serve, Settings, Side
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.planning.tokens import ALL, DeviceIds, alike, represents_all, unit_of
from devhost.runtime.reconciler import Report

from .claims import ClaimAllocations, Claimed, DeviceHeld, OtherDrivers
from .given import Given, UnclaimedNodes
from .leases import NO_CLAIMS, Admissions, Claims, Leases
from .leases import Kubelet as Kubelet
from .leases import Listing as Listing

_Reserved = tuple[tuple[Key, ...], bool]
"""What a container gets with a token, and whether it gets these devices alone."""

Released = Callable[[str, tuple[str, ...]], None]
"""Called with a resource and its tokens that were released."""


@frozen(slots=True)
class TokenGroup:
    """Tokens of one resource with the same devices and the same holder, in no order."""

    tokens: tuple[str, ...]
    keys: tuple[Key, ...]
    holder: Holder | None


@frozen
class Holding:
    """What containers have of one resource, at one moment.

    ``forgotten`` are the holders of tokens that the kubelet has forgotten. Of the ``inferred`` tokens the
    devices are only a conclusion; the ``pending`` ones are about to be allocated.
    """

    resource: str
    groups: Sequence[TokenGroup] = ()
    forgotten: Mapping[str, Holder] = field(default_factory=dict)
    inferred: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()

    def tokens(self) -> frozenset[str]:
        """Every token that a container has, or is about to get."""
        return frozenset(chain.from_iterable(group.tokens for group in self.groups))

    def leased(self) -> dict[str, tuple[Sequence[Key], Holder | None]]:
        """Every token that a container has, with what it certainly got and its holder."""
        return {
            token: (() if token in self.inferred else group.keys, group.holder)
            for group in self.groups
            for token in group.tokens
            if token not in self.pending
        }


class ResourceAllocations:
    """What containers have of one resource."""

    def __init__(self, resource: str, everything: Allocations, side: Side = PLUGIN) -> None:
        self.resource = resource
        self.side = side
        self.exclusive = True
        """Whether the resource shares its devices with no other; true if that is not known."""
        self.backend = ""
        """The backend whose device a token names; empty if several may, or a token names more."""
        self.revision = 0
        """Grows with each change of what is held."""
        self.everything = everything
        """The allocations of all resources, which these are a part of."""
        self._devices = everything.devices
        self.leases = Leases(everything.clock, everything.timing)
        self._reserved: dict[str, list[_Reserved]] = {}
        self._vanished: Collection[str] = ()
        self._now: Holding | None = None

    def __contains__(self, token: object) -> bool:
        return token in self.leases

    def tokens(self) -> frozenset[str]:
        return self.leases.tokens() | self._reserved.keys()

    def holds(self, token: str) -> bool:
        """Whether a container has this token, or is about to get it."""
        return token in self.leases or token in self._reserved

    def is_unused(self) -> bool:
        """Whether it is known that no container has anything of the resource."""
        return self.everything.known and not self.is_held()

    def reserved(self, token: str) -> tuple[Key, ...]:
        """The devices that a container gets with the token; none once that is recorded."""
        several = self._reserved.get(token)
        return several[-1][0] if several else ()

    def is_held(self) -> bool:
        return bool(self.leases or self._reserved)

    def got(self, token: str) -> tuple[Key, ...]:
        """The devices that the holder of this token got with it, as far as that is known.

        This is one object for all tokens that a container got together.
        """
        lease = self.leases.held.get(token)
        return lease.got if lease else ()

    def terms(self, token: str) -> Any:
        """The terms on which this run of devhost allocated a token; ``None`` if it did not."""
        lease = self.leases.held.get(token)
        return lease.terms if lease else None

    def devices_of(self, token: str) -> frozenset[Key]:
        """The devices that a container has, or is about to get, by this token."""
        lease = self.leases.held.get(token)
        reserved = (keys for keys, _ in self._reserved.get(token, ()))
        return frozenset(lease.keys if lease else ()).union(*reserved)

    def is_unshared(self, token: str) -> bool:
        """Whether the devices were allocated to its container alone; true if that is not known."""
        several, lease = self._reserved.get(token), self.leases.held.get(token)
        known = lease.alone if lease else None
        if several:
            known = several[-1][1]
        return unit_of(token) in (token, ALL) if known is None else known

    def groups(self) -> Sequence[TokenGroup]:
        """The tokens that are held: those with the same devices and the same holder together.

        A pod may have many thousand tokens of the same devices, so most work is done once for all of them.
        """
        return self.now().groups

    def now(self) -> Holding:
        """What is held now: the same value until that changes."""
        if self._now is None:
            groups = sorted(self._grouped(), key=lambda group: min(group.tokens))
            pending = frozenset(token for token in self._reserved if token not in self.leases)
            inferred = frozenset(token for token, one in self.leases.held.items() if one.inferred)
            self._now = Holding(self.resource, groups, self.leases.forgotten(), inferred, pending)
        return self._now

    def _grouped(self) -> Iterator[TokenGroup]:
        found: dict[tuple[int, Holder | None], tuple[list[str], tuple[Key, ...]]] = {}
        joined: dict[tuple[int, ...], tuple[Key, ...]] = {}
        leases = self.leases.held
        for token in self.tokens():
            lease = leases.get(token)
            keys, holder = (lease.keys, lease.holder) if lease else ((), None)
            if token in self._reserved:
                parts = (keys, *(more for more, _ in self._reserved[token]))
                same = tuple(map(id, parts))
                if same not in joined:
                    joined[same] = tuple(dict.fromkeys(chain.from_iterable(parts)))
                keys = joined[same]
            found.setdefault((id(keys), holder), ([], keys))[0].append(token)
        return (TokenGroup(tuple(tokens), keys, holder) for (_, holder), (tokens, keys) in found.items())

    def held(self) -> Iterator[Held]:
        """Each device that is held, once for all tokens of a :class:`TokenGroup`."""
        for group in self.groups():
            for key in sorted(set(group.keys)):
                device = self._devices[key]
                yield Held(
                    self.resource, group.tokens, key[0], device, self.exclusive, group.holder, self.side
                )

    def recent(self) -> Iterator[tuple[Key, int]]:
        """The devices of Allocates whose admission may go on, each with the number of its Allocate."""
        for lease in self.leases.held.values():
            if self.everything.admissions.is_recent(lease.number):
                for key in lease.keys:
                    yield key, lease.number

    def pods(self) -> Iterator[tuple[str, Key]]:
        """The pod that holds each device, empty if it is not named yet. May be called from any thread."""
        for lease in tuple(self.leases.held.values()):
            pod = f"{lease.holder.namespace}/{lease.holder.pod}" if lease.holder else ""
            yield from ((pod, key) for key in lease.keys)
        for several in tuple(self._reserved.values()):
            yield from (("", key) for keys, _ in tuple(several) for key in keys)

    def held_devices(self) -> Iterator[Key]:
        """Every device that is held; one may come more than once. May be called from any thread."""
        distinct = {id(lease.keys): lease.keys for lease in tuple(self.leases.held.values())}
        for several in tuple(self._reserved.values()):
            distinct.update((id(keys), keys) for keys, _ in tuple(several))
        return chain.from_iterable(distinct.values())

    def reserve(
        self,
        backend: str,
        wanted: Mapping[str, Collection[Device]],
        unshared: Collection[str],
        *,
        listed: bool,
    ) -> dict[str, _Reserved]:
        distinct = {id(devices): devices for devices in wanted.values()}.values()
        self.everything.claims.refuse_held(
            backend, self.resource, self.exclusive, list(chain.from_iterable(distinct))
        )
        both = {one: ((keys, False), (keys, True)) for one, keys in self._update(backend, wanted).items()}
        mine = {token: both[id(devices)][token in unshared] for token, devices in wanted.items()}
        for token, one in mine.items():
            self._reserved.setdefault(token, []).append(one)
        self.changed(replan=not listed)
        return mine

    def unreserve(self, mine: Mapping[str, _Reserved]) -> bool:
        """Ends the reservation of these tokens; whether containers have all that was reserved."""
        distinct: dict[tuple[int, int], tuple[tuple[Key, ...], tuple[Key, ...]]] = {}
        for token, one in mine.items():
            self._reserved[token].remove(one)
            if not self._reserved[token]:
                del self._reserved[token]
            keys, lease = one[0], self.leases.held.get(token)
            got = lease.keys if lease else ()
            distinct[id(keys), id(got)] = keys, got
        self.changed(replan=False)
        return all(set(keys) <= set(got) for keys, got in distinct.values())

    def allocated(
        self,
        backend: str,
        given: Mapping[str, Iterable[Device]],
        unshared: Collection[str] = (),
        terms: object = None,
    ) -> None:
        """A container gets these tokens, with these devices. The containers that held them no longer do.

        ``unshared`` are those of the tokens whose devices are allocated only once. ``terms`` is a
        :class:`devhost.allocation.resource_backend.Terms`.
        """
        keys = self._update(backend, given)
        self.leases.allocated(given, self.everything.admissions.number, terms)
        held, reserved = self.leases.held, self._reserved
        for token, devices in given.items():
            lease, several = held[token], reserved.get(token)
            lease.keys = keys[id(devices)]
            lease.alone = several[-1][1] if several else token in unshared
        self.changed(replan=False)
        self.everything.due_changed()

    def recalls(self, listing: Listing) -> bool:
        return self.leases.recalls(listing, self.resource)

    def apply(self, listing: Listing, *, recalls: bool = False) -> tuple[bool, tuple[str, ...]]:
        """Takes a list of the kubelet: whether a holder has changed, and which tokens were released."""
        before, forgotten = self.leases.tokens(), self.leases.forgotten()
        changed = self.leases.apply(listing, self.resource, recalls=recalls)
        if not changed:
            return False, ()
        after = self.leases.tokens()
        released = tuple(token for token in before if token not in after)
        self.changed(replan=before != after or forgotten != self.leases.forgotten())
        return True, released

    def release(self, tokens: Sequence[str]) -> None:
        """Counts tokens as free: their containers have ended."""
        for token in tokens:
            self.leases.release(token)
        self.changed(replan=True)

    def unresolved(self) -> list[str]:
        """Held tokens whose devices are not known, because only the kubelet has named them."""
        return [token for token, one in self.leases.held.items() if one.inferred or not one.keys]

    def infer(self, tokens: Iterable[str], devices: Mapping[Key, Device]) -> None:
        """Counts these devices as held by each of these tokens, which only the kubelet has named."""
        if not devices:
            return
        joined: dict[int, tuple[tuple[Key, ...], tuple[Key, ...]]] = {}
        changed = False
        for token in tokens:
            lease = self.leases.held[token]
            known = lease.keys
            if id(known) not in joined:
                new = devices.keys() - set(known)
                for key in new:
                    self._devices.update(key, devices[key])
                joined[id(known)] = known, (known + tuple(key for key in devices if key in new))
            _, both = joined[id(known)]
            if len(both) > len(known):
                lease.keys, lease.inferred = both, True
                changed = True
        if changed:
            self.changed(replan=True)

    def keep_listed(self, vanished: Collection[str]) -> None:
        """Takes the tokens that are still listed only because a container holds them."""
        if vanished != self._vanished:
            self._vanished = vanished
            self.everything.due_changed()

    def due(self, last: float, *, awaited: bool = False) -> float | None:
        """When the next list is wanted, sooner if another resource has ``awaited`` what is held here."""
        return self.leases.due(last, self.leases.tokens() if awaited else self._vanished)

    def _update(self, backend: str, given: Mapping[str, Iterable[Device]]) -> dict[int, tuple[Key, ...]]:
        """Takes the devices of these tokens; gives their keys by the identity of each sequence of devices."""
        known: dict[int, tuple[Key, ...]] = {}
        for devices in given.values():
            if id(devices) not in known:
                keys = {(backend, device.id): device for device in devices}
                for key, device in keys.items():
                    self._devices.update(key, device)
                known[id(devices)] = tuple(keys)
        return known

    def changed(self, *, replan: bool) -> None:
        """What is held has changed; with ``replan`` the plan may be outdated."""
        self._now = None
        self.revision += 1
        self.everything.changed_by(self, replan=replan)


class Reservation:
    """Tokens of one Allocate, which count as held from :meth:`add` until :meth:`end`, to be called once.

    Otherwise a plan that is made meanwhile could give them to another resource. A request with many tokens
    adds them in pieces.
    """

    def __init__(self, allocations: ResourceAllocations, backend: str) -> None:
        self._allocations = allocations
        self._backend = backend
        self._mine: list[dict[str, _Reserved]] = []
        self._given = True
        allocations.everything.admissions.begin()

    def add(
        self, wanted: Mapping[str, Collection[Device]], unshared: Collection[str] = (), *, listed: bool = True
    ) -> None:
        """Counts further tokens, each with its devices, as held.

        ``unshared`` are those of the tokens whose devices are allocated only once. ``listed`` is whether all
        of the tokens are in the list, so that it stays as it is. Raises ``DeviceHeld`` if a ResourceClaim
        holds one of the devices, or a container has it from another DRA driver, or they hold hardware that
        conflicts with it.
        """
        self._mine.append(self._allocations.reserve(self._backend, wanted, unshared, listed=listed))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def drop(self) -> bool:
        """Ends the reservation of the tokens that were added last; whether others are left."""
        if self._mine:
            given = self._allocations.unreserve(self._mine.pop())
            self._given = self._given and given
        return bool(self._mine)

    def end(self) -> None:
        """Ends the reservation of all tokens. The plan is outdated if containers do not have them."""
        while self.drop():
            pass
        if not self._given:
            self._allocations.changed(replan=True)
        self._allocations.everything.admissions.end()


class Allocations:
    """What containers have, of all resources.

    ``clock`` gives monotonic seconds. ``changed`` is called when the plan is outdated because the allocations
    have changed; not after an Allocate of what the plan offered.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        changed: Callable[[], None] = lambda: None,
        timing: AllocationTiming = ALLOCATION,
    ) -> None:
        self.clock = clock
        self.timing = timing
        self.devices = HeldDevices()
        self._unclaimed = UnclaimedNodes()
        self.admissions = Admissions(clock, timing)
        self.claims = ClaimAllocations(self)
        self.claims.subscribe(self.due_changed)
        self.given = Given()
        self.awaited = False
        """Whether a resource waits for a device that a container holds, so that lists are wanted sooner."""
        self._changed = changed
        self._claims_changed = Report(changed)
        self._resources: dict[str, ResourceAllocations] = {}
        self._of_drivers: dict[str, ResourceAllocations] = {}
        """What containers have of each DRA driver that is not devhost's own: as far as backends find it."""
        self._drivers = OtherDrivers(lambda name, token: token in self._of_drivers.get(name, ()))
        self._in_use: dict[str, ResourceAllocations] = {}
        """Those of which a container has something: few of many, and a plan looks at them several times."""
        self._released: list[Released] = []
        self._watching: list[Callable[[], None]] = []
        self._held: tuple[Held, ...] | None = ()
        self._claimed: Sequence[Claimed] = ()
        self._claimed_when: tuple[object, object] = ((), None)
        self._bound: tuple[Sequence[Held], float, PodClaims] = ((), math.inf, NOTHING_BOUND)
        self._bound_to_tokens: tuple[object, float, PodClaims] = (None, math.inf, NOTHING_BOUND)
        self._by_tokens: ClaimIndex | None = None
        self._by_drivers: ClaimIndex | None = None
        self._listing: Listing | None = None
        self._recalling: dict[Side, Kubelet] = {}
        """The kubelet that has read its checkpoint, of device plugins and of claims."""
        self._units: dict[str, frozenset[str]] = {}
        self._irrelevant: dict[str, tuple[Mapping[str, Device], ...]] = {}
        """Resources of the newest list that have nothing to do with these devices of all backends."""
        self._first: float | None = None
        self.known = False
        """Whether the kubelet has listed who holds what since the start.

        A list without any pod does not count at first: a kubelet that knows no pods yet answers so."""
        self._found: Found = {}
        self._known_of: dict[str, DeviceIds] = {}
        self._in_units: dict[int, tuple[object, DeviceIds, Mapping[str, Sequence[Device]]]] = {}
        """The units by an attribute of entries, by index, as long as the devices of the backend are these."""
        self._settings = Settings()
        self._observed = False
        self._deferring = False
        self._stale = False

    def of(self, resource: str) -> ResourceAllocations:
        """The allocations of a resource; empty if nothing was ever held through it."""
        found = self._resources.get(resource)
        if found is None:
            found = self._resources[resource] = ResourceAllocations(resource, self)
            self._configure(found)
            self.due_changed()
        return found

    def in_use(self) -> Iterator[ResourceAllocations]:
        """The resources of which a container has something, by name."""
        return (found for _, found in sorted(self._in_use.items()))

    def held(self) -> Sequence[Held]:
        """Every device that a container or a claim has, or is about to get, in a stable order."""
        if self._held is None:
            self._held = (*self._by_token(), *self.claims.held(), *self._by_driver())
        return self._held

    def claimed(self) -> Sequence[Claimed]:
        """What prepared claims hold, each device of a claim once: the same value until that changes."""
        state = self.held(), self._listing
        if any(map(operator.is_not, state, self._claimed_when)):
            self._claimed_when, self._claimed = state, tuple(self.claims.claimed())
        return self._claimed

    def binds_pods(self) -> bool:
        """Whether a container holds something that binds its pod, so that it matters which pod that is."""
        return bool(self.devices.binding) and any(pod_claims(one.device) for one in self.held())

    def pod_claims(self) -> PodClaims:
        """What binds pods, and the pods that have it."""
        if not self.devices.binding:
            return NOTHING_BOUND
        held = self.held()
        if self._bound[0] is not held or self.clock() >= self._bound[1]:
            self._bound = held, *self._pod_claims(held)
        return self._bound[2]

    def pod_claims_of_tokens(self) -> PodClaims:
        """The same without what ResourceClaims hold, which changes with each of them."""
        if not self.devices.binding:
            return NOTHING_BOUND
        state = self.through_tokens, self.from_other_drivers
        if self._bound_to_tokens[0] != state or self.clock() >= self._bound_to_tokens[1]:
            held = (*self._by_token(), *self._by_driver())
            self._bound_to_tokens = state, *self._pod_claims(held)
        return self._bound_to_tokens[2]

    def _pod_claims(self, held: Sequence[Held]) -> tuple[float, PodClaims]:
        """What of these binds pods, and until when that is so."""
        leases = (lease for one in self._resources.values() for lease in one.leases.held.values())
        end = self.admissions.ends((lease.holder, lease.number) for lease in leases)
        now = self.clock()
        changes: list[float] = []

        def occupant(holder: AnyHolder) -> Occupant:
            if isinstance(holder, ClaimHolder):
                return Occupant(self.claims.pods(holder))
            pod = pod_of(holder)
            if may_get_more := end(pod) > now:
                changes.append(end(pod))
            return Occupant(frozenset({pod}), may_get_more)

        bound = PodClaims(held, occupant)
        return min(changes, default=math.inf), bound

    def recent_pod_claims(self) -> dict[str, int]:
        """What binds a pod that may still get more, each with the number of its Allocate."""
        return {
            claim: number
            for resource in self._resources.values()
            for key, number in resource.recent()
            for claim in pod_claims(self.devices[key])
        }

    def next_change(self) -> float | None:
        """Seconds until time alone changes :meth:`pod_claims`; ``None`` if it will not."""
        until = self._bound[1] if self.pod_claims() else math.inf
        return None if until == math.inf else max(0.0, until - self.clock())

    @property
    def through_tokens(self) -> ClaimIndex:
        """Every device that a container has, or is about to get, through a token."""
        self._drop_changed()
        if self._by_tokens is None:
            self._by_tokens = ClaimIndex(self._by_token())
        return self._by_tokens

    @property
    def from_other_drivers(self) -> ClaimIndex:
        """Every device that a container has from a DRA driver other than devhost's."""
        self._drop_changed()
        if self._by_drivers is None:
            self._by_drivers = ClaimIndex(self._by_driver())
        return self._by_drivers

    def _by_token(self) -> Iterator[Held]:
        return (held for found in self.in_use() for held in found.held())

    def _by_driver(self) -> Iterator[Held]:
        return (held for _, found in sorted(self._of_drivers.items()) for held in found.held())

    def _drop_changed(self) -> None:
        """Drops the indexes that have a device which has changed."""
        changed = self.devices.changed
        if changed and self._by_tokens is not None and self._by_tokens.has_any(changed):
            self._by_tokens = None
        if changed and self._by_drivers is not None and self._by_drivers.has_any(changed):
            self._by_drivers = None
        changed.clear()

    def own_driver(self, driver: str) -> None:
        """Counts a DRA driver as devhost's own as long as devhost runs: :attr:`claims` has what it gave.

        The driver of the settings is one without this call.
        """
        if self._own(driver):
            self._changed()

    def _own(self, driver: str) -> bool:
        """True if its devices counted as held until now."""
        self._drivers.own(driver)
        counted = self._of_drivers.pop(driver, None) is not None
        if counted:
            self._held = self._by_drivers = None
        return counted

    @property
    def listed_claims(self) -> Claims:
        """Which containers use claims, by the newest list."""
        return NO_CLAIMS if self._listing is None else self._listing.claims

    def is_held(self, resource: str, token: str) -> bool:
        found = self._resources.get(resource)
        return found is not None and token in found

    def has_token(self, resource: str, token: str) -> bool | None:
        """Whether a container holds this token; ``None`` while that is not known.

        The resource is followed from now on, so that subscribers are notified of the token's release.
        """
        is_new = resource not in self._resources
        found = self.of(resource)
        if is_new and self._listing is not None:
            with self._deferred():
                self._apply_to(found, self._listing)
        if found.holds(token):
            return True
        return False if self.known else None

    def entries(self, resource: str) -> list[ResourceSettings]:
        """The entries of the configuration from which the resource may come."""
        found = []
        for entry in self._settings.resources:
            plain, brace, _ = entry.name.partition("{")
            if resource == entry.name or (brace and resource.startswith(plain)):
                found.append(entry)
        return found

    def resources(self) -> frozenset[str] | None:
        """All resources, also not followed ones, of which a container has something; ``None`` if unknown."""
        if not self.known or self._listing is None:
            return None
        return frozenset(self._listing.holders).union(self._in_use)

    def claims_in_use(self) -> frozenset[str] | None:
        """What containers use up: all claims of held devices, whole or in part, and the devices themselves.

        A device appears as ``device:<backend>/<id>``, also one that the kubelet names and no backend has
        found yet, and with each pod that holds it. ``None`` while it is not :attr:`known` who holds what. May
        be called from any thread.
        """
        if not self.known or not self._observed or self._listing is None:
            return None
        claims: set[str] = set()
        for key in self._held_keys():
            claims.add(f"device:{key[0]}/{key[1]}")
            if (device := self.devices.get(key)) is not None:
                claims |= device.claims | device.part_of
        for resource, tokens in self._listing.holders.items():
            backends = {entry.backend for entry in self.entries(resource)} or self._found.keys()
            claims.update(f"device:{backend}/{unit_of(token)}" for token in tokens for backend in backends)
        for allocations in tuple(self._resources.values()):
            claims.update(held_by_pod(pod, *key) for pod, key in allocations.pods())
        claims.update(held_by_pod("", *key) for key in self._held_otherwise())
        return frozenset(claims)

    def subscribe(self, released: Released) -> Callable[[], None]:
        """Calls ``released`` with each resource and its released tokens; call the result to end that."""
        self._released.append(released)
        return lambda: self._released.remove(released)

    def watch(self, due_changed: Callable[[], None]) -> None:
        """Calls ``due_changed`` whenever :meth:`due` may be sooner than before."""
        self._watching.append(due_changed)

    def follow(self, resource: str) -> None:
        """Follows a resource, which another plugin may serve, because its release is awaited."""
        if resource not in self._resources and self._listing is not None:
            self._apply_to(self.of(resource), self._listing)

    def apply(self, listing: Listing) -> bool:
        """Takes a list of the kubelet; true when a holder has changed."""
        # what the list is worth: whether the kubelet knows its pods, and has read its checkpoint
        if self._first is None:
            self._first = listing.began
        self.known = self.known or bool(listing.pods) or listing.began - self._first >= self.timing.no_pods
        self._listing, self._units, self._irrelevant = listing, {}, {}
        # what is held changes as a whole, before anything is reported
        with self._deferred():
            taken = self._take(listing, self._resources)
            of_drivers = self._take(self._drivers.take(listing), self._of_drivers)
            self._resolve()
        # the released tokens are reported first, then one plan for all changes
        for resource, (_, tokens) in taken.items():
            if tokens:
                for released in tuple(self._released):
                    released(resource, tokens)
        if self._stale:
            self._stale = False
            self._changed()
        return any(changed for changed, _ in (*taken.values(), *of_drivers.values()))

    def give(
        self,
        resource: str,
        devices: Mapping[Key, Device],
        nodes: frozenset[str],
        claim: ClaimHolder | None = None,
        *,
        running: bool = False,
    ) -> None:
        """Counts nodes that a container is about to get with devices that do not claim them.

        ``nodes`` are claims. ``claim`` is what gets them, if not a container. With ``running`` it has them
        already, so that nothing can be refused. Raises ``DeviceHeld`` if another container or claim has one
        of the nodes.
        """
        for key in devices:
            self._unclaimed.add(key, nodes)
        completed = {key: self._unclaimed.device(key, device) for key, device in devices.items()}
        if not running:
            for key, device in completed.items():
                near = ClaimIndex(self.claims.near(key, device, claim))
                indexes = near, self.through_tokens, self.from_other_drivers
                if conflict := first(one.conflict(key, device, completed) for one in indexes):
                    forgot = f"backend {key[0]} gives it without a claim"
                    why = f"{resource}: {device.id} cannot be allocated: {conflict.reason.text} ({forgot})"
                    raise DeviceHeld(why, conflict.reason.held_by)
        for key, device in completed.items():
            self.devices.update(key, device)
        self._held = None
        if claim is None:
            self._changed()
        else:
            self._claims_changed()

    def present(self, key: Key) -> Device:
        """The device as the last plan found it; by its id alone if it did not."""
        return self._found.get(key[0], {}).get(key[1]) or Device(key[1])

    def completed(self, found: Found) -> Found:
        """The devices with the nodes that containers got with them, as if the devices claimed these."""
        for key, nodes in self.given.unclaimed(self.held()):
            self._unclaimed.add(key, nodes)
        return self._unclaimed.completed(found)

    def observe(self, found: Found, settings: Settings) -> None:
        """Takes the present devices (see :meth:`completed`) and settings. Must be called before each plan."""
        self._found, self._observed = found, True
        if settings is not self._settings:
            self._settings = settings
            self._in_units.clear()
            for driver in filter(None, (settings.dra_driver, *settings.drivers)):
                self._own(driver)
            for allocations in self._resources.values():
                self._configure(allocations)
        with self._deferred():
            self._update_devices()
            self._resolve()
            self.compare()
        self._stale = False

    def compare(self, found: Found | None = None) -> bool:
        """Compares what containers were given with the devices that exist; true if other things are held now.

        ``found`` are all devices, if not those of the last plan.
        """
        found = self._found if found is None else found
        for allocations in self.in_use():
            for tokens, devices in tuple(self._given_by(allocations, found)):
                allocations.infer(tokens, devices)
        held = self.held()
        changed = self.devices.settle(self.given.compare(held, found), self.given.fixed(held))
        if changed:
            self._held = None
        return changed

    def _given_by(
        self, allocations: ResourceAllocations, found: Found
    ) -> Iterator[tuple[Sequence[str], Mapping[Key, Device]]]:
        """What containers were given by tokens, and have by none of them as the tokens are read now."""
        unresolved = frozenset(allocations.unresolved())
        groups = allocations.groups() if unresolved else ()
        known: dict[Holder | None, set[Key]] = {}
        for group in groups:
            known.setdefault(group.holder, set()).update(group.keys)
        for group in groups:
            tokens = unresolved.intersection(group.tokens)
            for gift, same in self.given.of_tokens(allocations.resource, tokens, group.holder):
                if gift is None:
                    continue
                if not group.keys:
                    for token in same:
                        yield (token,), gift.devices(self._meant_by(allocations, token))
                    continue
                missing = gift.devices().keys() - known[group.holder]
                present = {key: found.get(key[0], {}).get(key[1]) for key in sorted(missing)}
                yield same, {key: device for key, device in present.items() if device is not None}

    def _meant_by(self, allocations: ResourceAllocations, token: str) -> Key | None:
        """The device that a token names, whether or not there is one; ``None`` if that is not certain."""
        certain = allocations.backend and not represents_all(token) and len(token) < MAX_DEVICE_ID
        return (allocations.backend, unit_of(token)) if certain else None

    def learn(self, plan: Plan) -> bool:
        """Takes from a plan the devices of tokens for all devices; true if it has to be made again."""
        with self._deferred():
            for allocations in self.in_use():
                resource = plan.resources.get(allocations.resource)
                everything = [token for token in allocations.unresolved() if represents_all(token)]
                if resource is None or not everything:
                    continue
                backend = resource.entry.backend
                devices = {(backend, offer.device.id): offer.device for offer in resource.offers}
                self._infer(allocations, everything, devices)
        refused = any(refusal.kind is RefusalKind.HELD for refusal in plan.refusals)
        self.awaited = refused or bool(self.pod_claims())
        stale, self._stale = self._stale, False
        return stale

    def due(self, last: float) -> float | None:
        """When the next list is wanted, see :meth:`.Leases.due`."""
        followed = *self._resources.values(), *self._of_drivers.values()
        wishes = [found.due(last, awaited=self.awaited) for found in followed]
        if self.claims.count:
            wishes.append(last + self.timing.list_held)
        return min((wish for wish in wishes if wish is not None), default=None)

    def due_changed(self) -> None:
        """Reports that a list may be wanted sooner than before."""
        for watching in self._watching:
            watching()

    def changed_by(self, allocations: ResourceAllocations, *, replan: bool) -> None:
        self._held = None
        if allocations.side != PLUGIN:
            self._by_drivers = None
        else:
            self._by_tokens = None
            if allocations.is_held():
                self._in_use[allocations.resource] = allocations
            else:
                self._in_use.pop(allocations.resource, None)
        if replan and self._deferring:
            self._stale = True
        elif replan:
            self._changed()

    def claims_changed(self, released: Collection[str], *, replan: bool) -> None:
        """The claims hold other devices.

        ``released`` are the resources of devices that are free now. With ``replan`` the plan may be outdated.
        """
        self._held = None
        for resource in released:
            for notify in tuple(self._released):
                notify(resource, ())
        if replan:
            self._claims_changed()

    def _update_devices(self) -> None:
        if self._held is None:
            self.devices.keep(set(self._held_keys()))
        for key in self.devices:
            device = self._found.get(key[0], {}).get(key[1])
            if device is not None and self.devices.update(key, device):
                self._held = None

    def _held_keys(self) -> Iterator[Key]:
        """Every device that is held, through a token or by a claim; one may come more than once."""
        for allocations in tuple(self._resources.values()):
            yield from allocations.held_devices()
        yield from self._held_otherwise()

    def _held_otherwise(self) -> Iterator[Key]:
        """The same without what containers have through tokens."""
        yield from self.claims.held_devices()
        for allocations in tuple(self._of_drivers.values()):
            yield from allocations.held_devices()

    def _resolve(self) -> None:
        """Finds the devices behind tokens that only the kubelet has named."""
        if self._listing is not None:
            for resource, tokens in self._listing.holders.items():
                if resource not in self._resources and self._is_relevant(resource, tokens):
                    self._apply_to(self.of(resource), self._listing)
        for allocations in self.in_use():
            if unresolved := allocations.unresolved():
                entries = self.entries(allocations.resource)
                for some in alike(unresolved):
                    self._infer(allocations, some, self._devices_meant(some[0], entries))
        named = self._drivers.named
        if (view := self._drivers.listing) is None:
            return
        for driver, held in view.holders.items():
            if driver not in self._of_drivers and any(named(driver, token, self._found) for token in held):
                followed = ResourceAllocations(driver, self, (Serve.DRA, ""))
                self._of_drivers[driver] = followed
                self.due_changed()
                self._apply_to(followed, view)
        for driver, followed in self._of_drivers.items():
            for token in followed.unresolved():
                followed.infer((token,), named(driver, token, self._found))

    def _infer(
        self, allocations: ResourceAllocations, tokens: Sequence[str], devices: Mapping[Key, Device]
    ) -> None:
        """Counts devices as held by tokens, except those that the tokens' containers were not given."""
        if unit_of(tokens[0]) in (name for _, name in devices):  # what it means is certain
            allocations.infer(tokens, devices)
            return
        by_holder: dict[Holder | None, list[str]] = {}
        for token in tokens:
            by_holder.setdefault(allocations.leases.holder(token), []).append(token)
        for holder, some in by_holder.items():
            for gift, same in self.given.of_tokens(allocations.resource, some, holder):
                possible = self.given.possible((allocations.resource, same[0]), gift, devices)
                allocations.infer(same, possible)

    def _take(
        self, listing: Listing, followed: Mapping[str, ResourceAllocations]
    ) -> dict[str, tuple[bool, tuple[str, ...]]]:
        """Takes a list for resources of one side; see :meth:`ResourceAllocations.apply`."""
        for one in followed.values():
            if self._recalling.get(one.side) != listing.kubelet and one.recalls(listing):
                self._recalling[one.side] = listing.kubelet
        return {name: self._apply_to(one, listing) for name, one in tuple(followed.items())}

    def _apply_to(self, allocations: ResourceAllocations, listing: Listing) -> tuple[bool, tuple[str, ...]]:
        recalls = self._recalling.get(allocations.side) == listing.kubelet
        return allocations.apply(listing, recalls=recalls)

    def _configure(self, allocations: ResourceAllocations) -> None:
        """Takes the settings of a resource; one that has left the configuration is as exclusive as before."""
        entries, name = self.entries(allocations.resource), allocations.resource
        backends = {entry.backend for entry in entries if entry.name == name and not entry.share.attribute}
        allocations.backend = backends.pop() if len(backends) == 1 else ""
        if entries:
            exclusive = any(entry.exclusive for entry in entries)
            if exclusive is not allocations.exclusive:
                allocations.exclusive = exclusive
                self._held = self._by_tokens = None

    def _is_relevant(self, resource: str, tokens: Iterable[str]) -> bool:
        """Whether a resource is in the configuration, or has devices that backends found."""
        if self.entries(resource):
            return True
        units = self._units.get(resource)
        if units is None:  # for each plan, and another plugin may have allocated very many
            units = self._units[resource] = frozenset(map(unit_of, tokens))
        if not all(map(units.isdisjoint, self._found.values())):
            return True
        found = tuple(self._found.values())
        known = self._irrelevant.get(resource)
        if known is not None and len(known) == len(found) and all(map(operator.is_, known, found)):
            return False
        if any(self._devices_meant(some[0], ()) for some in alike(tokens)):
            return True
        self._irrelevant[resource] = found
        return False

    def _devices_meant(self, token: str, entries: Collection[ResourceSettings]) -> dict[Key, Device]:
        """The devices from which a token may be made: of the resource's backend, or else of any."""
        own = {entry.backend for entry in entries}
        in_unit: dict[Key, Device] = {}
        for entry in entries:
            if entry.share.attribute:
                in_unit.update(self._members(token, entry))
        return in_unit or self._named(token, own) or self._named(token, self._found.keys() - own)

    def _members(self, token: str, entry: ResourceSettings) -> Iterator[tuple[Key, Device]]:
        """The devices of the unit by an attribute from which a token may be made."""
        devices = self._found.get(entry.backend, {})
        before, known, units = self._in_units.get(entry.index, (None, DeviceIds({}), {}))
        if before is not devices:
            units = in_units(entry, devices.values())
            known = DeviceIds({name: Device(name) for name in units})
            self._in_units[entry.index] = devices, known, units
        for unit in known.named(token):
            yield from (((entry.backend, device.id), device) for device in units[unit.id])

    def _named(self, token: str, backends: Iterable[str]) -> dict[Key, Device]:
        named = {}
        for backend in backends:
            devices = self._found.get(backend, {})
            known = self._known_of.get(backend)
            if known is None or known.devices is not devices:
                known = self._known_of[backend] = DeviceIds(devices)
            named.update({(backend, device.id): device for device in known.named(token)})
        return named

    @contextmanager
    def _deferred(self) -> Iterator[None]:
        """Defers the report that the plan may be outdated until all changes have been applied."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
