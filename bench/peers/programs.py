"""Builds the programs of the peers from their Go modules, and gets other files that they need."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FETCH_LIMIT = 600.0
BUILD_LIMIT = 1800.0
"""The time limit for building a program, in seconds."""


class Unavailable(Exception):
    """A requirement that this machine or its network lacks; one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a Go module, built like its authors build it.

    ``flags`` are for the linker, as in the module's makefile.
    """

    name: str
    module: str
    version: str
    package: str
    flags: str = "-s -w"
    cgo: bool = False


INTEL = ("github.com/intel/intel-device-plugins-for-kubernetes", "v0.36.0")

NVIDIA = Program(
    "nvidia-device-plugin",
    "github.com/NVIDIA/k8s-device-plugin",
    "v0.19.1",
    "./cmd/nvidia-device-plugin",
    "-s -w '-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files'",
    cgo=True,
)
INTEL_GPU = Program("gpu_plugin", *INTEL, "./cmd/gpu_plugin")
INTEL_FPGA = Program("fpga_plugin", *INTEL, "./cmd/fpga_plugin")
RDMA = Program(
    "k8s-rdma-shared-dp",
    "github.com/Mellanox/k8s-rdma-shared-dev-plugin",
    "v1.5.3",
    "./cmd/k8s-rdma-shared-dp",
)


def cache() -> Path:
    """The directory of the programs; kept between runs, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-tools" / "peers"


def built(program: Program) -> Path:
    """The program, built if the cache does not have this version yet.

    Raises:
        Unavailable: Go is missing, the module cannot be downloaded, or it does not compile.
    """
    target = cache() / f"{program.name}-{program.version}"
    if target.exists():
        return target
    if not shutil.which("go"):
        raise Unavailable(f"{program.name} is not built yet, and Go is not installed")
    if program.cgo and not (shutil.which("cc") or shutil.which("gcc")):
        raise Unavailable(f"{program.name} requires a C compiler")
    target.parent.mkdir(parents=True, exist_ok=True)
    wanted = f"{program.module}@{program.version}"
    told = _go("mod", "download", "-json", wanted, limit=FETCH_LIMIT)
    part = target.with_suffix(".part")
    command = ("build", "-C", str(json.loads(told)["Dir"]), "-mod=readonly", "-trimpath", "-buildvcs=false")
    _go(
        *(*command, "-ldflags", program.flags, "-o", str(part), program.package),
        limit=BUILD_LIMIT,
        environment={"CGO_ENABLED": str(int(program.cgo))},
    )
    part.rename(target)
    return target


def pci_ids() -> Path:
    """The file with names of PCI devices, which k8s-rdma-shared-dev-plugin requires.

    Raises:
        Unavailable: this machine lacks it, and the Debian package cannot be downloaded.
    """
    places = [Path("/usr/share") / name / "pci.ids" for name in ("misc", "hwdata")]
    places.append(cache() / "pci.ids.d/usr/share/misc/pci.ids")
    for place in places:
        if place.exists():
            return place
    directory = cache() / "pci.ids.d"
    directory.mkdir(parents=True, exist_ok=True)
    try:
        for command in ("apt-get download -q pci.ids", "dpkg-deb -x pci.ids_*.deb ."):
            subprocess.run(
                ["sh", "-c", command], cwd=directory, check=True, capture_output=True, timeout=FETCH_LIMIT
            )
    except (OSError, subprocess.SubprocessError):
        raise Unavailable("pci.ids is missing (Debian: apt-get install pci.ids)") from None
    return places[-1]


def _go(*arguments: str, limit: float, environment: Mapping[str, str] | None = None) -> str:
    sys.stderr.write(f"go {' '.join(arguments[:2])} {arguments[-1]} …\n")
    try:
        done = subprocess.run(
            ["nice", "go", *arguments],
            env=os.environ | dict(environment or {}),
            capture_output=True,
            text=True,
            timeout=limit,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"go {arguments[0]}: not within {limit:.0f} s") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"go {arguments[0]}: {reason(error.stdout + error.stderr)}") from None
    return done.stdout


def reason(output: str) -> str:
    """The line with Go's error: the ``Error`` of its JSON, or the last line that is not progress."""
    for line in output.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == '"Error"':
            return str(json.loads(value.rstrip(","))).splitlines()[0]
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("go: downloading")]
    return lines[-1].strip() if lines else "no reason given"
