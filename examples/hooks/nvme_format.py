"""Erases an NVMe namespace after each container, with ``nvme format`` of nvme-cli."""

from __future__ import annotations

import re

from devhost.backend import Device, hookimpl, process

for_backends = ("udev",)

PROGRAM = "nvme"

NAMESPACE = re.compile(r"/dev/nvme\d+n\d+")


@hookimpl
def devhost_after_release(devices: tuple[Device, ...]) -> None:
    """Erases the user data (``--ses=1``) of each device that is a namespace."""
    for device in devices:
        node = str(device.attributes.get("devNode", ""))
        if NAMESPACE.fullmatch(node):
            result = process.run([PROGRAM, "format", node, "--ses=1", "--force"], deadline=50, name="nvme")
            if failure := result.failure:
                raise RuntimeError(f"nvme {failure}")
