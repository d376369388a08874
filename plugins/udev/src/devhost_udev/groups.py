"""Configured groups of nodes as devices: their ids, their health, and what a container gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from devhost.backend import (
    HEALTHY,
    AttributeValue,
    Device,
    DeviceNode,
    Edits,
    Mount,
    claim,
    templates,
    unhealthy,
)
from devhost.backend.errors import AllocationError, printable
from devhost.backend.frozen import frozen
from devhost.backend.model import MAX_DEVICE_ID
from devhost.backend.sysfs import PciFunction, pcie_path
from devhost.backend.where import shortened, show

from .allocation import NO_USB_DEVICE, also_at, is_usb_device
from .attributes import NUMBER
from .facts import Record, node_claims
from .ids import RANKS, apart, fit, joined, ranked
from .members import Contribution, Hardware, Pairing, Paths, Row, attributes_at, last_number, outside_dev
from .options import Group, GroupMount, Member, is_glob
from .scan import Scan

Attributes = Mapping[str, AttributeValue]

_RANKS = 64
"""The number of former ranks that are listed for a node whose id had to be shortened."""


@frozen
class Naming:
    """The id of a group's device, why it is withheld (``None`` if it is not), and its former ids.

    ``common`` is what several devices with this id have in common, and how to change that.
    """

    id: str
    withheld: str | None = None
    former: tuple[str, ...] = ()
    common: str = "this node: narrow its globs"

    def as_one_of(self, sharers: int, path: str) -> Naming:
        """The same if several devices of the group have this id; ``path`` is the device's first path."""
        if sharers < 2:
            return self
        why = self.withheld or f"{sharers} devices of the group have {self.common}"
        return replace(self, id=apart(self.id, path), withheld=why, former=(self.id, *self.former))

    def by(self, group: Group, first: Attributes) -> Naming:
        """The same if the group's ``id`` names an attribute; ``first`` are those of its first node."""
        if not group.id or self.withheld:
            return self
        if group.id not in first:
            return replace(self, withheld=f"its first node has no {group.id}, which is the group's id")
        value = show(first[group.id])
        common = f"the {group.id} {shortened(value)}: set id to an attribute that differs"
        return Naming(fit(joined(group.name, value)), former=(self.id, *self.former), common=common)


@frozen(slots=True)
class DistinctPath:
    """A path that distinguishes a group's devices, and its record in the scan.

    ``repeats`` is whether several devices of the group may have it, according to ``limit``. ``place`` names
    it by the PCI function that it is at, if only ``at`` shows that.
    """

    path: str
    record: Record | None
    repeats: bool = False
    place: str = ""


def name_of(group: str, alternative: int, paths: Sequence[DistinctPath]) -> Naming:
    """Names one device of a group by its first distinct path, and by the next ones if that repeats.

    ``alternative`` is the number, from 0, of its entry among those with the group's name. ``paths``
    distinguish the group's devices, the most important one first.
    """
    labels: list[str] = []
    withheld: str | None = None
    for path in paths:
        record = path.record
        withheld = withheld or (record.device.withheld if record else None)
        labels.append(path.place or (_id_of(record) if record else path.path.rpartition("/")[2]))
        if not path.repeats:
            break
    stem = f"alt{alternative}" if alternative else ""
    text, first = joined(group, *labels, stem), labels[0] if labels else ""
    # earlier versions used the first path only, and a rank
    plain = joined(group, first, "" if first else stem)
    former = ranked(plain) if text != plain else ()
    if labels and (record := paths[0].record):
        if paths[0].place:
            former += ranked(joined(group, record.own.id))
        former += tuple(
            joined(group, one.removesuffix(RANKS)) + (RANKS if one.endswith(RANKS) else "")
            for one in _listed(record.own.former_ids if record.device.withheld else record.device.former_ids)
        )
    naming = Naming(fit(text), former=former)
    if withheld:
        return replace(naming, id=apart(naming.id, paths[0].path), withheld=withheld)
    return naming


def _id_of(record: Record) -> str:
    """The id of a node, even if it is withheld and shown with another id."""
    return record.own.id if record.device.withheld else record.device.id


def _listed(former: Sequence[str]) -> tuple[str, ...]:
    """Former ids of a node as part of a group's id: they were shortened before the group's name was added."""
    found: list[str] = []
    for one in former:
        text = one.removesuffix(RANKS)
        if len(text) < MAX_DEVICE_ID - len(RANKS):
            found.append(one)
        elif text == one:
            found.append(fit(text))
        else:
            found += (fit(f"{text}.{rank}") for rank in range(_RANKS))
    return tuple(found)


_NO_ATTRIBUTES = frozenset({"numaNode", NUMBER})
"""What a group does not have from its first node."""


@frozen
class Layout:
    """The current state of a group: a row for each device, the host paths of mounts, and missing ones."""

    rows: Sequence[Row]
    mounts: Sequence[tuple[GroupMount, str]]
    lacking: Sequence[str]


@frozen(slots=True)
class Assembled:
    """A group's device and what a container gets with it.

    ``first`` are the attributes of the group's first node, ``nodes`` those of each node by its path; both
    include those of the group. ``flaw`` is why it cannot be allocated; empty if at most paths are missing.
    """

    device: Device
    group: Group
    parts: tuple[Contribution, ...]
    mounts: Sequence[tuple[GroupMount, str]]
    first: Attributes
    nodes: Mapping[str, Attributes]
    flaw: str

    def edits(self, index: int) -> Edits:
        """What a container gets; ``index`` is the number of the device among those it gets, from 0."""
        nodes = (node for part in self.parts for node in self._nodes(part, index))
        mounts = (self._mount(mount, path, index) for mount, path in self.mounts)
        env = templates.variables(self.group.env, self.first, index)
        return Edits(tuple(nodes), tuple(filter(None, mounts)), env)

    def _nodes(self, part: Contribution, index: int) -> Iterator[DeviceNode]:
        permissions = part.member.permissions if isinstance(part.member, Member) else "rw"
        for node, below in part.target.nodes:
            known = self.nodes.get(node, {})
            at, why_not = _placed(_container_path(part), known, index, part.target.path, below)
            if why_not:
                continue  # of an optional member; any other makes the device unhealthy
            for path in (at, *also_at(known)):
                yield DeviceNode(node, path, permissions, required=not part.optional)

    def _mount(self, mount: GroupMount, path: str, index: int) -> Mount | None:
        at, why_not = _placed(mount.container_path, self.first, index, path)
        return None if why_not else Mount(path, at, mount.read_only, not mount.optional)


class Groups:
    """The devices of all configured groups. Used by the thread that scans."""

    def __init__(self, groups: Sequence[Group], root: Path, scan: Scan) -> None:
        self._groups = groups
        self._scan = scan
        self._paths = Paths(root, scan)
        self._hardware = Hardware(root)
        self._pairing = Pairing(self._paths, scan, self._hardware)
        self._outside = sorted({path for path in _all_paths(groups) if outside_dev(path)})
        self._known: dict[str, Assembled] = {}
        self._seen: object = None

    def update(self) -> Mapping[str, Assembled]:
        """The devices of all groups by id; an unchanged one is the same object as before."""
        outside = [self._paths.matches(p) if is_glob(p) else self._paths.exists(p) for p in self._outside]
        seen = (self._scan.edition, self._scan.nodes.edition, outside)
        if seen != self._seen:
            self._known = self._assembled([self._layout(group) for group in self._groups])
            self._hardware.forget()
            self._seen = seen
        return self._known

    def _assembled(self, layouts: Sequence[Layout]) -> dict[str, Assembled]:
        uses: Counter[tuple[str, str]] = Counter()
        for group, layout in zip(self._groups, layouts, strict=True):
            for row in layout.rows:
                uses.update({(group.name, node) for part in row.parts for node, _ in part.target.nodes})
        wanted: list[tuple[Naming, Group, int, Row, Layout]] = []
        entries: Counter[str] = Counter()
        sharers: Counter[str] = Counter()
        for group, layout in zip(self._groups, layouts, strict=True):
            alternative = entries[group.name]
            entries[group.name] += 1
            for row in layout.rows:
                naming = name_of(group.name, alternative, self._distinct_paths(row))
                naming = naming.by(group, self._first_attributes(row) if group.id else {})
                sharers[naming.id] += 1
                wanted.append((naming, group, alternative, row, layout))
        found: dict[str, Assembled] = {}
        for naming, group, alternative, row, layout in wanted:
            one = naming.as_one_of(sharers[naming.id], row.parts[0].target.path if row.parts else "")
            made = self._assemble(one, group, alternative, row, layout, uses)
            old = self._known.get(made.device.id)
            if old is not None and old.device == made.device:
                made = replace(made, device=old.device)  # the core compares devices by identity
            found[made.device.id] = made
        return found

    def _distinct_paths(self, row: Row) -> list[DistinctPath]:
        """The paths that distinguish this device from the group's others, the leader's first."""
        by_node = self._scan.by_node
        parts = sorted(
            (part for part in row.parts if part.varies and part.target.nodes),
            key=lambda part: part.target is not row.leader,
        )
        return [
            DistinctPath(
                part.target.path, by_node.get(part.target.nodes[0][0]), part.repeats, self._place_of(part)
            )
            for part in parts
        ]

    def _first_attributes(self, row: Row) -> Attributes:
        """The attributes of the first node that sysfs has."""
        for part in row.parts:
            for node, _ in part.target.nodes:
                if record := self._scan.by_node.get(node):
                    return _described(node, record, self._pairing.function(part.member, node))
        return {}

    def _place_of(self, part: Contribution) -> str:
        """The id of a node by the PCI function that ``at`` names; empty if it has another."""
        node = part.target.nodes[0][0]
        function, record = self._pairing.function(part.member, node), self._scan.by_node.get(node)
        if function is None or record is None:
            return ""
        return joined(str(record.own.attributes.get("subsystem", "")), function.address)

    def _layout(self, group: Group) -> Layout:
        mounts, lacking = [], []
        for mount in group.mounts:
            found = self._paths.matches(mount.path) if is_glob(mount.path) else [mount.path]
            mounts += [(mount, path) for path in found]
            if not mount.optional and not found:
                lacking.append(f"no file matches {mount.path}")
            if not mount.optional:
                lacking += [f"{path} is missing" for path in found if not self._paths.exists(path)]
        return Layout(_distinct(self._pairing.rows(group)), mounts, lacking)

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
        unclaimable: list[str] = []
        placed: dict[str, PciFunction] = {}
        for part in row.parts:
            for node, _ in part.target.nodes:
                if function := self._pairing.function(part.member, node):
                    placed[node] = function
                    part_of.add(claim.pci(function.address))
                record = self._scan.by_node.get(node)
                own, flaw = (record.device.claims, None) if record else node_claims(node)
                unclaimable += [f"{node}: {flaw}"] if flaw else []
                (part_of if part.shared or uses[group.name, node] > 1 else claims).update(own)
                if record is not None:
                    part_of |= record.device.part_of
                    records.append(record)
        for mount, path in layout.mounts:
            for node in self._paths.mounted_nodes(path):
                own, flaw = node_claims(node)
                unclaimable += [f"{node}: {flaw}"] if flaw and not mount.optional else []
                (part_of if len(layout.rows) > 1 else claims).update(own - part_of)
        nodes = [node for part in row.parts for node, _ in part.target.nodes]
        known = {node: _described(node, self._scan.by_node.get(node), placed.get(node)) for node in nodes}
        first = dict(known[records[0].node]) if records else {}
        if nodes:
            first["devNode"] = nodes[0]
            first |= {name: known[nodes[0]][name] for name in (NUMBER,) if name in known[nodes[0]]}
        near = {one.numa_node for one in placed.values() if one.numa_node is not None}
        numa = tuple(sorted(near.union(*(record.device.numa_nodes for record in records))))
        paths = [pcie_path(one.path) for one in placed.values()] + [one.device.pcie_path for one in records]
        attributes: dict[str, AttributeValue] = {"group": group.name, "alternative": alternative}
        if nodes:
            attributes["members"] = tuple(nodes)
        if len(numa) == 1:
            attributes["numaNode"] = numa[0]
        inherited = {name: first[name] for name in first.keys() - attributes.keys() - _NO_ATTRIBUTES}
        known = {node: own | attributes for node, own in known.items()}
        flaws = list(_flaws(group, row.parts, layout.mounts, first | attributes, known))
        problems = [one.target.problem for one in row.parts if one.target.problem and not one.optional]
        problems = list(dict.fromkeys([*unclaimable, *problems, *flaws, *layout.lacking]))
        device = Device(
            id=naming.id,
            attributes=attributes | inherited,
            claims=frozenset(claims),
            part_of=frozenset(part_of - claims),
            numa_nodes=numa,
            pcie_path=next(filter(None, paths), ()),
            health=unhealthy("; ".join(problems[:3])) if problems else HEALTHY,
            inherited=frozenset(inherited),
            withheld=naming.withheld,
            unusable_for={} if any(map(is_usb_device, known.values())) else NO_USB_DEVICE,
            former_ids=naming.former,
        )
        return Assembled(device, group, row.parts, layout.mounts, first | attributes, known, "; ".join(flaws))


def _described(node: str, record: Record | None, function: PciFunction | None) -> dict[str, AttributeValue]:
    """The attributes of a node, even of one that does not exist."""
    found: dict[str, AttributeValue] = {"devNode": node, "sysName": node.rpartition("/")[2]}
    if (number := last_number(node)) is not None:
        found[NUMBER] = number
    return found | dict(record.device.attributes if record else {}) | attributes_at(function)


def _flaws(
    group: Group,
    parts: Sequence[Contribution],
    mounts: Iterable[tuple[GroupMount, str]],
    first: Attributes,
    known: Mapping[str, Attributes],
) -> Iterator[str]:
    """Why a device cannot be allocated, besides paths: no node on the same hardware, no attribute that a
    path needs, or two variables with one name.
    """
    try:
        templates.variables(group.env, first, 0)
    except AllocationError as error:
        yield error.message
    places: dict[str, str] = {}
    for part in parts:
        wanted, target = _container_path(part), part.target
        if part.optional:
            continue
        if not target.nodes or (target.problem and templates.attributes(wanted, (NUMBER,))):
            yield target.problem
        if target.problem:
            continue
        for node, below in target.nodes:
            path, why_not = _placed(wanted, known.get(node, {}), 0, target.path, below)
            if why_not and node.isprintable():
                yield f"{node} {why_not}"
            place = templates.place(path)
            if path and places.setdefault(place, node) != node:
                yield f"{places[place]} and {node} would both be {printable(place)} in the container"
    for mount, source in mounts:
        path, why_not = _placed(mount.container_path, first, 0, source)
        if why_not and not mount.optional:
            subject = printable(source) if path else "the group's first node"
            yield f"{subject} {why_not}"


def _container_path(part: Contribution) -> str:
    return part.member.container_path if isinstance(part.member, Member) else ""


def _placed(wanted: str, values: Attributes, index: int, source: str, below: str = "") -> tuple[str, str]:
    """The path in the container of what a member or mount selects, and why it cannot be there.

    Args:
        wanted: the path with placeholders, for which ``values`` has the attributes.
        source: the path on the host, and ``below`` that of the node in it, if it is a directory.
    """
    if lacking := templates.lacking(wanted, values):
        return "", f"has no {' and no '.join(lacking)}, which containerPath {wanted} needs"
    filled = templates.fill(wanted, values, index)
    path = (filled + source.rpartition("/")[2] if filled.endswith("/") else filled or source) + below
    unfit = templates.unfit(wanted, values, path)
    return path, f"would be at {printable(path)} in the container, {unfit}" if unfit else ""


def _distinct(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows, without those with the nodes of an earlier one, as when several links lead to one node."""
    found: dict[object, Row] = {}
    for row in rows:
        found.setdefault(tuple(part.target.nodes for part in row.parts), row)
    return tuple(found.values())


def _all_paths(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        yield from (member.path for member in group.members if member.path)
        yield from (mount.path for mount in group.mounts)
