"""The first process of the node's namespaces: sets them up as a node, then waits.

Started by :mod:`onenode.namespaces` as process 1 of a new pid namespace, with mount and network
namespaces of its own too. It leaves when its standard input ends, and the kernel then ends every process
in them and takes away every mount: nothing of a node outlives whoever started it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PRIVATE = ("/run", "/var/lib", "/var/log")
"""Directories that the node's programs write to at fixed paths; they are empty file systems in memory."""

KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""Settings that a kubelet changes if they have other values.

It finds ordinary files with its values, so that the machine's settings do not change."""


def main(address: str, name: str) -> None:
    host_pid = Path("/proc/self").readlink()  # still the host's /proc
    _run("mount", "-t", "proc", "proc", "/proc")
    for directory in PRIVATE:
        _run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", directory)
    own = Path("/run/node")
    own.mkdir()
    for setting, value in KERNEL_SETTINGS.items():
        _cover(own / setting.replace("/", "_"), f"{value}\n", Path("/proc/sys", setting))
    _cover(own / "hosts", f"127.0.0.1 localhost\n{address} {name}\n", Path("/etc/hosts"))
    _cover(own / "resolv.conf", "nameserver 127.0.0.1\n", Path("/etc/resolv.conf"))
    _run("mount", "--make-rshared", "/")
    _run("ip", "link", "set", "lo", "up")
    # a kubelet looks for its address at the default route; another node may have the same network
    _run("ip", "address", "replace", f"{address}/32", "dev", "lo")
    _run("ip", "route", "replace", "default", "dev", "lo", "src", address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans of the node are reaped by the kernel
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(sys.stdout.fileno(), f"{host_pid}\n".encode())
    while os.read(sys.stdin.fileno(), 1):
        pass


def _run(*command: str) -> None:
    subprocess.run(command, check=True, timeout=120)


def _cover(file: Path, text: str, place: Path) -> None:
    if place.exists():
        file.write_text(text)
        _run("mount", "--bind", str(file), str(place))


if __name__ == "__main__":
    main(*sys.argv[1:])
