"""Keeps what the files of prepared claims give in agreement with their devices.

The kubelet prepares a claim once and repeats its CDI names whenever a container of its pods starts, so a file
must follow the paths and numbers of the devices. Names and record stay as they were prepared. A name whose
device is gone, or whose nodes may be another device's by now, gives nothing but the reason
(:func:`devhost.allocation.cdi.spec.withheld`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from devhost.allocation.cdi.claim_files import ClaimFiles
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
from devhost.allocation.claims import ClaimedDevice, ClaimRecord
from devhost.backend.errors import BackendError, DevhostError
from devhost.backend.incident import Incident
from devhost.discovery.scanner import Scanner
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import Retry

from .claim_devices import Basis, Chosen, Rendering, RequestedDevices, chosen_again, described, render
from .inventory import DraDevice, DraInventory
from .kube import Unreachable
from .prepare import Preparer

log = get(__name__)

CHECK = 60.0
"""Seconds until the nodes of all claims are looked at again if nothing causes that earlier."""


class Refresher:
    """Renders prepared claims again when their devices, or the nodes of these, have changed."""

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
        self._failures: dict[str, Incident] = {}
        self._unreachable: Unreachable | None = None
        """Why the API server did not answer in this pass, which then asks for no other claim."""

    async def refresh(self) -> float:
        """Makes every file right; gives the seconds until the next look.

        Raises ``Retry`` if a file may be outdated, whose reason has been logged, and ``EnvironmentFailure``
        if looking at nodes hangs.
        """
        changed = await self._outdated()
        self._unreachable = None
        reasons: dict[str, str] = {}
        for uid, record in list(self._files.records.items()):
            try:
                reason = await self._refresh(record, outdated=uid in changed)
            except DevhostError as error:
                reason = str(error)
            if not reason:
                continue
            reasons[uid] = reason
            if self._failures.setdefault(uid, Incident()).news(reason):
                log.warning(
                    "the CDI file of a claim may be outdated",
                    claim=str(record.claim),
                    uid=uid,
                    reason=reason,
                )
        self._failures = {uid: one for uid, one in self._failures.items() if uid in reasons}
        if reasons:
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

        Args:
            before: the requests that have metadata.
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
