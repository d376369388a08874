"""The programs that the chart's tests need, compiled from their Go modules into one cache.

python -m programs            finds or makes all of them, and prints where they are
python -m programs SECONDS    the same, and compiles for no longer than that

The exit code is 77 where this machine or its network cannot give them, and 1 where something is wrong. HELM,
KUSTOMIZE and KUBETYPES in the environment name other programs to use.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from onenode import fetching
from onenode.binaries import UNAVAILABLE
from onenode.fetching import Unavailable, persistently, say
from onenode.golang import CannotBuild, compilers, go

DOWNLOAD_LIMIT = 600.0
BUILD_LIMIT = 1800.0
"""Seconds; a cold build of all of them takes some minutes on two cores."""

KUBERNETES = ("1", "37")
"""What charts are rendered for unless ``--kube-version`` says another; Helm's own build sets it."""

KUBETYPES = Path(__file__).parent / "kubetypes" / "main.go"
ALLOCATES = Path(__file__).parents[1] / "kubelet" / "allocates" / "main.go"


class Missing(Exception):
    """Which program is not there, and how it could be; one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a Go module.

    ``modules`` are what is required, each ``path@version``; ``package`` is compiled, by default ``source``,
    a file of this repository; ``variables`` are set in it.
    """

    version: str
    modules: Sequence[str]
    package: str = "."
    variables: Sequence[str] = ()
    source: Path | None = None


def _helm(version: str) -> Program:
    module = "helm.sh/helm/v3"
    major, minor = KUBERNETES
    return Program(
        version,
        [f"{module}/cmd/helm@{version}"],
        f"{module}/cmd/helm",
        [
            f"{module}/internal/version.version={version}",
            *(
                f"{module}/pkg/{package}.k8sVersion{part}={number}"
                for package in ("chartutil", "lint/rules")
                for part, number in (("Major", major), ("Minor", minor))
            ),
        ],
    )


def _kustomize(version: str) -> Program:
    module = "sigs.k8s.io/kustomize/kustomize/v5"
    return Program(
        version,
        [f"{module}@{version}"],
        module,
        [f"sigs.k8s.io/kustomize/api/provenance.version={version}"],
    )


PROGRAMS: Mapping[str, Program] = {
    "helm": _helm("v3.22.0"),
    "kustomize": _kustomize("v5.8.2"),  # v5.8.3 takes Go 1.27
    "kubetypes": Program(
        "v0.37.0",
        [f"k8s.io/{one}@v0.37.0" for one in ("api", "apimachinery")],
        source=KUBETYPES,
    ),
    "allocates": Program("v0.37.0", ["k8s.io/kubelet@v0.37.0"], source=ALLOCATES),
}


def cache() -> Path:
    """Where the programs lie; kept between runs, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-tools"


def find(name: str) -> Path:
    """A program, from the environment or the cache.

    Raises:
        Missing: it is not there.
    """
    if value := os.environ.get(name.upper()):
        if not os.access(value, os.X_OK):
            raise Missing(f"{name.upper()}={value} is not a program")
        return Path(value).absolute()
    path = _place(name)
    if not path.exists():
        raise Missing(f"{name} is not in {cache()}: run `make chart`, or set {name.upper()}")
    return path


def make(name: str, limit: float = BUILD_LIMIT) -> Path:
    """As :func:`find`, and compiles it if it is not there.

    Args:
        limit: seconds for compiling.

    Raises:
        Missing: it does not compile, or the environment names no program.
        Unavailable: there is no Go, or too old a one; a module cannot be fetched; or it takes too long.
    """
    try:
        return find(name)
    except Missing:
        if os.environ.get(name.upper()):
            raise
    if shutil.which("go") is None:
        raise Unavailable(f"{name} is not built yet, and there is no Go to build it with")
    try:
        return _build(name, limit)
    except CannotBuild as error:
        raise Missing(f"{name}: {error}; {name.upper()} can name a program to use") from None
    except Unavailable as error:
        raise Unavailable(f"{name}: {error}; {name.upper()} can name a program to use") from None


def helm() -> Path:
    """Helm, compiled if need be; raises as :func:`make` does."""
    return make("helm")


def kustomize() -> Path:
    """Kustomize, compiled if need be; raises as :func:`make` does."""
    return make("kustomize")


def _place(name: str) -> Path:
    program = PROGRAMS[name]
    made_from = " ".join((*program.modules, *program.variables)).encode()
    if program.source is not None:
        made_from += program.source.read_bytes()
    return cache() / f"{name}-{program.version}-{hashlib.sha256(made_from).hexdigest()[:8]}" / name


def _build(name: str, limit: float) -> Path:
    """Compiles one at a time; what another run has made meanwhile is taken."""
    program, place = PROGRAMS[name], _place(name)
    directory = place.parent
    directory.mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(
            lock, fcntl.LOCK_EX
        )  # its holder takes no longer than its limits, and frees it when it dies
        if place.exists():
            return place
        (directory / "go.mod").write_text("module devhost-tools\n")
        if program.source is not None:
            shutil.copy(program.source, directory)
        say(f"fetching the modules of {name} {program.version}")
        persistently(lambda: go(directory, DOWNLOAD_LIMIT, "get", *program.modules))
        if program.source is not None:
            persistently(lambda: go(directory, DOWNLOAD_LIMIT, "mod", "tidy"))
        say(f"compiling {name}, with {compilers()} at a time")
        stamp = " ".join(["-s", "-w", *(f"-X {variable}" for variable in program.variables)])
        options = ["-v", "-p", str(compilers()), "-trimpath", "-buildvcs=false", "-ldflags", stamp]
        target = f"{name}.new"
        go(directory, limit, "build", *options, "-o", target, program.package, progress=_compiled)
        (directory / target).replace(place)
    return place


def _compiled(errors: str) -> str:
    return f"compiling: {len(errors.splitlines())} packages so far"


def main(limit: str = str(BUILD_LIMIT)) -> None:
    fetching.NAME = "chart"
    try:
        for name in PROGRAMS:
            say(f"{name:<10} {make(name, float(limit))}")
    except Unavailable as error:
        say(f"skipped, a program cannot be had here: {error}")
        sys.exit(UNAVAILABLE)
    except Missing as error:
        sys.exit(f"chart: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
