"""What rtnetlink tells of the node's network, asked through pyroute2 as it is needed.

pyroute2 is imported by the calls, never by importing this module: it takes 14 MB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .traffic import WIDEST, DefaultRoute, Traffic

_UNICAST = 1
"""``RTN_UNICAST``: what leaves, unlike a route that says "unreachable" (linux/rtnetlink.h)."""

_VF_INFO = 1 | 8
"""``RTEXT_FILTER_VF | RTEXT_FILTER_SKIP_STATS`` (linux/rtnetlink.h)."""

_IPV4, _IPV6 = 2, 10
_VERSIONS = {_IPV4: 4, _IPV6: 6}

VfMacs = Mapping[str, Mapping[int, str]]
"""The address set for a virtual function, by its number, by the physical function's interface."""


class Unresolved(Exception):
    """A default route names its next hop by number alone (``net.ipv4.nexthop_compat_mode`` is 0)."""


async def traffic(names: Mapping[int, str]) -> Traffic:
    """The node's default routes of all tables, and all its addresses.

    Args:
        names: the interfaces of this network namespace by index.

    Raises:
        Exception: pyroute2 raises whatever it likes.
        Unresolved: a default route cannot be told from this.
    """
    from pyroute2 import AsyncIPRoute

    routes: set[DefaultRoute] = set()
    addresses: set[tuple[str, str]] = set()
    async with AsyncIPRoute() as kernel:
        for family in (_IPV4, _IPV6):
            async for message in await kernel.route("dump", family=family):
                routes.update(default_routes(message, names))
        async for message in await kernel.addr("dump"):
            # of a point-to-point link IFA_ADDRESS is the other end's
            address = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
            if address and (name := names.get(message["index"])):
                addresses.add((address, name))
    return Traffic(frozenset(routes), frozenset(addresses))


async def vf_macs() -> VfMacs:
    """What the physical functions have set for their virtual ones, in one dump.

    Raises:
        Exception: pyroute2 raises whatever it likes.
    """
    from pyroute2 import AsyncIPRoute

    found: dict[str, Mapping[int, str]] = {}
    async with AsyncIPRoute() as kernel:
        async for message in await kernel.link("dump", ext_mask=_VF_INFO):
            if macs := vf_macs_in(message):
                found[message.get_attr("IFLA_IFNAME")] = macs
    return found


def default_routes(message: Any, names: Mapping[int, str]) -> Iterator[DefaultRoute]:
    """The default routes that one ``RTM_NEWROUTE`` message stands for: one for each next hop.

    Raises:
        Unresolved: see there.
    """
    if message["dst_len"] > WIDEST or message["type"] != _UNICAST:
        return
    hops: Sequence[Any] = message.get_attr("RTA_MULTIPATH") or ()
    indices = [message.get_attr("RTA_OIF"), *(hop["oif"] for hop in hops)]
    if not any(indices):
        raise Unresolved("a default route names its next hop by number alone")
    # the header's table has one byte; RTA_TABLE has all
    table = message.get_attr("RTA_TABLE") or message["table"]
    for index in indices:
        if name := names.get(index or 0):
            yield DefaultRoute(_VERSIONS[message["family"]], name, table)


def vf_macs_in(message: Any) -> dict[int, str]:
    """The addresses that one ``RTM_NEWLINK`` message has for virtual functions, as far as they are set."""
    found: dict[int, str] = {}
    virtual = message.get_attr("IFLA_VFINFO_LIST")
    for one in virtual.get_attrs("IFLA_VF_INFO") if virtual is not None else ():
        entry = one.get_attr("IFLA_VF_MAC")
        mac = entry["mac"] if entry is not None else ""
        if mac.strip("0:"):
            found[entry["vf"]] = mac
    return found
