"""Keeps the files of claims in agreement with the claims that the kubelet's pods have.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from devhost.allocation.cdi.claim_files import ClaimFiles, is_uid
from devhost.allocation.cdi.spec import claim_kind
from devhost.allocation.claims import UUID, ClaimAllocations, ClaimRecord
from devhost.allocation.leases import ClaimUseDevice, Listing
from devhost.backend.errors import DevhostError, EnvironmentFailure
from devhost.backend.files import read_regular
from devhost.backend.incident import Incident
from devhost.backend.model import ClaimHolder
from devhost.planning.claims import Key
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import together
from devhost.runtime.worker import FileWorker

from .inventory import DraInventory
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
        self._failures: dict[str, Incident] = {}

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
        known = {*self._files.records, *self._lost.began}
        self._failures = {one: incident for one, incident in self._failures.items() if one in known}

    async def _restore(self) -> None:
        for uid, record in list(self._files.records.items()):
            with self._preparer.turn(uid) as turn:
                async with turn.lock:
                    try:
                        restored = await self._files.restore(uid)
                    except DevhostError as error:
                        self._failed(uid, record.claim, str(error))
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
            self._failed(ref.uid, ref, str(error))
            return
        self._failures.pop(ref.uid, None)
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
                    self._failed(uid, record.claim, str(error))
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
                self._failed(claim.uid, claim, str(error))

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
        self._failures.pop(uid, None)
        log.warning("removed the record of a claim that is gone", claim=str(record.claim), uid=uid)

    def _failed(self, uid: str, claim: object, reason: str) -> None:
        """Logs each failure once."""
        if self._failures.setdefault(uid, Incident()).news(reason):
            log.warning("the CDI file of a claim may be missing", claim=str(claim), uid=uid, reason=reason)


def _first(places: Sequence[Path]) -> frozenset[str]:
    """The claims in the first of these files that is a record. May block."""
    for path in places:
        with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            return recorded(read_regular(path, MAX_BYTES))
    return frozenset()


def recorded(data: bytes) -> frozenset[str]:
    """The uids in a record.

    Raises ``ValueError``, ``TypeError``, ``LookupError`` or ``RecursionError`` if it is damaged, or has
    another format.
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
