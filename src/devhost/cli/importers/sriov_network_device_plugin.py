"""sriov-network-device-plugin's JSON → devhost.yaml.

Read are its configuration file, a ConfigMap that holds one (or one for each node, under the node's name), and
a NicClusterPolicy or NicNodePolicy of NVIDIA's network operator, which have it as a string. What the plugin
refuses is refused here.
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
"""The domain of a resource without ``resourcePrefix``, unless the plugin's flag of that name says another."""

CONFIG_KEY = "config.json"
"""The key of a ConfigMap that the plugin's own manifests use."""

FIELDS = dict.fromkeys(("NicClusterPolicy", "NicNodePolicy"), ("spec", "sriovDevicePlugin", "config"))
"""Where the network operator's objects have it: one for the cluster, or one for a group of nodes."""

_BELONGS = dict.fromkeys(FIELDS, (("spec", "rdmaSharedDevicePlugin", "config"), "rdma-shared-dev-plugin"))
"""What else they may have, and who imports that."""

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_BARE = frozenset({"kind", "acpiIndex", "isRdma", "vdpaType"})
"""Attributes whose values YAML takes for what they are without quotes."""

_ELSEWHERE = {"isRdma": "put it into selectors", "needVhostNet": "put it into selectors"}
"""Keys of a resource that only old versions read there."""


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
    """A resource under its full name, what it selects, and what is to be said of its source."""

    name: str
    resource: _Resource
    selectors: Sequence[Selectors]
    remarks: Sequence[Remark]

    def where(self) -> list[dict[str, tuple[str, ...]]]:
        return [block for one in self.selectors for block in one.where(self.resource.device_type)]

    def asks(self) -> Iterator[tuple[str, str, Sequence[Selectors]]]:
        """Keys of the entry that some selectors ask for by one of their own, and which those are."""
        for key, there, some in (
            ("rdma", "isRdma", [one for one in self.selectors if one.is_rdma]),
            ("vhostNet", "needVhostNet", [one for one in self.selectors if one.need_vhost_net]),
        ):
            if some:
                yield key, there, some


def convert(data: bytes, file_name: str, prefix: str = "", key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or a Kubernetes object that holds it, as JSON or YAML.
        file_name: stands in the diagnostics.
        prefix: what the plugin's flag ``--resource-prefix`` was given. If empty, what a DaemonSet in the same
            file gives it, else :data:`DEFAULT_PREFIX`.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: the plugin would refuse it, or it is none; with everything wrong in it.
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
    for heard in (diagnostics, place.diagnostics):
        if heard.found:
            raise heard.error()
    return "\n".join(_written(imports, remarks)) + "\n"


def _prefix(found: Sequence[Object]) -> str:
    """What the flag is given by the object that runs the plugin; empty where none does."""
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
                here.key("resourceName").report(node, f"{shown(name)} stands twice")
            names.add(name)
            found.append(_Import(name, resource, selectors, remarks))
        if not selectors:
            for remark in remarks:  # they may be what is wrong
                here.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
    return found


def _selectors(
    node: Node, kind: DeviceType, place: Place, remark: Callable[[Remark], None]
) -> Iterator[Selectors]:
    """The objects of which one must select a device; the plugin takes one object for a list of one."""
    several = isinstance(node, Items)
    if isinstance(node, Items) and not node.items:
        place.report(node, "an empty list selects nothing", "write {} to select every function")
    for n, item in enumerate(node.items if isinstance(node, Items) else (node,)):
        here = place.item(n) if several else place
        selectors = read_dataclass(known(item, READ[kind], here, remark), Selectors, here)
        if selectors is WRONG:
            continue
        if kind is DeviceType.AUXILIARY and not selectors.aux_types:
            here.report(item, "an auxNetDevice needs auxTypes", 'write "auxTypes": ["sf"]')
            continue
        for one in selectors.remarks(item.mark, here.path):
            remark(one)
        yield selectors


def _written(imports: Sequence[_Import], remarks: Sequence[Remark]) -> Iterator[str]:
    yield "# Made from a configuration of sriov-network-device-plugin. What differs there:"
    yield "# - names of interfaces are the same in any case of letters;"
    yield "# - only an interface with the IPv4 default route is left to the node. Here also one with the IPv6"
    yield "#   route, or below a bond, bridge or VLAN that has them, and that with the kubelet's address;"
    yield "# - two functions of one IOMMU group may serve two pods, and so may a function and a part of it;"
    yield "# - a function is always healthy. Here it is not while the port of its physical function has no"
    yield "#   carrier or a node is missing that its resource hands out. To have ports count for nothing, say"
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
            yield f"  # {one.name} {one_line(reason)}, there and here: left out."
        else:
            yield from _entry(one, where)
            if one.resource.exclude_topology:
                yield "    topology: false"


def _kept(
    imports: Sequence[_Import],
) -> Iterator[tuple[_Import, list[dict[str, tuple[str, ...]]], str]]:
    """Each resource with its blocks, and why it can never offer anything; empty if it can."""
    before: list[tuple[str, Where]] = []
    for one in imports:
        where = one.where()
        means = condition(where)
        takers = [next((name for name, all_ in before if covers(all_, (block,))), "") for block in means]
        if not where:
            yield one, where, "selects nothing"
        elif all(takers):
            names = " and ".join(dict.fromkeys(takers))
            yield one, where, f"gets nothing that {names} does not take first"
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
            yield f"    # {there} is in some of its selectors; here it is for the whole resource"
        yield f"    {asked}: true"
    info = {device: words for device, words in one.resource.additional_info.items() if words}
    if info:
        yield "    info:"
    for device, words in info.items():
        yield f"      {quoted(device)}:"
        yield from (f"        {quoted(key)}: {quoted(value)}" for key, value in words.items())


def _value(value: str) -> str:
    """Most ids and ranges look like numbers to YAML."""
    return text(value) if value[:1].isalpha() else quoted(value)
