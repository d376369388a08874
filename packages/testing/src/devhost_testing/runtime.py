"""What a container gets in the end: from the answer to Allocate, or from names that a runtime resolves.

A model of both methods, based on their implementations. Direct: the kubelet uses the first of several values
for a path or a variable, and the runtime passes that to the container. CDI: the reference library reads every
file of a directory, refuses invalid ones, and applies the edits of the named devices in order, so that the
last value applies.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from devhost.kubelet.api import api_pb2

Document = Mapping[str, Any]
"""A CDI specification as JSON values."""

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
"""The versions that loaders support; 0.3.0 is the first."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one written in C takes a tenth of the time."""

_WORD = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_FIELDS = {
    "a specification": {"cdiVersion", "kind", "annotations", "devices", "containerEdits"},
    "a device": {"name", "annotations", "containerEdits"},
    "edits": {"env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids"},
    "a device node": {"path", "hostPath", "type", "major", "minor", "permissions"}
    | {"fileMode", "uid", "gid"},
    "a mount": {"hostPath", "containerPath", "options", "type"},
}


class Refused(ValueError):
    """A runtime would refuse this; the text is the reason."""


@dataclass(slots=True)
class Container:
    """What a container has. Mode and owner of a node are omitted, because the direct method has none.

    ``access`` is the permitted access to a device of the host through any node: any of ``rwm``. It only
    increases.
    """

    env: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, str] = field(default_factory=dict)
    """The path of each node on the host."""
    numbers: dict[str, tuple[str, int, int]] = field(default_factory=dict, compare=False)
    """Type, major and minor of each node that was injected by CDI."""
    access: dict[str, frozenset[str]] = field(default_factory=dict)
    mounts: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """The path of each mount on the host, and whether it is read-only."""

    def admit(self, host: str, permissions: str) -> None:
        """Adds permitted access to a device."""
        self.access[host] = self.access.get(host, frozenset()) | frozenset(permissions)


def direct(answers: Iterable[api_pb2.ContainerAllocateResponse]) -> Container:
    """What a container gets from the answers for its resources, in their order."""
    container = Container()
    for answer in answers:
        for name, value in answer.envs.items():
            container.env.setdefault(name, value)
        for device in answer.devices:
            if device.container_path not in container.nodes:
                container.nodes[device.container_path] = device.host_path
                container.admit(device.host_path, device.permissions)
        for mount in answer.mounts:
            container.mounts.setdefault(mount.container_path, (mount.host_path, mount.read_only))
    return container


def by_cdi(directory: Path, names: Sequence[str]) -> Container:
    """What a container gets from the names of CDI devices.

    Raises ``Refused`` if a name does not identify exactly one device, or its edits cannot be applied.
    """
    devices, _ = resolve(directory)
    if unknown := [name for name in names if name not in devices]:
        raise Refused(f"unresolvable CDI devices {', '.join(unknown)}")
    container = Container()
    for edits in map(devices.__getitem__, names):
        for variable in edits.get("env", ()):
            name, _, value = variable.partition("=")
            container.env[name] = value
        for node in edits.get("deviceNodes", ()):
            host = node.get("hostPath") or node["path"]
            container.nodes[node["path"]] = host
            container.numbers[node["path"]] = _numbers(node, host)
            container.admit(host, node.get("permissions") or "rwm")
        for mount in edits.get("mounts", ()):
            container.mounts[mount["containerPath"]] = (mount["hostPath"], "ro" in mount.get("options", ()))
    return container


def _numbers(node: Document, host: str) -> tuple[str, int, int]:
    """What a node becomes: a fully specified one is not looked at, even if it does not exist."""
    if node.get("type") and node.get("major"):
        return node["type"], node["major"], node.get("minor", 0)
    try:
        status = Path(host).lstat()
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise Refused(f'failed to stat CDI host device "{host}": {reason}') from None
    if stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
        kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
        return kind, os.major(status.st_rdev), os.minor(status.st_rdev)
    raise Refused(f'failed to stat CDI host device "{host}": not a device node')


def resolve(directory: Path) -> tuple[dict[str, Document], dict[Path, str]]:
    """The edits of every device in a directory, by qualified name, and the reasons for refused files.

    A device that two files define cannot be used.
    """
    devices: dict[str, Document] = {}
    refused: dict[Path, str] = {}
    twice: set[str] = set()
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.suffix not in (".json", ".yaml"):
            continue
        try:
            document = load(path.read_text(encoding="utf-8"))
        except (Refused, yaml.YAMLError, OSError, UnicodeDecodeError) as error:
            refused[path] = str(error)
            continue
        for device in document["devices"]:
            name = f"{document['kind']}={device['name']}"
            if name in devices:
                twice.add(name)
            devices[name] = device["containerEdits"]
    return {name: edits for name, edits in devices.items() if name not in twice}, refused


def load(text: str) -> Document:
    """Reads a specification like loaders, which parse JSON as YAML. Raises ``Refused`` if it is invalid."""
    document = yaml.load(text, _LOADER)
    _known("a specification", document)
    vendor, _, class_ = str(document.get("kind", "")).partition("/")
    for what, word in (("vendor", vendor), ("class", class_)):
        if not _WORD.fullmatch(word):
            raise Refused(f"{word!r} is not a {what}")
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        raise Refused("no devices")
    _edits(document.get("containerEdits", {}))
    names = set()
    for device in devices:
        _known("a device", device)
        if not _NAME.fullmatch(str(device.get("name", ""))):
            raise Refused(f"{device.get('name')!r} is not a valid device name")
        if not device.get("containerEdits"):
            raise Refused(f"device {device['name']} is empty")
        if device["name"] in names:
            raise Refused(f"two devices {device['name']}")
        names.add(device["name"])
        _edits(device["containerEdits"])
    version, least = document.get("cdiVersion"), least_version(document)
    if version not in VERSIONS:
        raise Refused(f"there is no version {version!r}")
    if VERSIONS.index(version) < VERSIONS.index(least):
        raise Refused(f"the version must be at least {least}")
    return dict(document)


def parse(name: str) -> tuple[str, str, str]:
    """Vendor, class and device of a qualified name. Raises ``Refused`` if it is not one."""
    kind, _, device = name.partition("=")
    vendor, _, class_ = kind.partition("/")
    if not (_WORD.fullmatch(vendor) and _WORD.fullmatch(class_) and _NAME.fullmatch(device)):
        raise Refused(f"{name!r} is not vendor/class=device")
    return vendor, class_, device


def least_version(document: Document) -> str:
    """The lowest version with all fields that a specification uses, by the table of CDI 1.1.0."""
    parts = [document, *document["devices"]]
    edits = [part.get("containerEdits", {}) for part in parts]
    resctrl = [part.get("intelRdt", {}) for part in edits]
    if any(part.get("netDevices") for part in edits):
        return "1.1.0"
    if any("schemata" in part or part.get("enableMonitoring") for part in resctrl):
        return "1.1.0"
    if any("intelRdt" in part or part.get("additionalGids") for part in edits):
        return "0.7.0"
    if any(part.get("annotations") for part in parts) or "." in document["kind"].partition("/")[2]:
        return "0.6.0"
    if any(device["name"][0].isdigit() for device in document["devices"]):
        return "0.5.0"
    if any(node.get("hostPath") for part in edits for node in part.get("deviceNodes", ())):
        return "0.5.0"
    if any(mount.get("type") for part in edits for mount in part.get("mounts", ())):
        return "0.4.0"
    return "0.3.0"


def _edits(edits: Document) -> None:
    _known("edits", edits)
    for variable in edits.get("env", ()):
        if variable.find("=") < 1:
            raise Refused(f"{variable!r} is not a variable")
    for node in edits.get("deviceNodes", ()):
        _known("a device node", node)
        if not node.get("path"):
            raise Refused("a device node without a path")
        if node.get("permissions", "").strip("rwm"):
            raise Refused(f"{node['permissions']!r} are not permissions")
    for mount in edits.get("mounts", ()):
        _known("a mount", mount)
        if not mount.get("hostPath") or not mount.get("containerPath"):
            raise Refused("a mount without a path")


def _known(what: str, found: object) -> None:
    if not isinstance(found, Mapping):
        raise Refused(f"{what} is {type(found).__name__}, not a mapping")
    if unknown := found.keys() - _FIELDS[what]:
        raise Refused(f"{what} with unknown {', '.join(sorted(unknown))}")
