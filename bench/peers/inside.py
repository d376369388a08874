"""Mounts a machine of files over this one, in separate namespaces, and runs the plugin.

    unshare --mount --net --propagation private -- python inside.py PLACE [--no-rdma] -- COMMAND…

``PLACE`` has ``root``, the machine, ``dev``, its nodes, and ``k``, the kubelet's directory. ``/sys``,
``/dev``, ``/run/udev`` and ``/proc/driver`` are then those of the machine, and the kubelet's directory is at
its usual path. All mounts end with the process. ``PLACE/began`` has the monotonic time just before the plugin
starts.

This script imports nothing from the project, because that would delay the start of the plugin.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

BORROWED = ("kernel", "fs", "devices/system")
"""Directories below ``/sys`` that stay those of this machine: memory, processors and control groups."""

NETLINK_RDMA = 20
"""``linux/netlink.h``."""

SOCKET = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""``AUDIT_ARCH_…`` of ``linux/audit.h`` and the number of ``socket``, by processor."""

PR_SET_PDEATHSIG = 1
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
EINVAL = 22


def mount(*arguments: str | Path) -> None:
    """Runs ``mount``."""
    subprocess.run(["mount", *map(str, arguments)], check=True)


def lay_out(place: Path) -> None:
    """Mounts the directories of the machine for this process."""
    root = place / "root"
    mount("-t", "tmpfs", "none", "/var/lib")
    Path("/var/lib/kubelet").mkdir()
    mount("--bind", place / "k", "/var/lib/kubelet")
    for name in BORROWED:
        (root / "sys" / name).mkdir(parents=True, exist_ok=True)
        mount("--rbind", f"/sys/{name}", root / "sys" / name)
    mount("--rbind", root / "sys", "/sys")
    mount("--bind", root / "proc/driver", "/proc/driver")
    mount("--bind", place / "dev", "/dev")
    mount("-t", "tmpfs", "none", "/run")
    Path("/run/udev").mkdir()
    mount("--bind", root / "run/udev", "/run/udev")


def refuse_rdma() -> None:
    """Makes the kernel answer EINVAL when a socket for RDMA netlink is created.

    This is a filter of seccomp(2), which the plugin inherits and which affects nothing else.
    """
    arch, number = SOCKET[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06
    program = [
        (load, 0, 0, 4),  # seccomp_data.arch
        (equal, 0, 5, arch),
        (load, 0, 0, 0),  # seccomp_data.nr
        (equal, 0, 3, number),
        (load, 0, 0, 32),  # the lower half of seccomp_data.args[2]
        (equal, 0, 1, NETLINK_RDMA),
        (give, 0, 0, 0x00050000 | EINVAL),  # SECCOMP_RET_ERRNO
        (give, 0, 0, 0x7FFF0000),  # SECCOMP_RET_ALLOW
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))

    class Program(ctypes.Structure):
        """``struct sock_fprog``."""

        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    wanted = Program(len(program), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(wanted), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def main(place: str, *rest: str) -> None:
    """Runs the plugin; never returns."""
    split = rest.index("--")
    lay_out(Path(place))
    if "--no-rdma" in rest[:split]:
        refuse_rdma()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the measuring process
    command = rest[split + 1 :]
    Path(place, "began").write_text(str(time.monotonic()), encoding="ascii")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
