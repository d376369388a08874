"""Reading small files that belong to the kernel: bounded, never blocking, never raising."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

SYSFS_LIMIT = 4096
"""Bytes: one page is the most that a sysfs attribute can hold (kernel, ``sysfs_emit``)."""

RECORD_LIMIT = 64 * 1024
"""Bytes of a ``uevent`` file or of udevd's record of one device."""

_DIGITS = re.compile(r"(\d+)")


def prefix_of(root: Path) -> str:
    """What to put before an absolute path so that it lies below ``root``; empty for ``/`` itself.

    Links in ``root`` are resolved, so that what is found below it can be told by its beginning.
    """
    text = os.path.realpath(root)
    return "" if text == "/" else text


def read_bytes(path: str, limit: int = SYSFS_LIMIT) -> bytes | None:
    """The first ``limit`` bytes of a file; ``None`` when it is not there or cannot be read."""
    try:
        # O_NONBLOCK: some attributes wait for an event when read; O_NOCTTY: never adopt a terminal.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        return os.read(descriptor, limit)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_line(path: str) -> str:
    """A small text file without the white space around it; empty when it is absent or not text."""
    data = read_bytes(path, SYSFS_LIMIT + 1)
    if data is None or len(data) > SYSFS_LIMIT:
        return ""
    try:
        text = data.decode().strip()
    except UnicodeDecodeError:
        return ""
    return text if text.replace("\n", "").replace("\t", "").isprintable() else ""


def read_lines(path: str) -> list[str]:
    """The lines of a ``uevent`` file or a udevd record; none when it cannot be read."""
    data = read_bytes(path, RECORD_LIMIT)
    return data.decode(errors="replace").splitlines() if data else []


def is_regular(path: str) -> bool:
    """Whether ``path`` is a plain file, found out without opening it."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def link_target(path: str) -> str:
    """Where a symbolic link points, as written in it; empty when there is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a plain string path
    except (OSError, ValueError):
        return ""


def natural(text: str) -> tuple[tuple[str, int], ...]:
    """A sort key that puts ``ttyUSB10`` after ``ttyUSB9``."""
    parts = _DIGITS.split(text)
    numbers = [int(part) for part in parts[1::2]] + [-1]
    return tuple(zip(parts[0::2], numbers, strict=True))
