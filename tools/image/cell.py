"""Runs a program in a container like that of the DaemonSet; must be started in separate namespaces.

    python cell.py ROOT CONFIG PATH PROGRAM ARGUMENT…

The root is read-only, the host is below /host, and writable directories are in memory. The program is root
without any capability, and cannot get one. This uses nothing from the image.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""The devices in /dev by the OCI runtime specification."""

WRITABLE = ("/run/devhost", "/var/lib/kubelet/device-plugins", "/dev/shm")

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
"""Constants of linux/prctl.h."""


def mount(*arguments: str | Path) -> None:
    """Runs a program."""
    subprocess.run(["mount", *arguments], check=True, timeout=60)


def bind(source: str | Path, target: Path) -> None:
    """Mounts a directory read-only at another path."""
    target.mkdir(parents=True, exist_ok=True)
    mount("--bind", source, target)
    mount("-o", "remount,bind,ro", target)


def furnish(root: Path, config: Path) -> None:
    """Makes the mounts of a runtime and of the DaemonSet."""
    for path in ("proc", "dev", *(each.lstrip("/") for each in WRITABLE)):
        (root / path).mkdir(parents=True, exist_ok=True)
    for path in ("host", "etc/devhost"):
        (root / path).mkdir(exist_ok=True)
    bind(root, root)
    mount("-t", "proc", "proc", root / "proc")
    mount("-t", "tmpfs", "-o", "mode=755", "dev", root / "dev")
    for name in DEVICES:
        (root / "dev" / name).touch()
        mount("--bind", f"/dev/{name}", root / "dev" / name)
    (root / "dev" / "shm").mkdir()
    for path in WRITABLE:
        mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", root / path.lstrip("/"))
    bind("/sys", root / "sys")
    bind("/", root / "host")
    bind("/sys", root / "host" / "sys")
    bind("/dev", root / "host" / "dev")
    bind(config, root / "etc" / "devhost")


def drop(last: int) -> None:
    """Drops every capability permanently for the next program; ``last`` is the kernel's highest."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls = [(PR_CAPBSET_DROP, number) for number in range(last + 1)] + [(PR_SET_NO_NEW_PRIVS, 1)]
    for option, value in calls:
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(root: str, config: str, path: str, program: str, *arguments: str) -> None:
    """Runs the program in the container; never returns."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    furnish(Path(root), Path(config))
    os.chroot(root)  # from here on this Python cannot import modules
    os.chdir("/")
    drop(last)
    # the program is searched on the image's PATH, as by a runtime
    os.environ["PATH"] = path
    os.execvp(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
