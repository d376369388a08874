"""Records when the kernel emits its events, because it may process a request for some time before."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from types import TracebackType

NETLINK_KOBJECT_UEVENT = 15
GROUP = 1
"""The multicast group of kernel events (lib/kobject_uevent.c)."""

PATIENCE = 5.0
"""Seconds to wait for an event."""


class Uevents:
    """Records the monotonic time of each event, on a separate thread, from entry to exit."""

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
        """The time when this event was last emitted; waits if it has not arrived yet.

        Args:
            header: action and path below ``/sys``: ``add@/devices/virtual/block/zram0``.
            since: monotonic seconds; earlier events are ignored.

        Raises:
            TimeoutError: there is no such event.
        """
        deadline = time.monotonic() + PATIENCE
        while self._seen.get(header, 0.0) < since:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the kernel did not emit {header}")
            await asyncio.sleep(0.001)
        return self._seen[header]

    def _receive(self) -> None:
        while not self._over:
            try:
                message = self._socket.recv(8192)
            except OSError:  # no event yet, or the buffer was full
                continue
            emitted = time.monotonic()
            self._seen[message.partition(b"\0")[0].decode(errors="replace")] = emitted
