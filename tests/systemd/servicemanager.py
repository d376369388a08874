"""A service manager from a service's point of view: the socket for sd_notify(3)."""

from __future__ import annotations

import asyncio
import socket


class Listener:
    """The socket of a service manager. An address that begins with ``@`` is in the abstract namespace."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)

    async def next(self) -> dict[str, str]:
        """The next message, by variable."""
        async with asyncio.timeout(60):
            data = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
        self.heard.append(dict(assignment.split("=", 1) for assignment in data.decode().split("\n")))
        return self.heard[-1]

    async def until(self, status: str = "", **wanted: str) -> dict[str, str]:
        """The next message with these variables, and with ``status`` in its status line."""
        async with asyncio.timeout(60):
            while True:
                message = await self.next()
                if wanted.items() <= message.items() and status in message.get("STATUS", ""):
                    return message

    def close(self) -> None:
        self._socket.close()
