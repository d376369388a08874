"""Identifiers of FPGA images as drivers print them, and the names that Intel's plugin made of them.

The drivers print 128 bits as two words of 16 hexadecimal digits, the high one first (``afu_id_show`` in
drivers/fpga/dfl-afu-main.c, ``compat_id_show`` in drivers/fpga/fpga-region.c of the Linux kernel).
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from devhost.backend.sysfs import SYSFS_LIMIT, Sysfs

_ID = re.compile(r"[0-9a-f]{32}")

ONES = "f" * 32
"""What a function that lost its link, or a port without a clock, reads as."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading one file: its text, or the number of the error (``errno``)."""

    text: str = ""
    error: int = 0

    @property
    def is_absent(self) -> bool:
        """Whether there is nothing to read: no such file, or a driver that answers so."""
        return self.error in (errno.ENOENT, errno.ENOTDIR)

    @property
    def is_busy(self) -> bool:
        """Whether the driver asks to come again: the port is in reset, as while it is being programmed."""
        return self.error in (errno.EBUSY, errno.EAGAIN)

    @property
    def id(self) -> str:
        """The identifier, 32 lower-case hexadecimal digits; empty where it is none, or all ones."""
        digits = normal(self.text)
        return digits if _ID.fullmatch(digits) and digits != ONES else ""

    def flaw(self, what: str) -> str:
        """Why this is no identifier, as a sentence about ``what``; empty where it is one."""
        if self.error:
            return f"{what} cannot be read: {os.strerror(self.error)}"
        if self.id:
            return ""
        if not self.text:
            return f"{what} is empty"
        if normal(self.text) == ONES:
            return f"{what} reads as ones: it has failed, or lost its link"
        shown = self.text if len(self.text) <= 40 else f"{self.text[:40]}…"
        return f"{what} is {shown!r}, and not 32 hexadecimal digits"


def normal(text: str) -> str:
    """An identifier as all of devhost writes it: lower case, without ``0x`` and without hyphens."""
    return text.strip().lower().removeprefix("0x").replace("-", "")


def read(sysfs: Sysfs, path: str) -> Reading:
    """Reads a small file and keeps the error, which tells "busy" from "broken". Never raises."""
    try:
        descriptor = os.open(sysfs.prefix + path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        return Reading(error=getattr(error, "errno", None) or errno.EINVAL)
    try:
        data = os.read(descriptor, SYSFS_LIMIT)
    except OSError as error:
        return Reading(error=error.errno or errno.EIO)
    finally:
        os.close(descriptor)
    text = data.decode(errors="replace").strip()
    return Reading(text if text.isprintable() else "?")


def af_name(interface_id: str, afu_id: str) -> str:
    """The name of an accelerator function's resource, without domain, as Intel's plugin made it.

    ``af-``, three digits of each id, and both ids in base64 for URLs without padding: 54 characters. Empty
    where an id is missing. (intel-device-plugins-for-kubernetes, pkg/fpga/devtypes.go: ``GetAfuDevType``.)
    """
    if not (_ID.fullmatch(interface_id) and _ID.fullmatch(afu_id)):
        return ""
    from binascii import b2a_base64

    encoded = b2a_base64(bytes.fromhex(interface_id + afu_id), newline=False).decode()
    words = encoded.rstrip("=").replace("+", "-").replace("/", "_")
    return f"af-{interface_id[:3]}.{afu_id[:3]}.{words}"


def region_name(interface_id: str) -> str:
    """The name of a region's resource, without domain, as Intel's plugin made it; empty without an id."""
    return f"region-{interface_id}" if _ID.fullmatch(interface_id) else ""
