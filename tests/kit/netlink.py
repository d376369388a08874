"""The kernel's side of netlink subscriptions."""

from __future__ import annotations

import errno
import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import Any

from devhost.backend.netlink import ROUTE


class Subscription:
    """A subscription on which the message ``error NUMBER`` is an error of the socket."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner

    def fileno(self) -> int:
        return self._inner.fileno()

    def recv(self, size: int) -> bytes:
        data = self._inner.recv(size)
        if data.startswith(b"error "):
            number = int(data.split()[1])
            raise OSError(number, os.strerror(number))
        return data

    def close(self) -> None:
        self._inner.close()


class Netlink:
    """The kernel's ends of the subscriptions; what is sent on one arrives on the other."""

    def __init__(self) -> None:
        self.opened: list[tuple[int, int, Sequence[int]]] = []
        """Protocol, groups and further members of each subscription."""
        self.refuses = Counter[int]()
        """How many of the next subscriptions to a protocol are refused."""
        self._ends: dict[int, list[socket.socket]] = {}

    def subscribe(self, protocol: int, groups: int, members: Sequence[int] = ()) -> Any:
        self.opened.append((protocol, groups, members))
        if self.refuses[protocol]:
            self.refuses[protocol] -= 1
            raise PermissionError(errno.EPERM, "Operation not permitted")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._ends.setdefault(protocol, []).append(theirs)
        return Subscription(ours)

    def send(self, datagram: bytes, protocol: int = ROUTE) -> None:
        self._ends[protocol][-1].send(datagram)

    def fail(self, error: int, protocol: int = ROUTE) -> None:
        """The next read of a subscription is this error."""
        self.send(f"error {error}".encode(), protocol)

    def close(self) -> None:
        for ends in self._ends.values():
            for end in ends:
                end.close()
