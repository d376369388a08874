"""Copies the accessed parts of a machine to a tree: the directories on the path, names, and contents.

A path leads to the same type of file in the tree as on the machine. What must not or cannot be recorded is
omitted with a reason. If a backend read a file that cannot be recorded, the file is missing in the tree:
reading it then causes an error, as on the machine, and not empty text. Every link in the tree is relative and
stays inside it, so that it can be moved.

Paths are physical, as the kernel has them: without links, and not below another root.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path

from devhost.backend.errors import EnvironmentFailure
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import node_number, prefix_of

from .trace import Access, of_python

MAX_FILE = 64 * 1024
"""Bytes recorded of a file: no udevd record or ``uevent`` file is longer (``sysfs.RECORD_LIMIT``)."""


@frozen
class Bounds:
    """The maximum size of a tree."""

    entries: int = 50_000
    """Files, links and directories; a node with 256 network cards has about 20 000."""
    bytes: int = 64 * 1024 * 1024
    """The total of all files."""


_CONTENTS = ("/sys", "/run/udev/data", "/proc/driver")
"""Directories that describe hardware: names and contents are recorded."""

_NAMES = ("/dev",)
"""Directories of which only names are recorded, and the numbers of device nodes."""

_NEVER = ("/dev/mqueue", "/dev/pts", "/dev/shm")
"""Directories of programs among the devices: neither names nor contents are recorded."""

_PROC = re.compile(
    r"/proc/(?:cpuinfo|devices|filesystems|misc|modules|mounts|partitions|swaps|version"
    r"|(?:1|self)/(?:mountinfo|mounts)|1/net/(?:route|ipv6_route|if_inet6)|sys/net/core/netdev_max_backlog)"
)
"""Files of /proc that describe the machine, not programs. They include its network configuration, because
adapters that the node needs are not offered. The kernel's command line is excluded: it may contain
passwords."""

_PROC_DIRECTORIES = frozenset(
    {"/proc/1", "/proc/1/net", "/proc/driver", "/proc/sys", "/proc/sys/net", "/proc/sys/net/core"}
)
"""The directories of those files."""

OWN_PROCESS = frozenset({"/proc/self", "/proc/thread-self"})
"""Links that differ between processes; a tree has directories instead."""

_ADDRESS = re.compile(rb"(?<=0x)[0-9a-f]+")


def _below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def holds_content(path: str) -> bool:
    """Whether the content of this file may be recorded."""
    return _below(path, _CONTENTS) or _PROC.fullmatch(path) is not None


def holds_names(path: str) -> bool:
    """Whether the names in this directory may be recorded."""
    return _below(path, _CONTENTS + _NAMES) and not _below(path, _NEVER)


def may_exist(path: str) -> bool:
    """Whether the tree may reveal that ``path`` exists, if a backend asked."""
    if path.startswith("/proc/"):
        return path in OWN_PROCESS or path in _PROC_DIRECTORIES or holds_content(path)
    return not _below(path, _NEVER) or path in _NEVER


def masked(path: str, content: bytes) -> bytes:
    """``content`` as any user would see it: /proc/modules shows the addresses of modules to root."""
    if path != "/proc/modules":
        return content
    return _ADDRESS.sub(lambda found: b"0" * len(found[0]), content)


class Full(Exception):
    """A limit of the tree is reached; the text names it."""


class FileType(StrEnum):
    """The type of an entry of the tree."""

    DIRECTORY = "directory"
    LINK = "link"
    NAME = "name"
    """A placeholder file for something whose content is not in the tree; it may contain a node's number."""
    FILE = "file"
    WITHHELD = "withheld"
    """Nothing: a file cannot represent what is on the machine, so the path stays out of the tree."""


class Writer:
    """Makes entries below ``tree``. Paths begin with ``/``, which is the tree itself.

    ``revision`` increases with each entry that is new or gets its content.
    """

    def __init__(self, tree: Path, bounds: Bounds) -> None:
        self._tree = str(tree)
        self._bounds = bounds
        self._kinds: dict[str, FileType] = {}
        self.bytes = 0
        self.revision = 0

    def count(self, *kinds: FileType) -> int:
        counted = Counter(self._kinds.values())
        return sum(counted[kind] for kind in kinds)

    def has(self, path: str, *kinds: FileType) -> bool:
        return self._kinds.get(path) in kinds

    def directory(self, path: str) -> None:
        """Makes a directory; its parent exists already."""
        self._make(path, FileType.DIRECTORY, Path.mkdir)

    def link(self, path: str, target: str) -> None:
        """Makes a link. A target that is absolute or outside becomes a relative one inside the tree."""
        inside = contained(path.rpartition("/")[0], target)
        self._make(path, FileType.LINK, lambda place: place.symlink_to(inside))

    def name(self, path: str, text: str = "") -> None:
        """Makes a placeholder file."""
        self._make(path, FileType.NAME, lambda place: place.write_bytes(text.encode()), len(text))

    def file(self, path: str, content: bytes) -> None:
        """Makes a file with content, also in place of a placeholder."""
        self._make(path, FileType.FILE, lambda place: place.write_bytes(content), len(content), FileType.NAME)

    def withhold(self, path: str) -> None:
        """Keeps a file out of the tree, and removes its placeholder."""
        remove = partial(Path.unlink, missing_ok=True)
        self._make(path, FileType.WITHHELD, remove, instead_of=FileType.NAME)

    def _make(
        self,
        path: str,
        kind: FileType,
        write: Callable[[Path], object],
        size: int = 0,
        instead_of: FileType | None = None,
    ) -> None:
        """Makes an entry at ``path``, unless there is another one; raises ``Full`` beyond the limits."""
        known = self._kinds.get(path)
        if known is not None and known is not instead_of:
            return
        if known is None and len(self._kinds) >= self._bounds.entries:
            raise Full(f"the limit of {self._bounds.entries} files, links and directories is reached")
        if self.bytes + size > self._bounds.bytes:
            raise Full(f"the limit of {self._bounds.bytes >> 20} MiB is reached")
        self._kinds[path] = kind
        self.bytes += size
        self.revision += 1
        try:
            write(Path(self._tree + path))
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot write {path} of the tree: {error.strerror or error}",
                "choose a directory on a file system with free space",
            ) from error


def contained(directory: str, target: str) -> str:
    """The text of a link in ``directory`` that leads to ``target``, as seen from the root.

    ``..`` at the root leads to the root, as in the kernel.
    """
    depth = directory.count("/")
    if target.startswith("/"):
        target = "../" * depth + target.lstrip("/")
    kept = []
    for part in target.split("/"):
        if part in ("", ".") or (part == ".." and depth == 0):
            continue
        depth += -1 if part == ".." else 1
        kept.append(part)
    return "/".join(kept) or "."


_LINKS = 40
"""The maximum number of links in a path, the same as in the kernel (path_resolution(7))."""

_IDLE = frozenset({"", "."})


@frozen
class Omission:
    """A path that a backend accessed and that the tree lacks, or has only in part.

    ``path`` ends in ``/`` if the names in a directory are missing. ``backend`` is empty if unknown.
    """

    path: str
    reason: str
    backend: str = ""


@frozen
class _PhysicalFile:
    """The file at a physical path. ``target`` is the text of a link."""

    mode: int
    target: str = ""

    @property
    def directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Capture:
    """Fills a tree from the machine below ``root``.

    Files that the machine refuses never cause an exception. Raises ``EnvironmentFailure`` if the tree cannot
    be written.
    """

    def __init__(self, root: Path, writer: Writer) -> None:
        self._prefix = prefix_of(root)
        self._writer = writer
        self._places: dict[str, _PhysicalFile | None] = {}
        self._omitted: dict[str, Omission] = {}
        self._joined: set[str] = set()
        self._avoided: set[str] = set()
        self._backend = ""
        self.nodes: dict[str, str] = {}
        self.full = ""

    @property
    def omissions(self) -> tuple[Omission, ...]:
        """What is omitted, in the order of the paths."""
        return tuple(self._omitted[path] for path in sorted(self._omitted))

    def take(self, access: Access, path: str, backend: str = "") -> None:
        """Records a path that ``backend`` accessed, absolute as seen from the root."""
        if self.full or path in self._avoided or (not self._prefix and of_python(path)):
            return
        self._backend = backend
        try:
            self._take(access, path)
        except Full as bound:
            self.full = str(bound)
            self._omit(path, f"{bound}: neither this path nor any later one is recorded")

    def avoid(self, path: str, backend: str) -> None:
        """Never accesses ``path``, because a backend hung there."""
        directory, _, name = path.rpartition("/")
        self._avoided.add(path)
        self.omit(path, f"backend {backend} hung at it", backend)
        self.take(Access.ASKED, directory, backend)
        if not self.full:
            self._avoided.add(f"{self._follow(directory)}/{name}")

    def omit(self, path: str, reason: str, backend: str) -> None:
        """Notes that something is omitted. The first reason is kept."""
        self._omitted.setdefault(path, Omission(path, reason, backend))

    def _omit(self, path: str, reason: str) -> None:
        self.omit(path, reason, self._backend)

    def _take(self, access: Access, path: str) -> None:
        found = self._follow(path)
        place = self._place(found) if found else None
        if place is None:
            return
        if place.directory:
            if access is Access.LISTED:
                self._names(found, place)
        elif access is Access.READ and not self._number(found, place):
            self._content(found, place)
        else:
            self._name(found, place)

    def _follow(self, path: str) -> str:
        """Resolves ``path`` like the kernel, and records each directory and link on the way.

        Returns the physical path; empty if it does not exist or must not be recorded.
        """
        waiting, here, links = path.split("/")[::-1], "", 0
        while waiting:
            part = waiting.pop()
            if part in _IDLE:
                continue
            if part == "..":
                here = here.rpartition("/")[0]
                continue
            child = f"{here}/{part}"
            place = self._place(child)
            if place is None:
                return ""
            if not may_exist(child):
                self._omit(child, "it is not about hardware")
                return ""
            onward = not _IDLE.issuperset(waiting)
            if place.target:
                links += 1
                if links > _LINKS:
                    return ""
                self._writer.link(child, place.target)
                here = "" if place.target.startswith("/") else here
                waiting += place.target.split("/")[::-1]
            elif place.directory:
                self._writer.directory(child)
                if onward and not place.mode & stat.S_IXOTH:
                    self._omit(f"{child}/", "not every user may enter it")
                    return ""
                here = child
            elif onward:
                return ""
            else:
                here = child
        return here

    def _place(self, path: str) -> _PhysicalFile | None:
        if path in self._avoided:
            return None
        if path not in self._places:
            self._places[path] = self._look(path)
        return self._places[path]

    def _look(self, path: str) -> _PhysicalFile | None:
        real = self._prefix + path
        try:
            if path in OWN_PROCESS:
                return _PhysicalFile(os.stat(real).st_mode)  # noqa: PTH116 - a string, which may hold any bytes
            mode = os.lstat(real).st_mode
            return _PhysicalFile(mode, os.readlink(real) if stat.S_ISLNK(mode) else "")  # noqa: PTH115 - as above
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._omit(path, _why(error))
            return None

    def _names(self, path: str, place: _PhysicalFile) -> None:
        """Records every name in a directory: links with their targets, files without content."""
        if not holds_names(path):
            self._omit(f"{path}/", "its names are not about hardware")
        elif not place.mode & stat.S_IROTH:
            self._omit(f"{path}/", "not every user may list it")
        else:
            for child, found in self._children(path):
                if found.target:
                    self._joint(child, found)
                elif found.directory:
                    self._writer.directory(child)
                else:
                    self._name(child, found)

    def _children(self, directory: str) -> Iterator[tuple[str, _PhysicalFile]]:
        try:
            names = sorted(os.listdir(self._prefix + directory))
        except OSError as error:
            self._omit(f"{directory}/", _why(error))
            return
        for name in names:
            place = self._place(f"{directory}/{name}")
            if place is not None:
                yield f"{directory}/{name}", place

    def _joint(self, path: str, place: _PhysicalFile) -> None:
        """Records a link, and its target if that may be recorded."""
        self._writer.link(path, place.target)
        end = os.path.normpath(os.path.join(path.rpartition("/")[0], place.target))  # noqa: PTH118 - strings
        found = self._follow(path) if holds_names(end) else ""
        there = self._place(found) if found else None
        if there is not None and not there.directory:
            self._name(found, there)

    def _name(self, path: str, place: _PhysicalFile) -> None:
        number = self._number(path, place)
        if number:
            self.nodes[path] = number
        self._writer.name(path, f"{number}\n" if number else "")

    def _number(self, path: str, place: _PhysicalFile) -> str:
        """Records the number of a device node, in a plain file below ``/dev``."""
        if stat.S_ISREG(place.mode) and not (self._prefix and path.startswith("/dev/")):
            return ""
        return node_number(self._prefix + path)

    def _content(self, path: str, place: _PhysicalFile) -> None:
        if self._writer.has(path, FileType.FILE, FileType.WITHHELD):
            return
        if not holds_content(path):
            self._omit(path, "its content is not about hardware")
            self._name(path, place)
            return
        try:
            content = self._read(path, place)
        except OSError as error:
            self._omit(path, _why(error))
            self._writer.withhold(path)
            return
        if len(content) > MAX_FILE:
            # at the end of a line if possible
            content = content[: content.rfind(b"\n", 0, MAX_FILE) + 1 or MAX_FILE]
            self._omit(path, f"it is longer than {MAX_FILE} bytes; only its beginning is recorded")
        self._writer.file(path, masked(path, content))
        self._links_beside(path)

    def _read(self, path: str, place: _PhysicalFile) -> bytes:
        """The content, at most one byte more than the limit; ``OSError`` if not every user can read it."""
        if not stat.S_ISREG(place.mode):
            raise OSError("it is not a plain file")
        if not place.mode & stat.S_IROTH:
            raise OSError("not every user may read it")
        # O_NONBLOCK: some attributes wait for an event when they are read
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(self._prefix + path, flags)
        try:
            content = b""
            while len(content) <= MAX_FILE:
                more = os.read(descriptor, MAX_FILE + 1 - len(content))
                if not more:
                    break
                content += more
            return content
        finally:
            os.close(descriptor)

    def _links_beside(self, path: str) -> None:
        """Records the links in a device's directory (``driver``, ``subsystem``, ``physfn``), accessed or not.

        They connect a device to others, so that the tree also works for a backend that needs more of them.
        """
        directory = path.rpartition("/")[0]
        if not directory.startswith("/sys/devices/") or directory in self._joined:
            return
        self._joined.add(directory)
        for child, place in self._children(directory):
            if place.target:
                self._joint(child, place)


def _why(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"it cannot be read: {text}" if isinstance(error, OSError) and error.errno else text
