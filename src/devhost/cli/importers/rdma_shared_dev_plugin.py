"""Converts the JSON of k8s-rdma-shared-dev-plugin to devhost.yaml.

The input is its configuration file, a ConfigMap that contains one, or a NicClusterPolicy or NicNodePolicy of
the NVIDIA network operator, which contain it as a string. What the plugin refuses is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import Diagnostics, Place, shown, suggest
from devhost.config.document import Entry, Fields, Node
from devhost.config.language import MAX_RESOURCES
from devhost.config.reader import WRONG, Bounds, Raw, keys, read_dataclass, read_fields
from devhost.planning import naming
from devhost.planning.settings import MAX_REPLICAS

from .gojson import Remark, check_ids, check_texts, known, literal, odd_ids, pci_id
from .kubernetes import objects, unwrapped
from .notation import quoted, text

DEFAULT_PREFIX = "rdma"
"""The domain of a resource that has no ``resourcePrefix``."""

CONFIG_KEY = "config.json"
"""The key of a ConfigMap that the plugin's manifests use."""

FIELDS = dict.fromkeys(("NicClusterPolicy", "NicNodePolicy"), ("spec", "rdmaSharedDevicePlugin", "config"))
"""The place in the network operator's objects: one for the cluster, or one for a group of nodes."""

_BELONGS = dict.fromkeys(FIELDS, (("spec", "sriovDevicePlugin", "config"), "sriov-network-device-plugin"))
"""Configurations of other plugins in these objects, and their importers."""

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
    periodic_update_interval: Annotated[int, Bounds(0, 2**31 - 1)] = 60


@dataclass(frozen=True, slots=True)
class _Import:
    """A resource, and remarks on its source."""

    resource: _Resource
    remarks: Sequence[Remark]


def convert(data: bytes, file_name: str) -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or a Kubernetes object that contains it, as JSON or YAML.
        file_name: appears in the diagnostics.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    diagnostics = Diagnostics(file_name)
    found = objects(data, diagnostics)
    node, place = unwrapped(found, config_map_key=CONFIG_KEY, fields=FIELDS, belongs=_BELONGS)
    remarks: list[Remark] = []
    values = read_fields(known(node, keys(_File), place, remarks.append, _OF_THE_PROCESS), _File, place)
    imports = _imports(values.get("config_list", ()), place.key("configList"))
    for collected in (diagnostics, place.diagnostics):
        if collected.found:
            raise collected.error()
    return "\n".join(_written(imports, values.get("periodic_update_interval"), remarks)) + "\n"


def _imports(nodes: Sequence[Node], place: Place) -> list[_Import]:
    found: list[_Import] = []
    names: set[str] = set()
    for index, node in enumerate(nodes):
        here = place.item(index)
        remarks: list[Remark] = []
        fields = known(node, keys(_Resource), here, remarks.append)
        if isinstance(fields, Fields) and "selectors" in fields.entries:
            entry = fields.entries["selectors"]
            selectors = known(entry.value, keys(_Selectors), here.key("selectors"), remarks.append)
            fields.entries["selectors"] = Entry(entry.mark, selectors)
        resource = read_dataclass(fields, _Resource, here)
        if resource is WRONG:
            for remark in remarks:  # they may explain the error
                here.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
            continue
        if resource.resource_name in names:
            # the names of the plugin's sockets have no prefix, so it refuses this as well
            here.key("resourceName").report(node, f"{shown(resource.resource_name)} occurs twice")
        names.add(resource.resource_name)
        ids = (*resource.selectors.vendors, *resource.selectors.device_IDs)
        remarks += odd_ids(ids, node.mark, here.key("selectors").path)
        found.append(_Import(resource, remarks))
    return found


class _Overlaps:
    """Finds the resources that can have an HCA in common: no selector that both have excludes it."""

    def __init__(self, served: Mapping[str, Mapping[str, tuple[str, ...]]]) -> None:
        self._served = served
        self._order = {name: n for n, name in enumerate(served)}
        self._selecting: dict[tuple[str, str], set[str]] = {}
        self._limited: dict[str, set[str]] = {}
        for name, where in served.items():
            for key, values in where.items():
                if "*" not in values:
                    self._limited.setdefault(key, set()).add(name)
                    for value in values:
                        self._selecting.setdefault((key, value), set()).add(name)

    def of(self, name: str) -> list[str]:
        """The other resources that overlap with this one, in the order of the file."""
        found = self._served.keys() - {name}
        for key, values in self._served[name].items():
            if "*" not in values:
                excluded = self._limited[key].difference(*(self._selecting[key, value] for value in values))
                found -= excluded
        return sorted(found, key=self._order.__getitem__)


def _written(imports: Sequence[_Import], interval: int | None, remarks: Sequence[Remark]) -> Iterator[str]:
    yield "# Converted from a configuration of k8s-rdma-shared-dev-plugin. Differences:"
    yield "# - devhost does not give an HCA without an active port to containers, the plugin does. To allow"
    yield "#   it, set backends: {rdma: {ignorePortState: true}};"
    yield "# - devhost also gives an HCA without umad (iWARP) or a scalable function, the plugin never does;"
    yield "# - devhost does not give an HCA for the subnet manager of NVSwitches to containers, the plugin"
    yield "#   does. To allow it, add a block with purpose: fabric-management;"
    yield "# - the plugin sets interfaces up, devhost does not change the host;"
    yield "# - the plugin does not start if each network namespace has its own RDMA devices, devhost does."
    if interval is not None:
        yield f"# periodicUpdateInterval: {interval} is omitted: the kernel notifies devhost of changes."
    for remark in remarks:
        yield f"# {remark}"
    yield "version: 1"
    yield ""
    served = {one.resource.name: one.resource.where() for one in imports if one.resource.rdma_hca_max}
    overlaps = _Overlaps(served)
    yield "resources:" if served else "resources: []"
    for one in imports:
        resource = one.resource
        for remark in one.remarks:
            yield f"  # {remark}"
        if resource.rdma_hca_max:
            yield from _entry(resource, overlaps.of(resource.name))
        else:
            yield f"  # {resource.name} has rdmaHcaMax 0, so no pod could ever get it: omitted."


def _block(resource: _Resource, *more: str) -> Iterator[str]:
    """One block of ``where``."""
    start = "      - "
    for key, values in resource.where().items():
        # most ids look like numbers in YAML
        written = ", ".join(map(quoted if key in ("vendor", "device") else text, values))
        why = "  # the plugin offers only PCI devices, no rxe or siw" if key == "pciBusID" else ""
        yield f"{start}{key}: {f'[{written}]' if len(values) > 1 else written}{why}"
        start = "        "
    yield from (f"{start}{line}" for line in more)


def _entry(resource: _Resource, overlapping: Sequence[str]) -> Iterator[str]:
    yield f"  - name: {text(resource.name)}"
    yield "    backend: rdma"
    yield "    where:"
    yield from _block(resource)
    yield "      # An HCA that carries the node's own network, which the plugin offers too."
    yield from _block(resource, "purpose: node-network")
    yield "    # Each container gets all of these HCAs. To give each container one HCA, near its CPUs, with"
    yield "    # this number of replicas for every HCA, remove `of: all`."
    yield f"    share: {{replicas: {resource.rdma_hca_max}, of: all}}"
    yield "    permissions: rwm"
    if overlapping:
        few = ", ".join(overlapping[:3]) + (
            f" and {len(overlapping) - 3} more" if len(overlapping) > 3 else ""
        )
        yield f"    # If an HCA is also selected by {few}, it serves both, as with the plugin."
        yield "    exclusive: false"
    yield "    whenEmpty: register"
