"""Text formats of the kernel and of Go programs. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

NLMSG_MIN_TYPE = 0x10
NLM_F_REQUEST = 1
"""``linux/netlink.h``."""

KLOG = re.compile(r"^[IWEF]\d{4} \S+ +\d+ \S+\] |^\d{4}/\d\d/\d\d \S+ ")
"""The beginning of a line in logs of Go programs."""

MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
"""The first line of a mapping in ``/proc/PID/smaps``."""

FRAMES = ("main.", "runtime.", "github.com/", "goroutine ", "k8s.io/", "created by ", "[signal")
"""The beginnings of lines in a Go stack trace."""


def message(action: str, subsystem: str, sys_path: str) -> bytes:
    """A uevent in the kernel's format, without its sequence number, with the header of a netlink request."""
    path = sys_path.removeprefix("/sys")
    parts = (f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}")
    text = "\0".join((*parts, "")).encode()
    return struct.pack("=IHHII", 16 + len(text), NLMSG_MIN_TYPE, NLM_F_REQUEST, 0, 0) + text


def together(smaps: Sequence[str]) -> float:
    """The memory of several processes in MB (10⁶ bytes), from the text of each ``/proc/PID/smaps``.

    Memory of a file counts once, with the maximum of all processes. PSS is not suitable: the measuring
    process has the interpreter and its libraries mapped as well, which would halve them.
    """
    own = 0
    files: dict[tuple[str, str, str], int] = {}
    for text in smaps:
        key, resident = ("", "", ""), 0
        for line in text.splitlines():
            if MAPPING.match(line):
                _, _, offset, device, inode = line.split()[:5]
                key = (device, inode, offset)
            elif line.startswith("Rss:"):
                resident = int(line.split()[1])
            elif line.startswith("Anonymous:"):
                anonymous = int(line.split()[1])
                own += anonymous
                files[key] = max(files.get(key, 0), resident - anonymous)
    return (own + sum(files.values())) * 1024 / 1e6


def complaint(log: str) -> str:
    """The cause of the end in a log: a panic, a wrong flag, else the last line outside a stack trace."""
    lines = [KLOG.sub("", line).strip() for line in log.splitlines() if not line.startswith("\t")]
    said = [line for line in lines if line and not line.startswith(FRAMES)]
    telling = [line for line in said if line.startswith(("panic:", "flag provided but not defined"))]
    return (telling or said[-1:] or [""])[0]
