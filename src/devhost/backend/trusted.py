"""Files that only root and the user of this process can change or replace.

Code that devhost runs, and images that it programs into hardware, must come from such a file. A file is
trusted when it, its directory and every directory on the way to it belong to root or to that user and no
group and no other user can write to them. Symbolic links are followed one by one, so the directories that
hold a link count as well as those that it leads to. POSIX ACLs need no separate check: the kernel shows their
mask as the mode of the group (acl(5)).

Two kinds of directories may be writable by others. In a sticky one, such as ``/tmp``, only the owner of an
entry can replace it. And Kubernetes gives the directories of ConfigMap, Secret and emptyDir volumes mode 0777
or 1777 and mounts them read-only into the container (pkg/volume/emptydir/empty_dir.go; kubernetes/kubernetes
issue 60814): a directory at which a read-only mount begins counts as not writable. A read-only mount alone
is not enough: ``ProtectSystem=strict`` of systemd makes all file systems read-only for one service, while
other processes can still write to them.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EnvironmentFailure

_LINKS = 40
"""Symbolic links followed on the way to one file; the kernel follows as many (path_resolution(7))."""

_PLACE = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Untrusted(EnvironmentFailure):
    """Others can change or replace a file: ``path`` is what they can write to, ``message`` why."""

    def __init__(self, path: str, why: str, hint: str) -> None:
        super().__init__(f"{path} {why}", hint)
        self.path = path
        self.why = why

    def below(self, prefix: str) -> Untrusted:
        """The same, with paths as seen from the directory ``prefix``, which is the node's ``/``."""
        if not prefix or not self.path.startswith(f"{prefix}/"):
            return self
        path = self.path.removeprefix(prefix)
        return Untrusted(path, self.why, self.hint.replace(shlex.quote(self.path), shlex.quote(path)))


@contextmanager
def opened(path: str | Path) -> Iterator[int]:
    """Opens a regular file that only root and this process's user can change; yields a descriptor for
    reading.

    The open file is the one that was checked. Nothing but a regular file is ever opened.

    Raises:
        Untrusted: others can change or replace it, or it is a device, pipe or socket.
        OSError: it does not exist, is a directory, or cannot be opened.
    """
    with _closing(_open(os.fspath(path), directory=False)) as descriptor:
        yield descriptor


@contextmanager
def entered(path: str | Path) -> Iterator[int]:
    """Opens a directory in which only root and this process's user can create or remove files.

    Raises:
        Untrusted: others can, or can replace the directory.
        OSError: it does not exist, is not a directory, or cannot be read.
    """
    with _closing(_open(os.fspath(path), directory=True)) as descriptor:
        yield descriptor


@contextmanager
def opened_in(directory: int, path: Path) -> Iterator[int]:
    """The same as :func:`opened`, of a file in a directory that :func:`entered` has opened.

    It does not check the way to the directory again, and refuses a symbolic link.
    """
    _check_type(str(path), os.stat(path.name, dir_fd=directory, follow_symlinks=False))
    with _closing(_file(directory, path.name, str(path))) as descriptor:
        yield descriptor


def content(path: str | Path, most: int) -> bytes:
    """The same as :func:`read_bytes`, of a file with at most ``most`` bytes.

    Raises:
        EnvironmentFailure: it is larger.
        Untrusted, OSError: as :func:`opened`.
    """
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise EnvironmentFailure(f"{path} is larger than {most >> 20} MiB")
    return data


def read_bytes(path: str | Path) -> bytes:
    """The content of a file that only root and this process's user can change.

    Raises:
        Untrusted, OSError: as :func:`opened`.
    """
    with opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        return file.read()


def names(path: str | Path) -> list[str]:
    """The names in a directory in which only root and this process's user can create or remove files.

    Raises:
        Untrusted, OSError: as :func:`entered`.
    """
    with entered(path) as descriptor:
        return os.listdir(descriptor)


@contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: str, *, directory: bool) -> int:
    """Resolves a path as the kernel does (path_resolution(7)), and checks each directory on entering it."""
    left = _parts(os.path.join(os.getcwd(), path))  # noqa: PTH109, PTH118 - `..` must stay as it is
    links, place, sticky = 0, "/", False
    here = os.open("/", _PLACE | os.O_DIRECTORY)
    try:
        while left:
            name = left.pop()
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            where = _joined(place, name)
            if stat.S_ISLNK(found.st_mode):
                if sticky:
                    _check_owner(where, found)
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=here)
                left += _parts(target)
                if target.startswith("/"):
                    here, place, sticky = _entered(here, "/", "/", listed=False)
            elif left or directory:
                here, place, sticky = _entered(here, name, where, listed=directory and not left)
            else:
                _check_type(where, found)  # before it is opened: opening a device or a pipe has effects
                return _file(here, name, where)
        if not directory:  # it ends in `/`, in `..` or in a link to such a path
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def _parts(path: str) -> list[str]:
    """The names in a path, last first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _joined(place: str, name: str) -> str:
    if name == "..":
        return os.path.dirname(place)  # noqa: PTH120 - a plain string path
    return f"{place.rstrip('/')}/{name}"


def _entered(here: int, name: str, where: str, *, listed: bool) -> tuple[int, str, bool]:
    """The directory ``name``, checked, in place of ``here``; and whether it is sticky and open to others."""
    below = os.open(name, _PLACE | os.O_DIRECTORY, dir_fd=here)
    try:
        found = os.fstat(below)
        _check_owner(where, found)
        sticky = False
        if found.st_mode & _OTHERS and not _is_read_only_volume(below):
            sticky = bool(found.st_mode & stat.S_ISVTX)
            if listed or not sticky:
                raise Untrusted(
                    where,
                    f"is writable by {_whom(found)}, who can put files into it",
                    "use a directory that only root can write to"
                    if sticky
                    else _command("chmod go-w", where),
                )
    except BaseException:
        os.close(below)
        raise
    os.close(here)
    return below, where, sticky


def _file(here: int, name: str, where: str) -> int:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(name, flags, dir_fd=here)
    try:
        found = os.fstat(descriptor)
        _check_type(where, found)
        _check_owner(where, found)
        if found.st_mode & _OTHERS:
            raise Untrusted(
                where, f"is writable by {_whom(found)}, who can change it", _command("chmod go-w", where)
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_type(where: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), where)
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(where, "is not a regular file", "")


def _check_owner(where: str, found: os.stat_result) -> None:
    # the owner of `/` has everything anyway; in a user namespace that may be the overflow uid
    if found.st_uid in (0, os.geteuid(), os.stat("/").st_uid):  # noqa: PTH116
        return
    wanted = "root" if os.geteuid() == 0 else f"root or to uid {os.geteuid()}, which devhost runs as"
    raise Untrusted(
        where,
        f"belongs to uid {found.st_uid} and not to {wanted}",
        _command("chown root", where),
    )


def _whom(found: os.stat_result) -> str:
    group, others = found.st_mode & stat.S_IWGRP, found.st_mode & stat.S_IWOTH
    return "its group and others" if group and others else "its group" if group else "others"


def _command(command: str, path: str) -> str:
    return f"run `{command} {shlex.quote(path)}`"


def _is_read_only_volume(directory: int) -> bool:
    """Whether a read-only mount begins at this directory."""
    if not os.fstatvfs(directory).f_flag & os.ST_RDONLY:
        return False
    above = os.open("..", _PLACE | os.O_DIRECTORY, dir_fd=directory)
    try:
        return _mount(directory) != _mount(above)
    finally:
        os.close(above)


def _mount(descriptor: int) -> str:
    """The id of the mount that an open file is on (proc(5), ``fdinfo``); empty where that is unknown."""
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("mnt_id:")), "")
