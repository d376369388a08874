"""Which netlink messages can change what is known of a function; pure.

On a busy node most messages are of pods: their interfaces, addresses and routes come and go all the time.
Only those of :class:`~.network.Interest` count, and of these only what changed. Numbers: rtnetlink.h,
if_link.h, if_addr.h and genetlink.h in include/uapi/linux of the Linux kernel.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Iterator

from devhost.backend import Event
from devhost.backend.netlink import NETWORK, attributes, messages, text

from .devlink import BUS_NAME, CHANGES, DEV_NAME
from .network import Interest
from .traffic import WIDEST, normal

GROUPS = 1 << 0 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 10
"""Bit mask of the groups of links, and of addresses and routes of IPv4 and IPv6."""

ROUTES = Event(subsystem="net", action="change", sys_path=f"{NETWORK}/lo")
"""Routes or addresses are others: no function needs to be read again, for none has this interface."""

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR, _NEWROUTE, _DELROUTE = 16, 17, 20, 21, 24, 25
_UNICAST = 1
_IFINFO = struct.Struct("=BxHiII")
_IFADDR = struct.Struct("=BBBBI")
_RTMSG = struct.Struct("=BBBBBBBBI")
_GENERIC = struct.Struct("=BBH")
_FLAGS = 0x1 | 0x40 | 0x10000 | 0x20000
"""IFF_UP, IFF_RUNNING, IFF_LOWER_UP, IFF_DORMANT."""

_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER = 1, 3, 4, 10, 16, 33
_TOLD = frozenset({_ADDRESS, _IFNAME, _MTU, _MASTER, _OPERSTATE, _CARRIER})
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class RouteNews:
    """Turns datagrams of rtnetlink into events.

    Args:
        interest: gives what counts now.
    """

    def __init__(self, interest: Callable[[], Interest]) -> None:
        self._interest = interest
        self._links: dict[int, dict[int, bytes]] = {}

    def forget(self) -> None:
        """Knows no link any more, as after messages were lost."""
        self._links.clear()

    def take(self, datagram: bytes) -> Iterator[Event]:
        """The events that a datagram stands for."""
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
        if family != 0 or index not in self._interest().interfaces:
            return  # a bridge speaks of its ports in its own family; the link is told of besides
        now = {kind: value for kind, value in attributes(data[_IFINFO.size :]) if kind in _TOLD}
        before = self._links.pop(index, None)
        if is_there:
            # a message may leave attributes out, which then have not changed; but no master is none
            kept = {kind: value for kind, value in (before or {}).items() if kind != _MASTER}
            self._links[index] = now = kept | now | {0: (flags & _FLAGS).to_bytes(4, "little")}
        if not is_there or now != before:
            yield Event("net", "change", f"{NETWORK}/{text(now.get(_IFNAME))}")

    def _address(self, data: bytes) -> Iterator[Event]:
        wanted = {normal(address) for address in self._interest().addresses}
        found = dict(attributes(data[_IFADDR.size :])) if wanted else {}
        for kind in (_IFA_LOCAL, _IFA_ADDRESS):
            value = found.get(kind, b"")
            if len(value) in (4, 16) and str(ipaddress.ip_address(value)) in wanted:
                yield ROUTES
                return


def devlink_events(datagram: bytes, interest: Interest) -> Iterator[Event]:
    """The events that a devlink notification stands for: functions whose switch may have changed."""
    for message in messages(datagram):
        data = message.payload
        if len(data) < _GENERIC.size or _GENERIC.unpack_from(data)[0] not in CHANGES:
            continue  # traps, parameters, health reports
        named = dict(attributes(data[_GENERIC.size :]))
        place = interest.places.get(text(named.get(DEV_NAME)))
        if place is not None and text(named.get(BUS_NAME)) in ("pci", "auxiliary"):
            yield Event("devlink", "change", place)
