"""The devices of one resource as the kubelet should see them: snapshots with a revision.

A *token* is what the kubelet counts: a device, or one of the replicas it is shared as. A token that
disappears is first shown Unhealthy and left out only after :data:`GRACE`, because a kubelet may just
have chosen it; one that a container got stays Unhealthy for as long as that may be (the kubelet never
says when it is released), so that the pod's status tells the truth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .model import MAX_DEVICE_ID, Device, Health, unhealthy
from .plan import LIST_LIMIT, Offer, listed_bytes

GRACE = 2.0
"""Seconds a vanished token stays in the list as Unhealthy."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One token: its id, the device behind it, its health, and since when (wall clock, seconds)."""

    token: str
    device: Device
    health: Health
    since: float
    gone_at: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All tokens of a resource at one revision. Revisions only grow; 0 means "no list yet".

    ``caused_at`` is the monotonic time of the event that led to it, ``None`` if no event did.
    """

    revision: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    caused_at: float | None = None

    @property
    def healthy(self) -> int:
        """Tokens a pod could get."""
        return sum(1 for entry in self.entries.values() if entry.health.healthy)


def token(device: str, number: int, replicas: int) -> str:
    """The id the kubelet knows a replica by: the device's own when it is not shared.

    Longer than 63 characters it is cut and carries a hash, as the proto's comment on ``ID`` wants.
    """
    if replicas == 1:
        return device
    suffix = f"::{number}"
    if len(device) + len(suffix) > MAX_DEVICE_ID:
        digest = hashlib.sha256(device.encode()).hexdigest()[:8]
        device = f"{device[: MAX_DEVICE_ID - len(suffix) - 9]}-{digest}"
    return device + suffix


class Inventory:
    """Holds the newest snapshot of one resource and tells subscribers when there is a newer one.

    Args:
        wall: seconds since the epoch, for "since when".
        clock: monotonic seconds, for the grace.
    """

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float]) -> None:
        self._wall = wall
        self._clock = clock
        self._subscribers: set[Callable[[], None]] = set()
        self._allocated: set[str] = set()
        self.snapshot = Snapshot()

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Calls ``changed`` after each new revision; returns what ends that."""
        self._subscribers.add(changed)
        return lambda: self._subscribers.discard(changed)

    def allocated(self, tokens: Iterable[str]) -> None:
        """A container got these tokens."""
        self._allocated.update(tokens)

    def is_allocated(self, name: str) -> bool:
        """Whether some container got this token since devhost started."""
        return name in self._allocated

    def update(
        self,
        offers: Iterable[Offer],
        verdict: Callable[[Device], Health],
        why_gone: Callable[[str], str],
        caused_at: float | None = None,
    ) -> bool:
        """Takes the plan's offers for this resource; true when that made a new revision.

        Args:
            offers: the devices it has now.
            verdict: the health of a device.
            why_gone: the reason to show for a device, by id, that is not among the offers any more.
            caused_at: monotonic time of the event that led here, if one did.
        """
        old = self.snapshot.entries
        now, wall = self._clock(), self._wall()
        entries: dict[str, Entry] = {}
        for offer in offers:
            device, replicas = offer.device, offer.replicas
            health = verdict(device)
            for number in range(replicas):
                name = device.id if replicas == 1 else token(device.id, number, replicas)
                before = old.get(name)
                if before is None:
                    entries[name] = Entry(name, device, health, wall)
                elif before.device is device and before.health == health and before.gone_at is None:
                    entries[name] = before
                else:
                    same = before.health.healthy == health.healthy
                    entries[name] = Entry(name, device, health, before.since if same else wall)
        vanished = [
            before for name, before in old.items() if name not in entries and not self._outlived(before, now)
        ]
        for before in self._for_which_there_is_room(vanished, entries):
            entries[before.token] = self._gone(before, why_gone, now, wall)
        return self._publish(entries, self.snapshot.revision == 0 or _differs(old, entries), caused_at)

    def clear(self) -> None:
        """Publishes an empty list: the resource itself goes away."""
        self._publish({}, bool(self.snapshot.entries), None)

    def next_change(self) -> float | None:
        """Seconds until a vanished token's grace ends; ``None`` when no token is waiting."""
        now = self._clock()
        waits = [
            entry.gone_at + GRACE - now
            for entry in self.snapshot.entries.values()
            if entry.gone_at is not None and entry.token not in self._allocated
        ]
        return max(0.0, min(waits)) if waits else None

    def _publish(self, entries: Mapping[str, Entry], changed: bool, caused_at: float | None) -> bool:
        old = self.snapshot
        self.snapshot = Snapshot(old.revision + changed, entries, caused_at if changed else old.caused_at)
        if changed:
            for subscriber in tuple(self._subscribers):
                subscriber()
        return changed

    def _for_which_there_is_room(
        self, vanished: Sequence[Entry], entries: Mapping[str, Entry]
    ) -> Iterator[Entry]:
        """Those of the vanished with which the list stays within what a kubelet accepts.

        A list too long would cost the whole resource; a container's devices stay the longest.
        """
        if not vanished:
            return
        room = LIST_LIMIT - sum(map(_listed_bytes, entries.values()))
        for entry in sorted(vanished, key=lambda entry: entry.token not in self._allocated):
            room -= _listed_bytes(entry)
            if room < 0:
                return
            yield entry

    def _outlived(self, entry: Entry, now: float) -> bool:
        if entry.gone_at is None or entry.token in self._allocated:
            return False
        return now >= entry.gone_at + GRACE

    def _gone(self, entry: Entry, why_gone: Callable[[str], str], now: float, wall: float) -> Entry:
        if entry.gone_at is not None:
            return entry
        since = wall if entry.health.healthy else entry.since
        return Entry(entry.token, entry.device, unhealthy(why_gone(entry.device.id)), since, now)


def _listed_bytes(entry: Entry) -> int:
    return listed_bytes(len(entry.token), len(entry.device.numa_nodes))


def _differs(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> bool:
    """Whether the kubelet would see a difference: reasons and attributes do not reach it."""
    if old.keys() != new.keys():
        return True
    for name, entry in new.items():
        before = old[name]
        if before is not entry and (
            before.health.healthy != entry.health.healthy
            or before.device.numa_nodes != entry.device.numa_nodes
        ):
            return True
    return False
