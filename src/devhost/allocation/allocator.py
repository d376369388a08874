"""One resource as its server sees it: what can be handed out, and the handing out itself.

A supply joins the inventory of a resource with the backend that owns its devices. It is all a plugin
server knows; gRPC does not reach below it, and what happens to the kubelet does not reach it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from typing import TYPE_CHECKING, Protocol, TypeVar

from devhost.backend import AllocateRequest
from devhost.backend.errors import AllocationError, BackendError, one_line, words
from devhost.backend.model import Device, DeviceNode, Edits, Mount
from devhost.discovery.runner import BackendRunner
from devhost.planning.settings import Prefer, ResourceSettings
from devhost.telemetry.log import get

from . import device_info
from .account import ResourceAllocations
from .device_info_files import DeviceInfoFiles
from .edits import check_edits, named, permitted, quoted
from .inventory import Entry, Inventory
from .preferred.neighbours import Neighbours

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

Thing = TypeVar("Thing", DeviceNode, Mount)

log = get(__name__)

ALLOCATE_DEADLINE = 8.0
"""Seconds; the kubelet has no deadline of its own and admits no other pod meanwhile."""

PREPARE_DEADLINE = 25.0
"""Seconds; the kubelet gives PreStartContainer 30."""


class UnknownDevice(AllocationError):
    """The kubelet asks for an id that is not in the list, for none, or for one twice."""


class UnhealthyDevice(AllocationError):
    """The kubelet asks for a device that is known to be unhealthy."""


class TooMany(AllocationError):
    """A container asks for more of the resource than the configuration lets it have."""


class MissingPath(AllocationError):
    """Something a device needs does not exist on the host."""


@dataclass(frozen=True, slots=True)
class Granted:
    """What a container gets; ``left_out`` are host paths of optional parts that do not exist."""

    edits: Edits
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Terms:
    """With what the devices of a resource are handed out: what a container got with it, it keeps.

    ``options`` is the value of the backend's ``ResourceOptions``, ``None`` where it has none;
    ``permissions`` are those of the device nodes, empty where the backend says them; ``shares`` is how much
    the container asks for of each device, by id, empty where the backend does not want to know.
    """

    options: object = None
    permissions: str = ""
    shares: Mapping[str, Fraction] = field_of(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What came of asking the backend: for which devices, or what of the host each of them lacks.

    ``left_out`` are devices that others stand in for, each with the reason; ``lacking`` may name them too.
    """

    granted: Granted
    devices: Sequence[Device]
    lacking: Mapping[str, Sequence[str]]
    left_out: Mapping[str, str]


class Confirm(Protocol):
    """Asks the kubelet again who holds some tokens of a resource, where it may have forgotten that.

    ``offered`` is whether it only offers them (GetPreferredAllocation).
    """

    async def __call__(
        self, account: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False
    ) -> None: ...


async def _unconfirmed(account: ResourceAllocations, tokens: Sequence[str], *, offered: bool = False) -> None:
    """Where no kubelet can be asked."""


Inject = Callable[[Sequence[str], Sequence[Device], Granted, Terms, float], Awaitable[Granted]]
"""Turns what a container gets into names: its tokens and devices, that on which terms, and how many
seconds the backend still has."""


@dataclass(slots=True)
class Allocator:
    """A resource's devices and how to get them.

    ``denied`` hears of devices (by id) and the host paths they turned out to lack; ``look`` asks the
    backend to look again, after it refused a pod. ``inject``, where there is one, turns what a container
    gets into names of CDI devices. ``infos``, where there is one, tells network plugins of the devices.
    ``vicinity`` knows the resources beside this one. ``terms`` are those of the containers to come, which may
    have ``most`` tokens each; ``None`` is any number. ``confirm`` asks the kubelet who holds what.
    """

    name: str
    inventory: Inventory
    source: BackendRunner
    policy: Prefer
    denied: Callable[[str, Sequence[str]], None]
    look: Callable[[], None]
    inject: Inject | None = None
    infos: DeviceInfoFiles | None = None
    vicinity: Neighbours = field_of(default_factory=Neighbours)
    terms: Terms = Terms()
    most: int | None = None
    confirm: Confirm = _unconfirmed
    _before: object = None
    """The options of before a class of them was exchanged."""

    @property
    def prepares(self) -> bool:
        """Whether PreStartContainer has anything to do."""
        return self.source.prepares(self.terms.options)

    def follow(self, source: BackendRunner, entry: ResourceSettings) -> None:
        """Goes on with this from now; what containers have was given with what it was then."""
        if type(entry.options) is not type(self.terms.options):
            self._before = self.terms.options
        self.source, self.policy, self.most = source, entry.prefer, entry.share.max_per_container
        self.terms = Terms(entry.options, entry.permissions)

    async def settle(self, available: Sequence[str], must_include: Sequence[str]) -> None:
        """Finds out who holds what the kubelet offers to a container, before :meth:`prefer`."""
        offered = set(available).difference(must_include)
        await self.confirm(self.inventory.account, tuple(offered), offered=True)

    def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> list[str]:
        """Answers GetPreferredAllocation for one container; see :func:`devhost.planning.affinity.prefer`."""
        choice = self.vicinity.prefer(
            self.name, self.inventory, self.policy, self.source.links, available, must_include, size
        )
        return list(choice.tokens)

    async def allocate(self, tokens: Sequence[str]) -> Granted:
        """Hands out devices to one container.

        Where a token stands for several devices the container gets those that can be used now, and one is
        enough.

        Raises:
            UnknownDevice: the tokens are none, unknown or repeated.
            TooMany: they are more than one container may have.
            SickDevice: a device is unhealthy, or a container holds it and the kubelet has forgotten that.
            MissingPath: something a device needs is missing on the host; it turns unhealthy.
            AllocationError: the backend says a device cannot be used now.
            BackendError: the backend failed, hung, or answered something unusable.
        """
        if self.most is not None and len(tokens) > self.most:
            self._entries(tokens)
            raise TooMany(
                f"{self.name}: the container asks for {len(tokens)}, and may have at most {self.most} "
                "(share.maxPerContainer of the node's configuration): lower its limit"
            )
        await self.confirm(self.inventory.account, tokens)
        wanted = {entry.token: self._healthy(entry) for entry in self._entries(tokens)}
        with self.inventory.reserved(wanted):
            self.inventory.succeed(wanted)
            return await self._hand_out(wanted)

    async def _hand_out(self, wanted: Mapping[str, Sequence[Device]]) -> Granted:
        began = time.monotonic()
        sets, terms = tuple(wanted.values()), replace(self.terms, shares=self._shares(wanted))
        try:
            answer, documents = await self.source.serve(ALLOCATE_DEADLINE, self._serve_described, sets, terms)
            granted = answer.granted
            if self.inject is not None and answer.devices:
                left = ALLOCATE_DEADLINE - (time.monotonic() - began)
                granted = await self.inject(tuple(wanted), answer.devices, granted, terms, left)
        except AllocationError:
            self.look()
            raise
        for device, paths in answer.lacking.items():
            self.denied(device, paths)
        if not answer.devices:
            raise self._lacking(answer.lacking)
        for device, reason in answer.left_out.items():
            log.warning("a container goes without a device", resource=self.name, device=device, reason=reason)
        if answer.left_out:
            self.look()
        if self.infos is not None and documents:
            # a file tells of one device: there is none for a token that stands for several
            alone = {token: some[0].id for token, some in wanted.items() if len(some) == 1}
            told = {token: documents[device] for token, device in alone.items() if device in documents}
            await self.infos.announce(self.name, told)
        got = wanted
        if answer.left_out:
            given = {device.id for device in answer.devices}
            got = {
                token: tuple(device for device in some if device.id in given)
                for token, some in wanted.items()
            }
        self.inventory.allocated(got, got, replace(terms, shares={}))
        # for requests to come: the container's answer goes first
        loop = asyncio.get_running_loop()
        loop.call_soon(self.vicinity.allocated, self.name, self.inventory, began, tuple(wanted))
        return granted

    def given(self, tokens: Iterable[str]) -> list[str]:
        """Ids of the devices that the container got which holds these tokens, each once."""
        return list(dict.fromkeys(device for token in tokens for device in self.inventory.given(token)))

    def _shares(self, wanted: Mapping[str, Sequence[Device]]) -> Mapping[str, Fraction]:
        """How much of each device, by id, these tokens give."""
        if not self.source.takes_shares:
            return {}
        from fractions import Fraction

        found: dict[str, Fraction] = {}
        for entry in self._entries(tuple(wanted)):
            part = Fraction(1, self.inventory.replicas(entry.unit))
            for device in wanted[entry.token]:
                found[device.id] = found.get(device.id, Fraction(0)) + part
        return found

    def ask(self, devices: Sequence[Device], terms: Terms = Terms()) -> Granted:
        """What a container would get with these devices on these terms now. Runs on the backend's thread.

        Raises:
            MissingPath: something a device needs is missing on the host.
            AllocationError: the backend says a device cannot be used now.
            BackendError: the backend answered something unusable.
        """
        granted, missing = self._edits(devices, terms)
        if missing:
            raise self._lacking(missing)
        return granted

    async def prepare(self, tokens: Sequence[str]) -> None:
        """What must happen before a container starts; called again for each restart.

        It is done with the options that the container was given its devices with; where an earlier run gave
        them, with those of now.

        Raises:
            UnknownDevice: a token is not known.
            BackendError: the backend failed or hung.
        """
        got = [self._got(entry) for entry in self._entries(tokens)]
        terms = self.inventory.account.terms.get(tokens[0], self.terms)
        options = terms.options
        if self.source.prepares(options):
            request = AllocateRequest(tuple(_each_once(got)), options, self.name)
            await self.source.prepare(PREPARE_DEADLINE, request, (self.terms.options, self._before))

    def _lacking(self, missing: Mapping[str, Sequence[str]]) -> MissingPath:
        paths = sorted({path for paths in missing.values() for path in paths})
        return MissingPath(f"{self.name}: {', '.join(paths)} does not exist on the node")

    def _entries(self, tokens: Sequence[str]) -> list[Entry]:
        if not tokens:
            raise UnknownDevice(f"{self.name}: the request names no device")
        if len(set(tokens)) != len(tokens):
            twice = next(token for token in tokens if tokens.count(token) > 1)
            raise UnknownDevice(f"{self.name}: the request names {quoted(twice)} more than once")
        entries = []
        for token in tokens:
            entry = self.inventory.snapshot.entry(token)
            if entry is None:
                raise UnknownDevice(f"{self.name}: there is no device {quoted(token)}")
            entries.append(entry)
        return entries

    def _healthy(self, entry: Entry) -> tuple[Device, ...]:
        """The devices that an entry gives now."""
        if not entry.health.healthy:
            raise UnhealthyDevice(f"{self.name}: {entry.token} is unhealthy: {entry.health.reason}")
        if entry.stands_in and (reason := self.inventory.stands_in_for(entry.token)):
            raise UnhealthyDevice(f"{self.name}: {entry.token} cannot be allocated: {reason}")
        return tuple(member.device for member in entry.members if member.health.healthy)

    def _got(self, entry: Entry) -> tuple[Device, ...]:
        """The devices a container holds by an entry; where that is not known, those it would get now."""
        given = self.inventory.given(entry.token)
        got = tuple(member.device for member in entry.members if member.device.id in given)
        well = tuple(member.device for member in entry.members if member.health.healthy)
        return got or well or tuple(member.device for member in entry.members)

    def _serve_described(
        self, wanted: Sequence[Sequence[Device]], terms: Terms
    ) -> tuple[_Answer, dict[str, device_info.Document]]:
        """The same as :meth:`_serve`, and what network plugins are told of the devices, by id."""
        answer = self._serve(wanted, terms)
        documents: dict[str, device_info.Document] = {}
        if self.infos is not None and self.infos.wanted and self.source.informs:
            request = self._request(answer.devices, terms)
            for device in answer.devices:
                if (document := self.source.device_info(device, request, (self._before,))) is not None:
                    if wrong := device_info.flaw(document):
                        raise BackendError(f"backend {self.source.name} gave unusable device-info: {wrong}")
                    documents[device.id] = document
        return answer, documents

    def _serve(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> _Answer:
        """Asks for the devices behind some tokens. Runs on the backend's thread.

        Where there are more than there must be, those that cannot be used are found out and left out.

        Raises:
            AllocationError: for some token the backend gives nothing at all.
            BackendError: the same, and for some device it failed.
        """
        devices = _each_once(wanted)
        must = all(len(some) == 1 for some in wanted)
        try:
            granted, lacking = self._edits(devices, terms)
        except Exception:  # a stranger's code may raise anything, and one device of many must not fail a pod
            if must:
                raise
        else:
            if must or not lacking:
                return _Answer(granted, () if lacking else devices, lacking, {})
        return self._serve_some(wanted, devices, terms)

    def _serve_some(
        self, wanted: Sequence[Sequence[Device]], devices: Sequence[Device], terms: Terms
    ) -> _Answer:
        left_out: dict[str, str] = {}
        lacking: dict[str, list[str]] = {}
        failed = False
        for device in devices:
            try:
                _, missing = self._edits([device], terms)
            except BackendError as error:
                left_out[device.id] = words(error) or type(error).__name__
                failed = failed or not isinstance(error, AllocationError)
            except Exception as error:  # noqa: BLE001 - a stranger's code may raise anything
                left_out[device.id] = f"backend {self.source.name} failed: {one_line(error)}"
                failed = True
            else:
                lacking |= missing
                left_out |= {name: f"{', '.join(paths)} does not exist" for name, paths in missing.items()}
        rest = [[device for device in some if device.id not in left_out] for some in wanted]
        if not all(rest):
            if lacking:
                return _Answer(Granted(Edits()), (), lacking, {})
            kind = BackendError if failed else AllocationError
            raise kind("; ".join(dict.fromkeys(left_out.values())))
        granted, missing = self._edits(_each_once(rest), terms)
        return _Answer(granted, () if missing else _each_once(rest), lacking | missing, left_out)

    def _edits(self, devices: Sequence[Device], terms: Terms) -> tuple[Granted, dict[str, list[str]]]:
        """Asks the backend and checks its answer against the host. Runs on the backend's thread."""
        edits = self._asked(devices, terms)
        if not isinstance(edits, Edits):
            raise BackendError(f"backend {self.source.name} answered {type(edits).__name__}, not Edits")
        check_edits(edits, self.source.name)
        edits = named(Edits.merge([edits]), self.name)  # what serves several devices a container gets once
        edits = permitted(edits, terms.permissions)
        absent = {path for path in _paths(edits, required=True) if not self.source.exists(path)}
        if absent:
            return Granted(edits), self._blame(devices, terms, absent)
        edits = self._one_each(edits)
        optional = {path for path in _paths(edits, required=False) if not self.source.exists(path)}
        return Granted(edits, frozenset(optional)), {}

    def _asked(self, devices: Sequence[Device], terms: Terms) -> Edits:
        return self.source.allocate(self._request(devices, terms), (self._before,))

    def _request(self, devices: Sequence[Device], terms: Terms) -> AllocateRequest:
        return AllocateRequest(tuple(devices), terms.options, self.name, terms.shares)

    def _one_each(self, edits: Edits) -> Edits:
        """The same with one thing at each container path: what is required, else the first that there is.

        Raises:
            AllocationError: two different things that are required want one path. A container that was to
                have both would have one and not know it.
        """

        def chosen(where: str, wanted: Sequence[Thing]) -> Thing:
            required = [thing for thing in wanted if thing.required]
            if len(required) > 1:
                both = " and ".join(map(_source, required[:2]))
                reason = f"{both} are both to be {where} in the container, which can have one of them"
                raise AllocationError(f"{self.name}: {reason}")
            there = (thing for thing in wanted if self.source.exists(_source(thing)))
            return required[0] if required else next(there, wanted[0])

        nodes, mounts = _by_place(edits.nodes), _by_place(edits.mounts)
        if len(nodes) == len(edits.nodes) and len(mounts) == len(edits.mounts):
            return edits
        return replace(
            edits,
            nodes=tuple(chosen(where, wanted) for where, wanted in nodes.items()),
            mounts=tuple(chosen(where, wanted) for where, wanted in mounts.items()),
        )

    def _blame(self, devices: Sequence[Device], terms: Terms, absent: set[str]) -> dict[str, list[str]]:
        """Which of several devices lacks what: each is asked for alone; all, if none admits it."""
        if len(devices) == 1:
            return {devices[0].id: sorted(absent)}
        blame = {}
        for device in devices:
            edits = self._asked([device], terms)
            own = set(_paths(edits, required=True)) & absent
            if own:
                blame[device.id] = sorted(own)
        return blame or {device.id: sorted(absent) for device in devices}


def _each_once(sets: Iterable[Sequence[Device]]) -> list[Device]:
    return list({device.id: device for some in sets for device in some}.values())


def _source(thing: DeviceNode | Mount) -> str:
    return thing.path if isinstance(thing, DeviceNode) else thing.host_path


def _by_place(things: Iterable[Thing]) -> dict[str, list[Thing]]:
    """Things by where a container sees them."""
    found: dict[str, list[Thing]] = {}
    for thing in things:
        found.setdefault(thing.container_path or _source(thing), []).append(thing)
    return found


def _paths(edits: Edits, *, required: bool) -> list[str]:
    nodes = [node.path for node in edits.nodes if node.required is required]
    return nodes + [mount.host_path for mount in edits.mounts if mount.required is required]
