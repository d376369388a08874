"""Converts the JSON of k8s-rdma-shared-dev-plugin."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from dataclasses import dataclass
from glob import escape
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.language import MAX_REPLICAS, MAX_RESOURCES, naming
from devhost.config.reader import Bounds, Form, keys

from .network_operator import NAMED, configuration
from .source import Driver, Id, Source, Text, odd_ids, pci_id, some
from .writing import Entry, Written, document, several

_Name = Annotated[str, Form("[a-zA-Z0-9_]+", "a name", "letters, digits and _ only")]
_Where = dict[str, KeysView[str]]  # the values of attributes, each once


@dataclass(frozen=True, slots=True)
class _Selectors:
    vendors: tuple[Id, ...] = ()
    device_IDs: tuple[Id, ...] = ()
    drivers: tuple[Driver, ...] = ()
    if_names: tuple[Text, ...] = ()
    link_types: tuple[Literal["ether", "infiniband"], ...] = ()


@dataclass(frozen=True, slots=True)
class _RdmaResource:
    resource_name: _Name = option(example='"hca_shared_devices_a"')
    resource_prefix: str = ""
    rdma_hca_max: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0
    selectors: _Selectors = _Selectors()
    devices: tuple[Text, ...] = ()

    def __post_init__(self) -> None:
        if problem := naming.problem(self.name):
            raise OptionError(f"{shown(self.name)} {problem}", key="resourceName")
        has_selectors = self.selectors != _Selectors()
        if self.devices and has_selectors:
            raise OptionError("not allowed with selectors", key="devices", hint="put the names into ifNames")
        if not self.devices and not has_selectors:
            known = ", ".join(keys(_Selectors))
            raise OptionError("it selects nothing: neither selectors nor devices", hint=f"selectors: {known}")

    @property
    def name(self) -> str:
        return f"{self.resource_prefix or 'rdma'}/{self.resource_name}"

    def where(self) -> _Where:
        """The selectors as attributes of the rdma backend, without those that are not given."""
        found = {
            "vendor": map(pci_id, self.selectors.vendors),
            "device": map(pci_id, self.selectors.device_IDs),
            "driver": map(escape, self.selectors.drivers),
            "netDevs": map(escape, self.devices or self.selectors.if_names),
            "linkLayer": (one.replace("ether", "ethernet") for one in self.selectors.link_types),
        }
        unique = {key: dict.fromkeys(values).keys() for key, values in found.items()}
        where: _Where = {key: values for key, values in unique.items() if values}
        return where if {"vendor", "device"} & where.keys() else {**where, "pciBusID": {"*": None}.keys()}


@dataclass(frozen=True, slots=True)
class _File:
    config_list: Annotated[tuple[_RdmaResource, ...], Bounds(1, MAX_RESOURCES)] = option()
    periodic_update_interval: Annotated[int, Bounds(0, 2**31 - 1)] | None = None

    def __post_init__(self) -> None:
        names = [one.resource_name for one in self.config_list]
        for n, name in enumerate(names):
            # the names of the plugin's sockets have no prefix, so it refuses this as well
            if name in names[:n]:
                raise OptionError(f"{shown(name)} occurs twice", key=f"configList[{n}].resourceName")


def convert(source: Source) -> str:
    found, options = configuration(source, "rdmaSharedDevicePlugin", "configList", "k8s-rdma-shared")
    if options is not None:
        options.finish("config-file", "version", **NAMED)
    # of the examples; no version reads it
    read = found.as_dataclass(_File, source.note, kubeletRootDir="use `devhost run --kubelet-dir` instead")
    if (time := read.periodic_update_interval) is not None:
        source.note(f"periodicUpdateInterval: {time} is omitted: the kernel notifies devhost of changes.")
    served = {one.name: one.where() for one in read.config_list if one.rdma_hca_max}
    entries = [_entry(one, n, served) for n, one in enumerate(read.config_list)]
    return document(source, "k8s-rdma-shared-dev-plugin", _DIFFERS, entries)


def _entry(resource: _RdmaResource, number: int, served: Mapping[str, _Where]) -> Entry:
    ids = (*resource.selectors.vendors, *resource.selectors.device_IDs)
    remarks = [*odd_ids(ids, f"configList[{number}].selectors")]
    if not resource.rdma_hca_max:
        remarks.append(f"{resource.name} has rdmaHcaMax 0, so no pod could ever get it: omitted.")
        return Entry(remarks=remarks)
    mine = served[resource.name]
    where = {key: several([*values]) for key, values in mine.items()}
    if "pciBusID" in where:
        remarks.append("pciBusID: the plugin offers only PCI devices, no rxe or siw.")
    remarks += [
        "The second block is for an HCA that carries the node's own network, which the plugin offers too.",
        "Each container gets all of these HCAs. To give each container one HCA, near its CPUs, with this "
        "number of replicas for every HCA, remove `of: all`.",
    ]
    share: Written = {"replicas": resource.rdma_hca_max, "of": "all"}
    keys: dict[str, Written] = {"share": share, "permissions": "rwm"}
    met = [name for name, one in served.items() if name != resource.name and _meet(mine, one)]
    if names := some(met, 3):
        remarks.append(f"If an HCA is also selected by {names}, it serves both, as with the plugin.")
        keys["exclusive"] = False
    keys["whenEmpty"] = "register"
    return Entry(resource.name, "rdma", [where, where | {"purpose": "node-network"}], keys, remarks)


def _meet(one: _Where, other: _Where) -> bool:
    """Whether no selector that both have excludes a common HCA."""
    for key, values in one.items():
        if key in other and values.isdisjoint(other[key]):
            return False
    return True


_DIFFERS = [
    "devhost does not give an HCA without an active port to containers, the plugin does. To allow it, set "
    "backends: {rdma: {ignorePortState: true}}",
    "devhost also gives an HCA without umad (iWARP) or a scalable function, the plugin never does",
    "devhost does not give an HCA for the subnet manager of NVSwitches to containers, the plugin does. To "
    "allow it, add a block with purpose: fabric-management",
    "the plugin sets interfaces up, devhost does not change the host",
    "the plugin does not start if each network namespace has its own RDMA devices, devhost does",
]
