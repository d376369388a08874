"""What only the RDMA core's netlink interface tells: the namespace mode, and that devices came or went.

Numbers and meanings are those of include/uapi/rdma/rdma_netlink.h of the Linux kernel (client
``RDMA_NL_NLDEV``); what they hold was seen on kernel 6.12. All else that is of use is in sysfs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from devhost.backend.netlink import RDMA, ask, attributes, messages, number

TIMEOUT = 1.0
"""Seconds to wait for the kernel's answer to one question."""

CORE = "/sys/class/infiniband"
"""There exactly while ib_core is loaded. Asked first: opening the socket would load it."""

NOTIFY_GROUPS = 1 << 3
"""Bit mask of group 4, ``RDMA_NL_GROUP_NOTIFY``: devices registered, removed, renamed, joined with a netdev
or parted from it. Only who joined hears it, for which kernel 6.12 wants no privilege. Before 6.12 there is no
such group: one may join it and hears nothing. Renaming a device is told of by later kernels only."""

NetnsMode = Literal["shared", "exclusive"]

_NLDEV = 5 << 10
_SYS_GET = _NLDEV | 6
_MONITOR = _NLDEV | 28
_NETNS_MODE = 66

NETNS_MODES: Mapping[int | None, NetnsMode] = {0: "exclusive", 1: "shared"}


def netns_mode() -> NetnsMode | None:
    """How RDMA devices and network namespaces go together, as ``rdma system`` shows it.

    ``shared``: every namespace sees all devices. ``exclusive``: a device is in one and may be moved.
    ``None`` where there is no RDMA core, no permission or no answer in time. It is the mode of the running
    kernel, whatever tree a backend looks at; may block for :data:`TIMEOUT`.
    """
    if not os.path.isdir(CORE):  # noqa: PTH112 - a plain string path
        return None
    try:
        answer = ask(RDMA, _SYS_GET, timeout=TIMEOUT)
    except OSError:
        return (
            None  # no such protocol, no permission, a question this kernel does not know, no answer in time
        )
    return NETNS_MODES.get(number(dict(attributes(answer.payload)).get(_NETNS_MODE))) if answer else None


def is_notification(datagram: bytes) -> bool:
    """Whether a datagram of :data:`NOTIFY_GROUPS` tells that something about devices changed."""
    return any(message.kind == _MONITOR for message in messages(datagram))
