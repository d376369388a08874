"""The configuration language as dataclasses: the reader follows them and the JSON schema prints them.

Fields in snake_case are the YAML's keys in camelCase. ``Raw`` values are kept as nodes: what may
be there depends on the backend and is read once the backend is known.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from devhost.backend import OptionError, option
from devhost.backend.frozen import frozen
from devhost.backend.model import PERMISSIONS
from devhost.planning import naming as naming
from devhost.planning.give import NO_GIVE, Give
from devhost.planning.naming import SUBDOMAIN
from devhost.planning.settings import (
    CDI_DIRECTORY,
    DEVICE_INFO_DIRECTORY,
    Effect,
    Inject,
    Of,
    Prefer,
    Profile,
    Serve,
    WhenEmpty,
)
from devhost.planning.settings import LABEL_DIRECTORY as LABEL_DIRECTORY
from devhost.planning.settings import MAX_MEMBERS as MAX_MEMBERS
from devhost.planning.settings import MAX_REPLICAS as MAX_REPLICAS

from .reader import Bounds, Form, Mistaken, Quantity, Ranges, Raw, camel

MAX_RESOURCES = 1000
"""Each resource has its own server and socket."""

Replicas = Annotated[int, Bounds(1, MAX_REPLICAS)]

Members = Annotated[int, Bounds(1, MAX_MEMBERS)]

NamePart = Annotated[
    str,
    Form(
        r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
        "at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
    ),
]

Permissions = Annotated[str, Form(PERMISSIONS, "r, w or rw, with or without m")]

_RULE = "lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part"

DriverName = Annotated[
    str,
    Form(
        f"(?=.{{1,63}}$){SUBDOMAIN}",
        f"a DNS subdomain of at most 63 characters ({_RULE})",
        "for example devhost.example.com",
    ),
]
"""The rule of Kubernetes for the name of a DRA driver (``ResourceSlice.spec.driver``)."""

ClassName = Annotated[
    str,
    Form(
        f"(?=.{{1,253}}$){SUBDOMAIN}",
        f"a DNS subdomain of at most 253 characters ({_RULE})",
        "for example serial.example.com",
    ),
]

ServedBy = Annotated[
    Serve, Mistaken("both", "a device is never on both sides; make two entries with different devices")
]


@frozen
class Override:
    """Another number of replicas for some of a resource's devices."""

    where: Raw = option(meaning="Which devices; the language of `where`.", example={"kind": "pf"})
    replicas: Replicas = option(meaning="How often each of these devices is handed out.", example=10)


Counted = Literal["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]

Amount = Annotated[int, Quantity()]


@frozen
class SharedCapacity:
    """A capacity of which each claim uses an amount: whole quantities such as `4Gi` or `10`."""

    min: Amount = option(meaning="The least that a claim uses.", example="1Gi")
    step: Amount = option(1, "A claim uses `min` or more, in steps of this.", example="256Mi")
    max: Amount = option(
        None, "The most that a claim uses; all that the device has if absent.", example="40Gi"
    )
    default: Amount = option(
        None, "What a claim uses that requests none of it; `min` if absent.", example="4Gi"
    )
    attribute: str = option(
        None,
        "The attribute of the backend with what a device has, a number; the one with the name of the "
        "capacity if absent.",
        example="memory",
    )
    total: Amount = option(None, "What each device has, in place of an attribute.", example=100)
    unit: Counted = option("", "What variables of `limit` count in, such as `Mi`.")


@frozen
class LimitVariables:
    """Variables by which programs in a container learn what they may use."""

    env: dict[str, str] = option(
        meaning="Variables, whose values have `{consumed.NAME}` for what a claim uses of a capacity.",
        example={"BANDWIDTH": "{consumed.bandwidth}"},
    )


@frozen
class Sharing:
    """How often the devices of a resource are handed out, and whether one by one or together."""

    former_keys: ClassVar = {
        key: f"write {key} in the entry, next to share" for key in ("timeSlice", "mps", "hami")
    }

    replicas: Replicas = option(
        1, "How often each device is handed out; with `of: all`, how often all of them are.", example=100
    )
    of: str = option(
        Of.EACH.value,
        "What a container gets for one: `each`, one device; `all`, every device of the resource; the name of "
        "an attribute, all devices with one value of it.",
        example="pciSlot",
    )
    members: Members = option(
        None,
        "How many devices have one value of the attribute; with any other number they are Unhealthy.",
        example=2,
    )
    overrides: list[Override] = option(
        [], "Other numbers for some devices; the first one whose `where` takes the device decides."
    )
    max_per_container: Replicas = option(
        None, "How many of the resource one container may ask for; any number if absent.", example=1
    )
    capacity: dict[str, SharedCapacity] = option(
        {},
        "Capacities of each device that claims share by amount, in place of `replicas`; needs `serve: dra`.",
        example={"memory": {"min": "1Gi"}},
    )
    limit: Literal["mps", "hami", "none"] | LimitVariables = option(
        None,
        "By what containers are limited to the amounts of their claim: a key of the backend in the entry, "
        "variables, or `none`. Required with `capacity`.",
        example="mps",
    )

    def __post_init__(self) -> None:
        if self.limit is not None and not self.capacity:
            raise OptionError("has no effect without capacity", key="limit", hint="remove it")
        if self.capacity and (self.replicas != 1 or self.overrides):
            key = "overrides" if self.overrides else "replicas"
            hint = "remove one of them: capacity alone decides how many claims have a device"
            raise OptionError("cannot be together with capacity", key=key, hint=hint)
        if self.capacity and self.of != Of.EACH:
            raise OptionError("cannot be together with capacity", key="of", hint="remove one of them")
        if self.of == Of.ALL and self.overrides:
            hint = "remove them, or add a separate entry for devices that need another number"
            raise OptionError(
                "has no effect with of: all, which counts all devices together",
                key="overrides",
                hint=hint,
            )
        if self.members is not None and self.of in tuple(Of):
            hint = "remove it, or set of to the attribute whose values make units"
            raise OptionError(f"has no effect with of: {self.of}", key="members", hint=hint)


@frozen
class Taints:
    """Causes for which unhealthy devices have a separate taint, `<driver>/<cause>`, and its effect.

    All other causes have the taint `<driver>/unhealthy:NoSchedule`.
    """

    unhealthy: Effect = option(None, "Effect of the taint for all causes without a separate one.")
    xid: Effect = option(None, "The driver of an NVIDIA GPU reported a critical error.", example="NoExecute")
    ecc: Effect = option(None, "Memory has errors that were not corrected, or waits for its replacement.")
    thermal: Effect = option(None, "It is too hot.")
    link: Effect = option(None, "None of its ports has a link.")
    missing: Effect = option(None, "It is gone, or lacks a device node or another path of the host.")
    backend: Effect = option(None, "Its backend fails, so that nothing is known of it.")
    condition: Effect = option(None, "It does not hold the `healthyWhile` of the entry.")
    reported: Effect = option(None, "Another program wrote a verdict.", example="None")
    cordoned: Effect = option(None, "It is out of service on purpose.", example="NoSchedule")
    held: Effect = option(None, "Another holder has what it needs.")


@frozen
class ResourceDra:
    """How a resource looks in Dynamic Resource Allocation; without effect with `serve: plugin`."""

    former_keys: ClassVar = dict.fromkeys(
        ("metadata", "status"), "it belongs to dra at the top level of the file"
    )
    """Keys of the top level's `dra`, which people write in an entry."""

    driver: DriverName = option(
        None,
        "Name of the DRA driver that publishes the devices; by default `dra.driver` of the file.",
        example="gpu.nvidia.com",
    )
    class_: ClassName = option(
        None,
        "Name of its DeviceClass; by default made from the resource's name: `serial.example.com`.",
        example="serial.example.com",
    )
    extended_name: bool = option(
        False, "Whether pods may still request the resource by its name, which the DeviceClass then carries."
    )
    claim_options: list[str] = option(
        [],
        "Keys of the backend that a claim may set for itself; a DeviceClass may set all of them.",
        example=["mode"],
    )
    profile: Profile = option(
        None,
        "The DRA driver whose attributes and capacities the devices have in slices, in place of the "
        "backend's attributes.",
        example="nvidia",
    )
    attributes: dict[str, str] = option(
        {},
        "Further attributes in slices, by name: an attribute of the backend, `resource`, `id`, or one of the "
        "device that an attribute names, such as `parent.uuid`.",
        example={"type": "kind"},
    )
    capacity: dict[str, str] = option(
        {},
        "Capacities in slices, by name: an attribute of the backend that is a number.",
        example={"memory": "memory"},
    )
    lists: bool = option(
        False,
        "Whether such an attribute may be a list, for which the API server needs the gate "
        "`DRAListTypeAttributes`.",
    )
    counters: bool = option(
        False,
        "Whether devices that exclude each other, such as a physical function and its virtual functions, are "
        "offered together, with shared counters for the scheduler.",
    )
    taints: Taints = option(
        Taints(), "Causes for which unhealthy devices have a separate taint, and its effect."
    )


@frozen
class Resource:
    """An extended resource that pods can ask for, and the devices that serve it."""

    former_keys: ClassVar = {
        camel(one.name): f"it belongs to {part}: {part}: {{{camel(one.name)}: …}}"
        for part, cls in (("dra", ResourceDra), ("give", Give), ("share", Sharing))
        for one in fields(cls)
    }
    """Keys of a part of an entry, which people write in the entry."""

    name: str = option(
        meaning="What a pod asks for, vendor-domain/name; {attribute} after the slash makes one resource "
        "for each value that exists.",
        example="example.com/serial",
    )
    backend: str = option(meaning="The backend whose devices serve this resource.", example="udev")
    name_map: dict[str, NamePart] = option(
        {},
        "What the name has instead of a value of an attribute in it.",
        example={"sym;asym": "cy"},
    )
    where: Raw = option(None, "Which devices of the backend; all of them if absent.")
    share: Sharing = option(
        Sharing(),
        "How often devices are handed out, and whether one by one or together.",
        example={"replicas": 100},
    )
    prefer: Prefer = option(Prefer.TOPOLOGY, "Which of the free devices a container gets first.")
    inject: Inject = option(Inject.DIRECT, "How a container gets its devices.")
    exclusive: bool = option(
        True,
        "Whether a device taken by this resource is lost to later ones; a device serves two resources "
        "only if both have `exclusive: false`.",
    )
    when_empty: WhenEmpty = option(
        WhenEmpty.WAIT, "Whether the resource is registered before its first device has been seen."
    )
    expect: Annotated[int | str, Ranges()] = option(
        None,
        "How many devices the resource should have, a number or a range such as `4-8` or `1-`; any other "
        "number is a problem.",
        example=8,
    )
    topology: bool = option(
        True, "Whether the kubelet's topology manager receives the NUMA nodes of the devices."
    )
    healthy_while: Raw = option(
        None,
        "What devices must hold to be healthy, in the language of `where`; those that do not stay listed as "
        "Unhealthy.",
        example={"sysattr.status": "ALIVE"},
    )
    permissions: Permissions = option(
        None,
        "What a container may do with the device nodes: `r`, `w` and `m` (mknod); by default, the backend "
        "decides.",
        example="mrw",
    )
    give: Give = option(NO_GIVE, "What a container gets besides what the backend gives for its devices.")
    optional: bool = option(
        False, "Whether a node without such a device is as expected; otherwise it is reported as a problem."
    )
    take_over: bool = option(
        False, "Whether the resource is taken over from another device plugin that serves it on this node."
    )
    check_starts: bool = option(
        False,
        "Whether a container is refused to start while the node that it was given is another device now; no "
        "container with the resource starts while devhost is not running.",
    )
    serve: ServedBy = option(
        Serve.PLUGIN,
        "How Kubernetes gets the devices: as a device plugin, or with claims of Dynamic Resource Allocation.",
    )
    dra: ResourceDra = option(ResourceDra(), "How the resource looks with `serve: dra`.")


def _check_directory(directory: Path, reader: str, usual: Path) -> None:
    if not directory.is_absolute() or ".." in directory.parts:
        hint = f"it must be the directory {reader}, such as {usual}"
        raise OptionError("must be an absolute path without ..", key="directory", hint=hint)


@frozen
class Cdi:
    """The Container Device Interface, for resources with `inject: cdi`."""

    directory: Path = option(
        CDI_DIRECTORY,
        "Directory for specification files, an absolute path that the node's container runtime reads.",
        example="/var/run/cdi",
    )

    def __post_init__(self) -> None:
        _check_directory(self.directory, "the container runtime reads", CDI_DIRECTORY)


@frozen
class DeviceInfo:
    """Device-info files, from which network plugins such as Multus learn which devices a pod got."""

    directory: Path = option(
        DEVICE_INFO_DIRECTORY,
        "Directory for the files, an absolute path that the node's network plugins read.",
        example="/var/run/k8s.cni.cncf.io/devinfo/dp",
    )
    write: bool = option(True, "Whether files are written at all.")

    def __post_init__(self) -> None:
        _check_directory(self.directory, "the network plugins read", DEVICE_INFO_DIRECTORY)


@frozen
class Labels:
    """Labels for the node, in files that Node Feature Discovery reads."""

    write: bool = option(False, "Whether files are written.")
    directory: Path = option(
        LABEL_DIRECTORY,
        "Directory for the files, an absolute path that the worker of Node Feature Discovery reads.",
        example="/etc/kubernetes/node-feature-discovery/features.d",
    )

    def __post_init__(self) -> None:
        _check_directory(self.directory, "Node Feature Discovery reads", LABEL_DIRECTORY)


@frozen
class Dra:
    """Dynamic Resource Allocation, for resources with `serve: dra`."""

    former_keys: ClassVar = {
        **dict.fromkeys(
            (
                *("class", "extendedName", "claimOptions", "profile"),
                *("attributes", "capacity", "lists", "counters", "taints"),
            ),
            "it belongs to an entry: dra under resources",
        ),
        "drivers": "each entry can name its driver: dra: {driver: gpu.nvidia.com} under resources",
    }

    driver: DriverName = option(
        meaning="Name of the DRA driver of entries that name no other one, the same on all nodes; DRA is "
        "active while this key is in the file.",
        example="devhost.example.com",
    )
    metadata: bool = option(
        False,
        "Whether containers get files with the attributes of the devices of their claims, which KubeVirt "
        "reads; for claims that are prepared from then on.",
    )
    status: bool = option(
        False,
        "Whether the status of claims has the health of their devices, and network interfaces; needs further "
        "access to the API server.",
    )


@frozen
class File:
    """Configuration of devhost: which devices of a node are offered to Kubernetes, and under which names."""

    former_keys: ClassVar = {
        camel(one.name): "it belongs to an entry under resources: indent it as far as its name"
        for one in fields(Resource)
    } | {"backend": "did you mean backends? In an entry under resources, indent it as far as its name"}
    """Keys of an entry, which are here if their indentation is wrong."""

    version: Literal[1] = option(meaning="The version of this language.", example=1)
    resources: Annotated[list[Raw], Bounds(0, MAX_RESOURCES)] = option(
        meaning="What this node offers. A device goes to the first entry that takes it.", example=[]
    )
    backends: dict[str, Raw] = option({}, "Options by backend; a backend that needs none needs no entry.")
    backend_paths: list[Path] = option(
        [],
        "Directories of drop-in backends, one `.py` file each; relative to the directory of this file.",
        example=["/etc/devhost/backends"],
    )
    cdi: Cdi = option(Cdi(), "Where specifications go for resources with `inject: cdi`.")
    device_info: DeviceInfo = option(
        DeviceInfo(), "Device-info files for network plugins, for backends that support them."
    )
    labels: Labels = option(
        Labels(), "Node labels for Node Feature Discovery: whether and where they are written."
    )
    dra: Dra = option(None, "Dynamic Resource Allocation; off if absent.")
