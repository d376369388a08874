"""Text from devices, drivers and plugins, made safe for one line of a log or a terminal."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: line ends, escape sequences
    "\u2028\u2029"  # line and paragraph separator
    "\u200e\u200f\u202a-\u202e\u2066-\u2069"  # writing direction: text that reads as something else
    "\ud800-\udfff"  # bytes that were not UTF-8, as Python keeps them: no stream could encode them
    "]"
)


def printable(text: str) -> str:
    """``text`` with every character that could end a line or steer a terminal written as ``\\n``, ``\\x1b`` …

    A device's attribute is whatever its firmware says; it must not be able to forge a log line.
    """
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
