"""Files that other programs read while they are written: a reader sees either the old or the new content."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

FINGERPRINT_LIMIT = (1 << 20) + 1
"""Bytes of a file that its fingerprint depends on."""

Fingerprint = object
"""Two fingerprints are equal if reading the path gives the same result."""


def fingerprint(path: Path) -> Fingerprint:
    """Identifies what is at ``path`` now: a file's content, another kind of file, or a read error."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # not opened: it may be a pipe, which can be read once
            return found.st_mode, found.st_dev, found.st_ino
        with open(path, "rb", opener=without_waiting) as file:
            return found.st_size, hashlib.sha256(file.read(FINGERPRINT_LIMIT)).digest()
    except OSError as error:
        return error.errno


def digest(seen: Fingerprint) -> str:
    """The SHA-256, in hex, of the file content in a fingerprint; empty if it is of something else."""
    match seen:
        case (int(), bytes(content)):
            return content.hex()
        case _:
            return ""


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
        path: the directory.
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
        data: its whole content.
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
    descriptor, unfinished = tempfile.mkstemp(".part", part, path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # noqa: PTH105 - the name mkstemp gave is a string
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)  # noqa: PTH108 - as above
        raise


def holds(path: Path, data: bytes) -> bool:
    """Whether a file has exactly this content and can be read by every user."""
    try:
        return path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o644
    except OSError:
        return False
