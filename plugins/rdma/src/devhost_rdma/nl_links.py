"""Which link messages matter: the state of network links, folded from rtnetlink's stream; pure.

The kernel repeats ``RTM_NEWLINK`` for much that changes no RDMA port (wireless events, promiscuous mode,
queue lengths). Only a change of name, administrative state or carrier counts. Numbers: include/uapi/linux/
rtnetlink.h, if_link.h and if.h of the Linux kernel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from devhost.backend.netlink import attributes, messages, number, text

LINK_GROUPS = 1
"""Bit mask of the multicast group of links (``RTMGRP_LINK``)."""

_NEWLINK = 16
_DELLINK = 17
_IFNAME = 3
_OPERSTATE = 16
_CARRIER = 33
# family, padding, hardware type, index, flags, changed flags (struct ifinfomsg)
_IFINFO = struct.Struct("=BxHiII")
_RELEVANT_FLAGS = 0x1 | 0x40 | 0x10000 | 0x20000
"""IFF_UP, IFF_RUNNING, IFF_LOWER_UP, IFF_DORMANT."""


@dataclass(frozen=True, slots=True)
class _Link:
    flags: int
    name: str = ""
    operstate: int | None = None
    carrier: int | None = None


class Links:
    """What is known of the links of a network namespace."""

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}

    def forget(self) -> None:
        """Knows nothing any more, as after messages were lost."""
        self._links.clear()

    def take(self, datagram: bytes) -> bool:
        """Takes in one datagram; true when it changed anything that matters, or told of a new link."""
        changed = False
        for message in messages(datagram):
            if message.kind not in (_NEWLINK, _DELLINK) or len(message.payload) < _IFINFO.size:
                continue
            family, _, index, flags, _ = _IFINFO.unpack_from(message.payload)
            if family != 0:
                continue  # AF_BRIDGE: a port joined or left a bridge; the link itself is told of besides
            if message.kind == _DELLINK:
                changed |= self._links.pop(index, None) is not None
            else:
                changed |= self._update(index, flags & _RELEVANT_FLAGS, message.payload[_IFINFO.size :])
        return changed

    def _update(self, index: int, flags: int, data: bytes) -> bool:
        known = self._links.get(index)
        # a message may leave attributes out, which then have not changed (wireless events do)
        link = replace(known, flags=flags) if known is not None else _Link(flags)
        for kind, value in attributes(data):
            if kind == _IFNAME:
                link = replace(link, name=text(value))
            elif kind == _OPERSTATE:
                link = replace(link, operstate=number(value))
            elif kind == _CARRIER:
                link = replace(link, carrier=number(value))
        self._links[index] = link
        return link != known
