"""The cgroup of all pods, in every hierarchy of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from .waiting import until

NAME = "devhost-e2e"

CONTROLLERS = frozenset({"cpu", "cpuset", "memory", "pids"})
"""The controllers that a kubelet requires. In version 2 a parent cgroup passes them on."""

EMPTY_LIMIT = 120.0
"""Seconds until killed processes have ended."""


class Refused(Exception):
    """Why a cgroup cannot be created; one line."""


@contextmanager
def made(name: str = NAME) -> Iterator[None]:
    """Creates the cgroup on entry, replacing an empty one, and removes it on exit.

    Raises:
        Refused: on entry, if the machine does not permit it.
        TimeoutError: on exit, if a process remains in it.
    """
    hierarchies = _hierarchies()
    try:
        for kind, root in hierarchies:
            _make(kind, root, root / name)
        _refuse_if_incomplete(hierarchies, name)
        yield
    finally:
        for _, root in hierarchies:
            until(f"{root / name} is empty", partial(_remove, root / name), limit=EMPTY_LIMIT)


def _hierarchies() -> list[tuple[str, Path]]:
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2") and place.startswith("/sys/fs/cgroup"):
            found.append((kind, Path(place)))
    if not found:
        raise Refused("no cgroups are mounted below /sys/fs/cgroup")
    return found


def _make(kind: str, root: Path, cgroup: Path) -> None:
    _remove(cgroup)
    try:
        cgroup.mkdir()
    except OSError as error:
        raise Refused(f"{cgroup} cannot be made: {error.strerror}") from None
    if kind == "cgroup2":
        offered = (root / "cgroup.controllers").read_text().split()
        for controller in sorted(CONTROLLERS.intersection(offered)):
            with suppress(OSError):  # the check of all hierarchies reports what is missing
                (root / "cgroup.subtree_control").write_text(f"+{controller}")


def _refuse_if_incomplete(hierarchies: list[tuple[str, Path]], name: str) -> None:
    found: set[str] = set()
    for kind, root in hierarchies:
        if kind == "cgroup2":
            found.update((root / name / "cgroup.controllers").read_text().split())
        else:
            found.update(file.name.partition(".")[0] for file in (root / name).glob("*.*"))
    if missing := CONTROLLERS - found:
        raise Refused(f"cannot create cgroups with {', '.join(sorted(missing))}")


def _remove(cgroup: Path) -> bool:
    """Removes a cgroup and those in it; false while a killed process is still in one."""
    for directory, _, _ in os.walk(cgroup, topdown=False):
        try:
            Path(directory).rmdir()
        except OSError:
            return False
    return True
