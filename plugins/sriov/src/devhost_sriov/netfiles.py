"""What plain files tell of the node's network: its default routes, addresses and stacked interfaces.

sysfs and ``/proc/<pid>/net`` each show one network namespace, whoever reads them: so a root that has the
node's own ``/proc`` and ``/sys`` tells the truth to a process in another namespace, and a recorded tree tells
it anywhere. Formats: net/ipv4/fib_trie.c, net/ipv6/route.c and net/ipv6/addrconf.c of the Linux kernel.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Collection, Iterator, Sequence

from devhost.backend.netlink import NETWORK
from devhost.backend.sysfs import Sysfs

from .traffic import OVS, WIDEST, DefaultRoute, Traffic, normal

INIT_NET = "/proc/1/net"
"""The network of the first process: the node's own, where ``/proc`` is the node's."""

_LIMIT = 8 * 1024 * 1024
"""Bytes read of one file: some fifty thousand routes."""

_UP, _REJECT = 0x1, 0x200
_V4 = re.compile(r"(\S+)\t([0-9A-F]{8})\t([0-9A-F]{8})\t([0-9A-F]{4})(?:\t\d+){3}\t([0-9A-F]{8})\b")
_V6 = re.compile(
    r"[0-9a-f]{32} ([0-9a-f]{2}) [0-9a-f]{32} [0-9a-f]{2} [0-9a-f]{32}"
    r"(?: [0-9a-f]{8}){3} ([0-9a-f]{8})\s+(\S+)"
)
_V6_ADDRESS = re.compile(r"([0-9a-f]{32})(?: [0-9a-f]{2}){4}\s+(\S+)")


class NetFiles:
    """The files below the root of ``sysfs``. Nothing is remembered: each call reads."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def traffic(self, node_addresses: Collection[str]) -> Traffic | None:
        """The node's traffic; ``None`` where there are no such files.

        They name no interface for an IPv4 address: it is looked for in the networks that are on a link.
        """
        v4 = self._lines("route")
        if v4 is None:
            return None
        v6 = self._lines("ipv6_route") or []
        routes = frozenset((*_default4(v4), *_default6(v6)))
        addresses = {(normal(address), name) for address, name in _addresses6(self._lines("if_inet6") or [])}
        for address in map(normal, node_addresses):
            if name := _on_link(v4, address):
                addresses.add((address, name))
        return Traffic(routes, frozenset(addresses))

    def lower(self, name: str) -> Sequence[str]:
        """The interfaces directly below one (sysfs-class-net, ``lower_*``)."""
        entries = self._sysfs.names(f"{NETWORK}/{name}")
        return [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]

    def on_switch(self, name: str) -> Sequence[str]:
        """The ports of Open vSwitch if ``name`` can be an interface of its own, such as ``br-ex``.

        Such an interface has nothing below it and no hardware. Which ports are on its bridge only the switch
        knows: here they all are.
        """
        if self._sysfs.exists(f"{NETWORK}/{name}/device"):
            return ()
        return [port for port in self.lower(OVS) if port != name]

    def _lines(self, name: str) -> list[str] | None:
        try:
            with open(f"{self._sysfs.prefix}{INIT_NET}/{name}", errors="replace") as file:  # noqa: PTH123 - a plain string path
                return file.read(_LIMIT).splitlines()
        except OSError:
            return None


def _default4(lines: Sequence[str]) -> Iterator[DefaultRoute]:
    for name, _, _, flags, mask in _routes4(lines):
        if flags & _UP and not flags & _REJECT and mask.bit_count() <= WIDEST:
            yield DefaultRoute(4, name)


def _default6(lines: Sequence[str]) -> Iterator[DefaultRoute]:
    for line in lines:
        if found := _V6.fullmatch(line.strip()):
            length, flags = int(found[1], 16), int(found[2], 16)
            if flags & _UP and not flags & _REJECT and length <= WIDEST and found[3] != "lo":
                yield DefaultRoute(6, found[3])


def _routes4(lines: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Interface, destination, gateway, flags and mask; addresses as numbers in the machine's byte order."""
    for line in lines:
        if found := _V4.match(line):
            numbers = [int(part, 16) for part in found.groups()[1:]]
            yield found[1], numbers[0], numbers[1], numbers[2], numbers[3]


def _addresses6(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if found := _V6_ADDRESS.fullmatch(line.strip()):
            yield str(ipaddress.IPv6Address(int(found[1], 16))), found[2]


def _on_link(lines: Sequence[str], address: str) -> str:
    """The interface whose network has an IPv4 address; the smallest such network wins."""
    try:
        number = int.from_bytes(ipaddress.IPv4Address(address).packed, sys.byteorder)
    except ValueError:
        return ""
    best, found = -1, ""
    for name, destination, gateway, flags, mask in _routes4(lines):
        size = mask.bit_count()
        if flags & _UP and not gateway and size > max(best, WIDEST) and number & mask == destination:
            best, found = size, name
    return found
