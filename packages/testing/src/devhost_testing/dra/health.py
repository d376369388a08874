"""What a kubelet knows about the health of a driver's devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .answers import Violation

TIMEOUT = 30.0
"""Seconds after which a device is unknown if its driver gives no other time."""

LONGEST_MESSAGE = 1024
"""Bytes; a kubelet cuts longer messages."""

STATES = ("Unknown", "Healthy", "Unhealthy")
"""By their number in the protocol."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A device as a kubelet shows it: ``health`` is one of :data:`STATES`."""

    health: str
    message: str = ""


class HealthView:
    """The last report of each device of one driver."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: dict[tuple[str, str], tuple[DeviceState, float]] = {}
        self.messages = 0
        """How many messages have come on this stream."""

    def begin(self) -> None:
        """A stream was opened; what an earlier one has reported is forgotten."""
        self._reports.clear()
        self.messages = 0

    def take(self, message: Any) -> None:
        """Takes one message of a stream. Raises ``Violation`` if a kubelet would cut or drop something."""
        self.messages += 1
        for one in message.devices:
            name = one.device.pool_name, one.device.device_name
            if not all(name):
                raise Violation("a health report has a device without pool or name")
            if one.health >= len(STATES):
                raise Violation(f"device {'/'.join(name)} has the health {one.health}, which is unknown")
            if len(one.message.encode()) > LONGEST_MESSAGE:
                raise Violation(
                    f"the message of device {'/'.join(name)} is longer than {LONGEST_MESSAGE} bytes"
                )
            wait = one.health_check_timeout_seconds or TIMEOUT
            self._reports[name] = DeviceState(STATES[one.health], one.message), self._clock() + wait

    def devices(self) -> Mapping[tuple[str, str], DeviceState]:
        """The devices by pool and name. A report that is too old makes a device ``Unknown``."""
        now = self._clock()
        return {
            name: state if now < until else DeviceState(STATES[0])
            for name, (state, until) in self._reports.items()
        }
