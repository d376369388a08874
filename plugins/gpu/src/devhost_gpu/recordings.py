"""Adapters of recordings that have no bus: only what another device plugin reads, copied along its links.

AMD's plugin reads the functions below its driver and the partitions below the platform bus, Intel's the
directories of the class of DRM devices. There these are links to a device; in such a copy they are its files.
A machine that runs has all of them on its buses, and nothing is found here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from devhost.backend.sysfs import BDF, DEVICES, Sysfs

DRM_CLASS = "/sys/class/drm"
AMDGPU = "/sys/module/amdgpu/drivers/pci:amdgpu"
PLATFORM = f"{DEVICES}platform"

AMD_PARTITION = re.compile(r"amdgpu_xcp[_.]\d{1,5}")
"""What the directories of AMD's partitions are called (drivers/gpu/drm/amd/amdxcp/amdgpu_xcp_drv.c); with a
dot by the first drivers that made them."""

NODE = re.compile(r"(card|renderD)\d{1,5}")
"""Names of DRM devices."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A device whose files are at ``path``.

    ``address`` is its PCI address, empty if it has none or that is not recorded; ``nodes`` are the names of
    its DRM devices. ``vendor`` and ``driver`` are what its place tells, where its files do not.
    """

    path: str
    address: str
    nodes: tuple[str, ...]
    vendor: str = ""
    driver: str = ""


def of_amdgpu(sysfs: Sysfs) -> Iterator[Copy]:
    """The functions bound to AMD's driver, and the partitions."""
    for name in sysfs.names(AMDGPU):
        if BDF.fullmatch(name):
            path = sysfs.device(f"{AMDGPU}/{name}") or f"{AMDGPU}/{name}"
            yield Copy(path, name, nodes_of(sysfs, path), "1002", "amdgpu")
    for name in sysfs.names(PLATFORM):
        path = f"{PLATFORM}/{name}"
        if AMD_PARTITION.fullmatch(name) and (nodes := nodes_of(sysfs, path)):
            yield Copy(path, "", nodes)


def of_drm_class(sysfs: Sysfs, names: Iterable[str]) -> Iterator[Copy]:
    """The devices of these entries of the class, which are no links to any."""
    seen: set[str] = set()
    for name in names:
        path = f"{DRM_CLASS}/{name}/device"
        if name in seen or not sysfs.exists(path):
            continue
        address = sysfs.target(path)
        if not BDF.fullmatch(address):
            address = sysfs.uevent(path).get("PCI_SLOT_NAME", "")
        nodes = nodes_of(sysfs, path) or (name,)
        seen.update(nodes)
        yield Copy(path, address if BDF.fullmatch(address) else "", nodes)


def nodes_of(sysfs: Sysfs, path: str) -> tuple[str, ...]:
    """The names of the DRM devices of the device at ``path``."""
    return tuple(name for name in sysfs.names(f"{path}/drm") if NODE.fullmatch(name))
