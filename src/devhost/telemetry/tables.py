"""The wording and the rows of tables that terminal and browser show of a status document. Pure.

Nothing that many rows would say may keep everything else out of a table: the hundred tokens of one card
whose port is down are one row, and what then still is too much shares the room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from .document import DeviceStatus, EntryStatus, HolderStatus, HostStatus, Reasoned, StatusDocument

T = TypeVar("T")

UNKNOWN_POD = "a pod, unknown which"
HIDDEN_POD = "a pod"
"""What a container is called where the names of pods are not shown."""


class WithReason(Reasoned):
    """Whatever of the document has a reason."""

    reason: str


def age(since: str | None, now: datetime) -> str:
    """How long ago a time of the document was, in its one largest unit: ``45s``, ``12m``, ``3h``, ``8d``."""
    if not since:
        return ""
    try:
        then = datetime.fromisoformat(since)
    except ValueError:
        return "?"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    seconds = max(int((now - then).total_seconds()), 0)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def empty_entry(entry: EntryStatus) -> str:
    """How an entry without devices is called."""
    if entry["state"] == "absent":
        return "not on this node"
    return "waiting" if entry["state"] == "waiting" else "no devices"


def awaits(document: StatusDocument) -> list[str]:
    """The backends that have not listed their devices, of entries which should have some."""
    waiting = (e["backend"] for e in document["entries"] if e["state"] == "waiting" and not e["optional"])
    return list(dict.fromkeys(waiting))


def in_use(host: HostStatus) -> str:
    """Which configuration is in use while the file is refused."""
    if copy := host["copy"]:
        return f"running on the copy of {copy['acceptedAt']}"
    return f"generation {host['generation']} stays"


def held_by(device: DeviceStatus, known: bool, unnamed: str = UNKNOWN_POD) -> str:
    """The container that holds a device; empty if none does, as far as the kubelet's word is ``known``.

    ``unnamed`` is what a container is called whose name is not in the document.
    """
    given = "" if device["given"] in ([], [device["device"]]) else f" with {few(device['given'])}"
    if device["allocated"] or device["holder"]:
        return f"{container(device['holder'], unnamed)}{given}"
    return "" if known else "unknown"


def container(holder: HolderStatus | None, unnamed: str = UNKNOWN_POD) -> str:
    """``namespace/pod/container``."""
    if holder is None:
        return unnamed
    return f"{holder['namespace']}/{holder['pod']}/{holder['container']}"


def reason(row: WithReason) -> str:
    """The reason, and the containers that it means as far as the document names them."""
    return with_holders(row["reason"], [container(holder) for holder in row.get("heldBy", ())])


def with_holders(text: str, held_by: Sequence[object]) -> str:
    """A reason, and the containers that it means: ``held by a pod as d0::1 (default/train/main)``."""
    return f"{text} ({few([str(one) for one in held_by])})" if held_by else text


def few(devices: Sequence[str]) -> str:
    """At most three of the ids, and how many there are besides."""
    more = f" and {len(devices) - 3} more" if len(devices) > 3 else ""
    return ", ".join(devices[:3]) + more


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
    return device["device"], device["health"], reason(device), device["since"]


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
