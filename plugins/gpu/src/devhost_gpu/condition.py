"""The condition of DRM cards by what any driver tells: whether it answers, and temperatures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from devhost.backend import Health, unhealthy
from devhost.backend.sysfs import Sysfs

from .adapter import Adapter
from .drm import Answers
from .hwmon import hottest
from .options import GpuOptions


class Conditions:
    """Asks cards how they are. Used by one thread."""

    def __init__(self, root: Path, options: GpuOptions) -> None:
        self._sysfs = Sysfs(root)
        self._limit = options.temperature_limit
        self._answers = Answers(root)

    def of(self, adapters: Mapping[str, Adapter]) -> dict[str, Health]:
        """What is wrong with each of these adapters, by any name for them; who is well is not named."""
        verdicts = {name: unhealthy(reason) for name, reason in self._answers.lacking(adapters).items()}
        for name in adapters.keys() - verdicts.keys() if self._limit else ():
            sensor = hottest(self._sysfs, adapters[name].path)
            if sensor and sensor.celsius >= self._limit:
                text = f"{sensor.label} is at {sensor.celsius} °C, the limit is {self._limit} °C"
                verdicts[name] = unhealthy(text)
        return verdicts
