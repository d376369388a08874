"""Which disks the node itself runs on, so that a configuration can leave them alone.

Decided by mount points that exist before any pod does: what pods mount later never changes the answer.
Inside a container the files that the kubelet binds into it (``/etc/hosts`` and others) lead to the disk
that carries the kubelet's directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from devhost.sysfs import prefix_of

from .sysfs import SysTree

_MOUNTED = re.compile(
    r"/|/(boot|efi|usr|var|etc|home)(/efi)?|/var/lib(/(kubelet|containerd|docker|containers|rancher))?"
    r"|/var/lib/kubelet/device-plugins|/etc/(hosts|hostname|resolv\.conf)|/dev/termination-log"
)
"""Mount points of the node; the last ones are what the kubelet binds into every container."""

_LIMIT = 8 * 1024 * 1024


def system_disks(root: Path, tree: SysTree) -> frozenset[str] | None:
    """The sysfs directories of block devices that the node runs on, down to the physical ones.

    ``None`` when that cannot be told: a recorded tree without ``/proc``, a diskless node, a container
    that sees nothing of its host, or a ZFS pool, which does not name its disks.
    """
    prefix = prefix_of(root)
    mounts = list(_mounts(prefix))
    if any(mount.kind == "zfs" for mount in mounts):
        return None
    waiting = [path for mount in mounts for path in _devices(mount, prefix, tree) if path]
    for line in _lines(f"{prefix}/proc/swaps")[1:]:
        waiting += filter(None, [_by_node(prefix, line.split()[0], tree)] if line.split() else [])
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += filter(None, map(tree.block_path, tree.entries(f"{path}/slaves")))
    return frozenset(found) or None


class _Mount(NamedTuple):
    """A file system that the node itself uses."""

    number: str
    kind: str
    source: str


def _mounts(prefix: str) -> Iterator[_Mount]:
    for line in _lines(f"{prefix}/proc/1/mountinfo") or _lines(f"{prefix}/proc/self/mountinfo"):
        # proc_pid_mountinfo(5): id parent major:minor root point options [tags] - type source options
        before, dash, after = line.partition(" - ")
        fields, described = before.split(" "), after.split(" ")
        if dash and len(fields) > 5 and len(described) > 1 and _MOUNTED.fullmatch(fields[4]):
            yield _Mount(fields[2], described[0], described[1])


def _devices(mount: _Mount, prefix: str, tree: SysTree) -> Iterator[str]:
    number = tree.path_of(f"b{mount.number}")
    if number:
        yield number
        return
    # file systems on several disks have an anonymous number; their source names one disk, or all
    for source in mount.source.split(":"):
        path = _by_node(prefix, source, tree)
        yield path
        if mount.kind == "btrfs":
            yield from map(tree.block_path, _btrfs_members(path.rpartition("/")[2], tree))


def _btrfs_members(name: str, tree: SysTree) -> Sequence[str]:
    """The disks of the btrfs that ``name`` is one of; it alone where the kernel does not say."""
    for file_system in tree.entries("/sys/fs/btrfs"):
        members = tree.entries(f"/sys/fs/btrfs/{file_system}/devices")
        if name in members:
            return members
    return ()


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
