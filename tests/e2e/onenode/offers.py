"""The configuration of devhost in the tests, and its resources."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

FUSE = "example.com/fuse"
ZRAM = "example.com/zram"
DISK = "example.com/disk"

KINDS = {
    "fuse": "/dev/fuse",
    "kvm": "/dev/kvm",
    "tun": "/dev/net/tun",
    "vsock": "/dev/vsock",
    "vhost-net": "/dev/vhost-net",
    "loop-control": "/dev/loop-control",
    "loop": "/dev/loop0",
    "input": "/dev/uinput",
    "entropy": "/dev/hwrng",
}
"""Device nodes that machines may have, one of each kind. Opening one does not affect the device."""

SHARES = 3
"""The default number of shares of ``/dev/fuse``."""


def configuration(
    *, inject: str = "direct", shares: int = SHARES, disk: int | None = None, library: Path | None = None
) -> dict[str, Any]:
    """A shared character device, exclusive block devices, and a group with one of those.

    The zram device 0 is not used: a machine may swap on it.

    Args:
        inject: how containers get their devices.
        shares: the number of shares of ``FUSE``.
        disk: the zram device in ``DISK``, together with ``library``.
        library: a file that is mounted as ``/opt/library`` with ``DISK``.
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


def kinds() -> dict[str, str]:
    """The :data:`KINDS` that this machine has and can open; device nodes by resource."""
    found = {}
    for kind, node in KINDS.items():
        with suppress(OSError):
            os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
            found[f"example.com/{kind}"] = node
    return found
