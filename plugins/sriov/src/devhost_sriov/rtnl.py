"""What rtnetlink tells of the node's network, asked as it is needed.

Numbers and layouts are those of rtnetlink.h, if_link.h and if_addr.h in include/uapi/linux of the kernel.
"""

from __future__ import annotations

import ipaddress
import struct
import sys
import time
from collections.abc import Iterator, Mapping

from devhost.netlink import ROUTE, attribute, attributes, dump, number, text

from .traffic import WIDEST, DefaultRoute, Traffic

IFINFO = struct.Struct("=BxHiII")
"""``struct ifinfomsg``: family, type, index, flags, change."""

IFADDR = struct.Struct("=BBBBI")
"""``struct ifaddrmsg``: family, prefixlen, flags, scope, index."""

RTMSG = struct.Struct("=BBBBBBBBI")
"""``struct rtmsg``: family, dst_len, src_len, tos, table, protocol, scope, type, flags."""

UNICAST = 1
"""``RTN_UNICAST``: what leaves, unlike a route that says "unreachable"."""

IFLA_IFNAME = 3
IFA_ADDRESS, IFA_LOCAL = 1, 2

_GETLINK, _GETADDR, _GETROUTE = 18, 22, 26
_NEXT_HOP = struct.Struct("=HBBi")
"""``struct rtnexthop``: length, flags, hops, index."""

_OIF, _MULTIPATH, _TABLE = 4, 9, 15
_EXT_MASK, _VFINFO_LIST, _VF_INFO, _VF_MAC = 29, 22, 1, 1
_VF_FILTER = 1 | 8
"""``RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS``."""

_MAC = struct.Struct("=I6s")
"""The beginning of ``struct ifla_vf_mac``: the function's number, its Ethernet address."""

_IPV4, _IPV6 = 2, 10
_VERSIONS = {_IPV4: 4, _IPV6: 6}

VfMacs = Mapping[str, Mapping[int, str]]
"""The address set for a virtual function, by its number, by the physical function's interface."""


class Unresolved(Exception):
    """A default route names its next hop by number alone (``net.ipv4.nexthop_compat_mode`` is 0)."""


def traffic(names: Mapping[int, str], *, timeout: float) -> Traffic:
    """The node's default routes of all tables, and all its addresses.

    Args:
        names: the interfaces of this network namespace by index.
        timeout: seconds for all of it.

    Raises:
        OSError: the kernel refuses, or does not answer in time.
        Unresolved: a default route cannot be told from this.
    """
    deadline = time.monotonic() + timeout
    routes: set[DefaultRoute] = set()
    addresses: set[tuple[str, str]] = set()
    for family in (_IPV4, _IPV6):
        question = RTMSG.pack(family, *[0] * 8)
        for message in dump(ROUTE, _GETROUTE, question, timeout=deadline - time.monotonic()):
            routes.update(default_routes(message.payload, names))
    for message in dump(ROUTE, _GETADDR, IFADDR.pack(*[0] * 5), timeout=deadline - time.monotonic()):
        index = IFADDR.unpack_from(message.payload)[4]
        found = dict(attributes(message.payload[IFADDR.size :]))
        # of a point-to-point link IFA_ADDRESS is the other end's
        address = found.get(IFA_LOCAL) or found.get(IFA_ADDRESS) or b""
        if len(address) in (4, 16) and (name := names.get(index)):
            addresses.add((str(ipaddress.ip_address(address)), name))
    return Traffic(frozenset(routes), frozenset(addresses))


def vf_macs(*, timeout: float) -> VfMacs:
    """What the physical functions have set for their virtual ones, in one dump.

    Args:
        timeout: seconds.

    Raises:
        OSError: the kernel refuses, or does not answer in time.
    """
    mask = attribute(_EXT_MASK, _VF_FILTER.to_bytes(4, sys.byteorder))
    found: dict[str, Mapping[int, str]] = {}
    for message in dump(ROUTE, _GETLINK, IFINFO.pack(*[0] * 5) + mask, timeout=timeout):
        if macs := vf_macs_in(message.payload):
            found[text(dict(attributes(message.payload[IFINFO.size :])).get(IFLA_IFNAME))] = macs
    return found


def default_routes(route: bytes, names: Mapping[int, str]) -> Iterator[DefaultRoute]:
    """The default routes that the payload of one ``RTM_NEWROUTE`` stands for: one for each next hop.

    Raises:
        Unresolved: see there.
    """
    family, length, _, _, table, _, _, kind, _ = RTMSG.unpack_from(route)
    if length > WIDEST or kind != UNICAST:
        return
    found = dict(attributes(route[RTMSG.size :]))
    indices = [number(found.get(_OIF)), *_hops(found.get(_MULTIPATH, b""))]
    if not any(indices):
        raise Unresolved("a default route names its next hop by number alone")
    # the header's table has one byte; RTA_TABLE has all
    table = number(found.get(_TABLE)) or table
    for index in indices:
        if name := names.get(index or 0):
            yield DefaultRoute(_VERSIONS[family], name, table)


def _hops(data: bytes) -> Iterator[int]:
    """The interfaces of the next hops of ``RTA_MULTIPATH``."""
    at = 0
    while at + _NEXT_HOP.size <= len(data):
        length, _, _, index = _NEXT_HOP.unpack_from(data, at)
        yield index
        at += max(length + 3 & ~3, _NEXT_HOP.size)


def vf_macs_in(link: bytes) -> dict[int, str]:
    """The addresses in the payload of one ``RTM_NEWLINK`` for virtual functions, as far as they are set."""
    found: dict[int, str] = {}
    functions = dict(attributes(link[IFINFO.size :])).get(_VFINFO_LIST, b"")
    for kind, function in attributes(functions):
        entry = dict(attributes(function)).get(_VF_MAC, b"") if kind == _VF_INFO else b""
        if len(entry) >= _MAC.size:
            index, mac = _MAC.unpack_from(entry)
            if any(mac):
                found[index] = mac.hex(":")
    return found
