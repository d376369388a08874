"""Device-info files: what network plugins read about the devices that a pod got.

The NPWG device information specification 1.1.0 defines the content of such a document (section 3) and where
it is (4.1): ``<directory>/<resource>-<device id>-device.json``, where Multus finds it by the ids that the
kubelet's podresources service names.

A file is written before the pod starts, and removed when the pod is gone. It stays when devhost stops, for
its pod keeps running, and a network plugin reads it again when the pod's sandbox is rebuilt. So after a start
files are only removed once the kubelet has listed who holds what.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from devhost.backend.errors import DAMAGED, AllocationError, EnvironmentFailure
from devhost.backend.files import holds, make_directory
from devhost.backend.frozen import frozen
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.worker import FILE_DEADLINE

from .allocations import Allocations
from .owned_files import OwnedDirectory, OwnedFiles

log = get(__name__)

HINT = (
    "deviceInfo.directory must be a directory that devhost may write to; "
    "deviceInfo: {write: false} where no network plugin reads it"
)

UNDECIDED = 2.0
"""Seconds between checks whether the kubelet has listed who holds what, while a file depends on it."""

Document = Mapping[str, object]
"""One device, in the terms of JSON."""

_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_REQUIRED = {
    "pci": ("pci-address",),
    "vdpa": ("parent-device", "driver", "path"),
    "vhost-user": ("mode", "path"),
    "memif": ("role", "path", "mode"),
}
"""The kinds of devices, and the keys that the description of each must have (sections 3.1.3 to 3.1.6)."""


def flaw(document: object) -> str:
    """Why something cannot be a document of the specification; empty if it can."""
    if not isinstance(document, Mapping):
        return f"it is {type(document).__name__}, not a mapping"
    kind, version = document.get("type"), document.get("version")
    if not isinstance(kind, str) or kind not in _REQUIRED:
        return f"its type is none of {', '.join(_REQUIRED)}"
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        return "its version does not read like 1.1.0"
    if document.keys() != {"type", "version", kind}:
        return f"its keys are not type, version and {kind}"
    facts = document[kind]
    if not isinstance(facts, Mapping) or not all(
        isinstance(text, str) and text for pair in facts.items() for text in pair
    ):
        return f"its {kind!r} is not a mapping of texts"
    if not all(text.isprintable() for pair in facts.items() for text in pair):
        return f"its {kind!r} has a character that does not print"
    lacking = [key for key in _REQUIRED[kind] if key not in facts]
    return f"its {kind!r} lacks {', '.join(lacking)}" if lacking else ""


def file_name(resource: str, token: str) -> str:
    """The name of the file for one token of a resource.

    Raises ``AllocationError`` if the token has a slash, which the specification does not replace.
    """
    if "/" in token:
        raise AllocationError(f"{token} has a slash in its id, so there can be no device-info file for it")
    return f"{resource.replace('/', '-')}-{token}-device.json"


@frozen
class Written:
    """A file that devhost wrote: for whom, and the SHA-256 of what it wrote."""

    resource: str
    token: str
    sha256: str


Index = dict[str, Written]


class DeviceInfoDirectory(OwnedDirectory):
    """The device-info files of one devhost in a directory that other plugins write to as well.

    The specification prescribes the names, so a hidden file in the directory, the index, records which files
    are devhost's, also after a restart: it names each one with a hash of its content, and is written first. A
    file with another content belongs to the program that wrote it, and is never removed.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        super().__init__(directory, tag)
        self._index_name = f".{self.prefix}index.json"
        self._index: Index | None = None
        self._lock = threading.RLock()  # a call that was given up may still be at work

    def own(self) -> Index:
        with self._lock:
            self.remove_unfinished()
            return dict(self._own())

    def write(self, resource: str, documents: Mapping[str, Document]) -> list[str]:
        """Makes the files of some tokens hold their documents; all of them, or those as before.

        A file that another program wrote is replaced: the kubelet has just given this device of this resource
        to a pod of ours, so the file describes an earlier pod. Returns the names of files of other programs
        that were replaced. Raises ``AllocationError`` if a token has no legal file name.
        """
        wanted = {
            file_name(resource, token): (token, f"{json.dumps(one, sort_keys=True)}\n".encode())
            for token, one in documents.items()
        }
        with self._lock:
            make_directory(self.directory)
            due = {name: pair for name, pair in wanted.items() if not holds(self.directory / name, pair[1])}
            added = [name for name in due if not self._is_own(name)]
            replaced = [name for name in added if (self.directory / name).exists()]
            index = self._own()
            before = {name: index[name] for name in due if name not in added}
            try:
                for name, (token, data) in due.items():
                    index[name] = Written(resource, token, _digest(data))
                self._save()
                for name, (_, data) in due.items():
                    self.write_file(name, data)
            except BaseException:
                index.update((name, entry) for name, entry in before.items() if not self._is_own(name))
                with suppress(OSError):
                    self.remove(added)
                raise
            return replaced

    def remove(self, names: Iterable[str]) -> None:
        """Removes own files; one that another program has replaced since is only forgotten."""
        with self._lock:
            index = self._own()
            for name in names:
                if self._is_own(name):
                    self.remove_file(name)
                index.pop(name, None)
            self._save()

    def _own(self) -> Index:
        if self._index is None:
            self._index = _load(self.directory / self._index_name)
        return self._index

    def _is_own(self, name: str) -> bool:
        """Whether the file exists and holds what we wrote."""
        entry = self._own().get(name)
        try:
            return entry is not None and _digest((self.directory / name).read_bytes()) == entry.sha256
        except OSError:
            return False

    def _save(self) -> None:
        index = self._own()
        if not index:
            self.remove_file(self._index_name)
            return
        files = {name: asdict(entry) for name, entry in sorted(index.items())}
        self.write_file(self._index_name, f"{json.dumps({'version': 1, 'files': files})}\n".encode())


class DeviceInfoFiles:
    """Writes the files of pods that start and removes those of pods that are gone.

    New files go to ``directory``, ``None`` for nowhere; files in an earlier one are still removed. For
    ``tag`` see :func:`.owned_files.owner`. One file operation may take ``deadline`` seconds.
    """

    def __init__(
        self,
        directory: Path | None,
        allocations: Allocations,
        tag: str = "",
        *,
        directory_class: type[DeviceInfoDirectory] = DeviceInfoDirectory,
        deadline: float = FILE_DEADLINE,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self._allocations = allocations
        self._files = OwnedFiles(directory_class, directory, "device-info", HINT, tag, deadline)
        self.failures = FailureLog(
            log, "cannot remove a device-info file", "device-info files can be removed again"
        )
        """Why a file stays that no container needs."""
        self._loop = Reconciler(self.remove_stale, failures=self.failures, clock=clock)
        allocations.subscribe(lambda resource, tokens: self._loop.wake())

    @property
    def wanted(self) -> bool:
        return self._files.current is not None

    def move(self, directory: Path | None) -> None:
        self._files.move(directory)
        self._loop.wake()

    async def write(self, resource: str, documents: Mapping[str, Document]) -> None:
        """Writes the documents of the devices of a container that starts, by token.

        The tokens have to count as held until it has returned. Raises ``AllocationError`` if a file cannot be
        written; none of them is then.
        """
        place = self._files.current
        if place is None or not documents:
            return
        try:
            replaced = await self._files.run(f"write to {place.directory}", place.write, resource, documents)
        except EnvironmentFailure as error:
            raise AllocationError(f"{resource}: {error}") from None
        finally:
            self._loop.wake()  # should the pod not start after all, no release is reported
        for name in replaced:
            log.warning("replaced a device-info file of another program", path=str(place.directory / name))

    async def run(self) -> None:
        """Removes files whose token no container holds, whenever one was released, for ever."""
        await self._loop.run()

    async def remove_stale(self) -> float | None:
        """Removes the files that no container needs; gives the seconds after which to look again."""
        decided = [await self._remove_stale_in(place) for place in self._files.directories]
        return None if all(decided) else UNDECIDED

    def close(self) -> None:
        self._files.close()

    async def _remove_stale_in(self, place: DeviceInfoDirectory) -> bool:
        """Removes files from one directory; false while it is not known who holds what."""
        own = await self._files.run(f"read {place.directory}", place.own)
        # decided and queued without a pause between, so that a write for the same token comes after
        held = {name: self._allocations.has_token(one.resource, one.token) for name, one in own.items()}
        if stale := [name for name, needed in held.items() if needed is False]:
            await self._files.run(f"remove files from {place.directory}", place.remove, stale)
        return None not in held.values()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _load(path: Path) -> Index:
    """The index of an earlier run; empty where there is none, or it is invalid."""
    try:
        found = json.loads(path.read_bytes())["files"]
        entries = {name: Written(**entry) for name, entry in found.items()}
        return {name: e for name, e in entries.items() if name == file_name(e.resource, e.token)}
    except (OSError, AllocationError, *DAMAGED):
        return {}
