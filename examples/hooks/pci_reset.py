"""Resets a PCI device after each container, by the kernel, so that nothing of it is left for the next one."""

from __future__ import annotations

from pathlib import Path

from devhost.backend import Device, hookimpl

for_backends = ("udev",)

ROOT = Path("/")


@hookimpl
def devhost_after_release(devices: tuple[Device, ...]) -> None:
    """Writes to the file ``reset`` of each device, which sysfs has if the kernel can reset it."""
    for device in devices:
        if address := device.attributes.get("pciBusID"):
            (ROOT / f"sys/bus/pci/devices/{address}/reset").write_text("1")
