"""Netlink sockets, from the standard library alone: one question and its answer, or a subscription.

Full-blown netlink libraries take 15 MB of memory to import; the few messages needed here do not.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from .nl_message import ERROR, Message, messages, request

ROUTE = 0
"""The protocol of links, addresses and routes (``NETLINK_ROUTE``, include/uapi/linux/netlink.h)."""

RDMA = 20
"""The protocol of the RDMA core (``NETLINK_RDMA``). **Opening a socket of it loads the module ib_core**:
the kernel asks for ``net-pf-16-proto-20``, an alias of ib_core (drivers/infiniband/core/netlink.c)."""

DATAGRAM = 64 * 1024
"""Bytes read at once; the kernel fills dumps in pieces of at most 32 KiB (af_netlink.c, ``netlink_dump``)."""

RECEIVE_BUFFER = 4 * 1024 * 1024
"""Bytes a subscription may have waiting: thousands of messages, as when hundreds of pods start at once."""

_SO_RCVBUFFORCE = 33
_SEQUENCE = 1


def ask(protocol: int, kind: int, *, timeout: float) -> Message | None:
    """Asks one question without arguments; the kernel's answer, ``None`` when it has nothing to say.

    The kernel works while ``send`` runs, so a driver that hangs there is not bounded by ``timeout``
    seconds: call it where blocking hurts nobody.

    Raises:
        TimeoutError: there is no answer in time.
        OSError: the protocol is not there (EPROTONOSUPPORT), or the kernel refuses.
    """
    deadline = time.monotonic() + timeout
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as link:
        link.settimeout(timeout)
        link.bind((0, 0))
        link.sendto(request(kind, _SEQUENCE), (0, 0))
        while (left := deadline - time.monotonic()) > 0:
            link.settimeout(left)
            datagram, sender = link.recvfrom(DATAGRAM)
            if sender[0] != 0:
                continue  # any process may send to a netlink socket; only port 0 is the kernel
            for message in messages(datagram):
                if message.sequence != _SEQUENCE:
                    continue
                if message.errno:
                    raise OSError(message.errno, os.strerror(message.errno))
                return None if message.kind == ERROR else message
    raise TimeoutError("the kernel does not answer")


def subscribe(protocol: int, groups: int) -> socket.socket:
    """A non-blocking socket that hears the multicast groups of the bit mask ``groups``.

    Raises:
        OSError: the protocol is not there, or listening to it is not allowed.
    """
    link = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol
    )
    try:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        with contextlib.suppress(OSError):
            # past net.core.rmem_max only with CAP_NET_ADMIN; an overflow is noticed in any case
            link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER)
        link.bind((0, groups))
    except OSError:
        link.close()
        raise
    return link
