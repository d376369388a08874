"""generic-device-plugin's YAML → devhost.yaml.

Read are its configuration file and what its ``--device`` flag takes (one device, or a list of them).
What has no exact equal is said in a comment of the result.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from devhost import naming
from devhost.backend import OptionError, option
from devhost.config.annotation import Bounds, Raw
from devhost.config.complaints import Complaints, Place, one_line, shown
from devhost.config.document import parse
from devhost.config.nodes import Entry, Fields, Items, Node, Scalar
from devhost.config.scalar import WRONG, read_text
from devhost.config.shape import read_dataclass
from devhost.settings import MAX_REPLICAS

from . import notation
from .notation import IF_EMPTY, embedded

DEFAULT_DOMAIN = "squat.ai"
"""The domain of its resources unless it is told another."""

_OF_THE_PROCESS = frozenset(
    {"config", "config-file", "listen", "log-level", "plugin-directory", "version"},
)
"""Top-level keys that say how its process runs, not which devices there are."""

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
                    f"{shown(value)} holds .. or a backslash", key=key, hint="write the path itself"
                )
        if not _PERMISSIONS.fullmatch(self.permissions or "mrw"):
            raise OptionError(f"{shown(self.permissions)} is not made of m, r and w", key="permissions")
        if self.type == "Mount" and self.varies and self.mount_path and not self.mount_path.endswith("/"):
            hint = "end it with / to mean a directory"
            raise OptionError("several files cannot all be mounted at one path", key="mountPath", hint=hint)

    @property
    def varies(self) -> bool:
        return any(sign in self.path for sign in "*?[")

    @property
    def host(self) -> str:
        """The path in devhost's spelling: no slash at the end, ``[!…]`` where Go's globs have ``[^…]``."""
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

    @staticmethod
    def hex(node: Node) -> str:
        """A USB id as four hex digits, whatever YAML took its text for."""
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


@dataclass(frozen=True, slots=True)
class _Device:
    name: str = option(example="serial")
    groups: Annotated[tuple[_Group, ...], Bounds(1, 1000)] = option()


def convert(text: bytes, file_name: str, domain: str = "") -> str:
    """The text of an equivalent devhost.yaml.

    Args:
        text: the other plugin's configuration.
        file_name: stands in the complaints.
        domain: of the resources; the file's own if empty, :data:`DEFAULT_DOMAIN` if it has none.

    Raises:
        ConfigError: it is not a configuration of generic-device-plugin, with everything wrong in it.
    """
    complaints = Complaints(file_name)
    document = parse(text, complaints, if_empty=IF_EMPTY)
    place = Place(complaints)
    ignored: list[str] = []
    if isinstance(document, Fields) and not {"name", "groups"} & document.entries.keys():
        settings, nodes, place = _file(document, place, ignored)
        domain = domain or settings
    else:
        nodes = document.items if isinstance(document, Items) else (document,)
    domain = domain or DEFAULT_DOMAIN
    devices = list(_devices(nodes, domain, place))
    if complaints.found:
        raise complaints.error()
    return "\n".join(_written(devices, domain, ignored)) + "\n"


def _file(root: Fields, place: Place, ignored: list[str]) -> tuple[str, Sequence[Node], Place]:
    """The domain and the devices of a configuration file, and the place of the latter."""
    domain = ""
    found: Entry | None = None
    for key, entry in root.entries.items():
        here = place.key(key)
        if key == "domain":
            value = read_text(entry.value, here)
            domain = "" if value is WRONG else value
        elif key in ("device", "devices"):
            found, place = entry, here
        elif key.replace("_", "-") in _OF_THE_PROCESS:
            ignored.append(key)
        else:
            known = "known keys: device, devices, domain"
            here.complaints.add(entry.mark, place.path, f"unknown key {shown(key)}", known)
    if found is None:
        place.complain(root, "it has no devices", "generic-device-plugin lists them under devices")
        return domain, (), place
    if not isinstance(found.value, Items):
        place.complain(found.value, f"must be a list of devices, not {found.value}")
        return domain, (), place
    return domain, found.value.items, place


def _devices(nodes: Sequence[Node], domain: str, place: Place) -> Iterator[_Device]:
    seen: set[str] = set()
    for index, node in enumerate(nodes):
        here = place.item(index)
        if isinstance(node, Scalar) and node.text.lstrip().startswith(("{", "name:")):
            # what the flag takes: a device as JSON or YAML within a string
            node, here = embedded(node, here)
        device = read_dataclass(node, _Device, here)
        if here.complaints is not place.complaints and here.complaints.found:
            raise here.complaints.error()
        if device is WRONG:
            continue
        problem = naming.problem(f"{domain}/{device.name}")
        if problem:
            here.key("name").complain(node, f"{shown(f'{domain}/{device.name}')} {problem}")
        elif device.name in seen:
            here.key("name").complain(
                node, f"{shown(device.name)} stands twice", "give each device its own name"
            )
        seen.add(device.name)
        yield device


def _written(devices: Sequence[_Device], domain: str, ignored: Sequence[str]) -> Iterator[str]:
    yield "# Made from a configuration of generic-device-plugin. What differs there:"
    yield "# - a path without wildcard that does not exist is offered as unhealthy, not left out;"
    yield "# - ids are stable over replugging and reboots."
    groups = [group for device in devices for group in device.groups]
    if any(_globs(group) > 1 for group in groups):
        yield "# - nodes of several wildcards in a group are paired in order there, whatever they belong to;"
        yield "#   here by the hardware they hang on. `pair: order` in a group does what is done there."
    if any(group.usb for group in groups):
        yield "# - two equal USB devices are two devices here, there they are one."
    for key in ignored:
        yield f"# {one_line(key)}: has no place in this file; see the options of `devhost run`."
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
    uses = Counter(p.host for d in devices for p in {p.host: p for g in d.groups for p in g.paths}.values())
    for device in devices:
        for group in device.groups:
            yield from _group(device.name, group, uses)


def _globs(group: _Group) -> int:
    """How many members of a group stand for any number of nodes."""
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


def _group(name: str, group: _Group, uses: Counter[str]) -> Iterator[str]:
    yield f"      - name: {notation.text(name)}"
    nodes = [path for path in group.paths if path.type == "Device"]
    mounts = [path for path in group.paths if path.type == "Mount"]
    several = any(path.varies for path in group.paths)
    if _globs(group) > 1:
        yield "        # paired in order there, by hardware here"
    if nodes:
        yield "        members:"
    for path in nodes:
        yield from _entry(_member(path, shared=uses[path.host] > 1, several=several))
    if mounts:
        yield "        mounts:"
    for path in mounts:
        if path.varies:
            yield "          # there each of the group's devices gets one of the matches, here all of them"
        elif several:
            yield f"          # there only {path.limit or 1} of the group's devices get it, here all do"
        yield from _entry(_mount(path))
    if len(group.usb) > 1:
        yield "        # they are different hardware, so the first of each come together"
        yield "        pair: order"
    if group.usb:
        yield "        usb:"
    for usb in group.usb:
        values = {"idVendor": json.dumps(usb.hex(usb.vendor)), "idProduct": json.dumps(usb.hex(usb.product))}
        if usb.serial:
            values["serial"] = notation.text(usb.serial)
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
