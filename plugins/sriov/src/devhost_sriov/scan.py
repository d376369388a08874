"""The functions that exist now; read again only where something happened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from devhost.backend import Event
from devhost.backend.sysfs import BDF, DEVICES, Sysfs, natural

from .function import Function, Interface, Kind
from .look import Look, representors
from .reader import FunctionReader

PCI_BUS = "/sys/bus/pci/devices"
AUXILIARY_BUS = "/sys/bus/auxiliary/devices"
VIRTUAL_INTERFACES = f"{DEVICES}virtual/net"

NETWORK = "/sys/class/net"
"""As the ``sys_path`` of an event: any interface may have changed its state, and nothing else has. With
``/<name>`` behind it: that one has."""

MOST_PLACES = 1024
"""Places remembered between two looks; with more, everything is read again, which is then no dearer."""

SCALABLE = re.compile(r"[\w-]+\.sf\.\d{1,9}")
"""Name of a scalable function on the auxiliary bus: ``<module>.sf.<id>`` (drivers/base/auxiliary.c)."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Something on a bus. ``function`` is ``None`` for what is no device of this backend, or just now none.

    ``is_virtual`` is whether it was ever seen to be a virtual function.
    """

    path: str
    inode: int
    function: Function | None
    is_virtual: bool


class Scan:
    """Looks at the tree below the root of ``sysfs``. Used by one thread."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._known: dict[str, _Known] = {}
        self._strays: tuple[Interface, ...] = ()
        self._strays_read = False
        self._last = Look()
        self._forget()

    def notice(self, event: Event) -> None:
        """Notes what the next look has to read again: all of it where the event names no device.

        A place is a function: what happens to anything below it concerns only that one, what happens to
        itself (a bridge, a physical function) also everything below.
        """
        path = event.sys_path.rstrip("/")
        if path.startswith(NETWORK):
            self._interfaces_stale.add(path[len(NETWORK) + 1 :])
        elif not path or len(self._stale) >= MOST_PLACES:
            self._everything = True
        else:
            self._quiet = False
            place = place_of(path)
            if place:
                self._stale.add(place)
                if place == path:
                    self._stale_below.add(place)
            elif path.startswith(VIRTUAL_INTERFACES):
                self._strays_stale = True

    def look(self) -> Look:
        """Everything there is now. Without an event since the last look, anything may have changed.

        Raises:
            OSError: a bus cannot be listed.
        """
        everything = self._everything or (self._quiet and not self._interfaces_stale)
        listed = self._sysfs.identities(PCI_BUS)
        scalable = self._sysfs.identities(AUXILIARY_BUS)
        listed |= {name: inode for name, inode in scalable.items() if SCALABLE.fullmatch(name)}
        reader = FunctionReader(self._sysfs)
        known: dict[str, _Known] = {}
        for name, inode in listed.items():
            old = self._known.get(name)
            if old is not None and old.inode != inode:
                old = None
            if old is not None and not everything and not self._is_stale(old):
                known[name] = old
            else:
                known[name] = self._read(reader, name, inode, old)
        before, strays = self._known, self._strays
        if everything or self._strays_stale:
            self._strays_read = False
        self._read_strays(reader, known)
        self._known = known
        self._forget()
        if strays == self._strays and _are_same(before, known):
            self._last = replace(self._last, everything=everything)
        else:
            functions = _put_together(known)
            self._last = Look(functions, representors(functions, self._strays), everything)
        return self._last

    def _forget(self) -> None:
        self._everything = False
        self._quiet = True
        self._stale: set[str] = set()
        self._stale_below: set[str] = set()
        self._interfaces_stale: set[str] = set()
        self._strays_stale = False

    def _is_stale(self, known: _Known) -> bool:
        if known.path in self._stale:
            return True
        above = known.path.rpartition("/")[0]
        while self._stale_below and above.count("/") > 3:
            if above in self._stale_below:
                return True
            above = above.rpartition("/")[0]
        return self._has_stale_interface(known.function)

    def _has_stale_interface(self, function: Function | None) -> bool:
        if function is None or not self._interfaces_stale:
            return False
        if "" in self._interfaces_stale:
            return bool(function.interfaces)
        return any(interface.name in self._interfaces_stale for interface in function.interfaces)

    def _read(self, reader: FunctionReader, name: str, inode: int, old: _Known | None) -> _Known:
        bus = PCI_BUS if BDF.fullmatch(name) else AUXILIARY_BUS
        path = self._sysfs.device(f"{bus}/{name}")
        function = None
        if path:
            function = reader.pci(path, inode) if bus is PCI_BUS else reader.scalable(path, inode)
        if function is None or old is None:
            return _Known(path, inode, function, _is_virtual(function) or bool(old and old.is_virtual))
        if old.is_virtual and not _is_virtual(function):
            # it is being taken away, and has lost the link to its physical function already
            return _Known(path, inode, None, is_virtual=True)
        return _Known(path, inode, _with_away(function, old.function), _is_virtual(function))

    def _read_strays(self, reader: FunctionReader, known: Mapping[str, _Known]) -> None:
        """Reads representors that hang on nothing, if need be: only where a function has a switch at all."""
        functions = (entry.function for entry in known.values() if entry.function)
        if not any(one.switch for function in functions for one in function.last_interfaces):
            self._strays, self._strays_read = (), False
        elif not self._strays_read:
            names = self._sysfs.names(VIRTUAL_INTERFACES)
            found = (reader.representor(f"{VIRTUAL_INTERFACES}/{name}", name) for name in names)
            self._strays, self._strays_read = tuple(one for one in found if one is not None), True


def place_of(path: str) -> str:
    """The innermost function that ``path`` is or lies in; empty if in none."""
    parts = path.split("/")
    for count in range(len(parts), 0, -1):
        if BDF.fullmatch(parts[count - 1]) or SCALABLE.fullmatch(parts[count - 1]):
            return "/".join(parts[:count])
    return ""


def _is_virtual(function: Function | None) -> bool:
    return function is not None and function.kind is Kind.VIRTUAL


def _are_same(before: Mapping[str, _Known], now: Mapping[str, _Known]) -> bool:
    return len(before) == len(now) and all(before.get(name) == known for name, known in now.items())


def _with_away(function: Function, before: Function | None) -> Function:
    """The function with the interfaces that left it while its driver stayed."""
    if before is None or function.interfaces or not function.driver or function.driver != before.driver:
        return function
    return replace(function, away=before.last_interfaces)


def _put_together(known: Mapping[str, _Known]) -> dict[str, Function]:
    """The functions in the order of addresses, the physical ones with the number of their parts."""
    functions = [entry.function for entry in known.values() if entry.function is not None]
    virtual: dict[str, int] = {}
    scalable: dict[str, int] = {}
    for function in functions:
        if function.parent:
            counts = virtual if function.kind is Kind.VIRTUAL else scalable
            counts[function.parent] = counts.get(function.parent, 0) + 1
    found: dict[str, Function] = {}
    for function in sorted(functions, key=lambda one: (one.address, natural(one.id))):
        vfs, sfs = virtual.get(function.id, 0), scalable.get(function.id, 0)
        if (function.num_vfs, function.num_sfs) != (vfs, sfs):
            function = replace(function, num_vfs=vfs, num_sfs=sfs)
        found[function.id] = function
    return found
