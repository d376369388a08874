"""Which disks carry file systems and swap space, found from what is mounted down to the hardware.

For backend authors. Everything is read from files below a root, as in :mod:`devhost.backend.sysfs`; nothing
here raises. The mounts are those that the first process of the machine sees, or those of this process if the
former cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from .frozen import frozen
from .sysfs import Mount, Sysfs, mounts, read_table

SWAP = "swap space"
"""What :class:`Disks` has in place of a mount point for swap space."""

_CLASS = "/sys/class/block"


@frozen
class Disks:
    """What block devices carry, by their directories in sysfs, ``/sys/devices/…``.

    ``carried`` maps partitions, logical volumes and every device below them to the mount point that needs it
    (the shortest of several), or to :data:`SWAP`. ``is_complete`` is false if a ZFS pool is mounted, because
    it does not name its disks.
    """

    carried: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True


def disks(sysfs: Sysfs, concerns: Callable[[str], bool] = lambda point: True) -> Disks:
    """The block devices in use, down to the physical ones, including those below device mapper, md and
    bcache.

    Args:
        concerns: whether a file system at this mount point counts.
    """
    proc = f"{sysfs.prefix}/proc"
    every = [*mounts(f"{proc}/1/mountinfo")] or [*mounts(f"{proc}/self/mountinfo")]
    counted = [mount for mount in every if concerns(mount.point)]
    places: dict[tuple[str, str, str], list[str]] = {}
    found: dict[str, str] = {}
    for mount in sorted(counted, key=lambda one: (len(one.point), one.point)):
        source = (mount.number, mount.kind, mount.source)
        if source not in places:  # a kubelet mounts one file system many times
            places[source] = list(_devices(mount, sysfs))
            _note(sysfs, places[source], mount.point, found)
    swaps = (line.split()[:1] for line in read_table(f"{proc}/swaps") or ())
    _note(sysfs, [_by_node(sysfs, node) for first in swaps for node in first], SWAP, found)
    return Disks(found, not any(mount.kind == "zfs" for mount in counted))


def _note(sysfs: Sysfs, paths: Sequence[str], what: str, found: dict[str, str]) -> None:
    """Records what block devices, and all below them, carry; does not change earlier records."""
    waiting = list(paths)
    while waiting:
        path = waiting.pop()
        if path and path not in found:
            found[path] = what
            waiting += [_block(sysfs, name) for name in sysfs.names(f"{path}/slaves")]


def _devices(mount: Mount, sysfs: Sysfs) -> Iterator[str]:
    """The block devices of a file system; may yield empty paths."""
    number = sysfs.device(f"/sys/dev/block/{mount.number}")
    if number:
        yield number
        return
    # file systems on several disks have an anonymous number; their source names one disk, or all
    for source in mount.source.split(":"):
        path = _by_node(sysfs, source)
        yield path
        if mount.kind == "btrfs":
            for name in _btrfs_members(sysfs, path.rpartition("/")[2]):
                yield _block(sysfs, name)


def _btrfs_members(sysfs: Sysfs, name: str) -> Sequence[str]:
    """The disks of the btrfs that the disk ``name`` belongs to; empty if the kernel does not list them."""
    for file_system in sysfs.names("/sys/fs/btrfs"):
        members = sysfs.names(f"/sys/fs/btrfs/{file_system}/devices")
        if name in members:
            return members
    return ()


def _by_node(sysfs: Sysfs, node: str) -> str:
    if not node.startswith("/dev/"):
        return ""
    return _block(sysfs, os.path.realpath(sysfs.prefix + node).rpartition("/")[2])


def _block(sysfs: Sysfs, name: str) -> str:
    """The directory of a block device by its kernel name; empty if there is none."""
    return sysfs.device(f"{_CLASS}/{name}") if name else ""
