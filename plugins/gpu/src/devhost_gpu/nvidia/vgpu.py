"""Whether an NVIDIA GPU is a vGPU, and the driver of its hypervisor.

Its manager describes that in the vendor-specific capability of the PCI configuration space, which GPU feature
discovery reads, too (NVIDIA/k8s-device-plugin, ``internal/vgpu``).
"""

from __future__ import annotations

from devhost.backend.frozen import frozen
from devhost.backend.sysfs import PCI_BUS, Sysfs, read_bytes

SIZE = 256
"""Bytes of the configuration space. The kernel shows 64 of them to a process without CAP_SYS_ADMIN."""

_STATUS, _HAS_CAPABILITIES, _FIRST, _VENDOR_SPECIFIC = 0x06, 0x10, 0x34, 0x09
_SIGNATURE = b"VF"
_DRIVER, _LENGTH = 0, 10
"""The record with the version and the branch of the host's driver, and the bytes of each."""


@frozen
class Vgpu:
    """Whether a GPU is a vGPU; version (``460.16``) and branch (``r460_00``) of the host's driver."""

    present: bool = False
    version: str = ""
    branch: str = ""


def read(sysfs: Sysfs, address: str) -> Vgpu | None:
    """What the GPU at a PCI address is; ``None`` if the process may not read that.

    A sleeping GPU is not woken up: it is no vGPU.
    """
    path = f"{PCI_BUS}/{address}"
    if sysfs.text(f"{path}/power/runtime_status") == "suspended":
        return Vgpu()
    config = read_bytes(f"{sysfs.prefix}{path}/config", SIZE) or b""
    return _parsed(config) if len(config) == SIZE else None


def _parsed(config: bytes) -> Vgpu:
    at, seen = config[_FIRST] if config[_STATUS] & _HAS_CAPABILITIES else 0, set[int]()
    while at and at not in seen and at + 3 <= SIZE and config[at] != 0xFF:
        seen.add(at)
        if config[at] == _VENDOR_SPECIFIC:
            record = config[at : at + config[at + 2]]
            return _records(record[5:]) if record[3:5] == _SIGNATURE else Vgpu()
        at = config[at + 1]
    return Vgpu()


def _records(rest: bytes) -> Vgpu:
    """Reads the records: each has a kind, its length with these two bytes, and its data."""
    while len(rest) >= 2 and rest[0] != _DRIVER and rest[1]:
        rest = rest[rest[1] :]
    if len(rest) < 2 + 2 * _LENGTH or rest[0] != _DRIVER:
        return Vgpu(present=True)
    return Vgpu(True, *(_text(rest[at : at + _LENGTH]) for at in (2, 2 + _LENGTH)))


def _text(data: bytes) -> str:
    text = data.strip(b"\0").decode("ascii", errors="replace")
    return text if text.isprintable() and "\ufffd" not in text else ""
