"""FPGA regions and managers of the kernel's own classes that no other family lists.

Every driver in drivers/fpga of the Linux kernel creates an ``fpga_manager``. Regions (``fpga_region``) and
bridges (``fpga_bridge``) come from the device tree, or from a driver that knows its card. A device is a
region, or the whole chip if it has no region.

sysfs does not link regions to managers, but it has the device tree. The node of a region names its manager in
``fpga-mgr`` and its bridges in ``fpga-bridges``, each by the ``phandle`` of another node. A region without
``fpga-mgr`` has the manager of the region around it (Documentation/devicetree/bindings/fpga/fpga-region.yaml,
drivers/fpga/of-fpga-region.c). Without a device tree, regions and managers of the same device belong
together.

Devices below a region (uio, misc, render nodes and others) are made of its logic, so a container gets them
with the region. Nodes of flash memory are excluded, since it outlives the region. Of a DRM device with a
render node, only that node is included.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from devhost.backend import Health, claim, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import read_bytes

from . import attributes, manager_state, model
from .allocation import node_claims
from .model import DeviceKind, FpgaSysfs, Interface, Slot, Unit

MANAGERS, REGIONS, BRIDGES = "fpga_manager", "fpga_region", "fpga_bridge"
"""The three classes."""


@frozen
class Member:
    """A device of one of the classes; ``parent`` is the directory of its parent device."""

    name: str
    path: str
    parent: str


def members(sysfs: FpgaSysfs, kind: str) -> list[Member]:
    """The devices of a class that exist now. Raises ``OSError`` if it exists and cannot be listed."""
    # …/<parent>/<class>/<name>
    return [
        Member(name, path, path.removesuffix(f"/{kind}/{name}"))
        for name in sysfs.listed(f"/sys/class/{kind}")
        if (path := sysfs.device(f"/sys/class/{kind}/{name}"))
    ]


class Tree:
    """The relations between managers, regions and bridges, as they are now."""

    def __init__(self, sysfs: FpgaSysfs) -> None:
        self._sysfs = sysfs
        self.managers = members(sysfs, MANAGERS)
        self.regions = members(sysfs, REGIONS)
        self.bridges = members(sysfs, BRIDGES)
        self._by_handle: Mapping[int, Member] = self._numbered(self.managers)
        self._bridge_of: Mapping[int, Member] = self._numbered(self.bridges)

    def manager(self, region: Member) -> Member | None:
        """The manager that programs a region; ``None`` if unknown."""
        for place in (region, *self.around(region)):
            for handle in self._handles(place, "fpga-mgr"):
                if handle in self._by_handle:
                    return self._by_handle[handle]
        beside = [one for one in self.managers if _is_near(one, region)]
        if len(beside) == 1:
            return beside[0]
        return self.managers[0] if len(self.managers) == 1 and not beside and self._is_alone() else None

    def bridges_of(self, region: Member) -> list[Member]:
        """The known bridges between a region and the rest of the machine."""
        found = [
            self._bridge_of[one] for one in self._handles(region, "fpga-bridges") if one in self._bridge_of
        ]
        found += [
            one for one in self.bridges if region.path.startswith(f"{one.parent}/") and one not in found
        ]
        return found

    def around(self, region: Member) -> list[Member]:
        """The regions around a region, innermost first."""
        outer = [one for one in self.regions if one != region and region.path.startswith(f"{one.path}/")]
        return sorted(outer, key=lambda one: -len(one.path))

    def regions_of(self, manager: Member) -> list[Member]:
        return [one for one in self.regions if self.manager(one) == manager]

    def _is_alone(self) -> bool:
        """Whether the machine can have only one chip: its manager is neither on PCI nor on SPI."""
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
        """A property of the device tree: 32-bit numbers, big-endian."""
        data = read_bytes(self._sysfs.prefix + path) or b""
        return [number for (number,) in struct.iter_unpack(">I", data[: len(data) // 4 * 4])]


def _is_near(one: Member, other: Member) -> bool:
    """Whether two members have the same parent, or one has the parent of the other above it."""
    here, there = one.parent, other.parent
    return here == there or here.startswith(f"{there}/") or there.startswith(f"{here}/")


MAX_DEPTH = 8
"""Levels of directories below a region that are searched; nested drivers need five."""

MAX_DIRECTORIES = 2000
"""Limit of directories that are searched for one region."""

_SKIPPED = frozenset(
    {"power", "subsystem", "driver", "of_node", "firmware_node", "iommu", "statistics", "msi_irqs"}
)
"""Directories of a device that contain no devices."""

_PERSISTENT = frozenset({"mtd", "block", "nvmem"})
"""Subsystems of devices that outlive the region."""


def below(sysfs: FpgaSysfs, path: str, excluded: Collection[str] = ()) -> tuple[str, ...]:
    """The sysfs directories of the character devices below ``path``, in order.

    ``excluded`` directories belong to other devices, with everything below them.
    """
    found = [place for place in _walk(sysfs, path, excluded) if sysfs.exists(f"{place}/dev")]
    kept = [place for place in found if sysfs.target(f"{place}/subsystem") not in _PERSISTENT]
    computing = {place.rpartition("/")[0] for place in kept if "/drm/renderD" in place}
    return tuple(
        place for place in kept if place.rpartition("/")[0] not in computing or "/drm/renderD" in place
    )


def _walk(sysfs: FpgaSysfs, path: str, excluded: Collection[str]) -> Iterator[str]:
    waiting, looked = [(path, 0)], 0
    while waiting and looked < MAX_DIRECTORIES:
        place, depth = waiting.pop(0)
        looked += 1
        for name in sysfs.names(place):
            inner = f"{place}/{name}"
            if name in _SKIPPED or inner in excluded or sysfs.link(inner) or not sysfs.names(inner):
                continue
            yield inner
            if depth < MAX_DEPTH:
                waiting.append((inner, depth + 1))


_ILLEGAL = re.compile(r"[^A-Za-z0-9._:-]")
_MAX_NAME = 44
"""Longest name of a device that an id contains unchanged; longer ones are cut and end in a hash."""

_VENDORS = (
    (re.compile(r"xilinx|zynq|versal", re.I), attributes.XILINX),
    (re.compile(r"altera|intel|stratix|arria|cyclone|socfpga|dfl", re.I), attributes.INTEL),
)
"""The vendor of the chip, by the name of its manager."""

NOTHING = (
    "it has no device node for a container: the programmed logic needs a driver that creates one, such as "
    "uio, and a device tree overlay that names the driver"
)


@frozen
class _Last:
    """The result of the previous scan of the same hardware."""

    health: Health
    interface_id: str


class Managers:
    """Finds regions and managers. Keeps the last health of a chip while it is programmed."""

    _tree: Tree  # of the current scan, as is what it finds
    _now: dict[manager_state.Identity, _Last]

    def __init__(self, sysfs: FpgaSysfs) -> None:
        self._sysfs = sysfs
        self._taken: Collection[str] = ()
        self._last: Mapping[manager_state.Identity, _Last] = {}

    def exclude(self, taken: Collection[str]) -> None:
        """Sets the directories in sysfs that belong to other families."""
        self._taken = taken

    def scan(self) -> Iterable[Unit]:
        """The units that exist now."""
        self._tree, self._now = Tree(self._sysfs), {}
        units = list(self._units())
        self._last = self._now
        return units

    def _units(self) -> Iterator[Unit]:
        """The regions, then the managers without regions."""
        names = self._names()
        for region in self._tree.regions:
            if not self._is_taken(region):
                yield self._region(region, names)
        for manager in self._tree.managers:
            if not self._is_taken(manager) and not self._tree.regions_of(manager):
                yield self._unit(
                    DeviceKind.CARD, manager, manager, _id(manager.parent.rpartition("/")[2], "")
                )

    def _names(self) -> dict[Member, str]:
        """Ids of all regions, from the names of their parents: kernel numbers change from boot to boot.

        Regions with a common parent differ only in those numbers: see :meth:`_indistinct`.
        """
        return {
            region: _id(
                region.parent.rpartition("/")[2],
                f"-{region.name}" if self._indistinct(region) else "-region",
            )
            for region in self._tree.regions
        }

    def _indistinct(self, region: Member) -> str | None:
        """Why a region must not be offered: no permanent property distinguishes it from another."""
        others = [one.name for one in self._tree.regions if one.parent == region.parent and one != region]
        return f"no permanent name in sysfs distinguishes it from {' and '.join(others)}" if others else None

    def _region(self, region: Member, names: Mapping[Member, str]) -> Unit:
        outer = frozenset(claim.fpga(names[one]) for one in self._tree.around(region))
        return self._unit(DeviceKind.REGION, region, self._tree.manager(region), names[region], outer)

    def _unit(
        self,
        kind: DeviceKind,
        member: Member,
        manager: Member | None,
        name: str,
        outer: frozenset[str] = frozenset(),
    ) -> Unit:
        sysfs, place = self._sysfs, model.place(self._sysfs, member.parent)
        identity = manager_state.identity(sysfs, member.path)
        last = self._last.get(identity)
        state = manager_state.manager(sysfs, manager.path) if manager else manager_state.Manager()
        interface_id, flaw = self._interface(member, last)
        slots = self._slots(manager, interface_id)
        verdict = self._judge(member, manager, state, bool(slots), last)
        health = unhealthy(model.LOST) if place.function and sysfs.is_dead(place.path) else verdict.health
        if health.healthy and flaw:
            health = unhealthy(flaw)
        self._now[identity] = _Last(health, interface_id)
        nodes = below(sysfs, member.parent, self._excluded(member))
        title = sysfs.text(f"{manager.path}/name") if manager else ""
        facts = {
            "vendor": next(
                (vendor for pattern, vendor in _VENDORS if pattern.search(title)), attributes.OTHER
            ),
            "kind": str(kind),
            "manager": title,
            "managerState": state.state,
            "regionState": verdict.region_state,
            "interfaceId": interface_id,
        }
        if not place.function:
            facts["driver"] = sysfs.target(f"{member.parent}/driver")
        claims = {claim.fpga(name), *node_claims(sysfs, nodes)}
        withheld = self._indistinct(member) or (None if nodes or slots else NOTHING)
        device = attributes.device(
            place, facts, frozenset(claims), health, name=name, outer=outer, withheld=withheld
        )
        watched = (*state.files, *(f"{one.path}/state" for one in self._bridges(member)))
        return Unit(device, nodes, slots=slots, watched=watched, is_busy=verdict.is_busy)

    def _judge(
        self,
        member: Member,
        manager: Member | None,
        state: manager_state.Manager,
        can_program: bool,
        last: _Last | None,
    ) -> manager_state.ManagerHealth:
        if manager is None:
            return manager_state.ManagerHealth(
                unhealthy("sysfs does not show which FPGA manager programs it"), attributes.FAILED
            )
        verdict = manager_state.judge(state, can_program=can_program, last=last.health if last else None)
        if verdict.is_busy or not verdict.health.healthy:
            return verdict
        for bridge in self._bridges(member):
            if self._sysfs.text(f"{bridge.path}/state") == "disabled":
                title = self._sysfs.text(f"{bridge.path}/name") or bridge.name
                reason = f"its bridge {title} ({bridge.name}) is disabled, so its logic cannot be reached"
                return manager_state.ManagerHealth(unhealthy(reason), attributes.FAILED)
        return verdict

    def _interface(self, member: Member, last: _Last | None) -> tuple[str, str]:
        """The region's ``compat_id``, and what is wrong with it. Most regions have none."""
        reading = self._sysfs.reading(f"{member.path}/compat_id")
        if reading.is_busy and last:
            return last.interface_id, ""
        if reading.is_absent or reading.is_busy:
            return "", ""
        return reading.id, "" if reading.id else reading.flaw("its compat_id")

    def _slots(self, manager: Member | None, interface_id: str) -> tuple[Slot, ...]:
        """The slot of a manager with a ``firmware`` file, which only Xilinx kernels have."""
        if manager is None or not self._sysfs.exists(f"{manager.path}/firmware"):
            return ()
        return (Slot(Interface.FIRMWARE, manager.path, interface_id=interface_id),)

    def _bridges(self, member: Member) -> list[Member]:
        return self._tree.bridges_of(member) if member in self._tree.regions else []

    def _excluded(self, member: Member) -> frozenset[str]:
        """Directories below the same device that belong to other regions or other families."""
        others = {one.path for one in (*self._tree.regions, *self._tree.managers) if one != member}
        inner = {one.parent for one in self._tree.regions if one.parent.startswith(f"{member.parent}/")}
        return frozenset(others | inner | set(self._taken))

    def _is_taken(self, member: Member) -> bool:
        return any(member.path == one or member.path.startswith(f"{one}/") for one in self._taken)


def _id(name: str, suffix: str) -> str:
    """An id from the name of the parent device."""
    legal = _ILLEGAL.sub("_", name).strip("._:-") or "fpga"
    if len(legal) > _MAX_NAME or legal != name:
        digest = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
        legal = f"{legal[: _MAX_NAME - 9]}-{digest}"
    return legal + suffix
