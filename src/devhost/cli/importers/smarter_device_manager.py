"""Converts ``conf.yaml`` of smarter-device-manager to devhost.yaml.

The input is the file itself or a ConfigMap that contains one, alone or among other objects. The plugin makes
a resource of each file below ``/dev`` in whose path a regular expression matches (``findDevicesPattern`` in
its ``main.go``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Items, Node
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import WRONG, Bounds

from . import regular
from .regular import Glob, Inexpressible, Invalid
from .source import Source, Value, node_at, some
from .workload import the_container
from .writing import Block, Entry, Written, document, given

PEER = "smarter-device-manager"

CONFIG_KEY = "conf.yaml"
"""The key of a ConfigMap that the plugin's manifests use."""

DOMAIN = "smarter-devices"

_JETSON = "nvidia-gpu"
"""The value that means the GPU of a Jetson to the plugin, instead of an expression."""

_DIRECTORIES = frozenset(
    {"accel", "block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "dsa", "dvb", "iax"}
    | {"infiniband", "input", "mapper", "net", "serial", "snd", "usb", "v4l", "vfio", "vhost", "vg"}
)
"""Names below ``/dev`` that are always directories."""

_LINK = re.compile(r"[a-z0-9]+/by-[a-z]+/[^/*\[]+")
"""A link that udev makes; in a glob, ? is a dot of the expression."""

_UNNAMED = re.compile("[^A-Za-z0-9_.-]")

_HINT = "give conf.yaml, a list of devicematch and nummaxdevices, or a ConfigMap that contains it"


@dataclass(frozen=True, slots=True)
class _Rule:
    devicematch: str = option(example='"^ttyUSB[0-9]*$"')
    nummaxdevices: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0

    def __post_init__(self) -> None:
        if not self.devicematch:
            raise OptionError("is empty, which matches every file", key="devicematch")


_Groups = dict[str, dict[str, Written]]


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or Kubernetes objects of which one contains it.
        file_name: appears in the diagnostics.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, PEER)
    plugin = the_container(source, lambda one: one.starts(PEER), PEER)
    values = source.values(PEER, recognized=lambda one: one.at("config") is not None)
    if plugin is not None:
        plugin.options().finish()
    if values is not None:
        values.for_pods()
        if left := values.others("config"):
            source.note(f"{some(left)}: settings of the chart, which are not converted.")
    names = plugin.config_maps if plugin else ()
    found = source.config_map(CONFIG_KEY, likely=_is_config, key=key, names=names)
    found = found or next((one for one in source.objects if not one.kind and one is not values), None)
    if values is not None and (config := values.at("config")):
        found = config.document()  # of the project's chart a list, of the k8s-at-home chart text
    if found is None and (holder := values or plugin):
        message = "its configuration is in a ConfigMap, which is not in this file"
        holder.place.diagnostics.fail(holder.node.mark, message, "add the ConfigMap")
    if found is None:
        source.refuse(_HINT)
    groups: _Groups = {}
    entries = [*_rules(found, groups)]
    differs = [*_DIFFERS]
    if any("members" in group for group in groups.values()):
        differs.append("a missing directory makes no resource for the plugin, an Unhealthy one for devhost")
    return document(source, PEER, differs, entries, groups=[*groups.values()])


def _is_config(node: Node) -> bool:
    return isinstance(node, Items) and any(node_at(one, "devicematch") is not None for one in node.items)


def _rules(value: Value, groups: _Groups) -> Iterator[Entry]:
    if not isinstance(value.node, Items):
        value.place.diagnostics.fail(value.node.mark, f"it must be a list of rules, not {value.node}", _HINT)
    for one in value.each():
        rule = one.as_dataclass(_Rule, one.source.remark)
        if rule is not WRONG:
            yield from _entries(rule, one, groups)


def _entries(rule: _Rule, value: Value, groups: _Groups) -> Iterator[Entry]:
    quoted = shown(rule.devicematch)
    if rule.nummaxdevices == 0:
        why = f"devicematch {quoted} has nummaxdevices 0, so no pod ever gets it: omitted."
        yield Entry(remarks=[why])
    elif rule.devicematch == _JETSON:
        mounts, env = [{"path": "/etc/nv_tegra_release"}], {"NVIDIA_VISIBLE_DEVICES": "0"}
        groups["nvidia-gpu0"] = {"name": "nvidia-gpu0", "mounts": mounts, "env": env}
        yield _entry("nvidia-gpu0", [{"group": "nvidia-gpu0"}], rule, _OF_JETSON)
    else:
        try:
            yield from _files(rule, regular.globs(rule.devicematch), groups)
        except Inexpressible as error:
            why = f"devicematch {quoted} cannot be converted, because {error}: omitted."
            yield Entry(remarks=[why, "Add entries for the files that you need, with devNode."])
        except Invalid as error:
            place, node = value.place.key("devicematch"), node_at(value.node, "devicematch") or value.node
            place.report(node, str(error), "the plugin does not start with it")


def _entry(name: str, where: Sequence[Block], rule: _Rule, remarks: Sequence[str]) -> Entry:
    share = given(share={"replicas": rule.nummaxdevices} if rule.nummaxdevices > 1 else "")
    return Entry(f"{DOMAIN}/{name}", "udev", where, share, remarks)


def _files(rule: _Rule, globs: Sequence[Glob], groups: _Groups) -> Iterator[Entry]:
    """Entries for the matches of a rule: one for each plain path, one for each directory of other paths."""
    remark = f"devicematch: {rule.devicematch}"
    varying: dict[str, list[Glob]] = {}
    for one in globs:
        before = one.text.rpartition("/")[0]
        if _LINK.fullmatch(one.text) or not any(sign in one.text for sign in "*?["):
            yield _of_path(one.text, one.text, rule, [remark], groups)
        elif "/by-" in before:
            why = "The plugin makes a resource of each of these links, devhost one of all: change the pods."
            yield _of_path(one.text, before, rule, [remark, why], groups)
        elif any(sign in before for sign in "*?["):
            why = f"/dev/{one.text} has a wildcard in a directory's name: omitted."
            yield Entry(remarks=[remark, why])
        else:
            varying.setdefault(before, []).append(one)
    for before, alike in varying.items():
        remarks, inside = [remark], f"{before}/*/*".strip("/")
        if any("*" in one.text and not one.never for one in alike):
            remarks.append("The plugin names files in subdirectories differently: omitted.")
        if any(one.is_bounded for one in alike):
            remarks.append(regular.BOUNDED)
        name = f"{before}/{{sysName}}".strip("/").replace("/", "_")
        blocks = [
            replace(one, never=one.never or ("*" in one.text and inside) or "").block("devNode", "/dev/")
            for one in alike
        ]
        yield _entry(name, blocks, rule, remarks)
    if not globs:
        yield Entry(remarks=[f"{remark} never matches, neither for the plugin nor for devhost: omitted."])


def _of_path(path: str, name: str, rule: _Rule, remarks: Sequence[str], groups: _Groups) -> Entry:
    """An entry for a node, for all nodes of a directory, or for the nodes to which links lead."""
    name = _UNNAMED.sub("_", name)
    if problem := naming.problem(f"{DOMAIN}/{name}"):
        return Entry(remarks=[*remarks, f"{shown(f'{DOMAIN}/{name}')} {problem}: omitted."])
    if path in _DIRECTORIES:
        remarks = [*remarks, f"A directory: the container gets every node below /dev/{path}."]
    elif "/by-" not in path:
        return _entry(name, [{"devNode": f"/dev/{path}"}], rule, remarks)
    groups[name] = {"name": name, "members": [{"path": f"/dev/{path}"}]}
    return _entry(name, [{"group": name}], rule, remarks)


_OF_JETSON = [
    "devicematch: nvidia-gpu, the GPU of a Jetson: the plugin offers each /sys/devices/gpu.N, devhost the "
    "first.",
    "On other machines the resource is Unhealthy: remove it.",
]
_DIFFERS = [
    "the plugin scans /dev once, when it starts; devhost follows changes",
    "the plugin makes names from the file's name, devhost from the kernel's name of the device: they differ "
    "if a udev rule names the file. For characters that a name cannot have, the plugin writes _, devhost -",
    "the plugin makes resources of links in /dev, devhost only of nodes",
    "device ids of the plugin are numbers, those of devhost identify the hardware: drain the node before the "
    "switch",
]
