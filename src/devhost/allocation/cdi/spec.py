"""Edits as a specification of the Container Device Interface: the second rendering of one value.

The rules are those of the CDI specification 1.1.0 (``SPEC.md``, ``schema/`` and the validating parser of
its reference implementation): names, container edits, documents. Where the documents go is decided in
:mod:`.files`.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from devhost.allocation.resource_backend import Granted
from devhost.backend.errors import AllocationError, cut, few
from devhost.backend.frozen import frozen
from devhost.backend.model import Device, Edits
from devhost.planning.naming import digest

ContainerEdits = dict[str, Any]
"""What one CDI device adds to a container: ``containerEdits``, in the terms of JSON."""

_WORD = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_MAX_VENDOR, _MAX_CLASS = 253, 63

_MAX_LINKS = 40
"""Symbolic links Linux follows in one path."""

_BEYOND_ASCII = re.compile("[^\0-~\U00010000-\U0010ffff]")
_ENCODER = json.JSONEncoder(ensure_ascii=False)


OWNER = "devhost"
"""What kinds and files are named after, unless there are several devhosts on one machine."""


def kind(resource: str, owner: str = OWNER) -> str:
    """The ``vendor/class`` of a resource: its own name, with ``owner`` as one more label of the domain.

    The name itself may belong to the hardware's vendor, who may describe the same devices as
    ``nvidia.com/gpu``, and of two files that define one device a runtime takes neither. CDI wants a letter at
    the start of the class, where Kubernetes takes a digit too. A part that had to be changed carries a
    hash of what it was.
    """
    domain, _, name = resource.partition("/")
    return f"{_word(f'{owner}.{domain}', _MAX_VENDOR)}/{_word(name, _MAX_CLASS)}"


def claim_kind(driver: str) -> str:
    """The ``vendor/class`` of the devices of claims."""
    return f"{_word(driver, _MAX_VENDOR)}/claim"


def _word(text: str, longest: int) -> str:
    if _WORD.fullmatch(text) and len(text) <= longest:
        return text
    start = "" if text[0].isalpha() else "x"
    return f"{start}{text[: longest - 10].rstrip('._-')}-{digest(text)}"


def device_name(device: str) -> str:
    """The CDI name of a device, by its id: the id itself, where CDI takes that.

    A changed one ends in ``::`` and a hash; no id of a device holds a double colon, so two devices never
    share a name.
    """
    if _DEVICE.fullmatch(device) and "::" not in device:
        return device
    legal = re.sub(r"[^A-Za-z0-9._:-]", "-", device).strip("._:-").replace("::", ":-") or "device"
    return f"{legal}::{digest(device)}"


def set_name(devices: Iterable[str]) -> str:
    """The CDI name of several devices that are allocated together, in any order."""
    return f"set::{digest(' '.join(sorted(devices)), 16)}"


def is_set(name: str) -> bool:
    return re.fullmatch(r"set::[0-9a-f]{16}", name) is not None


@frozen(slots=True)
class HostNode:
    """A device node as the host has it.

    ``path`` has its symbolic links resolved, ``kind`` is ``c`` or ``b``, ``mode`` has the permission bits.
    """

    path: str
    kind: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


def host_node(path: str, root: Path = Path("/")) -> HostNode:
    """Looks at a device node. May block: not for the event loop.

    A runtime looks at the node itself and not through links, so the path is given with links resolved. Raises
    ``AllocationError`` if it is not there, or is no device node; CDI carries nothing else.
    """
    try:
        real = _resolved(path, root)
        status = os.stat(real)  # noqa: PTH116 - a string path, like the line above
    except OSError as error:
        raise AllocationError(f"cannot look at {path} for its CDI specification: {error.strerror}") from None
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        raise AllocationError(f"{path} is not a device node, and a CDI specification carries no other files")
    top = os.path.realpath(root).rstrip("/")
    inside = real.removeprefix(top) if real.startswith(f"{top}/") else path
    kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    return HostNode(inside, kind, major, minor, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _resolved(path: str, root: Path) -> str:
    """The real path of what ``path`` means below ``root``; an absolute link starts again at ``root``."""
    here = root / path.lstrip("/")
    for _ in range(_MAX_LINKS):
        if not here.is_symlink():
            break
        target = here.readlink()
        here = root / str(target).lstrip("/") if target.is_absolute() else here.parent / target
    return os.path.realpath(here)


def container_edits(
    edits: Edits, look: Callable[[str], HostNode], left_out: Collection[str] = ()
) -> ContainerEdits:
    """Renders edits; empty when there is nothing that CDI could carry.

    Mode and owner of each node are the host's, as they are in a container that gets the node directly:
    without them runtimes make it 0666 and give it to the container's user. Type and numbers are the host's
    too: without them the reference implementation looks at the node for the first container that gets it, and
    keeps what it found until a file of the directory changes. So a file must be written again whenever they
    change. Mounts get the options the kubelet's own have. ``look`` is :func:`host_node`. ``left_out`` are
    host paths of optional parts that the host lacks.
    """
    found: ContainerEdits = {}
    if edits.env:
        found["env"] = [f"{name}={value}" for name, value in edits.env.items()]
    nodes = []
    for node in edits.nodes:
        if node.path in left_out:
            continue
        host = look(node.path)
        path = node.container_path or node.path
        rendered: ContainerEdits = {"path": path}
        if host.path != path:
            rendered["hostPath"] = host.path
        rendered |= {
            "type": host.kind,
            "major": host.major,
            "minor": host.minor,
            "permissions": node.permissions,
            "fileMode": host.mode,
            "uid": host.uid,
            "gid": host.gid,
        }
        nodes.append(rendered)
    if nodes:
        found["deviceNodes"] = nodes
    mounts = [
        {
            "hostPath": mount.host_path,
            "containerPath": mount.container_path,
            "options": ["rbind", "rprivate", "ro" if mount.read_only else "rw"],
        }
        for mount in edits.mounts
        if mount.host_path not in left_out
    ]
    if mounts:
        found["mounts"] = mounts
    return found


_NEVER = "/dev/null/devhost: "
"""The beginning of a path that never exists, because ``/dev/null`` is no directory."""

_LONGEST_WHY = 200


def withheld(why: str) -> ContainerEdits:
    """Edits with which no container starts, for a name that must not give what it gave.

    A node without numbers, at a path that does not exist, is the one thing that every runtime refuses with
    words of ours: ``failed to stat CDI host device "/dev/null/devhost: device A1 is gone"``. A name that is
    absent is refused without a reason, and one without edits makes the whole file invalid.
    """
    words = "".join(letter if letter.isprintable() else " " for letter in why)
    return {"deviceNodes": [{"path": f"{_NEVER}{cut(' '.join(words.split()), _LONGEST_WHY)}"}]}


def gone(devices: Sequence[str]) -> str:
    """Why a name gives nothing whose devices are not there."""
    return f"{few(devices)} {'is' if len(devices) == 1 else 'are'} gone"


def is_withheld(edits: ContainerEdits) -> bool:
    return any(str(node.get("path", "")).startswith(_NEVER) for node in edits.get("deviceNodes", ()))


def applied(parts: Sequence[ContainerEdits]) -> dict[tuple[str, str], Any]:
    """What a container has after a runtime applied these one after another, where the last one wins.

    What it may do with a device of the host adds up: the node goes, where another takes its path, and the
    permission stays.
    """
    result: dict[tuple[str, str], Any] = {}
    for part in parts:
        for variable in part.get("env", ()):
            name, _, value = variable.partition("=")
            result["env", name] = value
        for node in part.get("deviceNodes", ()):
            result["node", node["path"]] = node
            device = ("device", node.get("hostPath", node["path"]))
            result[device] = result.get(device, frozenset()) | frozenset(node.get("permissions", ""))
        for mount in part.get("mounts", ()):
            result["mount", mount["containerPath"]] = mount
    return result


def document(kind: str, devices: Mapping[str, ContainerEdits]) -> dict[str, Any]:
    """A whole specification, its devices in the order of their names, with the lowest version that has it.

    Loaders refuse a version they do not know, and a file that uses more than its version has.
    """
    listed = [{"name": name, "containerEdits": devices[name]} for name in sorted(devices)]
    return {"cdiVersion": _version(kind, devices), "kind": kind, "devices": listed}


def _version(kind: str, devices: Mapping[str, ContainerEdits]) -> str:
    if "." in kind.partition("/")[2]:
        return "0.6.0"
    for name, edits in devices.items():
        if name[0].isdigit() or any("hostPath" in node for node in edits.get("deviceNodes", ())):
            return "0.5.0"
    return "0.3.0"


def dumps(document: Mapping[str, Any]) -> str:
    """A specification as JSON, one line for each device, so that people can read and compare it."""
    head = {key: value for key, value in document.items() if key != "devices"}
    lines = ",\n".join(_json(device) for device in document["devices"])
    return f'{_json(head)[:-1]}, "devices": [\n{lines}\n]}}\n'


def _json(value: object) -> str:
    """JSON that is YAML as well, which is what loaders take every file for.

    YAML escapes a character beyond 16 bits in one go, where JSON needs two halves that YAML refuses; and
    some of the others YAML does not allow as they are.
    """
    return _BEYOND_ASCII.sub(lambda found: f"\\u{ord(found[0]):04x}", _ENCODER.encode(value))


Seen = Mapping[str, HostNode | bool | None]
"""What the host has: at the path of a node the node or ``None``, at that of a mount whether it exists."""


@frozen(slots=True)
class Rendered:
    """Edits of a specification; they are right as long as the host has at each path what it had."""

    edits: ContainerEdits
    seen: Seen = field(default_factory=dict)


def rendered(granted: Granted, root: Path) -> Rendered:
    """The edits of a specification for what a container gets. May block: not for the event loop.

    Raises ``AllocationError`` if a device node is missing, or CDI cannot carry it.
    """
    seen: dict[str, HostNode | bool | None] = {
        mount.host_path: mount.host_path not in granted.left_out for mount in granted.edits.mounts
    }
    seen |= dict.fromkeys(granted.left_out.intersection(node.path for node in granted.edits.nodes))

    def look(path: str) -> HostNode:
        found = seen[path] = host_node(path, root)
        return found

    return Rendered(container_edits(granted.edits, look, granted.left_out), seen)


def outdated(every: Iterable[Seen], root: Path, exists: Callable[[str], bool]) -> list[int]:
    """The numbers of those for which the host has something else now. May block: not for the event loop.

    ``exists`` is whether the host has the source of a mount.
    """
    now: dict[tuple[str, bool], HostNode | bool | None] = {}

    def differs(seen: Seen) -> bool:
        for path, before in seen.items():
            place = path, isinstance(before, bool)
            if place not in now:
                now[place] = exists(path) if isinstance(before, bool) else _node(path, root)
            if now[place] != before:
                return True
        return False

    return [number for number, seen in enumerate(every) if differs(seen)]


def recorded(edits: ContainerEdits) -> Seen | None:
    """What the host had when these edits of a file were rendered; ``None`` if the file lacks it."""
    try:
        return {
            node.get("hostPath", node["path"]): HostNode(
                node.get("hostPath", node["path"]),
                *(node[key] for key in ("type", "major", "minor", "fileMode", "uid", "gid")),
            )
            for node in edits.get("deviceNodes", ())
        }
    except (KeyError, TypeError, AttributeError):
        return None


def claims_of(devices: Iterable[Device]) -> frozenset[str]:
    return frozenset[str]().union(*(device.claims for device in devices))


def is_own(seen: Seen, own: Collection[str], claimed: Collection[str]) -> bool:
    """Whether the nodes that a device gave are claimed by no other device.

    ``own`` are the claims of the device, ``claimed`` those of all devices that are present.
    """
    paths = {*seen, *(node.path for node in seen.values() if isinstance(node, HostNode))}
    return all(node in own or node not in claimed for node in map("node:{}".format, paths))


def _node(path: str, root: Path) -> HostNode | None:
    try:
        return host_node(path, root)
    except AllocationError:
        return None


def adds_up(parts: Sequence[ContainerEdits], whole: ContainerEdits) -> bool:
    """Whether a container that gets these parts one by one has the same as with ``whole``."""
    return applied(parts) == applied([whole])
