"""Which nodes make one device of a group: those of its members, row by row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from devhost.backend import AttributeValue
from devhost.backend.sysfs import natural

from .hardware import Hardware, Place, closeness
from .options import Group, Member, Pair, UsbMember
from .paths import Paths, Target
from .scan import Record, Scan


@dataclass(frozen=True, slots=True)
class Part:
    """What one member gives to one of the group's devices."""

    member: Member | UsbMember
    target: Target

    @property
    def optional(self) -> bool:
        """Whether the device can be used without it."""
        return isinstance(self.member, Member) and self.member.optional

    @property
    def shared(self) -> bool:
        """Whether other groups may use its nodes at the same time."""
        return self.member.shared

    @property
    def varies(self) -> bool:
        """Whether it may be what tells the group's devices apart."""
        return isinstance(self.member, UsbMember) or self.member.varies

    @property
    def repeats(self) -> bool:
        """Whether several devices of the group may have this part."""
        return isinstance(self.member, Member) and self.member.limit > 1


@dataclass(frozen=True, slots=True)
class Row:
    """One device of a group. ``leader`` is what tells it from the group's others, where it has any."""

    parts: tuple[Part, ...]
    leader: Target | None


@dataclass(slots=True)
class _Column:
    """A member with everything on the machine that it selects."""

    member: Member | UsbMember
    targets: Sequence[Target]

    @property
    def varies(self) -> bool:
        return isinstance(self.member, UsbMember) or self.member.varies

    @property
    def required(self) -> bool:
        return isinstance(self.member, UsbMember) or not self.member.optional

    @property
    def limit(self) -> int:
        """How many devices of the group one of its nodes may be in; 0 where that was not said."""
        return 0 if isinstance(self.member, UsbMember) else self.member.limit

    @property
    def reach(self) -> int:
        """How many devices of the group the member can be in."""
        return len(self.targets) * (self.limit or 1) if self.varies else self.limit or sys.maxsize


class Pairing:
    """Finds the nodes of groups and what belongs together. Used by the thread of the scan."""

    def __init__(self, paths: Paths, scan: Scan, hardware: Hardware) -> None:
        self._paths = paths
        self._scan = scan
        self._hardware = hardware

    def rows(self, group: Group) -> list[Row]:
        """The devices that a group makes now, in natural order of their nodes.

        The leader, which is the first member that varies and is required (else the first that varies), makes
        them. Nodes of members that vary beside it join the device whose leader hangs on the same hardware.
        """
        members: tuple[Member | UsbMember, ...] = (*group.members, *group.usb)
        columns = [_Column(member, self._targets(member)) for member in members]
        varying = [column for column in columns if column.varies]
        leader = next((c for c in varying if c.required), varying[0] if varying else None)
        joining = [c for c in varying if c is not leader] if group.pair is Pair.HARDWARE else []
        spine = [column for column in columns if column not in joining]
        rows = []
        for n in range(_height(spine)):
            found = {
                id(column): [column.targets[n % len(column.targets)]]
                for column in spine
                if column.targets and n < column.reach
            }
            rows.append(found)
        if leader is not None:
            leaders = [next(iter(found.get(id(leader), ())), None) for found in rows]
            for column in joining:
                for found, targets in zip(rows, self._joined(leaders, column), strict=True):
                    found[id(column)] = targets
        return [_row(columns, found, leader if joining else None) for found in rows]

    def _targets(self, member: Member | UsbMember) -> list[Target]:
        if isinstance(member, UsbMember):
            return self._usb(member)
        if member.where:
            return self._where(member)
        return self._paths.nodes(member.path) if member.varies else [self._paths.target(member.path)]

    def _where(self, member: Member) -> list[Target]:
        found = self._records(lambda said: any(block.holds(said) for block in member.where))
        return [self._paths.target(node) for node in sorted((one.node for one in found), key=natural)]

    def _usb(self, member: UsbMember) -> list[Target]:
        ids = (member.id_vendor.lower(), member.id_product.lower())
        found = self._records(
            lambda said: (
                said.get("devType") == "usb_device"
                and (said.get("idVendor"), said.get("idProduct")) == ids
                and member.serial in ("", said.get("serial"))
            )
        )
        return [self._paths.target(one.node) for one in sorted(found, key=lambda record: record.device.id)]

    def _records(self, fits: Callable[[Mapping[str, AttributeValue]], bool]) -> list[Record]:
        return [record for record in self._scan.records.values() if fits(record.device.attributes)]

    def _place(self, target: Target) -> Place | None:
        record = self._scan.by_node.get(target.nodes[0][0])
        return self._hardware.place(record.sys_path) if record else None

    def _joined(self, leaders: Sequence[Target | None], column: _Column) -> Iterator[list[Target]]:
        """What a member gives to each row: its nodes on the hardware of the leader, or why there is none.

        A node goes to the leader nearest to it in the device tree. Of several equally near, as with two
        leaders on one chip, each gets one node, in natural order.
        """
        places = [self._place(leader) if leader else None for leader in leaders]
        own = {leader.nodes[0][0] for leader in leaders if leader}
        nearest: dict[tuple[int, ...], list[Target]] = {}
        for target in column.targets:
            if target.nodes[0][0] in own:
                continue
            place = self._place(target)
            near = [closeness(one, place) for one in places]
            if any(near):
                rows = tuple(n for n, one in enumerate(near) if one == max(near))
                nearest.setdefault(rows, []).append(target)
        given: list[list[Target]] = [[] for _ in leaders]
        for rows, targets in nearest.items():
            if len(rows) == 1:
                given[rows[0]] += targets
                continue
            for rank, row in enumerate(rows[: len(targets) * (column.limit or 1)]):
                given[row].append(targets[rank % len(targets)])
        for n, leader in enumerate(leaders):
            if leader is None:
                yield []
            elif given[n]:
                yield given[n]
            else:
                taken = any(n in rows for rows in nearest)
                yield [Target(column.member.title, (), _lacks(column, leader, places[n], taken=taken))]


def _lacks(column: _Column, leader: Target, place: Place | None, *, taken: bool) -> str:
    """Why a row has no node of a member that others join."""
    wanted, first = column.member.title, leader.path
    if place is None:
        return f"{first} is on no hardware, so {wanted} cannot be paired with it (set pair: order)"
    if taken:
        most = "another device has" if (column.limit or 1) == 1 else f"{column.limit} other devices have"
        return f"{most} all nodes that match {wanted} on {place.name} (limit: {column.limit or 1})"
    return f"no node that matches {wanted} is on {place.name}, the hardware of {first}"


def _row(columns: Iterable[_Column], found: Mapping[int, Sequence[Target]], leader: _Column | None) -> Row:
    parts = [(column, target) for column in columns for target in found.get(id(column), ())]
    first = next((t for c, t in parts if (c is leader if leader else c.varies)), None)
    return Row(tuple(Part(column.member, target) for column, target in parts), first)


def _height(columns: Sequence[_Column]) -> int:
    """How many devices the members make: as many as the longest has nodes, cut at the shortest."""
    if not columns:
        return 1
    needed = [column.reach for column in columns if column.required]
    return min([max(len(column.targets) for column in columns), *needed])
