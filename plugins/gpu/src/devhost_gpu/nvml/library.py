"""Where NVML and its Python binding are."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path

from devhost.backend.sysfs import prefix_of

LIBRARY = "libnvidia-ml.so.1"

_MACHINE = platform.machine()

DIRECTORIES = (
    "usr/lib64",
    f"usr/lib/{_MACHINE}-linux-gnu",
    f"lib/{_MACHINE}-linux-gnu",
    "lib64",
    f"usr/lib/{_MACHINE}-linux-gnu/nvidia/current",
    "usr/lib/nvidia/current",
    "usr/lib",
    "lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "home/kubernetes/bin/nvidia/lib64",
)
"""Where a driver puts its libraries, below its root; the distributions' own places first."""


def binding() -> str:
    """The directory with the module ``pynvml``, which is not imported; empty where it is not installed."""
    try:
        spec = find_spec("pynvml")
    except (ImportError, ValueError):
        return ""
    if spec is None or not spec.origin:
        return ""
    place = Path(spec.origin).parent
    return os.fspath(place.parent if spec.submodule_search_locations else place)


def library(root: Path, driver_root: str) -> str | None:
    """The library to load: a path, or empty for the one that the loader finds; ``None`` if there is none.

    Args:
        root: what stands for ``/``.
        driver_root: where the driver's files are below it, ``/run/nvidia/driver``.
    """
    prefix = prefix_of(root)
    base = f"{prefix}/{driver_root.strip('/')}".rstrip("/")
    for directory in DIRECTORIES:
        path = f"{base}/{directory}/{LIBRARY}"
        if os.path.isfile(path):  # noqa: PTH113 - a plain string path
            return path
    return "" if not base else None


def identity(path: str) -> tuple[int, int, int] | None:
    """What tells one installation of the library from the next; ``None`` for the loader's own."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a plain string path
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns
