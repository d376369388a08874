"""One resource's CDI specification, kept in step with its devices: ``inject: cdi``.

The order is what matters. A device gets into the list only once the specification that names it lies on
the disk; it leaves the specification only after it left the list and no container has it any more, because
the kubelet gives an answer of old again for as long as the pod lives. Allocate looks once more and writes
what is another by then.
"""

from __future__ import annotations

import asyncio
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.allocator import Allocator, Granted, Terms
from devhost.backend import NoOptions
from devhost.backend.backoff import Backoff
from devhost.backend.errors import AllocationError, BackendError, BackendTimeout, EnvironmentFailure
from devhost.backend.model import HEALTHY, Device, Edits, Health, unhealthy
from devhost.discovery.runner import BackendRunner
from devhost.planning.plan import Offer
from devhost.telemetry.log import get

from . import spec
from .files import SpecDirectory
from .spec import ContainerEdits

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

log = get(__name__)

RENDER_DEADLINE = 5.0
"""Seconds a backend has to say what one device needs."""

CHECK = 60.0
"""Seconds between looks whether the file is still there as written."""

WRITING = "its CDI specification is being written"
"""Why a device is not healthy that has come back from another sickness, for a moment."""

MAX_SETS = 1024
"""Sets of devices a specification keeps beside the devices themselves; of those that no container was told,
or has let go of, the oldest go first."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """Something the specification names: the devices it stands for, and what they add to a container.

    ``source`` and ``terms`` are who was asked, and on which terms a container gets the devices.
    """

    devices: tuple[Device, ...]
    edits: ContainerEdits
    source: BackendRunner | None = None
    terms: Terms = field(default_factory=Terms)


class CdiInjection:
    """Writes the specification of one resource and answers with its names.

    Args:
        supply: the resource; its source is asked what each device needs.
        directory: where the file goes.
        settled: called in the loop when what :meth:`listable` says may be another.
    """

    def __init__(self, supply: Allocator, directory: SpecDirectory, settled: Callable[[], None]) -> None:
        self.kind = spec.kind(supply.name, directory.owner)
        self.ready = asyncio.Event()
        """Set once there is something to list, be it good or bad."""
        self._supply = supply
        self._directory = directory
        self._settled = settled
        self._wanted: Mapping[str, Device] = {}
        self._sick: Collection[str] = ()
        self._parts_of: Mapping[str, Fraction] = {}
        """How much of each device one token gives, where the backend wants to know."""
        self._units: dict[str, _Unit] = {}
        self._sets: dict[str, _Unit] = {}
        self._told: dict[str, str] = {}
        """The set that a container was told of, by its tokens; empty where it was told of single devices."""
        self._adopted: frozenset[str] | None = None
        """Sets that an earlier run told of, to whom is not known; ``None`` until its file has been read."""
        self._earlier: dict[str, ContainerEdits] = {}
        self._failures: dict[str, str] = {}
        self._on_disk: dict[str, ContainerEdits] = {}
        self._text = ""
        self._file: Path | None = None
        self._unwritten = ""
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stopping = False
        self._rendering: asyncio.Timeout | None = None

    def want(self, offers: Sequence[Offer], verdict: Callable[[Device], Health]) -> None:
        """Takes the devices the resource has now; :meth:`run` does the rest.

        The sick are not asked for; what the specification has of them stays.
        """
        devices = {offer.device.id: offer.device for offer in offers}
        self._wanted = {name: device for name, device in devices.items() if verdict(device).healthy}
        self._sick = devices.keys() - self._wanted.keys()
        self._parts_of = {}
        if self._supply.source.takes_shares and offers:
            from fractions import Fraction

            self._parts_of = {offer.device.id: Fraction(1, offer.replicas) for offer in offers}
        self._wake.set()

    def listable(
        self, offers: Sequence[Offer], verdict: Callable[[Device], Health]
    ) -> tuple[Sequence[Offer], Callable[[Device], Health]]:
        """What of this the list may show now: nothing healthy is new before it is known what to say of it."""
        shown = self._supply.inventory.snapshot.devices()
        present = self._supply.inventory.present()

        def judged(device: Device) -> Health:
            health = verdict(device)
            return self._verdict(device, listed=shown.get(device.id, False)) if health.healthy else health

        def settled(device: Device) -> bool:
            if device.id in present or device.id in self._failures or not verdict(device).healthy:
                return True
            unit = self._units.get(device.id)
            current = unit is not None and unit.devices[0] is device
            return current and (self._is_written(device.id) or bool(self._unwritten))

        return [offer for offer in offers if settled(offer.device)], judged

    def _verdict(self, device: Device, *, listed: bool) -> Health:
        """What the specification says of a device that is healthy otherwise, and listed as healthy or not."""
        if reason := self._failures.get(device.id):
            return unhealthy(reason)
        unit = self._units.get(device.id)
        if unit is not None and self._unwritten and not self._is_written(device.id):
            return unhealthy(self._unwritten)
        ready = unit is not None and unit.devices[0] is device and self._is_written(device.id)
        # what is listed as healthy stays so meanwhile: Allocate writes what is another by then
        return HEALTHY if ready or (listed and unit is not None) else unhealthy(WRITING)

    def _is_written(self, device: str) -> bool:
        """Whether the file on the disk has what the device needs."""
        return self._on_disk.get(spec.device_name(device), {}) == self._units[device].edits

    async def run(self) -> None:
        """Keeps the file right until :meth:`stop`."""
        backoff = Backoff(1.0, 60.0)
        while not self._stopping:
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as self._rendering:
                    await self._render_due()
            self._rendering = None
            await self._write_or_tell()
            # a new backend that has not looked yet would make the first list an empty one
            known = self.ready.is_set() or self._supply.source.started or not self._wanted
            if known and not self._stopping:
                self.ready.set()
                self._settled()
            troubled = self._failures or self._unwritten
            if not troubled:
                backoff.reset()
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.delay() if troubled else CHECK):
                    await self._wake.wait()

    @property
    def trouble(self) -> str:
        """Why the specification could not be written; empty while it lies there as it should."""
        return self._unwritten

    def stop(self) -> None:
        """Ends :meth:`run`, also while a backend hangs; the file stays."""
        self._stopping = True
        if self._rendering is not None and not self._rendering.expired():
            self._rendering.reschedule(asyncio.get_running_loop().time())
        self.ready.set()
        self._wake.set()

    async def inject(
        self,
        tokens: Sequence[str],
        devices: Sequence[Device],
        granted: Granted,
        terms: Terms,
        deadline: float,
    ) -> Granted:
        """Turns what a container gets into names, and makes sure that the file holds them.

        Several devices are named one by one where that gives the container the same as they get together.
        Where it does not (a variable that lists them all, or that tells how much of them it has), a name of
        their own names the set.

        Args:
            tokens: what the container gets it by; they count as held already.
            terms: on which it gets it.
            deadline: seconds the backend still has.

        Raises:
            AllocationError: a device cannot be rendered, or the file cannot be written.
            BackendError: the backend failed or hung.
        """
        whole, alone = await self._supply.source.serve(deadline, self._parts, devices, granted, terms)
        if self._unwritten or not self._failures.keys().isdisjoint(alone):
            self._wake.set()  # what the list says of them may be wrong by now
        self._take(alone)
        name = spec.set_name(self._told_apart(device, terms.shares.get(device)) for device in alone)
        if spec.applied([unit.edits for unit in alone.values()]) == spec.applied([whole.edits]):
            names = [spec.device_name(device) for device, unit in alone.items() if unit.edits]
            self._told |= dict.fromkeys(tokens, "")
        else:
            names = [name]
            self._sets.pop(name, None)
            self._sets[name] = whole  # last, as the youngest
            self._told |= dict.fromkeys(tokens, name)
        try:
            await self._write()
        except EnvironmentFailure as error:
            edits = {spec.device_name(device): unit.edits for device, unit in alone.items()}
            if not await self._lie_there(edits | {name: whole.edits}, names):
                raise AllocationError(f"{self._supply.name}: {error}") from error
        qualified = tuple(f"{self.kind}={name}" for name in names) + granted.edits.cdi_devices
        return Granted(Edits(annotations=granted.edits.annotations, cdi_devices=qualified))

    async def _lie_there(self, edits: Mapping[str, ContainerEdits], names: Sequence[str]) -> bool:
        """Whether the disk has all that these names stand for, though not what else should be in the file."""
        try:
            kind, found = await self._directory.read(self._directory.path(self._supply.name))
        except EnvironmentFailure:
            return False
        return kind == self.kind and all(found.get(name) == edits[name] for name in names)

    def _parts(
        self, devices: Sequence[Device], granted: Granted, terms: Terms
    ) -> tuple[_Unit, dict[str, _Unit]]:
        """What devices add together, and what each adds alone. Runs on the backend's thread."""
        whole = _Unit(tuple(devices), self._rendered(granted), self._supply.source, terms)
        by_one = {device.id: self._by_one_token(device.id, terms) for device in devices}
        if len(devices) == 1 and terms == by_one[devices[0].id]:
            return whole, {devices[0].id: whole}
        return whole, {device.id: self._alone((device,), by_one[device.id]) for device in devices}

    def _alone(self, devices: tuple[Device, ...], terms: Terms) -> _Unit:
        source = self._supply.source
        return _Unit(devices, self._rendered(self._supply.ask(devices, terms)), source, terms)

    def _by_one_token(self, device: str, terms: Terms) -> Terms:
        """The terms on which a container gets a device by one token."""
        part = self._parts_of.get(device)
        return replace(terms, shares={} if part is None else {device: part})

    def _told_apart(self, device: str, share: Fraction | None) -> str:
        """What a device goes by in the name of a set, where a container may have more or less of it."""
        return device if share in (None, self._parts_of.get(device)) else f"{device}*{share}"

    def _rendered(self, granted: Granted) -> ContainerEdits:
        look = functools.partial(spec.host_node, root=self._supply.source.context.root)
        return spec.container_edits(granted.edits, look, granted.left_out)

    async def _adopt(self) -> None:
        """Takes over what an earlier run wrote: its pods may still live.

        A name stays until its device is rendered anew. One of which nobody knows what it stands for (a set, a
        device that has gone) stays until no container has anything of the resource.

        Raises:
            EnvironmentFailure: it cannot be read; so nothing may be written in its place.
        """
        found = await self._directory.take_over(self._directory.path(self._supply.name), self.kind)
        self._on_disk = found
        self._adopted = frozenset(filter(spec.is_set, found))
        self._sets = {name: _Unit((), found[name]) for name in sorted(self._adopted)} | self._sets
        rendered = set(map(spec.device_name, self._units))
        self._earlier = {n: e for n, e in found.items() if n not in self._adopted and n not in rendered}

    def _due(self) -> Iterator[tuple[str, tuple[Device, ...], Terms]]:
        """What must be rendered, and on which terms; with its name where that is a set.

        That is all of which a device, or who is asked, is not the same any more. New terms are for what no
        container has: one may start again, and shall find what it was given.
        """
        source, terms = self._supply.source, self._supply.terms
        if not source.started:
            return  # its options were changed; what its forerunner said holds until its first look
        kept = self._kept()
        for name, device in self._wanted.items():
            unit, given = self._units.get(name), self._by_one_token(name, kept.get(name, terms))
            current = unit is not None and _current(unit, (device,), source, given)
            if not current or name in self._failures:
                yield "", (device,), given
        for set_name, unit in self._sets.items():
            now = tuple(self._wanted.get(device.id, device) for device in unit.devices)
            last = next((kept[device.id] for device in now if device.id in kept), terms)
            given = replace(last, shares=unit.terms.shares)
            if now and not _current(unit, now, source, given):
                yield set_name, now, given

    def _kept(self) -> dict[str, Terms]:
        """The terms with which containers got devices, by their ids; where several did, the last one's."""
        account, wanted = self._supply.inventory.allocations, self._supply.source.kind.ResourceOptions
        return {
            device: terms
            for token, terms in account.terms.items()
            for _, device in account.devices_of(token)
            # else an edited drop-in has another class by now
            if wanted is NoOptions or isinstance(terms.options, wanted)
        }

    async def _render_due(self) -> None:
        held = self._supply.inventory.listed()
        hung = ""
        for set_name, devices, terms in list(self._due()):
            if self._stopping:
                return
            reason = hung
            try:
                if not hung:
                    unit = await self._supply.source.serve(RENDER_DEADLINE, self._alone, devices, terms)
            except BackendTimeout as error:
                hung = reason = error.message  # the next device would only wait as long
            except BackendError as error:
                reason = error.message
            if set_name:
                if not reason:
                    self._sets[set_name] = unit
            elif reason:
                self._fail(devices[0].id, reason, held=held.get(devices[0].id, False))
            else:
                self._take({devices[0].id: unit})

    def _take(self, units: Mapping[str, _Unit]) -> None:
        self._units |= units
        for device in units:
            if self._failures.pop(device, None) is not None:
                log.info("CDI specification is possible again", resource=self._supply.name, device=device)
            self._earlier.pop(spec.device_name(device), None)

    def _fail(self, device: str, reason: str, *, held: bool) -> None:
        if self._failures.get(device) != reason:
            log.warning("no CDI specification", resource=self._supply.name, device=device, reason=reason)
        self._failures[device] = reason
        if not held:  # a pod that has the device may still need what it was told
            self._units.pop(device, None)

    def _content(self) -> dict[str, ContainerEdits]:
        """What the file should hold, by CDI name; drops what neither list nor plan nor a container has."""
        kept = {*self._wanted, *self._sick, *self._supply.inventory.listed(), *self._in_hands()}
        for book in (self._units, self._failures):
            for device in [device for device in book if device not in kept]:
                del book[device]
        account = self._supply.inventory.allocations
        if account.is_unused():
            names = {spec.device_name(device) for device in kept}
            self._earlier = {name: edits for name, edits in self._earlier.items() if name in names}
            self._sets = {name: unit for name, unit in self._sets.items() if unit.devices}
            self._adopted = frozenset()
        held = account.tokens()
        self._told = {token: name for token, name in self._told.items() if token in held}
        needed = {*self._told.values(), *(self._adopted or ())}
        for name, unit in list(self._sets.items()):
            gone = any(device.id not in kept for device in unit.devices)
            if gone or (len(self._sets) > MAX_SETS and name not in needed):
                del self._sets[name]
        content = dict(self._earlier)
        content |= {spec.device_name(device): unit.edits for device, unit in self._units.items()}
        content |= {name: unit.edits for name, unit in self._sets.items()}
        return {name: edits for name, edits in content.items() if edits}

    def _in_hands(self) -> set[str]:
        """The devices that containers have, by tokens that may be in the list no more."""
        account = self._supply.inventory.allocations
        return {device for token in account.tokens() for _, device in account.devices_of(token)}

    async def _write_or_tell(self) -> None:
        try:
            await self._write()
        except EnvironmentFailure as error:
            if self._unwritten != str(error):
                log.error("CDI specification not written", resource=self._supply.name, reason=str(error))
            self._unwritten = str(error)

    async def _write(self) -> None:
        """Makes the file what it should be.

        Raises:
            EnvironmentFailure: the directory does not let us.
        """
        async with self._writing:
            if self._adopted is None:
                await self._adopt()
            content, text = self._content(), self._text
            file = self._directory.path(self._supply.name)
            if content != self._on_disk or not text:
                text = spec.dumps(spec.document(self.kind, content)) if content else ""
            if text:
                await self._directory.write(file, text)
            else:
                await self._directory.remove(file)
            if self._file not in (None, file):
                await self._directory.remove(self._file)  # the directory was changed in the configuration
            if self._unwritten:
                log.info("CDI specification written again", resource=self._supply.name)
            self._file, self._text, self._on_disk, self._unwritten = file, text, content, ""


def _current(unit: _Unit, devices: Sequence[Device], source: BackendRunner, terms: Terms) -> bool:
    same = unit.source is source and unit.terms == terms
    return same and all(map(operator.is_, unit.devices, devices))
