"""The values that all modules share: devices, edits, health. Uses the standard library only.

They are frozen, and hashable if their fields are. A dict becomes a :class:`FrozenDict` and a list a tuple; a
mapping of another type is kept. A list as the value of an attribute is refused, so every device that the core
accepts is hashable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from .errors import cut, printable
from .frozen import frozen

K = TypeVar("K")
V = TypeVar("V")
Thing = TypeVar("Thing", "DeviceNode", "Mount")

AttributeValue = str | int | bool | tuple[str, ...]
"""The value of an attribute. A tuple of strings matches if any of its members matches."""

PURPOSE = "purpose"
"""The attribute that names the special purpose of a device (:mod:`devhost.backend.purpose`)."""

MAX_DEVICE_ID = 63
"""Longest device id in characters: the v1beta1 proto's own comment on ``Device.ID``."""


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed. It is hashable if its values are, and equals a dict with the same items.

    The values of this API convert dicts to it, so that a device can be compared, shared between threads and
    kept without a copy.
    """

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(
            "this mapping cannot be changed: make a new one, as with dict(mapping) or mapping | {…}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


NOTHING: Final = cast("FrozenDict[str, Any]", FrozenDict())
"""The empty mapping, the default of every field with a mapping."""

_set = object.__setattr__


def freeze(owner: object, mappings: Iterable[str], sequences: Iterable[str] = ()) -> None:
    """Replaces dicts in these fields of a frozen value by :class:`FrozenDict`, and lists by tuples.

    Anything else is kept; the core checks the types.
    """
    for name in mappings:
        value = getattr(owner, name)
        if type(value) is not FrozenDict and isinstance(value, dict):
            _set(owner, name, FrozenDict(value))
    for name in sequences:
        value = getattr(owner, name)
        if type(value) is list:
            _set(owner, name, tuple(value))


def present(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    """The attributes that a device has: those that are neither ``None`` nor empty."""
    return {name: value for name, value in attributes.items() if value not in (None, "", ())}


class Cause(StrEnum):
    """The kind of a failure, by which an entry chooses the taint of a device (``dra.taints``)."""

    UNHEALTHY = "unhealthy"
    """Any other one."""
    XID = "xid"
    """The driver of an NVIDIA GPU reported a critical error (Xid)."""
    ECC = "ecc"
    """Memory has errors that were not corrected, or waits for its replacement."""
    THERMAL = "thermal"
    """It is too hot."""
    LINK = "link"
    """None of its ports has a link."""
    MISSING = "missing"
    """It is gone, or lacks a device node or another path of the host."""
    BACKEND = "backend"
    """Its backend fails, so that nothing is known of it."""
    CONDITION = "condition"
    """It does not hold the ``healthyWhile`` of its entry."""
    REPORTED = "reported"
    """Another program wrote a verdict."""
    CORDONED = "cordoned"
    """It is out of service on purpose."""
    HELD = "held"
    """Another holder has what it needs."""


_ANY = frozenset({Cause.UNHEALTHY})


@frozen(slots=True)
class Health:
    """The health of one device; ``reason`` is ``None`` exactly when ``healthy`` is true.

    An empty reason counts as ``None``. An unhealthy device without ``causes`` has :attr:`Cause.UNHEALTHY`.
    """

    healthy: bool
    reason: str | None = None
    causes: frozenset[Cause] = field(default=frozenset(), compare=False)  # they follow from the reason

    def __post_init__(self) -> None:
        if self.reason == "":
            _set(self, "reason", None)
        if not (self.healthy or self.causes):
            _set(self, "causes", _ANY)

    def __bool__(self) -> bool:
        return self.healthy


HEALTHY = Health(True)


def unhealthy(reason: str, *causes: Cause) -> Health:
    """The health of a device that cannot be used, with the reason for the user, and of which kind it is."""
    return Health(False, reason, frozenset(causes))


@frozen(slots=True)
class DeviceNode:
    """A device node that a container gets.

    ``path`` is its path on the host, ``container_path`` that in the container (empty: the same).
    ``permissions`` are any of ``r``, ``w``, ``m`` (cgroup device rules: read, write, mknod). A resource may
    configure other permissions; they never widen permissions that are less than ``rw`` here.
    A node that is not ``required`` is omitted if the host does not have it.
    ``shared`` is true for a node that any number of containers use at the same time, such as
    ``/dev/vfio/vfio``. Every other node belongs to the device: it is among its ``claims`` or ``part_of``, and
    the core counts it as a claim if it is in neither. What a container gets is the same either way.
    """

    path: str
    container_path: str = ""
    permissions: str = "rw"
    required: bool = True
    shared: bool = field(default=False, compare=False)


@frozen(slots=True)
class Mount:
    """A bind mount that a container gets; ``required`` as for :class:`DeviceNode`.

    A device node as the source belongs to the device like one in ``nodes`` that is not ``shared``.
    """

    host_path: str
    container_path: str
    read_only: bool = True
    required: bool = True


@frozen(slots=True)
class Edits:
    """Everything that a container needs to use some devices, independent of how it is injected.

    The name of a variable may contain ``{RESOURCE}``. The core replaces it by the name of the resource that
    the container requested, in upper case and with ``_`` for all but letters and digits:
    ``INTEL_COM_SRIOV_DPDK`` for ``intel.com/sriov_dpdk``. So two resources in one container never set the
    same variable. ``{RESOURCE-}`` is the same with hyphens kept.

    ``lasting`` is whether the next container gets the same with the same devices and options: the core may
    then answer without a call, while the nodes have the same numbers. Not with ``mounts``, and not if
    ``allocate`` changes anything on the host.

    ``attributes`` are those that devices have only once a container gets them, by the devices' ids, such as
    the UUID of an instance that ``allocate`` creates. They are in the metadata of claims, not in slices.
    """

    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = NOTHING
    annotations: Mapping[str, str] = NOTHING
    cdi_devices: tuple[str, ...] = ()
    lasting: bool = field(default=False, compare=False)
    attributes: Mapping[str, Mapping[str, AttributeValue]] = NOTHING

    def __post_init__(self) -> None:
        freeze(self, ("env", "annotations", "attributes"), ("nodes", "mounts", "cdi_devices"))

    @staticmethod
    def merge(parts: Iterable[Edits]) -> Edits:
        """Merges edits in order; for a repeated variable or annotation the first value is used.

        The kubelet also uses the first value when it merges the answers for several resources. A repeated
        node or mount is in the result once, and required if any of them is. Different ones for one container
        path are all kept: the core decides later, when it knows which of them exist on the host.
        """
        nodes: dict[tuple[str, str], DeviceNode] = {}
        mounts: dict[tuple[str, str], Mount] = {}
        env: dict[str, str] = {}
        annotations: dict[str, str] = {}
        cdi: dict[str, None] = {}
        attributes: dict[str, Mapping[str, AttributeValue]] = {}
        lasting = True
        for part in parts:
            lasting = lasting and part.lasting
            for node in part.nodes:
                place = (node.container_path or node.path, node.path)
                known = _once(nodes, place, node)
                if known.shared and not node.shared:
                    nodes[place] = replace(known, shared=False)
            for mount in part.mounts:
                _once(mounts, (mount.container_path, mount.host_path), mount)
            for key, value in part.env.items():
                env.setdefault(key, value)
            for key, value in part.annotations.items():
                annotations.setdefault(key, value)
            cdi.update(dict.fromkeys(part.cdi_devices))
            for name, found in part.attributes.items():
                attributes[name] = {**found, **attributes.get(name, NOTHING)}
        things = tuple(nodes.values()), tuple(mounts.values())
        return Edits(*things, env, annotations, tuple(cdi), lasting, attributes)


MAX_STRING = 128 << 10
"""Bytes of the longest variable that a program gets: ``MAX_ARG_STRLEN``, 32 pages (execve(2))."""

MAX_STRINGS = 2 << 20
"""Bytes of all of them with the usual stack of 8 MiB: a quarter of it (execve(2))."""


def too_large(env: Mapping[str, str]) -> str:
    """Why Linux starts no program with these variables; empty if it may.

    The sizes are those of execve(2): a string has its closing NUL, and all together a pointer to each.
    """
    total = 0
    for name, value in env.items():
        size = len(name.encode()) + len(value.encode()) + 2
        if size > MAX_STRING:
            return f"the variable {name} has {size} bytes, and Linux takes at most {MAX_STRING}"
        total += size + 8
    if total > MAX_STRINGS:
        return f"its variables have {total} bytes, and Linux takes at most {MAX_STRINGS}"
    return ""


def _once(found: dict[tuple[str, str], Thing], place: tuple[str, str], thing: Thing) -> Thing:
    """What is found at a place with this added: the first that was, required if one of them is."""
    known = found.setdefault(place, thing)
    if thing.required and not known.required:
        known = found[place] = replace(known, required=True)
    return known


@frozen(slots=True)
class Device:
    """A device that a backend found.

    ``id``
        Stable across reboots and re-enumeration: a PCI address, UUID or serial number, and an index only if
        nothing better exists. At most 63 characters, unique within the backend.
    ``attributes``
        What ``where`` can select by. The backend declares the keys. An attribute that the device does not
        have is omitted, never empty or ``-1``.
    ``claims``
        The physical things that this device occupies completely: ``pci:0000:3b:00.1``, ``node:/dev/fuse``.
        Of two devices with a common claim, only one is offered. A device with a string that is no claim (see
        :mod:`devhost.backend.claim`) is refused.
    ``part_of``
        Things that this device shares with others as one of several parts (the physical function of a virtual
        function). Parts are offered together, but never together with a device that claims the whole.
    ``numa_nodes``
        NUMA nodes near the device; empty if the kernel reports ``-1`` or nothing.
    ``pcie_path``
        PCI addresses from the root port down to the device, for affinity; empty if not on PCI.
    ``inherited``
        Names of those ``attributes`` that a device made of several parts has from one of its parts. They
        count only for an entry whose ``where`` names an attribute that ``reveals`` them (see
        :class:`devhost.backend.Attribute`), so that an entry for single parts does not select the whole too.
    ``withheld``
        Why this device exists but is not offered, as one sentence for a user (the node's own traffic uses
        it). ``None`` or empty: it is offered. A withheld device takes no claim from any other device.
    ``reserved``
        Why this device has a special purpose, as a clause for a user (``"it manages the NVSwitches"``). It is
        withheld with this reason, except in entries whose ``where`` has a condition on the attribute
        ``purpose``, which the device must have (see :mod:`devhost.backend.purpose`).
    ``unusable_for``
        Uses for which this device is unhealthy, each with the reason for the user:
        ``{"rdma": "it has no uverbs node"}``. It is Unhealthy in resources that provide such a use (``uses``
        of their ``ResourceOptions``); in all others ``health`` applies. ``permissions`` is a use of every
        backend: why a device gives no device node whose ``permissions`` an entry could set.
    ``former_ids``
        Ids that earlier versions of the backend may have given this device. If several devices name the same
        id, what the kubelet reports under it counts for each of them. An id that ends in ``.*`` means any
        number there (``dsa-0000:6a:01.0.*``). An id of more than 63 characters means its first 54, a hyphen
        and the first eight hex digits of its SHA-256. The current id of a device is never looked up here.
    ``left_out``
        Names of attributes that hardware has and that are not in ``attributes``, because the values are not
        one line of printable text. devhost adds those that it removes itself.
    ``divided``
        Whether this device is ``withheld`` only because its parts are offered instead, or because it does not
        exist until a claim gets it. An entry with ``dra.counters`` offers it.
    ``counters``
        What this device can give to its parts, in entries with ``dra.counters``: ``{"memory-slices": 8}``.
        Names are DNS labels, amounts whole numbers above zero. If the whole is not offered, each part may
        state them, in addition to what it ``consumes``.
    ``consumes``
        What this device takes of the ``counters`` of the device that it is part of. A scheduler gives at most
        what there is. devhost itself compares ``claims``, so parts that exclude each other need a common one
        (``claim.part``).
    """

    id: str
    attributes: Mapping[str, AttributeValue] = NOTHING
    claims: frozenset[str] = frozenset()
    part_of: frozenset[str] = frozenset()
    numa_nodes: tuple[int, ...] = ()
    pcie_path: tuple[str, ...] = ()
    health: Health = HEALTHY
    withheld: str | None = None
    reserved: str | None = None
    unusable_for: Mapping[str, str] = NOTHING
    inherited: frozenset[str] = frozenset()
    former_ids: tuple[str, ...] = ()
    left_out: frozenset[str] = frozenset()
    divided: bool = False
    counters: Mapping[str, int] = NOTHING
    consumes: Mapping[str, int] = NOTHING

    def __post_init__(self) -> None:
        # Without a loop and freeze(): a scan makes thousands.
        if type(self.attributes) is not FrozenDict and isinstance(self.attributes, dict):
            _set(self, "attributes", FrozenDict(self.attributes))
        if type(self.unusable_for) is not FrozenDict and isinstance(self.unusable_for, dict):
            _set(self, "unusable_for", FrozenDict(self.unusable_for))
        if self.withheld == "":
            _set(self, "withheld", None)
        if self.reserved == "":
            _set(self, "reserved", None)
        types: tuple[object, ...] = (type(self.numa_nodes), type(self.pcie_path), type(self.former_ids))
        if list in types:
            freeze(self, (), ("numa_nodes", "pcie_path", "former_ids"))
        if self.counters is not NOTHING or self.consumes is not NOTHING:
            freeze(self, ("counters", "consumes"))


NO_REASON = "the backend gives no reason"


def sound_reason(reason: str | None) -> str:
    """A reason that can be shown: printable, never empty, and cut at :data:`~.errors.MAX_REASON`."""
    if reason is None or not reason.strip():
        return NO_REASON
    return cut(printable(reason))


def sound_health(health: Health) -> Health:
    """The same health with a reason that can be shown, see :func:`sound_reason`."""
    if health.healthy:
        return health
    reason = sound_reason(health.reason)
    return health if reason == health.reason else unhealthy(reason, *health.causes)


@frozen(slots=True)
class Holder:
    """A container and the pod it belongs to."""

    namespace: str
    pod: str
    container: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"


class ClaimHolder(NamedTuple):
    """A ResourceClaim that is prepared on this node."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"ResourceClaim {self.namespace}/{self.name}"


AnyHolder = Holder | ClaimHolder
"""What holds a device: a container, or a ResourceClaim."""


PERMISSIONS = r"(?=.*[rw])(?!.*(.).*\1)[rwm]{1,3}"
"""Valid permissions of a resource: each letter at most once, and not ``m`` alone, which cannot open a node.

``r`` reads, ``w`` writes, ``m`` makes nodes (mknod), as in ``linux.resources.devices`` of the OCI runtime
specification and ``DeviceSpec.permissions`` of the device plugin API.
"""
