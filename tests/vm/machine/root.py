"""The guest's file system and kernel: a small Debian without boot loader, init system and package tool."""

from __future__ import annotations

import os
from pathlib import Path

from . import command, debian
from .hypervisor import Hypervisor
from .store import Part, Store

SUITE = "trixie"
"""Its Python is 3.13, and the only one that Debian's pyverbs is built for there."""

PACKAGES = (
    *("udev", "kmod", "iproute2", "ethtool", "pciutils", "nvme-cli", "procps", "busybox-static"),
    *("rdma-core", "ibverbs-providers", "ibverbs-utils", "libstdc++6", "python3", "python3-pyverbs"),
)
LIMIT = 900.0
RECIPE = Path(__file__).parent / "recipes" / "kernel"


def root(store: Store, tools: Hypervisor) -> Part:
    """The file system as a directory ``root``, with the kernel of its Debian; ``kernel`` holds its release.

    Raises:
        CannotMake: mmdebstrap failed.
    """

    def make(directory: Path, log: Path) -> None:
        debootstrap(tools, directory / "root", log, *PACKAGES, hooks=(f'{RECIPE} "$1"',))
        for name in ("versions", "kernel"):
            (directory / "root" / name).rename(directory / name)

    return store.part("root", make, Path(__file__), RECIPE)


def debootstrap(tools: Hypervisor, target: Path, log: Path, *packages: str, hooks: tuple[str, ...]) -> None:
    """Makes a Debian in ``target``.

    Args:
        hooks: shell commands that finish it; ``$1`` is the target, and apt obeys
            ``APT_CONFIG=$MMDEBSTRAP_APT_CONFIG``.

    Raises:
        CannotMake: mmdebstrap, or one of the hooks, failed.
    """
    left_out = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
    command.run(
        *(tools.mmdebstrap, "--mode=root", "--variant=essential", f"--include={','.join(packages)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in left_out),
        *("--aptopt=Acquire::Languages none", "--aptopt=APT::Sandbox::User root"),
        *(f"--customize-hook={hook}" for hook in hooks),
        *(SUITE, target, debian.source(SUITE)),
        log=log,
        limit=LIMIT,
        env={
            "TMPDIR": str(target.parent),
            "PATH": f"{tools.mmdebstrap.parent}:{os.environ['PATH']}",  # it has programs of its own beside it
        },
    )
