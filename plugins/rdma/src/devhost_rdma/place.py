"""Where an RDMA device hangs, which is what a container gets: a PCI function, a scalable function, itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from devhost.backend.model import MAX_DEVICE_ID
from devhost.backend.sysfs import BDF, DEVICES

VIRTUAL = f"{DEVICES}virtual"

_SUBFUNCTION = re.compile(r"[\w-]+\.sf\.\d+")
_FOREIGN = re.compile(r"[^A-Za-z0-9._:@+-]|^[^A-Za-z0-9]+")


class Kind(Enum):
    """What kind of thing a place is."""

    PCI = auto()
    SUBFUNCTION = auto()
    SOFTWARE = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """The thing that one or more RDMA devices are functions of.

    ``id`` names it: the PCI address, the name of the scalable function on the auxiliary bus, and for a
    software device its own name, the only thing it has that stays. ``path`` is its directory in sysfs,
    ``address`` that of the PCI function it is or lies on (empty if on none).
    """

    id: str
    kind: Kind
    path: str
    address: str = ""


def place_of(path: str, name: str, *, software: bool = False) -> Place:
    """The place of an RDMA device, or of a device of its classes such as ``uverbs0``.

    Args:
        path: the device's directory, ``/sys/devices/…/<class>/<device>``.
        name: the RDMA device's own name.
        software: whether it is known to be one whatever it hangs on (some kernels hang them below the adapter
            whose interface they use).
    """
    above = path.rpartition("/")[0].rpartition("/")[0]
    if software or above == VIRTUAL:
        return Place(name, Kind.SOFTWARE, f"{above}/infiniband/{name}")
    return place_at(above)


def place_at(path: str) -> Place:
    """The place that a directory below ``/sys/devices`` is, or lies in."""
    parts = path.split("/")
    subfunction = ""
    for count in range(len(parts), 0, -1):
        part = parts[count - 1]
        if BDF.fullmatch(part):
            if subfunction:
                return Place(subfunction.rpartition("/")[2], Kind.SUBFUNCTION, subfunction, part)
            return Place(part, Kind.PCI, "/".join(parts[:count]), part)
        if not subfunction and _SUBFUNCTION.fullmatch(part):
            subfunction = "/".join(parts[:count])
    legal = _FOREIGN.sub("-", parts[-1]).lstrip("-")[:MAX_DEVICE_ID]
    return Place(legal or "device", Kind.OTHER, path)
