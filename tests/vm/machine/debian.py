"""Debian as a source: its keys, the mirror this machine uses, and what of Debian's tools is needed."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

from .command import ENCLOSED
from .store import Unavailable

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

PROGRAMS = ("apt-get", "dpkg", "perl", "mke2fs", "chroot", "setpriv", "unshare", "gzip", "xz")
"""What the host has to have. All of it is in a Debian with apt, and nothing is installed on it."""


def why_not() -> str:
    """Why the machine's parts cannot be had here; empty if they can."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        return f"there is no {missing[0]}"
    if platform.machine() != "x86_64":
        return f"the machine is made for x86_64, and this is {platform.machine()}"
    if not KEYRING.exists():
        return f"this is no Debian: there is no {KEYRING}"
    try:
        done = subprocess.run([*ENCLOSED, "true"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "namespaces are not made within a minute"
    return f"root may not make namespaces: {done.stderr.strip()}" if done.returncode else ""


def release() -> str:
    """The code name of the Debian that runs here: ``bookworm``."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def source(suite: str) -> str:
    """The line of ``sources.list`` for a suite, from the mirror that this machine itself uses.

    Raises:
        Unavailable: apt knows no mirror of Debian.
    """
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    mirrors = [uri for uri in told.split() if uri.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise Unavailable("apt knows no mirror of Debian")
    return f"deb [signed-by={KEYRING}] {mirrors[0]} {suite} main"
