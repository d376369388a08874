"""Converts the YAML of generic-device-plugin, also in MicroShift's file or the plugin's flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from devhost.backend import OptionError, option
from devhost.config.diagnostics import WHOLE_FILE, one_line, shown, suggest
from devhost.config.document import Items, Scalar
from devhost.config.language import MAX_REPLICAS, naming
from devhost.config.reader import Bounds, Form, Raw

from . import globs
from .source import GUIDE, PCI_ID, Object, Source, Value, pci_id, some, text_at
from .workload import Container, Options, file_of, the_container, version_of
from .writing import Entry, Written, document, given

PEER = "generic-device-plugin"
FORMER_DOMAIN, DEFAULT_DOMAIN = "squat.ai", "devic.es"
DEFAULTS = f"{FORMER_DOMAIN} before version 0.2.0 and {DEFAULT_DOMAIN} since"
MICROSHIFT, MICROSHIFT_DOMAIN = "genericDevicePlugin", "device.microshift.io"  # a section of its file

_OF_THE_PROCESS = ("config", "config-file", "listen", "log-level", "plugin-directory", "version")
_NOTES = {  # on top-level keys, and flags
    **dict.fromkeys(_OF_THE_PROCESS, "see the options of `devhost run`."),
    "status": "set it to Disabled before devhost serves these resources.",  # of MicroShift
}
_PATH = r"(?s)(?!.*/\.\.(/|$))/[^\\{]*"
_ABSOLUTE = ("an absolute path without .., backslash and brace", "write ? for a brace")
_PLAIN = "write them in quotes: plain ones are decimal (0… octal) for the plugin, hexadecimal for devhost."
_DEVICE = re.compile("--?device(=|$)")
_Found = tuple[list[Value], str]  # the devices, and the domain if the input contains it


@dataclass(frozen=True, slots=True)
class _Path:
    path: Annotated[str, Form(_PATH, *_ABSOLUTE)] = option(example="/dev/ttyUSB*")
    mount_path: Annotated[str, Form(f"{_PATH}|", *_ABSOLUTE)] = ""
    type: Literal["Device", "Mount"] = "Device"
    permissions: Annotated[str, Form(r"(?!.*(.).*\1)[rwm]{0,3}", "some of m, r and w")] = "mrw"
    read_only: bool = False
    limit: Annotated[int, Bounds(0, MAX_REPLICAS)] = 1
    optional: bool = False

    def __post_init__(self) -> None:
        if self.host == "/":
            raise OptionError("/ is not a device", key="path")
        if self.type == "Mount" and self.varies and self.mount_path and not self.mount_path.endswith("/"):
            hint = "end it with / to mean a directory"
            raise OptionError("several files cannot all be mounted at one path", key="mountPath", hint=hint)

    @property
    def varies(self) -> bool:
        return any(sign in self.path for sign in "*?[")

    @property
    def inside(self) -> str:
        """The path of the node in the container; empty for several nodes, and for mounts."""
        at = "" if self.varies or self.type == "Mount" else self.mount_path or self.host
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
            if not PCI_ID.fullmatch(text_at(node)):
                raise OptionError("must be up to four hex digits", key=key, hint='for example "1a86"')

    @property
    def ids(self) -> dict[str, Written]:
        """The ids as four hex digits, also if YAML read them as numbers."""
        return {"idVendor": pci_id(text_at(self.vendor)), "idProduct": pci_id(text_at(self.product))}

    def covers(self, other: _Usb) -> bool:
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
        for n, inside in enumerate(path.inside for path in self.paths):
            if inside and inside in seen:
                raise OptionError(f"the container already has {shown(inside)}", key=f"paths[{n}].path")
            seen.add(inside)

    @property
    def hardware(self) -> list[_Usb]:
        """The USB devices, which have another key in MicroShift's file; each device once."""
        found: list[_Usb] = []
        for one in self.usb + self.usbs:
            if not any(other.covers(one) for other in found):
                found = [*(other for other in found if not one.covers(other)), one]
        return found

    @property
    def nodes(self) -> list[_Path]:
        return [path for path in self.paths if path.type == "Device"]


@dataclass(frozen=True, slots=True)
class _Device:
    name: str = option(example="serial")
    groups: Annotated[tuple[_Group, ...], Bounds(1, 1000)] = option()


def convert(source: Source, domain: str) -> str:
    values, found = _read(source)
    known = domain or found
    devices = _devices(values, known or DEFAULT_DOMAIN)
    if devices and not known:
        message = f"the domain is missing: the plugin's default is {DEFAULTS}"
        hint = f"add the one that your pods request: --domain {DEFAULT_DOMAIN} or --domain {FORMER_DOMAIN}"
        source.diagnostics.fail(WHOLE_FILE, message, hint)
    shared = _shared([group for device in devices for group in device.groups])
    return document(source, PEER, _DIFFERS, [_resource(device, known, shared) for device in devices])


def _read(source: Source) -> _Found:
    plugin = the_container(source, lambda one: PEER in one.image or any(map(_DEVICE.match, one.words)), PEER)
    if plugin is not None:
        return _of_container(plugin)
    if values := source.values(PEER, "app-template", recognized=lambda one: _app(one) is not None):
        return _of_values(values)
    found = next(iter(source.bare), None) or _config_map(source, None, "config.yaml")
    what = f"the DaemonSet of {PEER}, a ConfigMap, or the configuration itself"
    return _bare(found or source.refuse(f"give {what}; for other plugins see {GUIDE}"))


def _each(value: Value, *keys: str) -> list[Value]:
    return [inner for key in keys for _, inner in value.at(key).members()]


def _app(values: Value) -> Value | None:
    """The container of the plugin in values of the chart app-template, with which many install it. Values
    of its earlier versions, and of the chart generic-device-plugin, are the container themselves."""
    inner = [one for each in _each(values, "controllers", "controller") for one in _each(each, "containers")]
    found = (one for one in (values, *inner) if PEER in text_at(one.node, "image", "repository"))
    return next(found, None) or (values if values.at("config", "data") else None)


def _of_values(values: Value) -> _Found:
    container = _app(values) or values.fail(f"no container here runs {PEER}", "give its DaemonSet")
    if container is not values:
        container.others("command", "args", "env")
    values.omit("controllers", "controller", "image")
    file = values.at("config", "data") if values.is_true("config", "enabled", otherwise=True) else None
    for one in _each(values, "configMaps", "configmap"):
        values.source.objects.append(Object(one.source, one.root, one.node, one.place, "ConfigMap"))
    kept = ("command", "args", "env", "config", "configMaps", "configmap")
    values.leave("settings of the chart, which are not converted.", *kept)
    return _of_container(container, file)


def _of_container(container: Value, file: Value | None = None) -> _Found:
    """The devices in a container's flags, or in the file that they name; ``file`` is that of a chart."""
    if isinstance(container, Container):
        options, image = container.options(("version",)), container.image
    else:
        options, image = Options(container, ("version",)), text_at(container.node, "image", "tag")
    source, version, devices, domain = container.source, version_of(image), list[Value](), ""
    for name, flag in options.flags:
        if name == "device":
            devices.append(_device(flag))
        elif name not in ("domain", *_OF_THE_PROCESS):
            hint = suggest(name, ("device", "domain", *_OF_THE_PROCESS), "flags")
            flag.refuse(f"the plugin has no flag --{name}", hint)
    path = options.get("config").text() or "/etc/generic-device-plugin/config.yaml"
    if not devices and file:
        devices, domain = _bare(file.document())
    elif not devices:
        if (found := _config_map(source, container, path)) is None:
            if isinstance(container, Container) and container.config_maps:
                container.lacks(path, path.rpartition("/")[2])
            hint = "give that file, or the ConfigMap that contains it, as well"
            container.fail(f"its devices are in the file {path}", hint)
        devices, domain = _bare(found)
    # the plugin's order of precedence: the flag, the variable, the file
    domain = options.get("domain", "DOMAIN").text() or domain
    options.finish("device", **_NOTES)
    if not domain and (file or version):
        domain = DEFAULT_DOMAIN if not file and version >= (0, 2, 0) else FORMER_DOMAIN
        what = "the chart" if file else f"version {'.'.join(map(str, version))}"
        source.note(f"Domain: {domain}, the default of {what}.")
    return devices, domain


def _config_map(source: Source, container: Value | None, path: str) -> Value | None:
    usual = (path.rpartition("/")[2], "config.yaml", "config.yml")
    return file_of(source, container, path, *usual, marks=["device", "devices"])


def _bare(value: Value) -> _Found:
    if inner := value.at(MICROSHIFT):
        value.leave("other settings of MicroShift.", MICROSHIFT)
        devices, domain = _file(inner)
        return devices, domain or MICROSHIFT_DOMAIN
    if value.is_mapping and not {"name", "groups"}.intersection(value.keys):
        return _file(value)
    return [*map(_device, value.each() if isinstance(value.node, Items) else [value])], ""


def _file(value: Value) -> _Found:
    for key in value.keys:
        if note := _NOTES.get(key.replace("_", "-")):
            value.omit(key)
            value.source.note(f"{one_line(key)}: {note}")
        elif key not in ("device", "devices", "domain"):
            hint = f"known keys: device, devices, domain; for other plugins see {GUIDE}"
            value.at(key).refuse(f"unknown key {shown(key)}", hint)
    if not (found := value.at("devices") or value.at("device")):
        value.refuse("it has no devices", f"{PEER} lists them there; for other plugins see {GUIDE}")
    if not isinstance(found.take(), Items):
        found.refuse(f"must be a list of devices, not {found.node}")
    return [*map(_device, found.each())], value.text("domain")


def _device(value: Value) -> Value:
    """One device; it may be a string, as in the flag's argument."""
    node = value.take()
    if not isinstance(node, Scalar):
        return value
    text = node.text
    if not text.lstrip().startswith(("{", "name:", "groups:", "---", "#")):
        # the old format without groups: a name, and paths that each make devices
        name, *paths = map(str.strip, text.split(","))
        if not paths:
            return value
        text = json.dumps({"name": name, "groups": [{"paths": [{"path": path}]} for path in paths]})
    return replace(value, node=replace(node, text=text, kind="str")).document()


def _devices(values: Sequence[Value], domain: str) -> list[_Device]:
    found: dict[str, _Device] = {}
    for value in values:
        device = value.as_dataclass(_Device, value.source.note, count="the plugin reads it in each group")
        ids = (one for group in device.groups for usb in group.usb for one in (usb.vendor, usb.product))
        plain = [one.text for one in ids if isinstance(one, Scalar) and one.kind != "str"]
        numbers = [text for text in plain if text[1:2] not in "xX"]  # not 0x…, and no single digit
        if numbers and value.place.path.startswith("device"):  # in the plugin's file, not in a flag
            value.source.note(f"{value.place.path}: USB ids {some(numbers)}: {_PLAIN}")
        full = f"{domain}/{device.name}"
        if problem := naming.problem(full) or ("occurs twice" if device.name in found else ""):
            value.at("name").refuse(f"{shown(full)} {problem}")
        found[device.name] = device
    return [*found.values()]


def _shared(groups: Sequence[_Group]) -> set[int]:
    """The ids of paths and USB devices that overlap with others. devhost serves them only with ``shared``."""
    every: list[_Path | _Usb] = []
    for group in groups:
        every += [*group.nodes, *group.hardware]

    def apart(n: int, m: int) -> bool:
        a, b = every[n], every[m]
        return isinstance(a, _Usb) and isinstance(b, _Usb) and not (a.covers(b) or b.covers(a))

    paths = [one.host if isinstance(one, _Path) else globs.USB for one in every]
    return {id(every[n]) for n in globs.shared(paths, apart)}


def _resource(device: _Device, domain: str, shared: Set[int]) -> Entry:
    first, *more = (max(group.count, 1) for group in device.groups)
    others = [(n, count) for n, count in enumerate(more, 1) if count != first]
    overrides: list[Written] = [{"where": {"alternative": n}, "replicas": count} for n, count in others]
    share = {"replicas": first} | given(overrides=overrides) if first > 1 or others else {}
    several = any(sum(path.varies for path in group.nodes) > 1 for group in device.groups)
    remarks = ["Several wildcards: the plugin pairs these in order, devhost by hardware."] if several else []
    where, groups = {"group": device.name}, [_group(device.name, group, shared) for group in device.groups]
    return Entry(f"{domain}/{device.name}", "udev", [where], given(share=share), remarks, groups)


def _group(name: str, group: _Group, shared: Set[int]) -> Mapping[str, Written]:
    several = any(path.varies for path in group.paths)
    members, mounts = list[Written](), list[Written]()
    for path in group.paths:
        paths = {"path": path.host} | given(containerPath=path.mount_path)
        if path.type == "Mount":
            mounts.append({**paths, "readOnly": path.read_only} | given(optional=path.optional))
            continue
        limit = path.limit if path.limit > 1 else int(several and not path.varies)
        more = given(limit=limit, optional=path.optional, shared=id(path) in shared)
        members.append({**paths, "permissions": path.permissions or "mrw"} | more)
    every = group.hardware
    pair = "order" if len(every) > 1 else ""  # those that are there make a device
    usb = [one.ids | given(serial=one.serial, shared=id(one) in shared, optional=pair != "") for one in every]
    return {"name": name} | given(members=members, mounts=mounts, pair=pair, usb=usb)


_DIFFERS = [
    "devhost offers a path without wildcards that does not exist as unhealthy, the plugin omits it",
    "device ids stay the same after replugging and reboots",
    "the plugin pairs the nodes of several wildcards in a group in order, devhost by hardware; `pair: "
    "number` in a group is for nodes without hardware, `pair: order` pairs in order",
    "of mounts with wildcards the plugin gives each device of the group one match, devhost all of them. A "
    "mount without wildcard goes to as many of the plugin's devices as its limit",
    "for devhost two equal USB devices are two devices, for the plugin one. The first of each of a group's "
    "USB devices make one device, as far as they are there",
    "if two paths lead to one node under different names, by a link, devhost offers it for the first path, "
    "or for both if both have `shared: true`. The plugin always offers it for both",
]
