"""The device nodes that exist now. Only those that may have changed are read again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from devhost.backend import AttributeValue, Device, Event

from .allocation import NO_USB_DEVICE
from .attributes import EVERYTHING, LINKS
from .facts import Reader, Record, node_claims, system_disks
from .ids import Namer, apart, is_misc, undeclared
from .nodes import NodeTree
from .sysfs import SysTree

NAMED = 3
"""The most other devices that the reason of a withheld one names."""


class Scan:
    """All device nodes below ``root``. Used by one thread.

    ``records`` maps keys to records; a key is ``c10:229`` for a node in sysfs, and the path for any other
    node. ``edition`` is incremented whenever a record has changed. ``shared_serials`` are serial numbers and
    world-wide ids that do not identify a device. ``tree`` reads sysfs.
    """

    def __init__(self, root: Path, shared_serials: Collection[str] = (), tree: SysTree | None = None) -> None:
        self.nodes = NodeTree(root)
        self.records: dict[str, Record] = {}
        self.by_node: dict[str, Record] = {}
        self.edition = 0
        self._root = root
        self._tree = tree or SysTree(root)
        self._namer = Namer(self._tree, shared_serials)
        self._keys_by_id: dict[str, set[str]] = {}
        self._renamed: set[str] = set()
        self._duplicates: set[str] = set()
        self._links: dict[str, list[str]] = {}
        self._linked: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._declared: dict[str, dict[str, str]] = {}
        self._paths: list[tuple[str, str]] = []
        self._stale: set[str] = set()
        self._absent: set[str] = set()
        self._everything = False
        self._wanted: frozenset[str] = frozenset()

    def notice(self, event: Event) -> None:
        """Records what the next scan has to read again.

        An event with a ``sys_path`` concerns that device and all below it, one with only a ``dev_node`` that
        node, and one with neither everything.
        """
        if event.dev_node:
            self.nodes.suspect(event.dev_node)
        if event.sys_path:
            self._stale.add(event.sys_path.rstrip("/"))
        elif not event.dev_node:
            self._everything = True

    def update(self, wanted: Collection[str]) -> None:
        """Updates ``records``. Raises ``OSError`` if sysfs cannot be listed; they are unchanged then."""
        numbers = self._tree.numbers()
        if self._everything or self._wanted != frozenset(wanted):
            self._wanted = frozenset(wanted)
            self._everything = True
            self.nodes.suspect_all()
        stale = self._stale_keys() if self._stale or self._everything else set()
        if numbers != self._numbers or stale:
            self._update(numbers, stale)
        self._stale.clear()
        self._everything = False
        nodes_changed = self.nodes.refresh()
        if nodes_changed:
            self._relink()
        if nodes_changed or stale or numbers != self._numbers:
            self._undeclared(numbers)
        self._numbers = numbers
        self._resolve_duplicates()
        self._check_presence()
        self._tree.forget()

    def _stale_keys(self) -> set[str]:
        if self._everything:
            return set(self._numbers)
        if not self._paths:
            self._paths = sorted((r.sys_path, key) for key, r in self.records.items() if r.sys_path)
        keys: set[str] = set()
        for path in self._stale:
            # "0" is the character after "/": the range contains all paths below this one
            for low, high in ((path, f"{path}\0"), (f"{path}/", f"{path}0")):
                first, last = (bisect_left(self._paths, (bound, "")) for bound in (low, high))
                keys.update(key for _, key in self._paths[first:last])
        return keys

    def _update(self, numbers: dict[str, int], stale: set[str]) -> None:
        changed = {key for key, inode in numbers.items() if self._numbers.get(key) != inode}
        gone = {key for key, inode in self._numbers.items() if numbers.get(key) != inode}
        for key in gone:
            self._remove(key)
        disks: list[frozenset[str] | None] = []

        def system() -> frozenset[str] | None:
            if not disks:
                disks.append(system_disks(self._root))
            return disks[0]

        reader = Reader(self._root, self._tree, self._namer, self._wanted, system, self._with_links)
        fresh: dict[str, Record] = {}
        for key in [key for key in numbers if key in changed or key in stale]:
            record = reader.record(key)
            if record is None:
                self._remove(key)
            else:
                fresh[key] = record
        for key, record in fresh.items():
            self._remove(record.node)  # until now it was only known by its path
            self._put(key, record)

    def _undeclared(self, numbers: Collection[str]) -> None:
        """Adds nodes that are only in ``/dev``, and removes those that are gone or in sysfs by now."""
        found = {
            node: number
            for node, number in self.nodes.undeclared(self._declared)
            # a number that has just been added to sysfs: the device is appearing, and its event will follow
            if number in numbers or not self._tree.path_of(number)
        }
        for node in [key for key, r in self.records.items() if not r.sys_path and key not in found]:
            self._remove(node)
        new = {node: number for node, number in found.items() if node not in self.records}
        for node, number in new.items():
            attributes: dict[str, AttributeValue] = {
                "devNode": node,
                "sysName": node.rpartition("/")[2],
                "major": int(number[1:].partition(":")[0]),
                "minor": int(number[1:].partition(":")[2]),
            }
            if is_misc(number):
                attributes["subsystem"] = "misc"
            name = undeclared(node, number)
            claims, flaw = node_claims(node)
            attributes = self._with_links(node, attributes)
            device = Device(
                name.id,
                attributes,
                claims,
                withheld=flaw,
                unusable_for=NO_USB_DEVICE,
                former_ids=name.former,
            )
            self._put(node, Record("", node, name, device, device))

    def _relink(self) -> None:
        """Updates the links of all devices after a change in ``/dev``."""
        wanted = LINKS in self._wanted or EVERYTHING in self._wanted
        self._links = self.nodes.links() if wanted else {}
        self._linked = {link: node for node, links in self._links.items() for link in links}
        for record in self.records.values():
            attributes = self._with_links(record.node, record.own.attributes, record.links)
            if attributes.get(LINKS) != record.own.attributes.get(LINKS):
                record.own = replace(record.own, attributes=attributes)
                self._renamed.add(record.name.id)

    def _with_links(
        self, node: str, attributes: Mapping[str, AttributeValue], links: Sequence[str] = ()
    ) -> dict[str, AttributeValue]:
        """The attributes of a device with the links to its node, from ``/dev`` and udevd's record.

        Two disks may claim one link, which then leads to only one of them.
        """
        found = dict.fromkeys(link for link in links if self._linked.get(link, node) == node)
        found |= dict.fromkeys(self._links.get(node, ()))
        own = {name: value for name, value in attributes.items() if name != LINKS}
        return own | ({LINKS: tuple(found)} if found else {})

    def _put(self, key: str, record: Record) -> None:
        old = self.records.get(key)
        if old is not None and (old.own, old.sys_path) == (record.own, record.sys_path):
            return
        if old is not None:
            self._remove(key)
        self.edition += 1
        self._keys_by_id.setdefault(record.name.id, set()).add(key)
        self._renamed.add(record.name.id)
        self.records[key] = self.by_node[record.node] = record
        if record.sys_path:
            self._paths.clear()
            directory, _, name = record.node.rpartition("/")
            self._declared.setdefault(directory, {})[name] = key

    def _remove(self, key: str) -> None:
        record = self.records.pop(key, None)
        if record is None:
            return
        self.edition += 1
        self._keys_by_id[record.name.id].discard(key)
        self._renamed.add(record.name.id)
        if self.by_node.get(record.node) is record:
            del self.by_node[record.node]
        if record.sys_path:
            self._paths.clear()
            directory, _, name = record.node.rpartition("/")
            names = self._declared.get(directory, {})
            if names.get(name) == key:
                del names[name]

    def duplicates(self) -> dict[str, list[str]]:
        """The nodes that are withheld, by the serial number or id that they share."""
        found: dict[str, list[str]] = {}
        for name in self._duplicates:
            for key in self._keys_by_id[name]:
                record = self.records[key]
                found.setdefault(record.name.serial or name, []).append(record.node)
        return found

    def _resolve_duplicates(self) -> None:
        """Names devices with the same id by their places, or withholds them if these do not differ."""
        for name in self._renamed:
            sharers = [self.records[key] for key in self._keys_by_id[name]]
            placed = {record.name.placed for record in sharers}
            by_place = len(sharers) > 1 and "" not in placed and len(placed) == len(sharers)
            (self._duplicates.add if len(sharers) > 1 and not by_place else self._duplicates.discard)(name)
            if not sharers:
                del self._keys_by_id[name]
            for record in sharers:
                others = [other for other in sharers if other is not record]
                resolved = _placed(record) if by_place else _withheld(record, others)
                device = resolved if others else record.own
                if device != record.device:
                    record.device, record.absent = device, None
                    self.edition += 1
        self._renamed.clear()

    def _check_presence(self) -> None:
        """Sets ``present`` of each record from the directories' listings."""
        missing: set[str] = set()
        for directory, names in self._declared.items():
            missing.update(names[name] for name in self.nodes.missing(directory, names))
        for key in self._absent | missing:
            record = self.records.get(key)
            if record is not None and record.present is (key in missing):
                record.present = key not in missing
                self.edition += 1
        self._absent = missing


def _placed(record: Record) -> Device:
    """A device while another one has the same serial number.

    A container that holds the id without the place may have either of them.
    """
    own = record.own
    former = tuple(one for one in own.former_ids if one != record.name.placed)
    return replace(own, id=record.name.placed, former_ids=(own.id, *former))


def _withheld(record: Record, others: Sequence[Record]) -> Device:
    """A device whose id others have, too: withheld with the reason, and shown with another id."""
    found = sorted(other.node for other in others)
    nodes = " and ".join(found[:NAMED]) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    own, name = record.own, record.name
    if name.serial and own.attributes.get("wwid") == name.serial:
        why = (
            f"{nodes} has the same world-wide id {name.serial}: use the multipath device, or list the id in "
            "backends.udev.sharedSerials if these are different disks"
        )
    elif all(other.name.place == name.place for other in others):
        why = f"nothing in sysfs distinguishes it from {nodes} permanently: make a group of its path"
    else:
        why = (
            f"{nodes} has the same serial number {name.serial}: list it in backends.udev.sharedSerials, "
            "which makes the place part of the ids"
        )
    former = (own.id, *own.former_ids)
    return replace(own, id=apart(own.id, record.node), withheld=why, former_ids=former)
