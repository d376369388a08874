"""Changes of links, routes and embedded switches, which cause no uevent.

On a busy node, most messages are about interfaces, addresses and routes of pods. Only those in
:class:`~.network.Interest` count, and only if they contain a change. Numbers: rtnetlink.h, if_link.h,
if_addr.h and genetlink.h in include/uapi/linux of the Linux kernel.

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
    GENERIC,
    NETWORK,
    ROUTE,
    Groups,
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

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR, _NEWROUTE, _DELROUTE = 16, 17, 20, 21, 24, 25
_UNICAST = 1
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_GENERIC = struct.Struct("=BBH")
_FLAGS = 0x1 | 0x40 | 0x10000 | 0x20000
"""IFF_UP, IFF_RUNNING, IFF_LOWER_UP, IFF_DORMANT."""

_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER = 1, 3, 4, 10, 16, 33
_COMPARED = frozenset({_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER})
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class RouteSource:
    """The subscription to links, addresses and routes. Remembers links to detect changes."""

    name = "links and routes"
    protocol = ROUTE

    def __init__(self, network: Network) -> None:
        self._network = network
        self._links: dict[int, dict[int, bytes]] = {}

    def groups(self) -> Groups:
        """Links, and addresses and routes of IPv4 and IPv6."""
        return Groups(GROUPS)

    def lost(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._links.clear()

    def events(self, datagram: bytes) -> Iterator[Event]:
        for message in messages(datagram):
            data = message.payload
            if message.kind in (_NEWLINK, _DELLINK) and len(data) >= _IFINFO.size:
                yield from self._link(message.kind == _NEWLINK, data)
            elif message.kind in (_NEWADDR, _DELADDR) and len(data) >= _IFADDR.size:
                yield from self._address(data)
            elif message.kind in (_NEWROUTE, _DELROUTE) and len(data) >= _RTMSG.size:
                _, length, _, _, _, _, _, kind, _ = _RTMSG.unpack_from(data)
                if length <= WIDEST and kind == _UNICAST:
                    yield ROUTES

    def _link(self, is_there: bool, data: bytes) -> Iterator[Event]:
        family, _, index, flags, _ = _IFINFO.unpack_from(data)
        if family != 0 or index not in self._network.interest.interfaces:
            return  # a bridge reports its ports in its own family; links have separate messages
        now = {kind: value for kind, value in attributes(data[_IFINFO.size :]) if kind in _COMPARED}
        before = self._links.pop(index, None)
        if is_there:
            # attributes that a message omits are unchanged, except the master
            kept = {kind: value for kind, value in (before or {}).items() if kind != _MASTER}
            self._links[index] = now = kept | now | {0: (flags & _FLAGS).to_bytes(4, "little")}
        if not is_there or now != before:
            yield Event("net", "change", f"{NETWORK}/{text(now.get(_IFNAME))}")

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
