"""CDI specifications on the machine: which GPUs they name, and those that ``nvidia-ctk`` writes for devhost.

A later directory takes precedence over an earlier one, and a device that two files of one directory define
counts as not defined (CDI specification 1.1.0 and its reference implementation). Each specification of this
backend has its own kind and file, so that it does not conflict with those of the NVIDIA toolkit or the core.
The one for GPUs is rewritten when it lacks a GPU, names one that is gone, or no longer matches the driver's
files. nvidia-ctk omits what does not exist when it runs: it names a MIG instance also without the nodes that
give access to it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from devhost.backend.errors import BackendError
from devhost.backend.files import make_directory, replace_file
from devhost.backend.frozen import frozen
from devhost.backend.process import Kill, Leftover, TimedOut, kill_group, run_async
from devhost.backend.sysfs import is_live, prefix_of, read_bytes
from devhost_gpu.environment import DEFAULT, Timings
from devhost_gpu.options import GpuOptions

from .allocation import CONTROL, dev_root
from .cards import CAPABILITIES

SIZE_LIMIT = 4 << 20
"""Bytes of one specification; one for 16 GPUs with seven instances each has about 200 000."""

_SUFFIXES = (".json", ".yaml")

_CAPABILITIES = f"{CAPABILITIES}/"

_UUIDS = ("GPU-", "MIG-")
"""Prefixes of NVIDIA UUIDs. Names by number are not trusted: numbers change, and files become outdated."""

Signature = tuple[int, int, int]

Access = frozenset[tuple[str, str]]
"""Names of devices, each with a node in a container, ``/dev/nvidia-caps/nvidia-cap66``."""


@frozen
class Wanted:
    """What specifications must name.

    ``uuids`` must have a name, ``known`` may have one: unhealthy cards are among these. ``access`` are the
    capability nodes of MIG instances. ``driver`` is the driver's version, empty while it is unknown.
    ``additional`` are the requested additional devices, by CDI class and name. ``is_closed`` is whether the
    driver must not be opened.
    """

    uuids: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    access: Access = frozenset()
    driver: str = ""
    additional: frozenset[tuple[str, str]] = frozenset()
    is_closed: bool = False


class Specifications:
    """The specifications of one kind; a file is read again when it has changed.

    ``root`` is used as ``/``. Of the ``directories``, the one with the lowest precedence is first. ``kind``
    is ``vendor/class``. ``counts`` is which names of devices count; UUIDs by default.
    """

    def __init__(
        self, root: Path, directories: Sequence[str], kind: str, counts: Callable[[str], bool] | None = None
    ) -> None:
        self._counts = counts or _is_uuid
        self._directories = [on_host(root, directory) for directory in directories]
        self._kind = kind
        self._known: dict[str, _NamedFile] = {}

    def names(self, access: Access = frozenset()) -> dict[str, str]:
        """The qualified name of each device that counts, by its own name; not those that lack ``access``."""
        found: dict[str, _NamedFile] = {}
        seen: dict[str, _NamedFile] = {}
        for directory in self._directories:
            times: dict[str, list[_NamedFile]] = {}
            for path in _files(directory):
                if (entry := self._entry(path)) is not None:
                    seen[path] = entry
                    for name in entry.names:
                        times.setdefault(name, []).append(entry)
            for name, entries in times.items():
                found.pop(name, None)
                if len(entries) == 1:
                    found[name] = entries[0]
        self._known = seen
        lacking = {name for name, node in access if name in found and (name, node) not in found[name].access}
        return {name: f"{self._kind}={name}" for name in found if name not in lacking}

    def _entry(self, path: str) -> _NamedFile | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - a plain string path
        except OSError:
            return None
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._known.get(path)
        if known is not None and known.signature == signature:
            return known
        document = parsed(path)
        names = frozenset(filter(self._counts, devices(document, self._kind)))
        return _NamedFile(signature, names, _access(document, names))


@frozen
class _NamedFile:
    """A file: its devices that count, and those of their nodes that are capabilities."""

    signature: Signature
    names: frozenset[str]
    access: Access


def on_host(root: Path, directory: str) -> str:
    """A directory of the host below ``root``. ``/var/run`` may be a link out of ``root``, and is replaced."""
    prefix = prefix_of(root)
    if prefix and (directory == "/var/run" or directory.startswith("/var/run/")):
        directory = directory.removeprefix("/var")
    return f"{prefix}{directory}"


def parsed(path: str) -> Mapping[str, Any]:
    """The content of a specification; empty if there is no valid one."""
    data = read_bytes(path, SIZE_LIMIT + 1)
    if not data or len(data) > SIZE_LIMIT:
        return {}
    document = _json(data) if path.endswith(".json") else _yaml(data)
    return document if isinstance(document, dict) else {}


def devices(document: Mapping[str, Any], kind: str) -> frozenset[str]:
    """The names of the devices in a specification, if it is of this kind."""
    found = document.get("devices")
    if document.get("kind") != kind or not isinstance(found, list):
        return frozenset()
    names = (device.get("name") for device in found if isinstance(device, dict))
    return frozenset(name for name in names if isinstance(name, str))


def _access(document: Mapping[str, Any], names: Collection[str]) -> Access:
    """The capability nodes that a specification gives with each of these devices."""
    found = document.get("devices")
    members = [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    everywhere = _capabilities({"containerEdits": document.get("containerEdits")})
    return frozenset(
        (name, node)
        for device in members
        if isinstance(name := device.get("name"), str) and name in names
        for node in everywhere | _capabilities(device)
    )


def _capabilities(edits: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(node for node in _paths(edits, inside=True) if node.startswith(_CAPABILITIES))


def _is_uuid(name: str) -> bool:
    return name.startswith(_UUIDS)


def _files(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory) if name.endswith(_SUFFIXES)]
    except OSError:
        return []


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _yaml(data: bytes) -> object:
    import yaml  # only where such a file exists

    try:
        return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


VENDOR, CLASS = "toolkit.devhost.nvidia.com", "gpu"
KIND = f"{VENDOR}/{CLASS}"
"""The kind of the specification."""

FILE = "toolkit.devhost-nvidia.json"
"""The name of its file. It begins differently from the core's files, so that the core does not remove it."""

NAMED = "--device-name-strategy=uuid"
"""Makes nvidia-ctk name GPUs and instances by their UUIDs."""

_ERROR_LIMIT = 300
"""Characters of nvidia-ctk's error output that are shown."""


class GeneratedSpecification:
    """A specification that nvidia-ctk writes for devhost. Methods that are not coroutines may block on files.

    ``root`` represents ``/``, ``cdi_class`` is the class in its kind and in that of other programs, ``file``
    its name, ``counts`` which names of devices count, and ``kill`` kills nvidia-ctk. Methods raise
    ``BackendError``.
    """

    def __init__(
        self,
        root: Path,
        options: GpuOptions,
        cdi_class: str,
        file: str,
        timings: Timings = DEFAULT,
        kill: Kill = kill_group,
        counts: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self.error = ""
        """Why the last update failed, as one sentence; empty if it did not."""
        self._others = Specifications(root, options.cdi_directories, f"nvidia.com/{cdi_class}", counts)
        self._counts = counts
        self._driver = ""
        self._accepted: frozenset[str] = frozenset()
        self._timings = timings
        self._kill = kill
        self._leftover: Leftover | None = None
        self._prefix = prefix_of(root)
        self._chroot = bool(self._prefix) and is_live(root)
        self._options = options
        self._class = cdi_class
        self.kind = f"{VENDOR}/{cdi_class}"
        self.file = Path(options.cdi_directories[-1], file)

    def is_installed(self) -> bool:
        """Whether nvidia-ctk is installed."""
        return os.access(self._prefix + self._options.nvidia_CTK_path, os.X_OK)

    def document(self) -> Mapping[str, Any]:
        """The content of the file; empty if there is none."""
        return parsed(os.fspath(self.file))

    def named(self, document: Mapping[str, Any]) -> frozenset[str]:
        """The names of the devices in a specification."""
        return frozenset(filter(self._counts, devices(document, self.kind)))

    def names(self, access: Access = frozenset()) -> dict[str, str]:
        """The qualified name of each device, preferably devhost's; not of those that lack ``access``."""
        document = self.document()
        named = self.named(document)
        lacking = {name for name, _ in access - _access(document, named)}
        own = {name: f"{self.kind}={name}" for name in named - lacking}
        return self._others.names(access) | own

    def requested(self, wanted: Wanted) -> frozenset[str]:
        """The devices that must have a name."""
        raise NotImplementedError

    def unnamed(self, wanted: Wanted) -> str:
        """That no program names a device, with the reason."""
        places = " or ".join(self._options.cdi_directories)
        return f"there is no {self._program} on this machine, and no CDI specification in {places} names it"

    def why_missing(self, wanted: Wanted) -> str:
        """Why a device has no name, as one sentence."""
        if self.error:
            return self.error
        return "its CDI specification is not written yet" if self.is_installed() else self.unnamed(wanted)

    async def update(self, wanted: Wanted, call: Callable[..., Any], log: logging.Logger) -> bool:
        """Writes the file if that is necessary; whether it has changed.

        Raises ``BackendError`` if a name is missing, with the reason.
        """
        if not await call(self.is_installed):
            if self.requested(wanted) - (await call(self.names, wanted.access)).keys():
                raise BackendError(self.unnamed(wanted))
            return False
        if await call(self.fits, wanted):
            return False
        present = await call(self.present)
        text = await self.generate(wanted)
        self._driver = wanted.driver
        await call(self.write, text, wanted, present)
        log.info("CDI specification written: %s", self.file)
        return True

    def fits(self, wanted: Wanted) -> bool:
        """Whether the file names all wanted devices and matches the driver."""
        document = self.document()
        same = not self._driver or not wanted.driver or self._driver == wanted.driver
        if not same or self.omitted(document, wanted) or self.flaws(document, wanted) - self._accepted:
            return False
        self._driver = wanted.driver or self._driver
        return True

    async def generate(self, wanted: Wanted) -> str:
        """A new specification from nvidia-ctk, as text."""
        raise NotImplementedError

    def write(self, text: str, wanted: Wanted, present: frozenset[str]) -> None:
        """Saves the result of :meth:`generate`.

        Raises ``BackendError`` if it is not a specification, or cannot be written; the old file, if there is
        one, stays. Or it lacks a device.
        """
        document = self.parsed(text)
        self.save(text)
        # writing it again would not fix what was so before
        self._accepted = self.flaws(document, wanted) - self.changed(document, present)
        if omitted := self.omitted(document, wanted):
            raise BackendError(f"{self.command} left out {', '.join(omitted)}")

    @property
    def command(self) -> str:
        """What writes it, for messages."""
        return self._program

    def omitted(self, document: Mapping[str, Any], wanted: Wanted) -> list[str]:
        """The wanted devices that are not in a specification."""
        return sorted(self.requested(wanted) - self.named(document))

    def flaws(self, document: Mapping[str, Any], wanted: Wanted) -> frozenset[str]:
        """What in a specification does not match the machine."""
        return self.absent_paths(document)

    def changed(self, document: Mapping[str, Any], present: frozenset[str]) -> frozenset[str]:
        """Those flaws that came while nvidia-ctk ran, given what was :meth:`present` before."""
        return self.absent_paths(document) & present

    def absent_paths(self, document: Mapping[str, Any]) -> frozenset[str]:
        """The host paths in a specification that do not exist."""
        return frozenset(path for path in _paths(document) if not self._exists(path))

    def present(self) -> frozenset[str]:
        """The paths that exist before nvidia-ctk runs, of those that may matter to its result.

        What has appeared or vanished while it runs, another run may take into account.
        """
        return frozenset(filter(self._exists, _paths(self.document())))

    async def run(self, words: Iterable[str]) -> str:
        """A new specification from nvidia-ctk, run with these additional arguments, as text.

        Raises ``BackendError`` if nvidia-ctk failed or hung, or an earlier one cannot be killed.
        """
        if self._leftover is not None and not self._leftover.is_gone:
            raise BackendError(
                f"an earlier {self._program} (pid {self._leftover.pid}) cannot be killed: a call into the "
                "kernel holds it (if it does not end, restart the node)"
            )
        try:
            result = await run_async(
                self._command(words),
                deadline=self._timings.nvidia_ctk,
                name=self._program,
                limit=SIZE_LIMIT,
                grace=self._timings.nvidia_ctk_grace,
                kill=self._kill,
            )
        except TimedOut as error:
            self._leftover = error.leftover
            raise
        if result.status:
            output = " ".join(result.errors.decode(errors="replace").split())[-_ERROR_LIMIT:]
            raise BackendError(f"{self._program} failed: {output or result.failure}")
        return result.output.decode(errors="replace")

    def parsed(self, text: str) -> Mapping[str, Any]:
        """The specification that nvidia-ctk wrote."""
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("kind") != self.kind:
            raise BackendError(f"{self._program} wrote no CDI specification of {self.kind}")
        return document

    def save(self, text: str) -> None:
        """Writes the file, whole or not at all."""
        try:
            make_directory(self.file.parent)
            replace_file(self.file, text.encode(), part=f".{self.file.stem}.")
        except OSError as error:
            raise BackendError(f"cannot write {self.file}: {error.strerror or error}") from None

    def remove(self) -> None:
        """Removes the file, if it is there."""
        try:
            self.file.unlink(missing_ok=True)
        except OSError as error:
            raise BackendError(f"cannot remove {self.file}: {error.strerror or error}") from None

    @property
    def _program(self) -> str:
        return self._options.nvidia_CTK_path

    def _command(self, words: Iterable[str]) -> list[str]:
        options = self._options
        command = [self._program, "cdi", "generate", "--format=json"]
        command += [f"--vendor={VENDOR}", f"--class={self._class}"]
        command.append(f"--driver-root={options.driver_root}")
        command.append(f"--dev-root={dev_root(options, self._exists) or '/'}")
        if options.nvidia_CDI_hook_path:
            command.append(f"--nvidia-cdi-hook-path={options.nvidia_CDI_hook_path}")
        if self._chroot:
            command = ["chroot", self._prefix, *command]  # so that paths are those of the host
        else:
            command[0] = self._prefix + command[0]
        return [*command, *words]

    def _exists(self, path: str) -> bool:
        return os.path.exists(self._prefix + path)  # noqa: PTH110 - a plain string path


class GpuSpecification(GeneratedSpecification):
    """The specification of the GPUs."""

    def __init__(
        self, root: Path, options: GpuOptions, timings: Timings = DEFAULT, kill: Kill = kill_group
    ) -> None:
        super().__init__(root, options, CLASS, FILE, timings, kill, _is_uuid)

    def requested(self, wanted: Wanted) -> frozenset[str]:
        return wanted.uuids

    def inaccessible(self, uuid: str, access: Access) -> str:
        """Why a container could not use a device that is in the file; empty if it could."""
        nodes = sorted(node for name, node in access if name == uuid)
        root = dev_root(self._options, self._exists)
        gone = next((node for node in nodes if not self._exists(f"{root}{node}")), "")
        return f"{root}{gone}, which gives access to it, does not exist" if gone else ""

    async def generate(self, wanted: Wanted) -> str:
        try:
            return await self.run((NAMED,))
        except BackendError as error:
            failure = error
        # A lost GPU makes it fail for all. Since 1.19 the healthy ones can be requested alone.
        try:
            return await self.run((NAMED, *(f"--device-id={uuid}" for uuid in sorted(wanted.uuids))))
        except BackendError:
            raise failure from None

    def present(self) -> frozenset[str]:
        return super().present() | frozenset(filter(self._exists, self._control()))

    def flaws(self, document: Mapping[str, Any], wanted: Wanted) -> frozenset[str]:
        """Named devices and files that do not exist, and existing control nodes that are not named."""
        unknown = self.named(document) - wanted.known
        return super().flaws(document, wanted) | unknown | self._without_control(document)

    def changed(self, document: Mapping[str, Any], present: frozenset[str]) -> frozenset[str]:
        return super().changed(document, present) | (self._without_control(document) - present)

    def omitted(self, document: Mapping[str, Any], wanted: Wanted) -> list[str]:
        """The wanted devices that are not in a specification, and existing nodes that one of them lacks."""
        named = self.named(document)
        root = dev_root(self._options, self._exists)
        lacking = wanted.access - _access(document, named)
        nodes = {node for name, node in lacking if name in wanted.uuids & named}
        lost = sorted(one for one in nodes if self._exists(f"{root}{one}"))
        return super().omitted(document, wanted) + lost

    def _without_control(self, document: Mapping[str, Any]) -> frozenset[str]:
        """The existing control nodes that are not in a specification."""
        return frozenset(filter(self._exists, self._control().difference(_paths(document))))

    def _control(self) -> frozenset[str]:
        """Where the control nodes are, whether they exist or not."""
        root = dev_root(self._options, self._exists)
        return frozenset(f"{root}/dev/{name}" for name in CONTROL)


def _paths(node: object, *, inside: bool = False) -> Iterator[str]:
    """The paths of mounts and device nodes in a specification: on the host, or inside a container."""
    if isinstance(node, dict):
        keys = ("path", "containerPath") if inside else ("hostPath", "path")
        for nodes in ("deviceNodes", "mounts"):
            members = node.get(nodes)
            for member in members if isinstance(members, list) else ():
                path = next(filter(None, map(member.get, keys)), None) if isinstance(member, dict) else None
                if isinstance(path, str):
                    yield path
        for key in ("containerEdits", "devices"):
            yield from _paths(node.get(key), inside=inside)
    elif isinstance(node, list):
        for member in node:
            yield from _paths(member, inside=inside)
