"""Which disks the node itself runs on, so that a configuration can leave them alone.

Decided by mount points that exist before any pod does: what pods mount later never changes the answer.
Inside a container the files that the kubelet binds into it (``/etc/hosts`` and others) lead to the disk
that carries the kubelet's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .files import prefix_of
from .sysfs import SysTree

_MOUNTED = re.compile(
    r"/|/(boot|efi|usr|var|etc|home)(/efi)?|/var/lib(/(kubelet|containerd|docker|containers|rancher))?"
    r"|/var/lib/kubelet/device-plugins|/etc/(hosts|hostname|resolv\.conf)|/dev/termination-log"
)
"""Mount points of the node; the last ones are what the kubelet binds into every container."""

_LIMIT = 8 * 1024 * 1024


def system_disks(root: Path, tree: SysTree) -> frozenset[str] | None:
    """The sysfs directories of block devices that the node runs on, down to the physical ones.

    ``None`` when none can be found at all: a recorded tree without ``/proc``, a diskless node, or a
    container that sees nothing of its host.
    """
    prefix = prefix_of(root)
    waiting = [path for path in _in_use(prefix, tree) if path]
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += filter(None, map(tree.block_path, tree.entries(f"{path}/slaves")))
    return frozenset(found) or None


def _in_use(prefix: str, tree: SysTree) -> Iterator[str]:
    for line in _lines(f"{prefix}/proc/1/mountinfo") or _lines(f"{prefix}/proc/self/mountinfo"):
        # proc_pid_mountinfo(5): id parent major:minor root mount-point options… - type source options
        fields = line.split(" ")
        if len(fields) > 6 and _MOUNTED.fullmatch(fields[4]):
            # btrfs and ZFS mounts have an anonymous number; their source names a member
            source = fields[fields.index("-") + 2] if "-" in fields[6:-2] else ""
            yield tree.path_of(f"b{fields[2]}") or _by_node(prefix, source, tree)
    for line in _lines(f"{prefix}/proc/swaps")[1:]:
        yield _by_node(prefix, line.split(" ")[0].split("\t")[0], tree)


def _by_node(prefix: str, node: str, tree: SysTree) -> str:
    if not node.startswith("/dev/"):
        return ""
    return tree.block_path(os.path.realpath(prefix + node).rpartition("/")[2])


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a plain string path
            return file.read(_LIMIT).splitlines()
    except OSError:
        return []
