"""The programs of the cluster, their sources and their versions.

python -m onenode.binaries            finds or builds all of them, and prints their versions
python -m onenode.binaries SECONDS    the same, with a limit for compiling

The exit code is 77 if this machine or its network cannot provide what a cluster needs, and 1 for an error.
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

from . import debian, kubernetes, probe
from .fetching import Unavailable, say
from .golang import CannotBuild

UNAVAILABLE = 77
"""The exit code that test drivers since Automake's count as "skipped"."""


class Missing(Exception):
    """Which program is missing, and how to get it; one line."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program of a Debian package; ``check`` are arguments that test whether it runs."""

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
"""``cni-ptp`` represents its directory; without arguments it prints its version."""

VERSION_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "cni-ptp": (),
    "busybox": (),
    "kubectl": ("version", "--client"),
}
"""The arguments for the version of programs without ``--version``."""

NAMES = (*kubernetes.PARTS, *PACKAGED)


def cache() -> Path:
    """The directory for programs, logs and settings; kept between runs, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-e2e"


def variable(name: str) -> str:
    """The environment variable that names another program to use: ``KUBE_APISERVER`` and so on."""
    return name.upper().replace("-", "_")


def find() -> dict[str, Path]:
    """Every program by name: from the environment, or from the cache.

    Raises:
        Missing: a program is missing.
    """
    found, wanted = _chosen()
    return found | {name: _cached(name) for name in wanted}


def make(limit: float = kubernetes.BUILD_LIMIT) -> dict[str, Path]:
    """As :func:`find`, but downloads or builds what the cache lacks. This takes minutes the first time.

    Downloads of seconds come before builds of minutes, in case a download fails.

    Args:
        limit: seconds for compiling.

    Raises:
        Missing: a program is missing, or does not compile.
        Unavailable: a program is not available on this machine.
    """
    found, wanted = _chosen()
    to_build = [name for name in wanted if name not in PACKAGED]
    name = wanted[0] if wanted else ""
    try:
        if to_build and not kubernetes.is_built(cache()) and (reason := kubernetes.why_not()):
            raise Unavailable(reason)
        packages = debian.Packages(cache() / "debian")
        for name in [each for each in wanted if each in PACKAGED]:
            program = PACKAGED[name]
            found[name] = packages.program(program.package, program.path, program.check)
        for name in to_build:
            found[name] = kubernetes.build(cache(), limit)[name]
    except Unavailable as error:
        raise Unavailable(f"{error}; {variable(name)} can name a program to use") from None
    except CannotBuild as error:
        raise Missing(f"{error}; {variable(name)} can name a program to use") from None
    return found


def versions(programs: Mapping[str, Path]) -> dict[str, str]:
    """The version of each program, in one line."""
    return {name: _version(name, path) for name, path in programs.items()}


@contextmanager
def alone() -> Iterator[None]:
    """Allows one cluster at a time: two would share a directory and a cgroup.

    Raises:
        BlockingIOError: another cluster is running.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _chosen() -> tuple[dict[str, Path], list[str]]:
    """The programs named in the environment, and the names of the others."""
    found = {}
    for name in NAMES:
        if value := os.environ.get(variable(name)):
            found[name] = Path(value).absolute()
            if not os.access(found[name], os.X_OK):
                raise Missing(f"{variable(name)}={value} is not a program")
    return found, [name for name in NAMES if name not in found]


def _cached(name: str) -> Path:
    if name in PACKAGED:
        path = cache() / "debian" / PACKAGED[name].package / PACKAGED[name].path
    else:
        path = cache() / f"kubernetes-{kubernetes.version()}" / name
    if not path.exists():
        raise Missing(f"{name} is not in {cache()}: run `make e2e`, or set {variable(name)}")
    return path


def _version(name: str, path: Path) -> str:
    arguments = VERSION_ARGUMENTS.get(name, ("--version",))
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=120, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return lines[0].strip() if lines else "?"


def main(limit: str = str(kubernetes.BUILD_LIMIT)) -> None:
    began = time.monotonic()
    if reason := probe.why_not():
        say(f"skipped, this machine cannot run a node: {reason}")
        sys.exit(UNAVAILABLE)
    try:
        with alone():
            programs = make(float(limit))
    except BlockingIOError:
        sys.exit(f"e2e: another run is using {cache()}")
    except Unavailable as error:
        say(f"skipped, a program is not available here: {error}")
        sys.exit(UNAVAILABLE)
    except Missing as error:
        sys.exit(f"e2e: {error}")
    for name, version in versions(programs).items():
        say(f"{name:<24} {version}")
    say(f"all programs there after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
