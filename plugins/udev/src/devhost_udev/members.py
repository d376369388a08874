"""Finds the nodes of each device of a group: those that its members select, on the same hardware.

The *unit* of a node is the hardware that it is part of: the PCI function, the USB device, the platform
device. Drivers add further devices between a unit and its nodes (an interface of a USB device, a device on
the auxiliary bus, a sound card), which do not count. A disk, or a chip on an I2C bus, is always a separate
unit (Documentation/driver-api/driver-model of the Linux kernel).
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from devhost.backend import AttributeValue, templates
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import present
from devhost.backend.sysfs import BDF, PciFunction, natural, prefix_of

from .facts import Record
from .nodes import DEV, SKIPPED
from .options import Group, Member, Pair, UsbMember, is_glob
from .scan import Scan
from .sysfs import Kobject, SysTree

_OF_A_UNIT = frozenset({"auxiliary", "hdaudio", "hid", "serial-base", "soundwire", "usb-serial"})
"""Buses whose devices are functions of the unit above them."""

_PLUGGED = frozenset({"i2c", "mdev", "mmc", "spi"})
"""Buses whose devices are units, even below a PCI function or a USB device."""


@frozen(slots=True)
class TreePosition:
    """The place of a node in the device tree.

    ``unit`` is the directory of its unit in sysfs. ``chip`` is the nearest PCI function or USB device, which
    may be the unit; empty if there is none. ``chain`` is the node's device and all its ancestors.
    """

    unit: str
    chip: str
    chain: frozenset[str]

    @property
    def name(self) -> str:
        """The kernel's name of the unit."""
        return self.unit.rpartition("/")[2]


def attributes_at(function: PciFunction | None) -> dict[str, AttributeValue]:
    """What a node has as attributes if it is at a PCI function, like one that sysfs places there."""
    if function is None:
        return {}
    return present(
        {
            "pciBusID": function.address,
            "pciVendor": function.vendor,
            "pciDevice": function.device,
            "numaNode": function.numa_node,
        }
    )


class Hardware:
    """Finds the places of nodes. What was read is cached until :meth:`forget`."""

    def __init__(self, root: Path) -> None:
        self._tree = SysTree(root)
        self._functions: dict[str, PciFunction | None] = {}

    def forget(self) -> None:
        """Clears the cache."""
        self._tree.forget()
        self._functions.clear()

    def place(self, sys_path: str) -> TreePosition | None:
        """The place of the device at ``sys_path``; ``None`` if it is on no hardware.

        That is the case for devices of a class below ``/sys/devices/virtual``, and nodes that are not in
        sysfs.
        """
        return self._placed(self._tree.chain(sys_path) if sys_path else ())

    def function(self, address: str) -> PciFunction | None:
        """The PCI function with this address."""
        if address not in self._functions:
            path = self._tree.function(address) if BDF.fullmatch(address) else ""
            self._functions[address] = self._tree.pci(path)
        return self._functions[address]

    def _placed(self, chain: Sequence[Kobject]) -> TreePosition | None:
        unit = _unit(chain)
        if unit is None:
            return None
        chip = next((k.path for k in chain if _is_chip(k)), "")
        return TreePosition(unit.path, chip, frozenset(k.path for k in chain))


def closeness(one: TreePosition | None, other: TreePosition | None) -> int:
    """How many ancestors two nodes on the same hardware have in common; 0 for nodes on different hardware.

    One unit may be part of the other, such as an I2C bus of a graphics card. Other units are different
    hardware, even if they are ports of the same hub or switch.
    """
    if one is None or other is None or one.chip != other.chip:
        return 0
    if one.unit not in other.chain and other.unit not in one.chain:
        return 0
    return len(one.chain & other.chain)


def _unit(chain: Sequence[Kobject]) -> Kobject | None:
    part = function = None
    for depth, kobject in enumerate(chain):
        if _is_chip(kobject) or kobject.dev_type == "scsi_device":
            return kobject
        if depth == 0:
            continue  # some device nodes are on a bus themselves: /dev/media0, /dev/iio:device0
        if kobject.subsystem in _PLUGGED:
            return kobject
        if kobject.is_class:
            continue
        if kobject.subsystem in _OF_A_UNIT:
            function = function or kobject
        else:
            part = part or kobject
    return part or function


def _is_chip(kobject: Kobject) -> bool:
    return kobject.subsystem == "pci" or kobject.dev_type == "usb_device"


MAX_NODES = 256
"""The most nodes in one directory that are used; more are certainly not intended."""


@frozen(slots=True)
class Target:
    """One path that a member selects.

    ``nodes`` has each device node, with symbolic links resolved, and what to append to the container path
    (empty except for nodes in a directory). ``problem`` is why it cannot be used; empty if it can.
    """

    path: str
    nodes: tuple[tuple[str, str], ...]
    problem: str = ""


EVERYWHERE = frozenset(
    f"/dev/{name}" for name in ("console", "full", "null", "ptmx", "random", "tty", "urandom", "zero")
)
"""The nodes that every container has (OCI runtime specification, "Default Devices")."""

_FILES = ("/dev/hugepages/", "/dev/mqueue/", "/dev/pts/", "/dev/shm/")
"""Directories in ``/dev`` with files that are no devices."""


class Paths:
    """Looks up paths below ``root``, in ``/dev`` mostly from the listings of the scan."""

    def __init__(self, root: Path, scan: Scan) -> None:
        self._prefix = prefix_of(root)
        self._scan = scan

    def matches(self, pattern: str) -> list[str]:
        """The paths that a glob matches, in natural order."""
        directory, _, name = pattern.rpartition("/")
        listing = None if is_glob(directory) else self._scan.nodes.listing(directory)
        if listing is not None:
            fits = re.compile(fnmatch.translate(name)).match
            hidden = name.startswith(".")
            names = [one for one in listing.names if fits(one) and (hidden or not one.startswith("."))]
            found = [f"{directory}/{one}" for one in names]
        else:
            below = self._prefix or "/"
            found = [f"/{one}" for one in glob.glob(pattern.lstrip("/"), root_dir=below)]  # noqa: PTH207 - strings
        return sorted(sorted(found), key=natural)  # a1 and a01 have an order, too

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``."""
        return os.path.exists(self._prefix + path)  # noqa: PTH110 - any error means "no"

    def nodes(self, pattern: str) -> list[Target]:
        """The device nodes that a glob matches, without other files."""
        targets = [self.target(path) for path in self.matches(pattern)]
        return [target for target in targets if not target.problem and target.nodes[0][1] == ""]

    def target(self, path: str) -> Target:
        """The target of a path: a node, the node that a link leads to, or the nodes in a directory."""
        record = self._scan.by_node.get(path)
        if record is not None:
            return Target(path, ((path, ""),), "" if record.present else f"{path} is missing")
        real = self._real(path)
        try:
            mode = os.stat(self._prefix + real).st_mode  # noqa: PTH116 - strings
        except (OSError, ValueError):
            return Target(path, ((real, ""),), f"{path} is missing")
        if stat.S_ISDIR(mode):
            inside = tuple(self._inside(real))
            return Target(path, inside, "" if inside else f"{path} contains no device node")
        return Target(path, ((real, ""),), "" if self._is_node(mode) else f"{path} is not a device node")

    def mounted_nodes(self, path: str) -> Iterator[str]:
        """The device node that a mount of ``path`` is, except those that every container has."""
        real = self._real(path)
        if not outside_dev(real) and real not in EVERYWHERE and not real.startswith(_FILES):
            target = self.target(real)
            yield from (node for node, below in target.nodes if not (target.problem or below))

    def _real(self, path: str) -> str:
        real = os.path.realpath(self._prefix + path)
        if not real.startswith(f"{self._prefix}/"):
            return path  # a recorded tree whose links lead out of it
        return real[len(self._prefix) :]

    def _is_node(self, mode: int) -> bool:
        # a tree that was recorded without root has regular files in place of nodes
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or bool(self._prefix and stat.S_ISREG(mode))

    def _inside(self, directory: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for here, below, names in os.walk(self._prefix + directory):
            path = here[len(self._prefix) :]
            below[:] = sorted(name for name in below if f"{path}/{name}" not in SKIPPED)
            for name in sorted(names, key=natural):
                node = f"{path}/{name}"
                try:
                    mode = os.lstat(self._prefix + node).st_mode
                except OSError:
                    continue
                if self._is_node(mode):
                    found.append((node, node[len(directory) :]))
                if len(found) >= MAX_NODES:
                    return found
        return found


def outside_dev(path: str) -> bool:
    """Whether ``path`` is not in the listings of ``/dev``."""
    return not path.startswith(f"{DEV}/")


@frozen(slots=True)
class Contribution:
    """What one member contributes to one of the group's devices."""

    member: Member | UsbMember
    target: Target

    @property
    def optional(self) -> bool:
        """Whether the device can be used without it."""
        return self.member.optional

    @property
    def shared(self) -> bool:
        """Whether other groups may use its nodes at the same time."""
        return self.member.shared

    @property
    def varies(self) -> bool:
        """Whether it may distinguish the group's devices."""
        return isinstance(self.member, UsbMember) or self.member.varies

    @property
    def repeats(self) -> bool:
        """Whether several devices of the group may have this part."""
        return isinstance(self.member, Member) and self.member.limit > 1


@frozen(slots=True)
class Row:
    """One device of a group. ``leader`` is the target that distinguishes it from others, if any."""

    parts: tuple[Contribution, ...]
    leader: Target | None


@mutable
class _Column:
    """A member with everything on the machine that it selects."""

    member: Member | UsbMember
    targets: Sequence[Target]

    @property
    def varies(self) -> bool:
        return isinstance(self.member, UsbMember) or self.member.varies

    @property
    def required(self) -> bool:
        return not self.member.optional

    def pair(self, group: Group) -> Pair:
        """How its nodes are combined with those of the group's first member."""
        own = self.member.pair if isinstance(self.member, Member) else None
        return own or group.pair

    @property
    def limit(self) -> int:
        """How many devices of the group one of its nodes may be in; 0 if that is not configured."""
        return 0 if isinstance(self.member, UsbMember) else self.member.limit

    @property
    def reach(self) -> int:
        """How many devices of the group the member can be in."""
        return len(self.targets) * (self.limit or 1) if self.varies else self.limit or sys.maxsize


class Pairing:
    """Finds the nodes of groups, and those that belong together. Used by the thread that scans."""

    def __init__(self, paths: Paths, scan: Scan, hardware: Hardware) -> None:
        self._paths = paths
        self._scan = scan
        self._hardware = hardware

    def rows(self, group: Group) -> list[Row]:
        """The current devices of a group, in natural order of their nodes.

        The leader is the first member that varies and is required (else the first that varies): each of its
        nodes makes a device. Nodes of other members that vary are added to the device on the same hardware.
        """
        columns = [_Column(member, self._targets(member)) for member in group.members]
        for n, usb in enumerate(group.usb):  # equal members get different devices, in turn
            turn, turns = group.usb[:n].count(usb), group.usb.count(usb)
            columns.append(_Column(usb, self._targets(usb)[turn::turns]))
        varying = [column for column in columns if column.varies]
        leader = next((c for c in varying if c.required), varying[0] if varying else None)
        others = [c for c in varying if c is not leader]
        if leader is not None:
            leader.targets = _distinct(leader.targets)
        by_order = [c for c in others if c.pair(group) is Pair.ORDER]
        refused = [c for c in by_order if leader is not None and not _in_step(leader, c)]
        joining = [c for c in others if c not in by_order or c in refused]
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
                if column in refused:
                    joined: Iterable[list[Target]] = _refused(leaders, leader, column)
                elif number_of := _NUMBERS.get(column.pair(group)):
                    joined = _by_number(leaders, column, number_of)
                else:
                    joined = self._by_hardware(leaders, leader, column)
                for found, targets in zip(rows, joined, strict=True):
                    found[id(column)] = targets
        return [_row(columns, found, leader if joining else None) for found in rows]

    def _targets(self, member: Member | UsbMember) -> list[Target]:
        if isinstance(member, UsbMember):
            return self._usb(member)
        if member.where:
            return self._where(member)
        return self._paths.nodes(member.path) if member.varies else [self._paths.target(member.path)]

    def _where(self, member: Member) -> list[Target]:
        found = self._records(lambda attributes: any(block.holds(attributes) for block in member.where))
        return [self._paths.target(node) for node in sorted((one.node for one in found), key=natural)]

    def _usb(self, member: UsbMember) -> list[Target]:
        ids = (member.id_vendor.lower(), member.id_product.lower())
        found = self._records(
            lambda attributes: (
                attributes.get("devType") == "usb_device"
                and (attributes.get("idVendor"), attributes.get("idProduct")) == ids
                and member.serial in ("", attributes.get("serial"))
            )
        )
        return [self._paths.target(one.node) for one in sorted(found, key=lambda record: record.device.id)]

    def _records(self, fits: Callable[[Mapping[str, AttributeValue]], bool]) -> list[Record]:
        return [record for record in self._scan.records.values() if fits(record.device.attributes)]

    def function(self, member: Member | UsbMember, node: str) -> PciFunction | None:
        """The PCI function of a node that sysfs places on no hardware, according to its member's ``at``."""
        if not isinstance(member, Member) or not member.at:
            return None
        record = self._scan.by_node.get(node)
        if record is None or self._hardware.place(record.sys_path) is not None:
            return None
        if templates.lacking(member.at, record.device.attributes):
            return None
        return self._hardware.function(templates.fill(member.at, record.device.attributes, 0))

    def _place(self, member: Member | UsbMember, target: Target) -> TreePosition | None:
        node = target.nodes[0][0]
        if function := self.function(member, node):
            return self._hardware.place(function.path)
        record = self._scan.by_node.get(node)
        return self._hardware.place(record.sys_path) if record else None

    def _by_hardware(
        self, leaders: Sequence[Target | None], leader: _Column, column: _Column
    ) -> Iterator[list[Target]]:
        """The nodes of a member for each row, on the hardware of the leader, or why there is none.

        A node belongs to the leader nearest to it in the device tree.
        """
        places = [self._place(leader.member, first) if first else None for first in leaders]
        nowhere: list[str] = []

        def near(target: Target) -> list[int]:
            place = self._place(column.member, target)
            nowhere.extend([target.path] if place is None else [])
            return [closeness(one, place) for one in places]

        def lacks(n: int, first: Target, *, taken: bool) -> str:
            return _lacks(column, first, places[n], next(iter(nowhere), ""), taken=taken)

        return _joined(leaders, column, near, lacks)


def _joined(
    leaders: Sequence[Target | None],
    column: _Column,
    near: Callable[[Target], list[int]],
    lacks: Callable[..., str],
) -> Iterator[list[Target]]:
    """The nodes of a member for each row, or why there is none.

    If a node is equally near to several leaders, such as two on one chip, each gets one node, in natural
    order. ``leaders`` are the first nodes of the rows. ``near`` is how near a node is to each leader; 0 if
    they do not belong together. ``lacks`` is why a row has no node, given its number and leader, and whether
    others have taken them all.
    """
    own = {leader.nodes[0][0] for leader in leaders if leader}
    nearest: dict[tuple[int, ...], list[Target]] = {}
    for target in column.targets:
        if target.nodes[0][0] in own:
            continue
        distances = near(target)
        if any(distances):
            rows = tuple(n for n, one in enumerate(distances) if one == max(distances))
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
            yield [Target(column.member.title, (), lacks(n, leader, taken=taken))]


_NUMBER = re.compile(r"[0-9]+")


def last_number(path: str) -> int | None:
    """The last number in the last part of a path: 1 of ``/dev/accel/accel_controlD1``."""
    found = _NUMBER.findall(path.rpartition("/")[2])
    return int(found[-1]) if found else None


def _first_number(path: str) -> int | None:
    """The first number in the last part of a path: 0 of ``/dev/rngd/npu0pe2-3``."""
    found = _NUMBER.search(path.rpartition("/")[2])
    return int(found[0]) if found else None


_NUMBERS = {Pair.NUMBER: last_number, Pair.FIRST_NUMBER: _first_number}


def _by_number(
    leaders: Sequence[Target | None], column: _Column, number_of: Callable[[str], int | None]
) -> Iterator[list[Target]]:
    """The nodes of a member for each row, with the number of the leader, or why there is none."""
    numbers = [number_of(leader.path) if leader else None for leader in leaders]

    def near(target: Target) -> list[int]:
        number = number_of(target.path)
        return [int(number is not None and number == one) for one in numbers]

    def lacks(n: int, leader: Target, *, taken: bool) -> str:
        wanted, number = column.member.title, numbers[n]
        if number is None:
            return f"{leader.path} has no number in its name, so {wanted} cannot be paired with it"
        if taken:
            return f"{_taken(column)} all nodes that match {wanted} with the number {number}{_limit(column)}"
        return f"no node that matches {wanted} has the number {number} of {leader.path}"

    return _joined(leaders, column, near, lacks)


def _distinct(targets: Iterable[Target]) -> Sequence[Target]:
    """Those with different nodes: several links to one node are one device."""
    found: dict[object, Target] = {}
    for target in targets:
        found.setdefault(target.nodes, target)
    return list(found.values())


def _in_step(leader: _Column, column: _Column) -> bool:
    """Whether the order of nodes can show which belong together: there must be the same number of each.

    Not where one node is meant for several devices, and not for whole USB devices, which are different
    hardware anyway.
    """
    if leader.limit > 1 or column.limit > 1:
        return True
    if isinstance(leader.member, UsbMember) or isinstance(column.member, UsbMember):
        return True
    return len(leader.targets) == len(column.targets)


def _refused(leaders: Sequence[Target | None], first: _Column, column: _Column) -> Iterator[list[Target]]:
    """Why no row gets a node of a member by order."""
    title, count = column.member.title, len(column.targets)
    why = (
        f"{len(first.targets)} nodes match {first.member.title} and {count} {title}, so their order does not "
        "show which belong together (set pair: number)"
    )
    for leader in leaders:
        yield [Target(title, (), why)] if leader else []


def _taken(column: _Column) -> str:
    return "another device has" if (column.limit or 1) == 1 else f"{column.limit} other devices have"


def _limit(column: _Column) -> str:
    return f" (limit: {column.limit or 1})"


def _lacks(column: _Column, leader: Target, place: TreePosition | None, nowhere: str, *, taken: bool) -> str:
    """Why a row has no node of a member on its hardware; ``nowhere`` is a node that is on no hardware."""
    wanted, first = column.member.title, leader.path
    if place is None:
        return f"{first} is on no hardware, so {wanted} cannot be paired with it (set pair: number)"
    if taken:
        return f"{_taken(column)} all nodes that match {wanted} on {place.name}{_limit(column)}"
    hint = f"; {nowhere} is on no hardware (set pair: number)" if nowhere else ""
    return f"no node that matches {wanted} is on {place.name}, the hardware of {first}{hint}"


def _row(columns: Iterable[_Column], found: Mapping[int, Sequence[Target]], leader: _Column | None) -> Row:
    parts = [(column, target) for column in columns for target in found.get(id(column), ())]
    first = next((t for c, t in parts if (c is leader if leader else c.varies)), None)
    return Row(tuple(Contribution(column.member, target) for column, target in parts), first)


def _height(columns: Sequence[_Column]) -> int:
    """The number of devices: that of the longest column, but at most that of the shortest required one."""
    if not columns:
        return 1
    needed = [column.reach for column in columns if column.required]
    return min([max(len(column.targets) for column in columns), *needed])
