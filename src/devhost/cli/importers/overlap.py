"""Decides whether two paths of generic-device-plugin may lead to one device node. Pure: opens no file.

The plugin lets any number of its devices have one node; devhost allows this only with ``shared``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
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
"""The nodes to which the links lead that udev's standard rules create in ``/dev/<key>/by-…/``."""

_DISK = re.compile(f"({'|'.join(_DISKS)})[^/]*")
"""The names of disk nodes. A disk is not offered together with its partitions."""

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
"""Nodes without a number in the name, to which no udev rule is likely to create a link."""

_ANY = frozenset({"*", "?", "["})
_SIGN = re.compile(r"\[[^\]]*\]|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Glob:
    """A path in parts, and its prefix before the first wildcard."""

    steps: tuple[str, ...]
    literal: str

    def meets(self, other: _Glob) -> bool:
        """Whether a path matches both. The shorter may be a directory, which means everything below it."""
        # of thousands of paths few begin alike, and comparing prefixes is fast
        if not (self.literal.startswith(other.literal) or other.literal.startswith(self.literal)):
            return False
        return all(_step(a, b) for a, b in zip(self.steps, other.steps, strict=False))


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the name of a path reveals.

    ``link_directory`` is the directory of a link that udev created; empty for other paths. ``own_link`` is
    whether it looks like a link from a custom udev rule, ``in_dev`` whether it is a glob of names in
    ``/dev``. ``reach`` is the path itself, and the nodes to which a link at it or a disk leads.
    """

    itself: _Glob
    link_directory: str
    own_link: bool
    in_dev: bool
    reach: tuple[_Glob, ...]


@lru_cache(maxsize=1 << 16)
def _facts(path: str) -> _Facts:
    directory, _, name = path.rpartition("/")
    of_link = directory if re.fullmatch(r"/dev/[^/]+/by-[^/]+", directory) else ""
    further: tuple[str, ...] = ()
    if of_link:
        further = _LINKS.get(directory.split("/")[2], ("/dev/*",))
    elif _DISK.fullmatch(name):
        further = (path + "*",)
    plain = re.fullmatch(r"[A-Za-z][A-Za-z_-]*", name) is not None
    return _Facts(
        _glob(path),
        of_link,
        directory == "/dev" and plain and name not in _OWN,
        directory == "/dev" and bool(_ANY & set(name)),
        tuple(map(_glob, (path, *further))),
    )


def _glob(path: str) -> _Glob:
    return _Glob(tuple(path.split("/")), re.split(r"[*?\[]", path, maxsplit=1)[0])


def may_be_one(one: str, other: str) -> bool:
    """Whether both globs may match the same node, or a disk and one of its partitions."""
    a, b = _facts(one), _facts(other)
    if a.link_directory and a.link_directory == b.link_directory:
        return a.itself.meets(b.itself)
    if (a.own_link and b.in_dev) or (b.own_link and a.in_dev):
        return True
    return any(mine.meets(others) for mine, others in product(a.reach, b.reach))


def has_parts(path: str) -> bool:
    """Whether a glob may match a disk as well as its partitions."""
    return bool(_ANY & set(path) and _DISK.fullmatch(path.rpartition("/")[2]))


def _step(one: str, other: str) -> bool:
    """Whether a name exists that both match; a character class counts as any character."""
    if not (_ANY & set(one) or _ANY & set(other)):
        return one == other
    signs, others = _SIGN.findall(one), _SIGN.findall(other)
    # row[j]: whether the part of `one` read so far and the first j characters of `other` can match the same
    # name
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
