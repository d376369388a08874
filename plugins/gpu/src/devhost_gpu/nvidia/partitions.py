"""MIG instances on demand (``mig: dynamic``): what GPUs can be divided into, and what devhost created.

Each place where an instance of a profile fits is a device, whether the instance exists or not. It claims its
memory slices, so devices that overlap exclude each other. An instance is created when a claim gets its
device, and destroyed once no claim holds it.

A file in ``/run`` records what devhost created, and is written before: a crash at any moment leaves no
instance that devhost does not know as its own. An instance that is not in the record is never changed, nor
one whose UUID differs from the recorded one: another program has replaced it. A reboot removes the file and
the instances; the file of another boot is ignored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from devhost.backend import AllocationError, Context, Health, claim, unhealthy
from devhost.backend.backoff import Backoff
from devhost.backend.errors import DAMAGED, BackendError, EnvironmentFailure
from devhost.backend.files import Fingerprint, fingerprint, replace_file
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import prefix_of, read_line
from devhost.backend.threads import start
from devhost.backend.trusted import content
from devhost_gpu.attributes import ENGINES, MIG
from devhost_gpu.discovery import NVIDIA
from devhost_gpu.environment import Environment
from devhost_gpu.nvml import reports
from devhost_gpu.nvml.client import NvmlClient
from devhost_gpu.nvml.process import ErrorReply, NotAsked
from devhost_gpu.nvml.reports import GpuInstance, Made, Placement, Profile
from devhost_gpu.vendor import CardOf, device

from .cards import (
    MIG_RECORD,
    GpuState,
    NvidiaCard,
    NvidiaFacts,
    common_claims,
    engines_of,
    part_facts,
    shared_attributes,
    with_instance,
)

FILE = MIG_RECORD
BOOT = "/proc/sys/kernel/random/boot_id"
VERSION = 1
"""Of the file. A file of another version is ignored."""

LIMIT = 1 << 20
"""Bytes of the file that are read; 16 GPUs with seven instances each have less than 20 000."""

ON_DEMAND = "it is created for a claim: entries with serve: dra and dra.counters offer it"

LOST = "its MIG instance no longer exists (delete the pods that hold it)"
"""Why a place that a claim holds is Unhealthy: a reset of the GPU or an administrator has destroyed it."""

Capabilities = Callable[[int, int], tuple[int, ...]]


class GpuPlacement(NamedTuple):
    """A GPU, by its UUID, and the placement of a GPU instance in it."""

    gpu: str
    profile: int
    start: int
    size: int
    name: str

    @classmethod
    def of(cls, gpu: str, at: Placement) -> GpuPlacement:
        return cls(gpu, at.profile, at.start, at.size, at.name)

    @property
    def at(self) -> Placement:
        return Placement(self.profile, self.start, self.size, self.name)

    @property
    def device(self) -> str:
        """The id of its device, a DNS label of 63 characters at most: ``gpu-…-1g10gb-me-0``."""
        name = self.name.replace("-", "-no-").replace("+", "-").replace(".", "")
        return f"{self.gpu.lower()}-{name}-{self.start}"

    def is_in(self, held: Collection[str] | None) -> bool:
        """Whether a claim has it, by what containers use; false if that is unknown."""
        return held is not None and claim.device("gpu", self.device) in held

    def overlaps(self, other: GpuPlacement) -> bool:
        """Whether both take a memory slice of one GPU."""
        return self.gpu == other.gpu and self.at.overlaps(other.at)

    def __str__(self) -> str:
        return f"MIG instance {self.name} at memory slice {self.start} of {self.gpu}"


class Record:
    """The file with the instances that devhost created, or was about to create.

    It has their places, and the UUIDs of those that are known to exist.
    """

    def __init__(self, root: Path) -> None:
        self._prefix = prefix_of(root)
        self._path = Path(self._prefix + FILE)

    @property
    def identity(self) -> Fingerprint:
        """Identifies what the file contains."""
        return fingerprint(self._path)

    def read(self) -> Mapping[GpuPlacement, str]:
        """The places with the UUIDs of MIG devices; an empty one is not known.

        There are none if the file is broken, of another version or boot, or others can write it.
        """
        try:
            document = json.loads(content(self._path, LIMIT))
            if document["version"] != VERSION or document["boot"] != self._boot():
                return {}
            uuids = dict(document.get("uuids", {}))
            places = (
                GpuPlacement(str(gpu), int(profile), int(start), int(size), str(name))
                for gpu, profile, start, size, name in document["made"]
            )
            return {place: str(uuids.get(place.device, "")) for place in places}
        except (OSError, EnvironmentFailure, *DAMAGED):
            return {}

    def write(self, made: Mapping[GpuPlacement, str]) -> None:
        """Replaces the record; removes the file if it is empty.

        Raises:
            BackendError: the file cannot be written.
        """
        uuids = {place.device: uuid for place, uuid in sorted(made.items()) if uuid}
        document = {"version": VERSION, "boot": self._boot(), "made": sorted(made), "uuids": uuids}
        try:
            if not document["made"]:
                self._path.unlink(missing_ok=True)
                return
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = json.dumps(document, indent=1).encode() + b"\n"
            replace_file(self._path, data, f".{self._path.stem}-", 0o600)
        except OSError as error:
            reason = f"cannot write {FILE}: {error.strerror} (devhost creates no MIG instance without it)"
            raise BackendError(reason) from error

    def _boot(self) -> str:
        return read_line(f"{self._prefix}{BOOT}")


@frozen
class _Own:
    """An instance that devhost created, if ``made``, or may have created before it was interrupted.

    ``since`` is when that was, in seconds of the monotonic clock. ``uuid`` is that of its MIG device; empty
    if it is not known.
    """

    since: float
    made: Made | None = None
    uuid: str = ""

    def is_at(self, instance: GpuInstance, seen: float) -> bool:
        """Whether it is the instance that was seen at its place, not before this time; else it is gone.

        One without MIG devices may be incomplete, because devhost was interrupted.
        """
        return seen <= self.since or not (self.uuid and instance.uuids) or self.uuid in instance.uuids


@frozen
class _Listed:
    """How a GPU can be divided and is, not before ``since``; ``foreign`` is what devhost did not create."""

    gpu: str
    since: float
    found: reports.Partitions
    foreign: Mapping[GpuPlacement, GpuInstance]


class _Stuck(NamedTuple):
    """Why an instance that no claim holds could not be destroyed, and when to try again."""

    reason: str
    again: float
    backoff: Backoff


class Partitions:
    """The instances of all GPUs with MIG on.

    ``context`` is for the record, the log and what claims hold. ``changed`` requests a scan, on any thread.
    """

    def __init__(
        self,
        context: Context,
        client: NvmlClient,
        environment: Environment,
        changed: Callable[[], None],
    ) -> None:
        self._context = context
        self._client = client
        self._timings, self._clock = environment.timings, environment.clock
        self._changed = changed
        self._record = Record(context.root)
        self._changing = threading.Lock()
        """Held while instances are created or destroyed."""
        self._settling: threading.Thread | None = None
        self._leaving: GpuPlacement | None = None
        """The one that is being destroyed because no claim holds it."""
        # Replaced whole, never changed: scans read them on another thread.
        self._recorded = self._record.identity
        self._own: Mapping[GpuPlacement, _Own] = {
            place: _Own(-1.0, uuid=uuid) for place, uuid in self._record.read().items()
        }
        self._stuck: Mapping[GpuPlacement, _Stuck] = {}
        self._lost: frozenset[GpuPlacement] = frozenset()
        """Those that claims have, and whose instances have disappeared."""
        self._listed: Mapping[str, _Listed] = {}
        self._problems: Mapping[str, str] = {}

    # What there is

    def scan(self, gpus: Mapping[str, str], off: Collection[str] = ()) -> None:
        """Reads how GPUs are divided, given the UUIDs of those with MIG on by PCI address.

        Those whose MIG is ``off`` have lost their instances: what is there later was created by others.
        """
        if any(one.gpu in off for one in self._own):
            self._forget(off)
        if not gpus:
            self._listed, self._problems = {}, {}
            return
        known = {at: one for at, one in self._listed.items() if gpus.get(at) == one.gpu}
        problems = dict.fromkeys(gpus.keys() - known.keys(), "NVML has not answered yet")
        before = self._own
        try:
            reply = self._client.ask("placements", self._timings.answer, {})
        except BackendError as error:
            self._listed, self._problems = known, dict.fromkeys(problems, error.message)
            return
        if self._changing.acquire(blocking=False):  # else this object is the one that writes
            try:
                self._follow_record()  # after the answer, so that it has what others have just created
            finally:
                self._changing.release()
        for address, answer in reply.content.items():
            if address not in gpus:
                continue
            if failure := answer.get("error"):
                problems[address] = str(failure["text"])
                continue
            gpu, since = gpus[address], reply.since - float(answer.get("age", 0.0))
            found = reports.partitions(answer)
            places = {GpuPlacement.of(gpu, one.placement): one for one in found.instances}
            foreign = {
                place: one
                for place, one in places.items()  # one may have been created or destroyed meanwhile
                if not any(place in own and own[place].is_at(one, since) for own in (before, self._own))
            }
            known[address] = _Listed(gpu, since, found, foreign)
            problems.pop(address, None)
        self._listed, self._problems = known, problems
        self._forget()

    def why_whole_is_withheld(self, address: str) -> str:
        """Why a GPU with MIG on is not offered as a whole."""
        if problem := self._problems.get(address):
            return f"MIG is on, but its profiles cannot be read: {problem}"
        return "MIG is on: its partitions are offered instead"

    def others(self, address: str) -> Mapping[int, str]:
        """The ids of the GPU instances that are offered as they are, and why not; empty if they are.

        These are not in the record. If it was lost, one may be that of a claim.
        """
        listed, held = self._listed.get(address), self._context.held()
        why = "it may be the instance of a claim, which got "
        return {
            one.gi: f"{why}{place.device}" if place.is_in(held) else ""
            for place, one in (listed.foreign if listed else {}).items()
        }

    def cards(
        self, state: GpuState, health: Callable[..., Health], capabilities: Capabilities, root: str
    ) -> Iterator[NvidiaCard]:
        """The card of every place in a GPU; the largest first, so that the whole GPU is the first.

        ``health`` returns that of the GPU, or of the instance with these ids, ``capabilities`` the minors of
        the capability nodes of an instance. ``root`` is the prefix of its nodes on the host.
        """
        listed = self._listed.get(state.adapter.address)
        if listed is None or state.gpu is None:
            return
        profiles = {one.profile: one for one in listed.found.profiles}
        free = _total(listed.found.profiles)
        for one in listed.foreign:
            for name, amount in _amounts(profiles[one.profile]).items():
                free[name] -= amount
        scarce = {name for name, amount in _total(listed.found.profiles).items() if amount == 1}
        present_at = {GpuPlacement.of(listed.gpu, one.placement): one.gi for one in listed.found.instances}
        for profile in sorted(listed.found.profiles, key=lambda one: (-one.slices, -one.memory, one.name)):
            amounts = _amounts(profile)
            for at in profile.placements:
                place = GpuPlacement.of(listed.gpu, at)
                taken = next((one for one in listed.foreign if one.overlaps(place)), None)
                lacking = [name for name, amount in amounts.items() if amount > free[name]]
                why = (
                    _taken(taken)
                    if taken
                    else f"the rest of the GPU has no free {lacking[0]}"
                    if lacking
                    else ""
                )
                facts = self._facts(state, place, present_at, capabilities)
                sound = health(facts.instance)
                stuck = next((one.reason for of, one in self._stuck.items() if of.overlaps(place)), "")
                stuck = LOST if place in self._lost else stuck
                parts = [f"memory-slice-{n}" for n in range(at.start, at.start + at.size)]
                parts += sorted(scarce & amounts.keys())
                attributes = {
                    **shared_attributes(state),
                    "kind": MIG,
                    "memory": profile.memory,
                    "profile": profile.name,
                    "parent": state.uuid,
                    **engines_of(self._context, profile),
                }
                made = device(
                    state.adapter,
                    attributes,
                    unhealthy(stuck) if stuck and sound else sound,
                    name=place.device,
                    claims=frozenset(claim.part(f"{listed.gpu}#{part}") for part in parts),
                    part_of=common_claims(state, root),
                    withheld=why or ON_DEMAND,
                    divided=not why,
                    counters={name: amount for name, amount in free.items() if amount > 0},
                    consumes=amounts,
                )
                yield CardOf(made, NVIDIA, facts)

    def _facts(
        self,
        state: GpuState,
        place: GpuPlacement,
        present_at: Mapping[GpuPlacement, int],
        capabilities: Capabilities,
    ) -> NvidiaFacts:
        facts = part_facts(state, placement=place.at)
        listed = self._listed[state.adapter.address]
        gi = present_at.get(place) if place in self._own and place not in listed.foreign else None
        for one in state.gpu.instances if state.gpu else ():
            if one.gi == gi:
                return with_instance(facts, state, one, capabilities)
        return facts

    def _forget(self, off: Collection[str] = ()) -> None:
        """Removes instances from the record that exist no longer: others have destroyed them.

        While it is unknown what claims hold, another devhost may be creating them.
        """
        if not self._own or self._context.held() is None or not self._changing.acquire(blocking=False):
            return  # the next scan does it
        try:
            self._follow_record()
            listed = {one.gpu: one for one in self._listed.values()}
            gone = {
                place
                for place, own in self._own.items()
                if place.gpu in off
                or (
                    (seen := listed.get(place.gpu)) is not None
                    and own.since < seen.since
                    and not any(
                        GpuPlacement.of(place.gpu, one.placement) == place and own.is_at(one, seen.since)
                        for one in seen.found.instances
                    )
                )
            }
            if gone:
                self._lost |= {place for place in gone if place.is_in(self._context.held())}
                self._keep({place: own for place, own in self._own.items() if place not in gone})
        except BackendError as error:
            self._context.log.warning("%s", error.message)
        finally:
            self._changing.release()

    # What claims need

    def ensure(self, facts: NvidiaFacts, state: GpuState, capabilities: Capabilities) -> NvidiaFacts:
        """The facts of a place with its instance, which is created if it does not exist; blocks.

        An own instance in its place that no claim holds any longer is destroyed before. Raises
        ``AllocationError`` if it cannot be created; the reason is one line.
        """
        assert facts.placement is not None
        place = GpuPlacement.of(facts.gpu_uuid, facts.placement)
        is_leaving = place == self._leaving  # read first, see _destroy_unheld()
        known = self._own.get(place)
        if known is not None and not is_leaving and place not in self._stuck:
            if known.made is not None:
                return with_instance(facts, state, known.made, capabilities)
            if facts.instance is not None:
                return facts
        held = self._context.held()
        if held is not None and not place.is_in(held):
            raise AllocationError(f"{place.device}: it does not exist (admin access does not create it)")
        until = self._clock() + self._timings.instances
        if not self._changing.acquire(timeout=self._timings.instances / 2):  # the rest is for NVML
            raise AllocationError(f"{place.device}: another MIG instance is being created or destroyed")
        try:
            self._follow_record()
            with self._client.series(facts.address, self._timings.instances):
                made = self._create(place, facts.address, until)
        except AllocationError:
            raise
        except BackendError as error:
            self._changed()  # what is there now is decided before others create something
            raise AllocationError(f"{place.device}: {error.message}") from None
        finally:
            self._changing.release()
        self._context.log.info("created %s: %s", place, made.uuid)
        self._changed()
        return with_instance(facts, state, made, capabilities)

    def _create(self, place: GpuPlacement, address: str, until: float) -> Made:
        for other in [one for one in self._own if one.overlaps(place)]:
            if other != place:
                held = self._context.held()
                if held is None or other.is_in(held):
                    raise BackendError(f"a claim may still use the {other}")
            if other != place or place in self._stuck:
                self._destroy(other, address, until)
        listed = self._listed.get(address)
        for other in listed.foreign if listed else ():
            if other.overlaps(place):
                raise BackendError(_taken(other))
        before, known = self._own, self._own.get(place)
        uuid = known.uuid if known else ""
        self._keep({**before, place: _Own(self._clock(), uuid=uuid)})
        try:
            made = self._client.create(
                address, place.at, until - self._clock(), resume=known is not None, uuid=uuid
            )
        except NotAsked:
            self._keep(before)
            raise
        except ErrorReply as error:
            if error.code != reports.UNMADE:
                raise
            self._keep({one: own for one, own in before.items() if one != place})
            if not uuid:
                raise
            return self._create(place, address, until)  # the one that was there is gone
        self._own = {**self._own, place: _Own(self._clock(), made, made.uuid)}
        self._lost -= {place}
        try:
            self._keep(self._own)
        except BackendError as error:  # the place is recorded, which is enough to destroy the instance
            self._context.log.warning("%s", error.message)
        return made

    # What claims no longer need

    def settle(self) -> None:
        """Begins to destroy instances that no claim holds, if there are some; does not block."""
        held = self._context.held()
        if held is not None and (over := {place for place in self._lost if not place.is_in(held)}):
            self._lost -= over
            self._changed()
        busy = self._settling is not None and self._settling.is_alive()
        if busy or not self._own or not self._unheld():
            return
        try:
            self._settling = start("mig-instances", self._destroy_unheld)
        except EnvironmentFailure as error:
            self._context.log.warning("MIG instances are not destroyed: %s", error.message)

    def _unheld(self) -> list[GpuPlacement]:
        """Own instances that no claim holds, and that it is time to destroy."""
        held = self._context.held()
        if held is None:
            return []
        now = self._clock()
        return [
            place
            for place, own in self._own.items()
            if not place.is_in(held)
            and (place not in self._stuck or self._stuck[place].again <= now)
            and (own.made is None or now >= own.since + self._timings.kept)
        ]

    def _destroy_unheld(self) -> None:
        for place in self._unheld():
            with self._changing:  # between two of them, one may be created
                # before it is looked up what claims hold: one that gets it now either sees this, or is seen
                self._leaving = place
                try:
                    self._follow_record()
                    address = next((at for at, one in self._listed.items() if one.gpu == place.gpu), "")
                    if not address or place not in self._unheld():
                        continue
                    self._destroy(place, address, self._clock() + self._timings.instances)
                except BackendError as error:
                    before = self._stuck.get(place)
                    if before is None or before.reason != error.message:
                        self._context.log.warning("%s", error.message)
                    backoff = (
                        before.backoff
                        if before
                        else Backoff(self._timings.first_delay, self._timings.last_delay)
                    )
                    again = self._clock() + backoff.delay()
                    self._stuck = {**self._stuck, place: _Stuck(error.message, again, backoff)}
                finally:
                    self._leaving = None
            self._changed()

    def _destroy(self, place: GpuPlacement, address: str, until: float) -> None:
        """Destroys an own instance, if it exists.

        Raises:
            BackendError: it cannot be destroyed, or the record cannot be written.
        """
        uuid = self._own[place].uuid if place in self._own else ""
        destroyed = self._client.destroy(address, place.at, until - self._clock(), uuid=uuid)
        self._stuck = {one: stuck for one, stuck in self._stuck.items() if one != place}
        self._keep({one: own for one, own in self._own.items() if one != place})
        if destroyed:
            self._context.log.info("destroyed %s", place)

    def _keep(self, own: Mapping[GpuPlacement, _Own]) -> None:
        """Records which instances are devhost's, and then knows it."""
        self._record.write({place: one.uuid for place, one in own.items()})
        self._recorded = self._record.identity
        self._own = own

    def _follow_record(self) -> None:
        """Takes what the devhost before this one, or an earlier object, has recorded in the meantime."""
        if (identity := self._record.identity) != self._recorded:
            before, now = self._own, self._clock()
            self._own = {
                place: before[place]
                if place in before and before[place].uuid == uuid
                else _Own(now, uuid=uuid)
                for place, uuid in self._record.read().items()
            }
            self._recorded = identity


def _taken(place: GpuPlacement) -> str:
    where = f"{place.name} at memory slice {place.start}"
    return f"a MIG instance {where}, which devhost did not create, is in its place"


def _amounts(profile: Profile) -> dict[str, int]:
    """What an instance takes of its GPU, with the names of counters that NVIDIA's DRA driver has."""
    found = {name.replace("_", "-"): getattr(profile, name) for name in ENGINES.values()}
    found["memory"] = profile.memory << 20
    return {name: amount for name, amount in found.items() if amount > 0}


def _total(profiles: Sequence[Profile]) -> dict[str, int]:
    """What a GPU has: the most that any profile has."""
    total: dict[str, int] = {}
    for profile in profiles:
        for name, amount in _amounts(profile).items():
            total[name] = max(amount, total.get(name, 0))
    return total
