"""Decides which parts of a machine may be recorded. Pure: paths in, decisions out.

Paths are physical, as the kernel has them: without links, and not below another root.
"""

from __future__ import annotations

import re

from devhost.backend.frozen import frozen

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
