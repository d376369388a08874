"""What the kernel reports through netlink: the namespace mode, RDMA notifications and link changes.

Numbers and meanings are those of include/uapi/rdma/rdma_netlink.h of the Linux kernel (client
``RDMA_NL_NLDEV``); what they hold was seen on kernel 6.12. All else that is of use is in sysfs.

The kernel repeats ``RTM_NEWLINK`` for much that changes no RDMA port (wireless events, promiscuous mode,
queue lengths). Only a change of name, administrative state or carrier counts. Numbers: include/uapi/linux/
rtnetlink.h, if_link.h and if.h of the Linux kernel.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from devhost.backend import Event
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
"""Seconds to wait for the kernel's answer to one question."""

CORE = "/sys/class/infiniband"
"""The class of RDMA devices; it exists exactly while ib_core is loaded."""

NOTIFY_GROUPS = 1 << 3
"""Bit mask of group 4, ``RDMA_NL_GROUP_NOTIFY``: devices registered, removed, renamed, joined with a netdev
or parted from it. Joining the group needs no privilege (kernel 6.12). Before 6.12 there is no such group, and
joining it is without effect. Only later kernels report that a device was renamed."""

NetnsMode = Literal["shared", "exclusive"]

_NLDEV = 5 << 10
_SYS_GET = _NLDEV | 6
_MONITOR = _NLDEV | 28
_NETNS_MODE = 66

NETNS_MODES: Mapping[int | None, NetnsMode] = {0: "exclusive", 1: "shared"}


LINK = Event(subsystem="net", action="change", sys_path=NETWORK)
"""A network link came, went, or changed its state: any port may have, and nothing else."""

PORT = Event(subsystem="infiniband", action="change", sys_path=CORE)
"""The RDMA core reported a change, or the state of a polled port has changed."""


class RdmaCore:
    """The RDMA core of the running kernel, whatever tree a backend reads.

    Args:
        directory: exists exactly while ib_core is loaded. Looked at first: opening the socket would load it.
        ask: asks the kernel one question.
    """

    def __init__(self, directory: str = CORE, ask: Callable[..., Message | None] = ask) -> None:
        self._directory = directory
        self._ask = ask

    @property
    def is_loaded(self) -> bool:
        """Whether there is anything to ask or to listen to."""
        return os.path.isdir(self._directory)  # noqa: PTH112 - a plain string path

    def netns_mode(self) -> NetnsMode | None:
        """How RDMA devices and network namespaces go together, as ``rdma system`` shows it.

        ``shared``: every namespace sees all devices. ``exclusive``: a device is in one and may be moved.
        ``None`` where there is no RDMA core, no permission or no answer in time. May block for
        :data:`TIMEOUT`.
        """
        if not self.is_loaded:
            return None
        try:
            answer = self._ask(RDMA, _SYS_GET, timeout=TIMEOUT)
        except OSError:  # no such protocol, no permission, an unknown question, no answer in time
            return None
        return NETNS_MODES.get(number(dict(attributes(answer.payload)).get(_NETNS_MODE))) if answer else None


def running_core(root: Path) -> RdmaCore | None:
    """The RDMA core of the running kernel; ``None`` below a recorded tree, which is of another machine."""
    return RdmaCore() if is_live(root) else None


class Notifications:
    """The subscription to what the RDMA core reports, once it is loaded."""

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
        """A source that remembers nothing loses nothing."""


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
    """The subscription to the links of a network namespace, and what is known of them."""

    name = "link changes"
    protocol = ROUTE

    def __init__(self) -> None:
        self._links: dict[int, _Link] = {}

    def groups(self) -> Groups:
        """The group of links."""
        return Groups(LINK_GROUPS)

    def events(self, datagram: bytes) -> Iterable[Event]:
        """:data:`LINK` for a datagram after which ports may have changed."""
        return (LINK,) if self.take(datagram) else ()

    def lost(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._links.clear()

    def take(self, datagram: bytes) -> bool:
        """Reads one datagram; true when it changed anything that matters, or reports a new link."""
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
