"""Preferred allocation across resources: a container's GPU near its network adapter.

It combines three things for a request: where the devices of each resource are and which are free, which
requests belong to one container (:mod:`.request_grouping`), and the choice itself
(:mod:`devhost.planning.affinity`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter, is_

from devhost.allocation.allocations import ResourceAllocations
from devhost.allocation.inventory import Entry, Inventory
from devhost.allocation.leases import LeaseState
from devhost.backend.model import Device, Holder
from devhost.backend.sysfs import natural
from devhost.backend.threads import elsewhere
from devhost.planning.affinity import Choice, PreferenceRequest, prefer
from devhost.planning.affinity.policies import SCALES, Outside
from devhost.planning.affinity.topology import Candidate, Level, Links, Place, Topology, between
from devhost.planning.claims import Pod, binds_pod, pod_claims, pod_of
from devhost.planning.plan import as_one
from devhost.planning.settings import Prefer
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.planning.tokens import represents_all
from devhost.runtime.log import get
from devhost.telemetry.metrics import Guess, Metrics

from .request_grouping import Admission, Call, RequestGrouping

log = get(__name__)
_standard_log = logging.getLogger(__name__)

KINDS = 16
"""Other resources that one request considers."""

LOOKUPS = 40_000
"""Devices times other resources that one request considers, about 10 ms; at least one resource."""

INLINE = 2_000
"""Tokens about which a request may be to be answered in the event loop, in about 5 ms."""

BUILT = 2_000
"""Devices of other resources that one request locates, about 25 ms; the next request goes on."""

_OUTER = (Level.PORT, Level.NODE)
"""The levels at which free devices of other resources count, the closer one first."""

Inventories = Callable[[], Mapping[str, Inventory]]


class PreferredAllocation:
    """Answers GetPreferredAllocation with all resources of one host in mind.

    ``inventories`` gives those served now, by resource, ``clock`` monotonic seconds.
    """

    def __init__(
        self,
        inventories: Inventories = dict,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        timing: AllocationTiming = ALLOCATION,
    ) -> None:
        self._inventories = inventories
        self._metrics = metrics or Metrics()
        self._clock = clock
        self._grouping = RequestGrouping(clock, self._guessed, timing.together)
        self._places: dict[str, _ResourcePlaces] = {}
        self._together: set[frozenset[str]] = set()
        self._turn = asyncio.Lock()
        self._away: set[asyncio.Task[Choice]] = set()
        self._later: list[Callable[[], None]] = []

    async def answer(
        self,
        resource: str,
        inventory: Inventory,
        policy: Prefer,
        links: Links,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
    ) -> Choice:
        """Answers GetPreferredAllocation for one container.

        A choice among many tokens is made on a thread. Until it is made, other requests wait for it.
        """
        inventories = dict(self._inventories())
        choose = partial(
            self.prefer, resource, inventory, policy, links, available, must_include, size, inventories
        )
        if not self._away and self._work(inventory, available, inventories) <= INLINE:
            choice = choose()
        else:
            task = asyncio.create_task(self._elsewhere(choose))  # goes on if the kubelet gives up
            self._away.add(task)
            task.add_done_callback(self._returned)
            choice = await asyncio.shield(task)
        if not choice.exact:
            self._metrics.add("preferences_unproven_total")
        return choice

    async def _elsewhere(self, choose: Callable[[], Choice]) -> Choice:
        async with self._turn:
            return await elsewhere(choose)

    def _returned(self, choice: asyncio.Task[Choice]) -> None:
        self._away.discard(choice)
        if not self._away:
            later, self._later = self._later, []
            for do in later:
                do()

    def _work(
        self, inventory: Inventory, available: Sequence[str], inventories: Mapping[str, Inventory]
    ) -> int:
        """How many tokens a request is about, also in lists of other resources that are new."""
        unknown = sum(
            len(other.snapshot.entries)
            for name, other in inventories.items()
            if other is not inventory
            and ((places := self._places.get(name)) is None or not places.knows(other))
        )
        return max(len(available), len(inventory.snapshot.entries)) + unknown

    def prefer(
        self,
        resource: str,
        inventory: Inventory,
        policy: Prefer,
        links: Links,
        available: Sequence[str],
        must_include: Sequence[str],
        size: int,
        inventories: Mapping[str, Inventory] | None = None,
    ) -> Choice:
        """The choice itself, by which this remembers what a container is about to get.

        ``inventories`` are those served now: it does not look for them if it runs on a thread.
        """
        inventories = self._inventories() if inventories is None else inventories
        began = self._clock()
        admission = self._grouping.asked(resource)
        places = self._places_of(resource, inventory)
        entries = inventory.snapshot.entries

        def candidate(token: str) -> str | None:
            entry = entries.get(token)
            return None if entry is None or entry.stands_in else entry.unit

        request = PreferenceRequest(candidate, available, must_include, size)
        ended = _ended(inventory.allocations, available, must_include)
        request = _unheld_first(request, inventory.allocations)
        if places.groups:
            request = self._bound_first(request, places, inventory.allocations, admission, ended)
        choice = prefer(
            policy,
            places.topology,
            request,
            self._outside(
                resource, places, admission, ended, inventories, companions=SCALES[policy].companions
            ),
            places.between(links),
            explain=_standard_log.isEnabledFor(logging.DEBUG),
        )
        self._grouping.preferred(resource, began, choice.tokens, places.places(choice.tokens), admission.same)
        if choice.scores:
            log.debug(
                "preferred",
                resource=resource,
                devices=",".join(choice.tokens),
                beside=",".join(call.resource for call in admission.same),
                exact=choice.exact,
                because="; ".join(f"{name}: {score}" for name, score in choice.scores.items()),
            )
        return choice

    def allocated(self, resource: str, inventory: Inventory, began: float, tokens: Sequence[str]) -> None:
        """Remembers which devices a container got for its request at ``began``; never raises."""
        if self._away:
            self._later.append(partial(self.allocated, resource, inventory, began, tokens))
            return
        try:
            places = self._places.get(resource)
            if places is None:
                places = self._places_of(resource, inventory)
            self._grouping.allocated(resource, began, tokens, places.places(tokens))
        except Exception:  # the container has its devices: an error here must not fail it
            log.exception("remembering an allocation failed", resource=resource)

    def settle(self) -> None:
        """Finds out which guesses were right, after the kubelet has listed who holds what."""
        if self._away:
            self._later.append(self.settle)
            return
        inventories = self._inventories()

        def holder(resource: str, token: str) -> object:
            inventory = inventories.get(resource)
            return None if inventory is None else inventory.allocations.leases.holder(token)

        self._grouping.settle(holder)
        for gone in self._places.keys() - inventories.keys():
            del self._places[gone]

    def _guessed(self, guess: Guess, one: str, other: str) -> None:
        self._metrics.add("affinity_guesses_total", guess)
        if guess is Guess.RIGHT:
            self._together.add(frozenset((one, other)))

    def _places_of(self, resource: str, inventory: Inventory) -> _ResourcePlaces:
        places = self._places.setdefault(resource, _ResourcePlaces())
        places.follow(inventory)
        return places

    def _bound_first(
        self,
        request: PreferenceRequest,
        places: _ResourcePlaces,
        allocations: ResourceAllocations,
        admission: Admission,
        ended: Collection[Pod],
    ) -> PreferenceRequest:
        """The same request with what the container's pod can use together.

        That is what is bound to it already, else what no pod is bound to, in whole groups where possible.
        """
        own = {places.group(token) for token in request.must_include}
        for call in admission.same:
            if (other := self._places.get(call.resource)) is not None:
                own.update(map(other.group, call.tokens))
        if not any(own):  # a slow node: the requests were not taken for those of one container
            recent = allocations.everything.recent_pod_claims()
            usable = [claim for claim in map(places.group, request.available) if claim in recent]
            own = {max(usable, key=lambda claim: recent[claim or ""])} if usable else set()
        taken = {
            claim
            for held in allocations.everything.held()
            if not isinstance(held.holder, Holder) or pod_of(held.holder) not in ended
            for claim in pod_claims(held.device)
        }
        classes: list[dict[str, list[str]]] = [{}, {}, {}]
        offered = dict.fromkeys(request.available)
        for token in request.must_include:
            offered.pop(token, None)
        for token in offered:
            if request.candidate(token) is not None:
                group = places.group(token)
                rank = 0 if group in own and group else 2 if group in taken else 1
                classes[rank].setdefault(group or f"={token}", []).append(token)
        must, need = dict.fromkeys(request.must_include), request.size - len(request.must_include)
        for groups in classes:
            chosen, choice = whole_groups(groups, need)
            must |= dict.fromkeys(chosen)
            need -= len(chosen)
            if need <= len(choice):
                return replace(request, available=[*must, *choice], must_include=must)
            must |= dict.fromkeys(choice)
            need -= len(choice)
        return request

    def _outside(
        self,
        resource: str,
        places: _ResourcePlaces,
        admission: Admission,
        ended: Collection[Pod],
        inventories: Mapping[str, Inventory],
        *,
        companions: bool,
    ) -> Outside:
        got = {call.resource: _counts(call) for call in admission.same}
        together: list[Mapping[Place, int]] = []
        others: list[Mapping[Place, int]] = []
        kinds = min(KINDS, max(1, LOOKUPS // max(1, len(places.topology.candidates))))
        for name, inventory, other in self._others(resource, places, inventories) if companions else ():
            if len(together) + len(others) == kinds:
                break
            if name not in got and (free := other.free(inventory.allocations, places, ended)):
                (together if self._often_together(resource, name) else others).append(free)
        near = {place: 1 for call in admission.before for place in _counts(call)}
        return Outside([count for count in got.values() if count], together, others, near)

    def _others(
        self, resource: str, places: _ResourcePlaces, inventories: Mapping[str, Inventory]
    ) -> list[tuple[str, Inventory, _ResourcePlaces]]:
        """Other resources with devices in the same places, the most important first."""
        found, built = [], 0
        for name, inventory in inventories.items():
            other = self._places.setdefault(name, _ResourcePlaces())
            if name == resource or (built >= BUILT and not other.knows(inventory)):
                continue
            built += other.follow(inventory)
            shared = places.shared(other)
            if shared is not None:
                found.append(((not self._often_together(resource, name), -shared, name), inventory, other))
        return [
            (rank[2], inventory, other) for rank, inventory, other in sorted(found, key=lambda item: item[0])
        ]

    def _often_together(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._together


class _ResourcePlaces:
    """Where the devices of one resource are, kept from request to request."""

    def __init__(self) -> None:
        self.topology = Topology({})
        self._joined: dict[str, tuple[Sequence[Device], Device]] = {}
        """Units of several devices as one device each."""
        self._unit_of: Mapping[str, str] = {}
        """The units of devices that have another id."""
        self.groups: Mapping[str, str] = {}
        """The claims that bind pods, of units that have one."""
        self._entries: Mapping[str, Entry] | None = None
        self._healthy: list[int] = []
        self._by_place: Counter[Place] = Counter()
        self._claims: frozenset[str] = frozenset()
        self._parts: frozenset[str] = frozenset()
        self._devices: frozenset[int] = frozenset()
        self._outer: list[tuple[Place, ...]] = []
        self._outers: dict[Level, frozenset[Place]] = {level: frozenset() for level in _OUTER}
        self._same_hardware: dict[int, tuple[Topology, frozenset[int]]] = {}

    def knows(self, inventory: Inventory) -> bool:
        return inventory.snapshot.entries is self._entries

    def follow(self, inventory: Inventory) -> int:
        """Takes the newest snapshot; returns how many devices had to be located for it."""
        if self.knows(inventory):
            return 0
        entries = self._entries = inventory.snapshot.entries
        own = [entry for entry in entries.values() if not entry.stands_in]
        totals = Counter(map(attrgetter("unit"), own))
        firsts = {entry.unit: entry for entry in own}
        candidates = {
            unit: Candidate(unit, self._as_one(unit, first), totals[unit]) for unit, first in firsts.items()
        }
        is_new = not self.topology.same(candidates)  # also when the last device has gone, which costs nothing
        if is_new:
            self.topology = Topology(candidates, self.topology)
            devices = [candidate.device for candidate in self.topology.candidates]
            self._claims = exclusive(chain.from_iterable(device.claims for device in devices))
            self._parts = exclusive(chain.from_iterable(device.part_of for device in devices))
            bound = (
                (name, pod_claims(device)) for name, device in zip(self.topology.number, devices, strict=True)
            )
            self.groups = {name: claims[0] for name, claims in bound if claims}
            self._devices = frozenset(map(id, devices))
            self._outer = [
                tuple([place for place in some if place[0] in _OUTER]) for some in self.topology.places
            ]
            everywhere = frozenset(chain.from_iterable(self._outer))
            self._outers = {
                level: frozenset(place for place in everywhere if place[0] is level) for level in _OUTER
            }
            self._unit_of = {
                member.device.id: unit
                for unit, first in firsts.items()
                for member in first.members
                if member.device.id != unit
            }
            self._same_hardware.clear()
        self._healthy = [
            candidate.total
            if firsts[candidate.name].health.healthy and _in_one_place(firsts[candidate.name])
            else 0
            for candidate in self.topology.candidates
        ]
        self._by_place = Counter()
        for number, count in enumerate(self._healthy):
            if count:
                for place in self._outer[number]:
                    self._by_place[place] += count
        return len(candidates) if is_new else 0

    def _as_one(self, unit: str, entry: Entry) -> Device:
        """The device whose places a unit has; the same object as long as its members are."""
        if represents_all(entry.token):
            return entry.members[0].device
        known, devices = self._joined.get(unit), [member.device for member in entry.members]
        if len(devices) == 1:
            return devices[0]
        if known is None or not (len(known[0]) == len(devices) and all(map(is_, known[0], devices))):
            known = self._joined[unit] = devices, as_one(unit, devices)
        return known[1]

    def between(self, links: Links) -> Links:
        return between(links, self._unit_of) if self._unit_of and links else links

    def shared(self, other: _ResourcePlaces) -> Level | None:
        """The closest level at which both have devices in one place, and the other a healthy one."""
        for level in _OUTER:
            if not self._outers[level].isdisjoint(other._by_place):
                return level
        return None

    def group(self, token: str) -> str | None:
        """The claim of a token that binds its pod; ``None`` if it has none."""
        entry = (self._entries or {}).get(token) if self.groups else None
        return None if entry is None else self.groups.get(entry.unit)

    def places(self, tokens: Iterable[str]) -> list[tuple[Place, ...]]:
        """The places of the device behind each token; none if it represents several devices."""
        found = []
        for token in tokens:
            entry = (self._entries or {}).get(token)
            number = None if entry is None else self.topology.number.get(entry.unit)
            alone = entry is not None and _in_one_place(entry)
            found.append(self.topology.places[number] if number is not None and alone else ())
        return found

    def free(
        self, allocations: ResourceAllocations, other: _ResourcePlaces, ended: Collection[Pod]
    ) -> Mapping[Place, int]:
        """How many tokens a container could get at each place, near devices of another resource.

        Devices that are the same hardware as a device of the other resource do not count: they would not be
        free afterwards. Devices of pods that have ended are free.
        """
        taken: Counter[Place] = Counter()
        same_hardware = self._same_hardware_in(other)
        for number in same_hardware:
            for place in self._outer[number]:
                taken[place] += self._healthy[number]
        for token in allocations.tokens():
            if ended and _pod(allocations, token) in ended:
                continue
            entry = (self._entries or {}).get(token)
            candidate = None if entry is None else self.topology.number.get(entry.unit)
            if candidate is not None and candidate not in same_hardware and self._healthy[candidate]:
                taken.update(self._outer[candidate])
        if not taken:
            return self._by_place
        return {place: left for place, count in self._by_place.items() if (left := count - taken[place]) > 0}

    def _same_hardware_in(self, other: _ResourcePlaces) -> frozenset[int]:
        known = self._same_hardware.get(id(other))
        if known is None or known[0] is not other.topology:
            claimed = other._claims | other._parts
            found = frozenset(
                number
                for number, candidate in enumerate(self.topology.candidates)
                if id(candidate.device) in other._devices
                or not candidate.device.claims.isdisjoint(claimed)
                or not candidate.device.part_of.isdisjoint(other._claims)
            )
            known = self._same_hardware[id(other)] = (other.topology, found)
        return known[1]


def exclusive(claims: Iterable[str]) -> frozenset[str]:
    """The claims that exclude other devices, without those that bind pods."""
    return frozenset(claim for claim in set(claims) if not binds_pod(claim))


def whole_groups(groups: Mapping[str, Sequence[str]], need: int) -> tuple[list[str], list[str]]:
    """Which tokens to take, and from which the rest, so that few of their groups are left over."""
    singles = [token for tokens in groups.values() for token in tokens if len(tokens) == 1]
    larger = [tokens for tokens in groups.values() if len(tokens) > 1]
    chosen: list[str] = []
    left_over: list[Sequence[str]] = []
    for tokens in sorted(larger, key=lambda tokens: (-len(tokens), natural(tokens[0]))):
        if len(tokens) <= need - len(chosen):
            chosen += tokens
        else:
            left_over.append(tokens)
    if len(singles) >= need - len(chosen) or not left_over:
        return chosen, singles
    return chosen + singles, list(left_over[-1])


def _unheld_first(request: PreferenceRequest, allocations: ResourceAllocations) -> PreferenceRequest:
    """The same request without tokens that a container is known to hold, if there are enough others.

    A kubelet offers such a token if it has lost its checkpoint. It also offers tokens that have just been
    released, which are free if its newest list shows that.
    """
    offered = frozenset(allocations.tokens()).intersection(request.available).difference(request.must_include)
    held = {token for token in offered if allocations.leases.state(token) is not LeaseState.LACKING}
    if not held:
        return request
    others = [token for token in request.available if token not in held]
    usable = [token for token in others if request.candidate(token) is not None]
    if len(usable) >= request.size:
        return replace(request, available=others)
    return replace(request, must_include=dict.fromkeys((*request.must_include, *usable)))


def _ended(
    allocations: ResourceAllocations, available: Iterable[str], must_include: Iterable[str]
) -> frozenset[Pod]:
    """Pods that have ended, because the kubelet offers a device that one of them held.

    All devices of such a pod are free; the list that shows it comes some seconds later. Tokens that must be
    included do not count: the kubelet may offer an init container's devices again to the same pod.
    """
    held = allocations.tokens()
    if not held:
        return frozenset()
    offered = set(held).intersection(available).difference(must_include)
    return frozenset(pod for token in offered if (pod := _pod(allocations, token)))


def _pod(allocations: ResourceAllocations, token: str) -> Pod | None:
    holder = allocations.leases.holder(token)
    return None if holder is None else (holder.namespace, holder.pod)


def _in_one_place(entry: Entry) -> bool:
    """Whether a token represents one device or unit; all of a resource may be in different places."""
    return len(entry.members) == 1 or not represents_all(entry.token)


def _counts(call: Call) -> Counter[Place]:
    return Counter(place for places in call.places for place in places)
