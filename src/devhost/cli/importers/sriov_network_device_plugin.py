"""Converts the JSON of sriov-network-device-plugin to devhost.yaml.

The input is its configuration file, a ConfigMap that contains one (or one for each node, under the node's
name), or a NicClusterPolicy or NicNodePolicy of the NVIDIA network operator, which contain it as a string.
What the plugin refuses is refused as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.backend.where import Where, covers
from devhost.config.diagnostics import Diagnostics, Place, one_line, shown
from devhost.config.document import Items, Node
from devhost.config.language import MAX_RESOURCES
from devhost.config.reader import WRONG, Bounds, Raw, keys, read_dataclass, read_fields
from devhost.planning import naming

from .gojson import Remark, known
from .kubernetes import Object, objects, unwrapped
from .notation import quoted, text
from .sriov_selectors import READ, DeviceType, Selectors, condition
from .workload import containers

DEFAULT_PREFIX = "intel.com"
"""The domain of a resource without ``resourcePrefix``, unless the plugin's flag of that name sets another."""

CONFIG_KEY = "config.json"
"""The key of a ConfigMap that the plugin's manifests use."""

FIELDS = dict.fromkeys(("NicClusterPolicy", "NicNodePolicy"), ("spec", "sriovDevicePlugin", "config"))
"""The place in the network operator's objects: one for the cluster, or one for a group of nodes."""

_BELONGS = dict.fromkeys(FIELDS, (("spec", "rdmaSharedDevicePlugin", "config"), "rdma-shared-dev-plugin"))
"""Configurations of other plugins in these objects, and their importers."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_BARE = frozenset({"kind", "acpiIndex", "isRdma", "vdpaType"})
"""Attributes whose values need no quotes in YAML."""

_ELSEWHERE = {"isRdma": "put it into selectors", "needVhostNet": "put it into selectors"}
"""Keys that only old versions read in a resource."""


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


@dataclass(frozen=True, slots=True)
class _Import:
    """A resource under its full name, what it selects, and remarks on its source."""

    name: str
    resource: _Resource
    selectors: Sequence[Selectors]
    remarks: Sequence[Remark]

    def where(self) -> list[dict[str, tuple[str, ...]]]:
        return [block for one in self.selectors for block in one.where(self.resource.device_type)]

    def asks(self) -> Iterator[tuple[str, str, Sequence[Selectors]]]:
        """Keys of the entry that some selectors request, and the keys of these selectors."""
        for key, there, some in (
            ("rdma", "isRdma", [one for one in self.selectors if one.is_rdma]),
            ("vhostNet", "needVhostNet", [one for one in self.selectors if one.need_vhost_net]),
        ):
            if some:
                yield key, there, some


def convert(data: bytes, file_name: str, prefix: str = "", key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or a Kubernetes object that contains it, as JSON or YAML.
        file_name: appears in the diagnostics.
        prefix: the value of the plugin's flag ``--resource-prefix``. If empty, the value in a DaemonSet in
            the same file, else :data:`DEFAULT_PREFIX`.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    diagnostics = Diagnostics(file_name)
    found = objects(data, diagnostics)
    prefix = prefix or _prefix(found) or DEFAULT_PREFIX
    node, place = unwrapped(
        found,
        config_map_key=key or CONFIG_KEY,
        fields=FIELDS,
        choose_key="choose one with --key",
        belongs=_BELONGS,
    )
    remarks: list[Remark] = []
    values = read_fields(known(node, keys(_File), place, remarks.append), _File, place)
    nodes = values.get("resource_list", ())
    imports = _imports(nodes, place.key("resourceList"), prefix)
    for collected in (diagnostics, place.diagnostics):
        if collected.found:
            raise collected.error()
    return "\n".join(_written(imports, remarks)) + "\n"


def _prefix(found: Sequence[Object]) -> str:
    """The value of the flag in the object that runs the plugin; empty if there is none."""
    flags = (flag for one in found for container in containers(one) for flag in container.flags())
    return next((flag.value.text for flag in flags if flag.name == "resource-prefix"), "")


def _imports(nodes: Sequence[Node], place: Place, prefix: str) -> list[_Import]:
    found: list[_Import] = []
    names: set[str] = set()
    for index, node in enumerate(nodes):
        here = place.item(index)
        remarks: list[Remark] = []
        fields = known(node, keys(_Resource), here, remarks.append, _ELSEWHERE)
        resource = read_dataclass(fields, _Resource, here)
        selectors: list[Selectors] = []
        if resource is not WRONG:
            kind = resource.device_type
            selectors = list(_selectors(resource.selectors, kind, here.key("selectors"), remarks.append))
            name = f"{resource.resource_prefix or prefix}/{resource.resource_name}"
            if problem := naming.problem(name):
                here.key("resourceName").report(node, f"{shown(name)} {problem}")
            elif name in names:
                here.key("resourceName").report(node, f"{shown(name)} occurs twice")
            names.add(name)
            found.append(_Import(name, resource, selectors, remarks))
        if not selectors:
            for remark in remarks:  # they may explain the error
                here.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
    return found


def _selectors(
    node: Node, kind: DeviceType, place: Place, remark: Callable[[Remark], None]
) -> Iterator[Selectors]:
    """The objects of which one must select a device; for the plugin one object is a list of one."""
    several = isinstance(node, Items)
    if isinstance(node, Items) and not node.items:
        place.report(node, "an empty list selects nothing", "write {} to select every function")
    for n, item in enumerate(node.items if isinstance(node, Items) else (node,)):
        here = place.item(n) if several else place
        selectors = read_dataclass(known(item, READ[kind], here, remark), Selectors, here)
        if selectors is WRONG:
            continue
        if kind is DeviceType.AUXILIARY and not selectors.aux_types:
            here.report(item, "an auxNetDevice requires auxTypes", 'write "auxTypes": ["sf"]')
            continue
        for one in selectors.remarks(item.mark, here.path):
            remark(one)
        yield selectors


def _written(imports: Sequence[_Import], remarks: Sequence[Remark]) -> Iterator[str]:
    yield "# Converted from a configuration of sriov-network-device-plugin. Differences:"
    yield "# - the plugin ignores the case of interface names, devhost does not;"
    yield "# - the plugin keeps only an interface with the IPv4 default route for the node. devhost also"
    yield (
        "#   keeps one with the IPv6 route, one below a bond, bridge or VLAN with a default route, "
        "and the one"
    )
    yield "#   with the address of the kubelet;"
    yield "# - the plugin gives two functions of one IOMMU group, or a function and a part of it, to two"
    yield "#   pods, devhost never does;"
    yield "# - for the plugin a function is always healthy. For devhost it is unhealthy while the port of its"
    yield "#   physical function has no carrier, or a node that it needs is missing. To ignore ports, set"
    yield "#   backends: {sriov: {ignorePortState: true}}."
    for remark in remarks:
        yield f"# {remark}"
    yield "version: 1"
    yield ""
    kept = list(_kept(imports))
    yield "resources:" if any(not reason for *_, reason in kept) else "resources: []"
    for one, where, reason in kept:
        yield from _comments(one)
        if reason:
            yield f"  # {one.name} {one_line(reason)}, neither with the plugin nor with devhost: omitted."
        else:
            yield from _entry(one, where)
            if one.resource.exclude_topology:
                yield "    topology: false"


def _kept(
    imports: Sequence[_Import],
) -> Iterator[tuple[_Import, list[dict[str, tuple[str, ...]]], str]]:
    """Each resource with its blocks, and the reason if it can never offer anything."""
    before: list[tuple[str, Where]] = []
    for one in imports:
        where = one.where()
        means = condition(where)
        takers = [next((name for name, all_ in before if covers(all_, (block,))), "") for block in means]
        if not where:
            yield one, where, "selects nothing"
        elif all(takers):
            names = " and ".join(dict.fromkeys(takers))
            yield one, where, f"gets no device: {names} takes all of them first"
        else:
            before.append((one.name, means))
            yield one, where, ""


def _comments(one: _Import) -> Iterator[str]:
    for remark in one.remarks:
        yield f"  # {remark}"


def _entry(one: _Import, where: Sequence[Mapping[str, tuple[str, ...]]]) -> Iterator[str]:
    yield f"  - name: {text(one.name)}"
    yield "    backend: sriov"
    yield "    where:"
    for block in where:
        for n, (key, values) in enumerate(block.items()):
            written = ", ".join(values if key in _BARE else map(_value, values))
            indent = "      " if len(where) == 1 else "      - " if n == 0 else "        "
            yield f"{indent}{key}: {f'[{written}]' if len(values) > 1 else written}"
    for asked, there, some in one.asks():
        if len(some) < len(one.selectors):
            yield f"    # {there} is set in some of its selectors; devhost applies it to the whole resource"
        yield f"    {asked}: true"
    info = {device: words for device, words in one.resource.additional_info.items() if words}
    if info:
        yield "    info:"
    for device, words in info.items():
        yield f"      {quoted(device)}:"
        yield from (f"        {quoted(key)}: {quoted(value)}" for key, value in words.items())


def _value(value: str) -> str:
    """Most ids and ranges look like numbers in YAML."""
    return text(value) if value[:1].isalpha() else quoted(value)
