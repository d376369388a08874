"""Publishes the devices of this node as ResourceSlices, and keeps the slices as they must be.

What the API server stores is learned from a list at the start, from the answers to writes, and from a watch
of metadata: an object whose ``metadata.generation`` is not the one that was written has been changed by
another client. Such an object is read, and then written again if it differs.

* A change of one slice is one write and keeps the pool's generation. If several slices change, or one is
  added or removed, the pool gets a new generation, and every slice is written with it: schedulers use the
  pool again when all slices of its highest generation are there.
* Slices without anything to change are not written, after a restart as well.
* Before a device is added to a slice, the record on disk names it. When the API server has confirmed slices
  without it, :class:`~devhost.planning.sides.Sides` learns that.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from devhost.backend.backoff import Backoff, TokenBucket
from devhost.backend.errors import DevhostError, excerpt
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import HEALTHY, Cause, Device, unhealthy
from devhost.planning.claims import Key
from devhost.planning.settings import Effect
from devhost.planning.sides import Sides
from devhost.planning.timing import DRA, DraTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler, Retry, sleep
from devhost.telemetry.metrics import Metrics

from .aliases import Aliased
from .answers import LONGEST_WISH, Json
from .kube import ApiError, KubeApi, Malformed, Object, Unreachable
from .mover import node_of
from .record import SliceRecord
from .slices import (
    LISTS,
    REFUSED,
    TAINT_EFFECTS,
    Accepted,
    DesiredSlice,
    LeftOut,
    Offered,
    Pool,
    hash_of,
    may_be_ours,
)

if TYPE_CHECKING:
    from devhost.planning.counters import CounterSet

log = get(__name__)

API_VERSION = "resource.k8s.io/v1"
SLICES = f"/apis/{API_VERSION}/resourceslices"

VERSION = "/version"

LOOK_AT_VERSION = 60.0
"""Seconds between two looks at the API server's version while it is known to drop a field."""

ASK_AGAIN = 86400.0
"""Seconds after which it is asked although its version is the same: a gate may have been switched."""

PAGE = 10
"""Slices in a page of the first list: they are read whole, about 40 kB each."""

METADATA_PAGE = 200
"""Slices in a page of later lists, of which only the metadata is read."""

DROPPED = "dropped"
"""The annotation, after the driver and a slash, with the fields that the API server is known to drop: after a
restart, a device that needs one of them must not be published without it, not even once."""

REPEATED = "repeated"
"""The annotation that makes a repeated write a change: an earlier one whose answer was lost cannot succeed
later, because it names an outdated resource version."""

COUNTERS = "sharedCounters"
"""The field for ``dra.counters``; an API server that drops it drops what devices consume of it, too.

Kubernetes 1.34 with the gate wants it in the slice of these devices, and refuses them."""

FALLBACKS = {
    "taints": "unhealthy devices are not published",
    TAINT_EFFECTS: "taints without effect, and more than four of a device, are not published",
    "allowMultipleAllocations": "devices with replicas are not published",
    "capacity": "devices with replicas are not published",
    "requestPolicy": "devices with replicas are not published",
    COUNTERS: "of devices that exclude each other, one is published",
    LISTS: "attributes with several values are not published",
}
"""What happens without a field."""

_REJECTED = re.compile(
    r"spec\.devices\[(\d+)\](?:\.attributes\[([^\]\s]+)\]|\.(consumesCounters)|\.(taints)\b)?"
)
OUTDATED = (400, 410)
"""Answers to a version that is no longer good for a watch: a new list has another one."""

COMMON = 2
"""Devices for which the API server refuses an attribute until no device of the resource gets it."""

ROUNDS = 12
"""Refusals of one pool after which its slices are tried again later: a server may name one value each."""


Offers = tuple[str, Sequence[Offered] | None]
"""The backend of a resource, and its devices; ``None`` while they are not known."""


@frozen
class PublisherStatus:
    """How publishing goes.

    ``slices`` are those of this driver and node that the API server certainly has, ``writes`` the writes that
    it has accepted since the start, ``dropped`` the fields of devices that it drops. ``left_out`` is what
    slices leave out, each with its resource. ``synced_at`` is when slices last agreed with all devices, in
    Unix time; ``None`` until all were known once. ``error`` is why slices are not as they must be, or why
    that is not known; empty if nothing failed.
    """

    slices: int = 0
    writes: int = 0
    dropped: tuple[str, ...] = ()
    left_out: tuple[tuple[str, LeftOut], ...] = ()
    synced_at: float | None = None
    error: str = ""


class Published(NamedTuple):
    """The slices of one resource: that of each device, as the API server has confirmed it, and counters."""

    slices: Mapping[str, str] = MappingProxyType({})
    counters: Sequence[CounterSet] = ()


@mutable
class _Stored:
    """A slice at the API server, whose content is known."""

    uid: str
    version: str
    changes: int
    """``metadata.generation``."""
    pool: str
    generation: int
    count: int
    digest: str
    owner: str
    dropped: str
    since: Mapping[str, str]
    """When devices got their taint, by name."""


@mutable
class _ResourceState:
    """One resource: what it must offer, and what of that is confirmed."""

    pool: Pool
    offers: Sequence[Offered] | None
    """``None`` while they are not known."""
    rejected: dict[tuple[str, str], Offered] = field(default_factory=dict)
    """What the API server refused, and the offer at that time: another one is tried again."""
    desired: list[DesiredSlice] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    confirmed: Mapping[str, str] = field(default_factory=dict)
    """The slice of each device."""
    highest: int = 0
    """The highest generation that was ever written or seen."""
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The members of each unit, by the id that slices have."""
    lacks: frozenset[object] = frozenset()
    """What the API server has dropped and refused when slices were last confirmed."""

    def plan(self, offered: Sequence[Offered], dropped: Iterable[str]) -> None:
        """Computes the slices."""
        offers = {offer.device.id: offer for offer in offered}
        self.members = {name: offer.members for name, offer in offers.items() if offer.members}
        self.rejected = {one: was for one, was in self.rejected.items() if offers.get(one[0]) == was}
        counts = Counter(attribute for _, attribute in self.rejected if attribute)
        common = [attribute for attribute, count in counts.items() if count >= COMMON]
        rejected = {*self.rejected, *((identity, one) for one in common for identity in offers)}
        self.desired, left_out = self.pool.slices(offered, dropped=tuple(dropped), rejected=tuple(rejected))
        refused = Counter(one.attribute for one in left_out if one.attribute and one.reason == REFUSED)
        several = {attribute for attribute, count in refused.items() if count >= COMMON}
        self.left_out = [one for one in left_out if one.attribute not in several or one.reason != REFUSED]
        self.left_out += [LeftOut("", one, f"{REFUSED} for several devices") for one in sorted(several)]

    def keys(self) -> dict[Key, str]:
        """The devices of the desired slices, each with its unit; empty if it is in none."""
        return {
            (self.pool.backend, name): identity if identity in self.members else ""
            for one in self.desired
            for identity in one.ids
            for name in self.members.get(identity, (identity,))
        }


class Publisher:
    """Keeps the ResourceSlices of one driver on one node.

    Args:
        record: the devices that slices may hold.
        sides: learns before and after devices are in slices. It must know the record already.
        replan: called when devices have left their slices, so that they may move, and when other attributes
            can be in slices.
        changed: called when :attr:`status` has changed.
    """

    def __init__(
        self,
        api: KubeApi,
        driver: str,
        node: str,
        record: SliceRecord,
        sides: Sides,
        *,
        replan: Callable[[], None],
        changed: Callable[[], None],
        metrics: Metrics,
        timing: DraTiming = DRA,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.status = PublisherStatus()
        self.heard_at = 0.0
        """When the API server last sent something over the watch of slices, in Unix time; 0 before."""
        self.only_foreign = False
        """Whether all slices of this driver and node are those of another program, as far as is known."""
        self._api = api
        self._driver = driver
        self._node = node
        self._record = record
        self._sides = sides
        self._replan = replan
        self._changed = changed
        self._metrics = metrics
        self._clock = clock
        self._wanted: Mapping[str, Offers] | None = None
        self._complete = False
        self._states: dict[str, _ResourceState] = {}
        self._former: dict[str, Pool] = {}
        """Pools of resources that are gone, by name."""
        self._stored: dict[str, _Stored | None] = {}
        """Every slice of this driver and node by name; ``None`` if it must be read."""
        self._uncertain: set[str] = set()
        """Slices with an update whose answer was lost."""
        self._found: dict[str, dict[str, list[str]]] = {}
        """The names of devices at the start, by pool and slice."""
        self._maybe: dict[Key, str] = {}
        """The devices that slices may hold, each with its resource."""
        self._dropped: list[str] = []
        self._told: set[str] = set()
        self._uid = ""
        """That of the Node."""
        self._since = ""
        """The resource version that the next watch begins with; empty before the first list."""
        self._synced = False
        self._unseen = FailureLog(
            log, "ResourceSlices are not watched", "ResourceSlices are watched again", changed=self._show
        )
        """Why slices cannot be listed or watched."""
        self._unwritten = ""
        """Why slices cannot be written; empty if they can."""
        self._not_before = 0.0
        self._permits = TokenBucket(1.0, timing.write)
        self._rounds = Reconciler(
            self._round,
            backoff=Backoff(1.0, 60.0),
            failures=FailureLog(
                log, "ResourceSlices are not published", "ResourceSlices are published again"
            ),
            first=None,
            settle=timing.settle,
            gap=timing.gap,
            wakeable=False,
            clock=clock,
        )
        self._asked_version = ""
        """The version of the API server that was asked what it drops; empty to ask it in any case."""
        self._asked_at = 0.0
        self._questions = Reconciler(
            self._question,
            backoff=Backoff(5.0, 300.0),
            failures=FailureLog(
                log, "cannot ask what the API server supports", "the API server was asked what it supports"
            ),
            first=None,
            gap=timing.gap,
            wakeable=False,
            clock=clock,
        )
        self._watches = Reconciler(
            self._observe,
            backoff=Backoff(1.0, 60.0),
            failures=self._unseen,
            gap=timing.settle,
            clock=clock,
        )

    async def _question(self) -> float | None:
        """Asks whether the API server still drops what it has dropped, if it may have changed.

        The question is a write that is not carried out: nothing is published without the field meanwhile.
        """
        if not (self._dropped and self._synced):
            self._asked_version = ""
            return None
        version = json.dumps(await self._api.get(VERSION), sort_keys=True)
        now = self._clock.time()
        if version != self._asked_version or now - self._asked_at >= ASK_AGAIN:
            await self._permit()
            missing = await self._dropped_now()
            self._asked_version, self._asked_at = version, now
            self._forget_dropped(missing)
        return LOOK_AT_VERSION

    async def _dropped_now(self) -> set[str]:
        """The fields that the API server drops from devices that have all of them."""
        missing = await self._dropped_from([Offered(Device("question"), unhealthy("question"), 2)])
        same, effects = frozenset({"device:question"}), dict.fromkeys(Cause, Effect.NONE)
        listed = Aliased((("question", ("a", "b")),))
        refused = {
            COUNTERS: [Offered(Device(name, claims=same), HEALTHY, counters=True) for name in ("a", "b")],
            LISTS: [Offered(Device("question"), HEALTHY, aliased=listed)],
            TAINT_EFFECTS: [Offered(Device("question"), unhealthy("question", *Cause), effects=effects)],
        }
        for name in [name for name in refused if name in self._dropped]:
            try:
                missing |= await self._dropped_from(refused[name])
            except ApiError as error:
                if error.status != 422:
                    raise
                missing.add(name)
        return missing

    async def _dropped_from(self, examples: Sequence[Offered]) -> set[str]:
        pool = Pool(self._driver, self._node, "devhost/question", "devhost")
        wanted, _ = pool.slices(examples)
        missing: set[str] = set()
        for one in wanted:
            body = {
                "apiVersion": API_VERSION,
                "kind": "ResourceSlice",
                "metadata": {"name": pool.object_name(one.index)},
                "spec": pool.spec(one, 1, len(wanted)),
            }
            answer = await self._api.create(f"{SLICES}?dryRun=All", body)
            missing.update(_missing(_content(_slice(body).at("spec")), _content(_slice(answer).at("spec"))))
        return missing

    def _forget_dropped(self, missing: Collection[str]) -> None:
        kept = [name for name in self._dropped if name in missing]
        for name in [name for name in self._dropped if name not in kept]:
            self._dropped.remove(name)
            self._told.discard(name)
            log.info("the API server supports a field of devices now", field=name)
            self._rounds.wake()

    def follow(self, pools: Mapping[str, Offers], *, complete: bool = True) -> None:
        """Takes the devices of each resource; they are published soon.

        The slices of a resource whose devices are not known stay as they are. With ``complete``, no other
        resource has slices, so that all others are removed.
        """
        new = (pools, complete) != (self._wanted, self._complete)
        if new or not self._record.names(*self._recorded()):
            self._wanted, self._complete = dict(pools), complete
            self._rounds.wake()

    async def run(self) -> None:
        """Publishes until it is cancelled; the slices remain. Begins with a list: others may have written."""
        self._since, self._synced = "", False
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watches.run())
            group.create_task(self._rounds.run())
            group.create_task(self._questions.run())

    def published(self) -> Mapping[str, Published]:
        """What is known of the slices of each resource."""
        return {name: Published(one.confirmed, one.pool.counter_sets) for name, one in self._states.items()}

    def accepted(self, resource: str, device_id: str) -> Accepted:
        """What slices may have of the attributes of a device, as far as that is known."""
        state = self._states.get(resource)
        found = state.pool.accepted(device_id) if state else None
        return found or Accepted(lists=LISTS not in self._dropped)

    # What is at the API server

    @property
    def _present(self) -> int:
        """How many slices the API server certainly has."""
        return sum(one is not None for one in self._stored.values())

    @property
    def _query(self) -> dict[str, str]:
        return {"fieldSelector": f"spec.driver={self._driver},spec.nodeName={self._node}"}

    async def _observe(self) -> float | None:
        """Lists the slices if necessary, and follows them until the watch ends."""
        self._asked_version = ""  # the server may be another one, or have restarted with other gates
        listed = not self._since
        try:
            if not self._synced:
                await self._first_list()
            elif listed:
                await self._list_again()
            if self._dropped:
                self._questions.wake()
            await self._follow_watch()
        except DevhostError as error:
            if isinstance(error, Malformed) or (isinstance(error, ApiError) and error.status in OUTDATED):
                self._since = ""
                if not (listed or isinstance(error, Malformed)):
                    return 0.0
            raise
        return 0.0

    def _seen(self) -> None:
        """The API server has accepted the watch."""
        self._watches.succeeded()
        self._heard()

    async def _first_list(self) -> None:
        """Reads the slices of an earlier run, page by page."""
        self._stored.clear()
        self._found.clear()
        version = ""
        holding: dict[Key, str] = {}
        async with aclosing(self._api.list(SLICES, self._query, limit=PAGE)) as pages:
            async for page in pages:
                version = page["metadata"]["resourceVersion"]
                for found in page["items"] or ():
                    holding.update(self._take_first(found))
        known, units = self._recorded()
        members = {((key[0], unit), known[key]) for key, unit in units.items()}
        unknown = {key: of for key, of in holding.items() if key not in known and (key, of) not in members}
        if unknown:
            self._sides.publishing(unknown, self._driver)
        self._maybe = {**known, **unknown}
        self._since, self._synced = version, True
        self._rounds.wake(0.0)
        self._questions.wake()

    def _take_first(self, found: Object) -> Iterator[tuple[Key, str]]:
        """Takes a slice of an earlier run; gives its devices, each with its resource."""
        name = found["metadata"]["name"]
        stored = self._stored[name] = _known(found, self._driver)
        devices = _slice(found).at("spec").items("devices")
        self._found.setdefault(stored.pool, {})[name] = [device.text("name") for device in devices]
        for field_name in filter(None, stored.dropped.split(",")):
            if field_name in FALLBACKS and field_name not in self._dropped:
                self._dropped.append(field_name)
                self._told.add(field_name)
        for device in devices:
            values = device.at("attributes")
            backend, identity, resource = (
                values.at(key).text("string") for key in ("backend", "id", "resource")
            )
            if backend and identity:
                yield (backend, identity), resource

    async def _list_again(self) -> None:
        """Finds out what has changed since the watch was lost."""
        names = set()
        version = ""
        known = set(self._stored)
        pages = self._api.list(SLICES, self._query, metadata_only=True, limit=METADATA_PAGE)
        async with aclosing(pages):
            async for page in pages:
                version = page["metadata"]["resourceVersion"]
                for found in page["items"] or ():
                    metadata = _slice(found).at("metadata")
                    names.add(metadata.required("name"))
                    self._noticed("MODIFIED", metadata)
        for name in known - names:  # one that was created meanwhile is not in `known`
            self._stored.pop(name, None)
            self._rounds.wake()
        self._since = version

    async def _follow_watch(self) -> None:
        watch = self._api.watch(SLICES, self._query, self._since, metadata_only=True, opened=self._seen)
        async with aclosing(watch):
            async for kind, changed in watch:
                metadata = _slice(changed).at("metadata")
                if kind != "BOOKMARK":
                    self._noticed(kind, metadata)
                self._since = metadata.text("resourceVersion") or self._since
                self._heard()

    def _heard(self) -> None:
        """The API server has sent something over the watch; without changes, a bookmark each minute."""
        self.heard_at = time.time()

    def _noticed(self, kind: str, metadata: Json) -> None:
        """Compares the metadata of a slice with what is known of it."""
        name = metadata.required("name")
        known = self._stored.get(name)
        same = known is not None and known.uid == metadata.text("uid")
        changes = metadata.number("generation")
        if kind == "DELETED":
            if name not in self._stored or (known is not None and not same):
                return  # it was another object of this name
            del self._stored[name]
        elif known is not None and same and changes <= known.changes:
            if changes < known.changes:
                return  # the past
            owner, dropped = _owner(metadata), _annotation(metadata, self._driver)
            known.version = metadata.text("resourceVersion")
            if (owner, dropped) == (known.owner, known.dropped):
                return
            known.owner, known.dropped = owner, dropped
        else:
            self._stored[name] = None
        self._rounds.wake()

    # What must be there

    async def _round(self) -> float | None:
        """Makes the slices what they must be."""
        if not self._synced or self._wanted is None:
            return None
        await sleep(self._not_before - self._clock.time(), self._clock)
        failures: list[str] = []
        complete = self._complete
        self._take_wanted(self._wanted)
        await self._attempt(self._read_unknown(), failures)
        foreign = [name for name in self._stored if not may_be_ours(name, self._driver, self._node)]
        self.only_foreign = bool(foreign) and len(foreign) == len(self._stored)
        if foreign:
            failures.append(
                f"another program publishes devices as {self._driver} on this node, in the ResourceSlice "
                f"{min(foreign)}: stop it, or choose another dra.driver"
            )
        if not failures:
            if complete:
                await self._attempt(self._remove_others(), failures)
            for resource, state in list(self._states.items()):
                if state.offers is not None:
                    await self._attempt(self._publish(resource, state, state.offers), failures)
            if not failures:
                await self._attempt(self._withdraw_others(complete=complete), failures)
        known = complete and all(state.offers is not None for state in self._states.values())
        self._report(failures, known=known)
        if failures:
            raise Retry("; ".join(dict.fromkeys(filter(None, failures))))
        return None

    async def _attempt(self, step: Awaitable[None], failures: list[str]) -> None:
        """Runs one step; a failure does not keep others from being tried."""
        try:
            await step
        except DevhostError as error:
            if isinstance(error, ApiError) and error.retry_after:
                wish = min(error.retry_after, LONGEST_WISH)
                self._not_before = max(self._not_before, self._clock.time() + wish)
            failures.append(str(error))

    def _take_wanted(self, wanted: Mapping[str, Offers]) -> None:
        for resource in [one for one in self._states if one not in wanted] if self._complete else ():
            pool = self._states.pop(resource).pool
            self._former[pool.name] = pool
        for resource, (backend, offers) in wanted.items():
            known = self._states.get(resource)
            if known is None or known.pool.backend != backend:
                known = self._states[resource] = self._new(resource, backend)
            known.offers = offers

    def _new(self, resource: str, backend: str) -> _ResourceState:
        """Begins a pool: its devices keep the places that they have at the API server."""
        pool = Pool(self._driver, self._node, resource, backend)
        former = self._former.get(pool.name)
        if former is not None and former.backend == backend:
            pool = former
        found = self._found.pop(pool.name, {})
        pool.adopt({index: names for name, names in found.items() if (index := _index(pool, name)) >= 0})
        return _ResourceState(pool, None)

    async def _read_unknown(self) -> None:
        """Reads the slices that another client has changed."""
        for name in [name for name, known in self._stored.items() if known is None]:
            await self._read(name)

    async def _read(self, name: str) -> None:
        try:
            found = await self._api.get(_path(name))
        except ApiError as error:
            if not error.absent:
                raise
            self._stored.pop(name, None)
            return
        spec = _slice(found).at("spec")
        driver, node = spec.text("driver"), spec.text("nodeName")
        if (driver, node) != (self._driver, self._node):
            self._stored.pop(name, None)
            raise Retry(f"the ResourceSlice {name} belongs to driver {driver} on {node}; remove it")
        self._stored[name] = _known(found, self._driver)

    async def _remove_others(self) -> None:
        """Removes the slices that no pool has."""
        own = {state.pool.name for state in self._states.values()}
        for name, known in list(self._stored.items()):
            if known is not None and known.pool not in own:
                await self._delete(name, known)

    async def _withdraw_others(self, *, complete: bool) -> None:
        """The devices of resources that are gone are no longer in any slice."""
        if complete:
            gone = [key for key, resource in self._maybe.items() if resource not in self._states]
            self._confirm_gone(gone)
        await self._write_record()

    async def _publish(self, resource: str, state: _ResourceState, offers: Sequence[Offered]) -> None:
        """Makes the slices of one pool what they must be."""
        for _ in range(1 + len(FALLBACKS) + ROUNDS):
            state.plan(offers, self._dropped)
            known = len(self._dropped), set(state.rejected)
            await self._announce(resource, state)
            await self._write_pool(resource, state)
            if (len(self._dropped), set(state.rejected)) == known:
                break
        else:
            raise Retry  # what was refused is reported, and the next round leaves it out
        await self._confirm(resource, state)

    async def _announce(self, resource: str, state: _ResourceState) -> None:
        """Names the devices that are to be added, before any slice does."""
        keys, units = state.keys(), self._sides.units(self._driver)
        added = {
            key: resource
            for key in sorted(keys)
            if self._maybe.get(key) != resource or units.get(key, "") != keys[key]
        }
        if added:
            units = {key: keys[key] for key in added if keys[key]}
            self._sides.publishing(added, self._driver, units)
            self._maybe.update(added)
        await self._write_record()

    async def _write_record(self) -> None:
        await self._record.write(*self._recorded())

    def _recorded(self) -> tuple[Mapping[Key, str], Mapping[Key, str]]:
        """What slices of this driver may hold, and the units of members."""
        return self._sides.record(self._driver), self._sides.units(self._driver)

    async def _write_pool(self, resource: str, state: _ResourceState) -> None:
        """Writes what differs; schedulers use the pool again after the last slice of its generation."""
        # what must be there, and what is there: some of that is left over
        pool, count = state.pool, len(state.desired)
        desired = {pool.object_name(one.index): one for one in state.desired}
        present = {name: one for name, one in self._stored.items() if one and one.pool == pool.name}
        extra = [name for name in present if name not in desired]
        current = {name: one for name, one in present.items() if name in desired}
        if len(current) < count or not self._uid:
            await self._read_node()  # a new slice needs its owner
        # what to write: with the same generation what has changed, with a new one every slice
        changed = [
            name
            for name, one in desired.items()
            if name in current and self._differs(name, one, current[name])
        ]
        generation = self._generation(state, present, set(desired), changed)
        order = [name for name in changed if current[name].generation == generation]
        order += [name for name in desired if name in current and current[name].generation != generation]
        missing = [name for name in desired if name not in current]
        if not (extra or order or missing):
            return
        # first what is left over: its devices are gone, or are about to be in another slice
        for name in extra:
            await self._delete(name, present[name])
        known = len(self._dropped), set(state.rejected)
        # then what exists, and last what is new: it completes the pool
        for name in order + missing:
            body = self._body(state, desired[name], generation, current.get(name))
            await self._write(resource, state, desired[name], name, body, current.get(name))
            if (len(self._dropped), set(state.rejected)) != known:
                return  # the slices must be others
        log.debug(
            "ResourceSlices published",
            resource=resource,
            slices=count,
            generation=generation,
            written=len(order) + len(missing) + len(extra),
        )

    def _differs(self, name: str, wanted: DesiredSlice, stored: _Stored) -> bool:
        owned = stored.owner == self._uid and stored.dropped == ",".join(self._dropped)
        return wanted.digest != stored.digest or not owned or name in self._uncertain

    def _generation(
        self, state: _ResourceState, present: Mapping[str, _Stored], desired: set[str], changed: Sequence[str]
    ) -> int:
        """The generation that the pool's slices must have.

        It is kept if one slice changes, and if the pool is not complete anyway: schedulers use it again
        after the last of its slices is written.
        """
        # schedulers may have seen the highest one, although its slices may be gone
        highest = max([state.highest, *(one.generation for one in present.values())])
        newest = {name: one for name, one in present.items() if one.generation == highest}
        # its slices can stay: each is wanted, and each counts as many as there must be
        sound = (
            newest and all(one.count == len(desired) for one in newest.values()) and newest.keys() <= desired
        )
        # schedulers use the pool now: several changed slices would be seen one after another
        complete = len(newest) == len(desired)
        if not (sound and (not complete or len(changed) <= 1)):
            highest += 1
        state.highest = highest
        return highest

    def _body(
        self, state: _ResourceState, wanted: DesiredSlice, generation: int, stored: _Stored | None
    ) -> Object:
        metadata: Object = {
            "name": state.pool.object_name(wanted.index),
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": self._node,
                    "uid": self._uid,
                    "controller": True,
                }
            ],
        }
        annotations = {f"{self._driver}/{DROPPED}": ",".join(self._dropped)} if self._dropped else {}
        if stored is not None and metadata["name"] in self._uncertain:
            annotations[f"{self._driver}/{REPEATED}"] = stored.version
        if annotations:
            metadata["annotations"] = annotations
        if stored is not None:
            metadata |= {"uid": stored.uid, "resourceVersion": stored.version}
        spec = state.pool.spec(wanted, generation, len(state.desired))
        if stored is not None and stored.since and "devices" in spec:
            spec["devices"] = [_dated(device, stored.since) for device in spec["devices"]]
        return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}

    async def _write(
        self,
        resource: str,
        state: _ResourceState,
        wanted: DesiredSlice,
        name: str,
        body: Object,
        stored: _Stored | None,
    ) -> None:
        """Creates or updates one slice.

        Raises ``Retry`` if it must be tried again, with other content or after it was read.
        """
        await self._permit()
        try:
            if stored is None:
                answer = await self._api.create(SLICES, body)
            else:
                answer = await self._api.update(_path(name), body)
            known = _known(answer, self._driver)
            kept = _content(_slice(answer).at("spec"))
        except (Unreachable, Malformed):
            self._stored[name] = None  # it may have been written, or be written later
            if stored is not None:
                self._uncertain.add(name)
            raise
        except ApiError as error:
            if error.status == 422 and self._reject(resource, state, wanted, error):
                return  # the stored slice is what it was, and the next try leaves this out
            self._stored[name] = None
            if error.absent or error.status == 409:
                raise Retry from None  # it was changed meanwhile, and is read before the next try
            raise
        self._written()
        self._uncertain.discard(name)
        # even if the server changed it: writing the same again would change nothing
        known.digest = wanted.digest
        known.owner, known.dropped = self._uid, ",".join(self._dropped)
        self._stored[name] = known
        self._compare(_content(_slice(body).at("spec")), kept)

    def _reject(self, resource: str, state: _ResourceState, wanted: DesiredSlice, error: ApiError) -> bool:
        """Leaves out what the API server refused; false if it does not name it."""
        offers = {offer.device.id: offer for offer in state.offers or ()}
        new = False
        for number, attribute, counters, taints in dict.fromkeys(_REJECTED.findall(error.text)):
            if int(number) >= len(wanted.ids):
                continue
            identity = wanted.ids[int(number)]
            listed = LISTS in wanted.devices[int(number)]["attributes"].get(attribute, ())
            if dropped := LISTS if listed else COUNTERS if counters else TAINT_EFFECTS if taints else "":
                self._drop(dropped)
                return True
            if (identity, attribute) in state.rejected:
                attribute = ""
            if (identity, attribute) in state.rejected or identity not in offers:
                continue
            state.rejected[identity, attribute] = offers[identity]
            new = True
            told = f"{resource} {attribute or identity}"
            if told not in self._told:
                self._told.add(told)
                log.warning(
                    "the API server refused a device or an attribute",
                    resource=resource,
                    device=identity,
                    attribute=attribute,
                    reason=excerpt(error.text),
                )
        return new

    def _compare(self, sent: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
        """Finds the fields that the API server has dropped."""
        for name in dict.fromkeys(_missing(sent, stored)):
            self._drop(name)

    def _drop(self, name: str) -> None:
        """Takes that the API server drops a field."""
        if name in FALLBACKS and name not in self._dropped:
            self._dropped.append(name)
            self._questions.wake()
        if name not in self._told:
            self._told.add(name)
            log.warning(
                "the API server drops a field of devices",
                field=name,
                effect=FALLBACKS.get(name, "devices are published without it"),
            )

    async def _delete(self, name: str, known: _Stored) -> None:
        await self._permit()
        try:
            await self._api.delete(_path(name), uid=known.uid, resource_version=known.version)
        except Unreachable:
            self._stored[name] = None
            raise
        except ApiError as error:
            self._stored[name] = None
            if error.status == 409:
                raise Retry from None  # it was changed meanwhile, and is read before the next try
            raise
        self._stored.pop(name, None)
        self._written()

    def _written(self) -> None:
        self._metrics.add("dra_slice_writes_total", self._driver)
        self.status = replace(self.status, slices=self._present, writes=self.status.writes + 1)

    async def _read_node(self) -> None:
        """Finds the uid of the Node, which owns the slices."""
        node = await node_of(self._api, self._node)
        self._uid = node.at("metadata").required("uid")

    async def _confirm(self, resource: str, state: _ResourceState) -> None:
        """Takes that the API server has exactly the desired slices of a pool."""
        state.confirmed = {
            identity: state.pool.object_name(one.index) for one in state.desired for identity in one.ids
        }
        keys = state.keys()
        self._confirm_gone([key for key, of in self._maybe.items() if of == resource and key not in keys])
        lacks = frozenset[object]((*state.rejected, *self._dropped))
        if lacks != state.lacks:
            state.lacks = lacks
            self._replan()  # the metadata of claims has what slices have
        await self._write_record()

    def _confirm_gone(self, keys: Sequence[Key]) -> None:
        if keys:
            for key in keys:
                del self._maybe[key]
            self._sides.unpublished(keys, self._driver)
            self._replan()

    def _report(self, failures: Sequence[str], *, known: bool) -> None:
        """Records how a round went; ``known``: whether all devices were known."""
        self._unwritten = "; ".join(dict.fromkeys(filter(None, failures)))
        if known and not failures:
            self.status = replace(self.status, synced_at=time.time())
        self._show()

    def _show(self) -> None:
        """Brings the status up to date."""
        self.status = replace(
            self.status,
            slices=self._present,
            dropped=tuple(self._dropped),
            left_out=tuple(
                (resource, one) for resource, state in self._states.items() for one in state.left_out
            ),
            error="; ".join(dict.fromkeys(filter(None, (self._unseen.reason, self._unwritten)))),
        )
        self._changed()

    async def _permit(self) -> None:
        await sleep(self._permits.delay(self._clock.time()), self._clock)
        self._permits.take(self._clock.time())


def _slice(found: Object) -> Json:
    return Json(found, "a ResourceSlice")


def _known(found: Object, driver: str) -> _Stored:
    """What the API server has of a slice. Raises ``Malformed`` if it is none."""
    whole = _slice(found)
    metadata, spec = whole.at("metadata"), whole.at("spec")
    pool = spec.at("pool")
    devices = []
    since: dict[str, str] = {}
    for one in spec.items("devices"):
        one.required("name")
        device = dict(one.mapping())
        if taints := one.items("taints"):
            device["taints"] = [
                {key: value for key, value in taint.mapping().items() if key != "timeAdded"}
                for taint in taints
            ]
            for taint, stored in zip(device["taints"], taints, strict=True):
                if added := stored.text("timeAdded"):
                    since[_dated_key(device, taint)] = added
        devices.append(device)
    content = devices or [dict(one.mapping()) for one in spec.items(COUNTERS)]
    metadata.required("name")
    return _Stored(
        metadata.required("uid"),
        metadata.required("resourceVersion"),
        metadata.number("generation"),
        pool.text("name"),
        pool.number("generation"),
        pool.number("resourceSliceCount"),
        hash_of(content),
        _owner(metadata),
        _annotation(metadata, driver),
        since,
    )


def _dated_key(device: Mapping[str, Any], taint: Mapping[str, Any]) -> str:
    """What a device's taint is remembered by: another reason is another taint."""
    return f"{device['name']} {taint.get('key')} {taint.get('value')} {taint.get('effect')}"


def _dated(device: Mapping[str, Any], since: Mapping[str, str]) -> Mapping[str, Any]:
    """A device whose taints keep the time at which they were added."""
    taints = [
        {**taint, "timeAdded": added} if (added := since.get(_dated_key(device, taint))) else taint
        for taint in device.get("taints", ())
    ]
    return {**device, "taints": taints} if taints else device


def _owner(metadata: Json) -> str:
    """The uid of the Node that owns an object."""
    for owner in metadata.items("ownerReferences"):
        if owner.text("kind") == "Node" and owner.at("controller").value is True:
            return owner.text("uid")
    return ""


def _annotation(metadata: Json, driver: str) -> str:
    return metadata.at("annotations").text(f"{driver}/{DROPPED}")


def _path(name: str) -> str:
    return f"{SLICES}/{quote(name, '')}"


def _index(pool: Pool, name: str) -> int:
    """The number of a pool's slice; -1 if the name is none of the pool's."""
    digits = name[-4:]
    return int(digits) if digits.isdigit() and pool.object_name(int(digits)) == name else -1


def _content(spec: Json) -> Mapping[str, Any]:
    """What a slice has for claims: its devices, or the counters that they share."""
    content = {name: [dict(one.mapping()) for one in spec.items(name)] for name in ("devices", COUNTERS)}
    return {name: some for name, some in content.items() if some}


def _missing(sent: Any, stored: Any) -> Iterator[str]:
    """The names of the fields that are in ``sent`` and not in ``stored``."""
    if isinstance(sent, list) and isinstance(stored, list):
        for one, other in zip(sent, stored, strict=False):
            yield from _missing(one, other)
    elif isinstance(sent, dict) and isinstance(stored, dict):
        for key, value in sent.items():
            if key in stored:
                yield from _missing(value, stored[key])
            else:
                yield COUNTERS if key == "consumesCounters" else key
