"""The status document: what ``devhost status`` shows, as JSON with these keys.

Times are RFC 3339 in UTC (``2026-11-20T12:00:01Z``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypedDict, TypeVar, cast

from devhost.backend.model import AnyHolder, ClaimHolder

from .problem_kinds import ProblemKind


class Reload(TypedDict):
    """The last time a configuration was read.

    A rejected one changed nothing; ``complaints`` are the errors.
    """

    at: str
    result: Literal["ok", "rejected"]
    complaints: list[str]


class CopyStatus(TypedDict):
    """The copy of the last accepted configuration, and when it was accepted."""

    file: str
    acceptedAt: str


class HostStatus(TypedDict):
    """The process. ``config`` is the file's path, ``generation`` counts the configurations that took effect.

    ``root`` is the directory that represents ``/``. ``configDigest`` is the SHA-256 of the content that took
    effect; empty if unknown.
    ``copy`` is the configuration in use if the file was refused at the start; else ``None``.
    """

    version: str
    pid: int
    startedAt: str
    root: str
    config: str
    configDigest: str
    generation: int
    lastReload: Reload
    copy: CopyStatus | None


class PodResourcesStatus(TypedDict):
    """Whether the kubelet reports who holds which device; while not ``known``, ``reason`` is why.

    ``listed`` is the time of its last answer.
    """

    socket: str
    known: bool
    reason: str
    listed: str | None


class KubeletStatus(TypedDict):
    """The kubelet's device plugin directory, and whether ``kubelet.sock`` is in it."""

    dir: str
    socket: Literal["present", "absent"]
    podResources: PodResourcesStatus


class ClaimName(TypedDict, total=False):
    """The ResourceClaim that holds a device, if it is not a container."""

    claim: str


class HolderStatus(ClaimName):
    """The container or ResourceClaim that holds a device; a claim has neither pod nor container."""

    namespace: str
    pod: str
    container: str


class Reasoned(TypedDict, total=False):
    """Something with a ``reason``, which never names a pod: ``heldBy`` are the containers that it refers to.

    The key exists only if the reason refers to any, and never if the names of pods are hidden.
    """

    heldBy: list[HolderStatus]


class MemberStatus(TypedDict):
    """One of the devices that a resource hands out together (``of`` of ``share``)."""

    device: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    numaNodes: list[int]


class DeviceStatus(Reasoned):
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
    numaNodes: list[int]
    allocated: bool
    given: list[str]
    holder: HolderStatus | None


class DepartedStatus(Reasoned):
    """A device that recently left the list of its resource: why, and when."""

    device: str
    reason: str
    at: str


class ResourceStatus(TypedDict):
    """One resource name.

    ``entry`` is its place in the configuration (``resources[2]``), ``socket`` the file name of its
    plugin server, ``lastError`` empty without errors. ``together`` are the devices behind each of its
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
    lastRegistration: str | None
    lastError: str
    devices: list[DeviceStatus]
    together: list[MemberStatus]
    departed: list[DepartedStatus]


class RefusedDevice(TypedDict):
    """A device its backend reported in a form that cannot be used."""

    device: str
    reason: str


class ProvisioningStatus(Reasoned):
    """Whether the hardware matches the options of a backend; ``reason`` is empty while it is ``ok``.

    ``waiting`` is not an error: a pod holds what must change, or the hardware is absent.
    """

    state: Literal["waiting", "ok", "failed"]
    reason: str
    since: str


class LabelsStatus(TypedDict):
    """The labels of one backend: their number in ``file``; ``reason`` is empty without errors."""

    file: str
    count: int
    reason: str


class BackendStatus(TypedDict):
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
    lastDiscovery: str | None
    lastDiscoverySeconds: float | None
    refusedDevices: list[RefusedDevice]
    provisioning: ProvisioningStatus | None
    labels: LabelsStatus | None


class ObserverStatus(TypedDict):
    """One observer; ``reason`` is empty while it is ok.

    ``calls`` and ``failures`` count calls of its hooks, ``waiting`` and ``dropped`` count events.
    """

    name: str
    origin: str
    version: str
    hooks: list[str]
    state: Literal["ok", "paused"]
    reason: str
    since: str
    calls: int
    failures: int
    waiting: int
    dropped: int


class HeldStatus(Reasoned):
    """A token that a container holds and that is in no list, and why.

    ``devices`` are the ids of its devices, as far as known. ``holder`` is ``None`` while the kubelet does not
    name it.
    """

    resource: str
    id: str
    devices: list[str]
    holder: HolderStatus | None
    reason: str


class EntryStatus(Reasoned):
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
    resources: list[str]
    state: Literal["served", "waiting", "moving", "none", "absent"]
    reason: str
    remark: str
    cordoned: str


class PlanRefusal(Reasoned):
    """A device that an entry selects but does not get, and why.

    ``kind`` is the reason's short name, as in the metric ``devhost_plan_refusals``.
    """

    backend: str
    device: str
    kind: str
    reason: str


class ProblemStatus(Reasoned):
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


class JudgedStatus(TypedDict):
    """A device that a verdict is about; both are ``*`` for all devices of the node."""

    backend: str
    device: str


class VerdictStatus(TypedDict):
    """A verdict in force: the name of its ``file``, and the content.

    ``since`` is when the file was written. ``devices`` are those that it is about and that exist.
    """

    file: str
    kind: Literal["cordon", "unhealthy"]
    by: str
    reason: str
    since: str
    until: str | None
    devices: list[JudgedStatus]


class DraUnitStatus(TypedDict, total=False):
    """The ids of the devices that are one, if a device is a unit."""

    members: list[str]


class CapacityStatus(TypedDict):
    """What a device has of a capacity that claims share, what they use of it, and the rest, as quantities."""

    name: str
    total: str
    used: str
    free: str


class SharedByAmount(TypedDict, total=False):
    """The capacities of a device that claims share by amount; other devices do not have the key."""

    capacity: list[CapacityStatus]


class CounterStatus(TypedDict):
    """A shared counter of a pool: its set, how much of it there is, what held devices take, and the rest."""

    set: str
    name: str
    total: int
    used: int
    free: int


class SharedCounters(TypedDict, total=False):
    """The shared counters of a pool; other pools do not have the key."""

    counters: list[CounterStatus]


class ConsumedStatus(TypedDict):
    """What a device takes of a shared counter."""

    set: str
    name: str
    amount: int


class ConsumesCounters(TypedDict, total=False):
    """What a device takes of the pool's shared counters; other devices do not have the key."""

    consumes: list[ConsumedStatus]


class DraDeviceStatus(Reasoned, DraUnitStatus, SharedByAmount, ConsumesCounters):
    """One device that is offered through DRA.

    ``device`` is the id of the backend, ``name`` its name in the pool, ``slice`` the name of its
    ResourceSlice; empty until it is published. ``replicas`` is how many claims may use it at once. ``claims``
    are those that hold it.
    """

    device: str
    name: str
    slice: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    replicas: int
    numaNodes: list[int]
    claims: list[HolderStatus]


class OfDriver(TypedDict, total=False):
    """What belongs to one of several DRA drivers; without ``driver`` if there is one."""

    driver: str


class DraPoolStatus(OfDriver, SharedCounters):
    """The devices of one resource with ``serve: dra``.

    ``entry`` is its place in the configuration (``resources[2]``), ``pool`` the name of its pool,
    ``deviceClass`` that of its DeviceClass, ``extendedName`` whether pods may request it by its name.
    """

    resource: str
    backend: str
    entry: str
    pool: str
    deviceClass: str
    extendedName: bool
    devices: list[DraDeviceStatus]


class ClaimedDeviceStatus(TypedDict):
    """A device of a claim: the request that it is for, its names at the API server, and for the backend."""

    request: str
    pool: str
    name: str
    backend: str
    device: str


class DraClaimStatus(OfDriver):
    """A prepared ResourceClaim: its CDI file, its devices, and the containers known to use it.

    If there are several drivers, a claim has one of these for each ``driver`` that has prepared it.
    """

    namespace: str
    name: str
    uid: str
    file: str
    devices: list[ClaimedDeviceStatus]
    containers: list[HolderStatus]


class MovingStatus(Reasoned):
    """A device that changes sides, and what it waits for; ``serve`` is the side that it leaves."""

    backend: str
    device: str
    resource: str
    serve: Literal["plugin", "dra"]
    reason: str


class MoveStatus(Reasoned):
    """The ``devices`` that leave one resource; ``serve`` is its side.

    ``reason`` is what most of them wait for, ``since`` the time at which the move began, or
    one of its devices moved. ``stuck`` is whether this is a problem.
    """

    resource: str
    serve: Literal["plugin", "dra"]
    devices: list[str]
    reason: str
    since: str
    stuck: bool


class LeftOutStatus(TypedDict):
    """An attribute that is not published, or a device, if ``attribute`` is empty; and why."""

    resource: str
    device: str
    attribute: str
    reason: str


class DriverStatus(TypedDict):
    """One of several DRA drivers; see :class:`DraStatus`."""

    driver: str
    state: Literal["registered", "waiting"]
    reason: str
    slices: int
    writes: int
    syncedAt: str | None
    error: str
    droppedFields: list[str]


class _Drivers(TypedDict, total=False):
    drivers: list[DriverStatus]


class DraStatus(_Drivers):
    """The DRA driver.

    If there are several, ``drivers`` has each of them, ``driver`` is the first one, and the other keys are
    for all of them together: the state is ``registered`` if each of them is.

    ``state`` is ``registered`` while the kubelet uses the driver, else ``waiting``; ``reason`` is why, if the
    kubelet or the system gave a reason. ``slices`` is the number of ResourceSlices, ``writes`` how often one
    was written or deleted, ``syncedAt`` when they last agreed with the devices, ``error`` why they do not.
    ``droppedFields`` are those that the API server does not keep, because it lacks a feature.
    """

    driver: str
    node: str
    state: Literal["registered", "waiting"]
    reason: str
    slices: int
    writes: int
    syncedAt: str | None
    error: str
    droppedFields: list[str]
    leftOut: list[LeftOutStatus]
    pools: list[DraPoolStatus]
    claims: list[DraClaimStatus]
    moving: list[MovingStatus]
    moves: list[MoveStatus]


def drivers_of(dra: DraStatus) -> Sequence[DraStatus | DriverStatus]:
    """Each DRA driver."""
    return dra.get("drivers", ()) or (dra,)


def driver_of(dra: DraStatus, pool: DraPoolStatus) -> DraStatus | DriverStatus:
    """The driver of a pool."""
    name = pool.get("driver", dra["driver"])
    return next((one for one in drivers_of(dra) if one["driver"] == name), dra)


class StatusDocument(TypedDict):
    """Everything at one moment; ``dra`` is ``None`` if no resource has ``serve: dra``."""

    devhost: HostStatus
    kubelet: KubeletStatus
    entries: list[EntryStatus]
    resources: list[ResourceStatus]
    held: list[HeldStatus]
    backends: list[BackendStatus]
    observers: list[ObserverStatus]
    verdicts: list[VerdictStatus]
    refusals: list[PlanRefusal]
    dra: DraStatus | None
    problems: list[ProblemStatus]


StatusSource = Callable[[], StatusDocument | Callable[[], StatusDocument]]
"""Describes the host now. It is called in the event loop, so it only collects known values; a document that
takes long to make is made by the function that it returns, see :func:`complete`."""


def complete(found: StatusDocument | Callable[[], StatusDocument]) -> StatusDocument:
    """The document that a :data:`StatusSource` returns. This may take long: call it on a thread."""
    return found() if callable(found) else found


_NONE: Reasoned = {}

R = TypeVar("R", bound=Reasoned)


def held_by(holders: Sequence[AnyHolder]) -> Reasoned:
    """The key for the containers and claims that a reason refers to."""
    return {"heldBy": [_named(holder) for holder in holders]} if holders else _NONE


def holder_status(holder: AnyHolder | None) -> HolderStatus | None:
    """A container or a claim in the form of the document."""
    return _named(holder) if holder else None


def _named(holder: AnyHolder) -> HolderStatus:
    if isinstance(holder, ClaimHolder):
        return {"namespace": holder.namespace, "pod": "", "container": "", "claim": holder.name}
    return {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}


def without_holders(document: StatusDocument) -> StatusDocument:
    """The document without the names of pods, claims and containers (``devhost run --hide-pods``)."""
    return {
        **document,
        "problems": _unnamed(document["problems"]),
        "entries": _unnamed(document["entries"]),
        "refusals": _unnamed(document["refusals"]),
        "backends": [_unnamed_backend(backend) for backend in document["backends"]],
        "held": [{**held, "holder": None} for held in _unnamed(document["held"])],
        "resources": [
            {
                **resource,
                "devices": [{**device, "holder": None} for device in _unnamed(resource["devices"])],
                "departed": _unnamed(resource["departed"]),
            }
            for resource in document["resources"]
        ],
        "dra": _without_claims(document["dra"]),
    }


def _unnamed_backend(backend: BackendStatus) -> BackendStatus:
    found = backend["provisioning"]
    return {**backend, "provisioning": _unnamed([found])[0]} if found else backend


def _without_claims(dra: DraStatus | None) -> DraStatus | None:
    if dra is None:
        return None
    pools = [
        DraPoolStatus(**{**pool, "devices": [{**one, "claims": []} for one in _unnamed(pool["devices"])]})
        for pool in dra["pools"]
    ]
    return {
        **dra,
        "pools": pools,
        "claims": [],
        "moving": _unnamed(dra["moving"]),
        "moves": _unnamed(dra["moves"]),
    }


def _unnamed(rows: list[R]) -> list[R]:
    return [cast("R", {key: value for key, value in row.items() if key != "heldBy"}) for row in rows]


_PIECE = 100
"""Devices encoded at a time, in about 0.3 ms. Python's encoder holds the interpreter's lock meanwhile."""


def json_line(value: object) -> bytes:
    """The value as JSON without spaces, and a line end.

    It is encoded in small pieces, so that a thread that does this does not delay others.
    """
    return ("".join(_pieces(value, 2)) + "\n").encode()


def _pieces(value: object, depth: int) -> Iterator[str]:
    """Encodes mappings and lists piece by piece, down to the long lists: ``resources[].devices``."""
    if isinstance(value, dict) and value:
        before = "{"
        for key, member in value.items():
            yield f"{before}{json.dumps(key)}:"
            yield from _pieces(member, depth)
            before = ","
        yield "}"
    elif isinstance(value, list) and value and depth:
        before = "["
        for start in range(0, len(value), _PIECE):
            yield before
            few = value[start : start + _PIECE]
            if depth > 1:
                for n, member in enumerate(few):
                    yield "," if n else ""
                    yield from _pieces(member, depth - 1)
            else:
                yield json.dumps(few, separators=(",", ":"))[1:-1]
            before = ","
        yield "]"
    else:
        yield json.dumps(value, separators=(",", ":"))
