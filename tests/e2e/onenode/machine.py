"""The machine's devices, with which tests compare pods and the node's status."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device node of the machine."""

    path: str
    kind: str
    """``b`` or ``c``."""
    major: int
    minor: int
    mode: int
    owner: str
    """Numbers of user and group, joined by a colon."""


def device_file(path: str) -> DeviceFile:
    """Reads a device node.

    Raises:
        OSError: it does not exist.
    """
    status = Path(path).stat()
    kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
    numbers = os.major(status.st_rdev), os.minor(status.st_rdev)
    return DeviceFile(path, kind, *numbers, stat.S_IMODE(status.st_mode), f"{status.st_uid}:{status.st_gid}")


def plugged() -> int:
    """The number of zram devices without the first one, which the tests do not use."""
    return len([path for path in Path("/sys/block").glob("zram*") if path.name != "zram0"])
