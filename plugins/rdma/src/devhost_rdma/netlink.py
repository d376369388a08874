"""Netlink: the namespace mode, RDMA notifications and link changes.

Numbers and meanings: include/uapi/rdma/rdma_netlink.h of the Linux kernel (client ``RDMA_NL_NLDEV``),
observed on kernel 6.12. Everything else is read from sysfs.

Of changes of links, only those of name, administrative state or carrier may affect an RDMA port.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

from devhost.backend import Event
from devhost.backend.netlink import (
    CARRIER,
    IFNAME,
    NETWORK,
    OPERSTATE,
    RDMA,
    ROUTE,
    Groups,
    LinkStates,
    Message,
    ask,
    attributes,
    messages,
    number,
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


class Links:
    """The subscription to the links of a network namespace, and their last state."""

    name = "link changes"
    protocol = ROUTE

    def __init__(self) -> None:
        self._links = LinkStates({IFNAME, OPERSTATE, CARRIER})

    def groups(self) -> Groups:
        return Groups(LINK_GROUPS)

    def events(self, datagram: bytes) -> Iterable[Event]:
        """:data:`LINK` for a datagram after which ports may have changed."""
        # each message counts, so that the state of every link in it is known
        changed = [message for message in messages(datagram) if self._links.changed(message) is not None]
        return (LINK,) if changed else ()

    def lost(self) -> None:
        """Forgets every link: the next message about each counts as a change."""
        self._links.forget()
