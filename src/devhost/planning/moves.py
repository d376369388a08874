"""Groups the devices that change sides, and finds the groups that do not get on. Pure.

A planned move takes a minute or so and is no problem. Devices of one resource move together, so they are one
group; it is stuck after :data:`PATIENCE` seconds in which none of its devices has moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

from devhost.backend.frozen import mutable
from devhost.backend.model import AnyHolder

from .claims import Key
from .settings import Serve
from .sides import Moving

PATIENCE = 120.0
"""Seconds without progress after which a move is a problem."""

EXAMPLES = 3
"""Most devices that the reason of a group names."""

Origin = tuple[str, Serve]
"""The resource that devices leave, and its side."""


class Move(NamedTuple):
    """The devices that leave one resource.

    ``reason`` is what most of them wait for, ``held_by`` are the containers that it refers to. ``since`` is
    the time of the last progress in wall-clock seconds. ``stuck`` is why the move is a problem; else empty.
    """

    resource: str
    serve: Serve
    devices: Sequence[str]
    reason: str
    since: float
    stuck: str
    held_by: tuple[AnyHolder, ...] = ()


@mutable(slots=True)
class _MoveTimes:
    """Times of one group: ``since`` is wall-clock seconds, the others are monotonic ones."""

    progress: float
    since: float
    began: dict[Key, float] = field(default_factory=dict)

    def stuck(self, now: float) -> int:
        """The number of devices that have waited for too long."""
        if now < self.progress + PATIENCE:
            return 0
        return sum(now >= began + PATIENCE for began in self.began.values())

    def next_change(self, now: float) -> float | None:
        """Seconds until more devices have waited for too long; ``None`` if that is not due."""
        due = (max(self.progress, began) + PATIENCE - now for began in self.began.values())
        return min((wait for wait in due if wait > 0), default=None)


class Moves:
    """Follows the devices that change sides.

    ``clock`` gives monotonic seconds, ``wall`` seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._clock = clock
        self._wall = wall
        self._groups: dict[Origin, _MoveTimes] = {}

    def follow(self, moving: Iterable[Moving]) -> Sequence[Move]:
        """Takes the devices that change sides now. A device that no longer does is progress of its group.

        Returns the groups, by resource.
        """
        now, grouped = self._clock(), _grouped(moving)
        for origin in self._groups.keys() | grouped.keys():
            found = grouped.get(origin, ())
            group = self._groups.setdefault(origin, _MoveTimes(now, self._wall()))
            keys = {one.key for one in found}
            if group.began.keys() - keys:
                group.progress, group.since = now, self._wall()
            group.began = {key: group.began.get(key, now) for key in keys}
        self._groups = {origin: group for origin, group in self._groups.items() if group.began}
        return tuple(_described(*one, self._groups[one[0]], now) for one in sorted(grouped.items()))

    def next_change(self) -> float | None:
        """Seconds until a move becomes a problem; ``None`` if none will."""
        now = self._clock()
        waits = (group.next_change(now) for group in self._groups.values())
        return min((wait for wait in waits if wait is not None), default=None)


def _grouped(moving: Iterable[Moving]) -> Mapping[Origin, Sequence[Moving]]:
    found: dict[Origin, list[Moving]] = {}
    for one in moving:
        found.setdefault((one.resource, one.side[0]), []).append(one)
    return found


def _described(origin: Origin, found: Sequence[Moving], group: _MoveTimes, now: float) -> Move:
    devices = tuple(dict.fromkeys(one.key[1] for one in found))
    reasons = Counter(one.waits_for for one in found)
    (shown, count), *others = reasons.most_common()
    reason = f"{count} of {len(found)}: {shown}" if others else shown
    held_by = tuple(
        dict.fromkeys(holder for one in found if one.waits_for == shown for holder in one.held_by)
    )
    stuck = ""
    if waiting := group.stuck(now):
        what = "1 device has" if waiting == 1 else f"{waiting} devices have"
        rest = f" and {len(devices) - EXAMPLES} more" if len(devices) > EXAMPLES else ""
        of = "the device plugin" if origin[1] is Serve.PLUGIN else "DRA"
        stuck = (
            f"{what} not left {of} within {PATIENCE:.0f} s: {reason} ({', '.join(devices[:EXAMPLES])}{rest})"
        )
    return Move(*origin, devices, reason, group.since, stuck, held_by)
