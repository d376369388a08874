"""Configured groups of nodes → devices: which paths belong together, and whether all are there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from devhost.backend import HEALTHY, AttributeValue, Device, DeviceNode, Edits, Mount, unhealthy
from devhost.where import show

from .groupnames import Naming, Telling, name_of
from .options import FIELD, Group, GroupMount, Member, UsbMember, is_glob
from .paths import Paths, Target, outside_dev
from .scan import Record, Scan


@dataclass(frozen=True, slots=True)
class Part:
    """What one member gives to one of the group's devices."""

    member: Member | UsbMember
    target: Target

    @property
    def optional(self) -> bool:
        return isinstance(self.member, Member) and self.member.optional

    @property
    def shared(self) -> bool:
        return isinstance(self.member, Member) and self.member.shared

    @property
    def varies(self) -> bool:
        """Whether this part is what tells the group's devices apart."""
        return isinstance(self.member, UsbMember) or is_glob(self.member.path)

    @property
    def repeats(self) -> bool:
        """Whether several devices of the group may have this part."""
        return isinstance(self.member, Member) and self.member.limit > 1

    def edits(self) -> Iterator[DeviceNode]:
        """The nodes as the container gets them."""
        base, permissions = self.target.path, "rw"
        if isinstance(self.member, Member):
            permissions = self.member.permissions
            base = _container_path(self.member.container_path, self.target.path)
        for node, below in self.target.nodes:
            yield DeviceNode(node, base + below, permissions, required=not self.optional)


Row = tuple[Part, ...]
Layout = tuple[tuple[Row, ...], tuple[Mount, ...], tuple[str, ...]]
"""One group as it stands now: the parts of each device, the mounts, and what the mounts lack."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A group's device and what a container gets with it."""

    device: Device
    edits: Edits


class Groups:
    """The devices of all configured groups. Used by the thread of the scan."""

    def __init__(self, groups: Sequence[Group], root: Path, scan: Scan) -> None:
        self._groups = groups
        self._scan = scan
        self._paths = Paths(root, scan)
        self._outside = sorted({path for path in _all_paths(groups) if outside_dev(path)})
        self._known: dict[str, Assembled] = {}
        self._seen: object = None

    def look(self) -> Mapping[str, Assembled]:
        """Every group's devices by id; an unchanged one is the same object as before."""
        if not self._groups:
            return self._known
        outside = [self._paths.matches(p) if is_glob(p) else self._paths.exists(p) for p in self._outside]
        seen = (self._scan.edition, self._scan.nodes.edition, outside)
        if seen != self._seen:
            self._known = self._assembled([self._layout(group) for group in self._groups])
            self._seen = seen
        return self._known

    def _assembled(self, layouts: Sequence[Layout]) -> dict[str, Assembled]:
        uses: Counter[tuple[str, str]] = Counter()
        for group, (rows, _, _) in zip(self._groups, layouts, strict=True):
            uses.update((group.name, node) for row in rows for part in row for node, _ in part.target.nodes)
        wanted: list[tuple[Naming, Group, int, Row, Layout]] = []
        entries: Counter[str] = Counter()
        bearers: Counter[str] = Counter()
        for group, layout in zip(self._groups, layouts, strict=True):
            alternative = entries[group.name]
            entries[group.name] += 1
            for row in layout[0]:
                naming = name_of(group.name, alternative, self._tellings(row))
                bearers[naming.id] += 1
                wanted.append((naming, group, alternative, row, layout))
        found: dict[str, Assembled] = {}
        for naming, group, alternative, row, layout in wanted:
            one = naming.as_one_of(bearers[naming.id], row[0].target.path if row else "")
            made = self._assemble(one, group, alternative, row, layout, uses)
            old = self._known.get(made.device.id)
            if old is not None and old.device == made.device:
                # the edits may differ alone; the core compares devices by identity
                made = old if old.edits == made.edits else Assembled(old.device, made.edits)
            found[made.device.id] = made
        return found

    def _tellings(self, row: Row) -> list[Telling]:
        """The parts that tell this device from the group's others."""
        by_node = self._scan.by_node
        return [
            Telling(part.target.path, by_node.get(part.target.nodes[0][0]), part.repeats)
            for part in row
            if part.varies
        ]

    def _layout(self, group: Group) -> Layout:
        members: tuple[Member | UsbMember, ...] = (*group.members, *group.usb)
        columns = [(member, self._column(member)) for member in members]
        rows = []
        for n in range(_height(columns)):
            row = []
            for member, column in columns:
                if column and n < _reach(member, column):
                    row.append(Part(member, column[n % len(column)]))
            rows.append(tuple(row))
        mounts, lacking = [], []
        for mount in group.mounts:
            found = self._paths.matches(mount.path) if is_glob(mount.path) else [mount.path]
            mounts += [_mount(mount, path) for path in found]
            if not mount.optional and not found:
                lacking.append(f"no file matches {mount.path}")
            if not mount.optional:
                lacking += [f"{path} is missing" for path in found if not self._paths.exists(path)]
        return _distinct(rows), tuple(mounts), tuple(lacking)

    def _column(self, member: Member | UsbMember) -> list[Target]:
        if isinstance(member, UsbMember):
            return self._usb(member)
        return self._paths.nodes(member.path) if is_glob(member.path) else [self._paths.target(member.path)]

    def _usb(self, member: UsbMember) -> list[Target]:
        ids = (member.id_vendor.lower(), member.id_product.lower())
        found = []
        for record in self._scan.records.values():
            said = record.device.attributes
            if (
                said.get("devType") == "usb_device"
                and (said.get("idVendor"), said.get("idProduct")) == ids
                and member.serial in ("", said.get("serial"))
            ):
                found.append(record)
        found.sort(key=lambda record: record.device.id)
        return [self._paths.target(record.node) for record in found]

    def _assemble(
        self,
        naming: Naming,
        group: Group,
        alternative: int,
        row: Row,
        layout: Layout,
        uses: Mapping[tuple[str, str], int],
    ) -> Assembled:
        claims: set[str] = set()
        part_of: set[str] = set()
        records: list[Record] = []
        for part in row:
            for node, _ in part.target.nodes:
                record = self._scan.by_node.get(node)
                own = record.device.claims if record else {f"node:{node}"}
                (part_of if part.shared or uses[group.name, node] > 1 else claims).update(own)
                if record is not None:
                    part_of |= record.device.part_of
                    records.append(record)
        nodes = [node for part in row for node in part.edits()]
        problems = [part.target.problem for part in row if part.target.problem and not part.optional]
        problems += layout[2]
        numa = tuple(sorted({node for record in records for node in record.device.numa_nodes}))
        attributes: dict[str, AttributeValue] = {"group": group.name, "alternative": alternative}
        if nodes:
            attributes["members"] = tuple(node.path for node in nodes)
        if len(numa) == 1:
            attributes["numaNode"] = numa[0]
        device = Device(
            id=naming.id,
            attributes=attributes,
            claims=frozenset(claims),
            part_of=frozenset(part_of - claims),
            numa_nodes=numa,
            pcie_path=next((r.device.pcie_path for r in records if r.device.pcie_path), ()),
            health=unhealthy("; ".join(problems[:3])) if problems else HEALTHY,
            withheld=naming.withheld,
            former_ids=naming.former,
        )
        first = dict(records[0].device.attributes) if records else {}
        if nodes:
            first["devNode"] = nodes[0].path
        return Assembled(device, Edits(tuple(nodes), layout[1], dict(_env(group, first))))


def _distinct(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows without those that have the nodes of an earlier one, as where several links lead to a node."""
    found: dict[object, Row] = {}
    for row in rows:
        found.setdefault(tuple(part.target.nodes for part in row), row)
    return tuple(found.values())


def _reach(member: Member | UsbMember, column: Sequence[Target]) -> int:
    """How many devices of the group a member can be in."""
    if isinstance(member, UsbMember):
        return len(column)
    if is_glob(member.path):
        return len(column) * (member.limit or 1)
    return member.limit or sys.maxsize


def _height(columns: Sequence[tuple[Member | UsbMember, Sequence[Target]]]) -> int:
    """How many devices a group makes: as many as its longest glob matches, cut at its shortest."""
    if not columns:
        return 1
    needed = [
        _reach(member, column)
        for member, column in columns
        if not (isinstance(member, Member) and member.optional)
    ]
    return min([max(len(column) for _, column in columns), *needed])


def _container_path(wanted: str, path: str) -> str:
    return wanted + path.rpartition("/")[2] if wanted.endswith("/") else wanted or path


def _mount(mount: GroupMount, path: str) -> Mount:
    return Mount(path, _container_path(mount.container_path, path), mount.read_only, not mount.optional)


def _env(group: Group, attributes: Mapping[str, AttributeValue]) -> Iterator[tuple[str, str]]:
    """The variables with their references filled in; one that refers to something absent is left out."""
    for name, value in group.env.items():
        if all(field in attributes for field in FIELD.findall(value)):
            yield name, FIELD.sub(lambda found: show(attributes[found[1]]), value)


def _all_paths(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        yield from (member.path for member in group.members)
        yield from (mount.path for mount in group.mounts)
