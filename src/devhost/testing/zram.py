"""Real hot-plug on a plain machine: zram devices come and go with their nodes and uevents.

The kernel's own interface (``Documentation/admin-guide/blockdev/zram.rst``): reading
``/sys/class/zram-control/hot_add`` makes a device and gives its number, writing that number to
``hot_remove`` takes it away. Both need root.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO

from devhost.backend.errors import DevhostError

CONTROL = Path("/sys/class/zram-control")

RETRY = 0.1
"""Seconds between two looks whether the other user is done."""


def why_not() -> str:
    """Why no zram device can be plugged here; empty if one can."""
    if not CONTROL.exists():
        return "this kernel has no zram (try modprobe zram)"
    if os.geteuid() != 0:
        return "plugging a zram device needs root"
    # in a container: reading is enough to plug a device, and then nothing could take it away
    if not os.access(CONTROL / "hot_remove", os.W_OK):
        return "/sys is read-only here"
    return ""


class Busy(DevhostError):
    """Another program plugs zram devices on this machine, and goes on doing so."""


class Zram:
    """Plugs devices, and unplugs on exit whatever is left. One user at a time on a machine.

    Args:
        patience: seconds to wait for another user to be done.

    Raises:
        Busy: on entry, when the other user was not done by then.
    """

    def __init__(self, patience: float = 20.0) -> None:
        self._patience = patience
        self._numbers: list[int] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> Zram:
        lock = Path(tempfile.gettempdir(), "devhost-zram.lock").open("w")
        deadline = time.monotonic() + self._patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    lock.close()
                    raise Busy("another program is plugging zram devices") from None
                time.sleep(RETRY)
            else:
                self._lock = lock
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
