"""Imports of libraries that look for a C library, without a child process.

``ctypes.util.find_library`` starts ldconfig, and gcc where that finds nothing: in every process that imports
asyncinotify or uses pyudev, though the dynamic linker finds the same files by their sonames.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SONAMES = {"c": "libc.so.6", "udev": "libudev.so.1"}
"""The name of each library's file in every distribution with glibc."""


@contextmanager
def by_soname(known: Mapping[str, str] = SONAMES) -> Iterator[None]:
    """While it lasts, imported modules find the ``known`` libraries by their sonames.

    A module that does ``from ctypes.util import find_library`` meanwhile does so for good. A library that has
    no soname here, or no file of that name, is looked for in the ordinary way.
    """
    ordinary = ctypes.util.find_library

    def find(name: str) -> str | None:
        soname = known.get(name)
        return soname if soname and _exists(soname) else ordinary(name)

    ctypes.util.find_library = find
    try:
        yield
    finally:
        ctypes.util.find_library = ordinary


def _exists(soname: str) -> bool:
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True
