"""The CDI specification of one resource, which follows its devices: ``inject: cdi``.

The order matters. A device is listed only after the specification that names it is on the disk. Its name
leaves the specification only after it has left the list and no container holds it, because the kubelet
repeats an earlier answer as long as the pod lives. Allocate writes the changes until then.

What a name gives follows the device. It is rendered again when the device changes, and when the host has
another node, number, mode or owner at a path, which changes no device. A name whose device is gone gives
nothing but the reason (:func:`.spec.withheld`): its path may be another device's by now.
"""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from devhost.allocation.injection import Injection
from devhost.allocation.inventory import Inventory
from devhost.allocation.resource_backend import Granted, ResourceBackend, Terms
from devhost.backend import NoOptions
from devhost.backend.errors import AllocationError, BackendError, BackendTimeout, EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.model import HEALTHY, Device, Edits, Health, Holder, unhealthy
from devhost.discovery.health import HealthOf
from devhost.discovery.runner import BackendRunner
from devhost.planning.claims import Key
from devhost.planning.plan import Offer
from devhost.planning.timing import ALLOCATION
from devhost.planning.tokens import ALL, unit_of
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, FailureLog, Reconciler, Retry

from . import spec
from .files import SpecFiles
from .spec import ContainerEdits, Seen, adds_up, claims_of, is_own, recorded, rendered

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


@frozen(slots=True)
class _CdiDevice:
    """One name in the specification: its devices, and what they add to a container.

    ``runner`` is the backend that answered, ``terms`` are those on which a container gets the devices.
    ``seen`` is what the host had then; once it has something else, the unit is ``outdated``.
    """

    devices: tuple[Device, ...]
    edits: ContainerEdits
    runner: BackendRunner | None = None
    terms: Terms = field(default_factory=Terms)
    seen: Seen = field(default_factory=dict)
    outdated: bool = False


@frozen
class _Named(Granted):
    """What one container gets: all devices together, and each of them by itself."""

    terms: Terms = field(kw_only=True)
    whole: _CdiDevice = field(kw_only=True)
    single: Mapping[str, _CdiDevice] = field(kw_only=True)


class CdiInjection(Injection):
    """Writes the specification of one resource and answers with its names.

    ``settled`` is called in the loop when the result of :meth:`listable` may have changed. The backend must
    answer what one device needs within ``deadline`` seconds.
    """

    lasting = False
    """A specification also has the owner and the mode of each node."""

    def __init__(
        self,
        backend: ResourceBackend,
        inventory: Inventory,
        files: SpecFiles,
        settled: Callable[[], None],
        *,
        deadline: float = ALLOCATION.render,
        most_sets: int = MAX_SETS,
    ) -> None:
        super().__init__()
        self.ready.clear()  # until there is something to list, healthy or not
        self.kind = spec.kind(backend.resource, files.owner)
        self._resource = backend.resource
        self._backend = backend
        self._inventory = inventory
        self._files = files
        self._settled = settled
        self._deadline = deadline
        self._most_sets = most_sets
        self._wanted: Mapping[str, Device] = {}
        self._unhealthy: Collection[str] = ()
        self._share_of: Mapping[str, Fraction] = {}
        """The share of each device that one token gives, if the backend uses it."""
        self._units: dict[str, _CdiDevice] = {}
        self._sets: dict[str, _CdiDevice] = {}
        self._set_of: dict[str, str] = {}
        """The set that a container got, by its tokens; empty if it got single devices."""
        self._terms_of: dict[str, Terms] = {}
        """The terms on which a container gets these tokens, until that is recorded."""
        self._adopted: frozenset[str] | None = None
        """Sets that an earlier run gave to unknown containers; ``None`` until its file has been read."""
        self._earlier: dict[str, ContainerEdits] = {}
        """What an earlier run wrote for devices that have not been found yet, by CDI name."""
        self._guessed: set[str] = set()
        """Sets that containers may have whose allocation this run has not seen."""
        self._recognized: set[str] = set()
        """Devices of which an earlier run wrote something that an unknown container may still have."""
        self._withheld: dict[str, str] = {}
        """Devices whose names give nothing although they are present, each with the reason."""
        self._tried: dict[str, tuple[Device, float]] = {}
        """When a device could not be rendered that is not to be listed."""
        self._failures: dict[str, str] = {}
        self._on_disk: dict[str, ContainerEdits] = {}
        self._text = ""
        self._file: Path | None = None
        self.failure = ""
        """Why the specification could not be written; empty if it is written."""
        self._writing = asyncio.Lock()
        self._write_failure = FailureLog(
            log,
            "CDI specification not written",
            "CDI specification written again",
            level="error",
            resource=self._resource,
        )
        self._stopping = False
        files.served.add(files.path(backend.resource))
        self._rendering: asyncio.Timeout | None = None
        self._loop = Reconciler(self._pass)

    def want(self, offers: Sequence[Offer], health_of: HealthOf) -> None:
        """Takes the devices that the resource has now; :meth:`run` does the rest.

        Unhealthy ones are rendered only if the specification names them or a container holds them.
        """
        devices = {offer.device.id: offer.device for offer in offers}
        self._wanted = {name: device for name, device in devices.items() if health_of(device).healthy}
        self._unhealthy = devices.keys() - self._wanted.keys()
        self._share_of = {}
        if self._backend.runner.backend_class.takes_shares and offers:
            from fractions import Fraction

            self._share_of = {offer.device.id: Fraction(1, offer.replicas) for offer in offers}
        self._loop.wake()

    def listable(self, offers: Sequence[Offer], health_of: HealthOf) -> tuple[Sequence[Offer], HealthOf]:
        """What the list may show now: no device is healthy before its specification is written."""
        shown = self._inventory.snapshot.devices()
        present = self._inventory.snapshot.present()

        def judged(device: Device) -> Health:
            health = health_of(device)
            return self._verdict(device, listed=shown.get(device.id, False)) if health.healthy else health

        def settled(device: Device) -> bool:
            if device.id in present or device.id in self._failures or not health_of(device).healthy:
                return True
            unit = self._units.get(device.id)
            current = unit is not None and unit.devices[0] is device
            return current and (self._is_written(device.id) or bool(self.failure))

        # a unit by an attribute is never shown without one of its devices
        return [offer for offer in offers if offer.of or settled(offer.device)], judged

    def _verdict(self, device: Device, *, listed: bool) -> Health:
        """The health of a device that is healthy otherwise, by its specification."""
        if reason := self._failures.get(device.id):
            return unhealthy(reason)
        unit = self._units.get(device.id)
        if unit is not None and self.failure and not self._is_written(device.id):
            return unhealthy(self.failure)
        ready = unit is not None and unit.devices[0] is device and self._is_written(device.id)
        # a device that is listed as healthy stays so: Allocate writes what has changed until then
        return HEALTHY if ready or (listed and unit is not None) else unhealthy(WRITING)

    def _is_written(self, device: str) -> bool:
        return self._on_disk.get(spec.device_name(device), {}) == self._units[device].edits

    async def run(self) -> None:
        await self._loop.run()

    def wake(self) -> None:
        self._loop.wake()

    async def _pass(self) -> float:
        if self._stopping:
            return CHECK
        with suppress(EnvironmentFailure):  # writing reports it
            await self._look()
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._rendering:
                await self._render_due()
        self._rendering = None
        try:
            await self._write()
        except EnvironmentFailure as error:
            self.failure = str(error)
            self._write_failure.failed(self.failure)
        # before a new backend has listed its devices, the first list would be empty
        known = self.ready.is_set() or self._backend.runner.started or not self._wanted
        if known and not self._stopping:
            self.ready.set()
            self._settled()
        if self._failures or self.failure:
            raise Retry  # both have been logged
        return CHECK

    def stop(self) -> None:
        """Ends :meth:`run`, also while a backend hangs; the file stays."""
        self._stopping = True
        if self._rendering is not None and not self._rendering.expired():
            self._rendering.reschedule(asyncio.get_running_loop().time())
        self.ready.set()
        self._loop.stop()
        self._files.served.discard(self._files.path(self._resource))
        if self._file is not None:
            self._files.served.discard(self._file)

    def render(self, devices: Sequence[Device], granted: Granted, terms: Terms) -> _Named:
        """What devices add together, and what each adds by itself. Runs on the backend's thread.

        The backend is asked for single devices only if what is known of them does not add up to what they add
        together.
        """
        whole = self._unit(tuple(devices), granted, terms)
        by_one = {device.id: self._by_one_token(device.id, terms) for device in devices}
        if len(devices) == 1 and terms == by_one[devices[0].id]:
            single = {devices[0].id: whole}
        else:
            single = self._known(devices, by_one)
            if not _adds_up(single, whole, len(devices)):
                single = {device.id: self._single((device,), by_one[device.id]) for device in devices}
        return _Named(granted.edits, granted.left_out, terms=terms, whole=whole, single=single)

    async def inject(self, rendered: Granted, tokens: Sequence[str]) -> Granted:
        """Turns what a container gets into names, and makes sure that the file has them.

        Several devices are named one by one if that gives the container the same as one name for all of them.
        Otherwise (a variable lists them all, or contains the container's share), one name represents the set.
        The tokens count as held already. Raises ``AllocationError`` if the file cannot be written.
        """
        assert isinstance(rendered, _Named)
        whole, single, terms = rendered.whole, rendered.single, rendered.terms
        if self.failure or not self._failures.keys().isdisjoint(single):
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
        for token in tokens:
            self._terms_of.pop(token, None)
        self._terms_of |= dict.fromkeys(tokens, terms)  # last, as the latest
        try:
            await self._write()
        except EnvironmentFailure as error:
            edits = {spec.device_name(device): unit.edits for device, unit in single.items()}
            if not await self._is_on_disk(edits | {name: whole.edits}, names):
                raise AllocationError(f"{self._resource}: {error}") from error
        qualified = tuple(f"{self.kind}={name}" for name in names) + rendered.edits.cdi_devices
        return Granted(Edits(annotations=rendered.edits.annotations, cdi_devices=qualified))

    async def refresh(self) -> None:
        """Makes the file name what the devices have now, for a container that is about to start."""
        try:
            await self._look()
            await self._render_due()
            await self._write()
        except EnvironmentFailure as error:
            raise AllocationError(f"{self._resource}: {error}") from error

    async def _is_on_disk(self, edits: Mapping[str, ContainerEdits], names: Sequence[str]) -> bool:
        """Whether the file has everything behind these names, even if other parts are outdated."""
        try:
            kind, found = await self._files.read(self._files.path(self._resource))
        except EnvironmentFailure:
            return False
        return kind == self.kind and all(found.get(name) == edits[name] for name in names)

    def _known(self, devices: Sequence[Device], by_one: Mapping[str, Terms]) -> dict[str, _CdiDevice]:
        """The known edits of the devices that have not changed since they were rendered."""
        runner, known = self._backend.runner, {}
        for device in devices:
            unit = None if device.id in self._failures else self._units.get(device.id)
            if unit is not None and _current(unit, (device,), runner, by_one[device.id]):
                known[device.id] = unit
        return known

    def _single(self, devices: tuple[Device, ...], terms: Terms) -> _CdiDevice:
        return self._unit(devices, self._backend.ask(devices, terms), terms)

    def _by_one_token(self, device: str, terms: Terms) -> Terms:
        """The terms on which a container gets a device by one token."""
        part = self._share_of.get(device)
        return replace(terms, shares={} if part is None else {device: part})

    def _label(self, device: str, share: Fraction | None) -> str:
        """A device in the name of a set, with the share that the container has of it."""
        return device if share in (None, self._share_of.get(device)) else f"{device}*{share}"

    def _unit(self, devices: tuple[Device, ...], granted: Granted, terms: Terms) -> _CdiDevice:
        runner = self._backend.runner
        found = rendered(granted, runner.context.root)
        return _CdiDevice(devices, found.edits, runner, terms, found.seen)

    async def _look(self) -> None:
        """Finds out what is outdated, and which devices the names of an earlier run belong to."""
        async with self._writing:
            if self._adopted is None:
                await self._adopt()
            else:
                self._recognize()
        places = [
            (units, name, unit)
            for units in (self._units, self._sets)
            for name, unit in units.items()
            if unit.seen and not unit.outdated
        ]
        every = [unit.seen for _, _, unit in places]
        for number in await self._files.outdated(every, self._backend.runner):
            units, name, unit = places[number]
            if units.get(name) is unit:
                units[name] = replace(unit, outdated=True)

    def _recognize(self) -> None:
        """Finds the devices of names that an earlier run wrote: by their ids, and by what containers hold."""
        present = self._present() or {}
        for device in present if self._earlier else ():
            if (edits := self._earlier.pop(spec.device_name(device), None)) is not None:
                self._units.setdefault(device, _earlier((Device(device),), edits))
                self._recognized.add(device)
        unknown = {name for name, unit in self._sets.items() if not unit.devices}
        held: set[str] = set()
        for counts in self._holdings():
            shares = {name: self._share_of[name] * n for name, n in counts.items() if name in self._share_of}
            name = spec.set_name(self._label(device, shares.get(device)) for device in counts)
            held.add(name)
            known = name in self._sets or name in self._guessed or (len(counts) == 1 and not shares)
            if name in unknown or not known:
                devices = tuple(present.get(device, Device(device)) for device in counts)
                earlier = self._sets.get(name, _CdiDevice((), spec.withheld("not rendered yet")))
                self._sets[name] = replace(earlier, devices=devices, terms=Terms(shares=shares))
                self._guessed.add(name)
        self._guessed &= held

    def _holdings(self) -> Iterable[Counter[str]]:
        """What each container of an earlier run holds: its devices, each with the number of its tokens."""
        allocations = self._inventory.allocations
        found: dict[Holder, Counter[str]] = {}
        for token in sorted(allocations.tokens()):
            holder = allocations.leases.holder(token)
            if holder is not None and token not in self._set_of:
                devices = [device for _, device in sorted(allocations.devices_of(token))]
                found.setdefault(holder, Counter()).update(devices or [unit_of(token)])
        return found.values()

    def _present(self) -> Mapping[str, Device] | None:
        """The devices that the backend finds; ``None`` if it has not listed any yet."""
        scanner = self._backend.scanner
        return scanner.devices if scanner.listed else None

    async def _adopt(self) -> None:
        """Takes over what an earlier run wrote: its pods may still live.

        A name stays until its device is rendered again. A name whose devices are unknown (a set, a removed
        device) stays until no container holds anything of the resource. A file that cannot be read must not
        be overwritten.
        """
        found = await self._files.take_over(self._files.path(self._resource), self.kind)
        self._on_disk = found
        self._adopted = frozenset(filter(spec.is_set, found))
        self._sets = {name: _earlier((), found[name]) for name in sorted(self._adopted)} | self._sets
        rendered = set(map(spec.device_name, self._units))
        self._earlier = {n: e for n, e in found.items() if n not in self._adopted and n not in rendered}
        self._recognize()

    def _due(self) -> Iterator[tuple[str, tuple[Device, ...], Terms]]:
        """What must be rendered, and on which terms; with its name where that is a set.

        That is all of which a device, or the backend, has changed. New terms are for what no container has:
        a container may start again, and has to find what it was given.
        """
        runner, terms = self._backend.runner, self._backend.terms
        if not runner.started:
            return  # its options were changed; its predecessor's answers hold until its first look
        kept = self._kept()
        for name, device in self._described().items():
            unit, given = self._units.get(name), self._by_one_token(name, kept.get(name, terms))
            current = unit is not None and _current(unit, (device,), runner, given)
            if name in self._failures or not (current or self._was_tried(device)):
                yield "", (device,), given
        present = self._present() or self._wanted
        for set_name, unit in self._sets.items():
            now = tuple(present[device.id] for device in unit.devices if device.id in present)
            if len(now) < len(unit.devices):
                continue  # it gives nothing until all of them are back
            last = next((kept[device.id] for device in now if device.id in kept), terms)
            given = replace(last, shares=unit.terms.shares)
            if now and not _current(unit, now, runner, given):
                yield set_name, now, given

    def _described(self) -> dict[str, Device]:
        """The devices to render: first those that are to be listed, then others that the file names."""
        found = dict(self._wanted)
        if (present := self._present()) is not None:
            named = {*self._units, *self._withheld} & self._needed() | self._held_devices()
            found |= {name: present[name] for name in sorted(named - found.keys()) if name in present}
        return found

    def _was_tried(self, device: Device) -> bool:
        """Whether a device that is not to be listed failed recently: its backend may hang again."""
        last, at = self._tried.get(device.id, (None, 0.0))
        return last is device and device.id not in self._wanted and LOOP_CLOCK.time() - at < CHECK

    def _kept(self) -> dict[str, Terms]:
        """The terms with which containers got devices, by their ids; where several did, the last one's."""
        allocations, wanted = self._inventory.allocations, self._backend.runner.backend_class.ResourceOptions
        given = {token: terms for token, terms in self._terms_of.items() if allocations.reserved(token)}
        self._terms_of = given
        distinct: dict[tuple[int, int], tuple[Sequence[Key], Terms]] = {}
        leases = sorted(allocations.leases.held.values(), key=operator.attrgetter("number"))
        earlier = ((lease.got, lease.terms) for lease in leases if lease.terms is not None)
        latest = ((allocations.reserved(token), terms) for token, terms in given.items())
        for keys, terms in (*earlier, *latest):
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
        held = self._held_devices()
        hung = ""
        claimed: frozenset[str] | None = None
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
            if not reason:
                if set_name and spec.is_withheld(self._sets[set_name].edits) and self._is_needless(unit):
                    del self._sets[set_name]  # its file was lost, and it was never a set
                elif set_name:
                    self._sets[set_name] = unit
                else:
                    self._take({devices[0].id: unit})
                continue
            if claimed is None:
                claimed = claims_of((self._present() or {}).values())
            if set_name:
                self._doubt_set(set_name, devices, reason, claimed)
            else:
                self._fail(devices[0], reason, claimed, held=devices[0].id in held)

    def _is_needless(self, whole: _CdiDevice) -> bool:
        """Whether the names of single devices give a container the same."""
        single = {device.id: self._units[device.id] for device in whole.devices if device.id in self._units}
        return _adds_up(single, whole, len(whole.devices))

    def _take(self, units: Mapping[str, _CdiDevice]) -> None:
        self._units |= units
        for device in units:
            if self._failures.pop(device, None) is not None:
                log.info("CDI specification is possible again", resource=self._resource, device=device)
            self._withheld.pop(device, None)
            self._tried.pop(device, None)
            self._earlier.pop(spec.device_name(device), None)
            if device in self._wanted:
                self._recognized.discard(device)

    def _fail(self, device: Device, reason: str, claimed: Collection[str], *, held: bool) -> None:
        """Takes that a device cannot be rendered now.

        ``claimed`` are the claims of all devices that are present. ``held`` is whether a container may need
        what it was given, which stays if it is still the device's.
        """
        name = device.id
        if name in self._wanted:
            if self._failures.get(name) != reason:
                log.warning("no CDI specification", resource=self._resource, device=name, reason=reason)
            self._failures[name] = reason
        self._tried[name] = device, LOOP_CLOCK.time()
        known = self._units.get(name)
        needed = held or name not in self._wanted
        if needed and known is not None and _is_certain(known, (device,), claimed):
            return
        self._units.pop(name, None)
        if needed:
            self._withheld[name] = reason

    def _doubt_set(self, name: str, devices: Sequence[Device], reason: str, claimed: Collection[str]) -> None:
        """Takes that a set cannot be rendered now; the same as :meth:`_fail`."""
        unit = self._sets[name]
        if not _is_certain(unit, devices, claimed):
            self._sets[name] = replace(unit, edits=spec.withheld(reason), seen={}, outdated=True)

    def _content(self) -> dict[str, ContainerEdits]:
        """What the file should hold, by CDI name; drops what neither list nor plan nor a container has."""
        allocations = self._inventory.allocations
        if allocations.is_unused():
            self._recognized.clear()
        kept = self._needed()
        for known in (self._units, self._failures, self._withheld, self._tried):
            for device in [device for device in known if device not in kept]:
                del known[device]
        if allocations.is_unused():
            names = {spec.device_name(device) for device in kept}
            self._earlier = {name: edits for name, edits in self._earlier.items() if name in names}
            self._sets = {name: unit for name, unit in self._sets.items() if unit.devices}
            self._adopted = frozenset()
        held = allocations.tokens()
        self._set_of = {token: name for token, name in self._set_of.items() if token in held}
        adopted = self._adopted or frozenset()
        needed = {*self._set_of.values(), *adopted, *self._guessed}
        for name, unit in list(self._sets.items()):
            stays = name in adopted or name in self._guessed
            gone = not stays and any(device.id not in kept for device in unit.devices)
            if gone or (len(self._sets) > self._most_sets and name not in needed):
                del self._sets[name]
        content = {name: self._unless_gone(edits, (name,)) for name, edits in self._earlier.items()}
        content |= self._absent()
        content |= {spec.device_name(name): spec.withheld(reason) for name, reason in self._withheld.items()}
        content |= {
            spec.device_name(device): self._unless_gone(unit.edits, (device,))
            for device, unit in self._units.items()
        }
        content |= {name: self._of_set(unit) for name, unit in self._sets.items()}
        return {name: edits for name, edits in content.items() if edits}

    def _absent(self) -> dict[str, ContainerEdits]:
        """What the names give of ids that containers hold and no device has, or has no longer."""
        allocations, present = self._inventory.allocations, self._present()
        found: dict[str, ContainerEdits] = {}
        if present is None:
            return found
        for token in allocations.tokens():
            name = unit_of(token)
            if name in present or name == ALL:
                continue
            heirs = [device for _, device in sorted(allocations.devices_of(token)) if device in present]
            edits = self._earlier.get(spec.device_name(name), {})
            if len(heirs) == 1 and heirs[0] in self._units:
                found[spec.device_name(name)] = self._units[heirs[0]].edits
            elif heirs and is_own(
                recorded(edits) or {},
                claims_of(present[device] for device in heirs),
                claims_of(present.values()),
            ):
                found[spec.device_name(name)] = edits
            else:
                found[spec.device_name(name)] = spec.withheld(spec.gone([name]))
        return found

    def _unless_gone(self, edits: ContainerEdits, devices: Sequence[str]) -> ContainerEdits:
        """What a name gives while some of its devices may be gone."""
        present = self._present()
        if not edits or present is None:
            return edits
        gone = [device for device in devices if device not in present]
        return spec.withheld(spec.gone(gone)) if gone else edits

    def _of_set(self, unit: _CdiDevice) -> ContainerEdits:
        """What the name of a set gives; one of an earlier run may be of a container that no list names."""
        if unit.devices or not unit.outdated or not self._inventory.allocations.everything.known:
            return self._unless_gone(unit.edits, [device.id for device in unit.devices])
        return spec.withheld("its devices have changed, and no list names the container: delete the pod")

    def _needed(self) -> set[str]:
        """The devices that list, plan or a container have, or may have since an earlier run."""
        listed = self._inventory.listed()
        return {*self._wanted, *self._unhealthy, *listed, *self._held_devices(), *self._recognized}

    def _held_devices(self) -> set[str]:
        """The devices that containers have, also by tokens that have left the list."""
        return {device for _, device in self._inventory.allocations.held_devices()}

    async def _write(self) -> None:
        async with self._writing:
            if self._adopted is None:
                await self._adopt()
            content, text = self._content(), self._text
            file = self._files.path(self._resource)
            if not self._stopping:
                self._files.served.add(file)
            if content != self._on_disk or not text:
                text = spec.dumps(spec.document(self.kind, content)) if content else ""
            if text:
                await self._files.write(file, text)
            else:
                await self._files.remove(file)
            if self._file not in (None, file):
                self._files.served.discard(self._file)
                await self._files.remove(self._file)  # the directory was changed in the configuration
            self._write_failure.succeeded()
            self._file, self._text, self._on_disk, self.failure = file, text, content, ""


def _earlier(devices: tuple[Device, ...], edits: ContainerEdits) -> _CdiDevice:
    """What an earlier run wrote: it is rendered again as soon as its devices are known."""
    seen = recorded(edits)
    return _CdiDevice(devices, edits, seen=seen or {}, outdated=seen is None)


def _is_certain(unit: _CdiDevice, devices: Sequence[Device], claimed: Collection[str]) -> bool:
    """Whether what a unit gives is still its devices': unchanged, and claimed by no other device."""
    return not unit.outdated and is_own(unit.seen, claims_of(devices), claimed)


def _current(unit: _CdiDevice, devices: Sequence[Device], runner: BackendRunner, terms: Terms) -> bool:
    same = unit.runner is runner and unit.terms == terms and not unit.outdated
    return same and all(map(operator.is_, unit.devices, devices))


def _adds_up(single: Mapping[str, _CdiDevice], whole: _CdiDevice, devices: int) -> bool:
    """Whether a container that gets single devices has the same as one that gets them together."""
    if len(single) < devices:
        return False
    return adds_up([unit.edits for unit in single.values()], whole.edits)
