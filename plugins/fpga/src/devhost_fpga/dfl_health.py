"""What makes a DFL or OPAE card unhealthy: error registers, power states and sensor alarms.

Documentation/ABI/testing/sysfs-platform-dfl-fme and -dfl-port of the Linux kernel list the files. What the
bits of ``nonfatal_errors`` mean: the ``RAS_NONFAT_ERROR`` register of the management engine, as user-space
drivers define it (DPDK, drivers/raw/ifpga/base/ifpga_defines.h).

``hwmon`` below a device: Documentation/hwmon/sysfs-interface.rst of the Linux kernel. The alarms of engines:
``thermal_hwmon_info`` and ``power_hwmon_info`` in drivers/fpga/dfl-fme-main.c, where "crit" means that the
hardware stopped the clocks, and "max" that it slowed them down. OPAE's driver has
``thermal_mgmt/threshold<n>_reached`` for the same two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from devhost.backend.frozen import frozen

from .model import FpgaSysfs

ALL = (1 << 64) - 1
"""Every bit of a register; a device that lost its link reads as this."""

THROTTLING = 1 << 0 | 1 << 1 | 1 << 4 | 1 << 10 | 1 << 11
"""Bits of ``nonfatal_errors`` for throttling: temperature or power reached AP1 or AP2, or ProcHot is set."""

AP6 = 6
"""``power_state`` of a port that was shut down because of temperature or power."""


@frozen
class Register:
    """A file with a number; ``warns`` are the bits that only warn."""

    file: str
    warns: int = 0


ENGINE = (Register("errors/catfatal_errors"), Register("errors/nonfatal_errors", THROTTLING))
"""Registers of an engine that the kernel reads without waiting."""

ENGINE_LOCKED = (
    Register("errors/fme_errors"),
    Register("errors/fme-errors/errors"),  # OPAE's name for it
    Register("errors/pcie0_errors"),
    Register("errors/pcie1_errors"),
)
"""Registers of an engine that the kernel reads under a lock, which programming holds until it is done."""

FIRST = ("errors/first_error", "errors/fme-errors/first_error")
"""The first error, for the message: it remains when the registers are cleared."""

PORT = (Register("errors/errors"),)
"""Registers of a port; its lock is never held for long."""

PORT_EVENTS = (Register("ap1_event", ALL), Register("ap2_event", ALL))
"""Throttling events of a port; both stay set until they are cleared."""

PORT_DETAILS = ("errors/first_error", "errors/first_malformed_req")
"""The first error of a port, for the message."""


@frozen
class Finding:
    """The result of a check: ``fault`` is why a device cannot be used, ``warning`` a note for operators."""

    fault: str = ""
    warning: str = ""


def registers_report(
    sysfs: FpgaSysfs, path: str, registers: Iterable[Register], details: Iterable[str] = ()
) -> Finding:
    """Checks the registers of the engine or port at ``path``; missing ones count as zero."""
    fault, warning = "", ""
    for register in registers:
        value = number(sysfs, f"{path}/{register.file}")
        if value is None or not value:
            continue
        if value & ~register.warns:
            fault = fault or f"{register.file} is {_shown(value)}{_details(sysfs, path, details)}"
        else:
            warning = warning or f"{register.file} is {_shown(value)}"
    return Finding(fault, warning)


def port_power(sysfs: FpgaSysfs, path: str) -> Finding:
    """Checks the power state of a port: AP6 shuts it down, AP1 and AP2 throttle it."""
    state = number(sysfs, f"{path}/power_state")
    if state == AP6:
        return Finding(fault="power_state is AP6: shut down because of temperature or power")
    return Finding(warning=f"power_state is AP{state}: throttled") if state in (1, 2) else Finding()


def number(sysfs: FpgaSysfs, path: str) -> int | None:
    """The value of a register in decimal or hexadecimal digits; ``None`` if it is not a number."""
    text = sysfs.reading(path).text
    for base in (0, 16):
        try:
            value = int(text, base)
        except ValueError:
            continue
        return value if 0 <= value <= ALL else None
    return None


def files(paths: str, registers: Iterable[Register]) -> Iterator[str]:
    return (f"{paths}/{register.file}" for register in registers)


def _details(sysfs: FpgaSysfs, path: str, details: Iterable[str]) -> str:
    for name in details:
        if value := number(sysfs, f"{path}/{name}"):
            return f", {name.rpartition('/')[2]} is {_shown(value)}"
    return ""


def _shown(value: int) -> str:
    return "all ones" if value == ALL else f"{value:#x}"


_ALARM = re.compile(r"(?:temp|power|in|curr|fan)\d{1,3}(?:_\w+)?_alarm|(?:temp|fan)\d{1,3}_fault")
_CRITICAL = re.compile(r".*_(?:l?crit|emergency)_alarm")

_OPAE_ALARMS = ("thermal_mgmt/threshold2_reached", "thermal_mgmt/threshold1_reached")
"""Alarms of OPAE: the first is a fault, the second a warning."""


def alarms(sysfs: FpgaSysfs, path: str) -> Iterator[str]:
    """The files of all alarms of the device at ``path``."""
    for hwmon in sysfs.names(f"{path}/hwmon"):
        for name in sysfs.names(f"{path}/hwmon/{hwmon}"):
            if _ALARM.fullmatch(name):
                yield f"{path}/hwmon/{hwmon}/{name}"
    yield from (f"{path}/{name}" for name in _OPAE_ALARMS if sysfs.exists(f"{path}/{name}"))


def alarms_report(sysfs: FpgaSysfs, files: Iterable[str]) -> Finding:
    """Checks these alarms."""
    fault, warning = "", ""
    for file in files:
        if number(sysfs, file) != 1:
            continue
        name = file.rpartition("/")[2]
        if _CRITICAL.fullmatch(name) or file.endswith(_OPAE_ALARMS[0]):
            fault = fault or f"alarm {name}{_degrees(sysfs, file)}"
        else:
            warning = warning or f"alarm {name}{_degrees(sysfs, file)}"
    return Finding(fault, warning)


def _degrees(sysfs: FpgaSysfs, file: str) -> str:
    directory, _, name = file.rpartition("/")
    sensor = name.partition("_")[0]
    value = sysfs.integer(f"{directory}/{sensor}_input")
    if value is None:
        return ""
    if sensor.startswith("temp"):
        return f" at {value // 1000} °C"
    return f" at {value // 1_000_000} W" if sensor.startswith("power") else ""
