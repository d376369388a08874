"""What of a machine may go into a recorded tree. Pure: paths in, verdicts out.

Paths are physical, as the kernel has them: no links on the way, nothing below another root.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_FILE = 64 * 1024
"""Bytes kept of one file: a udevd record or a ``uevent`` file has no more (``sysfs.RECORD_LIMIT``)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a tree may become.

    Attributes:
        entries: files, links and directories; a node with 256 network cards makes some 20 000.
        bytes: those of all files together.
    """

    entries: int = 50_000
    bytes: int = 64 * 1024 * 1024


_CONTENTS = ("/sys", "/run/udev/data", "/proc/driver")
"""Directories that describe hardware: their files and their names are recorded."""

_NAMES = ("/dev",)
"""Directories of which only names are recorded, with the numbers of device nodes."""

_NEVER = ("/dev/mqueue", "/dev/pts", "/dev/shm")
"""What programs put between the devices: neither names nor contents."""

_PROC = re.compile(
    r"/proc/(?:cpuinfo|devices|filesystems|misc|modules|mounts|partitions|swaps|version"
    r"|(?:1|self)/(?:mountinfo|mounts)|1/net/(?:route|ipv6_route|if_inet6)|sys/net/core/netdev_max_backlog)"
)
"""Files of /proc that tell of the machine and not of programs: its network too, for an adapter that the node
lives from is offered to nobody. Not the kernel's command line: people put passwords there."""

_PROC_DIRECTORIES = frozenset(
    {"/proc/1", "/proc/1/net", "/proc/driver", "/proc/sys", "/proc/sys/net", "/proc/sys/net/core"}
)
"""What those files lie in."""

OWN_PROCESS = frozenset({"/proc/self", "/proc/thread-self"})
"""Links that differ for each process; a tree has directories for them."""

_ADDRESS = re.compile(rb"(?<=0x)[0-9a-f]+")


def _below(path: str, directories: tuple[str, ...]) -> bool:
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)


def holds_content(path: str) -> bool:
    """Whether what is in this file may be recorded."""
    return _below(path, _CONTENTS) or _PROC.fullmatch(path) is not None


def holds_names(path: str) -> bool:
    """Whether the names in this directory may be recorded."""
    return _below(path, _CONTENTS + _NAMES) and not _below(path, _NEVER)


def may_exist(path: str) -> bool:
    """Whether the tree may tell that there is something at ``path``, if a backend asked."""
    if path.startswith("/proc/"):
        return path in OWN_PROCESS or path in _PROC_DIRECTORIES or holds_content(path)
    return not _below(path, _NEVER) or path in _NEVER


def masked(path: str, content: bytes) -> bytes:
    """``content`` as any user would see it: /proc/modules tells root where in memory modules are."""
    if path != "/proc/modules":
        return content
    return _ADDRESS.sub(lambda found: b"0" * len(found[0]), content)
