"""Runs programs like in a container, as far as GPUs are concerned: with a ``/dev`` that has only some nodes.

CUDA finds GPUs by opening their nodes, and creates missing ones if it may. A container runtime for GPUs
prevents that by mounting a modified ``/proc/driver/nvidia/params``; so does this module.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ALWAYS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""Nodes that every container has (OCI Runtime Specification, "Default Devices")."""

LIMIT = 120.0

SCRIPT = """\
dev=$1
shift
mount -t tmpfs tmpfs "$dev"
mkdir "$dev/shm"
while [ "$1" != -- ]; do
    mkdir -p "$dev/$(dirname "${2#/dev/}")"
    : >"$dev/${2#/dev/}"
    mount --bind "$1" "$dev/${2#/dev/}"
    shift 2
done
shift
if [ -e /proc/driver/nvidia/params ]; then
    sed 's/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' /proc/driver/nvidia/params >"$dev/params"
    mount --bind "$dev/params" /proc/driver/nvidia/params
fi
mount --rbind "$dev" /dev
exec "$@"
"""


class Enclosure:
    """Runs programs that see only some nodes.

    Args:
        directory: an empty one, to lay the nodes out in.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # other users than root get a user namespace, if the machine allows that
        self._unshare = ["unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), "--mount"]

    def why_not(self) -> str:
        """Why no program can be enclosed here; empty if one can."""
        if shutil.which("unshare") is None:
            return "there is no program unshare"
        done = self.run({}, ["true"])
        words = " ".join(done.stderr.split())
        return "" if done.returncode == 0 else f"no mount namespace can be made: {words}"

    def run(self, nodes: Mapping[str, str], program: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end.

        Args:
            nodes: the nodes that it sees: the path on the host by the path in the container.
        """
        given = {path: path for path in ALWAYS} | dict(nodes)
        pairs = [path for inside, host in given.items() for path in (host, inside)]
        command = [*self._unshare, "sh", "-euc", SCRIPT, "sh", os.fspath(self._directory), *pairs, "--"]
        return subprocess.run(
            [*command, *program], capture_output=True, text=True, timeout=LIMIT, check=False
        )
