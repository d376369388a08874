"""Which network interfaces carry the node's own traffic, and why; pure.

A default route names the interface on top: a bond, a bridge, a VLAN. What is in use is all that lies below.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

MAIN_TABLE = 254
"""The routing table that is asked unless a rule says otherwise (``RT_TABLE_MAIN``, linux/rtnetlink.h)."""

WIDEST = 1
"""Longest prefix of what counts as a default route: VPNs set two routes to half of all addresses each."""

OVS = "ovs-system"
"""The interface that all ports of Open vSwitch's kernel datapath have above them, whatever their bridge."""


@dataclass(frozen=True, slots=True)
class DefaultRoute:
    """A default route: ``family`` is 4 or 6, ``interface`` the one through which it leaves."""

    family: int
    interface: str
    table: int = MAIN_TABLE

    def __str__(self) -> str:
        table = "" if self.table == MAIN_TABLE else f" of table {self.table}"
        return f"the IPv{self.family} default route{table}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the node's network is set up to do: its default routes, and who has which address."""

    routes: frozenset[DefaultRoute] = frozenset()
    addresses: frozenset[tuple[str, str]] = frozenset()
    """Address as text, and the name of the interface that has it."""


Neighbours = Callable[[str], Sequence[str]]
"""Gives names of interfaces for that of one."""


def carriers(
    traffic: Traffic, node_addresses: Collection[str], lower: Neighbours, on_switch: Neighbours
) -> dict[str, str]:
    """Why an interface is in use, by its name: ``"it carries the IPv4 default route, through bond0"``.

    Args:
        traffic: of the node.
        node_addresses: those that the kubelet uses; any spelling.
        lower: gives the interfaces directly below one: a bond's members, what a VLAN is on.
        on_switch: gives the ports of a software switch for an interface of its own that has none below.
    """
    found: dict[str, str] = {}
    for root, what in _roots(traffic, node_addresses).items():
        for name, above in _below(root, lower(root) or on_switch(root), lower):
            found.setdefault(name, f"it {what}, through {_listed(above)}" if above else f"it {what}")
    return found


def normal(address: str) -> str:
    """The one spelling of an address; what is none stays as it is, and so equals no address."""
    try:
        return str(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return address


def is_address(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _roots(traffic: Traffic, node_addresses: Collection[str]) -> dict[str, str]:
    """What the interfaces on top do for the node, by name."""
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
    """The interface itself and all below it, each with those above it, the nearest first."""
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
