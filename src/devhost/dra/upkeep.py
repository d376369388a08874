"""Keeps the files of claims in agreement with the claims that the kubelet's pods have.

Every list of the kubelet's pods (podresources) is compared with the files:

* a file that was removed or changed is written again: a container that restarts needs it;
* a claim that a pod has and that has no record (the directory was emptied while devhost was not running) is
  rendered again from its object, once two lists have named it;
* a record whose claim no list has named for :data:`GRACE` seconds is removed if the API server confirms that
  the claim is gone. The kubelet then has nothing to call Unprepare for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from devhost.allocation.cdi.claim_files import ClaimFiles, ClaimRecord
from devhost.allocation.cdi.spec import claim_kind
from devhost.allocation.timing import NODE, Timing
from devhost.backend.errors import DevhostError
from devhost.backend.incident import Incident
from devhost.telemetry.log import get

from .kube import Unreachable
from .prepare import Preparer
from .prepared import ClaimRef

log = get(__name__)

GRACE = 120.0
"""Seconds for which lists must lack a claim; the kubelet repeats Unprepare every 60."""

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=-)")


class ListedDevice(Protocol):
    """A device of a claim in a list of pods."""

    @property
    def driver(self) -> str: ...

    @property
    def cdi_names(self) -> Sequence[str]: ...


class ListedClaim(Protocol):
    """A claim in a list of pods."""

    @property
    def devices(self) -> Sequence[ListedDevice]: ...


class ClaimListing(Protocol):
    """A complete list of the kubelet's pods: ``devhost.allocation.allocations.Listing``."""

    @property
    def began(self) -> float:
        """Monotonic seconds at which the kubelet was asked."""
        ...

    @property
    def pods(self) -> int:
        """How many pods it named."""
        ...

    @property
    def claims(self) -> Mapping[tuple[str, str], ListedClaim]:
        """The claims of their containers, by namespace and name."""
        ...


class Upkeep:
    """Compares lists of pods with the files of claims.

    Args:
        preparer: prepares the claims.
        files: their files.
        timing: see :attr:`.Timing.release_gap`.
        grace: see :data:`GRACE`.
    """

    def __init__(
        self, preparer: Preparer, files: ClaimFiles, *, timing: Timing = NODE, grace: float = GRACE
    ) -> None:
        self._preparer = preparer
        self._files = files
        self._timing = timing
        self._grace = grace
        self._missing_since: dict[str, float] = {}
        """When the first list began that lacks the claim of a record."""
        self._lost_since: dict[str, float] = {}
        """When the first list began that names a claim without record."""
        self._failures: dict[str, Incident] = {}

    async def follow(self, listing: ClaimListing) -> None:
        """Takes a list of pods."""
        await self._restore()
        named = dict(self._named(listing))
        await self._rebuild(named, listing)
        if listing.pods:  # a kubelet that has just started knows no pods yet
            await self._remove_orphans(named, listing)
        known = {*self._files.records, *self._lost_since}
        self._failures = {one: incident for one, incident in self._failures.items() if one in known}

    async def _restore(self) -> None:
        for uid, record in list(self._files.records.items()):
            with self._preparer.turn(uid) as turn:
                async with turn.lock:
                    try:
                        restored = await self._files.restore([uid])
                    except DevhostError as error:
                        self._failed(uid, record.claim, str(error))
                        continue
            if restored:
                log.warning("restored the CDI file of a claim", claim=str(record.claim), uid=uid)

    def _named(self, listing: ClaimListing) -> Iterator[tuple[str, ClaimRef]]:
        """The claims of this driver in a list, by their uid, which is in their CDI names."""
        beginning = f"{claim_kind(self._preparer.driver)}="
        for (namespace, name), claim in listing.claims.items():
            for device in claim.devices:
                if device.driver != self._preparer.driver:
                    continue
                for cdi_name in device.cdi_names:
                    uid = _UUID.match(cdi_name.removeprefix(beginning))
                    if uid is not None and cdi_name.startswith(beginning):
                        yield uid[0], ClaimRef(namespace, uid[0], name)

    async def _rebuild(self, named: Mapping[str, ClaimRef], listing: ClaimListing) -> None:
        lost = {uid: ref for uid, ref in named.items() if uid not in self._files.records}
        self._lost_since = {uid: self._lost_since.get(uid, listing.began) for uid in lost}
        for uid, ref in lost.items():
            if listing.began - self._lost_since[uid] < self._timing.release_gap:
                continue
            try:
                await self._rebuild_one(ref, listing)
            except DevhostError as error:
                self._failed(uid, ref, str(error))

    async def _rebuild_one(self, ref: ClaimRef, listing: ClaimListing) -> None:
        with self._preparer.turn(ref.uid) as turn:
            claim = await self._preparer.read(ref)
            async with turn.lock:
                gone = self._preparer.unprepared_since(ref.uid, listing.began)
                if gone or ref.uid in self._files.records:
                    return
                await self._preparer.commit(ref, claim, turn, running=True)
        self._failures.pop(ref.uid, None)
        log.warning("rebuilt the CDI file of a claim", claim=str(ref), uid=ref.uid)

    async def _remove_orphans(self, named: Mapping[str, ClaimRef], listing: ClaimListing) -> None:
        records = self._files.records
        missing = [uid for uid in records if uid not in named]
        self._missing_since = {uid: self._missing_since.get(uid, listing.began) for uid in missing}
        for uid in missing:
            if listing.began - self._missing_since[uid] < self._grace:
                continue
            record = records[uid]
            try:
                if await self._is_gone(record):
                    await self._remove(record)
                else:
                    self._missing_since[uid] = listing.began  # ask again after the same time
            except Unreachable:
                continue
            except DevhostError as error:
                self._failed(uid, record.claim, str(error))

    async def _is_gone(self, record: ClaimRecord) -> bool:
        """Whether the claim of a record does not exist, or is another one.

        Raises:
            Unreachable: the API server does not answer.
        """
        claim = record.claim
        return await self._preparer.is_gone(ClaimRef(claim.namespace, claim.uid, claim.name))

    async def _remove(self, record: ClaimRecord) -> None:
        uid = record.claim.uid
        with self._preparer.turn(uid) as turn:
            async with turn.lock:
                if self._files.records.get(uid) is not record:
                    return  # it was prepared again meanwhile
                await self._preparer.release(uid)
        self._missing_since.pop(uid, None)
        self._failures.pop(uid, None)
        log.warning("removed the record of a claim that is gone", claim=str(record.claim), uid=uid)

    def _failed(self, uid: str, claim: object, reason: str) -> None:
        """Logs each failure once."""
        if self._failures.setdefault(uid, Incident()).news(reason):
            log.warning("the CDI file of a claim may be missing", claim=str(claim), uid=uid, reason=reason)
