"""What watches of the kernel's events need: explained limits of inotify, and imports without a child process.

inotify_init(2) fails with EMFILE at the user's limit of instances, and at the process's limit of open files.
inotify_add_watch(2) fails with ENOSPC at the user's limit of watches (inotify(7)).

``ctypes.util.find_library`` starts ldconfig, and gcc if that finds nothing, in every process that imports
asyncinotify or uses pyudev. The dynamic linker finds the same files by their sonames.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .errors import EnvironmentFailure, exhausted, one_line

_LIMITS = {
    errno.EMFILE: ("max_user_instances", 1024),
    errno.ENOSPC: ("max_user_watches", 524288),
}
"""For each error, the sysctl in ``fs.inotify`` and the value to set."""


def explained(error: OSError) -> str:
    """Why an inotify call failed, in one line, with the fix if it was a limit."""
    if error.errno == errno.EMFILE and (lack := _no_file_left()):
        return str(lack)
    if error.errno not in _LIMITS:
        return one_line(error)
    name, value = _LIMITS[error.errno]
    limit = _current(name)
    shown = "" if limit is None else f", {limit},"
    raised = max(value, 2 * (limit or 0))
    return (
        f"the limit fs.inotify.{name}{shown} is exhausted "
        f"(run `sysctl -w fs.inotify.{name}={raised}` on the node)"
    )


def _no_file_left() -> EnvironmentFailure | None:
    """The reason why this process cannot open any file, because the errno of both limits is the same."""
    try:
        os.close(os.open("/", os.O_PATH))
    except OSError as error:
        return exhausted(error)
    return None


def _current(name: str) -> int | None:
    try:
        return int(Path("/proc/sys/fs/inotify", name).read_text())
    except (OSError, ValueError):
        return None


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
