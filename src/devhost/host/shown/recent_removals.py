"""The devices that left a resource's list recently, and why. Pure.

A device that vanishes stays in the list as Unhealthy for a while, and for as long as a container holds it. It
counts as departed once it is no longer in the list.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice
from typing import NamedTuple, TypeVar

from devhost.backend.frozen import frozen
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


@frozen
class Removals:
    """The devices that left one resource: those that may still be listed, and the others, oldest first."""

    leaving: Mapping[str, Reason] = field(default_factory=dict)
    departed: Sequence[Departed] = ()

    def after(
        self,
        left: Mapping[str, Reason],
        came: Iterable[str],
        listed: Callable[[], Container[str]],
        at: float,
    ) -> Removals:
        """The same after some devices left, or came back, and there is a new list.

        ``listed`` returns the devices in it, and is called only if needed.
        """
        if not (left or self.leaving or self.departed):
            return self
        back = set(came)
        first = dict(islice(left.items(), MOST))
        leaving = {name: why for name, why in self.leaving.items() if name not in back and name not in first}
        leaving = _last({**leaving, **first})
        there = listed() if leaving else ()
        gone = [Departed(name, why, at) for name, why in leaving.items() if name not in there]
        again = back.union(one.device for one in gone)
        departed = [one for one in self.departed if one.device not in again and one.at > at - LONGEST]
        still = {name: why for name, why in leaving.items() if name in there}
        return Removals(still, (*departed, *gone)[-MOST:])

    def recent(self, at: float) -> list[Departed]:
        """The devices that left within :data:`LONGEST`, newest first."""
        return [one for one in self.departed if one.at > at - LONGEST][::-1]


def _last(items: dict[str, T]) -> dict[str, T]:
    return dict(islice(items.items(), max(0, len(items) - MOST), None))
