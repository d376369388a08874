"""Converts the JSON of sriov-network-device-plugin to devhost.yaml.

The input is its configuration file, a ConfigMap that contains one (or one for each node, under the node's
name), or a NicClusterPolicy or NicNodePolicy of the NVIDIA network operator, which contain it as a string.
What the plugin refuses is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Items
from devhost.config.language import MAX_RESOURCES, naming
from devhost.config.reader import WRONG, Bounds, Raw

from .gojson import Remark
from .network_operator import NAMED, configuration
from .source import Source, Value
from .sriov_selectors import READ, DeviceType, Selectors
from .writing import Entry, Written, document, several

DEFAULT_PREFIX = "intel.com"
"""The domain of a resource without ``resourcePrefix``, unless the plugin's flag of that name sets another."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_ELSEWHERE = {"isRdma": "put it into selectors", "needVhostNet": "put it into selectors"}
"""Keys that only old versions read in a resource."""

_OF_THE_PROCESS = ("config-file", "log-dir", "log-level", "log_dir", "logtostderr", "stderrthreshold", "v")


@dataclass(frozen=True, slots=True)
class _Resource:
    resource_name: str = option(example='"intel_sriov_dpdk"')
    selectors: Raw = option(example='{"vendors": ["8086"]}')
    resource_prefix: str = ""
    device_type: DeviceType = DeviceType.NET
    exclude_topology: bool = False
    additional_info: dict[str, dict[str, str]] = option({})

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.resource_name):
            hint = "letters, digits, - and _ only"
            raise OptionError(f"{shown(self.resource_name)} is not a name", key="resourceName", hint=hint)


@dataclass(frozen=True, slots=True)
class _File:
    resource_list: Annotated[tuple[Raw, ...], Bounds(1, MAX_RESOURCES)] = option()


def convert(data: bytes, file_name: str, prefix: str = "", key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    ``prefix`` is the value of the plugin's flag ``--resource-prefix``. If empty, the value in a DaemonSet
    in the same file, else :data:`DEFAULT_PREFIX`. ``key`` is the entry of a ConfigMap to read.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, "sriov-network-device-plugin")
    found, options = configuration(
        source, "sriovDevicePlugin", "resourceList", "sriov-network-device-plugin", key
    )
    if options is not None:
        if option := options.flag("resource-prefix"):
            prefix = prefix or option.text
        options.finish(*_OF_THE_PROCESS, named=NAMED)
    read = found.as_dataclass(_File, source.remark)
    entries: list[Entry] = []
    names: set[str] = set()
    for n, node in enumerate(() if read is WRONG else read.resource_list):
        value = replace(found, node=node, place=found.place.key("resourceList").item(n))
        entries += _entries(value, prefix or DEFAULT_PREFIX, names)
    return document(source, "sriov-network-device-plugin", _DIFFERS, entries)


def _entries(value: Value, prefix: str, names: set[str]) -> Iterator[Entry]:
    here, remarks = value.place, list[Remark]()
    resource = value.as_dataclass(_Resource, remarks.append, _ELSEWHERE)
    if resource is WRONG:
        return
    given = replace(value, node=resource.selectors, place=here.key("selectors"))
    selectors = list(_selectors(given, resource.device_type, remarks.append))
    name = f"{resource.resource_prefix or prefix}/{resource.resource_name}"
    if problem := naming.problem(name):
        here.key("resourceName").report(value.node, f"{shown(name)} {problem}")
    elif name in names:
        here.key("resourceName").report(value.node, f"{shown(name)} occurs twice")
    names.add(name)
    said = [str(remark) for remark in remarks]
    where = [
        {key: _written(key, values) for key, values in block.items()}
        for one in selectors
        for block in one.where(resource.device_type)
    ]
    if not where:
        why = f"{name} selects nothing, neither with the plugin nor with devhost: omitted."
        yield Entry(remarks=[*said, why])
        return
    keys: dict[str, Written] = {}
    for key, there, some in (
        ("rdma", "isRdma", [one for one in selectors if one.is_rdma]),
        ("vhostNet", "needVhostNet", [one for one in selectors if one.need_vhost_net]),
    ):
        if some:
            keys[key] = True
        if some and len(some) < len(selectors):
            said.append(f"{there} is set in some of its selectors; devhost applies it to the whole resource.")
    if info := {device: words for device, words in resource.additional_info.items() if words}:
        keys["info"] = info
    if resource.exclude_topology:
        keys["topology"] = False
    yield Entry(name, "sriov", where, keys, said)


def _written(key: str, values: Sequence[str]) -> Written:
    """The values of an attribute, without quotes for numbers and booleans."""
    if key == "isRdma":
        return True
    return [int(one) for one in values] if key == "acpiIndex" else several(values)


def _selectors(given: Value, kind: DeviceType, remark: Callable[[Remark], None]) -> Iterator[Selectors]:
    """The objects of which one must select a device; for the plugin one object is a list of one."""
    node = given.node
    if isinstance(node, Items) and not node.items:
        given.place.report(node, "an empty list selects nothing", "write {} to select every function")
    for value in given.each() if isinstance(node, Items) else (given,):
        selectors = value.as_dataclass(Selectors, remark, only=READ[kind])
        if selectors is WRONG:
            continue
        if kind is DeviceType.AUXILIARY and not selectors.aux_types:
            value.place.report(value.node, "an auxNetDevice requires auxTypes", 'write "auxTypes": ["sf"]')
            continue
        for one in selectors.remarks(value.node.mark, value.place.path):
            remark(one)
        yield selectors


_DIFFERS = [
    "the plugin ignores the case of interface names, devhost does not",
    "the plugin keeps only an interface with the IPv4 default route for the node. devhost also keeps one "
    "with the IPv6 route, one below a bond, bridge or VLAN with a default route, and the one with the "
    "address of the kubelet",
    "the plugin gives two functions of one IOMMU group, or a function and a part of it, to two pods, devhost "
    "never does",
    "for the plugin a function is always healthy. For devhost it is unhealthy while the port of its physical "
    "function has no carrier, or a node that it needs is missing. To ignore ports, set backends: {sriov: "
    "{ignorePortState: true}}",
]
