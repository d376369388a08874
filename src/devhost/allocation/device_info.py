"""Device-info files: what a network plugin is told of the devices that a pod got.

The NPWG device information specification 1.1.0 says what such a document holds (its section 3) and where it
lies (4.1): ``<directory>/<resource>-<device id>-device.json``, where Multus looks it up by the ids that
the kubelet's podresources service names. The upper half is pure; :class:`DeviceInfoDirectory` writes files
and knows its own among those of others. How long they stay is decided in
:mod:`devhost.allocation.device_info_files`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from devhost.backend.errors import AllocationError
from devhost.backend.files import holds, make_directory, replace_file

Document = Mapping[str, object]
"""One device, in the terms of JSON."""

_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_REQUIRED = {
    "pci": ("pci-address",),
    "vdpa": ("parent-device", "driver", "path"),
    "vhost-user": ("mode", "path"),
    "memif": ("role", "path", "mode"),
}
"""The kinds of devices, and the keys that a description of each must have (sections 3.1.3 to 3.1.6)."""


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
    lacking = [key for key in _REQUIRED[kind] if key not in facts]
    return f"its {kind!r} lacks {', '.join(lacking)}" if lacking else ""


def file_name(resource: str, token: str) -> str:
    """The name of the file for one token of a resource.

    Raises:
        AllocationError: the token has a slash, which the specification does not replace.
    """
    if "/" in token:
        raise AllocationError(f"{token} has a slash in its id, so there can be no device-info file for it")
    return f"{resource.replace('/', '-')}-{token}-device.json"


@dataclass(frozen=True, slots=True)
class Written:
    """A file that devhost wrote: for whom, and the SHA-256 of what it wrote."""

    resource: str
    token: str
    sha256: str


Index = dict[str, Written]
"""Own files by name."""


class DeviceInfoDirectory:
    """The device-info files of one devhost in a directory that other plugins write to as well.

    A hidden file in the directory, the index, tells own files from others', also after a restart: it names
    each one with a hash of its content, and is written first. A file that holds something else than the index
    says belongs to whoever wrote that, and is never removed.

    Args:
        directory: made when first needed.
        tag: tells hosts apart; empty for the one that serves the node's kubelet.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        self.directory = directory
        self._stem = f".devhost-{_digest(tag.encode())[:8]}_" if tag else ".devhost_"
        self._index_path = directory / f"{self._stem}index.json"
        self._index: Index | None = None
        self._alone = threading.RLock()  # a call that was given up may still be at work

    def own(self) -> Index:
        """What is here of ours. May block, as everything here: not for the event loop."""
        with self._alone:
            return dict(self._own())

    def write(self, resource: str, documents: Mapping[str, Document]) -> list[str]:
        """Makes the files of some tokens hold their documents; all of them, or those as before.

        One that somebody else wrote is replaced: the kubelet has just given this device of this resource to
        a pod of ours, so whatever the file says is of a time that is over.

        Returns:
            The names of files of somebody else that were replaced.

        Raises:
            AllocationError: a token has no legal file name.
            OSError: the directory does not let us.
        """
        wanted = {file_name(resource, token): (token, _dump(one)) for token, one in documents.items()}
        with self._alone:
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
                    replace_file(self.directory / name, data, self._stem)
            except BaseException:
                index.update((name, entry) for name, entry in before.items() if not self._is_own(name))
                with suppress(OSError):
                    self.remove(added)
                raise
            return replaced

    def remove(self, names: Iterable[str]) -> None:
        """Removes own files; one that somebody else has replaced since is only forgotten.

        Raises:
            OSError: the directory does not let us.
        """
        with self._alone:
            index = self._own()
            for name in names:
                if self._is_own(name):
                    (self.directory / name).unlink(missing_ok=True)
                index.pop(name, None)
            self._save()

    def _own(self) -> Index:
        if self._index is None:
            self._index = _load(self._index_path)
            for unfinished in self.directory.glob(f"{self._stem}*.part"):  # nobody else has names like that
                unfinished.unlink(missing_ok=True)
        return self._index

    def _is_own(self, name: str) -> bool:
        """Whether the file is there and as we wrote it."""
        entry = self._own().get(name)
        try:
            return entry is not None and _digest((self.directory / name).read_bytes()) == entry.sha256
        except OSError:
            return False

    def _save(self) -> None:
        index = self._own()
        if not index:
            self._index_path.unlink(missing_ok=True)
            return
        files = {name: asdict(entry) for name, entry in sorted(index.items())}
        data = f"{json.dumps({'version': 1, 'files': files})}\n".encode()
        if not holds(self._index_path, data):
            replace_file(self._index_path, data, self._stem)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _dump(document: Document) -> bytes:
    return f"{json.dumps(document, sort_keys=True)}\n".encode()


def _load(path: Path) -> Index:
    """The index of an earlier run; nothing is ours if it is not there or not sound."""
    try:
        found = json.loads(path.read_bytes())["files"]
        entries = {name: Written(**entry) for name, entry in found.items()}
        return {name: e for name, e in entries.items() if name == file_name(e.resource, e.token)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, AllocationError):
        return {}
