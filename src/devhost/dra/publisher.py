"""Keeps the ResourceSlices of one node and driver at the API server as the plan wants them.

A slice is described by its metadata alone: annotations name its pool, its number, the pool's generation and a
hash of its devices. Whole slices are read only at the start, and when one was changed by another writer.

* One changed slice is one write, and the pool keeps its generation. If several change, or one is added or
  removed, every slice of the pool is written with the next generation: deletions first, creations last, so
  that there is never a second complete generation.
* Before devices are published, the record on disk names them. After the API server has confirmed slices
  without a device, :class:`~devhost.planning.sides.Sides` learns that.
* A field that the API server drops, and an attribute or device that it refuses, is reported once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from devhost.backend.backoff import Backoff, TokenBucket
from devhost.backend.errors import DevhostError
from devhost.backend.model import Device
from devhost.discovery.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler, Retry
from devhost.planning.claims import Key
from devhost.planning.sides import NODE, DraTiming, Sides
from devhost.telemetry.log import get
from devhost.telemetry.metrics import Metrics
from devhost.telemetry.tables import few

from .claim_objects import API
from .kube import ApiError, KubeApi, Unreachable
from .record import SliceRecord
from .slices import DesiredSlice, LeftOut, Offered, Pool

log = get(__name__)

SLICES = f"{API}/resourceslices"

PAGE = 20
"""Whole slices in one answer of the API server; each has up to 80 kB."""

LONGEST_RETRY = 120.0
"""Seconds after which devhost writes again even if the API server wants it to wait longer."""

_PATH = re.compile(r"spec\.devices\[(\d+)\](?:\.(?:attributes|capacity)\[([^\]]+)\])?")
_RIGHTS = "allow devhost to get nodes and to change the resourceslices of its node"

Offers = tuple[str, Sequence[Offered]]
"""The backend of a resource, and its devices."""


@dataclass(frozen=True, slots=True)
class PublishedSlot:
    """Where a device is published: the slice's name, the pool, the device's name and its attributes."""

    slice: str
    pool: str
    device: str
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class Status:
    """How the slices are.

    Attributes:
        slices: slices at the API server.
        writes: slices created, changed or deleted since the start.
        dropped: fields that the API server does not keep.
        left_out: attributes and devices that are not published, each with its resource.
        synced_at: when slices last agreed with the devices, in Unix time; ``None`` before.
        error: why they do not agree; empty if they do.
    """

    slices: int = 0
    writes: int = 0
    dropped: tuple[str, ...] = ()
    left_out: tuple[tuple[str, LeftOut], ...] = ()
    synced_at: float | None = None
    error: str = ""


@dataclass(slots=True)
class _Stored:
    """A slice at the API server. ``trusted`` is whether its devices are known to match its annotations."""

    uid: str
    version: str
    generation: int
    pool: str = ""
    index: int = -1
    pool_generation: int = -1
    count: int = -1
    digest: str = ""
    trusted: bool = False


@dataclass(slots=True)
class _Published:
    """A resource, and what its slices hold as confirmed, by the name of the slice."""

    pool: Pool
    keys: dict[str, frozenset[Key]] = field(default_factory=dict)


class Publisher:
    """Publishes the devices of one driver on one node.

    Args:
        api: the API server.
        driver: the driver's name.
        node: the name of the Node.
        record: says which devices slices may hold, for the next start.
        sides: learns which devices slices hold.
        replan: called when a device has left its slices, so that it may move.
        changed: called when the status has changed.
        metrics: counts writes.
        timing: how long it waits.
        clock: paces the writes.

    Attributes:
        status: how the slices are.
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
        timing: DraTiming = NODE,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.status = Status()
        self._api = api
        self._driver = driver
        self._node = node
        self._record = record
        self._sides = sides
        self._replan = replan
        self._changed = changed
        self._metrics = metrics
        self._clock = clock
        self._timing = timing
        self._wanted: Mapping[str, Offers | None] | None = None
        self._complete = False
        self._published: dict[str, _Published] = {}
        self._stored: dict[str, _Stored] = {}
        self._names: dict[str, dict[int, list[str]]] = {}
        """The names of devices in the slices of each pool at the start, until the pool takes them over."""
        self._read = False
        self._owner = ""
        self._dropped: set[str] = set()
        self._rejected: dict[str, dict[tuple[str, str], Device]] = {}
        self._told: set[tuple[str, LeftOut]] = set()
        self._permits = TokenBucket(timing.burst, timing.write)
        self._write_failures = FailureLog(
            log, "ResourceSlices cannot be published", "ResourceSlices are published again", driver=driver
        )
        self._writes = Reconciler(
            self._reconcile,
            backoff=Backoff(1.0, 60.0),
            failures=self._write_failures,
            first=None,
            settle=timing.settle,
            gap=timing.gap,
            wakeable=False,
            clock=clock,
        )
        self._watch = Reconciler(
            self._follow_slices,
            backoff=Backoff(1.0, 60.0),
            failures=FailureLog(
                log, "ResourceSlices cannot be watched", "ResourceSlices are watched again", driver=driver
            ),
            clock=clock,
        )

    def follow(self, pools: Mapping[str, Offers | None], *, complete: bool = True) -> None:
        """Takes the devices of each resource; they are published soon.

        Args:
            pools: ``None`` for a resource whose devices are not known yet: its slices stay as they are.
            complete: whether no other resource has slices, so that all others are removed.
        """
        if pools != self._wanted or complete != self._complete:
            self._wanted, self._complete = dict(pools), complete
            if self._read:
                self._writes.wake()

    async def run(self) -> None:
        """Publishes until cancelled. The slices stay."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch.run())
            group.create_task(self._writes.run())

    def slot(self, resource: str, device_id: str) -> PublishedSlot | None:
        """Where a device is published; ``None`` if it is not."""
        published = self._published.get(resource)
        slot = published.pool.slot(device_id) if published else None
        if published is None or slot is None:
            return None
        name = published.pool.object_name(slot.slice_index)
        if (published.pool.backend, device_id) not in published.keys.get(name, ()):
            return None
        return PublishedSlot(name, published.pool.name, slot.device, slot.body["attributes"])

    async def _follow_slices(self) -> float:
        """One list, and the watch that follows it until the server ends it."""
        query = {"fieldSelector": f"spec.driver={self._driver},spec.nodeName={self._node}"}
        try:
            version = await self._list(query)
            watch = self._api.watch(SLICES, query, version, metadata_only=True)
            async with aclosing(watch) as changes:
                self._watch.succeeded()
                async for kind, changed in changes:
                    self._see(kind, changed)
        except ApiError as error:
            if error.status != 410:
                self._fail(_refusal(error))
                raise Retry(self.status.error) from error
        except Unreachable as error:
            self._fail(error.message)
            raise Retry(error.message) from error
        return self._timing.settle

    async def _list(self, query: Mapping[str, str]) -> str:
        """Reads the slices of this node: whole ones at the start, later their metadata."""
        first = not self._read
        found: dict[str, _Stored] = {}
        names: dict[str, dict[int, list[str]]] = {}
        version = ""
        async with aclosing(
            self._api.list(SLICES, query, metadata_only=not first, limit=PAGE if first else 0)
        ) as pages:
            async for page in pages:
                version = str(_section(page, "metadata").get("resourceVersion", ""))
                for one in page.get("items") or ():
                    stored = self._described(one)
                    name = str(_section(one, "metadata").get("name", ""))
                    if first:
                        devices = _section(one, "spec").get("devices") or []
                        stored.trusted = _digest(devices) == stored.digest
                        places = names.setdefault(stored.pool, {})
                        places[stored.index] = [str(device.get("name", "")) for device in devices]
                    found[name] = stored
        if first:
            self._stored, self._names, self._read = found, names, True
            self._writes.wake()
            return version
        for name in self._stored.keys() - found.keys():
            self._removed(name)
        for name, stored in found.items():
            self._take(name, stored)
        return version

    def _see(self, kind: str, changed: Mapping[str, Any]) -> None:
        name = str(_section(changed, "metadata").get("name", ""))
        if kind == "DELETED":
            stored = self._stored.get(name)
            if stored is not None and stored.uid == str(_section(changed, "metadata").get("uid", "")):
                self._removed(name)
        elif kind in ("ADDED", "MODIFIED"):
            self._take(name, self._described(changed))

    def _removed(self, name: str) -> None:
        """Somebody else deleted a slice, as a kubelet does that starts, or the deletion of the Node."""
        del self._stored[name]
        self._owner = ""
        self._writes.wake()

    def _take(self, name: str, seen: _Stored) -> None:
        """A slice as the API server reports it, which may be older than what is known."""
        known = self._stored.get(name)
        if known is not None and known.uid == seen.uid:
            if seen.generation < known.generation:
                return
            seen.trusted = known.trusted and seen.generation == known.generation
        self._stored[name] = seen
        if known is None or not seen.trusted or (known.digest, known.index) != (seen.digest, seen.index):
            self._writes.wake()

    def _described(self, one: Mapping[str, Any]) -> _Stored:
        metadata = _section(one, "metadata")
        notes = _section(metadata, "annotations")

        def number(key: str) -> int:
            text = str(notes.get(f"{self._driver}/{key}", ""))
            return int(text) if text.isdecimal() else -1

        return _Stored(
            str(metadata.get("uid", "")),
            str(metadata.get("resourceVersion", "")),
            int(metadata.get("generation", 0)),
            str(notes.get(f"{self._driver}/pool", "")),
            number("index"),
            number("generation"),
            number("count"),
            str(notes.get(f"{self._driver}/digest", "")),
        )

    async def _reconcile(self) -> float | None:
        if self._wanted is None or not self._read:
            return None
        wanted, complete = self._wanted, self._complete
        try:
            wait = await self._publish(wanted, complete=complete)
        except ApiError as error:
            self._fail(_refusal(error))
            if error.retry_after is None:
                raise Retry(self.status.error) from error
            self._write_failures.failed(self.status.error)
            return min(max(error.retry_after, self._timing.settle), LONGEST_RETRY)
        except Unreachable as error:
            self._fail(error.message)
            raise Retry(error.message) from error
        except DevhostError as error:
            self._fail(str(error))
            raise
        return wait

    async def _publish(self, wanted: Mapping[str, Offers | None], *, complete: bool) -> float | None:
        """Brings every pool in line; returns the seconds after which one must be looked at again."""
        again = False
        left_out: list[tuple[str, LeftOut]] = []
        if not self._owner:
            await self._find_owner()
        names = set()
        for resource, offers in wanted.items():
            if offers is None:
                if (published := self._published.get(resource)) is not None:
                    names |= {name for name, one in self._stored.items() if one.pool == published.pool.name}
                continue
            pool = self._pool(resource, offers[0])
            desired, missing = await self._bring(pool, offers[1])
            left_out += [(resource, one) for one in missing]
            names |= {pool.object_name(one.index) for one in desired}
        for name in sorted(self._stored.keys() - names) if complete else ():
            await self._delete(name)
        again = wanted != self._wanted
        if complete and not any(offers is None for offers in wanted.values()):
            await self._confirm(wanted)
        self._finish(left_out)
        return 0.0 if again else None

    def _pool(self, resource: str, backend: str) -> Pool:
        published = self._published.get(resource)
        if published is None or published.pool.backend != backend:
            pool = Pool(self._driver, self._node, resource, backend)
            pool.adopt(self._names.pop(pool.name, {}))
            published = self._published[resource] = _Published(pool)
        return published.pool

    async def _bring(self, pool: Pool, offers: Sequence[Offered]) -> tuple[list[DesiredSlice], list[LeftOut]]:
        """Brings the slices of one pool in line; returns them, and what they leave out."""
        while True:
            desired, left_out = self._desired(pool, offers)
            try:
                done = await self._write_pool(pool, desired)
            except _Refused as refused:
                self._reject(pool, refused, offers)
                continue
            if done:
                return desired, left_out

    def _desired(self, pool: Pool, offers: Sequence[Offered]) -> tuple[list[DesiredSlice], list[LeftOut]]:
        rejected = self._rejected.get(pool.resource, {})
        now = {one.device.id: one.device for one in offers}
        still = {what: device for what, device in rejected.items() if now.get(what[0]) == device}
        self._rejected[pool.resource] = still
        return pool.slices(offers, dropped=self._dropped, rejected=still)

    async def _write_pool(self, pool: Pool, desired: Sequence[DesiredSlice]) -> bool:
        """Writes what differs; false if the API server dropped a field, so that other slices are wanted."""
        names = {pool.object_name(one.index): one for one in desired}
        ours = {
            name: one
            for name, one in self._stored.items()
            if name in names or (one.pool == pool.name and name.startswith(pool.object_name(0)[:-5]))
        }
        dropped = len(self._dropped)
        for name, one in ours.items():
            if name in names and not one.trusted and one.digest == names[name].digest:
                await self._verify(pool, name, names[name])
        if len(self._dropped) > dropped:
            return False
        generation, outdated = self._outdated(names, ours)
        for name in sorted(ours.keys() - names.keys()):
            await self._delete(name)
        keys = self._published[pool.resource].keys
        for name in [name for name in keys if name not in names]:
            del keys[name]
        creations = [name for name in outdated if name not in self._stored]
        updates = [name for name in outdated if name in self._stored]
        for name in (*updates, *creations):
            await self._write(pool, name, names[name], generation, len(desired))
        for name, wanted in names.items():
            keys[name] = frozenset((pool.backend, identity) for identity in wanted.ids)
        return len(self._dropped) == dropped

    def _outdated(
        self, names: Mapping[str, DesiredSlice], ours: Mapping[str, _Stored]
    ) -> tuple[int, list[str]]:
        """The pool's generation, and the slices that must be written for it."""
        count = len(names)
        newest = max((one.pool_generation for one in ours.values()), default=0)

        def current(name: str) -> bool:
            one = ours.get(name)
            good = one is not None and one.trusted and one.count == count
            return good and one is not None and one.digest == names[name].digest

        latest = [name for name, one in ours.items() if one.pool_generation == newest]
        changed = [name for name in names if not current(name)]
        behind = [name for name in names if name not in latest]
        if not ours:
            return 1, list(names)
        if not changed and not behind and len(latest) == count:
            return newest, []
        alone = len(changed) == 1 and all(ours[name].count == count for name in latest)
        if alone and not behind and ours.keys() == names.keys():
            return newest, changed
        if all(name in names and current(name) for name in latest):
            return newest, [name for name in names if name in behind or name in changed]
        return newest + 1, list(names)

    async def _verify(self, pool: Pool, name: str, wanted: DesiredSlice) -> None:
        """Reads a slice whose devices may differ from what its annotations say."""
        try:
            found = await self._api.get(f"{SLICES}/{quote(name, '')}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._stored.pop(name, None)
            return
        stored = self._described(found)
        devices = _section(found, "spec").get("devices") or []
        stored.trusted = _digest(devices) == wanted.digest or self._keep(pool, wanted, devices)
        self._stored[name] = stored

    async def _write(self, pool: Pool, name: str, wanted: DesiredSlice, generation: int, count: int) -> None:
        """Creates or replaces one slice.

        Raises:
            ApiError, Unreachable: it cannot be written.
            EnvironmentFailure: the record cannot be written.
        """
        self._sides.publishing({(pool.backend, one): pool.resource for one in wanted.ids})
        await self._record.write(self._sides.record())
        known = self._stored.get(name)
        body = self._body(pool, name, wanted, generation, count, known)
        await self._permitted()
        try:
            if known is None:
                answer = await self._api.create(SLICES, body)
            else:
                answer = await self._api.update(f"{SLICES}/{quote(name, '')}", body)
        except ApiError as error:
            if error.status == 409 or (error.status == 404 and known is not None):
                answer = await self._after_conflict(name, wanted, error)
            elif error.status in (400, 422):
                raise _Refused(wanted, error) from error
            else:
                raise
        self._count(1)
        stored = self._described(answer)
        devices = _section(answer, "spec").get("devices") or []
        stored.trusted = True  # the server changed what differs, and would do so again
        self._keep(pool, wanted, devices)
        self._stored[name] = stored

    async def _after_conflict(self, name: str, wanted: DesiredSlice, error: ApiError) -> dict[str, Any]:
        """The slice after a refused write: perhaps the answer of an earlier try of the same write was lost.

        Raises:
            ApiError: it is another one.
        """
        self._stored.pop(name, None)
        try:
            found = await self._api.get(f"{SLICES}/{quote(name, '')}")
        except ApiError as missing:
            if missing.status == 404:
                raise error from None
            raise
        stored = self._described(found)
        devices = _section(found, "spec").get("devices") or []
        if stored.digest == _digest(devices) == wanted.digest:
            return found
        self._stored[name] = stored
        raise error

    def _body(
        self, pool: Pool, name: str, wanted: DesiredSlice, generation: int, count: int, known: _Stored | None
    ) -> dict[str, Any]:
        notes = {
            "pool": pool.name,
            "index": str(wanted.index),
            "generation": str(generation),
            "count": str(count),
            "digest": wanted.digest,
        }
        metadata: dict[str, Any] = {
            "name": name,
            "annotations": {f"{self._driver}/{key}": value for key, value in notes.items()},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "name": self._node,
                    "uid": self._owner,
                    "controller": True,
                }
            ],
        }
        if known is not None:
            metadata |= {"uid": known.uid, "resourceVersion": known.version}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": metadata,
            "spec": pool.spec(wanted, generation, count),
        }

    async def _delete(self, name: str) -> None:
        """Deletes a slice, if it has not changed meanwhile."""
        known = self._stored[name]
        await self._permitted()
        await self._api.delete(f"{SLICES}/{quote(name, '')}", uid=known.uid)
        self._stored.pop(name, None)
        self._count(1)

    async def _find_owner(self) -> None:
        node = await self._api.get(f"/api/v1/nodes/{quote(self._node, '')}")
        self._owner = str(_section(node, "metadata").get("uid", ""))

    async def _permitted(self) -> None:
        """Waits until one more write may be made."""
        now = self._clock.time()
        delay = self._permits.delay(now)
        self._permits.take(now)
        if delay > 0:
            over = asyncio.Event()
            timer = self._clock.call_at(now + delay, over.set)
            try:
                await over.wait()
            finally:
                timer.cancel()

    async def _confirm(self, wanted: Mapping[str, Offers | None]) -> None:
        """Reports the devices that no slice holds any more."""
        held: set[Key] = set()
        for resource, published in list(self._published.items()):
            if resource not in wanted:
                del self._published[resource]
                continue
            held = held.union(*published.keys.values())
        gone = [key for key in self._sides.record() if key not in held]
        before = dict(self._sides.record())
        moving = bool(self._sides.moving())
        self._sides.unpublished(gone)
        await self._record.write(self._sides.record())
        if gone and (moving or before != self._sides.record()):
            self._replan()

    def _keep(self, pool: Pool, wanted: DesiredSlice, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Learns from an answer which fields the API server drops; false if it changed others."""
        missing: set[str] = set()
        same = len(devices) == len(wanted.devices)
        for sent, got in zip(wanted.devices, devices, strict=False):
            same = _compare(sent, _canonical(got), "", missing) and same
        if news := missing - self._dropped:
            self._dropped |= news
            fields = few(sorted(news))
            log.warning(
                "the API server does not keep fields of ResourceSlices", fields=fields, pool=pool.name
            )
        return same

    def _reject(self, pool: Pool, refused: _Refused, offers: Sequence[Offered]) -> None:
        """Leaves out what the API server refuses.

        Raises:
            ApiError: it does not say what it refuses, or refuses it although it is left out.
        """
        devices = {one.device.id: one.device for one in offers}
        known = self._rejected.setdefault(pool.resource, {})
        news = {
            (refused.wanted.ids[int(index)], attribute): devices[refused.wanted.ids[int(index)]]
            for index, attribute in _PATH.findall(refused.error.message)
            if int(index) < len(refused.wanted.ids)
        }
        news = {what: device for what, device in news.items() if what not in known}
        if not news:
            raise refused.error
        known.update(news)
        for identity, attribute in news:
            log.warning(
                "the API server refuses a device or an attribute",
                resource=pool.resource,
                device=identity,
                attribute=attribute,
                reason=" ".join(refused.error.message.split())[:300],
            )

    def _finish(self, left_out: Iterable[tuple[str, LeftOut]]) -> None:
        """Every slice is as wanted."""
        found = tuple(left_out)
        for resource, one in found:
            if (resource, one) not in self._told and not one.attribute:
                log.warning(
                    "a device is not published", resource=resource, device=one.device_id, reason=one.reason
                )
        self._told = set(found)
        status = self.status
        status.slices, status.left_out, status.error = len(self._stored), found, ""
        status.dropped = tuple(sorted(self._dropped))
        status.synced_at = time.time()
        self._metrics.slices_synced(self._driver, status.slices, len(status.dropped))
        self._changed()

    def _count(self, writes: int) -> None:
        self.status.writes += writes
        self._metrics.slices_changed(self._driver, writes)

    def _fail(self, reason: str) -> None:
        if self.status.error != reason:
            self.status.error = reason
            self._changed()


class _Refused(Exception):
    """The API server refuses the content of a slice."""

    def __init__(self, wanted: DesiredSlice, error: ApiError) -> None:
        super().__init__(error.message)
        self.wanted = wanted
        self.error = error


def _refusal(error: ApiError) -> str:
    """An error of the API server in words."""
    if error.status in (401, 403):
        return f"the API server denies it: {_RIGHTS}"
    if error.status == 404:
        return "the API server has no such node, or no ResourceSlices: check --node-name (Kubernetes ≥ 1.34)"
    detail = f": {' '.join(error.message.split())[:300]}" if error.message else ""
    return f"the API server answered {error.status}{detail}"


def _section(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _canonical(device: Mapping[str, Any]) -> dict[str, Any]:
    """A device without what the API server adds: the time of a taint."""
    if "taints" not in device:
        return dict(device)
    taints = [{key: value for key, value in one.items() if key != "timeAdded"} for one in device["taints"]]
    return {**device, "taints": taints}


def _digest(devices: Iterable[Mapping[str, Any]]) -> str:
    """The same hash as that of :class:`~.slices.DesiredSlice`."""
    text = json.dumps([_canonical(one) for one in devices], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _compare(sent: Any, got: Any, path: str, missing: set[str]) -> bool:
    """Whether an answer keeps what was sent, but for whole fields, which are added to ``missing``."""
    if isinstance(sent, Mapping) and isinstance(got, Mapping):
        same = True
        for key, value in sent.items():
            place = f"{path}.{key}" if path else key
            if key not in got:
                missing.add(place)
            else:
                same = _compare(value, got[key], place, missing) and same
        return same
    if isinstance(sent, list | tuple) and isinstance(got, list | tuple):
        return len(sent) == len(got) and all(
            _compare(one, other, path, missing) for one, other in zip(sent, got, strict=True)
        )
    return bool(sent == got)
