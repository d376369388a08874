"""Converts ``conf.yaml`` of smarter-device-manager to devhost.yaml.

The input is the file itself or a ConfigMap that contains one, alone or among other objects. The plugin makes
a resource of each file below ``/dev`` in whose path a regular expression matches (``findDevicesPattern`` in
its ``main.go``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Items, Node
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import WRONG, Bounds

from . import regular
from .regular import Globs, Inexpressible, Invalid
from .source import Source, Value, node_at, some
from .workload import the_container
from .writing import Block, Entry, Written, document, several

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

_HINT = "give conf.yaml, a list of devicematch and nummaxdevices, or a ConfigMap that contains it"


@dataclass(frozen=True, slots=True)
class _Rule:
    devicematch: str = option(example='"^ttyUSB[0-9]*$"')
    nummaxdevices: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0

    def __post_init__(self) -> None:
        if not self.devicematch:
            raise OptionError("is empty, which matches every file", key="devicematch")
        try:
            regular.globs(self.devicematch)
        except Invalid as error:
            message = f"{shown(self.devicematch)} is not a regular expression: {error}"
            raise OptionError(message, key="devicematch", hint="the plugin does not start with it") from None
        except Inexpressible:
            pass  # reported at its place in the result


@dataclass(slots=True)
class _Result:
    entries: list[Entry] = field(default_factory=list)
    groups: dict[str, Mapping[str, Written]] = field(default_factory=dict)

    def add(self, name: str, blocks: Sequence[Block], replicas: int, remarks: Sequence[str]) -> None:
        share: dict[str, Written] = {"share": {"replicas": replicas}} if replicas > 1 else {}
        self.entries.append(Entry(name, "udev", blocks, share, remarks))

    def leave_out(self, *remarks: str) -> None:
        self.entries.append(Entry(remarks=remarks))


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or Kubernetes objects of which one contains it.
        file_name: appears in the diagnostics.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: it is not a configuration, or the plugin would refuse it; with every error in it.
    """
    source = Source(data, file_name, "smarter-device-manager")
    plugin = the_container(source, lambda one: one.starts("smarter-device-manager"), "smarter-device-manager")
    if plugin is not None:
        plugin.options().finish()
    values = source.values("smarter-device-manager", recognized=lambda one: one.at("config") is not None)
    names = plugin.config_maps if plugin else ()
    found = source.config_map(CONFIG_KEY, likely=_is_config, key=key, names=names)
    bare = next((one for one in source.objects if not one.kind and one is not values), None)
    if values is not None:  # of the project's chart a list, of the k8s-at-home chart text
        values.for_pods()
        if left := values.others("config"):
            source.note(f"{some(left)}: settings of the chart, which are not converted.")
        config = values.at("config")
        found = config.document() if config else found
        if found is None:
            values.place.diagnostics.fail(values.node.mark, "these values have no config", _HINT)
    found = found or bare
    if found is None and plugin is not None:
        message = "its configuration is in a ConfigMap, which is not in this file"
        plugin.place.diagnostics.fail(plugin.node.mark, message, "add the ConfigMap")
    if found is None:
        source.refuse(_HINT)
    result = _Result()
    for rule in _rules(found):
        _add(rule, result)
    return _written(result, source)


def _is_config(node: Node) -> bool:
    return isinstance(node, Items) and any(node_at(one, "devicematch") is not None for one in node.items)


def _rules(value: Value) -> Iterator[_Rule]:
    if not isinstance(value.node, Items):
        value.place.diagnostics.fail(value.node.mark, f"it must be a list of rules, not {value.node}", _HINT)
    for one in value.each():
        rule = one.as_dataclass(_Rule, one.source.remark)
        if rule is not WRONG:
            yield rule


def _add(rule: _Rule, result: _Result) -> None:
    quoted = shown(rule.devicematch)
    if rule.nummaxdevices == 0:
        result.leave_out(f"devicematch {quoted} has nummaxdevices 0, so no pod ever gets it: omitted.")
    elif rule.devicematch == _JETSON:
        _add_jetson(rule, result)
    else:
        try:
            alternatives = regular.globs(rule.devicematch)
        except Inexpressible as error:
            why = f"devicematch {quoted} cannot be converted, because {error}: omitted."
            result.leave_out(why, "Add entries for the files that you need, with devNode.")
        else:
            _add_files(rule, alternatives, result)


_LINK = re.compile(r"[a-z0-9]+/by-[a-z]+/[^/*\[]+")
"""A link that udev makes; in a glob, ? is a dot of the expression."""


def _add_files(rule: _Rule, alternatives: Sequence[Globs], result: _Result) -> None:
    """Entries for the matches of a rule: one for each plain path, one for each directory of other paths."""
    remark = f"devicematch: {rule.devicematch}"
    varying: dict[str, list[Block]] = {}
    remarks: dict[str, list[str]] = {}
    for one in alternatives:
        for pattern in one.some:
            if _LINK.fullmatch(pattern) or not any(sign in pattern for sign in "*?["):
                _add_path(pattern, rule, result, [remark])
                continue
            before, _, base = pattern.rpartition("/")
            if "/by-" in before:
                group = re.sub("[^A-Za-z0-9_.-]", "_", before)
                result.groups[group] = {"name": group, "members": [{"path": f"/dev/{pattern}"}]}
                why = (
                    "The plugin makes a resource of each of these links, devhost one of all: change the pods."
                )
                result.add(f"{DOMAIN}/{group}", [{"group": group}], rule.nummaxdevices, [remark, why])
                continue
            mine = remarks.setdefault(before, [remark])
            if any(sign in before for sign in "*?["):
                mine.append(f"/dev/{pattern} has a wildcard in a directory's name: omitted.")
                continue
            never = [f"/dev/{glob}" for glob in one.never]
            where: dict[str, Written] = {"devNode": f"/dev/{pattern}"}
            if "*" in base and not one.never:
                never.append(f"/dev/{before}/*/*" if before else "/dev/*/*")
                mine.append("The plugin names files in subdirectories differently: omitted.")
            if never:
                where["not"] = {"devNode": several(never)}
            if one.is_bounded:
                mine.append(
                    f"devhost matches a repetition that is not at the end up to {regular.LONGEST_RUN} times."
                )
            varying.setdefault(before, []).append(where)
    for before, mine in remarks.items():
        mine = list(dict.fromkeys(mine))
        if before in varying:
            name = f"{DOMAIN}/{before.replace('/', '_') + '_' if before else ''}{{sysName}}"
            result.add(name, varying[before], rule.nummaxdevices, mine)
        else:
            result.leave_out(*mine)
    if not alternatives:
        result.leave_out(f"{remark} never matches, neither for the plugin nor for devhost: omitted.")


def _add_path(path: str, rule: _Rule, result: _Result, remarks: Sequence[str]) -> None:
    name = f"{DOMAIN}/{re.sub('[^A-Za-z0-9_.-]', '_', path)}"
    if problem := naming.problem(name):
        result.leave_out(*remarks, f"{shown(name)} {problem}: omitted.")
    elif path in _DIRECTORIES:
        group = path.replace("/", "_")
        result.groups[group] = {"name": group, "members": [{"path": f"/dev/{path}"}]}
        notes = [*remarks, f"A directory: the container gets every node below /dev/{path}."]
        result.add(name, [{"group": group}], rule.nummaxdevices, notes)
    elif _LINK.fullmatch(path):  # the plugin gives the node at the path of the link
        group = re.sub("[^A-Za-z0-9_.-]", "_", path)[-63:].strip("._-")
        result.groups[group] = {"name": group, "members": [{"path": f"/dev/{path}"}]}
        result.add(name, [{"group": group}], rule.nummaxdevices, remarks)
    else:
        result.add(name, [{"devNode": f"/dev/{path}"}], rule.nummaxdevices, remarks)


def _add_jetson(rule: _Rule, result: _Result) -> None:
    mounts = [{"path": "/etc/nv_tegra_release"}]
    env = {"NVIDIA_VISIBLE_DEVICES": "0"}
    result.groups["nvidia-gpu0"] = {"name": "nvidia-gpu0", "mounts": mounts, "env": env}
    remarks = [
        (
            "devicematch: nvidia-gpu, the GPU of a Jetson: the plugin offers each /sys/devices/gpu.N, "
            "devhost "
            "the first."
        ),
        "On other machines the resource is Unhealthy: remove it.",
    ]
    result.add(f"{DOMAIN}/nvidia-gpu0", [{"group": "nvidia-gpu0"}], rule.nummaxdevices, remarks)


def _written(result: _Result, source: Source) -> str:
    differs = [
        "the plugin scans /dev once, when it starts; devhost follows changes",
        "the plugin makes names from the file's name, devhost from the kernel's name of the device: "
        "they differ "
        "if a udev rule names the file. For characters that a name cannot have, the plugin writes _, "
        "devhost -",
        "the plugin makes resources of links in /dev, devhost only of nodes",
        "device ids of the plugin are numbers, those of devhost identify the hardware: drain the node "
        "before the "
        "switch",
    ]
    if any("members" in group for group in result.groups.values()):
        differs.append("a missing directory makes no resource for the plugin, an Unhealthy one for devhost")
    groups = {"groups": list(result.groups.values())} if result.groups else {}
    return document(source, "smarter-device-manager", differs, result.entries, backends={"udev": groups})
