"""What makes a DFL or OPAE card unhealthy: error registers, power states and sensor alarms.

Documentation/ABI/testing/sysfs-platform-dfl-fme and -dfl-port of the Linux kernel list the files. What the
bits of ``nonfatal_errors`` mean: the ``RAS_NONFAT_ERROR`` register of the management engine, as drivers of
it in user space have it (DPDK, drivers/raw/ifpga/base/ifpga_defines.h).

``hwmon`` below a device: Documentation/hwmon/sysfs-interface.rst of the Linux kernel; which alarms engines
have: ``thermal_hwmon_info`` and ``power_hwmon_info`` in drivers/fpga/dfl-fme-main.c, where "crit" means that
the hardware stopped the clocks, and "max" that it slowed them down. OPAE's driver has
``thermal_mgmt/threshold<n>_reached`` for the same two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from devhost.backend.sysfs import Sysfs

from .model import read

ALL = (1 << 64) - 1
"""Every bit of a register; what a device without its link reads as."""

THROTTLING = 1 << 0 | 1 << 1 | 1 << 4 | 1 << 10 | 1 << 11
"""Bits of ``nonfatal_errors`` that say it runs slower: temperature or power reached AP1 or AP2, ProcHot."""

AP6 = 6
"""``power_state`` of a port that was cut off, as something is far too hot or draws too much."""


@dataclass(frozen=True, slots=True)
class Register:
    """A file with a number; ``warns`` are the bits that only warn."""

    file: str
    warns: int = 0


ENGINE = (Register("errors/catfatal_errors"), Register("errors/nonfatal_errors", THROTTLING))
"""Registers of an engine that are read without waiting for anything."""

ENGINE_LOCKED = (
    Register("errors/fme_errors"),
    Register("errors/fme-errors/errors"),  # OPAE's name for it
    Register("errors/pcie0_errors"),
    Register("errors/pcie1_errors"),
)
"""Registers of an engine that are read under a lock, which programming holds all the time it takes."""

FIRST = ("errors/first_error", "errors/fme-errors/first_error")
"""What came first, for the message: it stays behind when the registers have been cleared."""

PORT = (Register("errors/errors"),)
"""Registers of a port; its lock is never held for long."""

PORT_EVENTS = (Register("ap1_event", ALL), Register("ap2_event", ALL))
"""Throttling that a port has seen; both stay set until somebody clears them."""

PORT_DETAILS = ("errors/first_error", "errors/first_malformed_req")
"""What came first in a port, for the message."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What registers say: ``fault`` is why it cannot be used, ``warning`` what operators should know."""

    fault: str = ""
    warning: str = ""


def registers_report(
    sysfs: Sysfs, path: str, registers: Iterable[Register], details: Iterable[str] = ()
) -> Finding:
    """What the registers of the engine or port at ``path`` say; those that are not there say nothing."""
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


def port_power(sysfs: Sysfs, path: str) -> Finding:
    """What the power state of a port says: AP6 cuts it off, AP1 and AP2 slow it down."""
    state = number(sysfs, f"{path}/power_state")
    if state == AP6:
        return Finding(fault="power_state is AP6: it was cut off, for heat or power")
    return Finding(warning=f"power_state is AP{state}: it is slowed down") if state in (1, 2) else Finding()


def number(sysfs: Sysfs, path: str) -> int | None:
    """What a register holds, decimal, ``0x`` or bare hexadecimal digits; ``None`` if it is no number."""
    text = read(sysfs, path).text
    for base in (0, 16):
        try:
            value = int(text, base)
        except ValueError:
            continue
        return value if 0 <= value <= ALL else None
    return None


def files(paths: str, registers: Iterable[Register]) -> Iterator[str]:
    """The files of registers below a directory."""
    return (f"{paths}/{register.file}" for register in registers)


def _details(sysfs: Sysfs, path: str, details: Iterable[str]) -> str:
    for name in details:
        if value := number(sysfs, f"{path}/{name}"):
            return f", {name.rpartition('/')[2]} is {_shown(value)}"
    return ""


def _shown(value: int) -> str:
    return "all ones" if value == ALL else f"{value:#x}"


_ALARM = re.compile(r"(?:temp|power|in|curr|fan)\d{1,3}(?:_\w+)?_alarm|(?:temp|fan)\d{1,3}_fault")
_GRAVE = re.compile(r".*_(?:l?crit|emergency)_alarm")

_OLD = ("thermal_mgmt/threshold2_reached", "thermal_mgmt/threshold1_reached")
"""OPAE: the first makes fault, the second warns."""


def alarms(sysfs: Sysfs, path: str) -> Iterator[str]:
    """The files of all alarms of the device at ``path``."""
    for hwmon in sysfs.names(f"{path}/hwmon"):
        for name in sysfs.names(f"{path}/hwmon/{hwmon}"):
            if _ALARM.fullmatch(name):
                yield f"{path}/hwmon/{hwmon}/{name}"
    yield from (f"{path}/{name}" for name in _OLD if sysfs.exists(f"{path}/{name}"))


def alarms_report(sysfs: Sysfs, files: Iterable[str]) -> Finding:
    """What these alarms say."""
    fault, warning = "", ""
    for file in files:
        if number(sysfs, file) != 1:
            continue
        name = file.rpartition("/")[2]
        if _GRAVE.fullmatch(name) or file.endswith(_OLD[0]):
            fault = fault or f"alarm {name}{_degrees(sysfs, file)}"
        else:
            warning = warning or f"alarm {name}{_degrees(sysfs, file)}"
    return Finding(fault, warning)


def _degrees(sysfs: Sysfs, file: str) -> str:
    directory, _, name = file.rpartition("/")
    sensor = name.partition("_")[0]
    value = sysfs.integer(f"{directory}/{sensor}_input")
    if value is None:
        return ""
    if sensor.startswith("temp"):
        return f", it is at {value // 1000} °C"
    return f", it draws {value // 1_000_000} W" if sensor.startswith("power") else ""
