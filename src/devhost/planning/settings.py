"""The frozen, typed values of a configuration, for the plan and the servers.

``devhost.config`` makes them. They do not depend on YAML, files or positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Final

from devhost.backend.errors import absent_paths
from devhost.backend.frozen import frozen
from devhost.backend.model import (
    HEALTHY,
    NOTHING,
    AttributeValue,
    Cause,
    Device,
    FrozenDict,
    Health,
    sound_health,
    unhealthy,
)
from devhost.backend.where import Range, Where, shortfall

from .amounts import NO_LIMIT, Amount, Limit
from .give import NO_GIVE, Give
from .naming import expand, fields

MAX_REPLICAS = 100_000
"""More tokens do not fit into the kubelet's receive limit of 4 MiB (about 39 bytes for a device)."""

MAX_DRIVERS = 16
"""DRA drivers in one file: each has two sockets, five tasks and a connection to the API server."""

MAX_MEMBERS = 1024
"""A container gets at most so many device nodes (``MAX_NODES`` of ``devhost.allocation``)."""

CDI_DIRECTORY = Path("/var/run/cdi")
"""Where container runtimes look for CDI specifications that programs write (CDI specification)."""


DEVICE_INFO_DIRECTORY = Path("/var/run/k8s.cni.cncf.io/devinfo/dp")
"""Where network plugins look for device-info files (NPWG device information specification 1.1.0, 4.1)."""

LABEL_DIRECTORY = Path("/etc/kubernetes/node-feature-discovery/features.d")
"""Where Node Feature Discovery's worker reads labels that programs write (its local feature source)."""


def uses_of(options: object, permissions: str) -> frozenset[str]:
    """The keys of ``Device.unusable_for`` that count for an entry.

    ``permissions`` counts for the nodes of the device itself: what a container gets besides may have others.
    """
    uses = frozenset(getattr(options, "uses", ()))
    return uses or frozenset(("permissions",) if permissions else ())


def prepares(options: object) -> bool:
    """Whether a backend that can prepare devices does so before a container starts, with these options."""
    return bool(getattr(options, "prepares", True))


class Prefer(StrEnum):
    """Which of the free devices GetPreferredAllocation prefers."""

    TOPOLOGY = "topology"
    """Devices near each other: same PCIe switch, same NUMA node."""
    PACK = "pack"
    """Fill devices and NUMA nodes that are already in use."""
    SPREAD = "spread"
    """Use the least used devices and NUMA nodes."""
    DISTINCT = "distinct"
    """Use different physical devices; two replicas of one only if no other is free."""


class Of(StrEnum):
    """What one token of a resource gives, if that is not a unit by an attribute (:attr:`Share.of`)."""

    EACH = "each"
    """One device: each device has its own tokens."""
    ALL = "all"
    """Every device of the resource: the tokens only limit how many containers use them at once."""


class Inject(StrEnum):
    """How a container gets its devices."""

    DIRECT = "direct"
    """Device nodes, mounts and variables in the Allocate answer."""
    CDI = "cdi"
    """Names of Container Device Interface devices, resolved by the runtime."""


class Serve(StrEnum):
    """The side through which a resource is offered."""

    PLUGIN = "plugin"
    """The device plugin API."""
    DRA = "dra"
    """Dynamic Resource Allocation: ResourceSlices and ResourceClaims."""


Side = tuple[Serve, str]
"""How devices are offered: no device is offered in two ways. With :attr:`Serve.DRA` it has the driver."""

PLUGIN: Final[Side] = (Serve.PLUGIN, "")
"""The side of the device plugin."""


class WhenEmpty(StrEnum):
    """What the kubelet receives of a resource before its first device."""

    WAIT = "wait"
    """Nothing, until the first device appears."""
    REGISTER = "register"
    """The resource, without devices."""


class Profile(StrEnum):
    """The DRA driver whose attributes and capacities an entry publishes: ``devhost.planning.profiles``."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    DRANET = "dranet"
    SRIOV = "sriov"


OWN_SOURCES = ("resource", "id")
"""The sources of an alias that any device has: the name of its resource, and its id."""


class Version(str):
    """The value of an attribute that slices have as a semantic version, and not as text."""

    __slots__ = ()


@frozen
class Alias:
    """An attribute or a capacity that slices have under another name than the backend's.

    ``source`` is an attribute of the device, one of :data:`OWN_SOURCES`, or ``parent.uuid``: an attribute of
    the device whose id is an attribute of this one. ``convert`` makes the published value; ``None`` publishes
    nothing. A device without the source has the value ``otherwise``. With ``kind``, only devices with this
    value of the attribute ``kind`` have the alias; with ``needs``, only those with this attribute. A capacity
    is counted in ``unit``, a suffix of quantities.
    """

    name: str
    source: str
    convert: Callable[[AttributeValue], AttributeValue | None] | None = None
    otherwise: AttributeValue | None = None
    kind: str = ""
    needs: str = ""
    unit: str = ""


class Effect(StrEnum):
    """What the taint of an unhealthy device does."""

    NONE = "None"
    """Nothing: claims get the device as if it were healthy."""
    NO_SCHEDULE = "NoSchedule"
    """Only claims that tolerate it get the device."""
    NO_EXECUTE = "NoExecute"
    """The same, and pods that have the device and do not tolerate it are evicted."""


OF_ANY: Final[Mapping[Cause, Effect]] = FrozenDict()
"""No cause has a separate taint."""


@frozen
class DraTerms:
    """The terms of an entry for Dynamic Resource Allocation; without effect while it is served as a plugin.

    ``device_class`` is the name of its DeviceClass; empty: ``devhost.planning.naming.device_class`` of the
    resource name. With ``extended_name`` pods may request the class by the resource name.
    ``claim_options`` are the keys of the entry's backend options that the configuration of a claim may set;
    that of a class may set all of them. ``attributes`` and ``capacity`` are published besides the backend's
    attributes; with a ``profile`` in place of these. Without ``lists``, no attribute is a list.
    ``taints`` has the effect of each cause with a separate taint. ``driver`` is the DRA driver that the entry
    names; empty if it names none. With ``counters``, devices that exclude each other are offered together,
    and schedulers decide.
    """

    device_class: str = ""
    extended_name: bool = False
    claim_options: tuple[str, ...] = ()
    attributes: tuple[Alias, ...] = ()
    capacity: tuple[Alias, ...] = ()
    profile: Profile | None = None
    lists: bool = False
    taints: Mapping[Cause, Effect] = OF_ANY
    driver: str = ""
    counters: bool = False

    def sources(self) -> frozenset[str]:
        """Every attribute name from which something is published, of a device and of one that it names."""
        sources = {one.source for one in (*self.attributes, *self.capacity)}
        return frozenset(
            {*sources, *(part for one in sources for part in one.split(".", 1))} - {*OWN_SOURCES}
        )


@frozen
class ReplicaOverride:
    """Devices that ``where`` selects are shared ``replicas`` times instead of the default."""

    where: Where
    replicas: int


@frozen
class Share:
    """How often each device is allocated; the first override that selects the device decides.

    ``of`` may be an attribute: then all devices with one value of it are allocated as one, a unit, which has
    ``members`` devices; any number if ``None``. With :attr:`Of.ALL`, how often all of them together are
    allocated; there are no overrides then. A container that requests more than ``max_per_container`` is
    refused; ``None`` is no limit. With ``amounts``, claims use amounts of each device instead of replicas,
    and ``limit`` is how their containers are limited to them.
    """

    replicas: int = 1
    overrides: tuple[ReplicaOverride, ...] = ()
    of: Of | str = Of.EACH
    max_per_container: int | None = None
    members: int | None = None
    amounts: tuple[Amount, ...] = ()
    limit: Limit = NO_LIMIT

    @property
    def divides(self) -> bool:
        """Whether several containers may use a device at the same time."""
        return bool(self.amounts) or max(self.replicas, *(one.replicas for one in self.overrides), 1) > 1

    @property
    def attribute(self) -> str:
        """The attribute whose values make units; empty if there are none."""
        return "" if isinstance(self.of, Of) else self.of

    def flaw(self, devices: int) -> str:
        """Why a unit cannot have this number of devices; empty if it can."""
        if self.members is None or self.members == devices:
            return ""
        if devices < self.members:
            return f"{devices} of {self.members} members"
        return f"{devices} members, expected {self.members}"


@frozen
class ResourceSettings:
    """One entry under ``resources``.

    ``index`` is its position in the file, from 0; ``name`` may be a template (see
    ``devhost.planning.naming``), for which ``name_map`` has the text of some values. ``options`` is the value
    of the backend's ``ResourceOptions``; ``None`` if it has none. Without ``topology`` the kubelet receives
    no NUMA nodes. ``permissions`` are those of the device nodes in a container; if empty, the backend
    decides. ``give`` is what a container gets besides. If an ``optional`` entry has no device, that is no
    problem. ``expect`` is how many devices it should have; any number if empty. With ``take_over`` the
    resource is registered even while another plugin serves it on this node. With ``check_starts`` a container
    does not start while a node that it was given is another device. ``driver`` is the DRA driver that
    publishes the devices; empty for the device plugin.
    """

    index: int
    name: str
    backend: str
    where: Where = ()
    share: Share = Share()
    prefer: Prefer = Prefer.TOPOLOGY
    inject: Inject = Inject.DIRECT
    exclusive: bool = True
    when_empty: WhenEmpty = WhenEmpty.WAIT
    expect: tuple[Range, ...] = ()
    topology: bool = True
    healthy_while: Where = ()
    permissions: str = ""
    give: Give = NO_GIVE
    optional: bool = False
    take_over: bool = False
    check_starts: bool = False
    serve: Serve = Serve.PLUGIN
    dra: DraTerms = DraTerms()
    driver: str = ""
    name_map: Mapping[str, str] = field(default=NOTHING, hash=False)
    options: object = field(default=None, hash=False)  # third-party values need not be hashable

    @property
    def side(self) -> Side:
        """How its devices are offered."""
        return self.serve, self.driver

    @property
    def counts(self) -> bool:
        """Whether devices that exclude each other are offered together, with shared counters."""
        return self.dra.counters and self.serve is Serve.DRA

    @property
    def uses(self) -> frozenset[str]:
        """What a container gets besides the device itself, in the terms of the backend."""
        return uses_of(self.options, self.permissions)

    def acts_before_start(self, *, prepare: bool) -> bool:
        """Whether PreStartContainer has anything to do; ``prepare`` is whether the backend has that one."""
        return self.check_starts or (prepare and prepares(self.options))

    def wanted(self) -> frozenset[str]:
        """Every attribute name that this entry uses."""
        from_where = (block.attributes() for block in self.where)
        from_share = (b.attributes() for o in self.share.overrides for b in o.where)
        published = self.dra.sources() if self.serve is Serve.DRA else ()
        sizes = (one.attribute for one in self.share.amounts)
        named = {*fields(self.name), *filter(None, (self.share.attribute, *sizes))}
        given = () if self.give is NO_GIVE else self.give.attributes
        return frozenset(named).union(*from_where, *from_share, self.watched(), given, published)

    def named(self, attributes: Mapping[str, AttributeValue]) -> str | None:
        """The name of the resource of a device with these attributes; ``None`` if it lacks one of them."""
        return expand(self.name, attributes, self.name_map)

    def unexpected(self, devices: int) -> str:
        """What is wrong with this number of devices; empty if it is an expected one."""
        if not self.expect or any(one.matches(devices) for one in self.expect):
            return ""
        wanted = ", ".join(map(str, self.expect))
        if wanted.isdecimal() and devices < int(wanted):
            return f"{devices} of {wanted} devices"
        return f"{devices} device{'' if devices == 1 else 's'}, expected {wanted}"

    @property
    def may_be_empty(self) -> bool:
        """Whether no device is expected rather than a problem."""
        return self.optional or bool(self.expect and not self.unexpected(0))

    def exceeds(self, devices: int) -> bool:
        """Whether this is more than any expected number, so that no device is missing."""
        return bool(self.expect) and all(one.high is not None and devices > one.high for one in self.expect)

    def watched(self) -> frozenset[str]:
        """Every attribute name that the health of a device depends on in this entry."""
        return frozenset().union(*(block.attributes() for block in self.healthy_while))

    def condition(self, device: Device) -> Health:
        """The health of a device by ``healthyWhile`` alone."""
        reason = shortfall(self.healthy_while, device.attributes, "healthyWhile")
        return sound_health(unhealthy(reason, Cause.CONDITION)) if reason else HEALTHY

    @property
    def required(self) -> tuple[str, ...]:
        """The host paths without which ``give`` would refuse every pod."""
        nodes = [one.path for one in self.give.nodes if not one.optional]
        return (*nodes, *(one.path for one in self.give.mounts if not one.optional))

    def given(self, absent: Mapping[str, bool], device: Device | None = None) -> Health:
        """The health of a device, or of all, by ``give`` alone, if these host paths do not exist.

        ``absent`` maps a path to whether its file system does not answer.
        """
        if missing := [path for path in self.required if path in absent]:
            needs = f"give needs {'them' if missing[1:] else 'it'}"
            silent = [path for path in missing if absent[path]]
            return unhealthy(f"{absent_paths(missing, silent)}: {needs}", Cause.MISSING)
        if device is None:
            return HEALTHY
        from .give.edits import refusal  # most nodes have no entry with give

        reason = refusal(self.give, device, self.named(device.attributes) or self.name)
        return unhealthy(reason) if reason else HEALTHY


@frozen
class Skipped:
    """An ``optional`` entry that is not served, because the package of its backend is not installed.

    ``hint`` is how to install it.
    """

    index: int
    name: str
    backend: str
    hint: str


Identity = tuple[str, str, int]
"""An entry's backend, its name, and its number among entries with the same two, such as templates."""


@frozen
class Settings:
    """A whole configuration. ``backends`` maps a backend's name to its typed ``Options`` value.

    ``skipped`` are the entries without an installed backend; they are not among ``resources``.

    ``device_info_directory`` is ``None`` if no device-info files are wanted. ``label_directory`` is set even
    if no labels are wanted, because earlier ones are removed from it.

    ``dra_driver`` is the DRA driver of entries that name no other one; empty if the file has no ``dra``, and
    nothing of Dynamic Resource Allocation runs then. ``dra_metadata`` is whether claims get metadata files,
    ``dra_status`` whether their status has the health of their devices.
    """

    resources: tuple[ResourceSettings, ...] = ()
    backends: Mapping[str, object] = field(default_factory=dict)
    backend_paths: tuple[Path, ...] = ()
    cdi_directory: Path = CDI_DIRECTORY
    device_info_directory: Path | None = DEVICE_INFO_DIRECTORY
    label_directory: Path = LABEL_DIRECTORY
    write_labels: bool = False
    skipped: tuple[Skipped, ...] = ()
    dra_driver: str = ""
    dra_metadata: bool = False
    dra_status: bool = False

    def identified(self) -> list[tuple[Identity, ResourceSettings]]:
        """The entries, each with what an edit of the file does not change."""
        seen: Counter[tuple[str, str]] = Counter()
        found = []
        for entry in self.resources:
            found.append(((entry.backend, entry.name, seen[entry.backend, entry.name]), entry))
            seen[entry.backend, entry.name] += 1
        return found

    @property
    def drivers(self) -> tuple[str, ...]:
        """The DRA drivers that resources need, in file order."""
        return tuple(dict.fromkeys(entry.driver for entry in self.resources if entry.driver))

    def backend_names(self) -> tuple[str, ...]:
        """The backends that resources need, in file order."""
        return tuple(dict.fromkeys(resource.backend for resource in self.resources))

    def not_installed(self) -> Mapping[str, str]:
        """The backends of skipped entries, in file order, and how to install each."""
        return {entry.backend: entry.hint for entry in self.skipped}

    def wanted(self, backend: str) -> frozenset[str]:
        """Every attribute name that a resource of ``backend`` uses."""
        entries = (r.wanted() for r in self.resources if r.backend == backend)
        return frozenset().union(*entries)

    def given(self, backend: str) -> frozenset[str]:
        """The host paths that ``give`` of its entries names."""
        gives = [one.give for one in self.resources if one.backend == backend]
        nodes = frozenset(node.path for give in gives for node in give.nodes)
        return nodes.union(mount.path for give in gives for mount in give.mounts)

    def resource_options(self, backend: str) -> tuple[object, ...]:
        """The ``ResourceOptions`` in the entries of ``backend``, in file order."""
        return tuple(r.options for r in self.resources if r.backend == backend and r.options is not None)


RECORD = "published.json"
"""The name of the file with the devices that the slices of a driver may hold."""


@frozen
class DraOptions:
    """What the command line gives for Dynamic Resource Allocation.

    ``plugins_registry`` is the directory in which the kubelet finds DRA drivers, ``plugins_dir`` the one in
    which it calls them. ``node`` is the name of the Node object. ``kubeconfig`` is the file with the access
    to the API server; ``None`` for the service account of the pod. ``tag`` is part of the sockets' names, if
    other processes serve the driver too.
    """

    plugins_registry: Path
    plugins_dir: Path
    node: str
    kubeconfig: Path | None = None
    tag: str = ""

    def registration_socket(self, driver: str) -> Path:
        """Where the kubelet finds the driver."""
        return self.plugins_registry / f"{driver}{self.tag}-reg.sock"

    def service_socket(self, driver: str) -> Path:
        """Where the kubelet calls the driver."""
        return self.plugins_dir / driver / f"dra{self.tag}.sock"

    def record(self, driver: str) -> Path:
        """The file with the devices that the driver's slices may hold."""
        return self.plugins_dir / driver / RECORD
