"""The CDI specification of one resource, which follows its devices: ``inject: cdi``.

The order matters. A device is listed only after the specification that names it is on the disk. It leaves the
specification only after it has left the list and no container holds it, because the kubelet repeats an
earlier answer as long as the pod lives. Allocate writes the changes until then.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.inventory import Inventory
from devhost.allocation.resource_backend import Granted, ResourceBackend, Terms
from devhost.allocation.timing import NODE
from devhost.backend import NoOptions
from devhost.backend.backoff import Backoff
from devhost.backend.errors import AllocationError, BackendError, BackendTimeout, EnvironmentFailure
from devhost.backend.model import HEALTHY, Device, Edits, Health, unhealthy
from devhost.discovery.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler, Retry
from devhost.discovery.runner import BackendRunner
from devhost.planning.claims import Key
from devhost.planning.plan import Offer
from devhost.telemetry.log import get

from . import spec
from .files import SpecFiles
from .rendering import adds_up, rendered
from .spec import ContainerEdits

if TYPE_CHECKING:
    from fractions import Fraction  # with decimal 0.5 MB, only where a backend takes shares

log = get(__name__)

CHECK = 60.0
"""Seconds between checks that the file is still there as written."""

WRITING = "its CDI specification is being written"
"""Why a device is briefly unhealthy after it has recovered from another reason."""

MAX_SETS = 1024
"""Sets of devices in a specification besides single devices. Beyond that, the oldest sets that no container
uses are removed."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """One name in the specification: its devices, and what they add to a container.

    ``runner`` is the backend that answered, ``terms`` are those on which a container gets the devices.
    """

    devices: tuple[Device, ...]
    edits: ContainerEdits
    runner: BackendRunner | None = None
    terms: Terms = field(default_factory=Terms)


@dataclass(frozen=True, slots=True)
class _Rendered:
    """What one container gets: all devices together, and each of them by itself."""

    injection: CdiInjection
    granted: Granted
    terms: Terms
    whole: _Unit
    single: Mapping[str, _Unit]

    async def inject(self, tokens: Sequence[str]) -> Granted:
        """See :meth:`CdiInjection.inject`."""
        return await self.injection.inject(tokens, self)


class CdiInjection:
    """Writes the specification of one resource and answers with its names.

    Args:
        backend: provides what each device needs.
        inventory: the devices of the resource.
        files: where the specification goes.
        settled: called in the loop when the result of :meth:`listable` may have changed.
        deadline: seconds for the backend to answer what one device needs.
        check: see :data:`CHECK`.
        most_sets: see :data:`MAX_SETS`.
        backoff: delays after a failure.
        clock: monotonic time.
    """

    def __init__(
        self,
        backend: ResourceBackend,
        inventory: Inventory,
        files: SpecFiles,
        settled: Callable[[], None],
        *,
        deadline: float = NODE.render,
        check: float = CHECK,
        most_sets: int = MAX_SETS,
        backoff: Backoff | None = None,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self.kind = spec.kind(backend.resource, files.owner)
        self.ready = asyncio.Event()
        """Set once there is something to list, healthy or not."""
        self._resource = backend.resource
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._settled = settled
        self._deadline = deadline
        self._check = check
        self._most_sets = most_sets
        self._wanted: Mapping[str, Device] = {}
        self._unhealthy: Collection[str] = ()
        self._share_of: Mapping[str, Fraction] = {}
        """The share of each device that one token gives, if the backend uses it."""
        self._units: dict[str, _Unit] = {}
        self._sets: dict[str, _Unit] = {}
        self._set_of: dict[str, str] = {}
        """The set that a container got, by its tokens; empty if it got single devices."""
        self._adopted: frozenset[str] | None = None
        """Sets that an earlier run gave to unknown containers; ``None`` until its file has been read."""
        self._earlier: dict[str, ContainerEdits] = {}
        self._failures: dict[str, str] = {}
        self._on_disk: dict[str, ContainerEdits] = {}
        self._text = ""
        self._file: Path | None = None
        self._unwritten = ""
        self._writing = asyncio.Lock()
        self._write_failure = FailureLog(
            log,
            "CDI specification not written",
            "CDI specification written again",
            level="error",
            resource=self._resource,
        )
        self._stopping = False
        self._rendering: asyncio.Timeout | None = None
        self._loop = Reconciler(self._pass, backoff=backoff, clock=clock)

    def want(self, offers: Sequence[Offer], verdict: Callable[[Device], Health]) -> None:
        """Takes the devices that the resource has now; :meth:`run` does the rest.

        Unhealthy ones are not rendered; what the specification has of them stays.
        """
        devices = {offer.device.id: offer.device for offer in offers}
        self._wanted = {name: device for name, device in devices.items() if verdict(device).healthy}
        self._unhealthy = devices.keys() - self._wanted.keys()
        self._share_of = {}
        if self._backend.runner.takes_shares and offers:
            from fractions import Fraction

            self._share_of = {offer.device.id: Fraction(1, offer.replicas) for offer in offers}
        self._loop.wake()

    def listable(
        self, offers: Sequence[Offer], verdict: Callable[[Device], Health]
    ) -> tuple[Sequence[Offer], Callable[[Device], Health]]:
        """What the list may show now: no device is healthy before its specification is written."""
        shown = self._inventory.snapshot.devices()
        present = self._inventory.present()

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
        """The health of a device that is healthy otherwise, by its specification."""
        if reason := self._failures.get(device.id):
            return unhealthy(reason)
        unit = self._units.get(device.id)
        if unit is not None and self._unwritten and not self._is_written(device.id):
            return unhealthy(self._unwritten)
        ready = unit is not None and unit.devices[0] is device and self._is_written(device.id)
        # a device that is listed as healthy stays so: Allocate writes what has changed until then
        return HEALTHY if ready or (listed and unit is not None) else unhealthy(WRITING)

    def _is_written(self, device: str) -> bool:
        """Whether the file on the disk has what the device needs."""
        return self._on_disk.get(spec.device_name(device), {}) == self._units[device].edits

    async def run(self) -> None:
        """Keeps the file right until :meth:`stop`."""
        await self._loop.run()

    async def _pass(self) -> float:
        if self._stopping:
            return self._check
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._rendering:
                await self._render_due()
        self._rendering = None
        try:
            await self._write()
        except EnvironmentFailure as error:
            self._unwritten = str(error)
            self._write_failure.failed(self._unwritten)
        # before a new backend has listed its devices, the first list would be empty
        known = self.ready.is_set() or self._backend.runner.started or not self._wanted
        if known and not self._stopping:
            self.ready.set()
            self._settled()
        if self._failures or self._unwritten:
            raise Retry  # both have been logged
        return self._check

    @property
    def failure(self) -> str:
        """Why the specification could not be written; empty if it is written."""
        return self._unwritten

    def stop(self) -> None:
        """Ends :meth:`run`, also while a backend hangs; the file stays."""
        self._stopping = True
        if self._rendering is not None and not self._rendering.expired():
            self._rendering.reschedule(asyncio.get_running_loop().time())
        self.ready.set()
        self._loop.stop()

    def render(self, devices: Sequence[Device], granted: Granted, terms: Terms) -> _Rendered:
        """What devices add together, and what each adds by itself. Runs on the backend's thread.

        The backend is asked for single devices only if what is known of them does not add up to what they add
        together.

        Raises:
            AllocationError: a device cannot be rendered.
            BackendError: the backend failed.
        """
        whole = _Unit(tuple(devices), self._rendered(granted), self._backend.runner, terms)
        by_one = {device.id: self._by_one_token(device.id, terms) for device in devices}
        if len(devices) == 1 and terms == by_one[devices[0].id]:
            single = {devices[0].id: whole}
        else:
            single = self._known(devices, by_one)
            if not _adds_up(single, whole, len(devices)):
                single = {device.id: self._single((device,), by_one[device.id]) for device in devices}
        return _Rendered(self, granted, terms, whole, single)

    async def inject(self, tokens: Sequence[str], rendered: _Rendered) -> Granted:
        """Turns what a container gets into names, and makes sure that the file has them.

        Several devices are named one by one if that gives the container the same as one name for all of them.
        Otherwise (a variable lists them all, or contains the container's share), one name represents the set.

        Args:
            tokens: the tokens of the container; they count as held already.
            rendered: what it gets.

        Raises:
            AllocationError: the file cannot be written.
        """
        whole, single, terms, granted = rendered.whole, rendered.single, rendered.terms, rendered.granted
        if self._unwritten or not self._failures.keys().isdisjoint(single):
            self._loop.wake()  # their health in the list may be outdated
        self._take(single)
        name = spec.set_name(self._label(device, terms.shares.get(device)) for device in single)
        if _adds_up(single, whole, len(single)):
            names = [spec.device_name(device) for device, unit in single.items() if unit.edits]
            self._set_of |= dict.fromkeys(tokens, "")
        else:
            names = [name]
            self._sets.pop(name, None)
            self._sets[name] = whole  # last, as the youngest
            self._set_of |= dict.fromkeys(tokens, name)
        try:
            await self._write()
        except EnvironmentFailure as error:
            edits = {spec.device_name(device): unit.edits for device, unit in single.items()}
            if not await self._is_on_disk(edits | {name: whole.edits}, names):
                raise AllocationError(f"{self._resource}: {error}") from error
        qualified = tuple(f"{self.kind}={name}" for name in names) + granted.edits.cdi_devices
        return Granted(Edits(annotations=granted.edits.annotations, cdi_devices=qualified))

    async def _is_on_disk(self, edits: Mapping[str, ContainerEdits], names: Sequence[str]) -> bool:
        """Whether the file has everything behind these names, even if other parts are outdated."""
        try:
            kind, found = await self._files.read(self._files.path(self._resource))
        except EnvironmentFailure:
            return False
        return kind == self.kind and all(found.get(name) == edits[name] for name in names)

    def _known(self, devices: Sequence[Device], by_one: Mapping[str, Terms]) -> dict[str, _Unit]:
        """The known edits of the devices that have not changed since they were rendered."""
        runner, known = self._backend.runner, {}
        for device in devices:
            unit = None if device.id in self._failures else self._units.get(device.id)
            if unit is not None and _current(unit, (device,), runner, by_one[device.id]):
                known[device.id] = unit
        return known

    def _single(self, devices: tuple[Device, ...], terms: Terms) -> _Unit:
        runner = self._backend.runner
        return _Unit(devices, self._rendered(self._backend.ask(devices, terms)), runner, terms)

    def _by_one_token(self, device: str, terms: Terms) -> Terms:
        """The terms on which a container gets a device by one token."""
        part = self._share_of.get(device)
        return replace(terms, shares={} if part is None else {device: part})

    def _label(self, device: str, share: Fraction | None) -> str:
        """A device in the name of a set, with the share that the container has of it."""
        return device if share in (None, self._share_of.get(device)) else f"{device}*{share}"

    def _rendered(self, granted: Granted) -> ContainerEdits:
        return rendered(granted, self._backend.runner.context.root)

    async def _adopt(self) -> None:
        """Takes over what an earlier run wrote: its pods may still live.

        A name stays until its device is rendered again. A name whose devices are unknown (a set, a removed
        device) stays until no container holds anything of the resource.

        Raises:
            EnvironmentFailure: it cannot be read, so it must not be overwritten.
        """
        found = await self._files.take_over(self._files.path(self._resource), self.kind)
        self._on_disk = found
        self._adopted = frozenset(filter(spec.is_set, found))
        self._sets = {name: _Unit((), found[name]) for name in sorted(self._adopted)} | self._sets
        rendered = set(map(spec.device_name, self._units))
        self._earlier = {n: e for n, e in found.items() if n not in self._adopted and n not in rendered}

    def _due(self) -> Iterator[tuple[str, tuple[Device, ...], Terms]]:
        """What must be rendered, and on which terms; with its name where that is a set.

        That is all of which a device, or the backend, has changed. New terms are for what no container has:
        a container may start again, and has to find what it was given.
        """
        runner, terms = self._backend.runner, self._backend.terms
        if not runner.started:
            return  # its options were changed; its predecessor's answers hold until its first look
        kept = self._kept()
        for name, device in self._wanted.items():
            unit, given = self._units.get(name), self._by_one_token(name, kept.get(name, terms))
            current = unit is not None and _current(unit, (device,), runner, given)
            if not current or name in self._failures:
                yield "", (device,), given
        for set_name, unit in self._sets.items():
            now = tuple(self._wanted.get(device.id, device) for device in unit.devices)
            last = next((kept[device.id] for device in now if device.id in kept), terms)
            given = replace(last, shares=unit.terms.shares)
            if now and not _current(unit, now, runner, given):
                yield set_name, now, given

    def _kept(self) -> dict[str, Terms]:
        """The terms with which containers got devices, by their ids; where several did, the last one's."""
        allocations, wanted = self._inventory.allocations, self._backend.runner.kind.ResourceOptions
        distinct: dict[tuple[int, int], tuple[Sequence[Key], Terms]] = {}
        for token, terms in allocations.terms.items():
            keys = allocations.got(token)
            distinct.pop((id(keys), id(terms)), None)
            distinct[id(keys), id(terms)] = keys, terms
        return {
            device: terms
            for keys, terms in distinct.values()
            # else an edited drop-in has another class by now
            if wanted is NoOptions or isinstance(terms.options, wanted)
            for _, device in keys
        }

    async def _render_due(self) -> None:
        held = self._inventory.listed()
        hung = ""
        for set_name, devices, terms in list(self._due()):
            if self._stopping:
                return
            reason = hung
            try:
                if not hung:
                    unit = await self._backend.call(self._deadline, self._single, devices, terms)
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
                log.info("CDI specification is possible again", resource=self._resource, device=device)
            self._earlier.pop(spec.device_name(device), None)

    def _fail(self, device: str, reason: str, *, held: bool) -> None:
        if self._failures.get(device) != reason:
            log.warning("no CDI specification", resource=self._resource, device=device, reason=reason)
        self._failures[device] = reason
        if not held:  # a pod that has the device may still need what it was given
            self._units.pop(device, None)

    def _content(self) -> dict[str, ContainerEdits]:
        """What the file should hold, by CDI name; drops what neither list nor plan nor a container has."""
        kept = {*self._wanted, *self._unhealthy, *self._inventory.listed(), *self._held_devices()}
        for known in (self._units, self._failures):
            for device in [device for device in known if device not in kept]:
                del known[device]
        allocations = self._inventory.allocations
        if allocations.is_unused():
            names = {spec.device_name(device) for device in kept}
            self._earlier = {name: edits for name, edits in self._earlier.items() if name in names}
            self._sets = {name: unit for name, unit in self._sets.items() if unit.devices}
            self._adopted = frozenset()
        held = allocations.tokens()
        self._set_of = {token: name for token, name in self._set_of.items() if token in held}
        needed = {*self._set_of.values(), *(self._adopted or ())}
        for name, unit in list(self._sets.items()):
            gone = any(device.id not in kept for device in unit.devices)
            if gone or (len(self._sets) > self._most_sets and name not in needed):
                del self._sets[name]
        content = dict(self._earlier)
        content |= {spec.device_name(device): unit.edits for device, unit in self._units.items()}
        content |= {name: unit.edits for name, unit in self._sets.items()}
        return {name: edits for name, edits in content.items() if edits}

    def _held_devices(self) -> set[str]:
        """The devices that containers have, also by tokens that have left the list."""
        return {device for _, device in self._inventory.allocations.held_devices()}

    async def _write(self) -> None:
        """Makes the file what it should be.

        Raises:
            EnvironmentFailure: permission is denied, or the directory is full or hangs.
        """
        async with self._writing:
            if self._adopted is None:
                await self._adopt()
            content, text = self._content(), self._text
            file = self._files.path(self._resource)
            if content != self._on_disk or not text:
                text = spec.dumps(spec.document(self.kind, content)) if content else ""
            if text:
                await self._files.write(file, text)
            else:
                await self._files.remove(file)
            if self._file not in (None, file):
                await self._files.remove(self._file)  # the directory was changed in the configuration
            self._write_failure.succeeded()
            self._file, self._text, self._on_disk, self._unwritten = file, text, content, ""


def _current(unit: _Unit, devices: Sequence[Device], runner: BackendRunner, terms: Terms) -> bool:
    same = unit.runner is runner and unit.terms == terms
    return same and all(map(operator.is_, unit.devices, devices))


def _adds_up(single: Mapping[str, _Unit], whole: _Unit, devices: int) -> bool:
    """Whether a container that gets single devices has the same as one that gets them together."""
    if len(single) < devices:
        return False
    return adds_up([unit.edits for unit in single.values()], whole.edits)
