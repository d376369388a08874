"""Whether this machine can make an image: tried, not guessed, before anything is fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from running import Unavailable

PROGRAMS: Mapping[str, str] = {"buildah": "buildah", "unshare": "util-linux", "mount": "mount"}
"""Programs, and the packages of Debian and Ubuntu that have them."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BASE_PROGRAMS: Mapping[str, str] = {"mmdebstrap": "mmdebstrap"}
"""What only a locally made base takes, besides the keys of :data:`KEYRING`."""

TRIAL = """\
set -e
mount -t tmpfs none /mnt
mkdir /mnt/one /mnt/proc
mount --bind / /mnt/one
mount -o remount,bind,ro /mnt/one
mount -t proc proc /mnt/proc
"""
"""What a builder and a container do to a machine, in a mount namespace of its own."""

NAMESPACES = ("--mount", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child")
"""The arguments of ``unshare`` for what a container has: all of it ends with its first process."""

TRIAL_LIMIT = 30.0


def cache() -> Path:
    """Where the base lies, and during a run everything else; outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-image"


def require(own_base: bool) -> None:
    """Returns where an image can be made.

    Args:
        own_base: whether the base is made here, too.

    Raises:
        Unavailable: no; with what is missing and the command that brings it.
    """
    wanted = {**PROGRAMS, **(BASE_PROGRAMS if own_base else {})}
    missing = [package for program, package in wanted.items() if shutil.which(program) is None]
    if own_base and not KEYRING.exists():
        missing.append("debian-archive-keyring")
    if missing:
        raise Unavailable(f"this machine lacks what it takes: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise Unavailable("only root can make and try an image here: sudo make image")
    try:
        trial = subprocess.run(
            ["unshare", *NAMESPACES, "sh", "-c", TRIAL],
            capture_output=True,
            text=True,
            timeout=TRIAL_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"namespaces were not made within {TRIAL_LIMIT:.0f} s") from None
    if trial.returncode:
        reason = (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]
        raise Unavailable(f"this machine does not let root make namespaces and mounts: {reason}")
