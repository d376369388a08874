"""The programs of the peers, built from their Go modules, and what else they need from outside."""

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
"""Seconds for one program."""


class Unavailable(Exception):
    """What this machine or its network does not give; one line."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a Go module, built as its authors build it.

    ``flags`` go to the linker, as the module's own makefile has them.
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
    """Where the programs lie; kept between runs, outside the repository."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "devhost-tools" / "peers"


def built(program: Program) -> Path:
    """The program, built if the cache does not have that version yet.

    Raises:
        Unavailable: there is no Go, the module cannot be fetched, or it does not compile here.
    """
    target = cache() / f"{program.name}-{program.version}"
    if target.exists():
        return target
    if not shutil.which("go"):
        raise Unavailable(f"{program.name} is not built yet, and there is no Go to build it with")
    if program.cgo and not (shutil.which("cc") or shutil.which("gcc")):
        raise Unavailable(f"{program.name} needs a C compiler")
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
    """The names of PCI devices, which k8s-rdma-shared-dev-plugin does not start without.

    Raises:
        Unavailable: this machine has none, and Debian's package cannot be fetched.
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
        raise Unavailable("there is no pci.ids (Debian: apt-get install pci.ids)") from None
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
    """The line in which Go says what is wrong: the ``Error`` of its JSON, or the last that is no progress."""
    for line in output.splitlines():
        key, _, value = line.strip().partition(": ")
        if key == '"Error"':
            return str(json.loads(value.rstrip(","))).splitlines()[0]
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith("go: downloading")]
    return lines[-1].strip() if lines else "it does not say why"
