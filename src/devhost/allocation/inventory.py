"""The devices of one resource as the kubelet should see them: snapshots with a revision.

A *token* is what the kubelet counts: a device, a replica of a shared device, or a share of all devices of the
resource together. A token that disappears is first shown as Unhealthy and removed only after
:attr:`.AllocationTiming.grace`, because the kubelet may just have chosen it; a token that a container holds
stays Unhealthy until it is released (see :mod:`.leases`), so that the pod's status is true. A token that a
container holds and the kubelet has forgotten is Unhealthy, too, and has a Healthy stand-in
(:func:`devhost.planning.tokens.stand_in`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import compress
from operator import is_not
from types import MappingProxyType
from typing import NamedTuple

from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, MAX_DEVICE_ID, AnyHolder, Device, Health, Holder, unhealthy
from devhost.discovery.health import Grounds, HealthOf, joint, named, worst
from devhost.planning.claims import IN_USE, Reason, pod, pod_of
from devhost.planning.plan import LIST_LIMIT, Unit, differences, listed_bytes
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.planning.tokens import STAND_IN, is_former, number_of, stand_in, stood_for

from .allocations import Allocations, Reservation, ResourceAllocations
from .leases import LeaseState

_UNKNOWN = ", which the kubelet no longer knows"

FORGOTTEN = f"held by a pod{_UNKNOWN}"
"""The reason of a token that a container holds and the kubelet has forgotten."""


Given = Mapping[str, Sequence[Device]]
"""What a container got: tokens, and the devices behind each."""

_Keeper = tuple[int, str, bool]
"""A held token that keeps other tokens of its devices from being allocated: its order, its id, and whether
that was made from a former id."""


@frozen(slots=True)
class Member:
    """One of the devices that a token represents, and its own health."""

    device: Device
    health: Health


class Entry(NamedTuple):
    """One token: its id, the devices behind it, its health, and since when (wall clock, seconds).

    ``unit`` is the prefix of the token: the device's id if it represents one. ``stands_in`` is whether it is
    a second id of another token. ``held_by`` are the containers to which the reason of its health means.
    """

    token: str
    unit: str
    members: tuple[Member, ...]
    numa_nodes: tuple[int, ...]
    health: Health
    since: float
    gone_at: float | None = None
    stands_in: bool = False
    held_by: tuple[AnyHolder, ...] = ()


@frozen
class Tally:
    """How many tokens a list has."""

    healthy: int = 0
    """Those that a pod could get, as the kubelet counts them."""
    tokens: int = 0
    """All but stand-ins."""
    unhealthy: Mapping[str, int] = field(default_factory=dict)
    """How many of these are unhealthy, by reason."""

    def after(self, gone: Iterable[Entry], new: Iterable[Entry]) -> Tally:
        """The same without some tokens, and with others."""
        healthy, tokens, unhealthy = self.healthy, self.tokens, Counter(self.unhealthy)
        for step, entries in ((-1, gone), (1, new)):
            for entry in entries:
                if entry.health.healthy:  # of a backend, it may be any value
                    healthy += step
                if not entry.stands_in:
                    tokens += step
                    if not entry.health.healthy:
                        unhealthy[entry.health.reason or ""] += step
        return Tally(healthy, tokens, +unhealthy)


@frozen
class Snapshot:
    """All tokens of a resource at one revision. Revisions only grow; 0 means "no list yet".

    ``caused_at`` is the monotonic time of the event that led to it, ``None`` if no event did. ``counted`` is
    the :attr:`tally`, if it is known already.
    """

    revision: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    caused_at: float | None = None
    counted: Tally | None = None

    @cached_property
    def tally(self) -> Tally:
        return self.counted or Tally().after((), self.entries.values())

    @property
    def healthy(self) -> int:
        return self.tally.healthy

    def entry(self, token: str) -> Entry | None:
        """The entry of a token, also of a stand-in that the kubelet chose just before it left the list."""
        listed = self.entries.get(token)
        if listed is None and (name := stood_for(token, self.entries)) is not None:
            return _stand_in(self.entries[name])
        return listed

    def present(self) -> dict[str, Member]:
        """The devices behind the tokens, by id, without those that have vanished."""
        return present(self.entries.values())

    def devices(self) -> dict[str, bool]:
        """The devices behind the tokens, by id, and whether a container could get each of them now."""
        found: dict[str, bool] = {}
        for entry in {id(entry.members): entry for entry in self.entries.values()}.values():
            for member in entry.members:
                usable = entry.gone_at is None and member.health.healthy
                found[member.device.id] = found.get(member.device.id, False) or usable
        return found


class Inventory:
    """Holds the newest snapshot of one resource and notifies subscribers of a newer one.

    ``wall`` gives seconds since the epoch, for "since when", and ``clock`` monotonic seconds, for the grace.
    ``handed_out`` is called with the tokens that a container got, each with its devices.
    """

    def __init__(
        self,
        wall: Callable[[], float],
        clock: Callable[[], float],
        allocations: ResourceAllocations | None = None,
        backend: str = "",
        handed_out: Callable[[Given], None] = lambda given: None,
        timing: AllocationTiming = ALLOCATION,
    ) -> None:
        self._grace = timing.grace
        self._wall = wall
        self._clock = clock
        self._subscribers: set[Callable[[], None]] = set()
        self._handed_out = handed_out
        self.allocations = Allocations(clock).of("") if allocations is None else allocations
        self.backend = backend
        self._vanished: set[str] = set()
        self._units: Sequence[Unit] = ()
        """Those of the last list."""
        self._unit_of: dict[str, Unit] = {}
        """The same by id."""
        self._own: dict[str, Entry] = {}
        """The tokens of all units, as they would be if no container held any."""
        self._grounds: Grounds | None = None
        self._overruled: set[str] = set()
        """The tokens that are shown as Unhealthy because of a container."""
        self.names_holders = False
        """Whether a token is Unhealthy because of a container, although its device is healthy."""
        self.snapshot = Snapshot()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after each new revision; call the result to end that."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def reserved(self, wanted: Mapping[str, Collection[Device]] = MappingProxyType({})) -> Reservation:
        """Counts tokens, with their devices, as held during an Allocate; see :meth:`reserve`."""
        reservation = Reservation(self.allocations, self.backend)
        if wanted:
            self.reserve(reservation, wanted)
        return reservation

    def reserve(self, reservation: Reservation, wanted: Mapping[str, Collection[Device]]) -> None:
        """Adds tokens, with their devices, to a reservation.

        A stand-in may have left the list already. Then the list is made again, so that it does not offer the
        token that the stand-in replaces. Raises ``DeviceHeld`` if another holder has one of the devices, or
        hardware that conflicts with it.
        """
        listed = wanted.keys() <= self.snapshot.entries.keys()
        reservation.add(wanted, self._unshared(wanted), listed=listed)
        self._succeed(wanted)

    def give(self, devices: Iterable[Device], nodes: frozenset[str]) -> None:
        """Counts nodes that a container gets with devices that do not claim them. Raises ``DeviceHeld``."""
        mine = {(self.backend, device.id): device for device in devices}
        self.allocations.everything.give(self.allocations.resource, mine, nodes)

    def allocated(
        self,
        tokens: Iterable[str],
        given: Given | None = None,
        terms: object = None,
    ) -> Given:
        """A container gets these tokens, each with the devices in ``given``, or with all behind it.

        :meth:`report` is to be called once when it has all of its tokens. ``terms`` is a
        :class:`devhost.allocation.resource_backend.Terms`. Returns the tokens with their devices.
        """
        entries = self.snapshot.entries
        if given is None:
            given = {
                name: tuple(member.device for member in entries[name].members) if name in entries else ()
                for name in tokens
            }
        now: Given = {name: given[name] for name in tokens}
        self.allocations.allocated(self.backend, now, self._unshared(now), terms)
        return now

    def report(self, given: Given) -> None:
        self._handed_out(given)

    def taken(self, name: str) -> Reason | None:
        """Why a token must not be allocated because of the kubelet's latest answer; ``None`` if it may be.

        The list may show it later: it is made again with the plan, which may take long.
        """
        leases = self.allocations.leases
        if leases.state(name) is LeaseState.FORGOTTEN:
            return _meaning(FORGOTTEN, leases.holder(name))
        second = STAND_IN + name if len(name) < MAX_DEVICE_ID else stand_in(name)  # mostly without a call
        if second not in self.allocations:
            return None
        return _held_as(second, leases.holder(second), forgotten=leases.state(second) is LeaseState.FORGOTTEN)

    def stands_in_for(self, name: str) -> Reason | None:
        """Why a stand-in must not be allocated; ``None`` if a container holds it, or its token is free."""
        token = stood_for(name, self.snapshot.entries)
        if token is None or name in self.allocations or not self.allocations.holds(token):
            return None
        state, holder = self.allocations.leases.state(token), self.allocations.leases.holder(token)
        if state is LeaseState.LACKING:
            return None
        why = FORGOTTEN if state is LeaseState.FORGOTTEN else f"held by {pod(holder)}"
        return _meaning(f"it replaces {token}: {why}", holder)

    def _succeed(self, names: Iterable[str]) -> None:
        """Releases the tokens behind these stand-ins whose containers have ended."""
        second = (name for name in names if name.startswith(STAND_IN))
        tokens = (stood_for(name, self.snapshot.entries) for name in second)
        state = self.allocations.leases.state
        if ended := [token for token in tokens if token is not None and state(token) is LeaseState.LACKING]:
            self.allocations.release(ended)

    def listed(self) -> dict[str, bool]:
        """Devices behind the tokens or held by a container that has one, and whether they are held.

        This may include a device that has gone: a token that represents several outlives each of them.
        """
        found = dict.fromkeys(self.snapshot.devices(), False)
        distinct = {
            (id(got), id(entry.members)): (got, entry.members)
            for name, entry in self.snapshot.entries.items()
            if name in self.allocations and (got := self.allocations.got(name)) is not None
        }
        for got, members in distinct.values():
            held = [device for _, device in got] or [member.device.id for member in members]
            found.update(dict.fromkeys(held, True))
        return found

    def update(
        self,
        units: Sequence[Unit],
        health_of: HealthOf,
        why_gone: Callable[[str], Reason],
        caused_at: float | None = None,
        *,
        topology: bool = True,
        grounds: Grounds | None = None,
    ) -> bool:
        """Takes the present devices of the tokens of this resource; true if that made a new revision.

        An unchanged unit should be the same object. ``why_gone`` is the reason to show for a device, by id,
        whose token is no longer among the units, ``caused_at`` the monotonic time of the event that led here.
        ``topology`` is whether the list has the NUMA nodes of such tokens: one token with NUMA nodes makes
        the kubelet align the whole resource (``deviceHasTopologyAlignment`` of its device manager).
        ``grounds`` is what the health depends on; without it, every device is judged again.
        """
        old = self.snapshot.entries
        now, wall = self._clock(), self._wall()
        # the tokens as if no container held any: only those whose devices may have changed are made again
        for unit, names in self._to_judge(units, grounds):
            self._judge(unit, names, health_of, wall)
        self._units, self._grounds = units, grounds
        # what containers hold: tokens that must not be allocated, and stand-ins for forgotten ones
        entries = self._own.copy()
        self._overruled = set()
        self.names_holders = False
        self._withhold_reshared(units, entries, wall)
        self._withhold_bound(units, entries, wall)
        self._stand_in(entries, wall)
        # tokens that are no longer among the units stay for a while, or as long as they are held
        absent = [] if old.keys() <= entries.keys() else [old[name] for name in old if name not in entries]
        vanished = [before for before in absent if not self._outlived(before, now)]
        if not topology:
            vanished = [before._replace(numa_nodes=()) for before in vanished]
        gone = set()
        for before in self._for_which_there_is_room(vanished, entries):
            entries[before.token] = self._gone(before, why_gone, now, wall)
            gone.add(before.token)
        if gone != self._vanished:
            self._vanished = gone
            self.allocations.keep_listed(gone)
        # containers that have another device than their token represents
        for token, reason in self.allocations.everything.given.withheld(self.allocations.resource):
            if token in entries:
                self._withhold(token, reason, entries, wall)
        return self._publish(entries, caused_at, first=self.snapshot.revision == 0)

    def _to_judge(
        self, units: Sequence[Unit], grounds: Grounds | None
    ) -> Iterable[tuple[Unit, Collection[str] | None]]:
        """The units whose tokens may differ from the last list, and which tokens do if their devices do not.

        ``None`` means all tokens. If units come or go, all of them are judged from nothing.
        """
        before, last = self._units, self._grounds
        changed = list(compress(units, map(is_not, units, before)))
        known = self._unit_of
        if len(units) != len(before) or not all(_alike(known.get(one.id), one) for one in changed):
            self._units, self._own, self._unit_of = (), {}, {unit.id: unit for unit in units}
            return [(unit, None) for unit in units]
        known.update((unit.id, unit) for unit in changed)
        overruled: dict[str, list[str]] = {}
        for token in self._overruled:
            if (entry := self._own.get(token)) is not None:
                overruled.setdefault(entry.unit, []).append(token)
        again: Iterable[str] = known
        if grounds and last and grounds.common == last.common:
            # an unchanged unit is one device, whose id it has; its health follows from the device alone,
            # unless more is known of it, or was
            names = {unit.id for unit in changed} | grounds.particular | last.particular | overruled.keys()
            again = sorted(name for name in names if name in known)
        return [(known[name], overruled.get(name, ())) for name in again]

    def _judge(
        self,
        unit: Unit,
        names: Collection[str] | None,
        health_of: HealthOf,
        wall: float,
    ) -> None:
        """Makes the tokens of a unit, as they would be if no container held any.

        ``names`` are the tokens to make if nothing about the devices has changed; ``None`` for all.
        """
        old, own = self.snapshot.entries, self._own
        first = old.get(unit.token(0))
        if unit.flaw:
            health_of = _flawed(health_of, unhealthy(unit.flaw))
        members = _members(first.members if first is not None else (), unit.devices, health_of)
        known = first.members if first is not None and first.gone_at is None else ()
        health, nodes = _joint(members, whole=unit.whole), unit.numa_nodes
        if names is None or members is not known or first is None or first.numa_nodes != nodes:
            names = [unit.token(number) for number in range(unit.replicas)]
        for name in names:
            before = old.get(name)
            if before is None:
                own[name] = Entry(name, unit.id, members, nodes, health, wall)
            elif (
                before.members is members
                and before.numa_nodes == nodes
                and before.gone_at is None
                and _same(before.health, health)
            ):
                own[name] = before
            else:
                since = before.since if before.health.healthy == health.healthy else wall
                own[name] = Entry(name, unit.id, members, nodes, health, since)

    def replicas(self, unit: str) -> int:
        """How many tokens of ``unit`` are listed, without those that have vanished; at least 1."""
        known = self._unit_of.get(unit)
        return 1 if known is None else known.replicas

    def is_whole(self, unit: str) -> bool:
        """Whether ``unit`` can be allocated only with all of its devices."""
        known = self._unit_of.get(unit)
        return known is not None and known.whole

    def clear(self) -> None:
        """Publishes an empty list: the resource itself goes away."""
        self._vanished = set()
        self._units, self._unit_of, self._own, self._grounds = (), {}, {}, None
        self.allocations.keep_listed(())
        self._publish({}, None, first=False)

    def next_change(self) -> float | None:
        """Seconds until a vanished token's grace ends; ``None`` when no token is waiting."""
        now = self._clock()
        gone = (self.snapshot.entries[token] for token in self._vanished if token not in self.allocations)
        waits = [entry.gone_at + self._grace - now for entry in gone if entry.gone_at is not None]
        return max(0.0, min(waits)) if waits else None

    def _publish(self, entries: Mapping[str, Entry], caused_at: float | None, *, first: bool) -> bool:
        old = self.snapshot
        new = differences(old.entries, entries)
        gone = [before for name in new if (before := old.entries.get(name)) is not None]
        tally = old.tally.after(gone, filter(None, new.values()))
        changed = first or any(_differ(old.entries.get(name), entry) for name, entry in new.items())
        caused_at = caused_at if changed else old.caused_at
        self.snapshot = Snapshot(old.revision + changed, entries, caused_at, tally)
        if changed:
            for subscriber in tuple(self._subscribers):
                subscriber()
        return changed

    def _unshared(self, names: Iterable[str]) -> frozenset[str]:
        entries = self.snapshot.entries
        return frozenset(
            name for name in names if (entry := entries.get(name)) is None or self.replicas(entry.unit) == 1
        )

    def _withhold_reshared(self, units: Sequence[Unit], entries: dict[str, Entry], wall: float) -> None:
        """Shows the tokens of a device as Unhealthy while its holder must not share it.

        If the sharing of a device changes, containers keep what they got: a container that got the whole
        device keeps it alone, and no container gets the whole device while others share it. The same holds
        where a container has it under a former id, or by a unit that it has left.
        """
        before: dict[str, list[Sequence[str]]] = {}
        for group in self.allocations.groups():
            otherwise = sorted(name for name in group.tokens if self._got_otherwise(name, entries))
            whole = bool(units) and units[0].whole
            for backend, known in group.keys if otherwise or whole else ():
                names = otherwise or sorted(one for one in group.tokens if _has_left(known, entries.get(one)))
                if backend == self.backend and names:
                    before.setdefault(known, []).append(names)
        if not before:
            return
        for unit in units:
            held = (
                (name, device)
                for device in unit.devices
                for names in before.get(device.id, ())
                for name in names
            )
            every: list[_Keeper] = []
            of_number: dict[int, list[_Keeper]] = {}
            for order, (other, device) in enumerate(held):
                former = is_former(other, device)
                if unit.replicas == 1 or self.allocations.is_unshared(other):
                    keepers = every
                elif former:  # a share under a former id keeps one share
                    keepers = of_number.setdefault(number_of(other), [])
                else:
                    continue
                if not keepers or (len(keepers) == 1 and keepers[0][1] != other):
                    keepers.append((order, other, former))  # a second one, for the token of the first
                if len(every) > 1:
                    break
            kept = range(unit.replicas) if every else sorted(n for n in of_number if n < unit.replicas)
            for number in kept:
                name = unit.token(number)
                keepers = [one for one in (*every, *of_number.get(number, ())) if one[1] != name]
                if not keepers:
                    continue
                _, other, former = min(keepers)
                holder = self.allocations.leases.holder(other)
                why = f"{pod(holder)} has it as {other}, from before it was shared in this way"
                if former:
                    why = f"held by {pod(holder)} under its former id {other}"
                self._withhold(name, _meaning(why, holder), entries, wall)

    def _withhold_bound(self, units: Sequence[Unit], entries: dict[str, Entry], wall: float) -> None:
        """Shows the tokens as Unhealthy that have no device to give, because pods are bound to others."""
        if not self.allocations.everything.pod_claims():
            return
        for unit in units:
            for number in range(unit.replicas):
                name = unit.token(number)
                reasons = [self.bound_elsewhere(name, device) for device in unit.devices]
                if (any if unit.whole else all)(reasons) and entries[name].health.healthy:
                    holders = dict.fromkeys(holder for one in reasons if one for holder in one.held_by)
                    self._withhold(name, Reason(IN_USE, tuple(holders)), entries, wall)

    def bound_elsewhere(self, name: str, device: Device) -> Reason | None:
        """Why a token must not give a device, because other pods are bound to it; ``None`` if it may.

        A container that holds the token may be of any pod until the kubelet has named it.
        """
        holder = self.allocations.leases.holder(name)
        if holder is None and name in self.allocations:
            return None
        own = () if holder is None else (pod_of(holder),)
        bound = self.allocations.everything.pod_claims()
        return bound.objection((self.backend, device.id), device, own)

    def _got_otherwise(self, name: str, entries: Mapping[str, Entry]) -> bool:
        """Whether a container may have got a held token while its devices were shared in another way.

        What a container got for itself, by a token of which there is only one today too, is in order.
        """
        now = entries.get(name)
        if now is None:
            return stood_for(name, entries) is None
        return now.unit != name and self.allocations.is_unshared(name)

    def _stand_in(self, entries: dict[str, Entry], wall: float) -> None:
        """Shows forgotten tokens as Unhealthy and adds their stand-ins, and those that a container holds."""
        forgotten = self.allocations.leases.forgotten()
        by_holder = {holder: _meaning(FORGOTTEN, holder) for holder in set(forgotten.values())}
        reasons = {token: by_holder[holder] for token, holder in forgotten.items()}
        for name in self.allocations.tokens():
            if (token := stood_for(name, entries)) is not None:
                holder = self.allocations.leases.holder(name)
                reasons[token] = _held_as(name, holder, forgotten=name in forgotten)
        for token in sorted(reasons.keys() & entries.keys()):
            before = self.snapshot.entries.get(stand_in(token))
            made = _stand_in(entries[token], before)
            entries[made.token] = made
            self._withhold(token, reasons[token], entries, wall)

    def _withhold(self, name: str, reason: Reason, entries: dict[str, Entry], wall: float) -> None:
        """Shows a token as Unhealthy although its device is healthy."""
        was = self.snapshot.entries.get(name)
        since = was.since if was is not None and not was.health.healthy else wall
        health = unhealthy(reason.text)
        self._overruled.add(name)
        now = entries[name]
        entries[name] = Entry(
            name, now.unit, now.members, now.numa_nodes, health, since, held_by=reason.held_by
        )
        self.names_holders = True

    def _for_which_there_is_room(
        self, vanished: Sequence[Entry], entries: Mapping[str, Entry]
    ) -> Iterator[Entry]:
        """Those of the vanished tokens for which the list has space within the kubelet's limit.

        The kubelet would refuse a longer list, and with it the whole resource. Devices that containers hold
        come first.
        """
        if not vanished:
            return
        room = LIST_LIMIT - sum(map(_listed_bytes, entries.values()))
        for entry in sorted(vanished, key=lambda entry: entry.token not in self.allocations):
            room -= _listed_bytes(entry)
            if room < 0:
                return
            yield entry

    def _outlived(self, entry: Entry, now: float) -> bool:
        if entry.token in self.allocations:
            return False
        if entry.gone_at is None:
            # a stand-in goes at once: its token is Healthy again, and takes its requests (Snapshot.entry)
            return entry.stands_in
        return now >= entry.gone_at + self._grace

    def _gone(self, entry: Entry, why_gone: Callable[[str], Reason], now: float, wall: float) -> Entry:
        """The entry of a token that is no longer among the units, with the reasons as they are now."""
        since = wall if entry.health.healthy else entry.since
        gone_at = now if entry.gone_at is None else entry.gone_at
        reasons = [why_gone(member.device.id) for member in entry.members]
        health = unhealthy("; ".join(dict.fromkeys(reason.text for reason in reasons)))
        held_by = tuple(dict.fromkeys(holder for reason in reasons for holder in reason.held_by))
        return entry._replace(health=health, since=since, gone_at=gone_at, held_by=held_by)


def _held_as(second: str, holder: Holder | None, *, forgotten: bool) -> Reason:
    """Why a token must not be allocated while a container holds its stand-in."""
    return _meaning(f"held by {pod(holder)} as {second}{_UNKNOWN if forgotten else ''}", holder)


def _meaning(text: str, holder: Holder | None) -> Reason:
    return Reason(text, (holder,) if holder else ())


def _stand_in(entry: Entry, before: Entry | None = None) -> Entry:
    """A second id of a token. It has no NUMA node, so that a topology policy chooses it last.

    ``before`` is the stand-in in the last list, if there was one.
    """
    if before is not None and before.health == entry.health:
        if before.members is entry.members and before.gone_at is None:
            return before
        entry = entry._replace(since=before.since)
    return Entry(
        stand_in(entry.token),
        entry.unit,
        entry.members,
        (),
        entry.health,
        entry.since,
        entry.gone_at,
        stands_in=True,
        held_by=entry.held_by,
    )


def _has_left(device: str, entry: Entry | None) -> bool:
    """Whether a device, by its id, is no longer behind the token of a unit by an attribute."""
    return entry is not None and all(member.device.id != device for member in entry.members)


def _joint(members: Sequence[Member], *, whole: bool) -> Health:
    """The health of a token: healthy as long as one of its devices is, or only if all are."""
    if len(members) == 1:
        return members[0].health
    found = [(member.device.id, member.health) for member in members]
    if whole:
        return joint(found)
    if any(health.healthy for _, health in found):
        return HEALTHY
    return unhealthy(f"none of its devices is healthy: {named(found)}")


def _flawed(health_of: HealthOf, flaw: Health) -> HealthOf:
    """The health of the members of a unit that cannot be allocated."""
    return lambda device: worst(flaw, health_of(device))


def present(entries: Iterable[Entry]) -> dict[str, Member]:
    """The devices behind tokens, by id, without those that have vanished; one for all tokens with it."""
    groups = {id(entry.members): entry.members for entry in entries if entry.gone_at is None}.values()
    return {member.device.id: member for members in groups for member in members}


def _members(known: tuple[Member, ...], devices: Sequence[Device], health_of: HealthOf) -> tuple[Member, ...]:
    """The devices with their health: the known object if nothing has changed, which is usual."""
    if len(known) == len(devices):
        for member, device in zip(known, devices, strict=True):
            if member.device is not device or not _same(member.health, health_of(device)):
                break
        else:
            return known
    return tuple(Member(device, health_of(device)) for device in devices)


def _same(one: Health, other: Health) -> bool:
    """Whether two are equal. Usually they are one object, for which ``is`` is faster than ``==``."""
    return one is other or one == other


def _listed_bytes(entry: Entry) -> int:
    return listed_bytes(len(entry.token), len(entry.numa_nodes))


def _alike(one: Unit | None, other: Unit) -> bool:
    """Whether two units of one id have the same tokens."""
    return one is not None and (one.replicas, one.numbered) == (other.replicas, other.numbered)


def _differ(before: Entry | None, now: Entry | None) -> bool:
    """Whether the kubelet would see a difference: it gets no reasons and attributes."""
    if before is None or now is None:
        return True
    return before.health.healthy != now.health.healthy or before.numa_nodes != now.numa_nodes
