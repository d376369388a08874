"""Converts the YAML of generic-device-plugin to devhost.yaml.

The input is its configuration file, the argument of its ``--device`` flag (one device, or a list), a
ConfigMap that contains the file, the DaemonSet that runs it with either, or its section in the file of
MicroShift. A comment in the result names each difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import WHOLE_FILE, one_line, shown, suggest
from devhost.config.document import Entry, Fields, Items, Node, Scalar
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import WRONG, Bounds, Raw, read_dataclass

from . import overlap
from .gojson import PCI_ID, pci_id
from .source import GUIDE, Object, Source, Value, node_at, some, text_at
from .workload import Container, Options, the_container, version_of
from .writing import Entry as Resource
from .writing import Written, document, given

PEER = "generic-device-plugin"

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

_OF_THE_PROCESS = ("config", "config-file", "listen", "log-level", "plugin-directory", "version")
"""Flags and top-level keys that control its process, not its devices."""

_FLAGS = ("device", "domain", *_OF_THE_PROCESS)
_NOTES = {
    **dict.fromkeys(_OF_THE_PROCESS, "not part of this file; see the options of `devhost run`."),
    "status": "set it to Disabled before devhost serves these resources.",  # of MicroShift
}
"""What to do about the other top-level keys."""

_PERMISSIONS = re.compile(r"(?!.*(.).*\1)[rwm]{0,3}")
_REFUSED = (
    (r"([^/].*)?", "is not absolute", "start it with /"),
    (r"(.*/)?\.\.(/.*)?|.*\\.*", "holds .. or a backslash", "write the path without them"),
    (r".*\{.*", "holds a brace", "braces are placeholders in devhost: write ? for a brace in a path"),
)
"""Forms of paths that cannot be converted."""


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
            for form, message, hint in _REFUSED if value or key == "path" else ():
                if re.fullmatch(form, value, re.DOTALL):
                    raise OptionError(f"{shown(value)} {message}", key=key, hint=hint)
        if self.host == "/":
            raise OptionError("/ is not a device", key="path")
        if not _PERMISSIONS.fullmatch(self.permissions):
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
            if not (isinstance(node, Scalar) and PCI_ID.fullmatch(node.text)):
                raise OptionError("must be up to four hex digits", key=key, hint='for example "1a86"')

    @property
    def ids(self) -> dict[str, Written]:
        """The ids as four hex digits, also if YAML read them as numbers."""
        vendor, product = (one.text if isinstance(one, Scalar) else "" for one in (self.vendor, self.product))
        return {"idVendor": pci_id(vendor), "idProduct": pci_id(product)}

    def covers(self, other: _Usb) -> bool:
        """Whether it selects all devices that the other one selects."""
        return self.ids == other.ids and self.serial in ("", other.serial)


@dataclass(frozen=True, slots=True)
class _Group:
    count: Annotated[int, Bounds(0, MAX_REPLICAS)] = 1
    paths: tuple[_Path, ...] = ()
    usb: tuple[_Usb, ...] = ()
    usbs: tuple[_Usb, ...] = ()

    def __post_init__(self) -> None:
        if self.paths and self.hardware:
            raise OptionError("a group has either paths or usb", key="usb", hint="make two groups of it")
        if not self.paths and not self.hardware:
            raise OptionError("a group needs paths or usb")
        seen: set[str] = set()
        for n, path in enumerate(self.paths):
            inside = "" if path.varies or path.type == "Mount" else path.inside
            if inside and inside in seen:
                message = f"the container already has {shown(inside)} from another path"
                raise OptionError(message, key=f"paths[{n}].path")
            seen.add(inside)

    @property
    def hardware(self) -> tuple[_Usb, ...]:
        """The USB devices, which have another key in MicroShift's file; each device once."""
        every = [*enumerate(self.usb + self.usbs)]
        return tuple(
            one
            for n, one in every
            if not any(other.covers(one) and (m < n or not one.covers(other)) for m, other in every if m != n)
        )

    @property
    def nodes(self) -> list[_Path]:
        """The paths of device nodes."""
        return [path for path in self.paths if path.type == "Device"]

    @property
    def globs(self) -> int:
        """How many of them can match several nodes."""
        return sum(path.varies for path in self.nodes)


@dataclass(frozen=True, slots=True)
class _Device:
    former_keys: ClassVar[Mapping[str, str]] = {
        "count": "the plugin ignores it at this level: put it into each group"
    }

    name: str = option(example="serial")
    groups: Annotated[tuple[_Group, ...], Bounds(1, 1000)] = option()


def convert(text: bytes, file_name: str, domain: str = "", key: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        text: the other plugin's configuration, or objects or values that contain it.
        file_name: appears in the diagnostics.
        domain: of the resources; if empty, the one in the source.
        key: which entry of a ConfigMap to read; one of :data:`CONFIG_KEYS`, or the only one, if empty.

    Raises:
        ConfigError: it is not a configuration of generic-device-plugin, with every error in it; or it does
            not contain the domain, whose default depends on the plugin's version.
    """
    source = Source(text, file_name, PEER)
    given, found = _read(source, key)
    known = domain or found
    devices = list(_devices(given, known or DEFAULT_DOMAIN))
    source.check()
    if devices and not known:
        default = f"{FORMER_DOMAIN} before version 0.2.0 and {DEFAULT_DOMAIN} since"
        message = f"the domain is missing: the plugin's default is {default}"
        hint = f"add the one that your pods request: --domain {DEFAULT_DOMAIN} or --domain {FORMER_DOMAIN}"
        source.diagnostics.fail(WHOLE_FILE, message, hint)
    return _written(devices, known, source)


def _read(source: Source, key: str) -> tuple[list[Value], str]:
    """The devices, and the domain if the input contains it.

    Raises:
        ConfigError: they cannot be found in it.
    """
    plugin = the_container(source, _runs_it, PEER)
    if plugin is not None:
        options = plugin.options(("version",))
        return _of_container(options, plugin, plugin.version, key, plugin.config_maps)
    values = source.values(PEER, "app-template", recognized=lambda one: bool(_apps(one)))
    if values is not None:
        return _of_values(values, key)
    bare = next((one for one in source.objects if not one.kind), None)
    return _bare(bare or _config_map(source, key))


def _each(value: Value, *path: str) -> Iterator[Value]:
    """The values of the mapping below these keys."""
    found = value.at(*path)
    for key in found.keys if found else ():
        if found and (inner := found.at(key)):
            yield inner


def _apps(values: Value) -> list[Value]:
    """The containers of the plugin in values of the chart app-template, with which many install it.

    Values of its earlier versions, and of the chart generic-device-plugin that is made of them, are the
    container themselves.
    """
    controllers = (*_each(values, "controllers"), *_each(values, "controller"))
    every = (one for controller in controllers for one in _each(controller, "containers"))
    found = [one for one in (values, *every) if PEER in text_at(one.node, "image", "repository")]
    return found or ([values] if values.at("config", "data") else [])


def _of_values(values: Value, key: str) -> tuple[list[Value], str]:
    container = next(iter(_apps(values)), None)
    if container is None:
        message = f"no container in these values runs {PEER}"
        hint = "give its DaemonSet and ConfigMap, as printed by kubectl"
        values.place.diagnostics.fail(values.node.mark, message, hint)
    options = Options(container, ("version",))
    if container is not values:
        container.others("command", "args", "env")
    values.omit("controllers", "controller", "image")
    file = values.at("config", "data") if values.is_true("config", "enabled", otherwise=True) else None
    version = () if file else version_of(text_at(container.node, "image", "tag").partition("@")[0])
    for one in (*_each(values, "configMaps"), *_each(values, "configmap")):
        values.source.objects.append(Object(one.source, one.root, one.node, one.place, "ConfigMap"))
    left = some(values.others("command", "args", "env", "config", "configMaps", "configmap"))
    what = "Of the values only arguments, variables and the ConfigMap of the plugin are converted"
    values.source.note(f"{what}, not {left}." if left else f"{what}.")
    devices, domain = _of_container(options, container, version, key, file=file)
    if file and not domain:
        domain = FORMER_DOMAIN
        values.source.note(f"Domain: {domain}, the default of the chart.")
    return devices, domain


def _bare(value: Value) -> tuple[list[Value], str]:
    """The devices of a configuration file, or of the flag's argument."""
    if (inner := value.at(MICROSHIFT)) is not None:
        if left := value.others(MICROSHIFT):
            value.source.note(f"{', '.join(left)}: other settings of MicroShift.")
        devices, domain = _file(inner)
        return devices, domain or MICROSHIFT_DOMAIN
    if isinstance(value.node, Fields) and not {"name", "groups"} & value.node.entries.keys():
        return _file(value)
    if isinstance(value.node, Items):
        return [_device(one) for one in value.each()], ""
    return [_device(replace(value, place=value.place.item(0)))], ""


def _device(value: Value) -> Value:
    """One device; it may be a string, as in the flag's argument."""
    node = value.take()
    if not isinstance(node, Scalar):
        return value
    if node.text.lstrip().startswith(("{", "name:", "groups:", "---", "#")):
        return replace(value, node=Scalar(node.mark, node.text, "str")).document()
    name, *paths = (Scalar(node.mark, text.strip(), "str") for text in node.text.split(","))
    if not paths:
        return value
    # the old format without groups: a name, and paths that each make devices
    groups = [_mapping(node, paths=Items(node.mark, (_mapping(node, path=path),))) for path in paths]
    return replace(value, node=_mapping(node, name=name, groups=Items(node.mark, tuple(groups))))


def _mapping(source: Node, **values: Node) -> Fields:
    return Fields(source.mark, {key: Entry(source.mark, value) for key, value in values.items()})


def _runs_it(container: Container) -> bool:
    return PEER in container.image or any(flag.name == "device" for flag in Options(container).flags)


def _of_container(
    options: Options,
    container: Value,
    version: tuple[int, ...],
    key: str,
    names: Sequence[str] = (),
    file: Value | None = None,
) -> tuple[list[Value], str]:
    """The devices in a container's flags, or in the file that they name, which is ``file`` if known."""
    source, devices, domain = container.source, list[Value](), ""
    for flag in options.flags:
        if flag.name == "device":
            devices.append(_device(replace(flag.value, node=flag.given)))
        elif flag.name in _OF_THE_PROCESS[1:]:
            source.note(f"--{flag.name}: {_NOTES[flag.name]}")
        elif flag.name not in _FLAGS:
            hint = suggest(flag.name, _FLAGS, "flags")
            flag.place.report(flag, f"the plugin has no flag --{flag.name}", hint)
    given = options.flag("config")
    path = given.text if given else "/etc/generic-device-plugin/config.yaml"
    if not devices and file:
        devices, domain = _bare(file.document())
    elif not devices:
        if not any(one.kind == "ConfigMap" for one in source.objects):
            hint = "give that file, or the ConfigMap that contains it, as well"
            container.place.diagnostics.fail(container.node.mark, f"its devices are in the file {path}", hint)
        entry = path.rpartition("/")[2]  # unless the pod mounts it under another name
        maps = [one for one in source.objects if one.kind == "ConfigMap" and one.at("data", entry)]
        devices, domain = _bare(_config_map(source, key or (entry if maps else ""), names))
    # the plugin's order of precedence: the flag, the variable, the file
    given = options.flag("domain") or options.variable("DOMAIN")
    domain = given.text if given else domain
    options.finish("device", *_OF_THE_PROCESS)
    if not domain and version:
        domain = DEFAULT_DOMAIN if version >= _CHANGED else FORMER_DOMAIN
        source.note(f"Domain: {domain}, the default of version {'.'.join(map(str, version))}.")
    return devices, domain


def _config_map(source: Source, key: str, names: Sequence[str] = ()) -> Value:
    """The file in the only ConfigMap that has one.

    Raises:
        ConfigError: none has devices, or several have.
    """
    found = source.config_map(*CONFIG_KEYS, likely=_has_devices, key=key, names=names)
    what = f"the DaemonSet of {PEER}, a ConfigMap, or the configuration itself"
    return found or source.refuse(f"give {what}; for other plugins see {GUIDE}")


def _has_devices(node: Node) -> bool:
    return node_at(node, "devices") is not None or node_at(node, "device") is not None


def _file(value: Value) -> tuple[list[Value], str]:
    """The devices and the domain of a configuration file."""
    entries = value.node.entries if isinstance(value.node, Fields) else {}
    for key, entry in entries.items():
        if note := _NOTES.get(key.replace("_", "-")):
            value.omit(key)
            value.source.note(f"{one_line(key)}: {note}")
        elif key not in ("device", "devices", "domain"):
            known = "known keys: device, devices, domain"
            value.place.report(entry, f"unknown key {shown(key)}", known)
    found = value.at("devices") or value.at("device")
    if found is None:
        hint = f"{PEER} lists them under devices; for other plugins see {GUIDE}"
        value.place.report(value.node, "it has no devices", hint)
    elif not isinstance(found.take(), Items):
        found.place.report(found.node, f"must be a list of devices, not {found.node}")
    return [_device(one) for one in found.each()] if found else [], value.text("domain")


def _devices(values: Sequence[Value], domain: str) -> Iterator[_Device]:
    seen: set[str] = set()
    for value in values:
        node, here = value.take(), value.place
        device = read_dataclass(node, _Device, here)
        if device is WRONG:
            continue
        full = f"{domain}/{device.name}"
        if problem := naming.problem(full):
            here.key("name").report(node, f"{shown(full)} {problem}")
        elif device.name in seen:
            message = f"{shown(device.name)} occurs twice"
            here.key("name").report(node, message, "give each device a unique name")
        seen.add(device.name)
        yield device


def _shared(groups: Sequence[_Group]) -> set[int]:
    """The ids of paths and USB devices that overlap with others in the file.

    The plugin serves each of them nevertheless; devhost only if each has ``shared``.
    """
    every: list[_Path | _Usb] = []
    for group in groups:
        every += [*group.nodes, *group.hardware]

    def apart(n: int, m: int) -> bool:
        one, other = every[n], every[m]
        if isinstance(one, _Path) or isinstance(other, _Path):
            return False
        return not (one.covers(other) or other.covers(one))

    paths = [one.host if isinstance(one, _Path) else overlap.USB for one in every]
    return {id(every[n]) for n in overlap.shared(paths, apart)}


def _written(devices: Sequence[_Device], domain: str, source: Source) -> str:
    differs = [
        "devhost offers a path without wildcards that does not exist as unhealthy, the plugin omits it",
        "device ids stay the same after replugging and reboots",
    ]
    groups = [group for device in devices for group in device.groups]
    if any(group.globs > 1 for group in groups):
        differs.append(
            "the plugin pairs the nodes of several wildcards in a group in order, devhost by hardware; "
            "`pair: number` in a group is for nodes without hardware, `pair: order` pairs in order"
        )
    if any(group.hardware for group in groups):
        differs.append("for devhost two equal USB devices are two devices, for the plugin one")
    if any(len(group.hardware) > 1 for group in groups):
        differs.append("the first of each of a group's USB devices make one device, as far as they are there")
    shared = _shared(groups)
    if len([path for group in groups for path in group.nodes if id(path) not in shared]) > 1:
        source.note(
            "If two paths lead to one node under different names, by a link, devhost offers it for the first "
            "path, or for both if both have `shared: true`. The plugin always offers it for both."
        )
    return document(source, PEER, differs, [_resource(device, domain, shared) for device in devices])


def _resource(device: _Device, domain: str, shared: Set[int]) -> Resource:
    first, *more = (max(group.count, 1) for group in device.groups)
    others = [(n, count) for n, count in enumerate(more, 1) if count != first]
    overrides: list[Written] = [{"where": {"alternative": n}, "replicas": count} for n, count in others]
    share = {"replicas": first} | given(overrides=overrides) if first > 1 or others else {}
    remarks = []
    for group in device.groups:
        if len(group.nodes) < len(group.paths) and any(path.varies for path in group.paths):
            remarks.append(
                "Mounts: the plugin gives each device of the group one match, devhost all of them. A mount "
                "without wildcard goes to as many of the plugin's devices as its limit."
            )
        if group.globs > 1:
            remarks.append("Several wildcards: the plugin pairs these in order, devhost by hardware.")
    where, groups = {"group": device.name}, [_group(device.name, group, shared) for group in device.groups]
    return Resource(f"{domain}/{device.name}", "udev", [where], given(share=share), remarks, groups)


def _group(name: str, group: _Group, shared: Set[int]) -> Mapping[str, Written]:
    several = any(path.varies for path in group.paths)
    members = [
        _place(path)
        | {"permissions": path.permissions or "mrw"}
        | given(limit=path.limit if path.limit > 1 else int(several and not path.varies))
        | given(optional=path.optional, shared=id(path) in shared)
        for path in group.nodes
    ]
    mounts = [
        _place(path) | {"readOnly": path.read_only} | given(optional=path.optional)
        for path in group.paths
        if path.type == "Mount"
    ]
    several_usb = len(group.hardware) > 1  # of which those that are there make a device
    usb = [
        one.ids | given(serial=one.serial, shared=id(one) in shared, optional=several_usb)
        for one in group.hardware
    ]
    pair = "order" if several_usb else ""
    return {"name": name} | given(members=members, mounts=mounts, pair=pair, usb=usb)


def _place(path: _Path) -> dict[str, Written]:
    return {"path": path.host} | given(containerPath=path.mount_path)
