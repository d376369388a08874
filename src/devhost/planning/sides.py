"""On which side each device is offered: through the device plugin or through DRA. Pure.

Schedulers learn late of what a node offers. The device plugin's side is a number in the Node's status, which
the kubelet updates about every ten seconds. The DRA side is ResourceSlices, and a ResourceClaim may name a
device long after it has left its slice. A device that leaves one side is *moving*: it is offered on neither
until no scheduler can allocate it on the side that it has left.

* **From the plugin to DRA**: until the Node, as read after the device left the list, offers at most as many
  tokens of the resource as the list has healthy ones.
* **From DRA to the plugin, to another DRA resource or to another DRA driver**: until the API server has
  confirmed slices without the device, schedulers have had time to notice (:attr:`.DraTiming.schedulers`),
  and no ResourceClaim has it allocated.

The plan sees a moving device as held through the resource that it leaves. It gives neither the device nor
hardware that it shares to any other resource, and returns it to the resource that it leaves if the
configuration changes again.

After a start, a record has the devices that may be in slices. Every other device may have been in a list of
an earlier run: it joins DRA when the Node agrees with the lists of this run.

A planned move takes a minute or so and is no problem. Devices of one resource move together, so for people
they are one group, a :class:`Move`; it is stuck after :data:`PATIENCE` seconds in which none of its devices
has moved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import NamedTuple

from devhost.backend.frozen import mutable
from devhost.backend.model import AnyHolder

from .claims import Held, Key
from .plan import Found, Plan
from .settings import PLUGIN, ResourceSettings, Serve, Side
from .timing import DRA, DraTiming

NO_UNITS: Mapping[Key, str] = MappingProxyType({})

_FROM_PLUGIN = "it is moving from the device plugin to DRA: devhost waits"
_FROM_DRA = "it is moving away from DRA: devhost waits"


class Listed(NamedTuple):
    """What the device plugin lists of one resource.

    ``healthy`` is the number of healthy tokens, ``None`` while a stream has not sent the newest list.
    """

    backend: str
    healthy: int | None


class Moving(NamedTuple):
    """A device that is moving: what it leaves, what it waits for, and the containers that the text means."""

    key: Key
    resource: str
    side: Side
    waits_for: str
    held_by: tuple[AnyHolder, ...] = ()


@mutable
class _Place:
    """Where slices have a device, or had it until its claims are checked. Times are monotonic seconds."""

    driver: str
    resource: str
    unit: str = ""
    """The unit that it is a member of: slices and claims have the id of the unit."""
    since: float = math.inf
    """When slices were confirmed without it; infinite while some may hold it."""
    checked: float | None = None
    """When the last list of claims began that had it allocated."""
    held_by: tuple[AnyHolder, ...] = ()
    """The claims that had it."""


class Sides:
    """Which devices each side offers, and which are moving. ``clock`` gives monotonic seconds.

    Each DRA driver publishes its own slices, so what concerns slices names the ``driver``.
    """

    def __init__(self, clock: Callable[[], float], timing: DraTiming = DRA) -> None:
        self._clock = clock
        self._timing = timing
        self._plugin: Mapping[Key, str] = {}
        self._dra: Mapping[Key, tuple[str, str]] = {}
        """The driver and the resource of each device that DRA offers."""
        self._places: dict[Key, _Place] = {}
        """The devices that slices may hold, and withdrawn ones."""
        self._listed_before: dict[Key, dict[str, float]] = {}
        """The plugin resources that a device has left, each with the time."""
        self._leaving: frozenset[Key] = frozenset()
        """Devices of slices, or withdrawn ones, which their DRA resource does not offer."""
        self._agreed: set[str] = set()
        """Resources, and backends with a trailing slash, for which the Node has agreed with the lists."""
        self._awaited: dict[str, str] = {}
        """Resources that wait for the Node, each with its backend."""
        self._unknown: dict[str, str] = {}
        """Why the API server cannot be asked, by driver."""

    def start(
        self, published: Mapping[Key, str], driver: str = "", units: Mapping[Key, str] = NO_UNITS
    ) -> None:
        """Takes the record of an earlier run: the devices that slices may hold, each with its resource.

        ``units`` are those of members.
        """
        for key, resource in published.items():
            self._places.setdefault(key, _Place(driver, resource, units.get(key, "")))
        self._know_members()

    def begin(self) -> None:
        """Begins a plan: what waits for the Node is found out again."""
        self._awaited = {}

    def held(self, found: Found) -> Sequence[Held]:
        """The devices that are moving, as held through the resource that they leave."""
        moving = []
        for one in self.moving():
            device = found.get(one.key[0], {}).get(one.key[1])
            if device is not None:
                holder = next(iter(one.held_by), None)
                about = one.resource, (), one.key[0], device, True, holder, one.side, one.waits_for
                moving.append(Held(*about))
        return moving

    def refusal(self, key: Key, resource: str, entry: ResourceSettings) -> str:
        """Why a DRA resource must not get a device yet after the start; empty if it may."""
        if key in self._places:
            return ""
        if resource in self._agreed and f"{entry.backend}/" in self._agreed:
            return ""
        self._awaited[resource] = entry.backend
        why = f"{_FROM_PLUGIN} until the node offers no more than the lists of the device plugin"
        return self._why(why, entry.driver)

    def api_failed(self, reason: str, driver: str = "") -> bool:
        """Takes why the API server cannot be asked, empty if it can; true if the reasons are others now."""
        before = self._unknown.pop(driver, "")
        if reason:
            self._unknown[driver] = reason
        return reason != before and bool(self.moving() or self._awaited)

    def _why(self, waits_for: str, *drivers: str) -> str:
        """What a device waits for, and why it waits in vain: for one of these drivers, or for any."""
        unknown = "; ".join(dict.fromkeys(self._unknown[one] for one in drivers if one in self._unknown))
        return f"{waits_for}, but {unknown}" if unknown else waits_for

    def learn(self, plan: Plan) -> bool:
        """Takes what a plan moves; true if the plan must be made again, because it assumes too much."""
        plugin, dra = _offered(plan)
        now, new = self._clock(), False
        for key, resource in self._plugin.items():
            if plugin.get(key) != resource and resource not in self._listed_before.get(key, ()):
                self._listed_before.setdefault(key, {})[resource] = now
                new = True
        leaving = self._not_offered(dra)
        new = new or not leaving <= self._leaving
        self._leaving |= leaving
        return new

    def commit(self, plan: Plan) -> None:
        """Takes the plan that takes effect."""
        self._plugin, self._dra = _offered(plan)
        for key, resource in self._plugin.items():
            left = self._listed_before.get(key)
            if left is not None and left.pop(resource, None) is not None and not left:
                del self._listed_before[key]
        self._leaving = self._not_offered(self._dra)

    def publishing(
        self, devices: Mapping[Key, str], driver: str = "", units: Mapping[Key, str] = NO_UNITS
    ) -> None:
        """Slices may hold these devices from now on, members as their units.

        Must be called before they are written.
        """
        for key, resource in devices.items():
            self._places[key] = _Place(driver, resource, units.get(key, ""))
        self._know_members()

    def _know_members(self) -> None:
        """Forgets units as such: slices that no record names show the id of a unit, but not its members."""
        for (backend, _), one in list(self._places.items()):
            whole = self._places.get((backend, one.unit)) if one.unit and one.since == math.inf else None
            about = one.driver, one.resource, ""
            if whole is not None and (whole.driver, whole.resource, whole.unit) == about:
                del self._places[backend, one.unit]
        self._leaving &= self._places.keys()

    def unpublished(self, keys: Collection[Key], driver: str = "") -> None:
        """The API server has confirmed that no slice of the driver holds these devices."""
        now = self._clock()
        for key in keys:
            place = self._places.get(key)
            if place is not None and place.driver == driver and place.since == math.inf:
                place.since = now
        self._leaving = self._not_offered(self._dra)

    def node_seen(self, began: float, allocatable: Mapping[str, int], listed: Mapping[str, Listed]) -> bool:
        """Takes the Node's status; true if a device may be offered now that was moving.

        ``began`` is when the Node was asked for, ``allocatable`` what it offers, ``listed`` what the device
        plugin lists, by resource.
        """

        def agrees(resource: str) -> bool:
            one = listed.get(resource)
            healthy = 0 if one is None else one.healthy
            return healthy is not None and allocatable.get(resource, 0) <= healthy

        freed = False
        for key, left in list(self._listed_before.items()):
            for resource, since in list(left.items()):
                if began > since and agrees(resource):
                    del left[resource]
                    freed = True
            if not left:
                del self._listed_before[key]
        for resource, backend in self._awaited.items():
            names = {resource, *(name for name, one in listed.items() if one.backend == backend)}
            if all(map(agrees, names)) and not {resource, f"{backend}/"} <= self._agreed:
                self._agreed |= {resource, f"{backend}/"}
                freed = True
        return freed

    def claims_seen(
        self, began: float, allocated: Mapping[Key, Sequence[AnyHolder]], driver: str = ""
    ) -> bool:
        """Takes the devices of a driver that any ResourceClaim has allocated, each with these claims.

        ``began`` is when the list was asked for. True if one of the moving devices is free, or waits for
        another claim.
        """
        changed = False
        for key, one in list(self._withdrawn_of(driver).items()):
            if began < one.since + self._timing.schedulers:
                continue
            if key in allocated:
                held_by = tuple(allocated[key])
                changed = changed or one.checked is None or held_by != one.held_by
                one.checked, one.held_by = began, held_by
            else:
                del self._places[key]
                changed = True
        self._leaving = self._not_offered(self._dra)
        return changed

    def record(self, driver: str = "") -> Mapping[Key, str]:
        """The devices that slices of a driver may hold, and those whose claims are not checked.

        It is for the next start.
        """
        return {key: one.resource for key, one in self._places.items() if one.driver == driver}

    def has_record(self, driver: str) -> bool:
        """Whether :meth:`record` has any device."""
        return any(one.driver == driver for one in self._places.values())

    def units(self, driver: str = "") -> Mapping[Key, str]:
        """The units of those of :meth:`record` that are members."""
        own = ((key, one.unit) for key, one in self._places.items() if one.driver == driver)
        return {key: unit for key, unit in own if unit}

    def needs_node(self) -> bool:
        return bool(self._listed_before or self._awaited)

    def claims_due(self, driver: str = "") -> float | None:
        """Seconds until a driver wants a list of ResourceClaims; ``None`` if nothing waits for one."""
        now, timing = self._clock(), self._timing
        due = [
            (one.since + timing.schedulers if one.checked is None else one.checked + timing.recheck) - now
            for one in self._withdrawn_of(driver).values()
        ]
        return max(0.0, min(due)) if due else None

    def withdrawn(self, driver: str = "") -> Collection[Key]:
        """The devices that have left their slice, and that a ResourceClaim may still have allocated."""
        return self._withdrawn_of(driver).keys()

    def _withdrawn_of(self, driver: str) -> Mapping[Key, _Place]:
        places = self._places.items()
        return {key: one for key, one in places if one.driver == driver and one.since < math.inf}

    def needs_list(self, driver: str = "") -> bool:
        """Whether a device is due for which no list of ResourceClaims was read since it was withdrawn."""
        now = self._clock()
        return any(
            one.checked is None and one.since + self._timing.schedulers <= now
            for one in self._withdrawn_of(driver).values()
        )

    def moving(self) -> Sequence[Moving]:
        """The devices that are moving, in a stable order."""
        return sorted(one for key in self._listed_before.keys() | self._leaving for one in self._moving(key))

    def waits_for(self, key: Key) -> str:
        """What a device waits for that is moving; empty if it is not."""
        return min(self._moving(key)).waits_for if key in self._listed_before or key in self._leaving else ""

    def _moving(self, key: Key) -> Iterator[Moving]:
        for resource in self._listed_before.get(key, ()):
            why = f"{_FROM_PLUGIN} until the node no longer offers it as {resource}"
            yield Moving(key, resource, PLUGIN, self._why(why, *self._unknown))
        if key not in self._leaving:
            return
        place, why = self._places[key], "until the API server has its ResourceSlice without it"
        if place.checked is not None:
            why = "for the ResourceClaim that has it allocated"
        elif place.since < math.inf:
            why = "until schedulers have noticed that it left its ResourceSlice"
        why = self._why(f"{_FROM_DRA} {why}", place.driver)
        yield Moving(key, place.resource, (Serve.DRA, place.driver), why, place.held_by)

    def _not_offered(self, dra: Mapping[Key, tuple[str, str]]) -> frozenset[Key]:
        """The devices of slices, and withdrawn ones, that their resource does not offer."""
        places = self._places.items()
        return frozenset(key for key, one in places if dra.get(key) != (one.driver, one.resource))


def _offered(plan: Plan) -> tuple[dict[Key, str], dict[Key, tuple[str, str]]]:
    """The devices that a plan offers through the device plugin and through DRA, each with its resource."""
    plugin: dict[Key, str] = {}
    dra: dict[Key, tuple[str, str]] = {}
    for resource in plan.resources.values():
        entry = resource.entry
        for offer in resource.offers:
            key = entry.backend, offer.device.id
            if entry.serve is Serve.DRA:
                dra[key] = entry.driver, resource.name
            else:
                plugin[key] = resource.name
    return plugin, dra


PATIENCE = 120.0
"""Seconds without progress after which a move is a problem."""

EXAMPLES = 3
"""Most devices that the reason of a group names."""

Origin = tuple[str, Serve]
"""The resource that devices leave, and its side."""


class Move(NamedTuple):
    """The devices that leave one resource.

    ``reason`` is what most of them wait for, ``held_by`` are the containers that it refers to. ``since`` is
    the time of the last progress in wall-clock seconds. ``stuck`` is why the move is a problem; else empty.
    """

    resource: str
    serve: Serve
    devices: Sequence[str]
    reason: str
    since: float
    stuck: str
    held_by: tuple[AnyHolder, ...] = ()


@mutable
class _MoveTimes:
    """Times of one group: ``since`` is wall-clock seconds, the others are monotonic ones."""

    progress: float
    since: float
    began: dict[Key, float] = field(default_factory=dict)

    def stuck(self, now: float) -> int:
        """The number of devices that have waited for too long."""
        if now < self.progress + PATIENCE:
            return 0
        return sum(now >= began + PATIENCE for began in self.began.values())

    def next_change(self, now: float) -> float | None:
        """Seconds until more devices have waited for too long; ``None`` if that is not due."""
        due = (max(self.progress, began) + PATIENCE - now for began in self.began.values())
        return min((wait for wait in due if wait > 0), default=None)


class Moves:
    """Follows the devices that change sides.

    ``clock`` gives monotonic seconds, ``wall`` seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._groups: dict[Origin, _MoveTimes] = {}

    def follow(self, moving: Iterable[Moving]) -> Sequence[Move]:
        """Takes the devices that change sides now. A device that no longer does is progress of its group.

        Returns the groups, by resource.
        """
        now, grouped = self._clock(), _grouped(moving)
        for origin in self._groups.keys() | grouped.keys():
            found = grouped.get(origin, ())
            group = self._groups.setdefault(origin, _MoveTimes(now, self._wall()))
            keys = {one.key for one in found}
            if group.began.keys() - keys:
                group.progress, group.since = now, self._wall()
            group.began = {key: group.began.get(key, now) for key in keys}
        self._groups = {origin: group for origin, group in self._groups.items() if group.began}
        return tuple(_described(*one, self._groups[one[0]], now) for one in sorted(grouped.items()))

    def next_change(self) -> float | None:
        """Seconds until a move becomes a problem; ``None`` if none will."""
        now = self._clock()
        waits = (group.next_change(now) for group in self._groups.values())
        return min((wait for wait in waits if wait is not None), default=None)


def _grouped(moving: Iterable[Moving]) -> Mapping[Origin, Sequence[Moving]]:
    found: dict[Origin, list[Moving]] = {}
    for one in moving:
        found.setdefault((one.resource, one.side[0]), []).append(one)
    return found


def _described(origin: Origin, found: Sequence[Moving], group: _MoveTimes, now: float) -> Move:
    devices = tuple(dict.fromkeys(one.key[1] for one in found))
    reasons = Counter(one.waits_for for one in found)
    (shown, count), *others = reasons.most_common()
    reason = f"{count} of {len(found)}: {shown}" if others else shown
    held_by = tuple(
        dict.fromkeys(holder for one in found if one.waits_for == shown for holder in one.held_by)
    )
    stuck = ""
    if waiting := group.stuck(now):
        what = "1 device has" if waiting == 1 else f"{waiting} devices have"
        rest = f" and {len(devices) - EXAMPLES} more" if len(devices) > EXAMPLES else ""
        of = "the device plugin" if origin[1] is Serve.PLUGIN else "DRA"
        stuck = (
            f"{what} not left {of} within {PATIENCE:.0f} s: {reason} ({', '.join(devices[:EXAMPLES])}{rest})"
        )
    return Move(*origin, devices, reason, group.since, stuck, held_by)
