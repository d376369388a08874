"""The backend on a modelled machine, and errors that plain files cannot have."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from devhost_fpga.backend import Fpga
from devhost_fpga.model import FpgaSysfs, Reading
from devhost_fpga.options import FpgaOptions
from devhost_testing.fixtures import by_id

from devhost.backend import Context


def reading(sysfs: Callable[[Path], FpgaSysfs]) -> type[Fpga]:
    """A backend class that reads its machine through ``sysfs``, which gets the root."""

    class Modelled(Fpga):
        def __init__(self, options: FpgaOptions, context: Context) -> None:
            super().__init__(options, context, sysfs=sysfs(context.root))

    return Modelled


def unhealthy(backend: Fpga) -> dict[str, str]:
    """The reason of each unhealthy device, after a scan and a probe."""
    devices = by_id(backend)
    verdicts = {name: device.health for name, device in devices.items()}
    verdicts |= {
        name: health for name, health in backend.probe(list(devices.values())).items() if verdicts[name]
    }
    return {name: health.reason for name, health in verdicts.items() if not health}


class Faults:
    """Errors of drivers: some files cannot be read.

    The paths are those of a machine, ``/sys/devices/…``, or their ends.
    """

    def __init__(self) -> None:
        self._errors: dict[str, int] = {}

    def set(self, path: str, number: int = errno.EBUSY) -> None:
        """From now on, the driver answers this error to reads of the file."""
        self._errors[path] = number

    def clear(self) -> None:
        """Everything can be read again."""
        self._errors.clear()

    def sysfs(self, root: Path) -> FpgaSysfs:
        """The tree below ``root`` with these errors."""
        return _Faulty(root, self._errors)


class _Faulty(FpgaSysfs):
    def __init__(self, root: Path, errors: dict[str, int]) -> None:
        super().__init__(root)
        self._errors = errors

    def reading(self, path: str) -> Reading:
        for end, number in self._errors.items():
            if path.endswith(end):
                return Reading(error=number)
        return super().reading(path)
