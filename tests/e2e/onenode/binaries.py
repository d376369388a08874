"""Which programs the cluster is made of, where each comes from, and which versions they are.

python -m onenode.binaries      finds or makes all of them, and prints their versions
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import debian, kubernetes, namespaces


class Missing(Exception):
    """Which program cannot be had, and how it could be; one line."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program of a Debian package; ``check`` are the arguments that show that it runs."""

    package: str
    path: str
    check: tuple[str, ...] = ("--version",)


PACKAGED: Mapping[str, Packaged] = {
    "containerd": Packaged("containerd", "usr/bin/containerd"),
    "ctr": Packaged("containerd", "usr/bin/ctr"),
    "runc": Packaged("runc", "usr/sbin/runc"),
    "etcd": Packaged("etcd-server", "usr/bin/etcd"),
    "cni-ptp": Packaged("containernetworking-plugins", "usr/lib/cni/ptp", ()),
    "busybox": Packaged("busybox-static", "usr/bin/busybox", ("true",)),
}
"""``cni-ptp`` stands for the directory it is in; without arguments it tells its version."""

NAMES = (*kubernetes.PARTS, *PACKAGED)


def cache() -> Path:
    """Where programs, logs and settings lie; kept between runs, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-e2e"


def variable(name: str) -> str:
    """The environment variable that names another program to use: ``KUBE_APISERVER`` and so on."""
    return name.upper().replace("-", "_")


def find(*, make: bool = False) -> dict[str, Path]:
    """Every program by name: from the environment, else from the cache.

    Args:
        make: fetch or build what the cache lacks. Takes minutes the first time.

    Raises:
        Missing: one cannot be had.
    """
    found = {name: path for name in NAMES if (path := _chosen(name)) is not None}
    packages = debian.Packages(cache() / "debian")
    for name in NAMES:
        if name not in found:
            found[name] = _made(name, packages) if make else _cached(name)
    return found


def versions(programs: Mapping[str, Path]) -> dict[str, str]:
    """What each program says of its version, in one line."""
    return {name: _version(name, path) for name, path in programs.items()}


@contextmanager
def alone() -> Iterator[None]:
    """One cluster at a time: they would share a directory and a cgroup.

    Raises:
        BlockingIOError: another one is up.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _chosen(name: str) -> Path | None:
    value = os.environ.get(variable(name))
    if not value:
        return None
    path = Path(value).absolute()
    if not os.access(path, os.X_OK):
        raise Missing(f"{variable(name)}={value} is not a program")
    return path


def _cached(name: str) -> Path:
    if name in PACKAGED:
        path = cache() / "debian" / PACKAGED[name].package / PACKAGED[name].path
    else:
        path = cache() / f"kubernetes-{kubernetes.version()}" / name
    if not path.exists():
        raise Missing(f"{name} is not in {cache()}: run `make e2e`, or set {variable(name)}")
    return path


def _made(name: str, packages: debian.Packages) -> Path:
    try:
        if name not in PACKAGED:
            return kubernetes.build(cache())[name]
        wanted = PACKAGED[name]
        return packages.program(wanted.package, wanted.path, wanted.check)
    except (debian.CannotFetch, kubernetes.CannotBuild) as error:
        raise Missing(f"{error}; set {variable(name)} to a program") from None


def _version(name: str, path: Path) -> str:
    arguments = () if name in ("cni-ptp", "busybox") else ("--version",)
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if lines else "?"


def main() -> None:
    if reason := namespaces.why_not():
        sys.exit(f"e2e: {reason}")
    began = time.monotonic()
    sys.stdout.write("e2e: looking for programs; the first run builds Kubernetes and takes minutes\n")
    sys.stdout.flush()
    try:
        programs = find(make=True)
    except Missing as error:
        sys.exit(f"e2e: {error}")
    for name, version in versions(programs).items():
        sys.stdout.write(f"  {name:<24} {version}\n")
    sys.stdout.write(f"e2e: all programs there after {time.monotonic() - began:.0f} s\n")


if __name__ == "__main__":
    main()
