"""A drop-in backend for measurements: the backend ``sriov`` on a tree of files, with events from a socket.

A datagram is ``SUBSYSTEM ACTION PATH``, as in a uevent of the kernel, because a tree of files causes none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

from devhost_sriov import Sriov

from devhost.backend import Backend, Event, hookimpl

EVENTS = "run/events"
"""Path of the socket below the root."""


class Eventful(Sriov):
    """The SR-IOV backend with events from a socket."""

    name = "eventful"

    async def watch(self) -> AsyncIterator[Event]:
        """An event for each datagram."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.setblocking(False)
            ear.bind(str(self.context.root / EVENTS))
            while True:
                subsystem, action, path = (await loop.sock_recv(ear, 512)).decode().split(" ")
                yield Event(subsystem, action, path)


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    """The backend of this file."""
    return [Eventful]
