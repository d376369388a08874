"""Decides whether two paths of generic-device-plugin may lead to one device node. Pure: opens no file.

The plugin lets any number of its devices have one node; devhost allows this only with ``shared``. In doubt
the answer is yes, which keeps what the plugin does.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import product

_LINKS = {
    "serial": ("/dev/tty*",),
    "v4l": ("/dev/v*", "/dev/media*", "/dev/radio*"),
    **{name: (f"/dev/{name}/*",) for name in ("dri", "input", "snd")},
}
"""The nodes to which the links lead that udev's standard rules create in ``/dev/<key>/by-…/``."""

_LINK = re.compile(r"(/dev/([^/]+)/by-[^/]+/)[^/]*")
_DISK = re.compile(r"(?:.*/)?(sd|vd|xvd|hd|sr|nvme|mmcblk|loop|nbd|md|dm-)[^/]*")
"""Paths of disks. A disk is not offered together with its partitions."""

_OWN_LINK = re.compile(
    r"/dev/(?!(fuse|kfd|kvm|ppp|rfkill|snd|uhid|uinput|userfaultfd|vhost-net|vhost-vsock|vsock)$)"
    r"[A-Za-z][A-Za-z_-]*"
)
"""Paths without a number in the name, which look like links from a custom udev rule."""

_ANY = re.compile(r"[*?\[]")


def may_be_one(one: str, other: str) -> bool:
    """Whether both globs may match the same node, or a disk and one of its partitions."""
    directory, own_link, is_glob, reach = _facts(one)
    another, is_own_link, is_another_glob, reached = _facts(other)
    if directory and directory == another:
        return _meet(reach[0], reached[0])
    if (own_link and is_another_glob) or (is_own_link and is_glob):
        return True
    return any(_meet(a, b) for a, b in product(reach, reached))


def has_parts(path: str) -> bool:
    """Whether a glob may match a disk as well as its partitions."""
    return bool(_ANY.search(path) and _DISK.fullmatch(path))


@lru_cache(maxsize=1 << 16)
def _facts(path: str) -> tuple[str, bool, bool, tuple[tuple[str, str], ...]]:
    """The directory of a standard link, whether it may be another link, whether it is a glob in ``/dev``,
    and the path itself with the nodes to which a link or a disk leads, each with its start."""
    link = _LINK.fullmatch(path)
    further = _LINKS.get(link[2], ("/dev/*",)) if link else (f"{path}*",) if _DISK.fullmatch(path) else ()
    is_glob = path.count("/") == 2 and _ANY.search(path) is not None
    reach = tuple((one, _ANY.split(one, maxsplit=1)[0]) for one in (path, *further))
    return link[1] if link else "", _OWN_LINK.fullmatch(path) is not None, is_glob, reach


def _meet(a: tuple[str, str], b: tuple[str, str]) -> bool:
    """Whether a path may match both. A path may be a directory, which means everything below it."""
    (one, start), (other, another) = a, b
    # of thousands of paths few begin alike, and comparing starts is fast
    if not (start.startswith(another) or another.startswith(start)):
        return False
    if start != one:  # a glob
        return another != other or _meet(b, a)
    return fnmatchcase(one, other) or fnmatchcase(one, f"{other}/*") or other.startswith(f"{one}/")
