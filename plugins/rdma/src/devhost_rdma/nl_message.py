"""Netlink messages as bytes: encoding and decoding, pure and bounded by the bytes given.

The layout is that of include/uapi/linux/netlink.h of the Linux kernel: a header of 16 bytes, then for most
families attributes of type, length and value, everything in the machine's own byte order and padded to a
multiple of 4. What is malformed ends the decoding; nothing here raises.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

ERROR = 2
"""Type of a message that answers a request with an errno (``NLMSG_ERROR``; 0 is an acknowledgement)."""

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERRNO = struct.Struct("=i")
_REQUEST = 0x1
# NLA_F_NESTED and NLA_F_NET_BYTEORDER share the field with the type
_TYPE_MASK = 0x3FFF


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its ``kind`` (``nlmsg_type``), the ``sequence`` of the request it answers, its payload."""

    kind: int
    sequence: int
    payload: bytes

    @property
    def errno(self) -> int:
        """The error an :data:`ERROR` message tells of, positive; 0 for none."""
        if self.kind != ERROR or len(self.payload) < _ERRNO.size:
            return 0
        return abs(int(_ERRNO.unpack_from(self.payload)[0]))


def request(kind: int, sequence: int) -> bytes:
    """A question that has no arguments."""
    return _HEADER.pack(_HEADER.size, kind, _REQUEST, sequence, 0)


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages of one datagram, as many as are whole."""
    at = 0
    while at + _HEADER.size <= len(datagram):
        length, kind, _, sequence, _ = _HEADER.unpack_from(datagram, at)
        if length < _HEADER.size or at + length > len(datagram):
            return
        yield Message(kind, sequence, datagram[at + _HEADER.size : at + length])
        at += _aligned(length)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute, as many as are whole; a type may occur more than once."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += _aligned(length)


def number(value: bytes | None) -> int | None:
    """An unsigned number of 1, 2, 4 or 8 bytes; ``None`` for no value or another length."""
    if value is None or len(value) not in (1, 2, 4, 8):
        return None
    return int.from_bytes(value, sys.byteorder)


def text(value: bytes | None) -> str:
    """A string up to its NUL; empty for no value or one that is not printable text."""
    if value is None:
        return ""
    try:
        found = value.split(b"\0", 1)[0].decode()
    except UnicodeDecodeError:
        return ""
    return found if found.isprintable() else ""


def _aligned(length: int) -> int:
    return (length + 3) & ~3
