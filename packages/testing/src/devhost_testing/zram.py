"""Real hot-plug on any machine: zram devices are added and removed with their nodes and uevents.

This uses the kernel's interface (``Documentation/admin-guide/blockdev/zram.rst``): reading
``/sys/class/zram-control/hot_add`` adds a device and returns its number, writing that number to
``hot_remove`` removes it. Both need root.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from devhost.backend.errors import DevhostError

CONTROL = Path("/sys/class/zram-control")

LOCK = Path("/run/devhost-zram")
"""Locked by the present user; contains the numbers of its devices. After a reboot it does not exist."""

RETRY = 0.1
"""Seconds between two checks whether the other user is done."""

LOOKED_AT = 10.0
"""Seconds for which others may have a new device open: udevd reads its content."""


def why_not() -> str:
    """Why no zram device can be plugged on this machine; empty if one can."""
    if not CONTROL.exists():
        return "this kernel has no zram (try modprobe zram)"
    if os.geteuid() != 0:
        return "plugging a zram device needs root"
    # in a container: reading would plug a device that could not be removed
    if not os.access(CONTROL / "hot_remove", os.W_OK):
        return "/sys is read-only"
    return ""


class Busy(DevhostError):
    """Another program plugs zram devices on this machine and does not stop."""


class Zram:
    """Plugs devices, and unplugs the remaining ones on exit. Only one user at a time on a machine.

    On entry it unplugs devices of an earlier user that was killed, unless they are in use.

    Raises ``Busy`` on entry if another user is not done within ``patience`` seconds.
    """

    def __init__(self, patience: float = 20.0) -> None:
        self._patience = patience
        self._numbers: list[int] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> Zram:
        lock = LOCK.open("a+")
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
                break
        lock.seek(0)
        for number in lock.read().split():
            with suppress(OSError):
                _remove(int(number))
        self._lock = lock
        self._record()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._numbers):
            self.unplug(number)
        if self._lock is not None:
            self._lock.close()

    def plug(self) -> int:
        """Adds a device and returns its number: ``/dev/zram<number>``."""
        number = int((CONTROL / "hot_add").read_text())
        self._numbers.append(number)
        self._record()
        return number

    def unplug(self, number: int) -> None:
        """Removes the device."""
        _remove(number)
        self._numbers.remove(number)
        self._record()

    def _record(self) -> None:
        assert self._lock is not None
        self._lock.truncate(0)
        self._lock.write(" ".join(map(str, self._numbers)))
        self._lock.flush()


def _remove(number: int) -> None:
    """Removes a device; raises ``OSError`` if it cannot, also if a program has it open for long."""
    deadline = time.monotonic() + LOOKED_AT
    while True:
        try:
            (CONTROL / "hot_remove").write_text(str(number))
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY)
        else:
            return
