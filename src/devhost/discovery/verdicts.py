"""The health of devices in one resource, for both front ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import chain

from devhost.backend.model import Device, Health
from devhost.planning.settings import ResourceSettings

from .health import Grounds, Recovery, in_resource, worst
from .scanner import Scanner

Verdict = Callable[[Device], Health]


class Verdicts:
    """The health of the devices of one entry: that of the device itself, and the entry's ``healthyWhile``."""

    def __init__(self, scanner: Scanner, entry: ResourceSettings) -> None:
        self._scanner = scanner
        self._entry = entry
        self._recovery = Recovery()
        self._judged_at = 0.0

    def follow(self, scanner: Scanner, entry: ResourceSettings) -> None:
        if entry.healthy_while != self._entry.healthy_while:
            self._recovery = Recovery()  # failures of another condition do not count for this one
        self._scanner, self._entry = scanner, entry

    def now(self) -> Verdict:
        """The verdicts at this moment, for each device of the scanner."""
        known, now = self._scanner.health, time.monotonic()
        entry, recovery = self._entry, self._recovery
        uses, given = entry.uses, entry.given(known.absent)
        # after an edit the backend may not have read an attribute yet, as in _conditional()
        fits = entry.give.depends_on_device and entry.give.attributes <= self._scanner.requested

        def usable(device: Device) -> Health:
            own = in_resource(device, known.verdict(device, now), uses)
            if fits:
                return worst(own, entry.given(known.absent, device))
            return own if given.healthy else worst(own, given)

        if not self._conditional():
            return usable
        self._judged_at = now
        recovery.forget(self._scanner.devices)

        def verdict(device: Device) -> Health:
            return worst(usable(device), recovery.settle(device.id, entry.condition(device), now))

        return verdict

    def grounds(self) -> Grounds:
        """What the verdicts depend on at this moment."""
        known, entry = self._scanner.health, self._entry
        conditional = self._conditional()
        particular = chain(known.particular(), self._recovery if conditional else ())
        return Grounds((known, *known.general(), entry, conditional), frozenset(particular))

    def _conditional(self) -> bool:
        """Whether the conditions of the entry count.

        After an edit the backend may not have read an attribute yet, which is no fault of the device.
        """
        return bool(self._entry.healthy_while) and self._entry.watched() <= self._scanner.requested

    def next_change(self) -> float | None:
        """Seconds until time alone changes a verdict of ``healthyWhile``; ``None`` if it will not."""
        return self._recovery.next_change(time.monotonic(), self._judged_at)
