"""Waits until a burst of changes is over: functions are made, bound and removed one by one.

The kernel reports each: eight virtual functions are eight times ``add``, a little later eight times
``bind``. A scan in between would list first one of them, then three, then all. Many adapters also restart
their port before they have the first one: until it has its carrier again, none of them is healthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from devhost.backend import Event
from devhost.backend.sysfs import Sysfs

from .health import lacks_carrier
from .scan import AUXILIARY_BUS, PCI_BUS, FunctionReader

QUIET = 0.3
"""Seconds without a change after which a burst is over. Between the last virtual function and the first of
their drivers, whose module udev has to load, there were 0.14 s (Linux 6.12, igb); big adapters take about as
long for each function."""

ROUNDS = 25
"""How often that is waited for; what exists by then is shown, well before the deadline of a scan."""

_ACTIONS = frozenset({"add", "remove", "bind", "unbind"})
_BUSES = {"pci": PCI_BUS, "auxiliary": AUXILIARY_BUS}


class BurstWait:
    """Used by the thread that scans.

    Args:
        sysfs: where the buses are.
        ignore_ports: whether nobody asks for the carrier of a port.
        quiet: seconds without a change after which a burst is over.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        *,
        ignore_ports: bool,
        quiet: float = QUIET,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sysfs = sysfs
        self._ignore_ports = ignore_ports
        self._quiet = quiet
        self._sleep = sleep
        self._is_due = False
        self._last: dict[str, str] | None = None

    def notice(self, event: Event) -> None:
        """Notes an event that may be one of many."""
        # a function that is taken away loses what hangs on it first: its interface, its RDMA device
        loses = event.action == "remove" and event.sys_path.startswith("/sys/devices/pci")
        self._is_due |= loses or (event.subsystem in _BUSES and event.action in _ACTIONS)

    def wait(self, known: Collection[str]) -> None:
        """Returns when nothing comes, goes or changes its driver any longer; at once where nothing did.

        Virtual functions that are new are waited for until the port they lie on has its carrier; at the first
        time none is.

        Args:
            known: the ids of the functions that are not new.

        Raises:
            OSError: a bus cannot be listed.
        """
        # udev tells of a function when its rules are done, and a look for another reason may come before that
        before = self._bound()
        is_due = self._is_due or self._last not in (None, before)
        self._is_due = False
        for _ in range(ROUNDS if is_due else 0):
            self._sleep(self._quiet)
            now = self._bound()
            new = [path for path in now if _id(path) not in known] if self._last is not None else []
            if now == before and not self._lack_carrier(new):
                break
            before = now
        self._last = before

    def _lack_carrier(self, paths: Iterable[str]) -> bool:
        """Whether any of these lies on a physical function whose ports have no carrier."""
        if self._ignore_ports:
            return False
        wholes = {self._sysfs.target(f"{path}/physfn") for path in paths} - {""}
        reader = FunctionReader(self._sysfs)
        found = (reader.pci(self._sysfs.device(f"{PCI_BUS}/{whole}"), 0) for whole in wholes)
        return any(whole is not None and lacks_carrier(whole.interfaces) for whole in found)

    def _bound(self) -> dict[str, str]:
        """Everything on the buses, with its driver."""
        return {
            path: self._sysfs.target(f"{path}/driver")
            for bus in _BUSES.values()
            for path in (f"{bus}/{name}" for name in self._sysfs.identities(bus))
        }


def _id(path: str) -> str:
    return path.rpartition("/")[2]
