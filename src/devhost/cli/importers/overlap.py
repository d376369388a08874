"""Decides which selections of a plugin's resources may lead to one device node. Pure: opens no file.

generic-device-plugin, smarter-device-manager and Akri let any number of resources have one node; devhost
allows this only with ``shared``. In doubt the answer is yes, which keeps what the plugin does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import combinations, product

from .writing import Block, Written

USB = "/dev/bus/usb"
"""The directory with the nodes of whole USB devices."""

DIRECTORIES = frozenset(
    {"accel", "block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "dsa", "dvb", "iax"}
    | {"infiniband", "input", "mapper", "net", "serial", "snd", "usb", "v4l", "vfio", "vhost", "vg"}
)
"""Names below ``/dev`` that are always directories."""

_LINKS = {
    "serial": ("/dev/tty*",),
    "v4l": ("/dev/v*", "/dev/media*", "/dev/radio*"),
    **{name: (f"/dev/{name}/*",) for name in ("dri", "input", "snd")},
}
"""The nodes to which the links lead that udev's standard rules create in ``/dev/<key>/by-…/``."""

_LINK = re.compile(r"(/dev/([^/]+)/by-[^/]+/)[^/]*")
_DISKS = ("sd", "vd", "xvd", "hd", "sr", "nvme", "mmcblk", "loop", "nbd", "md", "dm-")
_DISK = re.compile(rf"(?:.*/)?({'|'.join(_DISKS)})[^/]*")
"""Paths of disks. A disk is not offered together with its partitions."""

_OF_KERNEL = DIRECTORIES | {
    *("fuse", "gpiomem", "hwrng", "kfd", "kvm", "loop-control", "nitro_enclaves", "ppp", "rfkill", "uhid"),
    *("uinput", "userfaultfd", "vchiq", "vcio", "vcsm-cma", "vhost-net", "vhost-vsock", "vsock", "watchdog"),
}
_OWN_LINK = re.compile(rf"/dev/(?!({'|'.join(_OF_KERNEL)})$)[A-Za-z][A-Za-z_-]*")
"""Paths without a number in the name, which look like links from a custom udev rule."""

_NUMBERED = re.compile(r"/dev/[^/]*[*?\[0-9][^/]*")
"""Nodes to which such links lead."""

_ANY = re.compile(r"[*?\[]")

_WHOLE: Sequence[Block] = [
    *({"subsystem": "usb", "devType": "usb_device", "sysName": f"{n}*"} for n in (*range(1, 10), "usb")),
    *({"subsystem": "block", "devType": "disk", "sysName": f"{name}*"} for name in _DISKS),
]
"""Devices with parts that are devices: USB devices with their serial ports, disks with partitions."""


def shared(paths: Sequence[str], apart: Callable[[int, int], bool]) -> set[int]:
    """The numbers of those globs that may match what another one matches, or the whole or a part of it.

    Args:
        paths: the globs; :data:`USB` for one of a USB device.
        apart: whether two of them, by their numbers, are for different nodes although the globs may meet.
    """
    found = {n for n, path in enumerate(paths) if _ANY.search(path) and _DISK.fullmatch(path)}
    for (n, one), (m, other) in combinations(enumerate(paths), 2):
        if may_be_one(one, other) and not apart(n, m):
            found |= {n, m}
    # a path does not show which USB device a serial port or a camera belongs to
    whole = {n for n, path in enumerate(paths) if may_be_one(path, USB)}
    return found | whole if len(whole) < len(paths) else found


def shared_blocks(selections: Sequence[Sequence[Block]]) -> set[int]:
    """The same for selections by blocks of ``where``."""
    return {
        n
        for n, mine in enumerate(selections)
        for others in (_WHOLE, *(each for m, each in enumerate(selections) if m != n))
        if any(_may_select_one(a, b) for a, b in product(mine, others))
    }


def _may_select_one(one: Block, other: Block) -> bool:
    keys = (one.keys() & other.keys()) - {"not"}
    return all(any(_meet(a, b) for a, b in product(_texts(one[key]), _texts(other[key]))) for key in keys)


def _texts(value: Written) -> list[tuple[str, str]]:
    values = [value] if isinstance(value, (str, int)) else [*value]
    return [(text, _start(text)) for text in (str(one).lower() for one in values)]


def may_be_one(one: str, other: str) -> bool:
    """Whether both globs may match the same node, or a disk and one of its partitions."""
    directory, own_link, reach = _facts(one)
    another, is_own_link, reached = _facts(other)
    if directory and directory == another:
        return _meet(reach[0], reached[0])
    if (own_link and _NUMBERED.fullmatch(other)) or (is_own_link and _NUMBERED.fullmatch(one)):
        return True
    return any(_meet(a, b) for a, b in product(reach, reached))


def may_be_link(path: str) -> bool:
    """Whether a path looks like a link from a custom udev rule."""
    return _facts(path)[1]


@lru_cache(maxsize=1 << 16)
def _facts(path: str) -> tuple[str, bool, tuple[tuple[str, str], ...]]:
    """The directory of a standard link, whether it may be another link, and the path itself with the nodes to
    which a link or a disk leads, each with its start."""
    link = _LINK.fullmatch(path)
    further = _LINKS.get(link[2], ("/dev/*",)) if link else (f"{path}*",) if _DISK.fullmatch(path) else ()
    reach = tuple((one, _start(one)) for one in (path, *further))
    return link[1] if link else "", _OWN_LINK.fullmatch(path) is not None, reach


def _start(glob: str) -> str:
    return _ANY.split(glob, maxsplit=1)[0]


def _meet(a: tuple[str, str], b: tuple[str, str]) -> bool:
    """Whether a path may match both. A path may be a directory, which means everything below it."""
    (one, start), (other, another) = a, b
    # of thousands of paths few begin alike, and comparing starts is fast
    if not (start.startswith(another) or another.startswith(start)):
        return False
    if start != one:  # a glob
        return another != other or _meet(b, a)
    return fnmatchcase(one, other) or fnmatchcase(one, f"{other}/*") or other.startswith(f"{one}/")
