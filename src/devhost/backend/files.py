"""Files that other programs read while they are written: a reader sees either the old or the new content.

And what watches of files need: explained limits of inotify, and imports without a child process.
inotify_init(2) fails with EMFILE at the user's limit of instances, and at the process's limit of open files.
inotify_add_watch(2) fails with ENOSPC at the user's limit of watches (inotify(7)).

``ctypes.util.find_library`` starts ldconfig, and gcc if that finds nothing, in every process that imports
asyncinotify or uses pyudev. The dynamic linker finds the same files by their sonames.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import hashlib
import os
import select
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import EnvironmentFailure, exhausted, one_line
from .sysfs import OWN_MOUNTS, mounts

FINGERPRINT_LIMIT = (1 << 20) + 1
"""Bytes of a file that its fingerprint depends on."""

_PIECE = 1 << 16
_REPLACED = 0.2
"""Seconds between two looks at whether a pipe was replaced."""
_KERNEL = ("proc", "tracefs", "debugfs")

Fingerprint = object
"""Two fingerprints are equal if reading the path gives the same result."""


def fingerprint(path: Path) -> Fingerprint:
    """Identifies what is at ``path`` now: a file's content, another kind of file, or a read error."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # not opened: it may be a pipe, which can be read once
            return found.st_mode, found.st_dev, found.st_ino
        return found.st_size, hashlib.sha256(read_named(path, FINGERPRINT_LIMIT)).digest()
    except OSError as error:
        return error.errno


def read_named(path: Path, limit: int, *, patience: float = 0.0) -> bytes:
    """The content of a file that a user names, which may be any kind of file; at most ``limit`` bytes.

    It never waits for longer than ``patience`` seconds, and opens no device, because that alone can have an
    effect; the exception is standard input, as in ``/dev/stdin``.

    Args:
        patience: seconds to wait for data if it is a pipe. The wait ends if the pipe is replaced.

    Raises:
        OSError: it cannot be read; ``strerror`` is the reason in words.
        ValueError: no file can have this name.
    """
    with suppress(FileNotFoundError, PermissionError, NotADirectoryError):  # the same when it is opened
        refuse_special(path.stat())
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        refuse_special(found)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if stat.S_ISCHR(found.st_mode):
            os.set_blocking(descriptor, True)  # a terminal: until the user ends the input
        data = bytearray()
        while len(data) < limit:
            if stat.S_ISFIFO(found.st_mode):
                _await_data(descriptor, path, patience)
            piece = file.read(min(limit - len(data), _PIECE))
            if piece is None:
                raise OSError(errno.EAGAIN, "its content is not there yet: this is not an ordinary file")
            if not piece:
                break
            data += piece
        return bytes(data)


def _await_data(pipe: int, path: Path, patience: float) -> None:
    """Waits until a pipe has data or its writers have closed it, while ``path`` still leads to it.

    Raises:
        OSError: neither within ``patience`` seconds, or something else has taken its place.
    """
    end = time.monotonic() + patience
    while not select.select([pipe], [], [], max(0.0, min(_REPLACED, end - time.monotonic())))[0]:
        if not _leads_to(path, pipe):
            raise OSError(errno.ESTALE, "this was a pipe, and was replaced before a process wrote to it")
        if time.monotonic() >= end:
            raise OSError(errno.ETIMEDOUT, f"no process wrote to this pipe for {patience:g} s")


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


def refuse_special(found: os.stat_result) -> None:
    """Refuses what is no file with a content.

    Raises:
        OSError: it is a device, a socket, or a file in which the kernel reports events, such as
            ``/proc/kmsg``: these wait, and what is read is gone.
    """
    what = ""
    if stat.S_ISSOCK(found.st_mode):
        what = "this is a socket"
    elif stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and not _is_standard_input(found)):
        what = "this is a device"
    elif stat.S_ISREG(found.st_mode) and not found.st_size and _kind_of_file_system(found.st_dev) in _KERNEL:
        what = "this is a file of the kernel"
    if what:
        raise OSError(errno.EINVAL, f"{what}, not a file with a content")


def _is_standard_input(found: os.stat_result) -> bool:
    try:
        return os.path.samestat(found, os.fstat(0))
    except OSError:
        return False


def _kind_of_file_system(device: int) -> str:
    """The type of a mounted file system, from ``/proc/self/mountinfo``; empty if it is not known."""
    number = f"{os.major(device)}:{os.minor(device)}"
    return next((mount.kind for mount in mounts(OWN_MOUNTS) if mount.number == number), "")


def digest(seen: Fingerprint) -> str:
    """The SHA-256, in hex, of the file content in a fingerprint; empty if it is of something else."""
    match seen:
        case (int(), bytes(content)):
            return content.hex()
        case _:
            return ""


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a regular file, of at most ``limit`` bytes. Never waits for another process.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or larger; the text is the reason.
    """
    with open(path, "rb", opener=without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is larger than {limit >> 20} MiB")
    return data


def without_waiting(path: str, flags: int) -> int:
    """An opener for ``open(opener=…)`` that does not wait for the writer of a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def missing_host_reason(root: Path) -> str:
    """Why no device can be found below a directory used as ``/``; empty if there may be some."""
    there = any(os.path.isdir(root / top) for top in ("sys", "dev"))  # noqa: PTH112 - never raises
    return "" if there else f"{root} has neither sys nor dev"


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Creates a directory with its parents; an existing one is not changed.

    Args:
        mode: its permission bits, regardless of the umask. By default every user can read it.

    Raises:
        OSError: it cannot be created.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, mode)
    try:
        path.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    path.chmod(mode)  # regardless of the umask: its readers may run as other users


def replace_file(path: Path, data: bytes, part: str = ".", mode: int = 0o644) -> None:
    """Writes a file atomically: a process that opens it at that time sees either the old or the new content.

    Args:
        path: the file; its directory must exist.
        part: the beginning of the temporary file's name, which ends in ``.part``. It is in the same
            directory, so programs that read the directory must ignore it; most ignore hidden files.
        mode: the file's permission bits, regardless of the umask.

    Raises:
        OSError: it cannot be written. The old file, if there is one, is unchanged. The error names ``path``,
            not the temporary file, whose name is random.
    """
    try:
        _replace(path, data, part, mode)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def _replace(path: Path, data: bytes, part: str, mode: int) -> None:
    unfinished = path.parent / f"{part}{os.urandom(8).hex()}.part"  # tempfile takes 0.4 MB
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise


def holds(path: Path, data: bytes) -> bool:
    """Whether a file has exactly this content and can be read by every user."""
    try:
        return path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o644
    except OSError:
        return False


_LIMITS = {
    errno.EMFILE: ("max_user_instances", 1024),
    errno.ENOSPC: ("max_user_watches", 524288),
}
"""For each error, the sysctl in ``fs.inotify`` and the value to set."""


def explained(error: OSError) -> str:
    """Why an inotify call failed, in one line, with the fix if it was a limit."""
    if error.errno == errno.EMFILE and (lack := _no_file_left()):
        return str(lack)
    if error.errno not in _LIMITS:
        return one_line(error)
    name, value = _LIMITS[error.errno]
    limit = _current(name)
    shown = "" if limit is None else f", {limit},"
    raised = max(value, 2 * (limit or 0))
    return (
        f"the limit fs.inotify.{name}{shown} is exhausted "
        f"(run `sysctl -w fs.inotify.{name}={raised}` on the node)"
    )


def _no_file_left() -> EnvironmentFailure | None:
    """The reason why this process cannot open any file, because the errno of both limits is the same."""
    try:
        os.close(os.open("/", os.O_PATH))
    except OSError as error:
        return exhausted(error)
    return None


def _current(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return None


SONAMES = {"c": "libc.so.6", "udev": "libudev.so.1"}
"""The file name of each library in distributions with glibc."""


@contextmanager
def by_soname(known: Mapping[str, str] = SONAMES) -> Iterator[None]:
    """In its body, imported modules find the ``known`` libraries by their sonames.

    A module that runs ``from ctypes.util import find_library`` in the body keeps doing so. A library without
    a soname here, or without a file of that name, is searched for as usual.
    """
    ordinary = ctypes.util.find_library

    def find(name: str) -> str | None:
        soname = known.get(name)
        return soname if soname and _exists(soname) else ordinary(name)

    ctypes.util.find_library = find
    try:
        yield
    finally:
        ctypes.util.find_library = ordinary


def _exists(soname: str) -> bool:
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True
