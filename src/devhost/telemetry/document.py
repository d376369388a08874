"""The status document: what ``devhost status`` shows. Its JSON has these names in camelCase.

Times are RFC 3339 in UTC (``2026-11-20T12:00:01Z``). A field with a default is left out of the JSON while it
is empty. A ``reason`` never names a pod: ``held_by`` are the containers and claims that it refers to. It is
empty if the names of pods are hidden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from devhost.backend.frozen import frozen
from devhost.backend.model import AnyHolder, ClaimHolder

from .metrics import ProblemKind


@frozen
class Reload:
    """The last time a configuration was read.

    A rejected one changed nothing; ``complaints`` are the errors.
    """

    at: str
    result: Literal["ok", "rejected"]
    complaints: Sequence[str]


@frozen
class CopyStatus:
    """The copy of the last accepted configuration, and when it was accepted."""

    file: str
    accepted_at: str


@frozen
class HostStatus:
    """The process. ``config`` is the file's path, ``generation`` counts the configurations that took effect.

    ``root`` is the directory that represents ``/``. ``config_digest`` is the SHA-256 of the content that took
    effect; empty if unknown.
    ``copy`` is the configuration in use if the file was refused at the start; else ``None``.
    """

    version: str
    pid: int
    started_at: str
    root: str
    config: str
    config_digest: str
    generation: int
    last_reload: Reload
    copy: CopyStatus | None


@frozen
class PodResourcesStatus:
    """Whether the kubelet reports who holds which device; while not ``known``, ``reason`` is why.

    ``listed`` is the time of its last answer.
    """

    socket: str
    known: bool
    reason: str
    listed: str | None


@frozen
class KubeletStatus:
    """The kubelet's device plugin directory, and whether ``kubelet.sock`` is in it."""

    dir: str
    socket: Literal["present", "absent"]
    pod_resources: PodResourcesStatus


@frozen(slots=True)
class HolderStatus:
    """The container or ResourceClaim that holds a device; a ``claim`` has neither pod nor container."""

    namespace: str
    pod: str
    container: str
    claim: str = ""


@frozen(slots=True)
class MemberStatus:
    """One of the devices that a resource hands out together (``of`` of ``share``)."""

    device: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    numa_nodes: Sequence[int]


@frozen(slots=True)
class DeviceStatus:
    """One device of a resource.

    ``id`` is its name for the kubelet, ``device`` the id of the backend (they differ for replicas), or
    ``all`` if it represents all devices of the resource. ``given`` are the backend's ids of what the
    container got with it; empty if unknown. ``since`` is the time of the last change of its health. It is
    ``allocated`` from Allocate, or from the kubelet's first report that it is held, until it is released.
    ``holder`` is ``None`` while the kubelet does not name it; if the kubelet stops answering, it is the last
    one that it named.
    """

    id: str
    device: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    since: str
    numa_nodes: Sequence[int]
    allocated: bool
    given: Sequence[str]
    holder: HolderStatus | None
    held_by: Sequence[HolderStatus] = ()


@frozen(slots=True)
class DepartedStatus:
    """A device that recently left the list of its resource: why, and when."""

    device: str
    reason: str
    at: str
    held_by: Sequence[HolderStatus] = ()


@frozen
class ResourceStatus:
    """One resource name.

    ``entry`` is its place in the configuration (``resources[2]``), ``socket`` the file name of its
    plugin server, ``last_error`` empty without errors. ``together`` are the devices behind each of its
    ``devices`` if all of them are handed out together; else it is empty. ``departed`` are devices that
    recently left the list, the newest first.
    """

    name: str
    backend: str
    entry: str
    capacity: int
    allocatable: int
    revision: int
    socket: str | None
    state: Literal["waiting", "registering", "registered", "displaced", "lost", "draining"]
    streams: int
    registrations: int
    last_registration: str | None
    last_error: str
    devices: Sequence[DeviceStatus]
    together: Sequence[MemberStatus]
    departed: Sequence[DepartedStatus]


@frozen(slots=True)
class RefusedDevice:
    """A device its backend reported in a form that cannot be used."""

    device: str
    reason: str


@frozen
class ProvisioningStatus:
    """Whether the hardware matches the options of a backend; ``reason`` is empty while it is ``ok``.

    ``waiting`` is not an error: a pod holds what must change, or the hardware is absent.
    """

    state: Literal["waiting", "ok", "failed"]
    reason: str
    since: str
    held_by: Sequence[HolderStatus] = ()


@frozen
class LabelsStatus:
    """The labels of one backend: their number in ``file``; ``reason`` is empty without errors."""

    file: str
    count: int
    reason: str


@frozen
class BackendStatus:
    """One backend; ``reason`` is empty while it is ok.

    One that is ``released`` has released its driver on request (``devhost release``). One that is ``not
    installed`` has only ``optional`` entries; ``reason`` is how to install it.

    ``provisioning`` is ``None`` for a backend that does not change hardware, ``labels`` for one without
    labels.
    """

    name: str
    state: Literal["ok", "degraded", "starting", "released", "not installed"]
    reason: str
    since: str
    devices: int
    last_discovery: str | None
    last_discovery_seconds: float | None
    refused_devices: Sequence[RefusedDevice]
    provisioning: ProvisioningStatus | None
    labels: LabelsStatus | None


@frozen
class ObserverStatus:
    """One observer; ``reason`` is empty while it is ok.

    ``calls`` and ``failures`` count calls of its hooks, ``waiting`` and ``dropped`` count events.
    """

    name: str
    origin: str
    version: str
    hooks: Sequence[str]
    state: Literal["ok", "paused"]
    reason: str
    since: str
    calls: int
    failures: int
    waiting: int
    dropped: int


@frozen(slots=True)
class HeldStatus:
    """A token that a container holds and that is in no list, and why.

    ``devices`` are the ids of its devices, as far as known. ``holder`` is ``None`` while the kubelet does not
    name it.
    """

    resource: str
    id: str
    devices: Sequence[str]
    holder: HolderStatus | None
    reason: str
    held_by: Sequence[HolderStatus] = ()


@frozen
class EntryStatus:
    """One entry of the file.

    ``entry`` is its place (``resources[2]``), ``name`` may be a template, ``resources`` are the names of its
    resources. ``state`` is ``served`` for one with devices, ``waiting`` until its backend has listed its
    devices, ``moving`` while they change sides, ``absent`` for an optional one without hardware on the node,
    else ``none``. ``reason`` is why
    it has no devices, or another number than the file expects; empty if all is as expected. ``remark`` names
    devices that the entry just misses. ``cordoned`` is what the file expects and is cordoned; empty if the
    other devices are enough.
    """

    entry: str
    name: str
    backend: str
    optional: bool
    devices: int
    resources: Sequence[str]
    state: Literal["served", "waiting", "moving", "none", "absent"]
    reason: str
    remark: str
    cordoned: str
    held_by: Sequence[HolderStatus] = ()


@frozen(slots=True)
class PlanRefusal:
    """A device that an entry selects but does not get, and why.

    ``kind`` is the reason's short name, as in the metric ``devhost_plan_refusals``.
    """

    backend: str
    device: str
    kind: str
    reason: str
    held_by: Sequence[HolderStatus] = ()


@frozen
class ProblemStatus:
    """A problem that exists now.

    ``subject`` is what has the problem: a file, a directory, a resource, a backend, ``RESOURCE DEVICE`` or
    ``BACKEND DEVICE``. ``reason`` is the same text as in the log, in metrics and elsewhere in this document.
    ``since`` is ``None`` if unknown. ``count`` is the number of problems that it represents: 1, or more if
    ``reason`` only gives the number of further problems.
    """

    kind: ProblemKind
    subject: str
    reason: str
    since: str | None
    count: int
    held_by: Sequence[HolderStatus] = ()


@frozen(slots=True)
class JudgedStatus:
    """A device that a verdict is about; both are ``*`` for all devices of the node."""

    backend: str
    device: str


@frozen
class VerdictStatus:
    """A verdict in force: the name of its ``file``, and the content.

    ``since`` is when the file was written. ``devices`` are those that it is about and that exist.
    """

    file: str
    kind: Literal["cordon", "unhealthy"]
    by: str
    reason: str
    since: str
    until: str | None
    devices: Sequence[JudgedStatus]


@frozen(slots=True)
class CapacityStatus:
    """What a device has of a capacity that claims share, what they use of it, and the rest, as quantities."""

    name: str
    total: str
    used: str
    free: str


@frozen(slots=True)
class CounterStatus:
    """A shared counter of a pool: its set, how much of it there is, what held devices take, and the rest."""

    set: str
    name: str
    total: int
    used: int
    free: int


@frozen(slots=True)
class ConsumedStatus:
    """What a device takes of a shared counter."""

    set: str
    name: str
    amount: int


@frozen(kw_only=True, slots=True)
class DraDeviceStatus:
    """One device that is offered through DRA.

    ``device`` is the id of the backend, ``name`` its name in the pool, ``slice`` the name of its
    ResourceSlice; empty until it is published. ``replicas`` is how many claims may use it at once. ``claims``
    are those that hold it. ``members`` are the ids of the devices of a unit, ``capacity`` is what claims
    share by amount, ``consumes`` what the device takes of the pool's shared counters.
    """

    device: str
    members: Sequence[str] = ()
    name: str
    slice: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    replicas: int
    numa_nodes: Sequence[int]
    claims: Sequence[HolderStatus]
    capacity: Sequence[CapacityStatus] = ()
    consumes: Sequence[ConsumedStatus] = ()
    held_by: Sequence[HolderStatus] = ()


@frozen
class DraPoolStatus:
    """The devices of one resource with ``serve: dra``.

    ``entry`` is its place in the configuration (``resources[2]``), ``pool`` the name of its pool,
    ``device_class`` that of its DeviceClass, ``extended_name`` whether pods may request it by its name.
    ``driver`` is its DRA driver if there are several.
    """

    resource: str
    backend: str
    entry: str
    pool: str
    device_class: str
    extended_name: bool
    devices: Sequence[DraDeviceStatus]
    counters: Sequence[CounterStatus] = ()
    driver: str = ""


@frozen(slots=True)
class ClaimedDeviceStatus:
    """A device of a claim: the request that it is for, its names at the API server, and for the backend."""

    request: str
    pool: str
    name: str
    backend: str
    device: str


@frozen
class DraClaimStatus:
    """A prepared ResourceClaim: its CDI file, its devices, and the containers known to use it.

    If there are several drivers, a claim has one of these for each ``driver`` that has prepared it.
    """

    namespace: str
    name: str
    uid: str
    file: str
    devices: Sequence[ClaimedDeviceStatus]
    containers: Sequence[HolderStatus]
    driver: str = ""


@frozen
class MovingStatus:
    """A device that changes sides, and what it waits for; ``serve`` is the side that it leaves."""

    backend: str
    device: str
    resource: str
    serve: Literal["plugin", "dra"]
    reason: str
    held_by: Sequence[HolderStatus] = ()


@frozen(slots=True)
class MoveStatus:
    """The ``devices`` that leave one resource; ``serve`` is its side.

    ``reason`` is what most of them wait for, ``since`` the time at which the move began, or
    one of its devices moved. ``stuck`` is whether this is a problem.
    """

    resource: str
    serve: Literal["plugin", "dra"]
    devices: Sequence[str]
    reason: str
    since: str
    stuck: bool
    held_by: Sequence[HolderStatus] = ()


@frozen(slots=True)
class LeftOutStatus:
    """An attribute that is not published, or a device, if ``attribute`` is empty; and why."""

    resource: str
    device: str
    attribute: str
    reason: str


@frozen
class DriverStatus:
    """One of several DRA drivers; see :class:`DraStatus`."""

    driver: str
    state: Literal["registered", "waiting"]
    reason: str
    slices: int
    writes: int
    synced_at: str | None
    error: str
    dropped_fields: Sequence[str]


@frozen
class DraStatus:
    """The DRA driver.

    If there are several, ``drivers`` has each of them, ``driver`` is the first one, and the other keys are
    for all of them together: the state is ``registered`` if each of them is.

    ``state`` is ``registered`` while the kubelet uses the driver, else ``waiting``; ``reason`` is why, if the
    kubelet or the system gave a reason. ``slices`` is the number of ResourceSlices, ``writes`` how often one
    was written or deleted, ``synced_at`` when they last agreed with the devices, ``error`` why they do not.
    ``dropped_fields`` are those that the API server does not keep, because it lacks a feature.
    """

    driver: str
    node: str
    state: Literal["registered", "waiting"]
    reason: str
    slices: int
    writes: int
    synced_at: str | None
    error: str
    dropped_fields: Sequence[str]
    left_out: Sequence[LeftOutStatus]
    pools: Sequence[DraPoolStatus]
    claims: Sequence[DraClaimStatus]
    moving: Sequence[MovingStatus]
    moves: Sequence[MoveStatus]
    drivers: Sequence[DriverStatus] = ()


def drivers_of(dra: DraStatus) -> Sequence[DraStatus | DriverStatus]:
    return dra.drivers or (dra,)


def driver_of(dra: DraStatus, pool: DraPoolStatus) -> DraStatus | DriverStatus:
    name = pool.driver or dra.driver
    return next((one for one in drivers_of(dra) if one.driver == name), dra)


@frozen
class StatusDocument:
    """Everything at one moment; ``dra`` is ``None`` if no resource has ``serve: dra``."""

    devhost: HostStatus
    kubelet: KubeletStatus
    entries: Sequence[EntryStatus]
    resources: Sequence[ResourceStatus]
    held: Sequence[HeldStatus]
    backends: Sequence[BackendStatus]
    observers: Sequence[ObserverStatus]
    verdicts: Sequence[VerdictStatus]
    refusals: Sequence[PlanRefusal]
    dra: DraStatus | None
    problems: Sequence[ProblemStatus]


StatusSource = Callable[[], StatusDocument | Callable[[], StatusDocument]]
"""Describes the host now. It is called in the event loop, so it only collects known values; a document that
takes long to make is made by the function that it returns, see :func:`complete`."""


def complete(found: StatusDocument | Callable[[], StatusDocument]) -> StatusDocument:
    """The document that a :data:`StatusSource` returns. This may take long: call it on a thread."""
    return found() if callable(found) else found


def held_by(holders: Sequence[AnyHolder]) -> Sequence[HolderStatus]:
    """Containers and claims in the form of the document."""
    return tuple(map(_named, holders))


def holder_status(holder: AnyHolder | None) -> HolderStatus | None:
    """A container or a claim in the form of the document."""
    return _named(holder) if holder else None


def _named(holder: AnyHolder) -> HolderStatus:
    if isinstance(holder, ClaimHolder):
        return HolderStatus(holder.namespace, pod="", container="", claim=holder.name)
    return HolderStatus(holder.namespace, holder.pod, holder.container)


class Form(NamedTuple):
    """How a class of the document is written.

    ``keys`` are those of its fields, ``optional`` those that are left out while empty; ``values`` gets all.
    """

    keys: Mapping[str, str]
    optional: Sequence[str]
    values: Callable[[object], tuple[object, ...]]


@cache
def form(kind: Any) -> Form:
    """The form of a class of the document. These have at least two fields."""
    keys = {one.name: re.sub("_(.)", lambda found: found[1].upper(), one.name) for one in fields(kind)}
    optional = [keys[one.name] for one in fields(kind) if one.default is not MISSING]
    return Form(keys, optional, attrgetter(*keys))


def members(value: Any) -> dict[str, object]:
    """A value of the document as a JSON object, for ``default`` of ``json.dumps``."""
    keys, optional, values = form(value.__class__)
    made = dict(zip(keys.values(), values(value), strict=False))
    for key in optional:
        if not made[key]:
            del made[key]
    return made


_NAMES: Mapping[str, object] = {"holder": None, "held_by": (), "claims": ()}
"""The fields that name pods, claims and containers, and what hides them."""


def without_holders(document: StatusDocument) -> StatusDocument:
    """The document without the names of pods, claims and containers (``devhost run --hide-pods``)."""
    hidden: StatusDocument = _unnamed(document)
    return hidden


def _unnamed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [*map(_unnamed, value)]
    if not is_dataclass(value):
        return value
    kind: Any = value.__class__
    every = ((name, getattr(value, name)) for name in form(kind).keys)
    return kind(**{name: _NAMES[name] if name in _NAMES else _unnamed(member) for name, member in every})


_PIECE = 100
"""Devices encoded at a time, in about 0.3 ms. Python's encoder holds the interpreter's lock meanwhile."""

# without the search for circles, which takes a tenth of the time
_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=members).encode


def json_line(value: object) -> bytes:
    """The value as JSON without spaces, and a line end.

    It is encoded in small pieces, so that a thread that does this does not delay others.
    """
    return ("".join(_pieces(value, 2)) + "\n").encode()


def _pieces(value: object, depth: int) -> Iterator[str]:
    """Encodes objects and lists piece by piece, down to the long lists: ``resources[].devices``."""
    if is_dataclass(value):
        value = members(value)
    if isinstance(value, dict) and value:
        before = "{"
        for key, member in value.items():
            yield f"{before}{_encoded(key)}:"
            yield from _pieces(member, depth)
            before = ","
        yield "}"
    elif isinstance(value, list | tuple) and value and depth:
        before = "["
        for start in range(0, len(value), _PIECE):
            yield before
            few = value[start : start + _PIECE]
            if depth > 1:
                for n, member in enumerate(few):
                    yield "," if n else ""
                    yield from _pieces(member, depth - 1)
            else:
                yield _encoded(few)[1:-1]
            before = ","
        yield "]"
    else:
        yield _encoded(value)
