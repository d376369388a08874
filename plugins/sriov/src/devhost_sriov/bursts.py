"""Waits until a burst of changes is over, since functions are created, bound and removed one by one.

The kernel reports each step: eight virtual functions cause eight ``add`` events, and later eight ``bind``
events. A scan in between would list some of them. Many adapters also restart their port before the first
virtual function appears: until the port has its carrier again, none of them is healthy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from devhost.backend import Event
from devhost.backend.sysfs import AUXILIARY_BUS, PCI_BUS, Sysfs

from .health import lacks_carrier
from .scan import MDEV_BUS, FunctionReader

QUIET = 0.3
"""Seconds without a change after which a burst is over.

Between the last virtual function and the first driver, whose module udev loads, 0.14 s were measured (Linux
6.12, igb). Large adapters take about as long for each function.
"""

ROUNDS = 25
"""Limit of such pauses, well within the deadline of a scan; then the current functions are listed."""

_ACTIONS = frozenset({"add", "remove", "bind", "unbind"})
_BUSES = {"pci": PCI_BUS, "auxiliary": AUXILIARY_BUS, "mdev": MDEV_BUS}


class BurstWait:
    """Waits for the end of bursts. Used by the thread that scans.

    ``ignore_ports`` is whether the carrier of ports does not matter, ``quiet`` the seconds without a change
    after which a burst is over.
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
        """Notes an event that may belong to a burst."""
        # a function that is removed first loses its interface and its RDMA device
        loses = event.action == "remove" and event.sys_path.startswith("/sys/devices/pci")
        self._is_due |= loses or (event.subsystem in _BUSES and event.action in _ACTIONS)

    def wait(self, known: Collection[str]) -> None:
        """Returns when no function appears, disappears or changes its driver any longer.

        Except at the first call, it also waits until the ports of virtual functions that are not ``known``
        have their carrier. Raises ``OSError`` if a bus cannot be listed.
        """
        # udev reports a function after its rules, so a scan for another reason may be earlier
        before = self._bound()
        is_due = self._is_due or self._last not in (None, before)
        self._is_due = False
        for _ in range(ROUNDS if is_due else 0):
            self._sleep(self._quiet)
            now = self._bound()
            new = (
                [path for path in now if path.rpartition("/")[2] not in known]
                if self._last is not None
                else []
            )
            if now == before and not self._lack_carrier(new):
                break
            before = now
        self._last = before

    def _lack_carrier(self, paths: Iterable[str]) -> bool:
        """Whether the physical function of any of these has no carrier on its ports."""
        if self._ignore_ports:
            return False
        physical_functions = {self._sysfs.target(f"{path}/physfn") for path in paths} - {""}
        reader = FunctionReader(self._sysfs)
        found = (
            reader.pci(self._sysfs.device(f"{PCI_BUS}/{physical}"), 0) for physical in physical_functions
        )
        return any(physical is not None and lacks_carrier(physical.interfaces) for physical in found)

    def _bound(self) -> dict[str, str]:
        """All devices on the buses, with their drivers."""
        return {
            path: self._sysfs.target(f"{path}/driver")
            for bus in _BUSES.values()
            for path in (f"{bus}/{name}" for name in self._sysfs.identities(bus))
        }
