"""Which devices are shown where there is room for few rows. Pure.

Nothing that many rows would say may keep everything else out of a table: the hundred tokens of one card
whose port is down are one row, and what then still is too much shares the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from .document import DeviceStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Alike:
    """Tokens in one row: the first of them, and how many there are besides that differ in their id only."""

    first: DeviceStatus
    more: int

    @property
    def name(self) -> str:
        """The id, and how many are like it: ``0000:3b:00.0::0 and 99 more like it``."""
        return f"{self.first['id']} and {self.more} more like it" if self.more else self.first["id"]


def alike(devices: Iterable[DeviceStatus]) -> list[Alike]:
    """The devices of one resource with one row for tokens of one physical device that say the same.

    What a container has always is a row of its own, for its holder's sake.
    """
    groups: dict[Hashable, list[DeviceStatus]] = {}
    for device in devices:
        groups.setdefault(_said(device), []).append(device)
    return [Alike(found[0], len(found) - 1) for found in groups.values()]


def _said(device: DeviceStatus) -> Hashable:
    if device["allocated"] or device["holder"]:
        return device["id"]
    return device["device"], device["health"], device["reason"], device["since"]


def fair(rows: Sequence[T], most: int, *origins: Callable[[T], Hashable]) -> list[T]:
    """At most ``most`` of the rows, in their order, from as many origins as there is room for.

    Args:
        origins: what a row comes from. Every origin of the first kind has its first row shown before any
            has its second; rows of which that says nothing are chosen by the next kind in the same way.
    """
    if len(rows) <= most:
        return list(rows)
    seen: Counter[Hashable] = Counter()
    turns: list[tuple[int, ...]] = []
    for row in rows:
        turn: tuple[int, ...] = ()
        for origin in origins:
            place = (turn, origin(row))
            seen[place] += 1
            turn = (*turn, seen[place])
        turns.append(turn)
    kept = sorted(range(len(rows)), key=turns.__getitem__)[:most]
    return [rows[place] for place in sorted(kept)]
