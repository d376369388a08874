"""The status document: what ``devhost status`` shows, as JSON with the keys written here.

Times are RFC 3339 in UTC (``2026-11-20T12:00:01Z``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypedDict, TypeVar, cast

from devhost.backend.model import Holder


class Reload(TypedDict):
    """The last time a configuration was read. A rejected one changed nothing; ``complaints`` say why."""

    at: str
    result: Literal["ok", "rejected"]
    complaints: list[str]


class CopyStatus(TypedDict):
    """The copy of the last accepted configuration, and when it was accepted."""

    file: str
    acceptedAt: str


class HostStatus(TypedDict):
    """The process itself; ``config`` is the file's path, ``generation`` counts what took effect.

    ``root`` is the directory that represents ``/``. ``configDigest`` is the SHA-256 of the content that took
    effect; empty if it is not known.
    ``copy`` is what it runs on in place of the file, which was refused at the start; else ``None``.
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
    """The kubelet's word on who holds what: while it is not ``known``, ``reason`` says why.

    ``listed`` is when it was last heard.
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


class HolderStatus(TypedDict):
    """The container that holds a device."""

    namespace: str
    pod: str
    container: str


class Reasoned(TypedDict, total=False):
    """What has a ``reason``, which never names a pod: ``heldBy`` are the containers that it means.

    The key is there only if the reason means any, and never where the names of pods are not shown.
    """

    heldBy: list[HolderStatus]


class MemberStatus(TypedDict):
    """One of the devices that a resource hands out together (``share: {of: all}``)."""

    device: str
    health: Literal["Healthy", "Unhealthy"]
    reason: str
    numaNodes: list[int]


class DeviceStatus(Reasoned):
    """One device of a resource.

    ``id`` is what the kubelet calls it, ``device`` the backend's own id (they differ for replicas), or
    ``all`` where it stands for all devices of the resource. ``given`` are the backend's ids of what the
    container got which has it; empty where that is not known.
    ``since`` is when it took on its present health. It is ``allocated`` from Allocate, or from the kubelet's
    first word that it is held, until it is released; ``holder`` is ``None`` while the kubelet does not say
    who has it, and is what was last said where the kubelet has fallen silent.
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
    """A device that left the list of its resource lately: why, and when."""

    device: str
    reason: str
    at: str


class ResourceStatus(TypedDict):
    """One resource name.

    ``entry`` is its place in the configuration (``resources[2]``), ``socket`` the file name of its
    plugin server, ``lastError`` empty while all is well. ``together`` are the devices behind each of its
    ``devices`` where all of them are handed out together; else it is empty. ``departed`` are devices that
    were in the list and are not now, the newest first; few, and only for a while.
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


class ProvisioningStatus(TypedDict):
    """Whether the hardware is as a backend's options say; ``reason`` is empty while it is ``ok``.

    While it is ``waiting`` nothing is wrong: a pod has what is to be changed, or the hardware is not there.
    """

    state: Literal["waiting", "ok", "failed"]
    reason: str
    since: str


class LabelsStatus(TypedDict):
    """The labels of one backend: how many stand in ``file``; ``reason`` is empty while nothing is wrong."""

    file: str
    count: int
    reason: str


class BackendStatus(TypedDict):
    """One backend; ``reason`` is empty while it is ok.

    One that is ``not installed`` has only entries that are ``optional``; ``reason`` says how to install it.

    ``provisioning`` is ``None`` for a backend that changes no hardware, ``labels`` for one that has none
    and where none are wanted.
    """

    name: str
    state: Literal["ok", "degraded", "starting", "not installed"]
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

    ``calls`` and ``failures`` count calls of its hooks, ``waiting`` and ``dropped`` news.
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
    """What a container has by a token that is in no list now, and why it is in none.

    ``devices`` are the ids of what is behind it, as far as that is known. ``holder`` is ``None`` while the
    kubelet does not say who has it.
    """

    resource: str
    id: str
    devices: list[str]
    holder: HolderStatus | None
    reason: str


class EntryStatus(Reasoned):
    """One entry of the file.

    ``entry`` is its place (``resources[2]``), ``name`` may be a template, ``resources`` are the names of the
    resources that it makes. ``state`` is ``served`` for one with devices, ``waiting`` until its backend has
    listed its devices, ``absent`` for an optional one for which the node has no hardware, else ``none``; then
    ``reason`` says why it has no devices. It is empty for one with devices.
    """

    entry: str
    name: str
    backend: str
    optional: bool
    devices: int
    resources: list[str]
    state: Literal["served", "waiting", "none", "absent"]
    reason: str


class PlanRefusal(Reasoned):
    """A device that some resource wanted and the plan did not give it, and why.

    ``kind`` is the short fixed word that the metric ``devhost_plan_refusals`` has for it.
    """

    backend: str
    device: str
    kind: str
    reason: str


ProblemKind = Literal[
    "config",
    "kubelet",
    "plugin",
    "resource",
    "allocation",
    "backend",
    "driver",
    "entry",
    "plan",
    "device",
    "refused",
    "events",
    "provisioning",
    "labels",
    "observer",
    "pods",
]
"""What can be wrong, the most important first."""


class ProblemStatus(Reasoned):
    """Something that is wrong now.

    ``subject`` is what it is wrong with: a file, a directory, a resource, a backend, ``RESOURCE DEVICE`` or
    ``BACKEND DEVICE``. ``reason`` stands in the same words in the log, in metrics and wherever else this
    document names it. ``since`` is ``None`` where nobody noted it. ``count`` is how many it stands for: 1, or
    all those of which ``reason`` only says how many more there are.
    """

    kind: ProblemKind
    subject: str
    reason: str
    since: str | None
    count: int


class StatusDocument(TypedDict):
    """Everything at one moment."""

    devhost: HostStatus
    kubelet: KubeletStatus
    entries: list[EntryStatus]
    resources: list[ResourceStatus]
    held: list[HeldStatus]
    backends: list[BackendStatus]
    observers: list[ObserverStatus]
    refusals: list[PlanRefusal]
    problems: list[ProblemStatus]


StatusSource = Callable[[], StatusDocument]
"""Describes the host now. Called in the event loop, so it only puts together what is known."""

_NONE: Reasoned = {}

R = TypeVar("R", bound=Reasoned)


def held_by(holders: Sequence[Holder]) -> Reasoned:
    """The key for the containers that a reason means."""
    return {"heldBy": [_named(holder) for holder in holders]} if holders else _NONE


def holder_status(holder: Holder | None) -> HolderStatus | None:
    """A container as the document has it."""
    return _named(holder) if holder else None


def _named(holder: Holder) -> HolderStatus:
    return {"namespace": holder.namespace, "pod": holder.pod, "container": holder.container}


def without_holders(document: StatusDocument) -> StatusDocument:
    """The document without the names of pods, namespaces and containers (``devhost run --hide-pods``)."""
    return {
        **document,
        "problems": _unnamed(document["problems"]),
        "entries": _unnamed(document["entries"]),
        "refusals": _unnamed(document["refusals"]),
        "held": [{**held, "holder": None} for held in _unnamed(document["held"])],
        "resources": [
            {
                **resource,
                "devices": [{**device, "holder": None} for device in _unnamed(resource["devices"])],
                "departed": _unnamed(resource["departed"]),
            }
            for resource in document["resources"]
        ],
    }


def _unnamed(rows: list[R]) -> list[R]:
    return [cast("R", {key: value for key, value in row.items() if key != "heldBy"}) for row in rows]


_PIECE = 100
"""Devices encoded at one go: some 0.3 ms. Python's encoder keeps the interpreter's lock until it is done."""


def json_line(value: object) -> bytes:
    """The value as JSON without blanks, and a line's end.

    It is encoded in pieces small enough that a thread that does this delays no other.
    """
    return ("".join(_pieces(value, 2)) + "\n").encode()


def _pieces(value: object, depth: int) -> Iterator[str]:
    """Mappings and lists in pieces down to where long lists are: ``resources[].devices``."""
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
