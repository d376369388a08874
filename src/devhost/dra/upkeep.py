"""Keeps the files of claims in agreement with the claims that the kubelet's pods have, and with devices.

Every list of the kubelet's pods (podresources) is compared with the files:

* a file that was removed or changed is written again: a container that restarts needs it;
* a claim that a pod has and that has no record (the directory was emptied while devhost was not running)
  holds its devices as soon as one list names it. It is rendered again from its object, once two lists have
  named it;
* a record whose claim no list has named for :data:`GRACE` seconds is removed if the API server confirms that
  the claim is gone, and the kubelet's own record does not have it either. The kubelet then has nothing to
  call Unprepare for. A pod that was force-deleted is in no list while its containers still end.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devhost.allocation.cdi.claim_files import ClaimFiles, is_uid
from devhost.allocation.cdi.claim_metadata import contents
from devhost.allocation.cdi.spec import (
    Rendered,
    Seen,
    claim_kind,
    claims_of,
    gone,
    is_own,
    recorded,
    withheld,
)
from devhost.allocation.claims import UUID, ClaimAllocations, ClaimedDevice, ClaimRecord
from devhost.allocation.leases import ClaimUseDevice, Listing
from devhost.backend.errors import DAMAGED, BackendError, DevhostError, EnvironmentFailure
from devhost.backend.files import read_regular
from devhost.backend.incident import Incident
from devhost.backend.model import ClaimHolder
from devhost.discovery.scanner import Scanner
from devhost.planning.claims import Key
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import Retry, together
from devhost.runtime.worker import FileWorker

from .claim_devices import Basis, Chosen, Rendering, RequestedDevices, chosen_again, described, render
from .inventory import DraDevice, DraInventory
from .kube import Unreachable
from .prepare import Preparer

log = get(__name__)

GRACE = 120.0
"""Seconds for which lists must lack a claim; the kubelet repeats Unprepare every 60."""

KEPT = (
    "the claim does not exist, but the kubelet still has it: its devices are free when its last pod has ended"
)
"""Why a claim that is gone holds its devices."""

QUESTIONS = 15.0
"""Seconds in which one pass asks the API server about the claims of records; the next one goes on."""

STATE = "dra_manager_state"
"""The file with the kubelet's own record."""

MAX_BYTES = 16 << 20
"""A larger file is not read. A claim takes about 1 kB, and a node has some hundred."""


_Named = Mapping[str, tuple[ClaimHolder, Sequence[ClaimUseDevice]]]
"""Claims in a list by their uid, each with its devices."""


class _Since:
    """When the first list began of those in a row that show the same of a claim, by uid."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}

    def due(self, uids: Iterable[str], listing: Listing, after: float) -> list[str]:
        """Those of the claims of which the newest list shows it, as lists have for so many seconds."""
        self.began = {uid: self.began.get(uid, listing.began) for uid in uids}
        return [uid for uid, began in self.began.items() if listing.began - began >= after]


class ClaimFailures:
    """The claims for which each pass fails: each reason of a claim is logged once while it has one.

    ``message`` is logged, ``text`` is the same about a claim.
    """

    def __init__(self, message: str, text: str) -> None:
        self.found: Sequence[tuple[str, str]] = ()
        """The claims with their newest reasons, as of the last whole pass."""
        self._message = message
        self._text = text
        self._incidents: dict[str, Incident] = {}
        self._failed: dict[str, tuple[str, str]] = {}
        """By uid: those of the pass in progress."""

    def failed(self, claim: ClaimHolder, reason: str) -> None:
        self._failed[claim.uid] = str(claim), f"{self._text}: {reason}"
        if self._incidents.setdefault(claim.uid, Incident()).news(reason):
            log.warning(self._message, claim=str(claim), uid=claim.uid, reason=reason)

    def end(self) -> bool:
        """Ends a pass: the other claims no longer fail. Whether some do."""
        self._incidents = {uid: one for uid, one in self._incidents.items() if uid in self._failed}
        self.found, self._failed = tuple(self._failed.values()), {}
        return bool(self.found)


class KubeletClaims:
    """Reads the kubelet's own record of claims: those for which it has still to call Unprepare.

    The kubelet keeps it in :data:`STATE` in its root directory (``pkg/kubelet/cm/dra``), the parent of the
    directory with the drivers' sockets, ``plugins``. A claim is in it from Prepare until its Unprepare has
    succeeded, also while a pod that was force-deleted still ends: then neither the API server nor a list of
    pods names the claim. The file is JSON:

    * since Kubernetes 1.32 ``Data``, which is a text, and ``Checksum``, its CRC-32 (IEEE). The text is JSON
      with ``ClaimInfoStateList``, for a time ``Entries``: a list, or ``null``;
    * before, ``entries`` beside ``version`` and a checksum over a dump of Go's data structures, which nothing
      else can compute.

    Each entry has ``ClaimUID``. The kubelet replaces the file atomically. devhost only reads it, on a thread,
    because it may be on a file system that hangs. It does without it: what is missing, damaged or too large
    names no claim and refuses nothing.
    """

    def __init__(self, plugins: Path) -> None:
        self._places = [directory / STATE for directory in (plugins.parent, plugins)]
        self._worker = FileWorker("kubelet's claims", "the kubelet's directory must be readable")

    async def uids(self) -> frozenset[str]:
        """The claims in the record; none if it cannot be used."""
        try:
            return await self._worker.file("read the kubelet's claims", _first, self._places)
        except EnvironmentFailure:
            return frozenset()


class Upkeep:
    """Compares lists of pods with the files of claims.

    ``kubelet`` has the claims that the kubelet still has. For ``timing`` see
    :attr:`.AllocationTiming.release_gap`, for ``questions`` :data:`QUESTIONS`.
    """

    def __init__(
        self,
        preparer: Preparer,
        files: ClaimFiles,
        claims: ClaimAllocations,
        devices: DraInventory,
        kubelet: KubeletClaims,
        *,
        timing: AllocationTiming = ALLOCATION,
        questions: float = QUESTIONS,
    ) -> None:
        self.kept: Mapping[str, ClaimHolder] = {}
        """The claims, by uid, that are gone at the API server and that the kubelet has not released."""
        self._preparer = preparer
        self._files = files
        self._claims = claims
        self._devices = devices
        self._kubelet = kubelet
        self._timing = timing
        self._questions = questions
        self._unrecorded: dict[str, frozenset[Key]] = {}
        """The devices that claims hold because a list named them."""
        self._unnamed = _Since()
        """Lists lack a claim that is unrecorded."""
        self._missing = _Since()
        """Lists lack the claim of a record."""
        self._lost = _Since()
        """Lists name a claim without record."""
        self._files_failed = ClaimFailures(
            "the CDI file of a claim may be missing", "its CDI file may be missing"
        )
        self._ends_failed = ClaimFailures(
            "a claim that may be gone stays prepared", "it may be gone, but stays prepared"
        )

    @property
    def failures(self) -> Sequence[tuple[str, str]]:
        """The claims whose files may be missing, or that may be gone, with the reasons."""
        return (*self._files_failed.found, *self._ends_failed.found)

    def hold(self, listing: Listing) -> None:
        """Makes the claims that a list names and that have no record the holders of their devices, at once.

        What more they have is not known yet, such as admin access. Call it again when there are more devices.
        """
        self._hold(self._named(listing))

    def _hold(self, named: _Named) -> None:
        records = self._files.records
        with together():
            for uid, (ref, listed) in named.items():
                if uid in records or self._preparer.unprepared(uid):
                    self._unrecorded.pop(uid, None)
                    continue
                found = (self._devices.claimed(one.pool, one.device, one.share) for one in listed)
                devices = [one for one in found if one is not None]
                keys = frozenset(key for one in devices for key in one.keys)
                if keys and self._unrecorded.get(uid) != keys:
                    self._unrecorded[uid] = keys
                    self._claims.prepared(ref, devices, self._preparer.driver)

    async def follow(self, listing: Listing) -> None:
        """Takes a list of pods."""
        listed = self._named(listing)
        self._hold(listed)
        await self._restore()
        named = {uid: ref for uid, (ref, _) in listed.items()}
        await self._rebuild(named, listing)
        if listing.pods:  # a kubelet that has just started knows no pods yet
            with together():
                self._release_unrecorded(named, listing)
            await self._remove_orphans(named, listing)
        self._files_failed.end()
        self._ends_failed.end()

    async def _restore(self) -> None:
        for uid, record in list(self._files.records.items()):
            with self._preparer.turn(uid) as turn:
                async with turn.lock:
                    try:
                        restored = await self._files.restore(uid)
                    except DevhostError as error:
                        self._files_failed.failed(record.claim, str(error))
                        continue
            if restored:
                log.warning("restored the CDI file of a claim", claim=str(record.claim), uid=uid)

    def _named(self, listing: Listing) -> _Named:
        """The claims of this driver in a list. Their uids are in their CDI names."""
        found: dict[str, tuple[ClaimHolder, list[ClaimUseDevice]]] = {}
        for (namespace, name), claim in listing.claims.items():
            for device in claim.devices:
                for uid in self._uids(device):
                    found.setdefault(uid, (ClaimHolder(namespace, name, uid), []))[1].append(device)
        return found

    def _uids(self, device: ClaimUseDevice) -> Iterator[str]:
        beginning = f"{claim_kind(self._preparer.driver)}="
        names = device.cdi_names if device.driver == self._preparer.driver else ()
        for name in names:
            own = name.removeprefix(beginning)
            found = UUID.match(own)  # a request may have hyphens, too
            uid = found[0] if found is not None else own.rpartition("-")[0].rpartition("-")[0]
            if name.startswith(beginning) and is_uid(uid):
                yield uid
                return

    async def _rebuild(self, named: Mapping[str, ClaimHolder], listing: Listing) -> None:
        lost = {uid: ref for uid, ref in named.items() if uid not in self._files.records}
        due = self._lost.due(lost, listing, self._timing.release_gap)
        with together():
            await asyncio.gather(*(self._rebuild_one(lost[uid]) for uid in due))

    async def _rebuild_one(self, ref: ClaimHolder) -> None:
        try:
            with self._preparer.turn(ref.uid) as turn:
                claim = await self._preparer.read(ref)
                async with turn.lock:
                    gone = self._preparer.unprepared(ref.uid)
                    if gone or ref.uid in self._files.records:
                        return
                    await self._preparer.commit(ref, claim, turn, running=True)
        except DevhostError as error:
            self._files_failed.failed(ref, str(error))
            return
        log.warning("rebuilt the CDI file of a claim", claim=str(ref), uid=ref.uid)

    def _release_unrecorded(self, named: Mapping[str, ClaimHolder], listing: Listing) -> None:
        """Releases what no list has named for the grace; Unprepare, which is usual, releases it at once."""
        for uid in list(self._unrecorded):
            if uid in self._files.records or self._preparer.unprepared(uid):
                del self._unrecorded[uid]
        for uid in self._unnamed.due(self._unrecorded.keys() - named.keys(), listing, GRACE):
            del self._unrecorded[uid]
            self._claims.released(uid, self._preparer.driver)

    async def _remove_orphans(self, named: Mapping[str, ClaimHolder], listing: Listing) -> None:
        records = self._files.records
        due = self._missing.due([uid for uid in records if uid not in named], listing, GRACE)
        gone = await self._gone([records[uid] for uid in due], listing)
        in_use = await self._kubelet.uids() if gone else ()
        kept = {record.claim.uid: record.claim for record in gone if record.claim.uid in in_use}
        for uid in kept.keys() - self.kept.keys():
            log.warning("a claim that is gone stays prepared", claim=str(kept[uid]), uid=uid, reason=KEPT)
        unsure = {uid: claim for uid, claim in self.kept.items() if uid in due and uid not in kept}
        with together():
            for record in gone:
                uid = record.claim.uid
                if uid in kept:
                    continue
                unsure.pop(uid, None)
                try:
                    await self._remove(record)
                except DevhostError as error:
                    self._ends_failed.failed(record.claim, str(error))
        self.kept = {**unsure, **kept}

    async def _gone(self, asked: Sequence[ClaimRecord], listing: Listing) -> Sequence[ClaimRecord]:
        """The records whose claim does not exist, or is another one; as far as the API server answers."""
        gone = []

        async def ask(record: ClaimRecord) -> None:
            claim = record.claim
            try:
                if await self._preparer.is_gone(claim):
                    gone.append(record)
                else:
                    self._missing.began[claim.uid] = listing.began  # ask again after the same time
            except Unreachable:
                pass  # the next list asks again
            except DevhostError as error:
                self._ends_failed.failed(claim, str(error))

        with suppress(TimeoutError):
            async with asyncio.timeout(self._questions):
                await asyncio.gather(*map(ask, asked))
        return gone

    async def _remove(self, record: ClaimRecord) -> None:
        uid = record.claim.uid
        with self._preparer.turn(uid) as turn:
            async with turn.lock:
                if self._files.records.get(uid) is not record:
                    return  # it was prepared again meanwhile
                await self._preparer.release(uid)
        self._missing.began.pop(uid, None)
        log.warning("removed the record of a claim that is gone", claim=str(record.claim), uid=uid)


def _first(places: Sequence[Path]) -> frozenset[str]:
    """The claims in the first of these files that is a record. May block."""
    for path in places:
        with suppress(OSError, *DAMAGED):
            return recorded_uids(read_regular(path, MAX_BYTES))
    return frozenset()


def recorded_uids(data: bytes) -> frozenset[str]:
    """The uids in a record.

    Raises one of :data:`~devhost.backend.errors.DAMAGED` if it is damaged, or has another format.
    """
    found = json.loads(data)
    if "Data" not in found:
        return _uids(found["entries"])
    text = found["Data"]
    if not isinstance(text, str):
        raise TypeError("not text")
    if zlib.crc32(text.encode()) != found["Checksum"]:
        raise ValueError("wrong checksum")
    content: Mapping[str, Any] = json.loads(text)
    return _uids(content["ClaimInfoStateList"] if "ClaimInfoStateList" in content else content["Entries"])


def _uids(entries: Any) -> frozenset[str]:
    return frozenset(uid for entry in entries or () if isinstance(uid := entry["ClaimUID"], str))


CHECK = 60.0
"""Seconds until the nodes of all claims are looked at again if nothing causes that earlier."""


class Refresher:
    """Renders prepared claims again when their devices, or the nodes of these, have changed.

    The kubelet prepares a claim once and repeats its CDI names whenever a container of its pods starts, so a
    file must follow the paths and numbers of the devices. Names and record stay as they were prepared. A name
    whose device is gone, or whose nodes may be another device's by now, gives nothing but the reason
    (:func:`devhost.allocation.cdi.spec.withheld`).
    """

    def __init__(
        self,
        preparer: Preparer,
        devices: DraInventory,
        files: ClaimFiles,
        *,
        timing: AllocationTiming = ALLOCATION,
    ) -> None:
        self._preparer = preparer
        self._devices = devices
        self._files = files
        self._timing = timing
        self._failures = ClaimFailures(
            "the CDI file of a claim may be outdated", "its CDI file may be outdated"
        )
        self._unreachable: Unreachable | None = None
        """Why the API server did not answer in this pass, which then asks for no other claim."""

    @property
    def failures(self) -> Sequence[tuple[str, str]]:
        """The claims whose files may be outdated, with the reasons."""
        return self._failures.found

    async def refresh(self) -> float:
        """Makes every file right; gives the seconds until the next look.

        Raises ``Retry`` if a file may be outdated, whose reason has been logged, and ``EnvironmentFailure``
        if looking at nodes hangs.
        """
        await self._files.check()
        changed = await self._outdated()
        self._unreachable = None
        for uid, record in list(self._files.records.items()):
            try:
                reason = await self._refresh(record, outdated=uid in changed)
            except DevhostError as error:
                reason = str(error)
            if reason:
                self._failures.failed(record.claim, reason)
        if self._failures.end():
            raise Retry
        return CHECK

    async def _outdated(self) -> set[str]:
        """The claims for which the host has other nodes than when they were rendered."""
        bases = self._preparer.bases
        runners = (one.backend.runner for basis in bases.values() for one in basis.devices if one)
        if (runner := next(runners, None)) is None:
            return set()
        places = [(uid, seen) for uid, basis in bases.items() for seen in basis.seen]
        every = [seen for _, seen in places]
        return {places[number][0] for number in await self._files.outdated(every, runner)}

    async def _refresh(self, record: ClaimRecord, *, outdated: bool) -> str:
        """Makes one file right; gives why it may not be."""
        uid = record.claim.uid
        scanners = [self._devices.scanner(one) for one in record.devices]
        if record.driver != self._preparer.driver or None in scanners:
            return ""  # nothing is known of these devices yet
        now = [self._devices.present(one) for one in record.devices]
        basis = self._preparer.bases.get(uid)
        if basis is not None and not outdated and basis.is_of(now):
            return ""
        chosen: Sequence[Chosen | None] = [None] * len(now)
        unknown = ""
        try:
            chosen = await self._chosen(record, now, basis)
        except DevhostError as error:
            unknown = error.message
        with self._preparer.turn(uid) as turn:
            async with turn.lock:
                if self._files.records.get(uid) is not record:
                    return ""  # it was released, or prepared again
                claim = _Claim(record, [one for one in scanners if one is not None], now, self._files)
                await claim.render(chosen, unknown, self._timing.allocate)
                metadata = self._files.metadata(uid)
                if record.metadata:
                    metadata = contents(record, claim.attributes(metadata), metadata)
                changed = await self._files.rewrite(record, claim.edits, metadata)
                self._preparer.bases.pop(uid, None)
                if not claim.doubtful:
                    self._preparer.bases[uid] = Basis(tuple(chosen), tuple(now), tuple(claim.seen))
        if changed:
            log.warning("the CDI file of a claim follows its devices", claim=str(record.claim), uid=uid)
        return claim.failure or unknown

    async def _chosen(
        self, record: ClaimRecord, now: Sequence[DraDevice | None], basis: Basis | None
    ) -> Sequence[Chosen | None]:
        """The devices that are present, on the terms of the claim.

        ``DevhostError`` if these are not known.
        """
        if basis is not None and (known := basis.renewed(now)) is not None:
            return known
        if self._unreachable is not None:
            raise self._unreachable
        try:
            found = await self._preparer.read(record.claim)
        except Unreachable as error:
            self._unreachable = error
            raise
        return chosen_again(record, found, now)


class _Claim:
    """What the names of one claim give now: its devices as they are ``now``, each of one of the ``scanners``.

    ``files`` has what the names gave until now.
    """

    def __init__(
        self,
        record: ClaimRecord,
        scanners: Sequence[Scanner],
        now: Sequence[DraDevice | None],
        files: ClaimFiles,
    ) -> None:
        self.edits = dict(files.edits(record.claim.uid))
        """By CDI name."""
        self.seen: list[Seen] = []
        """What the host had."""
        self.doubtful = False
        """Whether some of it was not rendered, so that it is to be looked at after each scan."""
        self.failure = ""
        """Why some of it may be outdated."""
        self._described: dict[int, Mapping[str, Any]] = {}
        """The attributes of devices that were rendered, by their position."""
        self._record = record
        self._scanners = scanners
        self._now = now
        self._files = files

    async def render(self, chosen: Sequence[Chosen | None], unknown: str, deadline: float) -> None:
        """Renders all names of the devices that are present, on the terms of the claim.

        ``unknown`` is why the terms are not known; empty if they are.
        """
        groups: dict[tuple[str, str], list[int]] = {}
        for position, one in enumerate(self._record.devices):
            groups.setdefault((one.request, one.resource), []).append(position)
        for (_, resource), positions in groups.items():
            devices = [self._record.devices[position] for position in positions]
            scanner = self._scanners[positions[0]]
            every = [name for one in devices for _, name in one.keys]
            if absent := [name for name in every if name not in scanner.devices]:
                self._withhold(devices, gone(absent))
            elif unknown or any(self._now[position] is None for position in positions):
                await self._doubt(devices, scanner, unknown or f"{resource} is not configured")
            else:
                members = [taken for position in positions if (taken := chosen[position]) is not None]
                group = RequestedDevices(tuple(members))
                try:
                    found = await render(group, deadline, report=False)
                except BackendError as error:
                    self.failure = error.message
                    await self._doubt(devices, scanner, error.message)
                else:
                    self._take(devices, members, found)
                    self._described |= zip(positions, described(members, [(group, found)]), strict=True)

    def attributes(self, before: Collection[str]) -> list[Mapping[str, Any] | None]:
        """The attributes of each device for its metadata; ``None`` to keep what there is.

        ``before`` are the requests that have metadata.
        """
        return [
            None
            if one is None
            else self._described.get(n, None if claimed.base in before else one.attributes())
            for n, (one, claimed) in enumerate(zip(self._now, self._record.devices, strict=True))
        ]

    def _names(self, devices: Sequence[ClaimedDevice]) -> tuple[list[str], list[str]]:
        """The names in the file: the one of each device, and those of what several give together."""
        kind = f"{claim_kind(self._record.driver)}="
        together = [name for one in devices for name in one.cdi_ids[1:] if name.startswith(kind)]
        return [one.cdi_ids[0].removeprefix(kind) for one in devices], [
            name.removeprefix(kind) for name in together
        ]

    def _withhold(self, devices: Sequence[ClaimedDevice], why: str) -> None:
        own, together = self._names(devices)
        nothing = {} if all(one.admin for one in devices) else withheld(why)  # a monitor goes on without it
        self.edits |= dict.fromkeys((*own, *together), nothing)

    async def _doubt(self, devices: Sequence[ClaimedDevice], scanner: Scanner, why: str) -> None:
        """Lets names give what they gave if that is still their devices', else nothing."""
        self.doubtful = True
        own, together = self._names(devices)
        before = [recorded(self.edits[name]) for name in (*own, *together) if self.edits.get(name)]
        known = [seen for seen in before if seen is not None]
        mine = claims_of(scanner.devices[name] for one in devices for _, name in one.keys)
        claimed = claims_of(scanner.devices.values())
        certain = len(known) == len(before) and all(is_own(seen, mine, claimed) for seen in known)
        changed = await self._files.outdated(known, scanner.runner)
        if changed or not certain:
            self._withhold(devices, why)

    def _take(self, devices: Sequence[ClaimedDevice], members: Sequence[Chosen], found: Rendering) -> None:
        """Takes what the backend answered. The names stay those that the kubelet knows."""
        own, together = self._names(devices)
        parts = dict(found.single)
        each = [parts.pop(one.found.device.id, (Rendered({}), ())) for one in members]
        whole = found.whole or each[0]
        needed = {name for _, names in (*each, whole) for name in names}
        if missing := needed.difference(*(one.cdi_ids for one in self._record.devices)):
            self._withhold(devices, f"it needs {', '.join(sorted(missing))} now: delete the pod")
            return
        self.edits |= {name: part.edits for name, (part, _) in zip(own, each, strict=True)}
        if found.whole is not None or together:
            # a name stays that the kubelet knows, and one without edits would make the file invalid
            edits = next((part.edits for part, _ in (whole, *each) if part.edits), {})
            self.edits |= dict.fromkeys(together or own[:1], edits)
        self.seen += [part.seen for part, _ in (*each, whole)]
