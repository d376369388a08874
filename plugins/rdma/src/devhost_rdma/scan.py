"""The RDMA devices that exist now, grouped by the function they belong to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from devhost.backend import Event
from devhost.backend.frozen import frozen
from devhost.backend.infiniband import Node
from devhost.backend.netlink import NETWORK
from devhost.backend.sysfs import BDF, Sysfs, natural

from . import model
from .model import VIRTUAL, IbDevice, Kind, Place, Port, place_of
from .netlink import CORE
from .nodes import NodeTable, by_owner, in_order, read_nodes

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?|\d+")
"""``phys_port_name`` of a representor: of a virtual or scalable function or, on an adapter with a CPU, the
host's physical function (devlink, ``__devlink_port_phys_port_name_get``; plain numbers in older kernels)."""


@frozen(slots=True)
class Function:
    """A place with its properties in sysfs. Unknown texts are empty, unknown numbers ``None``.

    ``vendor`` and ``device`` are lower-case hex digits of its PCI function, ``driver`` is its driver,
    ``parent`` the address of the physical function of a virtual one, ``parent_interface`` the first network
    interface of the physical function of a virtual or scalable one.
    """

    place: Place
    vendor: str = ""
    device: str = ""
    driver: str = ""
    numa_node: int | None = None
    parent: str = ""
    interfaces: tuple[str, ...] = ()
    parent_interface: str = ""

    @property
    def is_virtual(self) -> bool:
        return bool(self.parent)


class FunctionReader:
    """Reads functions. Caches what they have in common, so create a new one for each scan."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._interfaces: dict[str, tuple[str, ...]] = {}
        self._numa: dict[str, int | None] = {}

    def read(self, place: Place) -> Function:
        """Everything about a place except its RDMA devices."""
        if place.kind is Kind.SOFTWARE:
            return Function(place)
        path = place.path
        pci = path.rpartition("/")[0] if place.kind is Kind.SUBFUNCTION else path
        parent = self._sysfs.target(f"{path}/physfn") if place.kind is Kind.PCI else ""
        if not BDF.fullmatch(parent):
            parent = ""
        uplinks: Sequence[str] = ()
        if parent:
            uplinks = self._interfaces_of(f"{path}/physfn", parent)
        elif place.kind is Kind.SUBFUNCTION:
            uplinks = self._interfaces_of(pci, place.address)
        return Function(
            place=place,
            vendor=self._sysfs.hexadecimal(f"{pci}/vendor") if place.address else "",
            device=self._sysfs.hexadecimal(f"{pci}/device") if place.address else "",
            driver=self._sysfs.target(f"{path}/driver"),
            numa_node=self._sysfs.numa_node(path, self._numa),
            parent=parent,
            interfaces=self._interfaces_of(path, place.id),
            parent_interface=uplinks[0] if uplinks else "",
        )

    def _interfaces_of(self, path: str, name: str) -> tuple[str, ...]:
        """The network interfaces of the function ``name`` without representors."""
        if name not in self._interfaces:
            names = self._sysfs.names(f"{path}/net")
            if len(names) > 1:
                names = [name for name in names if not self._represents(f"{path}/net/{name}")]
            self._interfaces[name] = tuple(names)
        return self._interfaces[name]

    def _represents(self, path: str) -> bool:
        return bool(
            self._sysfs.text(f"{path}/phys_switch_id")
            and _REPRESENTOR.fullmatch(self._sysfs.text(f"{path}/phys_port_name"))
        )


PORTS = frozenset({CORE, NETWORK})
"""The ``sys_path`` of events after which only the state of ports may have changed."""

MAX_PATHS = 64
"""Limit of paths to remember between two scans; beyond it, everything is read again."""

_SOFTWARE_IWARP = "Software iWARP stack"
_INTERFACE = re.compile(r"[^/\s]{1,15}")
_PORT_NUMBER = re.compile(r"[1-9][0-9]{0,3}")


@frozen(slots=True)
class Unit:
    """What one container gets: a function with all its RDMA devices, the main one first, and their nodes.

    ``generation`` changes when a driver creates the RDMA devices again.
    """

    function: Function
    devices: tuple[IbDevice, ...]
    nodes: tuple[Node, ...]
    generation: tuple[int, ...]

    @property
    def main(self) -> IbDevice:
        """The RDMA device that programs open first."""
        return self.devices[0]


@frozen
class Snapshot:
    """The result of one scan.

    ``hidden_nodes`` are nodes whose RDMA device is not visible: the kernel shows nodes in every network
    namespace, but devices only in their own (kernel 6.12).
    """

    units: tuple[Unit, ...] = ()
    hidden_nodes: tuple[Node, ...] = ()
    everything: bool = False


@frozen(slots=True)
class _Known:
    inode: int
    device: IbDevice
    place: Place


class Scan:
    """Scans the tree below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._nodes = NodeTable(sysfs)
        self._known: dict[str, _Known] = {}
        self._functions: dict[str, Function] = {}
        self._stale: set[str] = set()
        self._ports_stale = False
        self._everything = False

    def notice(self, event: Event) -> None:
        """Notes what the next scan must read again: everything if the event names no device."""
        if event.sys_path in PORTS:
            self._ports_stale = True
        elif not event.sys_path or len(self._stale) >= MAX_PATHS:
            self._everything = True
        else:
            self._stale.add(event.sys_path.rstrip("/"))

    def scan(self) -> Snapshot:
        """Everything that exists now. Without an event since the last scan, everything is read again."""
        everything = self._everything or not (self._stale or self._ports_stale)
        listed = self._sysfs.identities(CORE)
        before = {} if everything else self._known
        settled = {name for name, old in before.items() if listed.get(name) == old.inode}
        nodes = self._nodes.refresh(settled)
        # the RDMA devices: read again, with new ports, or as before
        known: dict[str, _Known] = {}
        fresh: set[str] = set()
        for name, inode in listed.items():
            old = before.get(name)
            if old is None or name not in settled or self._is_stale(old.place):
                found = read_device(self._sysfs, name)
                if found is None:
                    continue
                known[name] = _Known(inode, *found)
                fresh.add(known[name].place.id)
            elif self._ports_stale:
                known[name] = replace(old, device=with_ports(self._sysfs, old.device))
            else:
                known[name] = old
        # their functions: read again with any of their RDMA devices
        reader = FunctionReader(self._sysfs)
        functions: dict[str, Function] = {}
        for entry in known.values():
            name = entry.place.id
            if name not in functions:
                function = None if name in fresh else self._functions.get(name)
                if function is None or self._has_new_parent(function):
                    function = reader.read(entry.place)
                functions[name] = function
        self._known, self._functions = known, functions
        self._stale, self._ports_stale, self._everything = set(), False, False
        return _put_together(known, functions, nodes, everything=everything)

    def _is_stale(self, place: Place) -> bool:
        # the path of an interface does not show which software devices use it
        if place.kind is Kind.SOFTWARE and self._stale:
            return True
        for path in self._stale:
            if f"{path}/".startswith(f"{place.path}/") or place.path.startswith(f"{path}/"):
                return True
        return False

    def _has_new_parent(self, function: Function) -> bool:
        """Whether an interface of the physical function may have changed."""
        above = function.place.address if function.place.kind is Kind.SUBFUNCTION else function.parent
        return bool(above) and any(f"/{above}/net/" in path for path in self._stale)


def read_device(sysfs: Sysfs, name: str) -> tuple[IbDevice, Place] | None:
    """One RDMA device and its place; ``None`` if it does not exist, or its name could not be claimed."""
    path = sysfs.device(f"{CORE}/{name}")
    if not path or not name.isprintable() or name != name.strip():
        return None

    def text(file: str) -> str:
        return sysfs.text(f"{path}/{file}")

    node_type = model.numbered(text("node_type"), model.NODE_TYPES)
    netdev = text("parent")
    iwarp = node_type == "rnic" and (path.startswith(VIRTUAL) or text("node_desc") == _SOFTWARE_IWARP)
    place = place_of(path, name, software=bool(netdev) or iwarp)
    if iwarp and not netdev:
        netdev = text("ports/1/gid_attrs/ndevs/0")
    device = IbDevice(
        name=name,
        path=path,
        node_type=node_type,
        node_guid=model.guid(text("node_guid")),
        image_guid=model.guid(text("sys_image_guid")),
        firmware=model.label(text("fw_ver")),
        board=model.label(text("board_id")),
        ports=_ports(sysfs, path),
        netdev=netdev if _INTERFACE.fullmatch(netdev) else "",
    )
    return (device, place) if node_type or sysfs.exists(path) else None


def with_ports(sysfs: Sysfs, device: IbDevice) -> IbDevice:
    """The RDMA device with its current ports."""
    ports = _ports(sysfs, device.path)
    return device if ports == device.ports else replace(device, ports=ports)


def read_place(sysfs: Sysfs, place: Place) -> tuple[list[IbDevice], list[Node]]:
    """The current RDMA devices of one place, the main one first, and their nodes."""
    devices = []
    below = f"/{place.path.rpartition('/')[2]}/"
    for name in sysfs.identities(CORE):
        if below in sysfs.link(f"{CORE}/{name}") or name == place.id:
            found = read_device(sysfs, name)
            if found is not None and found[1].id == place.id:
                devices.append(found[0])
    # nodes have the parent of their RDMA device (kernel, ib_uverbs_add_one and ib_umad_init_port)
    parents = {device.path.split("/")[-3] for device in devices}
    nodes = read_nodes(sysfs, {device.name for device in devices}, parents)
    devices = in_order(devices, nodes)
    return devices, [node for device in devices for node in nodes.get(device.name, ())]


def _ports(sysfs: Sysfs, path: str) -> tuple[Port, ...]:
    return tuple(
        _port(sysfs, f"{path}/ports/{number}", int(number))
        for number in sysfs.names(f"{path}/ports")
        if _PORT_NUMBER.fullmatch(number)
    )


def _port(sysfs: Sysfs, path: str, number: int) -> Port:
    return Port(
        number=number,
        state=model.numbered(sysfs.text(f"{path}/state"), model.PORT_STATES),
        phys_state=model.numbered(sysfs.text(f"{path}/phys_state"), model.PHYS_STATES),
        link_layer=model.link_layer(sysfs.text(f"{path}/link_layer")),
        rate=model.rate(sysfs.text(f"{path}/rate")),
    )


def _put_together(
    known: Mapping[str, _Known], functions: Mapping[str, Function], nodes: Sequence[Node], *, everything: bool
) -> Snapshot:
    by_device = by_owner(nodes)
    members: dict[str, list[_Known]] = {}
    for entry in known.values():
        members.setdefault(entry.place.id, []).append(entry)
    units = []
    for name in sorted(members, key=natural):
        devices = in_order((entry.device for entry in members[name]), by_device)
        units.append(
            Unit(
                function=functions[name],
                devices=tuple(devices),
                nodes=tuple(node for device in devices for node in by_device.get(device.name, ())),
                generation=tuple(sorted(entry.inode for entry in members[name])),
            )
        )
    hidden_nodes = [node for name, own in by_device.items() if name not in known for node in own]
    return Snapshot(
        tuple(units), tuple(sorted(hidden_nodes, key=lambda node: natural(node.path))), everything
    )
