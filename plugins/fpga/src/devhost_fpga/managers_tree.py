"""Who belongs to whom among the kernel's FPGA classes: the manager and the bridges of a region.

The kernel keeps this to itself, but the device tree says it, and sysfs has the device tree: a region's node
names its manager as ``fpga-mgr`` and its bridges as ``fpga-bridges``, each by the number (``phandle``) of
another node; a region that names none has the manager of the region it lies in
(Documentation/devicetree/bindings/fpga/fpga-region.yaml, drivers/fpga/of-fpga-region.c of the Linux kernel).
Without a device tree, what hangs on the same device belongs together.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from devhost.backend.sysfs import Sysfs, read_bytes

MANAGERS, REGIONS, BRIDGES = "fpga_manager", "fpga_region", "fpga_bridge"
"""The three classes."""


@dataclass(frozen=True, slots=True)
class Member:
    """A device of one of the classes; ``parent`` is the directory of what it hangs on."""

    name: str
    path: str
    parent: str


def members(sysfs: Sysfs, kind: str) -> list[Member]:
    """The devices of a class that exist now.

    Raises:
        OSError: the class is there and cannot be listed.
    """
    # …/<parent>/<class>/<name>
    return [
        Member(name, path, path.removesuffix(f"/{kind}/{name}"))
        for name in sysfs.listed(f"/sys/class/{kind}")
        if (path := sysfs.device(f"/sys/class/{kind}/{name}"))
    ]


class Tree:
    """The links between the members of one machine, as they are now."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self.managers = members(sysfs, MANAGERS)
        self.regions = members(sysfs, REGIONS)
        self.bridges = members(sysfs, BRIDGES)
        self._by_handle: Mapping[int, Member] = self._numbered(self.managers)
        self._bridge_of: Mapping[int, Member] = self._numbered(self.bridges)

    def manager(self, region: Member) -> Member | None:
        """The manager that programs a region; ``None`` where nothing tells."""
        for place in (region, *self.around(region)):
            for handle in self._handles(place, "fpga-mgr"):
                if handle in self._by_handle:
                    return self._by_handle[handle]
        beside = [one for one in self.managers if _is_near(one, region)]
        if len(beside) == 1:
            return beside[0]
        return self.managers[0] if len(self.managers) == 1 and not beside and self._is_alone() else None

    def bridges_of(self, region: Member) -> list[Member]:
        """The bridges between a region and the rest of the machine, as far as something tells."""
        found = [
            self._bridge_of[one] for one in self._handles(region, "fpga-bridges") if one in self._bridge_of
        ]
        found += [
            one for one in self.bridges if region.path.startswith(f"{one.parent}/") and one not in found
        ]
        return found

    def around(self, region: Member) -> list[Member]:
        """The regions that a region lies in, the nearest first."""
        outer = [one for one in self.regions if one != region and region.path.startswith(f"{one.path}/")]
        return sorted(outer, key=lambda one: -len(one.path))

    def regions_of(self, manager: Member) -> list[Member]:
        """The regions that a manager programs."""
        return [one for one in self.regions if self.manager(one) == manager]

    def _is_alone(self) -> bool:
        """Whether the machine has one chip only: without PCI or SPI, whatever is programmed is that."""
        return self.managers[0].path.startswith(("/sys/devices/platform/", "/sys/devices/soc"))

    def _numbered(self, found: Sequence[Member]) -> dict[int, Member]:
        numbers: dict[int, Member] = {}
        for member in found:
            for place in (member.path, member.parent):
                for word in ("phandle", "linux,phandle"):
                    for handle in self._words(f"{place}/of_node/{word}"):
                        numbers.setdefault(handle, member)
        return numbers

    def _handles(self, member: Member, word: str) -> list[int]:
        for place in (member.path, member.parent):
            if handles := self._words(f"{place}/of_node/{word}"):
                return handles
        return []

    def _words(self, path: str) -> list[int]:
        """A property of the device tree: numbers of 32 bits, the high byte first."""
        data = read_bytes(self._sysfs.prefix + path) or b""
        return [number for (number,) in struct.iter_unpack(">I", data[: len(data) // 4 * 4])]


def _is_near(one: Member, other: Member) -> bool:
    """Whether two members hang on one device, or one on what the other hangs on."""
    here, there = one.parent, other.parent
    return here == there or here.startswith(f"{there}/") or there.startswith(f"{here}/")
