"""Converts the YAML of generic-device-plugin to devhost.yaml.

The input is its configuration file, the argument of its ``--device`` flag (one device, or a list), a
ConfigMap that contains the file, the DaemonSet that runs it with either, or its section in the file of
MicroShift. A comment in the result names each difference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations
from typing import Annotated, ClassVar, Literal

from devhost.backend import OptionError, option
from devhost.backend.errors import ConfigError
from devhost.config.diagnostics import WHOLE_FILE, Diagnostics, Place, one_line, shown, suggest
from devhost.config.document import Entry, Fields, Items, Node, Scalar
from devhost.config.reader import WRONG, Bounds, Raw, read_dataclass, read_text
from devhost.planning import naming
from devhost.planning.settings import MAX_REPLICAS

from . import notation, overlap
from .kubernetes import GUIDE, Object, at, config_map_entry, held, objects, opened, some
from .notation import embedded
from .workload import Container, containers

FORMER_DOMAIN = "squat.ai"
"""The default domain of its resources before version 0.2.0."""

DEFAULT_DOMAIN = "devic.es"
"""The default domain of its resources since version 0.2.0."""

_CHANGED = (0, 2, 0)
"""The version that changed the default domain."""

MICROSHIFT = "genericDevicePlugin"
"""The section with its configuration in the file of MicroShift."""

MICROSHIFT_DOMAIN = "device.microshift.io"

CONFIG_KEYS = ("config.yaml", "config.yml")
"""Keys that are preferred in a ConfigMap with several: those that the plugin looks for."""

CHOOSE = "choose one with --key"

_OF_THE_PROCESS = frozenset(
    {"config", "config-file", "listen", "log-level", "plugin-directory", "version"},
)
"""Flags and top-level keys that control its process, not its devices."""

_FLAGS = sorted({"device", "domain", *_OF_THE_PROCESS} - {"config-file"})

_USB_ID = re.compile(r"(0[xX])?([0-9A-Fa-f]{1,4})")
_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{1,3}")


@dataclass(frozen=True, slots=True)
class _Path:
    path: str = option(example="/dev/ttyUSB*")
    mount_path: str = ""
    type: Literal["Device", "Mount"] = "Device"
    permissions: str = "mrw"
    read_only: bool = False
    limit: Annotated[int, Bounds(0, MAX_REPLICAS)] = 1
    optional: bool = False

    def __post_init__(self) -> None:
        for key, value in (("path", self.path), ("mountPath", self.mount_path)):
            if (value or key == "path") and not value.startswith("/"):
                raise OptionError(f"{shown(value)} is not absolute", key=key, hint="start it with /")
            if ".." in value.split("/") or "\\" in value:
                raise OptionError(
                    f"{shown(value)} holds .. or a backslash", key=key, hint="write the path without them"
                )
            if "{" in value:
                hint = "braces are placeholders in devhost: write ? for a brace in a path"
                raise OptionError(f"{shown(value)} holds a brace", key=key, hint=hint)
        if self.host == "/":
            raise OptionError("/ is not a device", key="path")
        if not _PERMISSIONS.fullmatch(self.permissions or "mrw"):
            raise OptionError(f"{shown(self.permissions)} must consist of m, r and w", key="permissions")
        if self.type == "Mount" and self.varies and self.mount_path and not self.mount_path.endswith("/"):
            hint = "end it with / to mean a directory"
            raise OptionError("several files cannot all be mounted at one path", key="mountPath", hint=hint)

    @property
    def varies(self) -> bool:
        return any(sign in self.path for sign in "*?[")

    @property
    def inside(self) -> str:
        """The path in the container, for a path without wildcards."""
        at = self.mount_path or self.host
        return at + self.host.rpartition("/")[2] if at.endswith("/") else at

    @property
    def host(self) -> str:
        """The path as a glob of devhost: no final slash, and ``[!…]`` for Go's ``[^…]``."""
        return (self.path.rstrip("/") or "/").replace("[^", "[!")


@dataclass(frozen=True, slots=True)
class _Usb:
    vendor: Raw = option(example='"1a86"')
    product: Raw = option(example='"7523"')
    serial: str = ""

    def __post_init__(self) -> None:
        for key, node in (("vendor", self.vendor), ("product", self.product)):
            if not (isinstance(node, Scalar) and _USB_ID.fullmatch(node.text)):
                raise OptionError("must be up to four hex digits", key=key, hint='for example "1a86"')

    def may_be(self, other: _Usb) -> bool:
        """Whether a device can match both."""
        same = all(
            self.hex(a) == self.hex(b)
            for a, b in ((self.vendor, other.vendor), (self.product, other.product))
        )
        return same and (not self.serial or not other.serial or self.serial == other.serial)

    @staticmethod
    def hex(node: Node) -> str:
        """A USB id as four hex digits, also if YAML read it as a number."""
        found = _USB_ID.fullmatch(node.text) if isinstance(node, Scalar) else None
        return found[2].lower().rjust(4, "0") if found else ""


@dataclass(frozen=True, slots=True)
class _Group:
    count: Annotated[int, Bounds(0, MAX_REPLICAS)] = 1
    paths: tuple[_Path, ...] = ()
    usb: tuple[_Usb, ...] = ()

    def __post_init__(self) -> None:
        if self.paths and self.usb:
            raise OptionError("a group has either paths or usb", key="usb", hint="make two groups of it")
        if not self.paths and not self.usb:
            raise OptionError("a group needs paths or usb")
        seen: set[str] = set()
        for n, path in enumerate(self.paths):
            inside = "" if path.varies or path.type == "Mount" else path.inside
            if inside and inside in seen:
                message = f"the container already has {shown(inside)} from another path"
                raise OptionError(message, key=f"paths[{n}].path")
            seen.add(inside)

    @property
    def nodes(self) -> list[_Path]:
        """The paths of device nodes."""
        return [path for path in self.paths if path.type == "Device"]


@dataclass(frozen=True, slots=True)
class _Device:
    former_keys: ClassVar[Mapping[str, str]] = {
        "count": "the plugin ignores it at this level: put it into each group"
    }

    name: str = option(example="serial")
    groups: Annotated[tuple[_Group, ...], Bounds(1, 1000)] = option()


@dataclass(slots=True)
class _Source:
    """The devices of a source, and what was read with them.

    ``domain`` is empty if the source does not contain it; ``remarks`` are for the head of the result.
    """

    devices: list[tuple[Node, Place]] = field(default_factory=list)
    domain: str = ""
    remarks: list[str] = field(default_factory=list)


def convert(text: bytes, file_name: str, domain: str = "", key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        text: the other plugin's configuration, or Kubernetes objects that contain it.
        file_name: appears in the diagnostics.
        domain: of the resources; if empty, the one in the source.
        key: which entry of a ConfigMap to read; one of :data:`CONFIG_KEYS`, or the only one, if empty.

    Raises:
        ConfigError: it is not a configuration of generic-device-plugin, with every error in it; or it does
            not contain the domain, whose default depends on the plugin's version.
    """
    diagnostics = Diagnostics(file_name)
    source = _read(objects(text, diagnostics), key)
    known = domain or source.domain
    devices = list(_devices(source.devices, known or DEFAULT_DOMAIN))
    for collected in (diagnostics, *(place.diagnostics for _, place in source.devices)):
        if collected.found:
            raise collected.error()
    if devices and not known:
        file = "-" if file_name == "<stdin>" else file_name
        message = (
            f"the domain is missing: the plugin's default is {FORMER_DOMAIN} before version 0.2.0 and "
            f"{DEFAULT_DOMAIN} since"
        )
        hint = (
            f"give the one that your pods request: devhost import generic-device-plugin --domain "
            f"{DEFAULT_DOMAIN} {file}, or with --domain {FORMER_DOMAIN}"
        )
        diagnostics.fail(WHOLE_FILE, message, hint)
    return "\n".join(_written(devices, known, source.remarks)) + "\n"


def _read(found: Sequence[Object], key: str) -> _Source:
    """The devices of a file of any supported kind.

    Raises:
        ConfigError: they cannot be found in it.
    """
    if len(found) == 1 and not found[0].kind:
        return _bare(found[0].node, found[0].place)
    running = [one for thing in found for one in containers(thing) if _runs_it(one)]
    if len(running) > 1:
        mark = running[1].node.mark
        message = "several containers run generic-device-plugin; this is the second"
        running[1].place.diagnostics.fail(mark, message, "give only one of them")
    if running:
        return _of_container(running[0], found, key)
    return _of_config_map(found, key) if key else _of_config_map(found)


def _bare(node: Node, place: Place) -> _Source:
    """The devices of a configuration file, or of the flag's argument."""
    if isinstance(node, Fields) and MICROSHIFT in node.entries:
        inner = node.entries[MICROSHIFT].value
        source = _file(_of_microshift(inner), place.key(MICROSHIFT))
        source.domain = source.domain or MICROSHIFT_DOMAIN
        return source
    if isinstance(node, Fields) and not {"name", "groups"} & node.entries.keys():
        return _file(node, place)
    return _Source(_listed(node.items if isinstance(node, Items) else (node,), place))


def _listed(nodes: Sequence[Node], place: Place) -> list[tuple[Node, Place]]:
    return [_device(node, place.item(n)) for n, node in enumerate(nodes)]


def _device(node: Node, place: Place) -> tuple[Node, Place]:
    """One device and its place; it may be a string, as in the flag's argument."""
    if not isinstance(node, Scalar):
        return node, place
    if node.text.lstrip().startswith(("{", "name:", "groups:", "---", "#")):
        return embedded(node, place)
    name, *paths = (Scalar(node.mark, text.strip(), "str") for text in node.text.split(","))
    if not paths:
        return node, place
    # the old format without groups: a name, and paths that each make devices
    groups = [_mapping(node, paths=Items(node.mark, (_mapping(node, path=path),))) for path in paths]
    return _mapping(node, name=name, groups=Items(node.mark, tuple(groups))), place


def _mapping(source: Node, **values: Node) -> Fields:
    return Fields(source.mark, {key: Entry(source.mark, value) for key, value in values.items()})


def _of_microshift(node: Node) -> Node:
    """The same place in the plugin's terms."""
    if isinstance(node, Items):
        return Items(node.mark, tuple(map(_of_microshift, node.items)))
    if not isinstance(node, Fields):
        return node
    renamed = {"usbs": "usb"}
    entries = {
        renamed.get(key, key): Entry(entry.mark, _of_microshift(entry.value))
        for key, entry in node.entries.items()
        if key != "status"
    }
    return Fields(node.mark, entries)


def _runs_it(container: Container) -> bool:
    return "generic-device-plugin" in container.image or any(
        flag.name == "device" for flag in container.flags()
    )


def _of_container(container: Container, found: Sequence[Object], key: str) -> _Source:
    """The devices in a container's flags, or in the file that they name."""
    source = _Source()
    domain, path = "", ""
    for flag in container.flags(switches=("version",)):
        if flag.name == "device":
            source.devices.append(_device(flag.value, flag.place))
        elif flag.name == "domain":
            domain = flag.value.text
        elif flag.name == "config":
            path = flag.value.text
        elif flag.name not in _OF_THE_PROCESS:
            flag.place.report(
                flag.value, f"the plugin has no flag --{flag.name}", suggest(flag.name, _FLAGS, "flags")
            )
        else:
            source.remarks.append(_of_the_process(f"--{flag.name}"))
    if not source.devices:
        maps = [one for one in found if one.kind == "ConfigMap"]
        if not maps:
            message = f"its devices are in the file {path or '/etc/generic-device-plugin/config.yaml'}"
            hint = "give that file, or the ConfigMap that contains it, as well"
            container.place.diagnostics.fail(container.node.mark, message, hint)
        inner = _of_config_map(maps, key or path.rpartition("/")[2])
        source.devices, source.domain = inner.devices, inner.domain
        source.remarks += inner.remarks
    # the plugin's order of precedence: the flag, the variable, the file
    source.domain = domain or container.variable("DOMAIN") or source.domain
    if not source.domain and container.version:
        source.domain = DEFAULT_DOMAIN if container.version >= _CHANGED else FORMER_DOMAIN
        version = ".".join(map(str, container.version))
        source.remarks.append(f"Domain: {source.domain}, the default of version {version}.")
    return source


def _of_config_map(found: Sequence[Object], key: str = "") -> _Source:
    """The devices of the only ConfigMap that has any.

    Raises:
        ConfigError: none has devices, or several have.
    """
    maps = [one for one in found if one.kind == "ConfigMap"]
    if not maps:
        first = found[0]
        kind = at(first.node, "kind") or first.node
        message = (
            (f"a {shown(first.kind)} contains no configuration")
            if first.kind
            else "it is not a configuration"
        )
        hint = (
            "give the DaemonSet of generic-device-plugin, a ConfigMap, or the configuration itself; "
            f"for other plugins see {GUIDE}"
        )
        first.place.diagnostics.fail(kind.mark, message, hint)
    likely = [one for one in maps if _keys(one, key)] or maps
    if len(likely) > 1:
        names = some([one.name for one in likely])
        message = f"several ConfigMaps may contain the configuration: {names}"
        likely[1].place.diagnostics.fail(likely[1].node.mark, message, "give only one of them")
    (chosen,) = likely
    keys = _keys(chosen, key)
    name = (
        keys[0]
        if len(keys) == 1
        else config_map_entry(chosen, key or CONFIG_KEYS[0], CHOOSE, strict=bool(key))
    )
    return _bare(*opened(*held(chosen, "data", name)))


def _keys(config_map: Object, key: str) -> list[str]:
    """Entries that may be the configuration: the requested one, one with a known name, those with devices."""
    data = at(config_map.node, "data")
    names = [*data.entries] if isinstance(data, Fields) else []
    for wanted in (key,) if key else CONFIG_KEYS:
        if wanted in names:
            return [wanted]
    if key:
        return []
    return [name for name in names if _has_devices(config_map, name)]


def _has_devices(config_map: Object, name: str) -> bool:
    entry = at(config_map.node, "data", name)
    if not isinstance(entry, Scalar):
        return False
    try:
        node, _ = embedded(entry, config_map.place)
    except ConfigError:
        return False
    return at(node, "devices") is not None or at(node, "device") is not None


def _of_the_process(key: str) -> str:
    return f"{one_line(key)}: not part of this file; see the options of `devhost run`."


def _file(root: Node, place: Place) -> _Source:
    """The domain and the devices of a configuration file."""
    source = _Source()
    found: tuple[Node, Place] | None = None
    entries = root.entries if isinstance(root, Fields) else {}
    for key, entry in entries.items():
        here = place.key(key)
        if key == "domain":
            text = read_text(entry.value, here)
            source.domain = "" if text is WRONG else text
        elif key in ("device", "devices"):
            found = entry.value, here
        elif key.replace("_", "-") in _OF_THE_PROCESS:
            source.remarks.append(_of_the_process(key))
        else:
            known = "known keys: device, devices, domain"
            here.diagnostics.add(entry.mark, place.path, f"unknown key {shown(key)}", known)
    if found is None:
        hint = f"generic-device-plugin lists them under devices; for other plugins see {GUIDE}"
        place.report(root, "it has no devices", hint)
    else:
        devices, here = found
        if isinstance(devices, Items):
            source.devices = _listed(devices.items, here)
        else:
            here.report(devices, f"must be a list of devices, not {devices}")
    return source


def _devices(nodes: Sequence[tuple[Node, Place]], domain: str) -> Iterator[_Device]:
    seen: set[str] = set()
    for node, here in nodes:
        device = read_dataclass(node, _Device, here)
        if device is WRONG:
            continue
        problem = naming.problem(f"{domain}/{device.name}")
        if problem:
            here.key("name").report(node, f"{shown(f'{domain}/{device.name}')} {problem}")
        elif device.name in seen:
            here.key("name").report(
                node, f"{shown(device.name)} occurs twice", "give each device a unique name"
            )
        seen.add(device.name)
        yield device


def _shared(groups: Sequence[_Group]) -> set[int]:
    """The ids of paths and USB devices that overlap with others in the file.

    The plugin serves each of them nevertheless; devhost only if each has ``shared``.
    """
    found: set[int] = set()
    paths = [path for group in groups for path in group.nodes]
    usb = [one for group in groups for one in group.usb]
    found.update(id(path) for path in paths if overlap.has_parts(path.host))
    for path, another in combinations(paths, 2):
        if overlap.may_be_one(path.host, another.host):
            found.update((id(path), id(another)))
    for one, other in combinations(usb, 2):
        if one.may_be(other):
            found.update((id(one), id(other)))
    # a path does not show which USB device a serial port or a camera belongs to
    whole = [path for path in paths if overlap.may_be_one(path.host, "/dev/bus/usb")]
    if paths and len(paths) + len(usb) > 1:
        found.update(map(id, (*usb, *whole)))
    return found


def _written(devices: Sequence[_Device], domain: str, remarks: Sequence[str]) -> Iterator[str]:
    yield "# Converted from a configuration of generic-device-plugin. Differences:"
    yield "# - devhost offers a path without wildcards that does not exist as unhealthy, the plugin omits it;"
    yield "# - device ids stay the same after replugging and reboots."
    groups = [group for device in devices for group in device.groups]
    if any(_globs(group) > 1 for group in groups):
        yield "# - the plugin pairs the nodes of several wildcards in a group in order, devhost by hardware;"
        yield "#   `pair: number` in a group is for nodes without hardware, `pair: order` pairs in order."
    if any(group.usb for group in groups):
        yield "# - for devhost two equal USB devices are two devices, for the plugin one."
    shared = _shared(groups)
    if shared:
        yield "# As with the plugin, a node in several of these devices serves each of them: `shared: true`."
        yield "# Remove `shared: true` if only one pod at a time may have the node."
    if len([path for group in groups for path in group.nodes if id(path) not in shared]) > 1:
        yield "# If two paths lead to one node under different names, by a link, devhost offers it for the"
        yield "# first path, or for both if both have `shared: true`. The plugin always offers it for both."
    for remark in remarks:
        yield f"# {one_line(remark)}"
    yield "version: 1"
    yield ""
    yield "resources:" if devices else "resources: []"
    for device in devices:
        yield from _resource(device, domain)
    if devices:
        yield ""
        yield "backends:"
        yield "  udev:"
        yield "    groups:"
    for device in devices:
        for group in device.groups:
            yield from _group(device.name, group, shared)


def _globs(group: _Group) -> int:
    """How many members of a group can match several nodes."""
    return sum(path.varies and path.type == "Device" for path in group.paths)


def _resource(device: _Device, domain: str) -> Iterator[str]:
    yield f"  - name: {notation.text(f'{domain}/{device.name}')}"
    yield "    backend: udev"
    yield f"    where: {{group: {notation.text(device.name)}}}"
    counts = [max(group.count, 1) for group in device.groups]
    if max(counts) > 1:
        yield "    share:"
        yield f"      replicas: {counts[0]}"
        others = [(n, count) for n, count in enumerate(counts) if count != counts[0]]
        if others:
            yield "      overrides:"
        for n, count in others:
            yield f"        - {{where: {{alternative: {n}}}, replicas: {count}}}"


def _group(name: str, group: _Group, shared: Set[int]) -> Iterator[str]:
    yield f"      - name: {notation.text(name)}"
    mounts = [path for path in group.paths if path.type == "Mount"]
    several = any(path.varies for path in group.paths)
    if _globs(group) > 1:
        yield "        # the plugin pairs these in order, devhost by hardware"
    if group.nodes:
        yield "        members:"
    for path in group.nodes:
        yield from _entry(_member(path, shared=id(path) in shared, several=several))
    if mounts:
        yield "        mounts:"
    for path in mounts:
        if path.varies:
            yield "          # the plugin gives each device of the group one match, devhost all of them"
        elif several:
            limit = path.limit or 1
            yield f"          # from the plugin only {limit} of the group's devices get it, from devhost all"
        yield from _entry(_mount(path))
    if len(group.usb) > 1:
        yield "        # these are different hardware: the first of each are combined"
        yield "        pair: order"
    if group.usb:
        yield "        usb:"
    for usb in group.usb:
        values = {"idVendor": json.dumps(usb.hex(usb.vendor)), "idProduct": json.dumps(usb.hex(usb.product))}
        if usb.serial:
            values["serial"] = notation.text(usb.serial)
        if id(usb) in shared:
            values["shared"] = "true"
        yield from _entry(values)


def _member(path: _Path, *, shared: bool, several: bool) -> dict[str, str]:
    values = {"path": notation.text(path.host)}
    if path.mount_path:
        values["containerPath"] = notation.text(path.mount_path)
    values["permissions"] = path.permissions or "mrw"
    limit = path.limit or 1
    if limit > 1 or (several and not path.varies):
        values["limit"] = str(limit)
    if path.optional:
        values["optional"] = "true"
    if shared:
        values["shared"] = "true"
    return values


def _mount(path: _Path) -> dict[str, str]:
    values = {"path": notation.text(path.host)}
    if path.mount_path:
        values["containerPath"] = notation.text(path.mount_path)
    values["readOnly"] = "true" if path.read_only else "false"
    if path.optional:
        values["optional"] = "true"
    return values


def _entry(values: dict[str, str]) -> Iterator[str]:
    for n, (key, value) in enumerate(values.items()):
        yield f"          {'- ' if n == 0 else '  '}{key}: {value}"
