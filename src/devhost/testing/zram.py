"""Real hot-plug on a plain machine: zram devices come and go with their nodes and uevents.

The kernel's own interface (``Documentation/admin-guide/blockdev/zram.rst``): reading
``/sys/class/zram-control/hot_add`` makes a device and gives its number, writing that number to
``hot_remove`` takes it away. Both need root.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO

CONTROL = Path("/sys/class/zram-control")


def why_not() -> str:
    """Why no zram device can be plugged here; empty if one can."""
    if not CONTROL.exists():
        return "this kernel has no zram (try modprobe zram)"
    if os.geteuid() != 0:
        return "plugging a zram device needs root"
    return ""


class Zram:
    """Plugs devices, and unplugs on exit whatever is left. One user at a time on a machine."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> Zram:
        self._lock = Path(tempfile.gettempdir(), "devhost-zram.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._numbers):
            self.unplug(number)
        if self._lock is not None:
            self._lock.close()

    def plug(self) -> int:
        """Makes a device and returns its number: ``/dev/zram<number>``."""
        self._numbers.append(int((CONTROL / "hot_add").read_text()))
        return self._numbers[-1]

    def unplug(self, number: int) -> None:
        """Takes the device away."""
        (CONTROL / "hot_remove").write_text(str(number))
        self._numbers.remove(number)
