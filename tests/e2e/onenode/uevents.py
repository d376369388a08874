"""The uevents of the kernel and udevd in a network namespace, received by a socket in it.

The kernel sends to group 1 of the family NETLINK_KOBJECT_UEVENT, as ``ACTION@DEVPATH`` and then
``KEY=VALUE``, each ended by a zero byte (``lib/kobject_uevent.c``). udevd sends to group 2, with a header of
libudev's before the properties (``struct monitor_netlink_header`` of systemd's ``device-monitor.c``).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

FAMILY = 15
"""``NETLINK_KOBJECT_UEVENT``."""

KERNEL, UDEVD = 1, 2
SO_RCVBUFFORCE = 33
BUFFER = 16 * 1024 * 1024
"""Bytes; enough for all events of a test."""

LONGEST = 64 * 1024
LIMIT = 60.0
"""Seconds within which an expected event arrives."""

HEADER = struct.Struct(">8sI")
LAYOUT = struct.Struct("=IIIIIII")
"""Size of the header, offset and length of the properties, and hashes that receivers filter by: 0 is any."""

MAGIC = 0xFEEDCAFE

Uevent = tuple[str, str, str]
"""The sender (``kernel`` or ``udevd``), the action, and the path of the device below ``/sys``."""


class Listener:
    """Receives all uevents in a network namespace from entry on.

    Args:
        there: a context in which this thread opens sockets in that namespace.
    """

    def __init__(self, there: AbstractContextManager[None]) -> None:
        with there:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, FAMILY)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)

    def __enter__(self) -> Listener:
        self._socket.bind((0, KERNEL | UDEVD))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def until(self, last: Uevent) -> list[Uevent]:
        """The received events up to this one. Events arrive in the order in which they were sent.

        Raises:
            TimeoutError: it was not received.
        """
        received: list[Uevent] = []
        end = time.monotonic() + LIMIT
        while last not in received:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            try:
                message = self._socket.recv(LONGEST)
            except TimeoutError:
                raise TimeoutError(f"{last} was not received, but {received}") from None
            received.append(_read(message))
        return received


def send_as_udevd(there: AbstractContextManager[None], action: str, device: str, subsystem: str) -> Uevent:
    """Sends an event in a network namespace as udevd does; returns it as a listener receives it.

    This needs ``CAP_NET_ADMIN`` in the namespace, which udevd has.
    """
    properties = {"ACTION": action, "DEVPATH": device, "SUBSYSTEM": subsystem, "SEQNUM": "1"}
    with there:
        sender = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, FAMILY)
    with sender:
        sender.sendto(_libudev(properties), (0, UDEVD))
    return "udevd", action, device


def _libudev(properties: Mapping[str, str]) -> bytes:
    body = b"".join(f"{key}={value}".encode() + b"\0" for key, value in properties.items())
    size = HEADER.size + LAYOUT.size
    return HEADER.pack(b"libudev\0", MAGIC) + LAYOUT.pack(size, size, len(body), 0, 0, 0, 0) + body


def _read(message: bytes) -> Uevent:
    body, who = message, "kernel"
    if message.startswith(b"libudev\0"):
        _, offset, length, *_ = LAYOUT.unpack_from(message, HEADER.size)
        body, who = message[offset : offset + length], "udevd"
    pairs = [line.partition("=") for line in body.decode(errors="replace").split("\0") if "=" in line]
    properties = {key: value for key, _, value in pairs}
    return who, properties.get("ACTION", ""), properties.get("DEVPATH", "")
