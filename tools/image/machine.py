"""Checks whether this machine can build an image, before anything is downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from running import Unavailable

PROGRAMS: Mapping[str, str] = {"buildah": "buildah", "unshare": "util-linux", "mount": "mount"}
"""Programs, and the packages of Debian and Ubuntu that contain them."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BASE_PROGRAMS: Mapping[str, str] = {"mmdebstrap": "mmdebstrap"}
"""Additional requirements of a locally built base, besides :data:`KEYRING`."""

TRIAL = """\
set -e
mount -t tmpfs none /mnt
mkdir /mnt/one /mnt/proc
mount --bind / /mnt/one
mount -o remount,bind,ro /mnt/one
mount -t proc proc /mnt/proc
"""
"""The operations of a builder and a container, in a separate mount namespace."""

NAMESPACES = ("--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child")
"""The arguments of ``unshare`` for the namespaces of a container, which end with its first process."""

TRIAL_LIMIT = 30.0


def cache() -> Path:
    """The cache outside the repository: the base, and temporary files of a run."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-image"


def require(own_base: bool) -> None:
    """Returns if an image can be built.

    Args:
        own_base: whether the base is built as well.

    Raises:
        Unavailable: a requirement is missing; the text has the command to install it.
    """
    wanted = {**PROGRAMS, **(BASE_PROGRAMS if own_base else {})}
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if own_base and not KEYRING.exists():
        missing.append("debian-archive-keyring")
    if missing:
        raise Unavailable(f"required programs are missing: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unavailable("only root can build and test an image: sudo make image")
    try:
        trial = subprocess.run(
            ["unshare", *NAMESPACES, "sh", "-c", TRIAL],
            capture_output=True,
            text=True,
            timeout=TRIAL_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"creating namespaces took longer than {TRIAL_LIMIT:.0f} s") from None
    if trial.returncode:
        reason = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        raise Unavailable(f"root cannot create namespaces and mounts on this machine: {reason}")
