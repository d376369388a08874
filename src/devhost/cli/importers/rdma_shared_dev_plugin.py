"""Converts the JSON of k8s-rdma-shared-dev-plugin to devhost.yaml.

The input is its configuration file, a ConfigMap that contains one, or a NicClusterPolicy or NicNodePolicy of
the NVIDIA network operator, which contain it as a string. What the plugin refuses is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown, suggest
from devhost.config.language import MAX_REPLICAS, MAX_RESOURCES, naming
from devhost.config.reader import WRONG, Bounds, Raw, keys

from .gojson import Remark, check_ids, check_texts, literal, odd_ids, pci_id
from .network_operator import NAMED, configuration
from .source import Source, Value
from .writing import Entry, Written, document, several

DEFAULT_PREFIX = "rdma"
"""The domain of a resource that has no ``resourcePrefix``."""

_OF_THE_PROCESS = {"kubeletRootDir": "use `devhost run --kubelet-dir` instead"}
"""Keys in the plugin's examples that no version of it reads, and where they belong."""

_NAME = re.compile(r"[a-zA-Z0-9_]+")
_LINK_LAYERS = {"ether": "ethernet", "infiniband": "infiniband"}


@dataclass(frozen=True, slots=True)
class _Selectors:
    vendors: tuple[str, ...] = ()
    device_IDs: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    if_names: tuple[str, ...] = ()
    link_types: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, (field, _) in keys(_Selectors).items():
            check_texts(key, getattr(self, field.name))
        check_ids("vendors", self.vendors)
        check_ids("deviceIDs", self.device_IDs)
        for n, value in enumerate(self.link_types):
            if value not in _LINK_LAYERS:
                hint = suggest(value, _LINK_LAYERS, "link types")
                raise OptionError(f"{shown(value)} is not a link type", key=f"linkTypes[{n}]", hint=hint)

    def where(self) -> dict[str, tuple[str, ...]]:
        """The same as attributes of the rdma backend, without keys that are not given."""
        found = {
            "vendor": tuple(map(pci_id, self.vendors)),
            "device": tuple(map(pci_id, self.device_IDs)),
            "driver": tuple(map(literal, self.drivers)),
            "netDevs": tuple(map(literal, self.if_names)),
            "linkLayer": tuple(_LINK_LAYERS[value] for value in self.link_types),
        }
        return {key: tuple(dict.fromkeys(values)) for key, values in found.items() if values}


@dataclass(frozen=True, slots=True)
class _Resource:
    resource_name: str = option(example='"hca_shared_devices_a"')
    resource_prefix: str = ""
    rdma_hca_max: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0
    selectors: _Selectors = _Selectors()
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.resource_name):
            hint = "letters, digits and _ only"
            raise OptionError(f"{shown(self.resource_name)} is not a name", key="resourceName", hint=hint)
        if problem := naming.problem(self.name):
            raise OptionError(f"{shown(self.name)} {problem}", key="resourceName")
        if self.devices and self.selectors != _Selectors():
            raise OptionError(
                "it cannot be combined with selectors", key="devices", hint="put the names into ifNames"
            )
        if not self.devices and self.selectors == _Selectors():
            known = ", ".join(keys(_Selectors))
            raise OptionError("it selects nothing: neither selectors nor devices", hint=f"selectors: {known}")
        check_texts("devices", self.devices)

    @property
    def name(self) -> str:
        return f"{self.resource_prefix or DEFAULT_PREFIX}/{self.resource_name}"

    def where(self) -> dict[str, tuple[str, ...]]:
        selectors = replace(self.selectors, if_names=self.devices) if self.devices else self.selectors
        found = selectors.where()
        if not {"vendor", "device"} & found.keys():
            found["pciBusID"] = ("*",)
        return found


@dataclass(frozen=True, slots=True)
class _File:
    config_list: Annotated[tuple[Raw, ...], Bounds(1, MAX_RESOURCES)] = option()
    periodic_update_interval: Annotated[int, Bounds(0, 2**31 - 1)] | None = None


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    ``key`` is the entry of a ConfigMap to read; ``config.json`` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, "rdma-shared-dev-plugin")
    found, options = configuration(source, "rdmaSharedDevicePlugin", "configList", "k8s-rdma-shared", key)
    if options is not None:
        options.finish("config-file", "v", "version", "logtostderr", "stderrthreshold", named=NAMED)
    read = found.as_dataclass(_File, source.remark, _OF_THE_PROCESS)
    imports: list[tuple[_Resource, list[str]]] = []
    if read is not WRONG:
        if read.periodic_update_interval is not None:
            what = f"periodicUpdateInterval: {read.periodic_update_interval} is omitted"
            source.note(f"{what}: the kernel notifies devhost of changes.")
        place = found.place.key("configList")
        listed = enumerate(read.config_list)
        imports = _imports([replace(found, node=node, place=place.item(n)) for n, node in listed])
    source.check()
    served = {
        one.name: {key: {*values} for key, values in one.where().items() if key != "pciBusID"}
        for one, _ in imports
        if one.rdma_hca_max
    }
    entries = [_entry(one, remarks, served) for one, remarks in imports]
    return document(source, "k8s-rdma-shared-dev-plugin", _DIFFERS, entries)


def _imports(values: Sequence[Value]) -> list[tuple[_Resource, list[str]]]:
    """The resources, and remarks on the source of each."""
    found: list[tuple[_Resource, list[str]]] = []
    names: set[str] = set()
    for value in values:
        remarks: list[Remark] = []
        resource = value.as_dataclass(_Resource, remarks.append)
        if resource is WRONG:
            continue
        if (name := resource.resource_name) in names:
            # the names of the plugin's sockets have no prefix, so it refuses this as well
            value.place.key("resourceName").report(value.node, f"{shown(name)} occurs twice")
        names.add(name)
        ids = (*resource.selectors.vendors, *resource.selectors.device_IDs)
        remarks += odd_ids(ids, value.node.mark, value.place.key("selectors").path)
        found.append((resource, list(map(str, remarks))))
    return found


def _overlapping(name: str, served: Mapping[str, Mapping[str, Set[str]]]) -> list[str]:
    """The other resources that can have an HCA in common: no selector that both have excludes it."""
    mine = served[name]
    return [
        other
        for other, theirs in served.items()
        if other != name and all(mine[key] & theirs[key] for key in mine.keys() & theirs.keys())
    ]


def _entry(resource: _Resource, remarks: list[str], served: Mapping[str, Mapping[str, Set[str]]]) -> Entry:
    if not resource.rdma_hca_max:
        why = f"{resource.name} has rdmaHcaMax 0, so no pod could ever get it: omitted."
        return Entry(remarks=[*remarks, why])
    where = {key: several(values) for key, values in resource.where().items()}
    if "pciBusID" in where:
        remarks.append("pciBusID: the plugin offers only PCI devices, no rxe or siw.")
    remarks += [
        "The second block is for an HCA that carries the node's own network, which the plugin offers too.",
        "Each container gets all of these HCAs. To give each container one HCA, near its CPUs, with this "
        "number of replicas for every HCA, remove `of: all`.",
    ]
    share: Written = {"replicas": resource.rdma_hca_max, "of": "all"}
    keys: dict[str, Written] = {"share": share, "permissions": "rwm"}
    if overlapping := _overlapping(resource.name, served):
        few = ", ".join(overlapping[:3])
        few += f" and {len(overlapping) - 3} more" if len(overlapping) > 3 else ""
        remarks.append(f"If an HCA is also selected by {few}, it serves both, as with the plugin.")
        keys["exclusive"] = False
    keys["whenEmpty"] = "register"
    return Entry(resource.name, "rdma", [where, where | {"purpose": "node-network"}], keys, remarks)


_DIFFERS = [
    "devhost does not give an HCA without an active port to containers, the plugin does. To allow it, set "
    "backends: {rdma: {ignorePortState: true}}",
    "devhost also gives an HCA without umad (iWARP) or a scalable function, the plugin never does",
    "devhost does not give an HCA for the subnet manager of NVSwitches to containers, the plugin does. To "
    "allow it, add a block with purpose: fabric-management",
    "the plugin sets interfaces up, devhost does not change the host",
    "the plugin does not start if each network namespace has its own RDMA devices, devhost does",
]
