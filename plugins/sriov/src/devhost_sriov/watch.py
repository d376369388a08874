"""Changes of links, routes and embedded switches, which cause no uevent.

On a busy node, most messages are about interfaces, addresses and routes of pods. Only those in
:class:`~.network.Interest` count, and only if they contain a change. Numbers: rtnetlink.h,
if_link.h, if_addr.h and genetlink.h in include/uapi/linux of the Linux kernel.

Messages only trigger a scan, which queries the state. Both sources report only their network namespace: in a
pod without ``hostNetwork`` they report nothing about the node.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from devhost.backend import Context, Event
from devhost.backend.netlink import (
    CARRIER,
    GENERIC,
    IFNAME,
    NETWORK,
    OPERSTATE,
    ROUTE,
    Groups,
    LinkStates,
    NetlinkWatcher,
    attributes,
    messages,
    text,
)
from devhost.backend.sysfs import is_live
from devhost.backend.traffic import WIDEST, normal, spelled

from .netlink import BUS_NAME, CHANGES, DEV_NAME
from .network import Network

GROUPS = 1 << 0 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10
"""Bit mask of the groups of links, and of addresses and routes of IPv4 and IPv6."""

ROUTES = Event(subsystem="net", action="change", sys_path=f"{NETWORK}/lo")
"""Routes or addresses changed: no function is read again, since none has this interface."""

_NEWADDR, _DELADDR, _NEWROUTE, _DELROUTE = 20, 21, 24, 25
_UNICAST = 1
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_GENERIC = struct.Struct("=BBH")
_ADDRESS, _MTU, _MASTER = 1, 4, 10
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class RouteSource:
    """The subscription to links, addresses and routes. Remembers links to detect changes."""

    name = "links and routes"
    protocol = ROUTE

    def __init__(self, network: Network) -> None:
        self._network = network
        compared = {_ADDRESS, IFNAME, _MTU, _MASTER, OPERSTATE, CARRIER}
        self._links = LinkStates(compared, {_MASTER}, lambda index: index in network.interest.interfaces)

    def groups(self) -> Groups:
        """Links, and addresses and routes of IPv4 and IPv6."""
        return Groups(GROUPS)

    def lost(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._links.forget()

    def events(self, datagram: bytes) -> Iterator[Event]:
        for message in messages(datagram):
            data = message.payload
            if (link := self._links.changed(message)) is not None:
                yield Event("net", "change", f"{NETWORK}/{link}")
            elif message.kind in (_NEWADDR, _DELADDR) and len(data) >= _IFADDR.size:
                yield from self._address(data)
            elif message.kind in (_NEWROUTE, _DELROUTE) and len(data) >= _RTMSG.size:
                _, length, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(data)
                if length <= WIDEST and kind == _UNICAST:
                    yield ROUTES

    def _address(self, data: bytes) -> Iterator[Event]:
        wanted = {normal(address) for address in self._network.interest.addresses}
        found = dict(attributes(data[_IFADDR.size :])) if wanted else {}
        for kind in (_IFA_LOCAL, _IFA_ADDRESS):
            value = found.get(kind, b"")
            if spelled(value) in wanted:
                yield ROUTES
                return


class DevlinkSource:
    """The subscription to devices and ports of embedded switches, once the kernel has devlink."""

    name = "devlink"
    protocol = GENERIC

    def __init__(self, network: Network) -> None:
        self._network = network

    def groups(self) -> Groups | None:
        """The multicast group of notifications, whose number the kernel assigns."""
        group = self._network.interest.group
        return None if group is None else Groups(members=(group,))

    def events(self, datagram: bytes) -> Iterator[Event]:
        """The events for a notification: functions whose switch may have changed."""
        for message in messages(datagram):
            data = message.payload
            if len(data) < _GENERIC.size or _GENERIC.unpack_from(data)[0] not in CHANGES:
                continue  # traps, parameters, health reports
            named = dict(attributes(data[_GENERIC.size :]))
            place = self._network.interest.places.get(text(named.get(DEV_NAME)))
            if place is not None and text(named.get(BUS_NAME)) in ("pci", "auxiliary"):
                yield Event("devlink", "change", place)

    def lost(self) -> None:
        """Does nothing: this source has no memory."""


async def network_events(context: Context, network: Network) -> AsyncGenerator[Event, None]:
    """Yields an event whenever functions, or the facts about them, should be read again.

    Never ends and never raises. In a recorded tree nothing is watched.
    """
    if not is_live(context.root):
        context.log.info("%s is a recorded tree: its network is not watched", context.root)
        await asyncio.Event().wait()
    watcher = NetlinkWatcher((RouteSource(network), DevlinkSource(network)), context.log)
    async with aclosing(watcher.events()) as events:  # closes its sockets at once
        async for event in events:
            yield event
