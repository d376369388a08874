"""Finds NVML's library below the root of a driver.

It is searched for as NVIDIA's container toolkit does (``pkg/lookup/library.go``): in fixed directories, the
given one among them, then in the cache of the dynamic linker below the root. The directories are those of the
toolkit, and those of the systems whose drivers are elsewhere: Jetson (``nvidia``, ``tegra``), Bottlerocket
(``nvidia/tesla``), Talos (``glibc``), GKE, Container-Optimized OS, WSL and NixOS.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from devhost.backend.sysfs import prefix_of, read_bytes

LIBRARY = "libnvidia-ml.so.1"

_MACHINE = f"{platform.machine()}-linux-gnu"

_OF_MACHINE = ("", "/nvidia", "/nvidia/current", "/tegra")

DIRECTORIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("usr/lib64", ("", "/nvidia")),
    (f"usr/lib/{_MACHINE}", _OF_MACHINE),
    (f"lib/{_MACHINE}", _OF_MACHINE),
    ("lib64", ("",)),
    ("usr/lib", ("/nvidia/current", "/nvidia/tesla", "/nvidia", "", "/wsl/lib")),
    ("lib", ("",)),
    ("usr/local", ("/nvidia/lib64", "/nvidia/lib", "/glibc/usr/lib", "/glibc/lib", "/lib")),
    ("home/kubernetes/bin/nvidia/lib64", ("",)),
    ("var/lib/nvidia/lib64", ("",)),
    ("run/opengl-driver/lib", ("",)),
    (".", ("",)),
)
"""Directories below a driver's root, with the ends of their names, in the order of the search."""

CACHE = "etc/ld.so.cache"
"""The cache of the dynamic linker, below the root."""

CACHE_LIMIT = 16 << 20
"""Bytes of a cache that is read; one with 10,000 libraries has about 1 MB."""

_CACHE_HEAD = b"glibc-ld.so.cache1.1"
_CACHE_ENTRIES = 48
_CACHE_ENTRY = struct.Struct("=iIIIQ")
"""A header of 48 bytes, the number of entries after its name, then entries: flags, offset of the name, offset
of the path, version of the system, hardware capabilities (glibc, ``sysdeps/generic/dl-cache.h``)."""

_ELF = struct.Struct("=4s4B8xHH")
"""Name, class, byte order, version and ABI, then type and machine (elf(5))."""


def find_library(root: Path, driver_root: str) -> str | None:
    """The library to load: a path, or empty for the one that the loader finds; ``None`` if there is none.

    Libraries for other machines, such as 32-bit ones in ``/usr/lib``, do not count. ``driver_root`` is where
    the driver's files are below ``root``, ``/run/nvidia/driver``, or the directory that has the library.
    """
    base = _base(root, driver_root)
    for path in _candidates(base):
        if os.path.isfile(path) and _is_for_this_machine(path):  # noqa: PTH113 - a plain string path
            return path
    return "" if not base else None


def missing_reason(root: Path, driver_root: str) -> str:
    """Why :func:`find_library` found nothing: what was searched, or that there is nothing to search."""
    base, right = _base(root, driver_root), "is backends.gpu.driverRoot right?"
    if not os.path.isdir(base or "/"):  # noqa: PTH112
        what = "is not a directory" if os.path.exists(base) else "does not exist"  # noqa: PTH110
        return f"{LIBRARY} was not found: {driver_root} {what} ({right})"
    foreign = next(filter(os.path.isfile, _candidates(base)), "")
    if foreign:
        return f"{foreign[len(prefix_of(root)) :]} is for another machine than {platform.machine()} ({right})"
    return f"{LIBRARY} was not found below {driver_root}, in {searched()} ({right})"


def searched() -> str:
    """The places below the root as one text; braces as in a shell."""
    places = [
        directory + (",".join(ends).join("{}") if len(ends) > 1 else ends[0])
        for directory, ends in DIRECTORIES
    ]
    return ", ".join([*places, CACHE])


def _base(root: Path, driver_root: str) -> str:
    return f"{prefix_of(root)}/{driver_root.strip('/')}".rstrip("/")


def _candidates(base: str) -> Iterator[str]:
    for directory, ends in DIRECTORIES:
        for end in ends:
            yield os.path.normpath(f"{base}/{directory}{end}/{LIBRARY}")
    yield from (f"{base}/{path.lstrip('/')}" for path in cached_paths(f"{base}/{CACHE}"))


def cached_paths(cache_file: str) -> list[str]:
    """The paths of the library in a cache of the dynamic linker; none in a damaged one."""
    data = read_bytes(cache_file, CACHE_LIMIT) or b""
    begin = data.find(_CACHE_HEAD)  # a cache in the format before glibc 2.2 may be in front
    table = data[begin:] if begin >= 0 else b""
    found = []
    try:
        (count,) = struct.unpack_from("=I", table, len(_CACHE_HEAD))
        for number in range(min(count, len(table) // _CACHE_ENTRY.size)):
            _, name, path, _, _ = _CACHE_ENTRY.unpack_from(table, _CACHE_ENTRIES + number * _CACHE_ENTRY.size)
            if _text(table, name) == LIBRARY.encode():
                found.append(os.fsdecode(_text(table, path)))
    except struct.error:
        return []
    return found


def _text(table: bytes, offset: int) -> bytes:
    end = table.find(b"\0", offset)
    return table[offset:end] if end >= 0 else b""


def _is_for_this_machine(path: str) -> bool:
    """Whether a file is not a library for another machine; what is no library fails when it is loaded."""
    found = _machine(path)
    return found is None or found == _own_machine()


@cache
def _own_machine() -> tuple[int, int] | None:
    return _machine("/proc/self/exe")


def _machine(path: str) -> tuple[int, int] | None:
    """The class (32 or 64 bits) and the machine of an ELF file; ``None`` if it is none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a plain string path
            name, bits, _, _, _, _, machine = _ELF.unpack(file.read(_ELF.size))
    except (OSError, struct.error):
        return None
    return (bits, machine) if name == b"\x7fELF" else None
