"""The node's own traffic: its default routes and addresses, and the interfaces that carry it.

A default route names the topmost interface: a bond, a bridge, a VLAN. All interfaces below it are in use.

sysfs and ``/proc/<pid>/net`` each show one network namespace to every reader. So a root with the node's
``/proc`` and ``/sys`` is right for a process in another namespace, and a recorded tree is right everywhere.
Formats: net/ipv4/fib_trie.c, net/ipv6/route.c and net/ipv6/addrconf.c of the Linux kernel.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from .frozen import frozen
from .netlink import NETWORK
from .sysfs import Sysfs, read_table

MAIN_TABLE = 254
"""The default routing table (``RT_TABLE_MAIN``, linux/rtnetlink.h)."""

WIDEST = 1
"""Longest prefix of a default route: VPNs set two routes, each to half of all addresses."""

INFINIBAND = 32
"""The type of an InfiniBand interface (``ARPHRD_INFINIBAND``, linux/if_arp.h)."""

OVS = "ovs-system"
"""The interface above all ports of Open vSwitch's kernel datapath, for all bridges."""

_FAMILIES = {4: AF_INET, 16: AF_INET6}
"""The address families by the bytes of an address. ``ipaddress`` does the same, and takes 0.2 MB."""


@frozen
class DefaultRoute:
    """A default route: ``family`` is 4 or 6, ``interface`` the outgoing one."""

    family: int
    interface: str
    table: int = MAIN_TABLE

    def __str__(self) -> str:
        table = "" if self.table == MAIN_TABLE else f" of table {self.table}"
        return f"the IPv{self.family} default route{table}"


@frozen
class Traffic:
    """The default routes of the node, and the addresses of its interfaces."""

    routes: frozenset[DefaultRoute] = frozenset()
    addresses: frozenset[tuple[str, str]] = frozenset()
    """Address as text, and the name of its interface."""


NODE_IP = "NODE_IP"
"""Variable with the addresses of the kubelet, separated by commas: ``status.hostIPs`` of the pod."""


def kubelet_addresses() -> frozenset[str]:
    """The addresses of the kubelet that the environment of this process names."""
    texts = (address.strip() for address in os.environ.get(NODE_IP, "").split(","))
    return frozenset(filter(None, texts))


Neighbours = Callable[[str], Sequence[str]]
"""Returns the names of interfaces related to one."""


def carriers(
    traffic: Traffic, node_addresses: Collection[str], lower: Neighbours, on_switch: Neighbours
) -> dict[str, str]:
    """Why an interface is in use, by its name: ``"it carries the IPv4 default route, through bond0"``.

    Args:
        node_addresses: the addresses that the kubelet uses, in any spelling.
        lower: returns the interfaces directly below one, such as members of a bond.
        on_switch: returns the ports of a software switch for its internal interface.
    """
    found: dict[str, str] = {}
    for root, what in _roots(traffic, node_addresses).items():
        for name, above in _below(root, lower(root) or on_switch(root), lower):
            found.setdefault(name, f"it {what}, through {_listed(above)}" if above else f"it {what}")
    return found


def normal(address: str) -> str:
    """The canonical spelling of an address; other texts are unchanged, and equal no address."""
    return spelled(_packed(address.partition("%")[0])) or address


def spelled(packed: bytes) -> str:
    """The canonical spelling of an address of 4 or 16 bytes; empty for any other bytes."""
    family = _FAMILIES.get(len(packed))
    return inet_ntop(family, packed) if family is not None else ""


def _packed(address: str) -> bytes:
    """The bytes of an address; empty for any other text."""
    for family in _FAMILIES.values():
        with suppress(OSError, ValueError):
            return inet_pton(family, address)
    return b""


def is_address(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address."""
    import ipaddress  # only where addresses are configured

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _roots(traffic: Traffic, node_addresses: Collection[str]) -> dict[str, str]:
    """What the topmost interfaces do for the node, by name."""
    carried: dict[str, list[str]] = {}
    for route in sorted(traffic.routes, key=lambda one: (one.table != MAIN_TABLE, one.family, one.table)):
        carried.setdefault(route.interface, []).append(str(route))
    roots = {name: f"carries {_listed(routes)}" for name, routes in carried.items()}
    wanted = {normal(address) for address in node_addresses}
    for address, name in sorted(traffic.addresses):
        if normal(address) in wanted:
            has = f"has the address {normal(address)}, which the kubelet uses"
            roots[name] = f"{roots[name]} and {has}" if name in roots else has
    return roots


def _below(root: str, first: Sequence[str], lower: Neighbours) -> list[tuple[str, tuple[str, ...]]]:
    """The interface and all below it, each with those above it, nearest first."""
    found: dict[str, tuple[str, ...]] = {root: ()}
    queue = deque([(root, first)])
    while queue:
        name, below = queue.popleft()
        for under in below:
            if under not in found:
                found[under] = (name, *found[name])
                queue.append((under, lower(under)))
    return list(found.items())


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


INIT_NET = "/proc/1/net"
"""The network of the first process, which is that of the node if ``/proc`` is."""

_UP, _REJECT = 0x1, 0x200
_V4 = re.compile(r"(\S+)\t([0-9A-F]{8})\t([0-9A-F]{8})\t([0-9A-F]{4})(?:\t\d+){3}\t([0-9A-F]{8})\b")
_V6 = re.compile(
    r"[0-9a-f]{32} ([0-9a-f]{2}) [0-9a-f]{32} [0-9a-f]{2} [0-9a-f]{32}"
    r"(?: [0-9a-f]{8}){3} ([0-9a-f]{8})\s+(\S+)"
)
_V6_ADDRESS = re.compile(r"([0-9a-f]{32})(?: [0-9a-f]{2}){4}\s+(\S+)")


class NetFiles:
    """Reads the network files below the root of ``sysfs``, without a cache."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    def traffic(self, node_addresses: Collection[str]) -> Traffic | None:
        """The traffic of the node; ``None`` without these files.

        They name no interface for an IPv4 address, so it is found by the directly connected network.
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
        """The interfaces directly below one (sysfs-class-net, ``lower_*``).

        For an IPoIB child, and for others of which the kernel lists none, ``iflink`` is the number of the one
        below. That of a veth, which has no type, is the number of its peer, perhaps in another namespace.
        """
        entries = self._sysfs.names(f"{NETWORK}/{name}")
        if found := [entry.removeprefix("lower_") for entry in entries if entry.startswith("lower_")]:
            return found
        below = self._sysfs.integer(f"{NETWORK}/{name}/iflink")
        if below in (None, 0, self._sysfs.integer(f"{NETWORK}/{name}/ifindex")):
            return ()
        is_typed = "DEVTYPE=" in self._sysfs.text(f"{NETWORK}/{name}/uevent")
        if not is_typed and self._sysfs.integer(f"{NETWORK}/{name}/type") != INFINIBAND:
            return ()
        others = self._sysfs.names(NETWORK)
        return [one for one in others if self._sysfs.integer(f"{NETWORK}/{one}/ifindex") == below]

    def on_switch(self, name: str) -> Sequence[str]:
        """All ports of Open vSwitch if ``name`` may be its internal interface, such as ``br-ex``.

        Such an interface has no hardware and none below it. Only the switch knows which ports are on its
        bridge.
        """
        if self._sysfs.exists(f"{NETWORK}/{name}/device"):
            return ()
        return [port for port in self.lower(OVS) if port != name]

    def _lines(self, name: str) -> list[str] | None:
        return read_table(f"{self._sysfs.prefix}{INIT_NET}/{name}")


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
    """Interface, destination, gateway, flags and mask; addresses as numbers in native byte order."""
    for line in lines:
        if found := _V4.match(line):
            numbers = [int(part, 16) for part in found.groups()[1:]]
            yield found[1], numbers[0], numbers[1], numbers[2], numbers[3]


def _addresses6(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if found := _V6_ADDRESS.fullmatch(line.strip()):
            yield spelled(bytes.fromhex(found[1])), found[2]


def _on_link(lines: Sequence[str], address: str) -> str:
    """The interface whose network contains an IPv4 address; the smallest network wins."""
    try:
        number = int.from_bytes(inet_pton(AF_INET, address), sys.byteorder)
    except (OSError, ValueError):
        return ""
    best, found = -1, ""
    for name, destination, gateway, flags, mask in _routes4(lines):
        size = mask.bit_count()
        if flags & _UP and not gateway and size > max(best, WIDEST) and number & mask == destination:
            best, found = size, name
    return found
