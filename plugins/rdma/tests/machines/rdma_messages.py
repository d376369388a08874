"""Netlink messages as a kernel sends them: include/uapi/linux/{netlink,rtnetlink,if_link}.h."""

from __future__ import annotations

import struct

NEWLINK, DELLINK = 16, 17
UP, RUNNING, PROMISC, LOWER_UP = 0x1, 0x40, 0x100, 0x10000


def message(kind: int, sequence: int = 0, payload: bytes = b"") -> bytes:
    """One message with its header."""
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, sequence, 0) + payload


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to a multiple of 4."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def link(
    index: int,
    flags: int = UP | RUNNING | LOWER_UP,
    *,
    name: str = "",
    operstate: int | None = None,
    carrier: int | None = None,
    kind: int = NEWLINK,
    family: int = 0,
    more: bytes = b"",
) -> bytes:
    """One message of the group of links, with the attributes given and no others."""
    data = struct.pack("=BxHiII", family, 1, index, flags, 0)
    if name:
        data += attribute(3, name.encode() + b"\0")
    if operstate is not None:
        data += attribute(16, bytes([operstate]))
    if carrier is not None:
        data += attribute(33, bytes([carrier]))
    return message(kind, payload=data + more)
