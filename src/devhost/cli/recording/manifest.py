"""Describes a recording: for the user who made it, and as JSON in the tree."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from devhost import __version__
from devhost.backend.frozen import frozen
from devhost.cli.scan_once import ScanResult
from devhost.config.loader import Loaded
from devhost.runtime.text import utc

from .capture import Omission

MANIFEST = "devhost-record.json"
"""Name of the description, at the top of the tree."""

CONFIGURATION = "devhost.yaml"
"""Name of the copy of the configuration, beside it."""

FORMAT = 1
"""Version of the description's format. It increases with each incompatible change."""

MAX_LISTED = 1000
"""The maximum number of entries of each list in the description."""


@frozen
class Recording:
    """A finished tree.

    ``directory`` is its place, ``machine`` what the backends found on the machine below ``root``. ``nodes``
    maps device nodes to their numbers (``c10:229``). ``differences`` describes what the backends find
    differently in the tree, ``full`` which limit was reached (empty: none). ``configuration`` is the file
    that was used; the tree has a copy.
    """

    directory: Path
    root: Path
    configuration: Path | None
    loaded: Loaded
    machine: ScanResult
    files: int
    links: int
    bytes: int
    nodes: Mapping[str, str]
    omissions: tuple[Omission, ...]
    differences: tuple[str, ...]
    full: str

    def as_json(self) -> str:
        document = {
            "format": FORMAT,
            "devhost": __version__,
            "time": utc(time.time()),
            "root": str(self.root),
            "configuration": str(self.configuration) if self.configuration else None,
            "system": _system(self.root),
            "backends": [self._backend(name) for name in self.machine.scanners],
            "refusedPlugins": [
                {"origin": one.origin, "version": one.version, "reason": one.reason}
                for one in self.loaded.catalog.refused
            ],
            "files": self.files,
            "links": self.links,
            "bytes": self.bytes,
            "incomplete": self.full,
            "nodes": dict(sorted(self.nodes.items())),
            "notRecorded": [
                {"path": one.path, "reason": one.reason, "backend": one.backend}
                for one in self.omissions[:MAX_LISTED]
            ],
            "differences": self.differences[:MAX_LISTED],
        }
        return json.dumps(document, indent=2) + "\n"

    def _backend(self, name: str) -> dict[str, object]:
        installed = self.loaded.catalog.installed[name]
        scanner = self.machine.scanners[name]
        return {
            "name": name,
            "origin": installed.origin,
            "version": installed.version,
            "state": scanner.condition.state.value,
            "reason": scanner.condition.reason,
            "devices": len(scanner.devices),
            "refusedDevices": [
                {"device": flawed.device, "reason": flawed.reason} for flawed in scanner.condition.refused
            ],
        }


def _system(root: Path) -> dict[str, object]:
    """The kernel and the distribution, without the host name."""
    kernel, distribution = os.uname(), _os_release(root)
    return {
        "kernel": kernel.release,
        "architecture": kernel.machine,
        "distribution": distribution.get("ID", ""),
        "version": distribution.get("VERSION_ID", ""),
        "asRoot": os.geteuid() == 0,
    }


def _os_release(root: Path) -> dict[str, str]:
    """The fields of os-release(5); empty if it cannot be read."""
    try:
        text = (root / "etc/os-release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(_assignments(text.splitlines()))


def _assignments(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            try:
                yield name, "".join(shlex.split(value))
            except ValueError:
                continue  # an unterminated quotation
