"""Imports of libraries that look for a C library, without a child process.

``ctypes.util.find_library`` starts ldconfig, and gcc if that finds nothing, in every process that imports
asyncinotify or uses pyudev. The dynamic linker finds the same files by their sonames.
"""

from __future__ import annotations

import ctypes
import ctypes.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SONAMES = {"c": "libc.so.6", "udev": "libudev.so.1"}
"""The file name of each library in distributions with glibc."""


@contextmanager
def by_soname(known: Mapping[str, str] = SONAMES) -> Iterator[None]:
    """In its body, imported modules find the ``known`` libraries by their sonames.

    A module that runs ``from ctypes.util import find_library`` in the body keeps doing so. A library without
    a soname here, or without a file of that name, is searched for as usual.
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
