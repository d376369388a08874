"""Edits as a specification of the Container Device Interface: the second rendering of one value.

The rules are those of the CDI specification 1.1.0 (``SPEC.md``, ``schema/`` and the validating parser of
its reference implementation). The upper half is pure: names, container edits, documents. The lower half,
:class:`SpecDirectory`, keeps files in the directory that container runtimes watch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .errors import AllocationError, BackendTimeout, EnvironmentFailure
from .model import Edits
from .worker import Lane

P = ParamSpec("P")
T = TypeVar("T")

ContainerEdits = dict[str, Any]
"""What one CDI device adds to a container: ``containerEdits``, in the terms of JSON."""

FILE_DEADLINE = 4.0
"""Seconds one file operation may take: the directory may lie on something that hangs."""

STALE_PART = 60.0
"""Seconds after which an unfinished file is nobody's work any more."""

_WORD = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_MAX_VENDOR, _MAX_CLASS = 253, 63

_MAX_LINKS = 40
"""Symbolic links Linux follows in one path."""

_KEPT = 53
"""Characters a name made from a template surely begins like it, when it has to be cut."""


def _digest(text: str, digits: int = 8) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def kind(resource: str) -> str:
    """The ``vendor/class`` of a resource: its own name, where CDI takes that.

    CDI wants a letter at the start of both parts, where Kubernetes takes a digit too. A part that had to
    be changed carries a hash of what it was.
    """
    vendor, _, name = resource.partition("/")
    return f"{_word(vendor, _MAX_VENDOR)}/{_word(name, _MAX_CLASS)}"


def _word(text: str, longest: int) -> str:
    if _WORD.fullmatch(text) and len(text) <= longest:
        return text
    return f"x{text[: longest - 10].rstrip('._-')}-{_digest(text)}"


def device_name(device: str) -> str:
    """The CDI name of a device, by its id: the id itself, where CDI takes that.

    A changed one ends in ``::`` and a hash; no id of a device holds a double colon, so two devices never
    share a name.
    """
    if _DEVICE.fullmatch(device) and "::" not in device:
        return device
    legal = re.sub(r"[^A-Za-z0-9._:-]", "-", device).strip("._:-").replace("::", ":-") or "device"
    return f"{legal}::{_digest(device)}"


def set_name(devices: Iterable[str]) -> str:
    """The CDI name that stands for several devices handed out together, whatever their order."""
    return f"set::{_digest(' '.join(sorted(devices)), 16)}"


def is_set(name: str) -> bool:
    """Whether a CDI name was made by :func:`set_name`."""
    return re.fullmatch(r"set::[0-9a-f]{16}", name) is not None


@dataclass(frozen=True, slots=True)
class HostNode:
    """A device node as the host has it: ``path`` with symbolic links resolved, permission bits, owner."""

    path: str
    mode: int
    uid: int
    gid: int


def host_node(path: str, root: Path = Path("/")) -> HostNode:
    """Looks at a device node. May block: not for the event loop.

    A runtime looks at the node itself and not through links, so the path is given with links resolved.

    Raises:
        AllocationError: it is not there, or is no device node; CDI carries nothing else.
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
    return HostNode(inside, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def _resolved(path: str, root: Path) -> str:
    """The real path of what ``path`` means below ``root``, where an absolute link starts anew at ``root``."""
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
    without them runtimes make it 0666 and give it to the container's user. Numbers are left to the
    runtime, which reads them when it starts the container. Mounts get the options the kubelet's own have.

    Args:
        look: see :func:`host_node`; may raise AllocationError.
        left_out: host paths of optional parts that the host lacks.
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


def applied(parts: Sequence[ContainerEdits]) -> dict[tuple[str, str], Any]:
    """What a container has after a runtime applied these one after another, where the last one wins."""
    result: dict[tuple[str, str], Any] = {}
    for part in parts:
        for variable in part.get("env", ()):
            name, _, value = variable.partition("=")
            result["env", name] = value
        for node in part.get("deviceNodes", ()):
            result["node", node["path"]] = node
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
    lines = ",\n".join(json.dumps(device) for device in document["devices"])
    return f'{json.dumps(head)[:-1]}, "devices": [\n{lines}\n]}}\n'


Signature = tuple[int, int, int]


class SpecDirectory:
    """The specification files of one devhost in a directory that others write to as well.

    Only files that begin with :attr:`prefix` are ever looked at, changed or removed. A host that serves
    another directory than the kubelet's own (a trial, a test) has another prefix, so that two of them do
    not clear each other's files away.

    Args:
        directory: made when first needed.
        tag: tells hosts apart; empty for the one that serves the node's kubelet.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        self.directory = directory
        self.prefix = f"devhost-{_digest(tag)}_" if tag else "devhost_"
        self._lane = Lane("cdi")
        self._known: dict[Path, tuple[Signature, str]] = {}

    def path(self, resource: str) -> Path:
        """The file of a resource: legible, one for each resource, within the 255 bytes of a file name."""
        return self.directory / f"{self._stem(resource)}.json"

    def _stem(self, resource: str) -> str:
        domain, _, name = resource.partition("/")  # a domain has no underscore, so the parts stay apart
        if len(domain) > 140:
            domain = f"{domain[:140]}-{_digest(domain)}"
        return f"{self.prefix}{domain}_{name}"

    async def write(self, path: Path, text: str) -> None:
        """Makes a file hold ``text``: whole or not at all, and untouched if it already does.

        Raises:
            EnvironmentFailure: the directory does not let us, is full, or hangs.
        """
        await self._call(path, "write", self._write, path, text)

    async def remove(self, path: Path) -> None:
        """Removes a file, if it is there.

        Raises:
            EnvironmentFailure: the directory does not let us, or hangs.
        """
        await self._call(path, "remove", self._remove, path)

    async def read(self, path: Path) -> dict[str, ContainerEdits]:
        """The devices of a file an earlier devhost left; none if it is not there or is not sound.

        Raises:
            EnvironmentFailure: the directory hangs.
        """
        return await self._call(path, "read", _read, path)

    async def sweep(self, templates: Sequence[str], keep: Collection[str]) -> list[Path]:
        """Removes own files that no resource of the configuration could have; gives what it removed.

        Args:
            templates: the names of all entries; all that could come from a template is kept.
            keep: resources whose files stay in any case.

        Raises:
            EnvironmentFailure: the directory does not let us, or hangs.
        """
        stems = {self._stem(resource) for resource in keep}
        families = []
        for template in templates:
            plain, brace, _ = template.partition("{")
            if brace:
                domain, _, name = plain.partition("/")
                families.append(self._stem(f"{domain}/{name[:_KEPT]}"))
            else:
                stems.add(self._stem(plain))
        return await self._call(self.directory, "clear", self._sweep, stems, tuple(families))

    def close(self) -> None:
        """Lets the thread end; waits for nobody."""
        self._lane.close()

    async def _call(
        self, path: Path, verb: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            return await self._lane.call(FILE_DEADLINE, call, *args, **kwargs)
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot {verb} {path}: {error.strerror or error}",
                "cdi.directory must be a directory that devhost may write to and the container runtime reads",
            ) from None
        except BackendTimeout as error:
            raise EnvironmentFailure(f"cannot {verb} {path}: {error.message}") from None

    def _write(self, path: Path, text: str) -> None:
        if self._known.get(path) == (_signature(path), text):
            return
        self._known.pop(path, None)
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.parent.chmod(0o755)  # whatever the umask is: runtimes may not be root
        data = text.encode()
        if not _holds(path, data):
            self._replace(path, data)
        if (signature := _signature(path)) is not None:
            self._known[path] = (signature, text)

    def _replace(self, path: Path, data: bytes) -> None:
        # neither .json nor .yaml, so that no runtime takes the unfinished file for a specification
        descriptor, part = tempfile.mkstemp(".part", f".{self.prefix}", path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            os.replace(part, path)  # noqa: PTH105 - the name mkstemp gave is a string
        except BaseException:
            with suppress(OSError):
                os.unlink(part)  # noqa: PTH108 - as above
            raise

    def _remove(self, path: Path) -> None:
        self._known.pop(path, None)
        path.unlink(missing_ok=True)

    def _sweep(self, stems: Collection[str], families: tuple[str, ...]) -> list[Path]:
        removed = []
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        for name in sorted(names):
            path = self.directory / name
            stem = name.removesuffix(".json")
            if name.startswith(self.prefix) and name.endswith(".json"):
                stale = stem not in stems and not stem.startswith(families)
            else:
                part = name.startswith(f".{self.prefix}") and name.endswith(".part")
                stale = part and _age(path) > STALE_PART
            if stale:
                self._remove(path)
                removed.append(path)
        return removed


def _signature(path: Path) -> Signature | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _age(path: Path) -> float:
    """Seconds since the last change; 0 for a file that is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _holds(path: Path, data: bytes) -> bool:
    """Whether the file holds just this, readable for everybody."""
    try:
        return path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o644
    except OSError:
        return False


def _read(path: Path) -> dict[str, ContainerEdits]:
    try:
        found = json.loads(path.read_bytes())
        return {device["name"]: dict(device["containerEdits"]) for device in found["devices"]}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
