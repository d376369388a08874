"""Answers the kubelet's requests for the devices of one resource."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from devhost.backend import ContainerRequest
from devhost.backend.errors import AllocationError, BackendError, counted, exhausted, not_imported, typed
from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, Device
from devhost.backend.sysfs import node_number
from devhost.backend.threads import elsewhere
from devhost.discovery.runner import quoted
from devhost.discovery.scanner import Scanner
from devhost.planning.claims import Key
from devhost.planning.settings import ResourceSettings
from devhost.planning.timing import ALLOCATION, AllocationTiming
from devhost.runtime.log import get
from devhost.runtime.reconciler import FailureLog
from devhost.runtime.worker import in_pieces

from .allocations import ResourceAllocations
from .device_info import DeviceInfoFiles, Document
from .given import owned
from .injection import Injection
from .inventory import Entry, Given, Inventory, Member
from .resource_backend import Answer, Granted, ResourceBackend, Terms, each_once

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

    from .preferred import PreferredAllocation

log = get(__name__)

MOST_KEPT = 256
"""Most answers that are kept for one resource; then all of them are dropped."""

MOST_DEVICES = 16
"""Most devices of an answer that is kept."""


class LatePreference:
    """What prefers devices, made by ``make`` for the first request that needs it.

    Its code takes 4 ms and 0.5 MB, and no resource needs it to be registered.
    """

    def __init__(self, make: Callable[[], PreferredAllocation]) -> None:
        self._make = make
        self._made: PreferredAllocation | None = None
        self._failures = FailureLog(log, "devices cannot be preferred", "devices are preferred again")

    async def get(self) -> PreferredAllocation | None:
        """``None`` if its code cannot be imported now: a file may have been replaced or removed."""
        if self._made is None:
            try:
                made = await elsewhere(self._make)
            except Exception as error:  # noqa: BLE001 - what the import of another version raises
                self._failures.failed(str(exhausted(error) or not_imported(error) or typed(error)))
                return None
            self._failures.succeeded()
            self._made = self._made or made  # two requests may have made one
        return self._made

    def settle(self) -> None:
        if self._made is not None:
            self._made.settle()


def _of_one_resource() -> PreferredAllocation:
    from .preferred import PreferredAllocation

    return PreferredAllocation()


class UnknownDevice(AllocationError):
    """The kubelet requests an id that is not in the list, none at all, or one id twice."""


class UnhealthyDevice(AllocationError):
    """The kubelet requests a device that is unhealthy.

    ``held_by`` are the containers to which the message refers. The message does not name them, because it
    goes to the status of another pod.
    """

    def __init__(self, message: str, held_by: Sequence[AnyHolder] = ()) -> None:
        super().__init__(message)
        self.held_by = held_by


class TooMany(AllocationError):
    """A container requests more of the resource than the configuration allows."""


class HolderCheck(Protocol):
    """Asks the kubelet who holds what."""

    async def confirm(
        self, allocations: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False
    ) -> None:
        """Asks again if the kubelet may have forgotten who holds some tokens of a resource.

        ``offered`` is whether it only offers them (GetPreferredAllocation).
        """


StartCheck = Callable[[str, Sequence[str]], Awaitable[None]]
"""Refuses a container, with these tokens of a resource, that would start without the devices for which it was
given nodes."""


_Record = Callable[[], Coroutine[Any, Any, None]]


class Allocated(NamedTuple):
    """What one container gets, before it is recorded."""

    granted: Granted
    record: _Record
    """Counts the devices as the container's; to be called once. The tokens are reserved until then."""
    cancel: Callable[[], None] = lambda: None
    """Ends the reservation; to be called instead, if the container does not get the devices."""


@frozen(slots=True)
class Answered:
    """A backend's answer for one container, as it is handed out; ``numbers`` are those of its nodes."""

    answer: Answer
    rendered: Granted | None
    documents: Mapping[str, Document]
    numbers: Mapping[str, str]

    @property
    def lasts(self) -> bool:
        """Whether all of it is known again once the numbers of its nodes are compared.

        A path that is no device node may be on a file system that blocks, and an optional node may be in
        place of another one.
        """
        granted, devices = self.answer.granted, self.answer.devices
        return (
            granted.edits.lasting
            and self.rendered is not None
            and not (granted.edits.mounts or granted.left_out or self.answer.left_out)
            and len(devices) <= MOST_DEVICES
            and all(node.required and self.numbers.get(node.path) for node in granted.edits.nodes)
        )


@frozen(slots=True)
class _Kept:
    answered: Answered
    terms: Terms
    serving: object
    """The backend object that answered."""


class LastingAnswers:
    """The answers for one resource that last (:attr:`devhost.backend.Edits.lasting`).

    An answer counts as long as the devices are the same objects as in the backend's last scan, and the terms,
    the backend and the numbers of the nodes are the same.
    """

    def __init__(self, backend: ResourceBackend) -> None:
        self._backend = backend
        self._kept: dict[tuple[int, ...], _Kept] = {}

    def find(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answered | None:
        """The answer for the devices behind some tokens; ``None`` if the backend must be asked."""
        kept = self._kept.get(_key(wanted)) if self._kept and len(wanted) <= MOST_DEVICES else None
        if kept is None or kept.terms != terms or kept.serving is not self._backend.runner.serving:
            return None
        listed, prefix = self._backend.scanner.devices, self._backend.runner.prefix
        if any(listed.get(one.id) is not one for one in kept.answered.answer.devices):
            return None
        numbers = kept.answered.numbers.items()
        return (
            kept.answered if all(node_number(prefix + path) == number for path, number in numbers) else None
        )

    def keep(self, wanted: Sequence[Sequence[Device]], terms: Terms, answered: Answered) -> None:
        """Keeps an answer for the devices behind some tokens, if it lasts."""
        described = self._backend.runner.abilities.device_info  # and by something that may have changed
        if answered.lasts and not described and all(len(some) == 1 for some in wanted):
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            self._kept[_key(wanted)] = _Kept(answered, terms, self._backend.runner.serving)


def _key(wanted: Sequence[Sequence[Device]]) -> tuple[int, ...]:
    """The identities of the devices; an answer keeps them alive."""
    return tuple(id(device) for some in wanted for device in some)


class Allocator:
    """Answers the kubelet for one resource.

    Without ``holders``, the kubelet is not asked who holds what. ``starts`` is for entries with
    ``checkStarts``.
    """

    def __init__(
        self,
        inventory: Inventory,
        backend: ResourceBackend,
        entry: ResourceSettings,
        injection: Injection | None = None,
        device_info: DeviceInfoFiles | None = None,
        preferred: LatePreference | None = None,
        holders: HolderCheck | None = None,
        timing: AllocationTiming = ALLOCATION,
        starts: StartCheck | None = None,
    ) -> None:
        self.name = backend.resource
        self.fault = ""
        """Why the backend failed when it was asked last; empty if it answered."""
        self._faults = 0
        self.inventory = inventory
        self._backend = backend
        self._lasting = LastingAnswers(backend)
        self._entry = entry
        self._injection = injection or Injection()
        self._device_info = device_info
        self._preferred = preferred or LatePreference(_of_one_resource)
        self._holders = holders
        self._starts = starts
        self._timing = timing

    @property
    def prepares(self) -> bool:
        """Whether PreStartContainer has anything to do."""
        return self._entry.acts_before_start(prepare=self._backend.runner.abilities.prepare)

    def follow(self, scanner: Scanner, entry: ResourceSettings, devices: int = 0) -> None:
        """Uses these from now on; containers keep the terms of their devices.

        ``devices`` is how many the resource has, 0 if that is not known.
        """
        self._entry = entry
        self._backend.follow(scanner, entry, devices)

    async def settle(self, available: Sequence[str], must_include: Sequence[str]) -> None:
        """Asks who holds the devices that the kubelet offers to a container, before :meth:`prefer`."""
        if self._holders is not None:
            offered = set(available).difference(must_include)
            await self._holders.confirm(self.inventory.allocations, tuple(offered), offered=True)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Answers GetPreferredAllocation for one container; see :func:`devhost.planning.affinity.prefer`."""
        if (preferred := await self._preferred.get()) is None:
            return []  # the kubelet chooses
        choice = await preferred.answer(
            self.name,
            self.inventory,
            self._entry.prefer,
            self._backend.runner.links,
            available,
            must_include,
            size,
        )
        return list(choice.tokens)

    async def allocate(self, tokens: Sequence[str]) -> Allocated:
        """Allocates devices to one container; they count as its own once the result is recorded.

        For a token that represents several devices, the container gets those that can be used now; one is
        enough.

        Raises:
            UnknownDevice: there are no tokens, or one is unknown or repeated.
            TooMany: there are more tokens than one container may have.
            UnhealthyDevice: a device is unhealthy, or held by a container that the kubelet has forgotten.
            MissingPath: the host lacks something that a device needs; the device becomes unhealthy.
            AllocationError: the backend refuses a device now, or another pod has a node that it gives.
            BackendError: the backend failed, hung, or its answer is unusable.
        """
        most = self._entry.share.max_per_container
        if most is not None and len(tokens) > most:
            self._check_known(tokens)
            raise TooMany(
                f"{self.name}: the container requests {len(tokens)}, but share.maxPerContainer in the node's "
                f"configuration is {most} (lower the container's limit)"
            )
        self._check_known(tokens)
        if self._holders is not None:
            await self._holders.confirm(self.inventory.allocations, tokens)
        request = _RequestedTokens()
        reservation = self.inventory.reserved()
        try:
            await in_pieces(
                tokens, lambda piece: self.inventory.reserve(reservation, self._wanted(piece, request))
            )
            granted, hand_out = await self._hand_out(request)
        except BaseException as error:
            reservation.end()
            if isinstance(error, BackendError) and not isinstance(error, AllocationError):
                self._faults += 1
                self.fault = f"the backend failed for {counted(self._faults, 'container')} in a row: {error}"
            raise
        self._faults, self.fault = 0, ""

        async def record() -> None:
            with reservation:
                await hand_out()
                await in_pieces(tokens, lambda _: reservation.drop())

        return Allocated(granted, record, reservation.end)

    async def _hand_out(self, request: _RequestedTokens) -> tuple[Granted, _Record]:
        began, wanted = time.monotonic(), request.wanted
        terms = lasting = self._backend.terms
        if shares := self._shares(request):
            terms = replace(lasting, shares=shares)
        scanner = self._backend.scanner
        if scanner.handover is not None:
            devices = tuple(each_once(wanted.values()))
            about = ContainerRequest(scanner.runner.name, self.name, devices)
            await scanner.handover.before(about, tuple(wanted))
        try:
            answered = await self._answered(tuple(wanted.values()), terms)
            answer, numbers = answered.answer, answered.numbers
            if answer.unclaimed:
                self.inventory.give(answer.devices, answer.unclaimed)
            if answered.rendered is not None:
                self._check_given(wanted, numbers)
                granted = await self._injection.inject(answered.rendered, tuple(wanted))
        except AllocationError:
            scanner.recheck()
            raise
        for device, paths in answer.lacking.items():
            scanner.report_missing(device, paths)
        if answered.rendered is None:
            raise self._backend.lacking(answer.lacking)
        for device, reason in answer.left_out.items():
            log.warning("a container does not get a device", resource=self.name, device=device, reason=reason)
        if answer.left_out:
            scanner.recheck()
        if self._device_info is not None and (documents := answered.documents):
            # a file describes one device, so a token that represents several has none
            single = {token: some[0].id for token, some in wanted.items() if len(some) == 1}
            by_token = {token: documents[device] for token, device in single.items() if device in documents}
            await self._device_info.write(self.name, by_token)
        got: Given = wanted
        if answer.left_out:
            given = {device.id for device in answer.devices}
            left = {
                id(some): tuple(device for device in some if device.id in given) for some in wanted.values()
            }
            got = {token: left[id(some)] for token, some in wanted.items()}

        async def record() -> None:
            await in_pieces(tuple(got), lambda piece: self.inventory.allocated(piece, got, lasting))
            self.inventory.report(got)
            self._gave(got, numbers, granted, answer.unclaimed)
            if (preferred := await self._preferred.get()) is not None:
                preferred.allocated(self.name, self.inventory, began, tuple(wanted))

        return granted, record

    def given(self, tokens: Iterable[str]) -> list[str]:
        """Ids of the devices that the holder of these tokens got, each once."""
        got = (self.inventory.allocations.got(token) for token in tokens)
        distinct = {id(keys): keys for keys in got}.values()
        return list(dict.fromkeys(device for keys in distinct for _, device in keys))

    async def nodes(self, device: Device) -> frozenset[str]:
        """The paths of the nodes that a container would get with a device now. Raises ``BackendError``."""

        def ask() -> frozenset[str]:
            return frozenset(self._backend.numbers(self._backend.ask((device,), terms)))

        terms = self._backend.terms
        return await self._backend.call(self._timing.render, ask)

    async def prepare(self, tokens: Sequence[str]) -> None:
        """Prepares devices before a container starts; called again for each restart.

        The backend gets the options with which the devices were allocated, or the present ones if an earlier
        run of devhost allocated them. Raises ``UnknownDevice``, ``BackendError``, and ``AllocationError`` if
        the entry has ``checkStarts`` and the container would start with another device.
        """
        self._check_known(tokens)
        distinct: dict[tuple[int, int], Sequence[Device]] = {}

        def add(piece: Sequence[str]) -> None:
            for entry in self._entries(piece):
                keys = self.inventory.allocations.got(entry.token)
                if (id(entry.members), id(keys)) not in distinct:
                    distinct[id(entry.members), id(keys)] = _got(entry, keys)

        await in_pieces(tokens, add)
        got = list(distinct.values())
        if self._entry.check_starts and self._starts is not None:
            await self._injection.refresh()
            await self._starts(self.name, tokens)
        terms = self.inventory.allocations.terms(tokens[0]) or self._backend.terms
        await self._backend.prepare(self._timing.prepare, each_once(got), terms)

    async def _answered(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answered:
        """The backend's answer for the devices behind some tokens."""
        hooked = self._backend.scanner.handover is not None
        if not hooked and (known := self._lasting.find(wanted, terms)) is not None:
            return known
        answered = await self._backend.call(self._timing.allocate, self._answer, wanted, terms)
        if self._injection.lasting:
            self._lasting.keep(wanted, terms, answered)
        return answered

    def _answer(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answered:
        """Calls the backend for one Allocate, and looks at the nodes. Runs on the backend's thread."""
        answer = self._backend.answer(wanted, terms)
        documents: Mapping[str, Document] = {}
        info = self._device_info
        if info is not None and self._backend.runner.abilities.device_info and info.wanted:
            documents = self._backend.documents(answer.devices, terms)
        if not answer.devices:
            return Answered(answer, None, documents, {})
        rendered = self._injection.render(answer.devices, answer.granted, terms)
        return Answered(answer, rendered, documents, self._backend.numbers(answer.granted))

    def _check_given(self, tokens: Iterable[str], numbers: Mapping[str, str]) -> None:
        """Refuses nodes that another container was given for another device."""
        given = self.inventory.allocations.everything.given
        if given.strays and (path := given.in_use({(self.name, one) for one in tokens}, numbers.items())):
            raise AllocationError(
                f"{self.name}: {path} is in use: a pod was given it for another device; it is free when that "
                "pod ends"
            )

    def _gave(
        self,
        got: Mapping[str, Sequence[Device]],
        numbers: Mapping[str, str],
        granted: Granted,
        unclaimed: frozenset[str],
    ) -> None:
        devices = each_once(tuple(got.values()))
        nodes = owned(numbers, self.inventory.backend, devices)
        given = self.inventory.allocations.everything.given
        names = () if granted.edits.nodes else granted.edits.cdi_devices
        given.gave(self.name, got, nodes, names, unclaimed)

    def _shares(self, request: _RequestedTokens) -> Mapping[str, Fraction]:
        if not self._backend.runner.backend_class.takes_shares:
            return {}
        from fractions import Fraction

        found: dict[str, Fraction] = {}
        for (unit, which), count in request.times.items():
            part = Fraction(count, self.inventory.replicas(unit))
            _, healthy = request.healthy[which]
            for device in healthy:
                found[device.id] = found.get(device.id, Fraction(0)) + part
        return found

    def _check_known(self, tokens: Sequence[str]) -> None:
        """Refuses a request without tokens, or with one that is unknown or repeated."""
        if not tokens:
            raise UnknownDevice(f"{self.name}: the request names no device")
        if len(set(tokens)) != len(tokens):
            twice = next(token for token, count in Counter(tokens).items() if count > 1)
            raise UnknownDevice(f"{self.name}: the request names {quoted(twice)} more than once")
        listed = self.inventory.snapshot.entries
        self._entries([token for token in tokens if token not in listed])

    def _entries(self, tokens: Sequence[str]) -> list[Entry]:
        entries, entry_of = [], self.inventory.snapshot.entry
        for token in tokens:
            entry = entry_of(token)
            if entry is None:
                raise UnknownDevice(f"{self.name}: there is no device {quoted(token)}")
            entries.append(entry)
        return entries

    def _wanted(self, tokens: Sequence[str], request: _RequestedTokens) -> Given:
        """The healthy devices of some tokens of a request, which it takes note of."""
        found: dict[str, Sequence[Device]] = {}
        for entry in self._entries(tokens):
            self._check(entry)
            found[entry.token] = request.add(entry, self._bound_elsewhere(entry))
        return found

    def _bound_elsewhere(self, entry: Entry) -> frozenset[str]:
        """The ids of the devices of a token that only other pods may have.

        Refuses the token if these are all, or if it can only give all.
        """
        if not self.inventory.allocations.everything.pod_claims():
            return frozenset()
        healthy = [member.device for member in entry.members if member.health.healthy]
        reasons = {one.id: self.inventory.bound_elsewhere(entry.token, one) for one in healthy}
        bound = {device: reason for device, reason in reasons.items() if reason}
        if bound and (self.inventory.is_whole(entry.unit) or len(bound) == len(healthy)):
            reason = next(iter(bound.values()))
            raise UnhealthyDevice(f"{self.name}: {entry.token} is unhealthy: {reason.text}", reason.held_by)
        return frozenset(bound)

    def _check(self, entry: Entry) -> None:
        if not entry.health.healthy:
            raise UnhealthyDevice(
                f"{self.name}: {entry.token} is unhealthy: {entry.health.reason}", entry.held_by
            )
        if reason := self.inventory.taken(entry.token):
            raise UnhealthyDevice(f"{self.name}: {entry.token} is unhealthy: {reason.text}", reason.held_by)
        if entry.stands_in and (reason := self.inventory.stands_in_for(entry.token)):
            message = f"{self.name}: {entry.token} cannot be allocated: {reason.text}"
            raise UnhealthyDevice(message, reason.held_by)


_Which = tuple[int, frozenset[str]]
"""The identity of the devices behind a token, and the ids of those that it must not give."""


class _RequestedTokens:
    """The tokens of one Allocate, with the devices that can be used now."""

    def __init__(self) -> None:
        self.wanted: dict[str, Sequence[Device]] = {}
        """One sequence for all tokens of the same devices, which most work is done for once."""
        self.healthy: dict[_Which, tuple[Sequence[Member], tuple[Device, ...]]] = {}
        self.times: dict[tuple[str, _Which], int] = {}
        """How many tokens there are of each unit, with which of :attr:`healthy`."""

    def add(self, entry: Entry, without: frozenset[str] = frozenset()) -> Sequence[Device]:
        """Takes another token; gives its healthy devices, without those of these ids."""
        which = id(entry.members), without  # the members live as long as this object
        if which not in self.healthy:
            usable = (member.device for member in entry.members if member.health.healthy)
            self.healthy[which] = entry.members, tuple(one for one in usable if one.id not in without)
        self.times[entry.unit, which] = self.times.get((entry.unit, which), 0) + 1
        _, self.wanted[entry.token] = self.healthy[which]
        return self.wanted[entry.token]


def _got(entry: Entry, keys: Sequence[Key]) -> Sequence[Device]:
    """The devices that a container holds through an entry; if not known, those that it would get now."""
    given = {device for _, device in keys}
    got = [member.device for member in entry.members if member.device.id in given]
    healthy = [member.device for member in entry.members if member.health.healthy]
    return got or healthy or [member.device for member in entry.members]
