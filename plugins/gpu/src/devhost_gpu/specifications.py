"""Which GPUs the CDI specifications on a machine name.

How names and directories go together is told by the CDI specification 1.1.0 and its reference implementation:
a later directory counts before an earlier one, and a device that two files of one directory define counts as
not defined.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from devhost.backend.sysfs import prefix_of, read_bytes

SIZE_LIMIT = 4 << 20
"""Bytes of one specification: that of 16 GPUs with seven instances each has some 200 000."""

_SUFFIXES = (".json", ".yaml")

_UUIDS = ("GPU-", "MIG-")
"""How NVIDIA's UUIDs begin. Names by number are not trusted: numbers change, and files grow old."""

Signature = tuple[int, int, int]


class Specifications:
    """The specifications of one kind, read anew where a file has changed. Used by one thread.

    Args:
        root: what stands for ``/``.
        directories: where they are, the one that counts least first.
        kind: ``vendor/class``.
        counts: which names of devices are heeded; those that are UUIDs unless something else is said.
    """

    def __init__(
        self, root: Path, directories: Sequence[str], kind: str, counts: Callable[[str], bool] | None = None
    ) -> None:
        self._counts = counts or _is_uuid
        self._directories = [on_host(root, directory) for directory in directories]
        self._kind = kind
        self._known: dict[str, tuple[Signature, frozenset[str]]] = {}

    def names(self) -> dict[str, str]:
        """The qualified name of each device that counts, by its own name."""
        found: dict[str, str] = {}
        seen: dict[str, tuple[Signature, frozenset[str]]] = {}
        for directory in self._directories:
            times: dict[str, int] = {}
            for path in _files(directory):
                if (entry := self._entry(path)) is not None:
                    seen[path] = entry
                    for name in entry[1]:
                        times[name] = times.get(name, 0) + 1
            for name, count in times.items():
                found.pop(name, None)
                if count == 1:
                    found[name] = f"{self._kind}={name}"
        self._known = seen
        return found

    def _entry(self, path: str) -> tuple[Signature, frozenset[str]] | None:
        try:
            status = os.stat(path)  # noqa: PTH116 - a plain string path
        except OSError:
            return None
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._known.get(path)
        if known is not None and known[0] == signature:
            return known
        return signature, frozenset(filter(self._counts, devices(parsed(path), self._kind)))


def on_host(root: Path, directory: str) -> str:
    """A directory of the host below ``root``, where ``/var/run`` may be a link that leads out of it."""
    prefix = prefix_of(root)
    if prefix and (directory == "/var/run" or directory.startswith("/var/run/")):
        directory = directory.removeprefix("/var")
    return f"{prefix}{directory}"


def parsed(path: str) -> Mapping[str, Any]:
    """What a specification says; empty if it is not there or is none."""
    data = read_bytes(path, SIZE_LIMIT + 1)
    if not data or len(data) > SIZE_LIMIT:
        return {}
    document = _json(data) if path.endswith(".json") else _yaml(data)
    return document if isinstance(document, dict) else {}


def devices(document: Mapping[str, Any], kind: str) -> frozenset[str]:
    """The names of the devices in a specification, if it is of this kind."""
    found = document.get("devices")
    if document.get("kind") != kind or not isinstance(found, list):
        return frozenset()
    names = (device.get("name") for device in found if isinstance(device, dict))
    return frozenset(name for name in names if isinstance(name, str))


def uuids(document: Mapping[str, Any], kind: str) -> frozenset[str]:
    """The GPUs and MIG instances that a specification of this kind names by UUID."""
    return frozenset(filter(_is_uuid, devices(document, kind)))


def _is_uuid(name: str) -> bool:
    return name.startswith(_UUIDS)


def _files(directory: str) -> list[str]:
    try:
        return [f"{directory}/{name}" for name in os.listdir(directory) if name.endswith(_SUFFIXES)]
    except OSError:
        return []


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _yaml(data: bytes) -> object:
    import yaml  # only where such a file exists

    try:
        return yaml.load(data, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
