"""Logs the changes of each resource's devices from one list to the next, and between the sides.

There is one line for each device and change, however many tokens a device has. If very many devices change at
once, some lines of each kind and a count of the others are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from devhost.backend.model import AnyHolder
from devhost.planning.claims import holder_field
from devhost.runtime.log import first, get

from .now import Changes, Reasons, Step, is_same

if TYPE_CHECKING:
    from devhost.planning.sides import Move

REASONS = 4
"""Most reasons that are logged for one device until it is healthy again: it may be one of hundreds."""

log = get(__name__)


def reasons(known: Reasons, changes: Changes) -> Reasons:
    """The reasons that have been logged once these changes are."""
    over = {*changes.left, *changes.unhealthy, *changes.healthy_again}
    found = {device: logged for device, logged in known.items() if device not in over}
    for device, reason in changes.other_reason.items():
        logged = found.get(device) or (changes.before[device].health.reason or "",)
        if reason not in logged and len(logged) < REASONS:
            logged = (*logged, reason)
        found[device] = logged
    return found


def write(step: Step) -> None:
    """Logs the changes of each resource, and remembers nothing."""
    before, now = step.before, step.now
    for changes in step.lists:
        name = changes.resource
        known = before.memory.reasons.get(name, {}) if is_same(before, now, name) else {}
        _write(changes, known, now.memory.reasons.get(name, {}))
    _write_moves(before.moves, now.moves)


def _write(changes: Changes, known: Reasons, logged: Reasons) -> None:
    """Logs changes; if all devices appear or leave, only the unhealthy ones are logged.

    ``known`` are the reasons that were logged before, ``logged`` the :func:`reasons` that are so now.
    """
    other_reason = {
        device: reason
        for device, reason in changes.other_reason.items()
        if logged[device][-1] == reason and len(logged[device]) > max(1, len(known.get(device, ())))
    }
    if not changes.whole:
        left = {device: reason.text for device, reason in changes.left.items()}
        held_by = {device: reason.held_by for device, reason in changes.left.items()}
        _lines(changes, log.info, left, "device left", "more devices left", held_by)
        _lines(changes, log.info, _alone(changes.appeared), "device appeared", "more devices appeared")
    _lines(changes, log.warning, changes.unhealthy, "device is unhealthy", "more devices are unhealthy")
    _lines(
        changes,
        log.warning,
        other_reason,
        "device is unhealthy for another reason",
        "more devices are unhealthy for another reason",
    )
    _lines(
        changes,
        log.info,
        _alone(changes.healthy_again),
        "device is healthy again",
        "more devices are healthy again",
    )


def _write_moves(before: Iterable[Move], now: Iterable[Move]) -> None:
    """Logs the moves that do not get on, once, and when they do again."""
    known, stuck = ({(one.resource, one.serve): one for one in of if one.stuck} for of in (before, now))
    for one in (one for origin, one in stuck.items() if origin not in known):
        log.warning(
            "devices do not change sides",
            resource=one.resource,
            reason=one.stuck,
            **holder_field(one.held_by),
        )
    for resource, _ in known.keys() - stuck.keys():
        log.info("devices change sides again", resource=resource)


def _alone(devices: Iterable[str]) -> Mapping[str, str]:
    """Devices without reasons."""
    return dict.fromkeys(devices, "")


def _lines(
    changes: Changes,
    write: Callable[..., None],
    devices: Mapping[str, str],
    one: str,
    more: str,
    held_by: Mapping[str, Sequence[AnyHolder]] = MappingProxyType({}),
) -> None:
    write = partial(write, resource=changes.resource)
    for device, reason in first(list(devices.items()), write, more):
        fields = {"reason": reason, **holder_field(held_by.get(device, ()))} if reason else {}
        write(one, device=device, **fields)
