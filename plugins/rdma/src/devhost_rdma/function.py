"""What is known of the thing an RDMA device hangs on: ids, driver, NUMA node, network interfaces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from devhost.backend.sysfs import BDF, Sysfs

from .place import Kind, Place

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+((vf|sf)\d+)?|\d+")
"""``phys_port_name`` of an interface that stands for a virtual, scalable or, on an adapter with its own CPU,
the host's physical function (devlink, ``__devlink_port_phys_port_name_get``; plain numbers before that
existed)."""


@dataclass(frozen=True, slots=True)
class Function:
    """A place with what sysfs says of it. Strings are empty, numbers ``None``, where it says nothing.

    ``vendor`` and ``device`` are lower-case hex digits of its PCI function, ``driver`` what drives it,
    ``parent`` the address of the physical function if it is a virtual one, ``parent_interface`` the first
    network interface of the function it is a virtual or scalable function of.
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
        """Whether it is an SR-IOV virtual function."""
        return bool(self.parent)


class FunctionReader:
    """Reads functions; remembers what several have in common, so it is made anew for each look."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._interfaces: dict[str, tuple[str, ...]] = {}
        self._numa: dict[str, int | None] = {}

    def read(self, place: Place) -> Function:
        """Everything about a place but what its RDMA devices say."""
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
        """The network interfaces of the function ``name`` without those that represent others."""
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
