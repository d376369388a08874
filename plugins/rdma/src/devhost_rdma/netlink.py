"""Netlink: the namespace mode, RDMA notifications and link changes.

Numbers and meanings: include/uapi/rdma/rdma_netlink.h of the Linux kernel (client ``RDMA_NL_NLDEV``),
observed on kernel 6.12. Everything else is read from sysfs.

The kernel also sends ``RTM_NEWLINK`` for changes that affect no RDMA port (wireless events, promiscuous mode,
queue lengths). Only a change of name, administrative state or carrier counts. Numbers: rtnetlink.h, if_link.h
and if.h in include/uapi/linux of the Linux kernel.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from devhost.backend import Event
from devhost.backend.frozen import frozen
from devhost.backend.netlink import (
    NETWORK,
    RDMA,
    ROUTE,
    Groups,
    Message,
    ask,
    attributes,
    messages,
    number,
    text,
)
from devhost.backend.sysfs import is_live

TIMEOUT = 1.0
"""Seconds to wait for an answer of the kernel."""

CORE = "/sys/class/infiniband"
"""The class of RDMA devices; it exists exactly while ib_core is loaded."""

NOTIFY_GROUPS = 1 << 3
"""Bit mask of group 4, ``RDMA_NL_GROUP_NOTIFY``: a device is registered, removed or renamed, or gets or loses
a netdev. Joining the group needs no privilege (kernel 6.12). Before 6.12, joining has no effect. Only later
kernels report renames."""

NetnsMode = Literal["shared", "exclusive"]

_NLDEV = 5 << 10
_SYS_GET = _NLDEV | 6
_MONITOR = _NLDEV | 28
_NETNS_MODE = 66

NETNS_MODES: Mapping[int | None, NetnsMode] = {0: "exclusive", 1: "shared"}


LINK = Event(subsystem="net", action="change", sys_path=NETWORK)
"""A network link appeared, disappeared or changed its state: the state of any port may have changed."""

PORT = Event(subsystem="infiniband", action="change", sys_path=CORE)
"""The RDMA core reported a change, or the state of a polled port has changed."""


class RdmaCore:
    """The RDMA core of the running kernel.

    ``directory`` exists exactly while ib_core is loaded. It is checked first, because opening the socket
    loads ib_core.
    """

    def __init__(self, directory: str = CORE, ask: Callable[..., Message | None] = ask) -> None:
        self._directory = directory
        self._ask = ask

    @property
    def is_loaded(self) -> bool:
        return os.path.isdir(self._directory)  # noqa: PTH112 - a plain string path

    def netns_mode(self) -> NetnsMode | None:
        """The namespace mode of RDMA devices, as ``rdma system`` shows it.

        ``shared``: every namespace sees all devices. ``exclusive``: a device is in one namespace and can be
        moved. ``None`` without RDMA core, permission or answer in time. May block for :data:`TIMEOUT`.
        """
        if not self.is_loaded:
            return None
        try:
            answer = self._ask(RDMA, _SYS_GET, timeout=TIMEOUT)
        except OSError:  # no such protocol, no permission, an unknown request, no answer in time
            return None
        return NETNS_MODES.get(number(dict(attributes(answer.payload)).get(_NETNS_MODE))) if answer else None


def running_core(root: Path) -> RdmaCore | None:
    """The RDMA core of the running kernel; ``None`` for a recorded tree of another machine."""
    return RdmaCore() if is_live(root) else None


class Notifications:
    """The subscription to notifications of the RDMA core, once it is loaded."""

    name = "RDMA notifications"
    protocol = RDMA

    def __init__(self, core: RdmaCore) -> None:
        self._core = core

    def groups(self) -> Groups | None:
        """The group of notifications; ``None`` while the RDMA core is not loaded."""
        return Groups(NOTIFY_GROUPS) if self._core.is_loaded else None

    def events(self, datagram: bytes) -> Iterable[Event]:
        """:data:`PORT` for a datagram that reports a change of devices."""
        return (PORT,) if any(message.kind == _MONITOR for message in messages(datagram)) else ()

    def lost(self) -> None:
        """Does nothing: this source has no memory."""


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


@frozen
class _Link:
    flags: int
    name: str = ""
    operstate: int | None = None
    carrier: int | None = None


class Links:
    """The subscription to the links of a network namespace, and their last state."""

    name = "link changes"
    protocol = ROUTE

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}

    def groups(self) -> Groups:
        return Groups(LINK_GROUPS)

    def events(self, datagram: bytes) -> Iterable[Event]:
        """:data:`LINK` for a datagram after which ports may have changed."""
        return (LINK,) if self.take(datagram) else ()

    def lost(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._links.clear()

    def take(self, datagram: bytes) -> bool:
        """Reads one datagram; true if a link is new, or changed in a relevant way."""
        changed = False
        for message in messages(datagram):
            if message.kind not in (_NEWLINK, _DELLINK) or len(message.payload) < _IFINFO.size:
                continue
            family, _, index, flags, _ = _IFINFO.unpack_from(message.payload)
            if family != 0:
                continue  # AF_BRIDGE: a port joined or left a bridge; the link has a separate message
            if message.kind == _DELLINK:
                changed |= self._links.pop(index, None) is not None
            else:
                changed |= self._update(index, flags & _RELEVANT_FLAGS, message.payload[_IFINFO.size :])
        return changed

    def _update(self, index: int, flags: int, data: bytes) -> bool:
        known = self._links.get(index)
        # attributes that a message omits are unchanged (wireless events omit some)
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
