"""What differs between two moments: the devices of each resource. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from devhost.allocation.inventory import Member, Snapshot, present
from devhost.backend.frozen import frozen
from devhost.backend.model import NO_REASON
from devhost.planning.claims import Reason
from devhost.planning.plan import differences

from .now import Now, ResourceNow, why_not_listed

REMOVED = Reason("the resource has left the configuration")
"""Why all devices of a resource leave its list."""


@frozen
class Changes:
    """The devices of a resource that have changed, by id, each with its reason, if any.

    Devices that appear unhealthy are in ``unhealthy`` too. ``other_reason`` has those that stay unhealthy,
    for another reason than before. ``before`` and ``after`` are the devices that may have changed, as they
    were and as they are. Where the ``whole`` list begins or ends, all of them appear or leave.
    """

    resource: str
    backend: str
    before: Mapping[str, Member]
    after: Mapping[str, Member]
    left: Mapping[str, Reason]
    appeared: Sequence[str]
    unhealthy: Mapping[str, str]
    other_reason: Mapping[str, str]
    healthy_again: Sequence[str]
    whole: bool = False


@frozen
class Step:
    """From what was shown last to what is true now, and what differs between the lists of the resources."""

    before: Now
    now: Now
    lists: Sequence[Changes]


def is_same(before: Now, now: Now, name: str) -> bool:
    """Whether a resource has been in service since, so that its list has only changed."""
    was, one = before.resources.get(name), now.resources.get(name)
    return was is not None and one is not None and was.number == one.number


def changes(before: Now, now: Now) -> Iterator[Changes]:
    """The lists that have changed, those that have ended first."""
    for name, was in before.resources.items():
        if not is_same(before, now, name) and (devices := was.snapshot.present()):
            yield _changes(was, devices, {}, lambda device: REMOVED, whole=True)
    for name, one in now.resources.items():
        last = before.resources[name].snapshot if is_same(before, now, name) else Snapshot()
        if one.snapshot is last or not one.snapshot.revision:
            continue
        if not last.revision:
            yield _changes(one, {}, one.snapshot.present(), lambda device: REMOVED, whole=True)
        elif found := _between(one, last, now):
            yield found


def _between(one: ResourceNow, last: Snapshot, now: Now) -> Changes | None:
    new = differences(last.entries, one.snapshot.entries)
    was = present(entry for name in new if (entry := last.entries.get(name)) is not None)
    became = present(filter(None, new.values()))
    # a token may come or go while its device stays, with fewer replicas or another way to share it
    if not became.keys() <= was.keys():
        earlier = last.present()
        was |= {name: earlier[name] for name in became if name in earlier}
    if not was.keys() <= became.keys():
        later = one.snapshot.present()
        became |= {name: later[name] for name in was if name in later}
    backend = now.backends.get(one.entry.backend)
    devices = backend.devices if backend else {}

    def why_gone(device: str) -> Reason:
        key = one.entry.backend, device
        return why_not_listed(one.name, key, devices, now.differences, one.refused)

    return _changes(one, was, became, why_gone) if was or became else None


def _changes(
    resource: ResourceNow,
    before: Mapping[str, Member],
    after: Mapping[str, Member],
    why_gone: Callable[[str], Reason],
    *,
    whole: bool = False,
) -> Changes:
    left = {name: why_gone(name) for name in before if name not in after}
    appeared: list[str] = []
    unhealthy: dict[str, str] = {}
    other_reason: dict[str, str] = {}
    healthy_again: list[str] = []
    for name, member in after.items():
        was, health = before.get(name), member.health
        if was is None:
            appeared.append(name)
        if health.healthy:
            if was is not None and not was.health.healthy:
                healthy_again.append(name)
        elif was is None or was.health.healthy:
            unhealthy[name] = health.reason or NO_REASON
        elif was.health.reason != health.reason:
            other_reason[name] = health.reason or NO_REASON
    return Changes(
        resource.name,
        resource.entry.backend,
        before,
        after,
        left,
        appeared,
        unhealthy,
        other_reason,
        healthy_again,
        whole,
    )
