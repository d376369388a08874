"""Where the kernel looks for files that it loads by itself (driver-api/firmware/fw_search_path.rst).

It takes a name and looks in its own directories, below the node's own ``/``. devhost puts nothing there and
does not change where the kernel looks: that would concern every driver of the node.
"""

from __future__ import annotations

import os

from devhost.backend import AllocationError
from devhost.backend.sysfs import Sysfs

_PARAMETER = "/sys/module/firmware_class/parameters/path"

NAME_LIMIT = 254
"""Bytes; the ``firmware`` file of Xilinx's kernels copies the name into ``char[NAME_MAX]`` unchecked."""


def name_of(sysfs: Sysfs, path: str) -> str:
    """The name by which the kernel finds the file at ``path``, and no other one.

    Raises:
        AllocationError: it does not.
    """
    directories = _directories(sysfs)
    places = [*directories, *(f"/usr{place}" for place in directories if place.startswith("/lib/"))]
    base = next((place for place in places if path.startswith(f"{place}/")), "")
    if not base:
        raise AllocationError("the kernel does not load files from there: move it below /lib/firmware")
    name = path.removeprefix(f"{base}/")
    if len(os.fsencode(name)) > NAME_LIMIT:
        raise AllocationError("its name is too long for the kernel's firmware loader")
    found = next((place for place in directories if sysfs.exists(f"{place}/{name}")), "")
    if not found:
        raise AllocationError(f"the kernel does not find firmware {name} in {', '.join(directories)}")
    if not _is_same(f"{sysfs.prefix}{found}/{name}", sysfs.prefix + path):
        raise AllocationError(f"the kernel would load {found}/{name} instead, which it finds first")
    return name


def _directories(sysfs: Sysfs) -> list[str]:
    """In the order in which the kernel looks, as the node sees them."""
    own = sysfs.text(_PARAMETER).rstrip("/")
    updates, usual = "/lib/firmware/updates", "/lib/firmware"
    release = os.uname().release
    built_in = [f"{updates}/{release}", updates, f"{usual}/{release}", usual]
    return [own, *built_in] if own.startswith("/") else built_in


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)  # noqa: PTH121 - plain string paths
    except OSError:
        return False
