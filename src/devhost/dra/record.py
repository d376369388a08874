"""The file that says which devices the slices of a driver may hold, for the next start.

It is written before a slice is: a process that is killed in between leaves a record that names too much,
never too little.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from devhost.backend.files import make_directory, replace_file
from devhost.discovery.worker import FileWorker
from devhost.planning.claims import Key
from devhost.telemetry.log import get

log = get(__name__)

HINT = "run devhost as root, with the directory of --plugins-dir mounted writable"


class SliceRecord:
    """The record of one driver.

    Args:
        path: the file; its directory is made when first needed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written: Mapping[Key, str] | None = None
        self._worker = FileWorker("slices", HINT)

    def load(self) -> dict[Key, str]:
        """The resource of each device that slices may hold; empty if there is no record.

        A damaged record is moved aside: nothing is known then, and every device counts as offered before.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.error("the record of slices cannot be read", file=str(self.path), reason=str(error.strerror))
            return {}
        try:
            return {
                (backend, device): resource
                for backend, devices in json.loads(data)["devices"].items()
                for device, resource in devices.items()
            }
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            aside = self.path.with_suffix(".damaged")
            self.path.replace(aside)
            log.error("the record of slices is damaged and was moved aside", file=str(aside))
            return {}

    async def write(self, devices: Mapping[Key, str]) -> None:
        """Makes the file hold these devices, each with its resource.

        Raises:
            EnvironmentFailure: it cannot be written.
        """
        if devices == self._written:
            return
        await self._worker.file(f"write {self.path}", self._write, dict(devices))
        self._written = dict(devices)

    def close(self) -> None:
        """Lets the writing thread end."""
        self._worker.close()

    def _write(self, devices: Mapping[Key, str]) -> None:
        found: dict[str, dict[str, str]] = {}
        for (backend, device), resource in sorted(devices.items()):
            found.setdefault(backend, {})[device] = resource
        make_directory(self.path.parent, 0o750)
        replace_file(self.path, json.dumps({"version": 1, "devices": found}).encode(), mode=0o600)
