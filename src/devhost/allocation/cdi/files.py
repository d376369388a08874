"""The files of CDI specifications, in the directory that container runtimes watch and others write to.

Whose a file is its name says: what begins with devhost's prefix is devhost's, whatever lies there, and
nothing else ever is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from devhost.backend.files import holds, make_directory, replace_file
from devhost.discovery.worker import FileWorker

from .spec import OWNER, ContainerEdits, digest

MEND = "cdi.directory must be a directory that devhost may write to and the container runtime reads"

STALE_PART = 60.0
"""Seconds after which an unfinished file is nobody's work any more."""

_KEPT = 53
"""Characters a name made from a template surely begins like it, when it has to be cut."""

_ASIDE = "~"
"""Comes after the resource's part of a file's name, and never within: no resource's name has it."""

Signature = tuple[int, int, int]


class SpecDirectory:
    """The specification files of one devhost.

    Only files that begin with :attr:`prefix` are ever looked at, changed or removed. A symbolic link there
    is replaced or removed like a file, and what it leads to is left alone; a directory stays, and is in
    the way. A host that serves another directory than the kubelet's own (a trial, a test) has another
    prefix, so that two of them do not clear each other's files away.

    Args:
        directory: made when first needed.
        tag: tells hosts apart; empty for the one that serves the node's kubelet.
    """

    def __init__(self, directory: Path, tag: str = "") -> None:
        self.directory = directory
        self._former: dict[Path, None] = {}
        self.owner = f"{OWNER}-{digest(tag)}" if tag else OWNER
        """Sets names apart from those of other hosts and of everybody else."""
        self.prefix = f"{self.owner}_"
        self._lane = FileWorker("cdi", MEND)
        self._known: dict[Path, tuple[Signature, str]] = {}

    def path(self, resource: str) -> Path:
        """The file of a resource: legible, one for each resource, within the 255 bytes of a file name."""
        return self.directory / f"{self._stem(resource)}.json"

    def _stem(self, resource: str) -> str:
        domain, _, name = resource.partition("/")  # a domain has no underscore, so the parts stay apart
        if len(domain) > 140:
            domain = f"{domain[:140]}-{digest(domain)}"
        return f"{self.prefix}{domain}_{name}"

    async def write(self, path: Path, text: str) -> None:
        """Makes a file hold ``text``: whole or not at all, and untouched if it already does.

        Raises:
            EnvironmentFailure: the directory does not let us, is full, or hangs.
        """
        await self._lane.file(f"write {path}", self._write, path, text)

    async def remove(self, path: Path) -> None:
        """Removes a file, if it is there.

        Raises:
            EnvironmentFailure: the directory does not let us, or hangs.
        """
        await self._lane.file(f"remove {path}", self._remove, path)

    def move(self, directory: Path) -> None:
        """New files go there from now on; what is not needed any more is still cleared away here."""
        if directory != self.directory:
            self._former[self.directory] = None
            self._former.pop(directory, None)
            self.directory = directory

    async def read(self, path: Path) -> tuple[str, dict[str, ContainerEdits]]:
        """The kind and the devices of a file; none if it is not there or is not sound.

        Raises:
            EnvironmentFailure: the file cannot be read, or the directory hangs.
        """
        return await self._lane.file(f"read {path}", _read, path)

    async def take_over(self, path: Path, kind: str) -> dict[str, ContainerEdits]:
        """The devices of a file an earlier devhost left; none if it is not there or is not sound.

        A file of another kind, as earlier versions of devhost gave, is set aside under a name of its own:
        pods may have been told its names.

        Raises:
            EnvironmentFailure: the file cannot be read or set aside, or the directory hangs.
        """
        return await self._lane.file(f"read {path}", self._take_over, path, kind)

    async def sweep(self, templates: Sequence[str], keep: Collection[str]) -> tuple[list[Path], set[Path]]:
        """Removes own files that no resource of the configuration could have, and those set aside.

        Gives what it removed, and the files of those resources of which something is left although no name in
        ``templates`` needs it.

        Args:
            templates: the names of all entries; all that could come from a template is kept.
            keep: resources whose files stay in any case.

        Raises:
            EnvironmentFailure: the directory does not let us, or hangs.
        """
        kept = {self._stem(resource) for resource in keep}
        stems, families = set(), []
        for template in templates:
            plain, brace, _ = template.partition("{")
            if brace:
                domain, _, name = plain.partition("/")
                families.append(self._stem(f"{domain}/{name[:_KEPT]}"))
            else:
                stems.add(self._stem(plain))
        return await self._lane.file(f"clear {self.directory}", self._sweep, stems, tuple(families), kept)

    def close(self) -> None:
        """Lets the thread end; waits for nobody."""
        self._lane.close()

    def _write(self, path: Path, text: str) -> None:
        if self._known.get(path) == (_signature(path), text):
            return
        self._known.pop(path, None)
        make_directory(path.parent)
        data = text.encode()
        if path.is_symlink() or not holds(path, data):  # what a link leads to is not devhost's to rely on
            # neither .json nor .yaml, so that no runtime takes the unfinished file for a specification
            replace_file(path, data, f".{self.prefix}")
        if (signature := _signature(path)) is not None:
            self._known[path] = (signature, text)

    def _remove(self, path: Path) -> None:
        self._known.pop(path, None)
        path.unlink(missing_ok=True)

    def _take_over(self, path: Path, kind: str) -> dict[str, ContainerEdits]:
        known, devices = _read(path)
        if not devices or known == kind:
            return devices
        path.replace(path.with_name(f"{path.stem}{_ASIDE}{digest(known)}.json"))
        return {}

    def _sweep(
        self, stems: Collection[str], families: tuple[str, ...], kept: Collection[str]
    ) -> tuple[list[Path], set[Path]]:
        removed: list[Path] = []
        left: set[Path] = set()
        for directory in (self.directory, *self._former):
            for name in _files(directory):
                path = directory / name
                stem, aside, _ = name.removesuffix(".json").partition(_ASIDE)
                if name.startswith(self.prefix) and name.endswith(".json"):
                    stale = bool(aside) or (stem not in stems and not stem.startswith(families))
                else:
                    part = name.startswith(f".{self.prefix}") and name.endswith(".part")
                    stale = part and _age(path) > STALE_PART
                if stale and stem in kept:
                    left.add(self.directory / f"{stem}.json")
                elif stale:
                    self._remove(path)
                    removed.append(path)
        return removed, left


def _signature(path: Path) -> Signature | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _age(path: Path) -> float:
    """Seconds since the last change; 0 for a file that is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _files(directory: Path) -> list[str]:
    """Names of what lies in a directory and is none itself; none where the directory is not there."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if not entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _read(path: Path) -> tuple[str, dict[str, ContainerEdits]]:
    """The kind and the devices of a file; none where there is no such file, or it is no specification."""
    try:
        found = json.loads(path.read_bytes())
        devices = {device["name"]: dict(device["containerEdits"]) for device in found["devices"]}
        return str(found["kind"]), devices
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return "", {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return "", {}
