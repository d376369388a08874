"""Waiting until a burst is over: functions are made, bound and taken away one by one, and mean one change.

The kernel tells of each: eight virtual functions are eight times ``add``, a little later eight times
``bind``. Whoever looked in between would list first one of them, then three, then all.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from devhost.backend import Event
from devhost.sysfs import Sysfs

from .scan import AUXILIARY_BUS, PCI_BUS

QUIET = 0.3
"""Seconds without a change after which a burst is over. Between the last virtual function and the first of
their drivers, whose module udev has to load, there were 0.14 s (Linux 6.12, igb); big adapters take about as
long for each function."""

MOST = 7.5
"""Seconds after which what there is by then is shown, well below the deadline of a look."""

_ACTIONS = frozenset({"add", "remove", "bind", "unbind"})
_BUSES = {"pci": PCI_BUS, "auxiliary": AUXILIARY_BUS}


class Settling:
    """Used by the thread that looks.

    Args:
        sysfs: where the buses are.
        sleep: waits for so many seconds.
    """

    def __init__(self, sysfs: Sysfs, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sysfs = sysfs
        self._sleep = sleep
        self._is_due = False

    def notice(self, event: Event) -> None:
        """Notes an event that may be one of many."""
        # a function that is taken away loses what hangs on it first: its interface, its RDMA device
        loses = event.action == "remove" and event.sys_path.startswith("/sys/devices/pci")
        self._is_due |= loses or (event.subsystem in _BUSES and event.action in _ACTIONS)

    def wait(self) -> None:
        """Returns when nothing comes, goes or changes its driver any more; at once where nothing did.

        Raises:
            OSError: a bus cannot be listed.
        """
        if not self._is_due:
            return
        self._is_due = False
        before, waited = self._bound(), 0.0
        while waited < MOST:
            self._sleep(QUIET)
            waited += QUIET
            now = self._bound()
            if now == before:
                return
            before = now

    def _bound(self) -> dict[str, str]:
        """Everything on the buses, with its driver."""
        return {
            path: self._sysfs.target(f"{path}/driver")
            for bus in _BUSES.values()
            for path in (f"{bus}/{name}" for name in self._sysfs.identities(bus))
        }
