"""The files of CDI specifications, in the directory that container runtimes watch and other programs use.

A specification outlives its resource: the kubelet repeats an earlier answer whenever a container restarts,
and the names in it must resolve for as long as the pod lives. So a file is removed when the configuration
has no resource with CDI injection that it could belong to, and no container has anything of the resource.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from devhost.allocation.allocations import Allocations
from devhost.allocation.owned_files import OwnedDirectory, OwnedFiles, owner
from devhost.backend.errors import DAMAGED
from devhost.backend.model import Device
from devhost.discovery.runner import BackendRunner
from devhost.planning.naming import digest
from devhost.planning.settings import Inject, Settings
from devhost.runtime.log import get
from devhost.runtime.reconciler import LOOP_CLOCK, Clock, FailureLog, Reconciler
from devhost.runtime.worker import FILE_DEADLINE, Existence

from .spec import (
    ContainerEdits,
    Seen,
    claims_of,
    device_name,
    document,
    dumps,
    is_own,
    is_set,
    outdated,
    recorded,
    withheld,
)

log = get(__name__)

HINT = "cdi.directory must be a directory that devhost may write to and the container runtime reads"

AGAIN = 30.0
"""Seconds between checks while it is not known who holds what."""

_KEPT = 53
"""Characters that a name made from a template certainly begins with, when it has to be cut."""

_ASIDE = "~"
"""Comes after the resource's part of a file's name, and never within: no resource's name has it."""


class SpecDirectory(OwnedDirectory):
    """The specification files of one directory."""

    def stem(self, resource: str) -> str:
        """The name of a resource's file, without its suffix: legible, and within 255 bytes."""
        domain, _, name = resource.partition("/")  # a domain has no underscore, so the parts stay apart
        if len(domain) > 140:
            domain = f"{domain[:140]}-{digest(domain)}"
        return f"{self.prefix}{domain}_{name}"

    def read(self, name: str) -> tuple[str, dict[str, ContainerEdits]]:
        """The kind and the devices of a file; none if there is none, or it is no valid specification."""
        try:
            found = json.loads((self.directory / name).read_bytes())
            devices = {device["name"]: dict(device["containerEdits"]) for device in found["devices"]}
            return str(found["kind"]), devices
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return "", {}
        except DAMAGED:
            return "", {}

    def take_over(self, name: str, kind: str) -> dict[str, ContainerEdits]:
        known, devices = self.read(name)
        if not devices or known == kind:
            return devices
        path = self.directory / name
        path.replace(path.with_name(f"{path.stem}{_ASIDE}{digest(known)}.json"))
        return {}

    def doubt(self, name: str, is_certain: Callable[[str, Seen], bool], root: Path) -> bool:
        kind, devices = self.read(name)
        content = dict(devices)
        exists = Existence(os.fspath(root)).exists
        for one, edits in devices.items():
            seen = recorded(edits)
            if seen and not (is_certain(one, seen) and not outdated([seen], root, exists)):
                content[one] = withheld(f"{one} has changed or is gone")
        if content == devices:
            return False
        return self.write_file(name, dumps(document(kind, content)).encode())

    def sweep(self, templates: Sequence[str], keep: Collection[str]) -> tuple[list[Path], set[str]]:
        """Removes own files, see :meth:`SpecFiles.sweep`; also gives the stems that only ``keep`` needs."""
        kept = {self.stem(resource) for resource in keep}
        stems, families = set(), []
        for template in templates:
            plain, brace, _ = template.partition("{")
            if brace:
                domain, _, name = plain.partition("/")
                families.append(self.stem(f"{domain}/{name[:_KEPT]}"))
            else:
                stems.add(self.stem(plain))
        removed: list[Path] = []
        needed: set[str] = set()
        for name in self.names():
            if not name.endswith(".json"):
                continue
            stem, aside, _ = name.removesuffix(".json").partition(_ASIDE)
            if not aside and (stem in stems or stem.startswith(tuple(families))):
                continue
            if stem in kept:
                needed.add(stem)
            else:
                self.remove_file(name)
                removed.append(self.directory / name)
        return removed + self.remove_unfinished(), needed


class SpecFiles:
    """The specification files of one devhost.

    ``directory`` is made when first needed. For ``tag`` see :func:`devhost.allocation.owned_files.owner`. One
    file operation may take ``deadline`` seconds. Methods that work on files raise ``EnvironmentFailure`` if
    permission is denied, or the directory is full or hangs.
    """

    def __init__(self, directory: Path, tag: str = "", deadline: float = FILE_DEADLINE) -> None:
        self.owner = owner(tag)
        """Sets names apart from those of other hosts and of other programs."""
        self.served: set[Path] = set()
        """Those that a service keeps right."""
        self._files = OwnedFiles(SpecDirectory, directory, "cdi", HINT, tag, deadline)
        self._current = self._files.of(directory)

    @property
    def directory(self) -> Path:
        return self._current.directory

    def path(self, resource: str) -> Path:
        return self.directory / f"{self._current.stem(resource)}.json"

    async def write(self, path: Path, text: str) -> None:
        """Makes a file hold ``text``: whole or not at all, and untouched if it already does."""
        place = self._files.of(path.parent)
        await self._files.run(f"write {path}", place.write_file, path.name, text.encode())

    async def remove(self, path: Path) -> None:
        await self._files.run(f"remove {path}", self._files.of(path.parent).remove_file, path.name)

    def move(self, directory: Path) -> None:
        """New files go there from now on; those in earlier directories are still removed when stale."""
        self._files.move(directory)
        self._current = self._files.of(directory)

    async def read(self, path: Path) -> tuple[str, dict[str, ContainerEdits]]:
        """The kind and the devices of a file; none if there is none, or it is no valid specification."""
        return await self._files.run(f"read {path}", self._files.of(path.parent).read, path.name)

    async def unserved(self) -> list[Path]:
        """The specifications that no service keeps right."""
        found = [
            place.directory / name
            for place in self._files.directories
            for name in await self._files.run(f"read {place.directory}", place.names)
        ]
        return [path for path in found if path.suffix == ".json" and path not in self.served]

    async def doubt(self, path: Path, is_certain: Callable[[str, Seen], bool], root: Path) -> bool:
        """Withholds what the names of a file give where it may be another device's; true if there was such.

        ``is_certain`` is whether what a name gives is its devices' own if the host still has it.
        """
        place = self._files.of(path.parent)
        return await self._files.run(f"write {path}", place.doubt, path.name, is_certain, root)

    async def outdated(self, every: Sequence[Seen], runner: BackendRunner) -> Sequence[int]:
        """The numbers of those for which the host of a backend has something else now."""
        where = runner.context.root, runner.existence.exists
        return await self._files.run("look at device nodes", outdated, every, *where)

    async def take_over(self, path: Path, kind: str) -> dict[str, ContainerEdits]:
        """The devices of a file that an earlier devhost left; none if there is none, or it is invalid.

        A file of another kind, as earlier versions of devhost wrote, is set aside under another name: pods
        may have been given its names.
        """
        return await self._files.run(f"read {path}", self._files.of(path.parent).take_over, path.name, kind)

    async def sweep(self, templates: Sequence[str], keep: Collection[str]) -> tuple[list[Path], set[Path]]:
        """Removes own files that no resource of the configuration could have, and those set aside.

        Gives what it removed, and the files of those resources of which something is left although no name in
        ``templates`` needs it. ``templates`` are the names of all entries: all that could come from a
        template is kept. The files of the resources in ``keep`` stay in any case.
        """
        removed: list[Path] = []
        left: set[Path] = set()
        for place in (self._current, *self._files.former):
            gone, needed = await self._files.run(f"clear {place.directory}", place.sweep, templates, keep)
            removed += gone
            left |= {self.directory / f"{stem}.json" for stem in needed}
        return removed, left

    def close(self) -> None:
        self._files.close()


class CdiGarbageCollector:
    """Removes specifications that no container needs, whenever it is woken or something was released."""

    def __init__(
        self,
        files: SpecFiles,
        settings: Settings,
        allocations: Allocations,
        devices: Callable[[], Iterable[Device]] = tuple,
        root: Path = Path("/"),
        *,
        clock: Clock = LOOP_CLOCK,
    ) -> None:
        self._files = files
        self._settings = settings
        self._allocations = allocations
        self._devices = devices
        self._root = root
        self.unserved = False
        """Whether a specification remains that no service writes: a device node of it may change."""
        self.failures = FailureLog(
            log, "stale CDI specifications may be left", "stale CDI specifications can be removed again"
        )
        """Why a specification may remain that no container needs, or give the node of another device."""
        self._loop = Reconciler(self.collect, failures=self.failures, clock=clock)

    def follow(self, settings: Settings) -> None:
        self._settings = settings
        self._files.move(settings.cdi_directory)
        self._loop.wake()

    def wake(self) -> None:
        """A resource was removed, a container released something, or :attr:`unserved` may be outdated."""
        self._loop.wake()

    async def run(self) -> None:
        await self._loop.run()

    async def collect(self) -> float | None:
        """Removes what no container needs; gives the seconds after which to try again."""
        held = self._allocations.resources()
        if held is None:
            return AGAIN
        entries = self._settings.resources
        templates = [entry.name for entry in entries if entry.inject is Inject.CDI]
        removed, left = await self._files.sweep(templates, held)
        for path in removed:
            log.info("removed a stale CDI specification", path=str(path))
        for resource in held:
            if self._files.path(resource) in left:
                self._allocations.follow(resource)  # its release is to be noticed
        await self._doubt()
        still = self._allocations.resources()
        # nothing reports what was released while this looked at the files
        return 0.0 if left and still is not None and held - still else None

    async def _doubt(self) -> None:
        """Lets names that no service keeps right give nothing once their nodes may be another device's.

        That is so for a resource that left the configuration, and for one of which no device has been found.
        """
        unserved = await self._files.unserved()
        self.unserved = bool(unserved)
        if not unserved:
            return
        claimed = claims_of(self._devices())
        holding = {self._files.path(one.resource).name: one for one in self._allocations.in_use()}
        for path in unserved:
            held = [one.device for one in holding[path.name].held()] if path.name in holding else []

            def is_certain(name: str, seen: Seen, held: Sequence[Device] = held) -> bool:
                own = claims_of(one for one in held if is_set(name) or device_name(one.id) == name)
                return is_own(seen, own, claimed)

            if await self._files.doubt(path, is_certain, self._root):
                log.warning("a CDI specification that is no longer written has lost devices", path=str(path))
