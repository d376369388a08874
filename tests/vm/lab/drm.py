"""DRM devices of the machine: their parents, their nodes, and the names of their drivers."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

from .kernel import text

CLASS = Path("/sys/class/drm")

_VERSION = struct.Struct("=iii4xQQQQQQ")
"""``struct drm_version`` (include/uapi/drm/drm.h): numbers, then three pairs of length and place."""

_ASK = 3 << 30 | _VERSION.size << 16 | ord("d") << 8
"""``DRM_IOCTL_VERSION``: ``_IOWR('d', 0x00, struct drm_version)``."""

_NAME_LIMIT = 64


def numbers(name: str) -> tuple[int, int]:
    """Major and minor number of a DRM device, as the kernel has them."""
    major, minor = text(CLASS / name / "dev").split(":")
    return int(major), int(minor)


def of(owner: str) -> set[str]:
    """The DRM devices of a PCI function or a platform device: ``{"card0", "renderD128"}``.

    Args:
        owner: PCI address, or the platform device's name.
    """
    entries = (entry for pattern in ("card?", "renderD???") for entry in CLASS.glob(pattern))
    return {entry.name for entry in entries if (entry / "device").resolve().name == owner}


def owner(vendor: str) -> str:
    """The PCI address of the DRM device of a vendor (``0x1af4``); empty while there is none."""
    for entry in CLASS.glob("card?"):
        if text(entry / "device/vendor") == vendor:
            return (entry / "device").resolve().name
    return ""


def driver(node: str) -> str:
    """The name that the driver of a node reports.

    Raises:
        OSError: the node cannot be opened, or its driver does not answer.
    """
    name = ctypes.create_string_buffer(_NAME_LIMIT)
    asked = bytearray(_VERSION.pack(0, 0, 0, _NAME_LIMIT, ctypes.addressof(name), 0, 0, 0, 0))
    descriptor = os.open(node, os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, _ASK, asked)
    finally:
        os.close(descriptor)
    return name.value.decode()
