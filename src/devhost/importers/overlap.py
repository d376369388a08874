"""Whether two paths of generic-device-plugin may lead to one device node. Pure: no file is looked at.

The plugin lets any number of its devices have one node, and devhost only those that say ``shared``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product

_DISKS = ("sd", "vd", "xvd", "hd", "sr", "nvme", "mmcblk", "loop", "nbd", "md", "dm-")
_LINKS = {
    "serial": ("/dev/tty*",),
    "v4l": ("/dev/video*", "/dev/media*", "/dev/radio*", "/dev/vbi*", "/dev/v4l-*"),
    "snd": ("/dev/snd/*",),
    "input": ("/dev/input/*",),
    "dri": ("/dev/dri/*",),
    "disk": tuple(f"/dev/{name}*" for name in _DISKS),
}
"""What the links lead to that udev's own rules make in ``/dev/<key>/by-…/``."""

_DISK = re.compile(f"({'|'.join(_DISKS)})[^/]*")
"""How nodes of disks are called. A disk is not offered beside its partitions."""

_OWN = frozenset(
    {
        "fuse",
        "kfd",
        "kvm",
        "ppp",
        "rfkill",
        "uhid",
        "uinput",
        "userfaultfd",
        "vhost-net",
        "vhost-vsock",
        "vsock",
    }
)
"""Nodes whose names have no number, and that no rule of udev's is likely to give to a link."""

_ANY = frozenset({"*", "?", "["})
_SIGN = re.compile(r"\[[^\]]*\]|.", re.DOTALL)


def may_be_one(one: str, other: str) -> bool:
    """Whether a node, or a disk and a part of it, may be among what both globs mean."""
    if _link_directory(one) and _link_directory(one) == _link_directory(other):
        return _meet(one.split("/"), other.split("/"))
    if _own_link(one, other) or _own_link(other, one):
        return True
    return any(_meet(a.split("/"), b.split("/")) for a, b in product(_reach(one), _reach(other)))


def has_parts(path: str) -> bool:
    """Whether a glob may mean a disk as well as its partitions."""
    return bool(_ANY & set(path) and _DISK.fullmatch(path.rpartition("/")[2]))


def _own_link(one: str, other: str) -> bool:
    """Whether ``one`` looks like a link by a rule of the node's owner, and may lead to a match of a glob."""
    name = one.removeprefix("/dev/")
    plain = re.fullmatch(r"[A-Za-z][A-Za-z_-]*", name) is not None and name not in _OWN
    return plain and re.fullmatch(r"/dev/[^/]*[*?\[][^/]*", other) is not None


def _reach(path: str) -> list[str]:
    """The path, and what a link at it or a disk leads to."""
    found = [path]
    if directory := _link_directory(path):
        found += _LINKS.get(directory.split("/")[2], ("/dev/*",))
    elif _DISK.fullmatch(path.rpartition("/")[2]):
        found.append(path + "*")
    return found


def _link_directory(path: str) -> str:
    """The directory of a link that udev made to a node; empty for other paths."""
    directory = path.rpartition("/")[0]
    return directory if re.fullmatch(r"/dev/[^/]+/by-[^/]+", directory) else ""


def _meet(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two globs meet, step by step; the shorter may be a directory, which means all below it."""
    return all(_step(a, b) for a, b in zip(one, other, strict=False))


def _step(one: str, other: str) -> bool:
    """Whether a name exists that both match; a set of signs counts as any sign."""
    if not (_ANY & set(one) or _ANY & set(other)):
        return one == other
    signs, others = _SIGN.findall(one), _SIGN.findall(other)
    # row[j]: whether what was read of `one` and the first j signs of `other` have a name in common
    row = [True] + [False] * len(others)
    for j, sign in enumerate(others):
        row[j + 1] = row[j] and sign == "*"
    for mine in signs:
        below = [row[0] and mine == "*"]
        for j, sign in enumerate(others):
            alike = row[j] and (mine == sign or mine[0] in "?[" or sign[0] in "?[")
            through = (mine == "*" and (row[j + 1] or below[j])) or (sign == "*" and (below[j] or row[j + 1]))
            below.append(alike or through)
        row = below
    return row[-1]
