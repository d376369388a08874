"""Files that other programs read while they are written: a reader sees the old content or the new one."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

MOST_FINGERED = (1 << 20) + 1
"""Bytes of a file that its fingerprint is made of."""

Fingerprint = object
"""Equal for what reads the same."""


def fingerprint(path: Path) -> Fingerprint:
    """What there is at ``path`` now: a file's content, what it is instead, or why it cannot be read."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # and is not opened: it may be a pipe that can be read once
            return found.st_mode, found.st_dev, found.st_ino
        with open(path, "rb", opener=without_waiting) as file:
            return found.st_size, hashlib.sha256(file.read(MOST_FINGERED)).digest()
    except OSError as error:
        return error.errno


def digest(seen: Fingerprint) -> str:
    """The SHA-256 in hex of the file that a fingerprint is of; empty if it is of something else."""
    match seen:
        case (int(), bytes(content)):
            return content.hex()
        case _:
            return ""


def without_waiting(path: str, flags: int) -> int:
    """Opens for ``open(opener=…)`` what may be a named pipe that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def hostless(root: Path) -> str:
    """Why no device can be found below a directory that is to stand for ``/``; empty where some may be."""
    there = any(os.path.isdir(root / top) for top in ("sys", "dev"))  # noqa: PTH112 - never raises
    return "" if there else f"{root} has neither sys nor dev"


def make_directory(path: Path, mode: int = 0o755) -> None:
    """Makes a directory with its parents; one that exists is not changed.

    Args:
        path: the directory.
        mode: its permission bits, whatever the umask is. By default every user may read it.

    Raises:
        OSError: it cannot be made.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, mode)
    try:
        path.mkdir(mode=mode, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    path.chmod(mode)  # whatever the umask is: its readers may not be root


def replace_file(path: Path, data: bytes, part: str = ".", mode: int = 0o644) -> None:
    """Writes a file atomically: a process that opens it meanwhile sees the old content or the new one.

    Args:
        path: the file; its directory must exist.
        data: its whole content.
        part: the beginning of the unfinished file's name, which ends in ``.part``. It is in the same
            directory, whose readers must ignore such a name; they ignore hidden files as a rule.
        mode: the file's permission bits, whatever the umask is.

    Raises:
        OSError: it cannot be written. The old file, if there is one, is untouched. The error names ``path``,
            never the unfinished file, whose name is another each time.
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
