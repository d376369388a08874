"""What became of the devices of one resource from one list to the next, and what the log says of it.

One line for each device and change, whatever the number of its tokens; where very many change at once,
:data:`NAMED` lines of a kind and a count of the other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from .model import Device, Health
from .telemetry import log as telemetry

NAMED = 20
"""Devices that the log names at most for each kind of change between two lists."""

log = telemetry.get(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the devices a token stands for, and its own health."""

    device: Device
    health: Health


@dataclass(frozen=True, slots=True)
class Changes:
    """Devices by id, each with the reason where there is one. What appears ill is in ``ill`` too.

    ``before`` and ``after`` are the devices that may have changed, as they were and as they are. Where the
    ``whole`` list begins or ends, all of them appear or leave, well or ill, and nothing else is said.
    """

    left: Mapping[str, str]
    appeared: Mapping[str, str]
    ill: Mapping[str, str]
    well: Mapping[str, str]
    before: Mapping[str, Member]
    after: Mapping[str, Member]
    whole: bool = False


def beginning(devices: Mapping[str, Member]) -> Changes:
    """What the first list of a resource says of its devices."""
    return Changes({}, dict.fromkeys(devices, ""), {}, {}, {}, devices, whole=True)


def ending(devices: Mapping[str, Member]) -> Changes:
    """What becomes of the devices of a resource that leaves."""
    reason = "the resource has left the configuration"
    return Changes(dict.fromkeys(devices, reason), {}, {}, {}, devices, {}, whole=True)


def between(
    before: Mapping[str, Member],
    after: Mapping[str, Member],
    unchanged: Collection[str],
    why_gone: Callable[[str], str],
) -> Changes:
    """What happened to those devices that may have changed.

    Args:
        before: what they were in the old list, by id; who is not here was not in it.
        after: what they are in the new list.
        unchanged: devices of ``before`` that are in the new list as they were.
        why_gone: the reason why a device, by id, is in the list no more.
    """
    left: dict[str, str] = {}
    appeared: dict[str, str] = {}
    ill: dict[str, str] = {}
    well: dict[str, str] = {}
    for device in before:
        if device not in after and device not in unchanged:
            left[device] = why_gone(device)
    for device, member in after.items():
        was, health = before.get(device), member.health
        if was is None:
            appeared[device] = ""
        if not health.healthy and (was is None or was.health.healthy):
            ill[device] = health.reason
        elif health.healthy and was is not None and not was.health.healthy:
            well[device] = ""
    return Changes(left, appeared, ill, well, before, after)


def tell(resource: str, changes: Changes) -> None:
    """Logs the changes of one resource; where it begins or ends with them, its own line says enough."""
    if changes.whole:
        return
    _lines(log.info, resource, changes.left, "device left", "more devices left")
    _lines(log.info, resource, changes.appeared, "device appeared", "more devices appeared")
    _lines(log.warning, resource, changes.ill, "device is unhealthy", "more devices are unhealthy")
    _lines(log.info, resource, changes.well, "device is healthy again", "more devices are healthy again")


class _Write(Protocol):
    def __call__(self, message: str, /, **fields: object) -> None: ...


def _lines(write: _Write, resource: str, devices: Mapping[str, str], one: str, more: str) -> None:
    for device, reason in islice(devices.items(), NAMED):
        fields = {"reason": reason} if reason else {}
        write(one, resource=resource, device=device, **fields)
    if len(devices) > NAMED:
        write(more, resource=resource, devices=len(devices) - NAMED)
