"""Copies the accessed parts of a machine to a tree: the directories on the path, names, and contents.

A path leads to the same type of file in the tree as on the machine. What must not or cannot be recorded is
omitted with a reason. If a backend read a file that cannot be recorded, the file is missing in the tree:
reading it then causes an error, as on the machine, and not empty text.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import node_number, prefix_of

from . import area
from .trace import Access, of_python
from .writer import FileType, Full, Writer

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
            if not area.may_exist(child):
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
            if path in area.OWN_PROCESS:
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
        if not area.holds_names(path):
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
        found = self._follow(path) if area.holds_names(end) else ""
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
        if not area.holds_content(path):
            self._omit(path, "its content is not about hardware")
            self._name(path, place)
            return
        try:
            content = self._read(path, place)
        except OSError as error:
            self._omit(path, _why(error))
            self._writer.withhold(path)
            return
        if len(content) > area.MAX_FILE:
            # at the end of a line if possible
            content = content[: content.rfind(b"\n", 0, area.MAX_FILE) + 1 or area.MAX_FILE]
            self._omit(path, f"it is longer than {area.MAX_FILE} bytes; only its beginning is recorded")
        self._writer.file(path, area.masked(path, content))
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
            while len(content) <= area.MAX_FILE:
                more = os.read(descriptor, area.MAX_FILE + 1 - len(content))
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
