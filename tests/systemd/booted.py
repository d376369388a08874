"""A machine on which systemd is the first process: namespaces over a copy of this one's file system.

systemd believes it is in a container. Its root is an overlay, so that nothing it writes stays; ``/dev``,
``/sys`` and the network are this machine's, so that devices and the kernel's events are real. Its cgroups are
below one of their own. None of the machine's own units is started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy" / "systemd" / "devhost.service"
SYSTEMD = Path("/lib/systemd/systemd")

PATIENCE = 240.0
"""Seconds until systemd answers, and for one command."""

# Arguments: a directory of the test's own, and the cgroup that systemd gets.
BOOT = r"""
set -eu
echo $$ > "$2/cgroup.procs"
exec unshare --pid --mount --cgroup --uts --ipc --fork --kill-child sh -eu -c '
mount --make-rprivate /
mount -t tmpfs tmpfs "$1/over"
mkdir "$1/over/upper" "$1/over/work" "$1/over/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/over/upper,workdir=$1/over/work" "$1/over/root"
cd "$1/over/root"
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t tmpfs tmpfs sys/fs/cgroup
umount sys/fs/cgroup
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t proc proc proc
mount --bind proc/sys proc/sys # systemd would raise limits of the kernel
mount -o remount,bind,ro proc/sys
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
rm -rf lib/systemd/system/*.target.wants etc/systemd/system
mkdir -p lab opt/python opt/devhost etc/devhost etc/systemd/system var/lib/kubelet
for place in lab opt/devhost etc/devhost etc/systemd/system var/lib/kubelet; do
    mount --bind "$1/$place" "$place"
done
mount --rbind "$3" opt/python
mount --rbind "$5" opt/devhost/tree
mount --rbind "$6" opt/devhost/site
pivot_root . mnt
umount -l /mnt
exec env -i container=lab PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    "$4" --system --unit=lab.target --log-target=null
' sh "$@"
"""

LAB = """[Service]
# There is no journal here.
StandardOutput=append:/lab/log
StandardError=append:/lab/log
RestartSec=1
# A Python that was built elsewhere finds its own library here.
Environment=LD_LIBRARY_PATH=/opt/python/lib
"""

PROGRAM = """#!/opt/python/bin/{python} -I
import sys
from glob import glob
sys.path += ["/opt/devhost/tree/src", *glob("/opt/devhost/tree/plugins/*/src"), "/opt/devhost/site"]
from devhost.cli import main
main()
"""
"""The working tree and the packages it wants are below /opt: the unit hides home directories and /tmp."""


def why_not() -> str:
    """Why such a machine cannot run here; empty if it can."""
    if os.geteuid() != 0:
        return "making namespaces needs root"
    if not SYSTEMD.exists():
        return "no systemd (Debian: systemd)"
    for program in ("setpriv", "unshare", "nsenter", "systemctl"):
        if shutil.which(program) is None:
            return f"no {program}"
    if _cgroups() is None:
        return "cgroups of version 2 are not mounted below /sys/fs/cgroup"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "this kernel has no overlayfs (try modprobe overlay)"
    return ""


def _cgroups() -> Path | None:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and place.startswith("/sys/fs/cgroup"):
            return Path(place)
    return None


class Unbootable(Exception):
    """systemd did not start; the text is its output."""


class Machine:
    """A machine with systemd, and devhost installed as in the guide but not started."""

    def __init__(self, directory: Path, process: subprocess.Popen[str], pid: int) -> None:
        self.directory = directory
        self.config = directory / "etc" / "devhost" / "devhost.yaml"
        self.kubelet_dir = directory / "var" / "lib" / "kubelet" / "device-plugins"
        self.log = directory / "lab" / "log"
        self._process = process
        self._pid = pid

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on the machine to its end."""
        inside = ["nsenter", "-t", str(self._pid), "-m", "-p", "-u", "-i", "-C", *command]
        return subprocess.run(inside, capture_output=True, text=True, timeout=PATIENCE, check=False)

    def systemctl(self, *arguments: str) -> str:
        """The output of systemctl; fails if it fails."""
        done = self.run("systemctl", *arguments)
        assert done.returncode == 0, f"systemctl {' '.join(arguments)}: {done.stderr}{self.lines()}"
        return done.stdout

    def shown(self) -> Mapping[str, str]:
        """The properties of the unit."""
        lines = self.systemctl("show", "devhost").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def lines(self) -> str:
        """devhost's log so far."""
        return self.log.read_text() if self.log.exists() else ""

    def drop_in(self, name: str, content: str | None) -> None:
        """Adds a drop-in to the unit, or removes it with ``None``; effective at the next start."""
        file = self.directory / "etc" / "systemd" / "system" / "devhost.service.d" / f"{name}.conf"
        if content is None:
            file.unlink()
        else:
            file.write_text(content)
        self.systemctl("daemon-reload")

    def pid(self) -> int:
        """The pid of devhost on this machine."""
        inside = self.shown()["MainPID"]
        for status in Path("/proc").glob("[0-9]*/status"):
            with suppress(OSError):
                text = status.read_text()
                numbers = next(line for line in text.splitlines() if line.startswith("NSpid:")).split()[1:]
                if len(numbers) > 1 and numbers[-1] == inside and self._is_inside(status.parent):
                    return int(numbers[0])
        raise LookupError(f"no process {inside} in the machine")

    def _is_inside(self, process: Path) -> bool:
        return (process / "ns" / "pid").readlink() == Path(f"/proc/{self._pid}/ns/pid").readlink()


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """A machine whose files are in ``directory``; it is gone afterwards.

    Raises:
        Unbootable: this kernel or container does not allow it.
    """
    top = _cgroups()
    assert top is not None
    cgroup = top / f"devhost-systemd-{os.getpid()}"
    _install(directory)
    cgroup.mkdir()
    packages = sysconfig.get_path("purelib")
    arguments = [str(directory), str(cgroup), sys.base_prefix, str(SYSTEMD), str(ROOT), packages]
    with (directory / "console").open("w") as console:
        process = subprocess.Popen(
            [
                "setpriv",
                "--pdeathsig",
                "KILL",
                "--",
                "sh",
                "-c",
                BOOT,
                "sh",
                *arguments,
            ],  # it ends with this run
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            text=True,
        )
    try:
        yield Machine(directory, process, _up(directory, process))
    finally:
        process.kill()
        process.wait(PATIENCE)
        _remove(cgroup)


def _install(directory: Path) -> None:
    """Installs devhost as in the guide, with this Python and this working tree instead of wheels."""
    units = directory / "etc" / "systemd" / "system"
    for place in ("over", "lab", "etc/devhost", "var/lib/kubelet", "etc/systemd/system"):
        (directory / place).mkdir(parents=True)
    for place in ("bin", "tree", "site"):
        (directory / "opt" / "devhost" / place).mkdir(parents=True)
    shutil.copy(UNIT, units)
    (units / "lab.target").write_text("[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n")
    (units / "devhost.service.d").mkdir()
    (units / "devhost.service.d" / "lab.conf").write_text(LAB)
    program = directory / "opt" / "devhost" / "bin" / "devhost"
    python = f"python3.{sys.version_info.minor}"
    program.write_text(PROGRAM.format(python=python))
    program.chmod(0o755)


def _up(directory: Path, process: subprocess.Popen[str]) -> int:
    """Waits until the machine's first process answers; returns its pid on this machine."""
    deadline = time.monotonic() + PATIENCE
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            for pid in children.read_text().split():
                asked = ["nsenter", "-t", pid, "-m", "-p", "systemctl", "is-active", "lab.target"]
                done = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE, check=False)
                if done.stdout.strip() == "active":
                    return int(pid)
        time.sleep(0.1)
    raise Unbootable((directory / "console").read_text().strip() or "systemd does not answer")


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while cgroup.exists() and time.monotonic() < deadline:
        for directory, _, _ in os.walk(cgroup, topdown=False):
            with suppress(OSError):  # busy for as long as what was killed is not gone
                Path(directory).rmdir()
        time.sleep(0.05)
