"""Remembers the devices that left a resource's list recently, and why. Pure.

A device that vanishes stays in the list as Unhealthy for a while, and for as long as a container holds it. It
counts as departed once it is no longer in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from devhost.planning.claims import Reason

T = TypeVar("T")

MOST = 20
"""Most devices that are remembered for one resource, as many as the log names."""

LONGEST = 3600.0
"""Seconds for which they are remembered."""


class Departed(NamedTuple):
    """The id of a device, why it left, and when (wall-clock seconds)."""

    device: str
    reason: Reason
    at: float


class RecentRemovals:
    """Remembers the devices that left one resource."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self.leaving: dict[str, Reason] = {}
        """The devices that have left and may still be listed."""
        self._departed: dict[str, Departed] = {}

    def left(self, devices: Mapping[str, Reason]) -> None:
        """These devices leave, each for a reason; they may still be listed for a while."""
        for device, reason in islice(devices.items(), MOST):
            self.leaving.pop(device, None)
            self.leaving[device] = reason
        self.leaving = _last(self.leaving)

    def came(self, devices: Iterable[str]) -> None:
        """These devices exist, or exist again."""
        if self.leaving or self._departed:
            for device in devices:
                self.leaving.pop(device, None)
                self._departed.pop(device, None)

    def settle(self, listed: Callable[[], Container[str]]) -> None:
        """There is a new list; ``listed`` returns the devices in it, and is called only if needed."""
        if not self.leaving:
            return
        there, now = listed(), self._wall()
        for device, reason in list(self.leaving.items()):
            if device not in there:
                del self.leaving[device]
                self._departed.pop(device, None)
                self._departed[device] = Departed(device, reason, now)
        self._departed = _last(self._departed)

    def recent(self) -> list[Departed]:
        """The devices that left within :data:`LONGEST`, newest first."""
        if not self._departed:
            return []
        oldest = self._wall() - LONGEST
        self._departed = {name: one for name, one in self._departed.items() if one.at > oldest}
        return list(self._departed.values())[::-1]


def _last(items: dict[str, T]) -> dict[str, T]:
    return dict(islice(items.items(), max(0, len(items) - MOST), None))
