"""The record of the devices that ResourceSlices may hold, for the next start.

It is written before the slices are: a device that the record does not name is in no slice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devhost.backend.errors import DAMAGED, EnvironmentFailure
from devhost.backend.files import make_directory, replace_file
from devhost.planning.claims import Key
from devhost.planning.sides import NO_UNITS
from devhost.runtime.log import get
from devhost.runtime.worker import FileWorker

log = get(__name__)

_HINT = "the driver's directory must be writable"
_VERSION = 1


class SliceRecord:
    """The file at ``path``: devices by backend and id, each with its resource, members with their units."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.units: Mapping[Key, str] = NO_UNITS
        """The units of the members that the file names."""
        self._stored: dict[Key, str] | None = None
        """The devices that the file names; ``None`` if that is not known."""

    def load(self) -> Mapping[Key, str]:
        """Reads the record; empty if there is none. A damaged one is moved aside.

        Raises ``EnvironmentFailure`` if it cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._failure("read", error) from None
        try:
            content = json.loads(data)
            devices, units = _devices(content, "devices"), _devices(content, "units")
        except DAMAGED:
            self._move_aside()
            return {}
        self._stored, self.units = devices, units
        return dict(devices)

    def names(self, devices: Mapping[Key, str], units: Mapping[Key, str] = NO_UNITS) -> bool:
        """Whether the file is known to name exactly these devices and units, and is still there."""
        return (devices, units) == (self._stored, self.units) and self.path.exists()

    async def write(self, devices: Mapping[Key, str], units: Mapping[Key, str] = NO_UNITS) -> None:
        """Makes the record name exactly these devices and units, atomically.

        Raises ``EnvironmentFailure`` if it cannot be written; the old record remains.
        """
        if self.names(devices, units):
            return
        wanted, members = dict(devices), dict(units)
        self._stored = None
        worker = FileWorker("record of published devices", _HINT)
        try:
            await worker.file(f"write {self.path}", self._replace, _text(wanted, members))
        finally:
            worker.close()
        self._stored, self.units = wanted, members

    def _replace(self, data: bytes) -> None:
        make_directory(self.path.parent, 0o750)
        replace_file(self.path, data, f".{self.path.stem}-", 0o600)

    def _move_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged")
        try:
            self.path.replace(aside)
        except OSError as error:
            raise self._failure("move aside", error) from None
        log.warning("the record of published devices is damaged", file=str(self.path), moved=str(aside))

    def _failure(self, what: str, error: OSError) -> EnvironmentFailure:
        return EnvironmentFailure(f"cannot {what} {self.path}: {error.strerror or error}", _HINT)


def _text(devices: Mapping[Key, str], units: Mapping[Key, str]) -> bytes:
    content: dict[str, object] = {"version": _VERSION, "devices": _rows(devices)}
    if units:
        content["units"] = _rows(units)
    return json.dumps(content, separators=(",", ":")).encode() + b"\n"


def _rows(devices: Mapping[Key, str]) -> list[list[str]]:
    return [[*key, of] for key, of in sorted(devices.items())]


def _devices(content: Any, kind: str) -> dict[Key, str]:
    if content["version"] != _VERSION:
        raise ValueError("another version")
    devices: dict[Key, str] = {}
    for backend, identity, of in content[kind] if kind in ("devices", *content) else ():
        if not (isinstance(backend, str) and isinstance(identity, str) and isinstance(of, str)):
            raise TypeError("not text")
        devices[backend, identity] = of
    return devices
