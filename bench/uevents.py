"""When the kernel emits its events: before, it may work on a request for long."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType

NETLINK_KOBJECT_UEVENT = 15
GROUP = 1
"""The kernel's own events (lib/kobject_uevent.c)."""

PATIENCE = 5.0
"""Seconds until an event is missed."""


class Uevents:
    """Notes the monotonic time of each event, on a thread of its own, from entry to exit."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT)
        self._socket.settimeout(0.2)
        self._seen: dict[str, float] = {}
        self._over = False
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Uevents:
        self._socket.bind((0, GROUP))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._thread.join()
        self._socket.close()

    async def at(self, header: str, since: float) -> float:
        """When this event was last emitted; it may still be on its way.

        Args:
            header: action and path below ``/sys``: ``add@/devices/virtual/block/zram0``.
            since: monotonic seconds before which it does not count.

        Raises:
            TimeoutError: there is no such event.
        """
        deadline = time.monotonic() + PATIENCE
        while self._seen.get(header, 0.0) < since:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the kernel has not emitted {header}")
            await asyncio.sleep(0.001)
        return self._seen[header]

    def _receive(self) -> None:
        while not self._over:
            try:
                message = self._socket.recv(8192)
            except OSError:  # nothing yet, or the buffer was full
                continue
            emitted = time.monotonic()
            self._seen[message.partition(b"\0")[0].decode(errors="replace")] = emitted
