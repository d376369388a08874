"""Preparing claims for the containers of this node, and releasing them.

The kubelet repeats calls, gives up on them while they run, and calls for a claim whose object is gone. So:

* calls for one claim run one after another; those for different claims do not wait for each other, and the
  object is read from the API server before a claim is locked;
* the claim's file is the last thing that Prepare makes and the first that Unprepare removes. A claim with a
  file is prepared, and answered from it;
* a Prepare that is still running when Unprepare is called for the claim makes nothing;
* Unprepare needs neither the API server nor the devices.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, TypeVar

from devhost.allocation.cdi.claim_files import ClaimFiles, is_uid, nodes_of
from devhost.allocation.cdi.claim_metadata import contents, place_of
from devhost.allocation.claims import ClaimAllocations, ClaimedDevice, ClaimRecord, DeviceHeld
from devhost.allocation.given import Node, owned
from devhost.backend import ContainerRequest
from devhost.backend.errors import BackendError, BackendTimeout, DevhostError, few
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, ClaimHolder, Device
from devhost.planning.claims import holder_field
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, together

from .answers import AllocatedDevice, ClaimError, ClaimObject, claim_path, read_claim
from .claim_devices import (
    Basis,
    Chosen,
    Rendering,
    RequestedDevices,
    check_limits,
    check_variables,
    choose,
    described,
    groups,
    is_recorded,
    record_of,
    render,
)
from .inventory import DraDevice, DraInventory
from .kube import ApiError, ApiFailure, KubeApi, Unreachable

T = TypeVar("T")

log = get(__name__)

API_DEADLINE = 9.0
"""Seconds for the API server to answer; a kubelet's call must not take 10 when it does not."""

DEADLINE = 40.0
"""Seconds for one claim; the kubelet gives up after 45."""

READS = 4
"""Claims that are read from the API server at once, each over its own connection; others wait for their turn,
and that time does not count as silence of the API server."""

WRITES = 4
"""Files that are written at once: one thread writes them, and each deadline includes the wait for it."""

REMEMBERED = 600.0
"""Seconds for which a released claim is remembered: no list of pods names it for that long."""

MOST_REFUSALS = 1000
"""Claims that could not be prepared whose reasons are kept for their status."""

FAILED = "devhost failed; its log has the reason"


class Turn:
    """The order of the calls for one claim."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0
        self.unprepared = 0
        """How often Unprepare was called."""
        self.changes = 0
        """How often the file of the claim may have been made or removed."""


@frozen(slots=True)
class FailedClaim:
    """A claim that could not be prepared, the devices that are allocated to it, and why it could not."""

    claim: ClaimHolder
    devices: tuple[AllocatedDevice, ...]
    reason: str


class Refusals:
    """The claims that could not be prepared last, by uid; none until :meth:`keep`."""

    def __init__(self) -> None:
        self.found: dict[str, FailedClaim] = {}
        self.kept = False

    def keep(self, kept: bool) -> None:
        """Whether they are kept from now on."""
        self.kept = kept
        if not kept:
            self.found.clear()

    def add(self, new: FailedClaim) -> None:
        """A claim could not be prepared; of more than :data:`MOST_REFUSALS`, the oldest is forgotten."""
        if self.kept and self.found.get(new.claim.uid) != new:
            self.found.pop(new.claim.uid, None)
            self.found[new.claim.uid] = new
            if len(self.found) > MOST_REFUSALS:
                del self.found[next(iter(self.found))]

    def end(self, uid: str) -> None:
        """It has been prepared, or released."""
        self.found.pop(uid, None)


class _Turns:
    """Lets a few callers at a time use a service that may fall silent.

    A caller that waits uses up none of the service's deadline. If the service falls silent, those that waited
    meanwhile fail with it, with the error ``silent``: however many they are, a call of the kubelet ends in
    time. ``limit`` is how many use it at once.
    """

    def __init__(self, limit: int, *silent: type[Exception]) -> None:
        self._places = asyncio.Semaphore(limit)
        self._silent = silent
        self._failures: list[Exception] = []
        self._failed = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn, which lasts until the context ends."""
        failed = self._failed
        async with self._places:
            if self._failed != failed:
                raise self._failures[-1]
            try:
                yield
            except self._silent as error:
                self._failures = [error]
                self._failed += 1
                raise


async def _at_once() -> None:
    """There is nothing to wait for."""


Elsewhere = Callable[[str, str, str], DraDevice | None]
"""Finds a device of another driver of this process, by driver, pool and name."""


def nowhere(driver: str, pool: str, device: str) -> None:
    """There is no other driver."""


class Preparer:
    """Prepares the claims of one driver, whose ``files`` have been read once.

    For ``api_deadline`` and ``deadline`` see the constants of these names. ``ready`` waits, some seconds at
    most, until the claims are known that hold devices without record.
    """

    def __init__(
        self,
        driver: str,
        api: KubeApi,
        resources: DraInventory,
        claims: ClaimAllocations,
        files: ClaimFiles,
        *,
        timing: AllocationTiming = ALLOCATION,
        api_deadline: float = API_DEADLINE,
        deadline: float = DEADLINE,
        ready: Callable[[], Awaitable[None]] = _at_once,
        clock: Callable[[], float] = LOOP_CLOCK.time,
        elsewhere: Elsewhere = nowhere,
    ) -> None:
        self._elsewhere = elsewhere
        self.driver = driver
        self.metadata = False
        """Whether claims that are prepared from now on get metadata files."""
        self._api = api
        self._api_deadline = api_deadline
        self._reads = _Turns(READS, Unreachable)
        self._writes = _Turns(WRITES)
        self._calls: dict[str, _Turns] = {}
        """By backend, whose calls run one after another anyway."""
        self._ready = ready
        self._resources = resources
        self._claims = claims
        self._files = files
        self._timing = timing
        self._deadline = deadline
        self._clock = clock
        self.bases: dict[str, Basis] = {}
        """What the files of claims were rendered from, by the claim's uid, as far as that is known."""
        self.refusals = Refusals()
        self._turns: dict[str, Turn] = {}
        self._unprepared_at: dict[str, float] = {}

    async def prepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, Sequence[ClaimedDevice] | str]:
        """By uid: the devices of the claim, or why it cannot be prepared."""
        wanted = {claim.uid: claim for claim in claims}
        with together():
            answers = await _all([self._prepare(claim) for claim in wanted.values()])
        return dict(zip(wanted, answers, strict=True))

    async def unprepare(self, claims: Sequence[ClaimHolder]) -> Mapping[str, str]:
        """By uid: empty if the claim is released, or was not prepared; else why not."""
        wanted = {claim.uid: claim for claim in claims}
        with together():
            answers = await _all([self._unprepare(claim) for claim in wanted.values()])
        return dict(zip(wanted, answers, strict=True))

    @contextmanager
    def turn(self, uid: str) -> Iterator[Turn]:
        """The order of the calls for a claim. A claim is changed only while its lock is held."""
        turn = self._turns.setdefault(uid, Turn())
        turn.users += 1
        try:
            yield turn
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[uid]

    def unprepared(self, uid: str) -> bool:
        """Whether a claim was released by Unprepare, and has not been prepared since.

        The kubelet forgets such a claim only after the answer: lists that begin later may still name it.
        """
        return uid in self._unprepared_at

    def _note_unprepared(self, uid: str) -> None:
        now, known = self._clock(), self._unprepared_at
        known.pop(uid, None)
        known[uid] = now
        while now - known[oldest := next(iter(known))] >= REMEMBERED:  # they are in the order of time
            del known[oldest]

    async def read(self, ref: ClaimHolder) -> ClaimObject:
        """The object of a claim, which has devices of this driver.

        Raises ``ClaimError`` if it differs from what the kubelet names, or is not allocated, and
        ``ApiFailure`` if the API server does not answer, refuses to show it, or sends something else.
        """
        found = await self._get(ref)
        if found is None:
            raise ClaimError(f"{ref} does not exist")
        if found.uid != ref.uid:
            raise ClaimError(f"{ref} was deleted and created again: its uid is {found.uid}, not {ref.uid}")
        if not found.allocated:
            raise ClaimError(f"{ref} is not allocated")
        if not found.devices:
            raise ClaimError(f"{ref} has no device of driver {self.driver}")
        return found

    async def is_gone(self, ref: ClaimHolder) -> bool:
        """Whether a claim does not exist; another one of its name may. Raises the same as :meth:`read`."""
        found = await self._get(ref)
        return found is None or found.uid != ref.uid

    async def _get(self, ref: ClaimHolder) -> ClaimObject | None:
        """The object of this name; ``None`` if there is none."""
        try:
            async with self._reads.turn():
                body = await self._read(claim_path(ref))
        except ApiError as error:
            if error.absent:
                return None
            raise
        return read_claim(body, self.driver)

    async def _read(self, path: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._api_deadline):
                return await self._api.get(path)
        except TimeoutError:
            raise Unreachable(f"the API server did not answer within {self._api_deadline:g} s") from None

    async def commit(
        self, ref: ClaimHolder, claim: ClaimObject, turn: Turn, *, running: bool = False
    ) -> ClaimRecord:
        """Makes the file of a claim, which then holds its devices. The claim is locked.

        With ``running``, containers use the claim already: it holds its devices anyway, and the backend must
        not prepare them again. Raises ``ClaimError`` if a device cannot be used, or the claim has been
        released meanwhile; ``BackendError`` if the backend failed, or refuses a device; and
        ``EnvironmentFailure`` if the file cannot be written.
        """
        calls = turn.unprepared
        turn.changes += 1
        chosen = choose(claim, self.driver, self._resources, running=running)
        others = ((one, self._elsewhere(name, one.pool, one.device)) for name, one in claim.others)
        check_limits(groups(chosen), [(one, found) for one, found in others if found is not None])
        devices = [one.claimed for one in chosen]
        pods = [(ref.namespace, pod) for pod in claim.pods]
        with nullcontext() if running else self._claims.reserved(ref, devices, pods, self.driver):
            place = place_of(ref.name, claim.pod_claim) if self.metadata else ""
            record, numbers = await self._write(ref, chosen, place, running=running)
            if turn.unprepared != calls:
                await self._files.remove(ref.uid)
                self.bases.pop(ref.uid, None)
                raise _released(ref)
            self._unprepared_at.pop(ref.uid, None)
            self._claims.prepared(ref, devices, self.driver)
            self._claims.gave(ref.uid, _owned(numbers, chosen), self.driver)
        return record

    async def release(self, uid: str) -> bool:
        """Removes the file of a claim, which then holds nothing; true if there was one. The claim is locked.

        Raises ``EnvironmentFailure`` if it cannot be removed; the claim still holds its devices.
        """
        if uid in self._turns:
            self._turns[uid].changes += 1
        removed = await self._files.remove(uid)
        self.bases.pop(uid, None)
        self._claims.released(uid, self.driver)
        return removed

    async def _write(
        self, holder: ClaimHolder, chosen: Sequence[Chosen], metadata: str, *, running: bool
    ) -> tuple[ClaimRecord, Mapping[str, str]]:
        """Writes the file of a claim; returns the record and, by path, the numbers of the nodes in it."""
        requests = groups(chosen)
        for group in requests if not running else ():
            handover = group.backend.scanner.handover
            if handover is not None and not group.admin:
                about = ContainerRequest(
                    group.backend.runner.name, group.resource, tuple(group.devices), holder
                )
                await handover.before(about)
        renderings = [(group, await self._render(holder, group)) for group in requests]
        check_variables(renderings)
        taking = [(group, found) for group, found in renderings if not group.admin]
        for group, found in taking:
            if nodes := found.unclaimed:
                give = self._claims.ledger.give
                give(group.resource, group.by_key, nodes, holder, running=running)
        for group, _ in taking if not running else ():
            async with self._turns_of(group).turn():
                await group.backend.prepare(self._timing.prepare, group.devices, group.terms)
        record, edits = record_of(holder, self.driver, chosen, renderings)
        texts: Mapping[str, bytes] = {}
        if metadata:
            record = replace(record, metadata=metadata)
            texts = contents(record, described(chosen, renderings), {})
        async with self._writes.turn():
            await self._files.write(record, edits, texts)
        seen = tuple(seen for _, one in renderings for seen in one.seen)
        self.bases[holder.uid] = Basis(tuple(chosen), tuple(one.found for one in chosen), seen)
        return record, dict(nodes_of(edits.values()))

    async def _render(self, holder: ClaimHolder, group: RequestedDevices) -> Rendering:
        """What the containers of a group get.

        Admin access, of a monitor that has every device, is to what is there: a broken device gives nothing.
        """
        async with self._turns_of(group).turn():
            try:
                return await render(group, self._timing.allocate)
            except BackendTimeout:
                raise
            except BackendError:
                if not group.admin:
                    raise
        usable = []
        for one in group.members:
            try:
                async with self._turns_of(group).turn():
                    await render(RequestedDevices((one,)), self._timing.allocate, report=False)
            except BackendTimeout:
                raise
            except BackendError as error:
                log.warning("admin access gives nothing", claim=str(holder), reason=error.message)
            else:
                usable.append(one)
        async with self._turns_of(group).turn():
            return (
                await render(RequestedDevices(tuple(usable)), self._timing.allocate, report=False)
                if usable
                else Rendering({})
            )

    def _turns_of(self, group: RequestedDevices) -> _Turns:
        return self._calls.setdefault(group.backend.runner.name, _Turns(1, BackendTimeout))

    async def _prepare(self, ref: ClaimHolder) -> Sequence[ClaimedDevice] | str:
        seen: list[ClaimObject] = []
        held_by: Sequence[AnyHolder] = ()
        try:
            async with asyncio.timeout(self._deadline):
                record = await self._prepared(ref, seen)
        except TimeoutError:
            reason = f"{ref} could not be prepared within {self._deadline:g} s"
        except DevhostError as error:
            reason = str(error)
            held_by = error.held_by if isinstance(error, DeviceHeld) else ()
        except Exception:
            log.exception("preparing a claim failed", claim=str(ref), uid=ref.uid)
            return FAILED
        else:
            self.refusals.end(ref.uid)
            if seen:  # the answer to a kubelet, which asks for one claim, is sent before
                asyncio.get_running_loop().call_soon(_log_prepared, ref, record)
            return record.devices
        if seen:
            self.refusals.add(FailedClaim(ref, seen[0].devices, reason))
        log.warning(
            "a claim cannot be prepared",
            claim=str(ref),
            uid=ref.uid,
            reason=reason,
            **holder_field(held_by),
        )
        return reason

    async def _prepared(self, ref: ClaimHolder, seen: list[ClaimObject]) -> ClaimRecord:
        """Prepares a claim; its object is added to ``seen`` when it is to be prepared."""
        if not is_uid(ref.uid):
            raise ClaimError(f"{ref} has an impossible uid")
        with self.turn(ref.uid) as turn:
            calls, changes = turn.unprepared, turn.changes
            await self._ready()
            claim, record = await asyncio.gather(self._if_reachable(ref), self._files.read(ref.uid))
            async with turn.lock:
                if record is not None or ref.uid in self._files.records or turn.changes != changes:
                    await self._files.restore(ref.uid)
                    record = await self._files.read(ref.uid)
                if record is not None and (isinstance(claim, ApiFailure) or self._records(record, claim)):
                    self._refuse_gone(record)
                    self._hold(record, () if isinstance(claim, ApiFailure) else claim.pods)
                    return record
                if isinstance(claim, ApiFailure):
                    raise claim
                if record is not None:  # the claim was allocated again after its last pod
                    await self.release(ref.uid)
                if turn.unprepared != calls:
                    raise _released(ref)
                seen.append(claim)
                return await self.commit(ref, claim, turn)

    async def _if_reachable(self, ref: ClaimHolder) -> ClaimObject | ApiFailure:
        try:
            return await self.read(ref)
        except ApiFailure as error:
            return error

    def _records(self, record: ClaimRecord, claim: ClaimObject) -> bool:
        """Whether a record is of the devices that are allocated now."""
        return record.driver == self.driver and is_recorded(record, claim)

    def _refuse_gone(self, record: ClaimRecord) -> None:
        """Refuses to prepare a claim again whose file no longer has the nodes of each device."""
        for one in record.devices:
            if not one.admin and any(map(self._resources.is_gone, one.keys)):
                raise ClaimError(f"device {one.pool}/{one.device} is not available: the device is gone")

    def _hold(self, record: ClaimRecord, pods: Sequence[str]) -> None:
        """Makes sure that a prepared claim, reserved for these pods if known, holds its devices.

        Raises ``DeviceHeld`` if a container or another claim holds one.
        """
        namespace = record.claim.namespace
        self._unprepared_at.pop(record.claim.uid, None)
        users = [(namespace, pod) for pod in pods]
        with self._claims.reserved(record.claim, record.devices, users, self.driver):
            self._claims.prepared(record.claim, record.devices, self.driver)

    async def _unprepare(self, ref: ClaimHolder) -> str:
        with self.turn(ref.uid) as turn:
            turn.unprepared += 1
            self.refusals.end(ref.uid)
            try:
                async with asyncio.timeout(self._deadline), turn.lock:
                    self._note_unprepared(ref.uid)  # first, because a plan is made when devices are free
                    if await self.release(ref.uid):
                        log.info("released a claim", claim=str(ref), uid=ref.uid)
                    return ""
            except TimeoutError:
                reason = f"{ref} could not be released within {self._deadline:g} s"
            except DevhostError as error:
                reason = str(error)
            except Exception:
                log.exception("releasing a claim failed", claim=str(ref), uid=ref.uid)
                return FAILED
        log.warning("a claim cannot be released", claim=str(ref), uid=ref.uid, reason=reason)
        return reason


async def _all(calls: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """The results of calls at the same time; one, as a kubelet makes, without a further task."""
    return [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)


def _log_prepared(ref: ClaimHolder, record: ClaimRecord) -> None:
    devices = few(list(dict.fromkeys(f"{one.pool}/{one.device}" for one in record.devices)))
    log.info("prepared a claim", claim=str(ref), uid=ref.uid, devices=devices)


def _owned(numbers: Mapping[str, str], chosen: Sequence[Chosen]) -> list[Node]:
    """The nodes that the containers of a claim are given, each with the device that claims it."""
    devices: dict[str, list[Device]] = {}
    for one in chosen:
        devices.setdefault(one.found.key[0], []).extend(one.found.devices)
    return [node for backend, some in devices.items() for node in owned(numbers, backend, some)]


def _released(ref: ClaimHolder) -> ClaimError:
    return ClaimError(f"{ref} was released while it was being prepared")
