"""The configuration the tests run devhost with, and the resources of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FUSE = "example.com/fuse"
ZRAM = "example.com/zram"
DISK = "example.com/disk"

SHARES = 3
"""How often ``/dev/fuse`` is handed out, if a test does not say otherwise."""


def configuration(
    *, inject: str = "direct", shares: int = SHARES, disk: int | None = None, library: Path | None = None
) -> dict[str, Any]:
    """A shared character device, exclusive block devices, and a group made of one of those.

    The zram device 0 is left alone: a machine may swap on it.

    Args:
        inject: how containers get their devices.
        shares: how often ``FUSE`` is handed out.
        disk: the zram device that ``DISK`` consists of, together with ``library``.
        library: a file that a container with ``DISK`` finds as ``/opt/library``.
    """
    groups = []
    resources = [
        {"name": FUSE, "where": {"devNode": "/dev/fuse"}, "share": {"replicas": shares}},
        {"name": ZRAM, "where": {"subsystem": "block", "sysName": "zram[1-9]*"}, "whenEmpty": "register"},
    ]
    if disk is not None:
        groups.append(
            {
                "name": "disk",
                "members": [{"path": f"/dev/zram{disk}", "containerPath": "/dev/only", "permissions": "r"}],
                "mounts": [{"path": str(library), "containerPath": "/opt/library"}],
                "env": {"DISK": "{devNode}"},
            }
        )
        resources.insert(0, {"name": DISK, "where": {"group": "disk"}})
    return {
        "version": 1,
        "backends": {"udev": {"groups": groups}},
        "resources": [{"backend": "udev", "inject": inject, **resource} for resource in resources],
    }
