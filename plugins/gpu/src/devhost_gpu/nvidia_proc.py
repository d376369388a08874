"""What NVIDIA's driver tells of itself under ``/proc/driver/nvidia``, with or without NVML."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devhost.backend.sysfs import Sysfs

DRIVER = "/proc/driver/nvidia"
MODULE = "/sys/module/nvidia"

_VERSION = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)?)\s")
_UUID = re.compile(r"GPU-[0-9a-f-]{8,59}")
_MINOR = re.compile(r"DeviceFileMinor:\s*(\d+)")


@dataclass(frozen=True, slots=True)
class Information:
    """What the driver tells of one GPU. ``uuid`` is empty for one that has not been woken up yet."""

    uuid: str = ""
    minor: int | None = None
    model: str = ""
    is_excluded: bool = False


class Proc:
    """Reads the driver's files. Nothing is remembered."""

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs

    @property
    def is_loaded(self) -> bool:
        """Whether the driver is loaded and nobody is about to unload it (module_state, ``initstate``)."""
        return self._sysfs.exists(DRIVER) and self._sysfs.text(f"{MODULE}/initstate") != "going"

    def version(self) -> str:
        """The version of the driver that is loaded; empty where there is none."""
        if version := self._sysfs.text(f"{MODULE}/version"):
            return version
        found = _VERSION.search(self._sysfs.text(f"{DRIVER}/version"))
        return found[1] if found else ""

    def information(self, address: str) -> Information:
        """What it tells of the GPU at a PCI address."""
        fields = {}
        for line in self._sysfs.text(f"{DRIVER}/gpus/{address}/information").splitlines():
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        return Information(
            uuid=uuid if _UUID.fullmatch(uuid) else "",
            minor=int(minor) if minor.isdecimal() else None,
            model=fields.get("Model", ""),
            is_excluded=fields.get("GPU Excluded", "") == "Yes",
        )

    def capabilities(self, minor: int | None, gi: int, ci: int) -> tuple[int, ...]:
        """The minors of the nodes that give access to a GPU instance and one of its compute instances.

        Empty where the driver does not tell both. (NVIDIA's MIG user guide, "Device Nodes and Capabilities".)
        """
        base = f"{DRIVER}/capabilities/gpu{minor}/mig/gi{gi}"
        found = [
            _MINOR.search(self._sysfs.text(path)) for path in (f"{base}/access", f"{base}/ci{ci}/access")
        ]
        return tuple(int(match[1]) for match in found if match) if all(found) else ()
