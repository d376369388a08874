"""smarter-device-manager's ``conf.yaml`` → devhost.yaml.

Read are the file itself and a ConfigMap that holds one, alone or among other objects. The plugin makes a
resource of each file below ``/dev`` that a regular expression is found in (``findDevicesPattern`` in its
``main.go``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from devhost.backend import OptionError, option
from devhost.config.diagnostics import Diagnostics, Mark, Place, shown
from devhost.config.document import Items, Node
from devhost.config.reader import WRONG, Bounds, keys, read_dataclass
from devhost.planning import naming
from devhost.planning.settings import MAX_REPLICAS

from . import regular
from .gojson import Remark, known
from .kubernetes import configuration, objects, of_kinds
from .regular import Globs, Inexpressible, Invalid
from .writing import Block, Entry, Value, document, several

CONFIG_KEY = "conf.yaml"
"""The key of a ConfigMap that the plugin's own manifests use."""

DOMAIN = "smarter-devices"

_JETSON = "nvidia-gpu"
"""What the plugin takes for the GPU of a Jetson, and not for an expression."""

_DIRECTORIES = frozenset(
    {"accel", "block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "dsa", "dvb", "iax"}
    | {"infiniband", "input", "mapper", "net", "serial", "snd", "usb", "v4l", "vfio", "vhost", "vg"}
)
"""Names below ``/dev`` that are directories wherever they exist."""

_HINT = "give it conf.yaml, a list of devicematch and nummaxdevices, or a ConfigMap that holds it"


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
            pass  # said at its place in the result


@dataclass(slots=True)
class _Result:
    entries: list[Entry] = field(default_factory=list)
    groups: dict[str, Mapping[str, Value]] = field(default_factory=dict)

    def add(self, name: str, blocks: Sequence[Block], replicas: int, remarks: Sequence[str]) -> None:
        share: dict[str, Value] = {"share": {"replicas": replicas}} if replicas > 1 else {}
        self.entries.append(Entry(name, "udev", blocks, share, remarks))

    def leave_out(self, *remarks: str) -> None:
        self.entries.append(Entry(remarks=remarks))


def convert(data: bytes, file_name: str, key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        data: the plugin's configuration, or Kubernetes objects of which one holds it.
        file_name: appears in the diagnostics.
        key: which entry of a ConfigMap to read; :data:`CONFIG_KEY` if empty.

    Raises:
        ConfigError: the plugin would refuse it, or it is none; with everything wrong in it.
    """
    diagnostics = Diagnostics(file_name)
    found = of_kinds(objects(data, diagnostics), ("", "ConfigMap"), diagnostics, hint=_HINT)
    remarks: list[Remark] = []
    rules: list[tuple[Mark, _Rule]] = []
    for one in found:
        node, place = configuration(one, key or CONFIG_KEY)
        rules += _rules(node, place, remarks)
        if place.diagnostics.found:
            raise place.diagnostics.error()
    result = _Result()
    for _, rule in rules:
        _add(rule, result)
    return _written(result, remarks)


def _rules(node: Node, place: Place, remarks: list[Remark]) -> Iterator[tuple[Mark, _Rule]]:
    if not isinstance(node, Items):
        place.diagnostics.fail(node.mark, f"it must be a list of rules, not {node}", _HINT)
    for n, item in enumerate(node.items):
        here = place.item(n)
        mine: list[Remark] = []
        rule = read_dataclass(known(item, keys(_Rule), here, mine.append), _Rule, here)
        if rule is WRONG:
            for remark in mine:  # they may be what is wrong
                here.diagnostics.add(remark.mark, remark.path, remark.message, remark.hint)
        else:
            remarks += mine
            yield item.mark, rule


def _add(rule: _Rule, result: _Result) -> None:
    quoted = shown(rule.devicematch)
    if rule.nummaxdevices == 0:
        result.leave_out(f"devicematch {quoted} has nummaxdevices 0, so no pod ever gets it: left out.")
    elif rule.devicematch == _JETSON:
        _add_jetson(rule, result)
    else:
        try:
            alternatives = regular.globs(rule.devicematch)
        except Inexpressible as error:
            why = f"devicematch {quoted} has no equal here, for {error}: left out."
            result.leave_out(why, "Write entries for the files that you need, with devNode.")
        else:
            _add_files(rule, alternatives, result)


def _add_files(rule: _Rule, alternatives: Sequence[Globs], result: _Result) -> None:
    """Entries for what a rule matches: one for each plain path, one for each directory of other paths."""
    remark = f"devicematch: {rule.devicematch}"
    varying: dict[str, list[Block]] = {}
    remarks: dict[str, list[str]] = {}
    for one in alternatives:
        for pattern in one.some:
            if not any(sign in pattern for sign in "*?["):
                _add_path(pattern, rule, result, [remark])
                continue
            before, _, base = pattern.rpartition("/")
            mine = remarks.setdefault(before, [remark])
            if any(sign in before for sign in "*?["):
                mine.append(f"/dev/{pattern} has a wildcard in a directory's name: left out.")
                continue
            never = [f"/dev/{glob}" for glob in one.never]
            where: dict[str, Value] = {"devNode": f"/dev/{pattern}"}
            if "*" in base and not one.never:
                never.append(f"/dev/{before}/*/*" if before else "/dev/*/*")
                mine.append("Files in directories below have other names there: left out.")
            if never:
                where["not"] = {"devNode": several(never)}
            if one.is_bounded:
                mine.append(f"A repetition that is not at the end counts up to {regular.LONGEST_RUN} here.")
            varying.setdefault(before, []).append(where)
    for before, mine in remarks.items():
        mine = list(dict.fromkeys(mine))
        if before in varying:
            name = f"{DOMAIN}/{before.replace('/', '_') + '_' if before else ''}{{sysName}}"
            result.add(name, varying[before], rule.nummaxdevices, mine)
        else:
            result.leave_out(*mine)
    if not alternatives:
        result.leave_out(f"{remark} never matches, there and here: left out.")


def _add_path(path: str, rule: _Rule, result: _Result, remarks: Sequence[str]) -> None:
    name = f"{DOMAIN}/{re.sub('[^A-Za-z0-9_.-]', '_', path)}"
    if problem := naming.problem(name):
        result.leave_out(*remarks, f"{shown(name)} {problem}: left out.")
    elif path in _DIRECTORIES:
        group = path.replace("/", "_")
        result.groups[group] = {"name": group, "members": [{"path": f"/dev/{path}"}]}
        notes = [*remarks, f"A directory: the container gets every node below /dev/{path}."]
        result.add(name, [{"group": group}], rule.nummaxdevices, notes)
    else:
        result.add(name, [{"devNode": f"/dev/{path}"}], rule.nummaxdevices, remarks)


def _add_jetson(rule: _Rule, result: _Result) -> None:
    mounts = [{"path": "/etc/nv_tegra_release"}]
    env = {"NVIDIA_VISIBLE_DEVICES": "0"}
    result.groups["nvidia-gpu0"] = {"name": "nvidia-gpu0", "mounts": mounts, "env": env}
    remarks = [
        "devicematch: nvidia-gpu, the GPU of a Jetson: there each of /sys/devices/gpu.N, here the first.",
        "On other machines the resource is there, and Unhealthy: remove it.",
    ]
    result.add(f"{DOMAIN}/nvidia-gpu0", [{"group": "nvidia-gpu0"}], rule.nummaxdevices, remarks)


def _written(result: _Result, remarks: Sequence[Remark]) -> str:
    differs = [
        "it looks at /dev once, when it starts; here devices come and go",
        "a name is made of the file's name, here of the kernel's name of the device: they differ where a "
        "rule of udev names the file. Characters that a name cannot have become - here and _ there",
        "links in /dev are resources there; here only the nodes are",
        "ids are numbers, here they are the hardware's: drain the node before the change",
    ]
    if any("members" in group for group in result.groups.values()):
        differs.append("a directory that does not exist makes no resource there, here an Unhealthy one")
    return document(
        "smarter-device-manager",
        differs,
        result.entries,
        notes=[str(remark) for remark in remarks],
        backends={"udev": {"groups": list(result.groups.values())}} if result.groups else {},
    )
