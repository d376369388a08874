"""Paths and globs of the configuration → what they stand for on the machine."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from devhost.backend.sysfs import natural, prefix_of

from .nodes import DEV, SKIPPED
from .options import is_glob
from .scan import Scan

MAX_NODES = 256
"""Nodes that one directory may stand for; more is surely not meant."""


@dataclass(frozen=True, slots=True)
class Target:
    """One path a member stands for.

    ``nodes`` pairs each device node, symbolic links followed, with what to put after the container path
    (empty but for nodes found in a directory). ``problem`` says why it cannot be used; empty if it can.
    """

    path: str
    nodes: tuple[tuple[str, str], ...]
    problem: str = ""


class Paths:
    """Looks up paths below ``root``. In ``/dev`` the scan's listings answer most questions."""

    def __init__(self, root: Path, scan: Scan) -> None:
        self._prefix = prefix_of(root)
        self._scan = scan

    def matches(self, pattern: str) -> list[str]:
        """The paths that a glob matches, in natural order."""
        directory, _, name = pattern.rpartition("/")
        listing = None if is_glob(directory) else self._scan.nodes.listing(directory)
        if listing is not None:
            fits = re.compile(fnmatch.translate(name)).match
            hidden = name.startswith(".")
            names = [one for one in listing.names if fits(one) and (hidden or not one.startswith("."))]
            found = [f"{directory}/{one}" for one in names]
        else:
            below = self._prefix or "/"
            found = [f"/{one}" for one in glob.glob(pattern.lstrip("/"), root_dir=below)]  # noqa: PTH207 - strings
        return sorted(found, key=natural)

    def exists(self, path: str) -> bool:
        """Whether there is anything at ``path``."""
        return os.path.exists(self._prefix + path)  # noqa: PTH110 - any error means "no"

    def nodes(self, pattern: str) -> list[Target]:
        """The device nodes that a glob matches; whatever else it matches is left out."""
        targets = [self.target(path) for path in self.matches(pattern)]
        return [target for target in targets if not target.problem and target.nodes[0][1] == ""]

    def target(self, path: str) -> Target:
        """What one path stands for: a node, the node a link leads to, or the nodes in a directory."""
        record = self._scan.by_node.get(path)
        if record is not None:
            return Target(path, ((path, ""),), "" if record.present else f"{path} is missing")
        real = self._real(path)
        try:
            mode = os.stat(self._prefix + real).st_mode  # noqa: PTH116 - strings
        except (OSError, ValueError):
            return Target(path, ((real, ""),), f"{path} is missing")
        if stat.S_ISDIR(mode):
            inside = tuple(self._inside(real))
            return Target(path, inside, "" if inside else f"{path} holds no device node")
        return Target(path, ((real, ""),), "" if self._is_node(mode) else f"{path} is not a device node")

    def _real(self, path: str) -> str:
        real = os.path.realpath(self._prefix + path)
        if not real.startswith(f"{self._prefix}/"):
            return path  # a recorded tree whose links lead out of it
        return real[len(self._prefix) :]

    def _is_node(self, mode: int) -> bool:
        # a tree recorded without root holds plain files for nodes
        return stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or bool(self._prefix and stat.S_ISREG(mode))

    def _inside(self, directory: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for here, below, names in os.walk(self._prefix + directory):
            path = here[len(self._prefix) :]
            below[:] = sorted(name for name in below if f"{path}/{name}" not in SKIPPED)
            for name in sorted(names, key=natural):
                node = f"{path}/{name}"
                try:
                    mode = os.lstat(self._prefix + node).st_mode
                except OSError:
                    continue
                if self._is_node(mode):
                    found.append((node, node[len(directory) :]))
                if len(found) >= MAX_NODES:
                    return found
        return found


def outside_dev(path: str) -> bool:
    """Whether the listings of ``/dev`` say nothing of ``path``."""
    return not path.startswith(f"{DEV}/")
