"""Converts the conf.yaml of smarter-device-manager.

The plugin makes a resource of each file below ``/dev`` in whose path a regular expression matches
(``findDevicesPattern`` in its ``main.go``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from devhost.backend import OptionError, option
from devhost.config.diagnostics import shown
from devhost.config.document import Items
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import Bounds

from . import globs
from .globs import Glob, Inexpressible, Invalid
from .source import Source, Value, text_at
from .workload import file_of, the_container
from .writing import Entry, Group, Written, document, given, refused, replicas, several

PEER = "smarter-device-manager"
DOMAIN = "smarter-devices"
CONFIG_KEY = "conf.yaml"  # in the plugin's manifests

_OTHER_NAMES = ("bus/usb", "cpu", "dvb", "mapper")  # their files have other names than the kernel's devices
_LINK = re.compile(r"[a-z0-9]+/by-[a-z]+/[^/*\[]+")  # made by udev; in a glob, ? is a dot of the expression
_UNNAMED = re.compile("[^A-Za-z0-9_-]")  # the plugin writes _ for these in a name
_HINT = "give conf.yaml, a list of devicematch and nummaxdevices, or a ConfigMap that contains it"


@dataclass(frozen=True, slots=True)
class _Rule:
    devicematch: str = option(example='"^ttyUSB[0-9]*$"')
    nummaxdevices: Annotated[int, Bounds(0, MAX_REPLICAS)] = 0

    def __post_init__(self) -> None:
        if not self.devicematch:
            raise OptionError("is empty, which matches every file", key="devicematch")


class _Files(NamedTuple):
    """An entry and the files of ``/dev`` that it offers; none if it is complete."""

    entry: Entry
    files: Sequence[Glob] = ()
    is_path: bool = False  # a directory or a link of udev's standard rules, whose nodes are found by its path
    is_plain: bool = True  # none of them is a directory or a link


def convert(source: Source) -> str:
    found = [*_rules(_configuration(source))]
    paths = [(n, f"/dev/{glob.text}", one.is_plain) for n, one in enumerate(found) for glob in one.files]

    def apart(one: int, other: int) -> bool:  # without a link the same node is the same resource
        return paths[one][2] and paths[other][2]

    shared = {paths[n][0] for n in globs.shared([path for _, path, _ in paths], apart)}
    entries = [_complete(one, n + 1, n in shared) if one.files else one.entry for n, one in enumerate(found)]
    return document(source, PEER, _DIFFERS, entries)


def _configuration(source: Source) -> Value:
    plugin = the_container(source, lambda one: one.starts(PEER), PEER)
    values = source.values(
        PEER, recognized=lambda one: one.at("config") or PEER in text_at(one.node, "image", "repository")
    )
    path = CONFIG_KEY
    if plugin is not None:
        options = plugin.options()
        path = options.get("config").text() or path
        options.finish()
    if values is not None:
        values.leave("settings of the chart, which are not converted.", "config")
    usual = path.rpartition("/")[2]
    found = file_of(source, plugin, path, usual, CONFIG_KEY, marks=["devicematch"])
    found = found or next((one for one in source.bare if one is not values), None)
    config = values and values.at("config")
    if config and config.node != Items(config.node.mark, ()):
        found = config.document()  # of the project's chart a list, of the k8s-at-home chart text
    if found is None and (holder := values or plugin):
        if plugin and plugin.config_maps:
            plugin.lacks(path, usual)
        hint = "give conf.yaml of the plugin's repository, or the ConfigMap of the cluster"
        holder.fail("it has no configuration, so the file conf.yaml of the image counts", hint)
    return found or source.refuse(_HINT)


def _rules(value: Value) -> Iterator[_Files]:
    if not isinstance(value.node, Items):
        value.fail(f"it must be a list of rules, not {value.node}", _HINT)
    for one in value.each():
        rule = one.as_dataclass(_Rule, one.source.note)
        match, keys = f"devicematch {shown(rule.devicematch)}", replicas(rule.nummaxdevices)
        if rule.nummaxdevices == 0:
            yield _Files(Entry(remarks=[f"{match} has nummaxdevices 0, so no pod ever gets it: omitted."]))
        elif rule.devicematch == "nvidia-gpu":  # instead of an expression
            name = _JETSON["name"]
            yield _Files(Entry(f"{DOMAIN}/{name}", "udev", [{"group": name}], keys, _OF_JETSON, [_JETSON]))
        else:
            try:
                yield from [*_files(rule.devicematch, keys)]
            except Inexpressible as error:
                why = f"{match} cannot be converted, because {error}: omitted."
                yield _Files(Entry(remarks=[why, "Add entries for the files that you need, with devNode."]))
            except Invalid as error:
                one.at("devicematch").refuse(str(error), "the plugin does not start with it")


def _files(expression: str, keys: Mapping[str, Written]) -> Iterator[_Files]:
    """The matches of a rule: each plain path, links, and other paths by their directory."""
    remark, every = f"devicematch: {expression}", globs.of_expression(expression)
    varying: dict[str, list[Glob]] = {}
    for one in every:
        if why := refused(f"/dev/{one.text}"):
            raise Inexpressible(why)
        before, name, remarks = one.text.rpartition("/")[0], one.text, [remark]
        if globs.SIGN.search(name) and not _LINK.fullmatch(name):
            if "/by-" not in before:
                is_by_path = globs.SIGN.search(before) or before.startswith(_OTHER_NAMES)
                varying.setdefault("" if is_by_path else f"{before}/", []).append(one)
                continue
            if one.is_bounded:
                raise Inexpressible("a part inside the names of links repeats")
            remarks += [_OF_LINKS, *([_WIDER] if one.never else [])]
            name = globs.SIGN.split(name)[0].rstrip("/._-")
        is_path = one.text in globs.DIRECTORIES or "/by-" in one.text
        if one.text in globs.DIRECTORIES:
            remarks.append(f"A directory: the container gets every node below /dev/{one.text}.")
        is_plain = not is_path and not globs.may_be_link(f"/dev/{one.text}")
        name = f"{DOMAIN}/{_UNNAMED.sub('_', name)}"
        if problem := naming.problem(name):
            yield _Files(Entry(remarks=[*remarks, f"{shown(name)} {problem}: omitted."]))
        else:
            yield _Files(Entry(name, "udev", keys=keys, remarks=remarks), [one], is_path, is_plain)
    for before, alike in varying.items():
        remarks, name = [remark], f"{before}{{sysName}}".lstrip("/").replace("/", "_")
        if not before:
            names = "such as dvb_adapter0_frontend0, devhost's dev-dvb-adapter0-frontend0: change the pods."
            remarks, name = [remark, f"The plugin's names are {names}"], "{devNode}"
            remarks += [_OF_USB] if any(one.text.startswith("bus/usb") for one in alike) else []
        elif any("*" in one.text and not one.never for one in alike):
            remarks.append("The plugin names files in subdirectories differently: omitted.")
            inside = f"{before}*/*".lstrip("/")
            alike = [replace(one, never=one.never or ("*" in one.text and inside) or "") for one in alike]
        if any(one.is_bounded for one in alike):
            remarks.append(globs.BOUNDED)
        yield _Files(Entry(f"{DOMAIN}/{name}", "udev", keys=keys, remarks=remarks), alike)
    if not every:
        why = "never matches, neither for the plugin nor for devhost: omitted."
        yield _Files(Entry(remarks=[f"{remark} {why}"]))


def _complete(files: _Files, number: int, is_shared: bool) -> Entry:
    """The entry; with a group if nodes have another path in the container, or another resource as well."""
    entry, first, is_one = files.entry, files.files[0].text, "{" not in files.entry.name
    blocks = [glob.block("devNode", "/dev/") for glob in files.files]
    if files.is_plain and not is_shared:
        return replace(entry, where=blocks)
    member: dict[str, Written] = {"path": f"/dev/{first}"}
    if not files.is_path:
        member = {"where": several(blocks)} | given(containerPath=is_one and f"/dev/{first}")
    group = entry.name.partition("/")[2] if is_one else f"{_UNNAMED.split(first)[0] or 'dev'}-rule{number}"
    groups: list[Group] = [{"name": group, "members": [member | given(shared=is_shared)]}]
    return replace(entry, where=[{"group": group}], groups=groups)


_JETSON: Group = {
    "name": "nvidia-gpu0",
    "mounts": [{"path": "/etc/nv_tegra_release"}],
    "env": {"NVIDIA_VISIBLE_DEVICES": "0"},
}
_OF_JETSON = [
    "devicematch: nvidia-gpu, the GPU of a Jetson: the plugin offers each /sys/devices/gpu.N, devhost the "
    "first. On other machines the resource is Unhealthy: remove it.",
]
_OF_LINKS = "The plugin makes a resource of each of these links, devhost one of all: change the pods."
_OF_USB = "A USB device has another number after each plug: better select idVendor and idProduct."
_WIDER = "devhost accepts any text for the repetition: check what it selects."
_DIFFERS = [
    "the plugin scans /dev once, when it starts; devhost follows changes",
    "the plugin makes names from the file's name, devhost from the kernel's name of the device: they differ "
    "if a udev rule names the file. For characters that a name cannot have, the plugin writes _, devhost -",
    "the plugin makes a resource of each link in /dev, devhost of those whose path has no wildcard",
    "a missing directory makes no resource for the plugin, an Unhealthy one for devhost",
    "device ids of the plugin are numbers, those of devhost identify the hardware: drain the node before the "
    "switch",
]
