"""What to ask of the backend on a modelled machine, and errors that plain files cannot have."""

from __future__ import annotations

import errno
import os
from typing import Any

from devhost_fpga.backend import Fpga

from devhost.testing.fixtures import by_id


def ill(backend: Fpga) -> dict[str, str]:
    """Why each device that is ill is so: as looks find it, and probes."""
    devices = by_id(backend)
    verdicts = {name: device.health for name, device in devices.items()}
    verdicts |= {
        name: health for name, health in backend.probe(list(devices.values())).items() if verdicts[name]
    }
    return {name: health.reason for name, health in verdicts.items() if not health}


class Faults:
    """Stands for the module ``os`` where files are read: some of them fail as a driver lets them fail.

    The paths are those of a machine, ``/sys/devices/…``; the error comes with opening, where the kernel has
    it with reading, which is the same to whoever asks.
    """

    def __init__(self) -> None:
        self._errors: dict[str, int] = {}

    def set(self, path: str, number: int = errno.EBUSY) -> None:
        """From now on the file cannot be read: the driver answers with this error."""
        self._errors[path] = number

    def clear(self) -> None:
        """Everything can be read again."""
        self._errors.clear()

    def open(self, path: str, *rest: Any) -> int:
        for end, number in self._errors.items():
            if path.endswith(end):
                raise OSError(number, os.strerror(number), path)
        return os.open(path, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)
