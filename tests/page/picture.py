"""Pictures of the page as small PNG files (https://www.w3.org/TR/png-3/)."""

from __future__ import annotations

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def size(png: bytes) -> tuple[int, int]:
    """Width and height in pixels."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def smaller(png: bytes) -> bytes:
    """The same picture without filters, which help with photographs and do harm with text on plain ground.

    ``png`` has eight bits a channel, and is not interlaced: so Chromium writes them.
    """
    chunks = dict.fromkeys((b"IHDR", b"IDAT"), b"")
    at = len(_SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        kind = png[at + 4 : at + 8]
        if kind in chunks:
            chunks[kind] += png[at + 8 : at + 8 + length]
        at += 12 + length
    width, height = size(png)
    pixel = {2: 3, 6: 4}[chunks[b"IHDR"][9]]
    raw = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + pixel * width
    plain, above = bytearray(), bytes(stride - 1)
    for start in range(0, height * stride, stride):
        above = _plain(raw[start], raw[start + 1 : start + stride], above, pixel)
        plain += b"\0" + above
    parts = ((b"IHDR", chunks[b"IHDR"]), (b"IDAT", zlib.compress(plain, 9)), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _plain(kind: int, row: bytes, above: bytes, pixel: int) -> bytes:
    line = bytearray(row)
    for at, byte in enumerate(line):
        left, corner = (line[at - pixel], above[at - pixel]) if at >= pixel else (0, 0)
        guess = (0, left, above[at], (left + above[at]) // 2, _paeth(left, above[at], corner))[kind]
        line[at] = (byte + guess) & 255
    return bytes(line)


def _paeth(left: int, above: int, corner: int) -> int:
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
