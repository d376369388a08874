"""What the kernel's own FPGA classes know of chips that no other family speaks of.

altera-cvp, socfpga, ice40-spi, machxo2-spi, xilinx-spi, zynq-fpga, versal-fpga and every other driver of
drivers/fpga in the Linux kernel: each makes an ``fpga_manager``; regions (``fpga_region``) and bridges
(``fpga_bridge``) come from the device tree, or from a driver that knows its card. A device is a region, and
the whole chip where there is none.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from devhost.backend import Device, Health, unhealthy
from devhost.backend.sysfs import Sysfs

from . import attributes, busy, ids, managers_nodes, managers_state, pci
from .managers_tree import Member, Tree
from .nodes import node_claims
from .unit import Interface, Kind, Slot, Unit

_STRANGE = re.compile(r"[^A-Za-z0-9._:-]")
_LONGEST = 44
"""Characters of a device's name that go into an id whole; longer ones are cut and end in a hash."""

_VENDORS = (
    (re.compile(r"xilinx|zynq|versal", re.I), attributes.XILINX),
    (re.compile(r"altera|intel|stratix|arria|cyclone|socfpga|dfl", re.I), attributes.INTEL),
)
"""Whose chip a manager programs, by the name its driver gives it."""

NOTHING = (
    "there is no device node below it that a container could be given: what is programmed needs a driver "
    "with one (uio, for example), and an overlay of the device tree that names it"
)


@dataclass(frozen=True, slots=True)
class _Last:
    """What was found the last time, for as long as the same hardware stays."""

    health: Health
    interface_id: str


class Managers:
    """Finds regions and managers. Remembers the last verdict: while a chip is reconfigured it stays."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._last: Mapping[busy.Identity, _Last] = {}

    def scan(self, taken: Collection[str] = ()) -> Iterable[Unit]:
        """The units that exist now.

        Args:
            taken: directories in sysfs of what other families list; what lies in them is theirs.

        Raises:
            OSError: a class cannot be listed, so that nobody takes silence for absence.
        """
        look = _Look(self._sysfs, Tree(self._sysfs), tuple(taken), self._last)
        units = list(look.units())
        self._last = look.now
        return units


class _Look:
    """One look at all of them."""

    def __init__(
        self, sysfs: Sysfs, tree: Tree, taken: tuple[str, ...], last: Mapping[busy.Identity, _Last]
    ) -> None:
        self._sysfs = sysfs
        self._tree = tree
        self._taken = taken
        self._last = last
        self.now: dict[busy.Identity, _Last] = {}

    def units(self) -> Iterator[Unit]:
        """The regions, then the managers that have none."""
        names = self._names()
        for region in self._tree.regions:
            if not self._is_taken(region):
                yield self._region(region, names)
        for manager in self._tree.managers:
            if not self._is_taken(manager) and not self._tree.regions_of(manager):
                yield self._unit(Kind.CARD, manager, manager, _id(manager.parent.rpartition("/")[2], ""))

    def _names(self) -> dict[Member, str]:
        """Ids of all regions, by what they hang on: the kernel's own numbers differ from boot to boot.

        Where several hang on one device, only those numbers tell them apart: see :meth:`_indistinct`.
        """
        return {
            region: _id(
                region.parent.rpartition("/")[2],
                f"-{region.name}" if self._indistinct(region) else "-region",
            )
            for region in self._tree.regions
        }

    def _indistinct(self, region: Member) -> str:
        """Why a region must not be offered: nothing in sysfs tells it from another for good."""
        others = [one.name for one in self._tree.regions if one.parent == region.parent and one != region]
        return f"nothing in sysfs tells it from {' and '.join(others)} for good" if others else ""

    def _region(self, region: Member, names: Mapping[Member, str]) -> Unit:
        outer = frozenset(f"fpga:{names[one]}" for one in self._tree.around(region))
        return self._unit(Kind.REGION, region, self._tree.manager(region), names[region], outer)

    def _unit(
        self,
        kind: Kind,
        member: Member,
        manager: Member | None,
        name: str,
        outer: frozenset[str] = frozenset(),
    ) -> Unit:
        sysfs, place = self._sysfs, pci.place(self._sysfs, member.parent)
        identity = busy.identity(sysfs, member.path)
        last = self._last.get(identity)
        state = busy.manager(sysfs, manager.path) if manager else busy.Manager()
        interface_id, flaw = self._interface(member, last)
        slots = self._slots(manager, interface_id)
        verdict = self._judge(member, manager, state, bool(slots), last)
        health = unhealthy(pci.LOST) if place.function and sysfs.is_dead(place.path) else verdict.health
        if health.healthy and flaw:
            health = unhealthy(flaw)
        self.now[identity] = _Last(health, interface_id)
        nodes = managers_nodes.below(sysfs, member.parent, self._apart(member))
        title = sysfs.text(f"{manager.path}/name") if manager else ""
        facts = {
            "vendor": next(
                (vendor for pattern, vendor in _VENDORS if pattern.search(title)), attributes.OTHER
            ),
            "kind": str(kind),
            "manager": title,
            "managerState": state.state,
            "regionState": verdict.word,
            "interfaceId": interface_id,
            "numaNode": place.numa_node,
        }
        hardware = attributes.of_pci(place.function)
        if not place.function:
            hardware = {"driver": sysfs.target(f"{member.parent}/driver")}
        claims = {f"fpga:{name}", *node_claims(sysfs, nodes)}
        device = Device(
            id=name,
            attributes=attributes.present(hardware | facts),
            claims=frozenset(claims),
            part_of=outer | place.parts,
            numa_nodes=() if place.numa_node is None else (place.numa_node,),
            pcie_path=place.pcie_path,
            health=health,
            withheld=self._indistinct(member) or ("" if nodes or slots else NOTHING),
        )
        watched = (*state.files, *(f"{one.path}/state" for one in self._bridges(member)))
        return Unit(device, nodes, slots=slots, watched=watched, is_busy=verdict.is_busy)

    def _judge(
        self,
        member: Member,
        manager: Member | None,
        state: busy.Manager,
        can_program: bool,
        last: _Last | None,
    ) -> managers_state.Verdict:
        if manager is None:
            return managers_state.Verdict(
                unhealthy("nothing tells which FPGA manager programs it"), attributes.FAILED
            )
        verdict = managers_state.judge(state, can_program=can_program, last=last.health if last else None)
        if verdict.is_busy or not verdict.health.healthy:
            return verdict
        for bridge in self._bridges(member):
            if self._sysfs.text(f"{bridge.path}/state") == "disabled":
                title = self._sysfs.text(f"{bridge.path}/name") or bridge.name
                reason = f"its bridge {title} ({bridge.name}) is disabled: nothing in it can be reached"
                return managers_state.Verdict(unhealthy(reason), attributes.FAILED)
        return verdict

    def _interface(self, member: Member, last: _Last | None) -> tuple[str, str]:
        """The region's ``compat_id``, and what is wrong with it. Most regions have none."""
        reading = ids.read(self._sysfs, f"{member.path}/compat_id")
        if reading.is_busy and last:
            return last.interface_id, ""
        if reading.is_absent or reading.is_busy:
            return "", ""
        return reading.id, "" if reading.id else reading.flaw("its compat_id")

    def _slots(self, manager: Member | None, interface_id: str) -> tuple[Slot, ...]:
        """Where an image can go: Xilinx's kernels have a file for it, the mainline kernel none."""
        if manager is None or not self._sysfs.exists(f"{manager.path}/firmware"):
            return ()
        return (Slot(Interface.FIRMWARE, manager.path, interface_id=interface_id),)

    def _bridges(self, member: Member) -> list[Member]:
        return self._tree.bridges_of(member) if member in self._tree.regions else []

    def _apart(self, member: Member) -> frozenset[str]:
        """What lies below the same device and is not this member's: other regions, and what others list."""
        others = {one.path for one in (*self._tree.regions, *self._tree.managers) if one != member}
        inner = {one.parent for one in self._tree.regions if one.parent.startswith(f"{member.parent}/")}
        return frozenset(others | inner | set(self._taken))

    def _is_taken(self, member: Member) -> bool:
        return any(member.path == one or member.path.startswith(f"{one}/") for one in self._taken)


def _id(name: str, suffix: str) -> str:
    """An id from the name of what something hangs on."""
    legal = _STRANGE.sub("_", name).strip("._:-") or "fpga"
    if len(legal) > _LONGEST or legal != name:
        digest = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
        legal = f"{legal[: _LONGEST - 9]}-{digest}"
    return legal + suffix
