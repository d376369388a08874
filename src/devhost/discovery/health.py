"""Verdicts on devices, both ways, with a reason and with hysteresis.

A device is as healthy as its worst witness: the backend's ``discover``, its ``probe``, the nodes an
Allocate found missing, and the conditions of the resource. Sickness shows at once. Recovery shows at once
too, unless the device keeps flapping: from the third fall within :data:`WINDOW` on it must stay well for a
while that doubles with each fall, so that pods do not land on a device that comes and goes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field

from devhost.backend.model import HEALTHY, Device, Health, sound_health, unhealthy

WINDOW = 60.0
"""Seconds over which falls are counted."""

PATIENCE = 2
"""Falls within the window that recover at once."""

LONGEST_HOLD = 60.0
"""Seconds; the longest a device must stay well before it counts as healthy again."""


def is_health(verdict: object) -> bool:
    """Whether something a backend returned is a verdict, down to the type of its reason."""
    return isinstance(verdict, Health) and isinstance(verdict.reason, str)


def in_resource(device: Device, health: Health, uses: Collection[str]) -> Health:
    """The verdict on a device in one resource.

    Args:
        health: the verdict on the device itself.
        uses: what the resource hands out, in the words of :attr:`Device.unusable_for`.
    """
    if not health.healthy or not device.unusable_for:
        return health
    reasons = [reason for use, reason in device.unusable_for.items() if use in uses]
    return sound_health(unhealthy("; ".join(dict.fromkeys(reasons)))) if reasons else health


def worst(*verdicts: Health) -> Health:
    """One verdict of several witnesses: healthy when all say so, else with every reason there is."""
    reasons = dict.fromkeys(verdict.reason for verdict in verdicts if not verdict.healthy)
    return sound_health(unhealthy("; ".join(reasons))) if reasons else HEALTHY


@dataclass(slots=True)
class _History:
    healthy: bool = True
    falls: list[float] = field(default_factory=list)
    well_since: float | None = None
    hold: float = 0.0
    reason: str = ""


class Recovery:
    """Keeps a device Unhealthy for a while that becomes healthy and unhealthy again and again.

    Times are seconds of one monotonic clock. Only devices that were ever unhealthy take memory.
    """

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}

    def settle(self, device: str, raw: Health, now: float) -> Health:
        """The verdict to show of a device, by its id, of which ``raw`` is the verdict now."""
        history = self._histories.get(device)
        if history is None:
            if raw.healthy:
                return HEALTHY
            history = self._histories[device] = _History()
        return self._settle(history, raw, now)

    def next_change(self, now: float, asked: float) -> float | None:
        """Seconds until some verdict changes by the passing of time alone; ``None`` if none will.

        Args:
            asked: when the verdicts of all devices that matter were last asked for. What was over by then
                and has not been asked for is of a device that no resource offers.
        """
        ends = [
            history.well_since + history.hold
            for history in self._histories.values()
            if not history.healthy and history.well_since is not None
        ]
        waits = [end - now for end in ends if end > asked]
        return max(0.0, min(waits)) if waits else None

    def forget(self, known: Container[str]) -> None:
        """Drops what is remembered of devices that are no longer in ``known``."""
        for device in [device for device in self._histories if device not in known]:
            del self._histories[device]

    def _settle(self, history: _History, raw: Health, now: float) -> Health:
        if not raw.healthy:
            if history.healthy or history.well_since is not None:
                history.falls = [fall for fall in history.falls if now - fall < WINDOW] + [now]
                extra = len(history.falls) - PATIENCE
                history.hold = min(LONGEST_HOLD, 2.0**extra) if extra > 0 else 0.0
            history.healthy, history.well_since, history.reason = False, None, raw.reason
            return raw
        if history.healthy:
            return HEALTHY
        if history.well_since is None:
            history.well_since = now
        left = history.well_since + history.hold - now
        if left > 0:
            held = "it fails again and again, and must stay well a little longer"
            return sound_health(unhealthy(f"{held}: {history.reason}"))
        history.healthy, history.well_since = True, None
        return HEALTHY


class HealthTracker:
    """Health of the devices of one backend. Times are seconds of one monotonic clock.

    Only devices that were ever unhealthy take memory.
    """

    def __init__(self) -> None:
        self._recovery = Recovery()
        self._probed: Mapping[str, Health] = {}
        self._denied: dict[str, tuple[str, ...]] = {}
        self.stale = ""
        """Why nothing this backend once said can be trusted now; empty while it answers."""

    def probed(self, verdicts: Mapping[str, Health]) -> bool:
        """Takes the backend's latest ``probe``; devices it does not name are healthy. True if it is news."""
        before = self._probed
        self._probed = {device: health for device, health in verdicts.items() if not health.healthy}
        return self._probed != before

    def deny(self, device: str, missing: Sequence[str]) -> None:
        """An Allocate found these host paths missing: the device is unhealthy until all are back."""
        self._denied[device] = tuple(missing)

    @property
    def denied(self) -> Mapping[str, tuple[str, ...]]:
        """Host paths to look for again, by device."""
        return self._denied

    def restored(self, device: str) -> None:
        """All paths that :meth:`deny` named are back."""
        self._denied.pop(device, None)

    def verdict(self, device: Device, now: float) -> Health:
        """The device's health as the kubelet should see it."""
        return self._recovery.settle(device.id, self._raw(device), now)

    def next_change(self, now: float, asked: float) -> float | None:
        """See :meth:`Recovery.next_change`."""
        return self._recovery.next_change(now, asked)

    def forget(self, known: Container[str]) -> None:
        """Drops what is remembered of devices that are not in ``known`` any more."""
        self._recovery.forget(known)
        for device in [device for device in self._denied if device not in known]:
            del self._denied[device]

    def _raw(self, device: Device) -> Health:
        if self.stale:
            return unhealthy(self.stale)
        if not device.health.healthy:
            return device.health
        if missing := self._denied.get(device.id):
            return unhealthy(f"{', '.join(missing)} does not exist on the node: a pod needed it")
        return self._probed.get(device.id, HEALTHY)
