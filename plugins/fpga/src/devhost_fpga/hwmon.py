"""Alarms of an engine's sensors: which of them make ill, and which only warn.

``hwmon`` below a device: Documentation/hwmon/sysfs-interface.rst of the Linux kernel; which alarms engines
have: ``thermal_hwmon_info`` and ``power_hwmon_info`` in drivers/fpga/dfl-fme-main.c, where "crit" means that
the hardware stopped the clocks, and "max" that it slowed them down. OPAE's driver has
``thermal_mgmt/threshold<n>_reached`` for the same two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from devhost.backend.sysfs import Sysfs

from .errors import Finding, number

_ALARM = re.compile(r"(?:temp|power|in|curr|fan)\d{1,3}(?:_\w+)?_alarm|(?:temp|fan)\d{1,3}_fault")
_GRAVE = re.compile(r".*_(?:l?crit|emergency)_alarm")

_OLD = ("thermal_mgmt/threshold2_reached", "thermal_mgmt/threshold1_reached")
"""OPAE: the first makes ill, the second warns."""


def alarms(sysfs: Sysfs, path: str) -> Iterator[str]:
    """The files of all alarms of the device at ``path``."""
    for hwmon in sysfs.names(f"{path}/hwmon"):
        for name in sysfs.names(f"{path}/hwmon/{hwmon}"):
            if _ALARM.fullmatch(name):
                yield f"{path}/hwmon/{hwmon}/{name}"
    yield from (f"{path}/{name}" for name in _OLD if sysfs.exists(f"{path}/{name}"))


def look(sysfs: Sysfs, files: Iterable[str]) -> Finding:
    """What these alarms say."""
    ill, warning = "", ""
    for file in files:
        if number(sysfs, file) != 1:
            continue
        name = file.rpartition("/")[2]
        if _GRAVE.fullmatch(name) or file.endswith(_OLD[0]):
            ill = ill or f"alarm {name}{_degrees(sysfs, file)}"
        else:
            warning = warning or f"alarm {name}{_degrees(sysfs, file)}"
    return Finding(ill, warning)


def _degrees(sysfs: Sysfs, file: str) -> str:
    directory, _, name = file.rpartition("/")
    sensor = name.partition("_")[0]
    value = sysfs.integer(f"{directory}/{sensor}_input")
    if value is None:
        return ""
    if sensor.startswith("temp"):
        return f", it is at {value // 1000} °C"
    return f", it draws {value // 1_000_000} W" if sensor.startswith("power") else ""
