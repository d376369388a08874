"""Decides which selections of a plugin's resources may lead to one device node.

Some plugins let any number of resources have one node; devhost allows this only with ``shared``. In doubt the
answer is yes, which keeps what the plugin does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain, combinations, product

from .writing import Block, Written

USB = "/dev/bus/usb"  # the directory with the nodes of whole USB devices
DIRECTORIES = frozenset({  # names below /dev that are always directories
    "accel", "block", "bsg", "bus", "char", "cpu", "disk", "dma_heap", "dri", "dsa", "dvb", "iax",
    "infiniband", "input", "mapper", "net", "serial", "snd", "usb", "v4l", "vfio", "vhost", "vg",
})  # fmt: skip
_OF_KERNEL = DIRECTORIES | {
    "fuse", "gpiomem", "hwrng", "kfd", "kvm", "loop-control", "nitro_enclaves", "ppp", "rfkill", "uhid",
    "uinput", "userfaultfd", "vchiq", "vcio", "vcsm-cma", "vhost-net", "vhost-vsock", "vsock", "watchdog",
}  # fmt: skip
_LINK = re.compile(r"(/dev/([^/]+)/by-[^/]+/)[^/]*")  # of udev's standard rules, and where such links lead:
_LINKS = {
    "serial": ["/dev/tty*"],
    "v4l": ["/dev/v*", "/dev/media*", "/dev/radio*"],
    **{name: [f"/dev/{name}/*"] for name in ("dri", "input", "snd")},
}
# a name without a number looks like a link from a custom udev rule, which leads to a node with one
_OWN_LINK = re.compile(rf"/dev/(?!({'|'.join(_OF_KERNEL)})$)[A-Za-z][A-Za-z_-]*")
_NUMBERED = re.compile(r"/dev/[^/]*[*?\[0-9][^/]*")
_DISKS = ("sd", "vd", "xvd", "hd", "sr", "nvme", "mmcblk", "loop", "nbd", "md", "dm-")
_DISK = re.compile(rf"(?:.*/)?({'|'.join(_DISKS)})[^/]*")  # not offered together with its partitions
_ANY = re.compile(r"[*?\[]")

# devices with parts that are devices: USB devices with their serial ports, disks with partitions
_WHOLE: Sequence[Block] = [
    *({"subsystem": "usb", "devType": "usb_device", "sysName": f"{n}*"} for n in (*range(1, 10), "usb")),
    *({"subsystem": "block", "devType": "disk", "sysName": f"{name}*"} for name in _DISKS),
]


def shared(paths: Sequence[str], apart: Callable[[int, int], bool]) -> set[int]:
    """The numbers of those globs that may match what another one matches, or the whole or a part of it. A USB
    device has :data:`USB`. ``apart``: whether two of them are for different nodes although they may meet."""
    found = {n for n, path in enumerate(paths) if _ANY.search(path) and _DISK.fullmatch(path)}
    for (n, one), (m, other) in combinations(enumerate(paths), 2):
        if may_be_one(one, other) and not apart(n, m):
            found |= {n, m}
    # a path does not show which USB device a serial port or a camera belongs to
    whole = {n for n, path in enumerate(paths) if may_be_one(path, USB)}
    return found | whole if len(whole) < len(paths) else found


def shared_blocks(selections: Sequence[Sequence[Block]]) -> set[int]:
    """The same for selections by blocks of ``where``."""
    found = set()
    for n, mine in enumerate(selections):
        others = chain(_WHOLE, *selections[:n], *selections[n + 1 :])
        found |= {n} if any(_may_select_one(a, b) for a, b in product(mine, others)) else set()
    return found


def _may_select_one(one: Block, other: Block) -> bool:
    keys = (one.keys() & other.keys()) - {"not"}
    return all(any(_meet(a, b) for a, b in product(_texts(one[key]), _texts(other[key]))) for key in keys)


def _texts(value: Written) -> list[str]:
    return [str(one).lower() for one in ([value] if isinstance(value, (str, int)) else value)]


def may_be_one(one: str, other: str) -> bool:
    """Whether both globs may match the same node, or a disk and one of its partitions."""
    directory, reach = _reach(one)
    another, reached = _reach(other)
    if directory and directory == another:
        return _meet(one, other)
    if any(may_be_link(a) and _NUMBERED.fullmatch(b) for a, b in ((one, other), (other, one))):
        return True
    return any(_meet(a, b) for a, b in product(reach, reached))


def may_be_link(path: str) -> bool:
    return _OWN_LINK.fullmatch(path) is not None


@lru_cache(maxsize=1 << 16)
def _reach(path: str) -> tuple[str, Sequence[str]]:
    """The directory of a standard link, and the path itself with the nodes to which it or a disk leads."""
    if link := _LINK.fullmatch(path):
        return link[1], [path, *_LINKS.get(link[2], ["/dev/*"])]
    return "", [path, f"{path}*"] if _DISK.fullmatch(path) else [path]


@lru_cache(maxsize=1 << 16)
def _start(glob: str) -> str:
    return _ANY.split(glob, maxsplit=1)[0]


def _meet(one: str, other: str) -> bool:
    """Whether a path may match both. A path may be a directory, which means everything below it."""
    start, another = _start(one), _start(other)
    # of thousands of paths few begin alike, and comparing starts is fast
    if not (start.startswith(another) or another.startswith(start)):
        return False
    if start != one:  # a glob
        return another != other or _meet(other, one)
    return fnmatchcase(one, other) or fnmatchcase(one, f"{other}/*") or other.startswith(f"{one}/")
