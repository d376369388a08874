"""Temperatures of a card (Documentation/hwmon/sysfs-interface.rst of the Linux kernel)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from devhost.backend.sysfs import Sysfs

_INPUT = re.compile(r"(temp\d{1,3})_input")


@dataclass(frozen=True, slots=True)
class Sensor:
    """What one sensor says; ``label`` is the driver's word for its place, else the sensor's own name."""

    label: str
    celsius: int


def hottest(sysfs: Sysfs, path: str) -> Sensor | None:
    """The hottest sensor of the device at ``path``; ``None`` where none can be read."""
    found = []
    for hwmon in sysfs.names(f"{path}/hwmon"):
        place = f"{path}/hwmon/{hwmon}"
        for name in sysfs.names(place):
            if match := _INPUT.fullmatch(name):
                value = sysfs.integer(f"{place}/{name}")
                if value is not None:
                    label = sysfs.text(f"{place}/{match[1]}_label") or match[1]
                    found.append(Sensor(label, value // 1000))
    return max(found, key=lambda sensor: sensor.celsius, default=None)
