"""Becomes a program in a container like that of the DaemonSet; runs in namespaces of its own.

    python cell.py ROOT CONFIG PATH PROGRAM ARGUMENT…

The root is read-only, the host is below /host, and what is writable is in memory. The program is root without
any capability, and cannot get one. Nothing of the image is needed to get there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

DEVICES = ("full", "null", "random", "tty", "urandom", "zero")
"""What the OCI runtime specification puts into /dev."""

WRITABLE = ("/run/devhost", "/var/lib/kubelet/device-plugins", "/dev/shm")

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
"""Of linux/prctl.h."""


def mount(*arguments: str | Path) -> None:
    """Runs the program of this name."""
    subprocess.run(["mount", *arguments], check=True, timeout=60)


def bind(source: str | Path, target: Path) -> None:
    """Shows a directory at another place, where it cannot be written."""
    target.mkdir(parents=True, exist_ok=True)
    mount("--bind", source, target)
    mount("-o", "remount,bind,ro", target)


def furnish(root: Path, config: Path) -> None:
    """What a runtime mounts, and what the DaemonSet asks for."""
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
    """Gives up every capability of what is started next, for good; ``last`` is the kernel's highest."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls = [(PR_CAPBSET_DROP, number) for number in range(last + 1)] + [(PR_SET_NO_NEW_PRIVS, 1)]
    for option, value in calls:
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")


def main(root: str, config: str, path: str, program: str, *arguments: str) -> None:
    """Never returns."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text(encoding="ascii"))
    furnish(Path(root), Path(config))
    os.chroot(root)  # from here on, this program's own Python has no library to import from
    os.chdir("/")
    drop(last)
    # what a program is called is found as a runtime finds it: on the image's PATH
    os.environ["PATH"] = path
    os.execvp(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
