"""What the kernel says of an engine, and of what is programmed now."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from devhost.backend.sysfs import Sysfs
from devhost_fpga.busy import Manager, manager
from devhost_fpga.ids import Reading, read

FIRST = 0.02
"""Seconds before an id that was busy is read for the second time; then twice as many, and so on."""

CAP = 0.5
"""The most of these seconds."""

SPREAD = 0.5
"""The part of each pause that is drawn by lot, so that containers that wait together do not read together."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from; tests have their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random


def settled(
    sysfs: Sysfs, function: str, until: float, clock: Clock, is_stuck: Callable[[], object] = bool
) -> Reading:
    """The AFU id of a port, once it can be read; as it is at ``until`` if it is busy for so long.

    The drivers answer EBUSY while the port is disabled (``afu_id_show`` in drivers/fpga/dfl-afu-main.c).
    ``is_stuck`` tells that waiting is in vain.
    """
    pause = FIRST
    while (found := read(sysfs, f"{function}/afu_id")).is_busy and not is_stuck():
        left = until - clock.now()
        if left <= 0:
            break
        clock.sleep(min(left, pause * (1 - SPREAD * clock.draw())))
        pause = min(CAP, pause * 2)
    return found


def manager_of(sysfs: Sysfs, engine: str) -> Manager:
    """What the fpga_manager of a management engine says; nothing if there is none."""
    for name in sysfs.names(engine):
        if name.startswith("dfl-fme-mgr"):
            for one in sysfs.names(f"{engine}/{name}/fpga_manager"):
                return manager(sysfs, f"{engine}/{name}/fpga_manager/{one}")
    return Manager()
