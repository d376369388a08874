"""The health of devices, with reasons and hysteresis.

A device is healthy if all agree: the backend's ``discover`` and ``probe``, an Allocate that found host paths
missing, the verdicts of people and other programs (:mod:`devhost.discovery.verdicts`), and the resource's
conditions. A failure takes effect at once. So does recovery, unless the device is flapping: from the third
failure within :data:`WINDOW` on, it must stay healthy for a time that doubles with each failure, so that pods
do not get an unreliable device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain

from devhost.backend.errors import absent_paths
from devhost.backend.frozen import frozen, mutable
from devhost.backend.model import HEALTHY, NO_REASON, Cause, Device, Health, sound_health, unhealthy

WINDOW = 60.0
"""Seconds over which failures are counted."""

PATIENCE = 2
"""Failures within the window after which recovery takes effect at once."""

LONGEST_HOLD = 60.0
"""Longest time in seconds that a device must stay healthy before it counts as healthy again."""

NAMED_UNHEALTHY = 4
"""Maximum number of devices that the reason of several names."""

ALL = "*"
"""Represents every device of the node in a verdict, also those that come later."""


HealthOf = Callable[[Device], Health]
"""Returns the health of a device at one moment."""


def is_health(value: object) -> bool:
    """Whether a value that a backend returned is a :class:`Health`, including the types of its fields."""
    if not isinstance(value, Health) or not isinstance(value.healthy, bool):
        return False
    return isinstance(value.reason, str | None) and isinstance(value.causes, frozenset)


def in_resource(device: Device, health: Health, uses: Collection[str]) -> Health:
    """The health of a device in one resource, from that of the device itself.

    ``uses`` is what the resource provides, as keys of :attr:`Device.unusable_for`.
    """
    if not health.healthy or not device.unusable_for:
        return health
    reasons = [reason for use, reason in device.unusable_for.items() if use in uses]
    return sound_health(unhealthy("; ".join(dict.fromkeys(reasons)))) if reasons else health


def worst(*several: Health) -> Health:
    """Combines several: healthy if all are, else with all reasons."""
    failed = [health for health in several if not health.healthy]
    reasons = dict.fromkeys(health.reason or NO_REASON for health in failed)
    causes = {cause for health in failed for cause in health.causes}
    return sound_health(unhealthy("; ".join(reasons), *causes)) if failed else HEALTHY


def joint(devices: Sequence[tuple[str, Health]]) -> Health:
    """The health of several devices as one, given those of each by its id: healthy only if all are."""
    first = devices[0][1]
    if all(health == first for _, health in devices):
        return first  # such as that of an incomplete unit
    failed = [(name, health) for name, health in devices if not health.healthy]
    return unhealthy(named(failed), *{cause for _, health in failed for cause in health.causes})


def named(failed: Sequence[tuple[str, Health]]) -> str:
    """The reasons of unhealthy devices, each with the device."""
    reasons = [f"{name}: {health.reason}" for name, health in failed[:NAMED_UNHEALTHY]]
    more = f"; and {len(failed) - NAMED_UNHEALTHY} more" if len(failed) > NAMED_UNHEALTHY else ""
    return f"{'; '.join(reasons)}{more}"


@frozen(slots=True)
class Grounds:
    """What health depends on besides the devices.

    ``common`` counts for every device, and is equal if it has not changed. ``particular`` are the ids of the
    devices of which something else counts, too, such as the time.
    """

    common: tuple[object, ...]
    particular: frozenset[str]


@mutable(slots=True)
class _History:
    healthy: bool = True
    failures: list[float] = field(default_factory=list)
    healthy_since: float | None = None
    hold: float = 0.0
    last: Health = HEALTHY
    """The last failure."""


class Recovery:
    """Keeps a flapping device Unhealthy for a while.

    Times are seconds of one monotonic clock. Only devices that were ever unhealthy take memory.
    """

    def __init__(self) -> None:
        self._histories: dict[str, _History] = {}

    def settle(self, device: str, raw: Health, now: float) -> Health:
        """The health to publish for a device, by its id, whose health now is ``raw``."""
        history = self._histories.get(device)
        if history is None:
            if raw.healthy:
                return HEALTHY
            history = self._histories[device] = _History()
        if not raw.healthy:
            # a new failure: how long it must stay healthy afterwards depends on how many there were
            if history.healthy or history.healthy_since is not None:
                history.failures = [failure for failure in history.failures if now - failure < WINDOW] + [now]
                extra = len(history.failures) - PATIENCE
                history.hold = min(LONGEST_HOLD, 2.0**extra) if extra > 0 else 0.0
            history.healthy, history.healthy_since, history.last = False, None, raw
            return raw
        if history.healthy:
            return HEALTHY
        # healthy again: it counts from here, and takes effect once the hold is over
        if history.healthy_since is None:
            history.healthy_since = now
        left = history.healthy_since + history.hold - now
        if left > 0:
            held = "it fails again and again, and must stay healthy a little longer"
            reason = f"{held}: {history.last.reason or NO_REASON}"
            return sound_health(unhealthy(reason, *history.last.causes))
        history.healthy, history.healthy_since = True, None
        return HEALTHY

    def __iter__(self) -> Iterator[str]:
        """The ids of the devices that were unhealthy."""
        return iter(self._histories)

    def next_change(self, now: float, asked: float) -> float | None:
        """Seconds until some health changes only because time passes; ``None`` if none will.

        A hold that had ended by ``asked``, when the health of all offered devices was last requested,
        belongs to a device that no resource offers.
        """
        ends = [
            history.healthy_since + history.hold
            for history in self._histories.values()
            if not history.healthy and history.healthy_since is not None
        ]
        waits = [end - now for end in ends if end > asked]
        return max(0.0, min(waits)) if waits else None

    def forget(self, known: Container[str]) -> None:
        """Drops what is remembered of devices that are no longer in ``known``."""
        for device in [device for device in self._histories if device not in known]:
            del self._histories[device]


class HealthTracker:
    """The health of the devices of one backend. Times are seconds of one monotonic clock.

    Only devices that were ever unhealthy take memory.
    """

    def __init__(self) -> None:
        self._recovery = Recovery()
        self._probed: Mapping[str, Health] = {}
        self.missing_paths: dict[str, tuple[str, ...]] = {}
        """Host paths to check again, by device."""
        self.stale = ""
        """Why earlier answers of the backend no longer count; empty while it answers."""
        self.released = ""
        """Why no device can be used while the backend has released its driver; empty while it has not."""
        self.absent: Mapping[str, bool] = {}
        """The host paths of ``give`` that do not exist, and all whose file system does not answer: true."""
        self.cordons: Mapping[str, Health] = {}
        """The devices that are out of service, by id, or :data:`ALL`. It takes effect and ends at once."""
        self.reported: Mapping[str, Health] = {}
        """The devices that another program found unhealthy, likewise."""
        self.prepared: Mapping[str, Health] = {}
        """The devices that are being prepared for the next container. It takes effect and ends at once."""

    def apply_probe(self, found: Mapping[str, Health]) -> bool:
        """Stores the latest results of ``probe``; devices not named are healthy. True if they changed."""
        before = self._probed
        self._probed = {device: health for device, health in found.items() if not health.healthy}
        return self._probed != before

    def report_missing(self, device: str, paths: Sequence[str]) -> None:
        """An Allocate found these host paths missing: the device is unhealthy until all are back."""
        self.missing_paths[device] = tuple(paths)

    def paths_restored(self, device: str) -> None:
        """All paths that :meth:`report_missing` named are back."""
        self.missing_paths.pop(device, None)

    def conditions(self) -> tuple[object, ...]:
        """What health depends on beside the devices and the time: equal if they do not differ."""
        missing = tuple(self.missing_paths.items())
        found = self.stale, self.released, self._probed, missing, self.cordons, self.reported, self.prepared
        return *found, self.absent

    def general(self) -> tuple[object, ...]:
        """What counts for every device: equal if it does not differ."""
        return self.stale, self.released, self.cordons.get(ALL), self.reported.get(ALL), self.absent

    def particular(self) -> Iterator[str]:
        """The ids of the devices that were unhealthy, or of which something else is known."""
        known = self._recovery, self._probed, self.missing_paths, self.cordons, self.reported, self.prepared
        return chain.from_iterable(known)

    def of(self, device: Device, now: float) -> Health:
        """The device's health as the kubelet should see it."""
        own = self._recovery.settle(device.id, self._raw(device), now)
        cordon = overruled(self.cordons, device.id) if self.cordons else HEALTHY
        if self.prepared and not (prepared := self.prepared.get(device.id, HEALTHY)).healthy:
            cordon = worst(cordon, prepared)
        if cordon.healthy:
            return own
        return cordon if own.healthy else worst(cordon, own)

    def next_change(self, now: float, asked: float) -> float | None:
        """See :meth:`Recovery.next_change`."""
        return self._recovery.next_change(now, asked)

    def forget(self, known: Container[str]) -> None:
        """Drops what is remembered of devices that are no longer in ``known``."""
        self._recovery.forget(known)
        for device in [device for device in self.missing_paths if device not in known]:
            del self.missing_paths[device]

    def _raw(self, device: Device) -> Health:
        if self.released:
            return unhealthy(self.released, Cause.CORDONED)
        if self.stale:
            return unhealthy(self.stale, Cause.BACKEND)
        if not device.health.healthy:
            return device.health
        if missing := self.missing_paths.get(device.id):
            silent = [path for path in missing if self.absent.get(path)]
            reason = f"{absent_paths(missing, silent)}: a pod needed {'them' if missing[1:] else 'it'}"
            return unhealthy(reason, Cause.MISSING)
        probed = self._probed.get(device.id, HEALTHY)
        return worst(overruled(self.reported, device.id), probed) if self.reported else probed


def overruled(verdicts: Mapping[str, Health], device: str) -> Health:
    """The verdict on a device, by its id."""
    own, general = verdicts.get(device, HEALTHY), verdicts.get(ALL, HEALTHY)
    return worst(own, general) if general is not HEALTHY else own
