"""What the kernel and Go's programs write, and what the kernel reads. Pure."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence

NLMSG_MIN_TYPE = 0x10
NLM_F_REQUEST = 1
"""``linux/netlink.h``."""

KLOG = re.compile(r"^[IWEF]\d{4} \S+ +\d+ \S+\] |^\d{4}/\d\d/\d\d \S+ ")
"""What Go's logs begin a line with."""

MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ ")
"""The line that begins a mapping in ``/proc/PID/smaps``."""

FRAMES = ("main.", "runtime.", "github.com/", "goroutine ", "k8s.io/", "created by ", "[signal")
"""What the lines of a stack trace of Go's begin with."""


def message(action: str, subsystem: str, sys_path: str) -> bytes:
    """A uevent as the kernel writes it, less the number that it adds, with the head of a netlink request."""
    path = sys_path.removeprefix("/sys")
    parts = (f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}")
    text = "\0".join((*parts, "")).encode()
    return struct.pack("=IHHII", 16 + len(text), NLMSG_MIN_TYPE, NLM_F_REQUEST, 0, 0) + text


def together(smaps: Sequence[str]) -> float:
    """MB (10⁶ bytes) that processes hold together, from the text of each one's ``/proc/PID/smaps``.

    What is a file's counts as often as it is mapped by the one that has most of it. PSS would not do: whoever
    measures has the interpreter and its libraries mapped as well, and would take half of them upon itself.
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
    """What a log says of the end: a panic, a flag that is wrong, else the last line outside a stack trace."""
    lines = [KLOG.sub("", line).strip() for line in log.splitlines() if not line.startswith("\t")]
    said = [line for line in lines if line and not line.startswith(FRAMES)]
    telling = [line for line in said if line.startswith(("panic:", "flag provided but not defined"))]
    return (telling or said[-1:] or [""])[0]
