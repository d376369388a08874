"""What became of the devices of one resource from one list to the next, and what the log says of it.

One line for each device and change, whatever the number of its tokens; where very many change at once,
:data:`NAMED` lines of a kind and a count of the other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from .model import Health
from .telemetry import log as telemetry

NAMED = 20
"""Devices that the log names at most for each kind of change between two lists."""

log = telemetry.get(__name__)


@dataclass(frozen=True, slots=True)
class Changes:
    """Devices by id, each with the reason where there is one. What appears ill is in ``ill`` too."""

    left: Mapping[str, str]
    appeared: Mapping[str, str]
    ill: Mapping[str, str]
    well: Mapping[str, str]


def between(
    before: Mapping[str, Health],
    after: Mapping[str, Health],
    unchanged: Collection[str],
    why_gone: Callable[[str], str],
) -> Changes:
    """What happened to those devices that may have changed.

    Args:
        before: their health in the old list, by id; who is not here was not in it.
        after: their health in the new list.
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
    for device, health in after.items():
        was = before.get(device)
        if was is None:
            appeared[device] = ""
        if not health.healthy and (was is None or was.healthy):
            ill[device] = health.reason
        elif health.healthy and was is not None and not was.healthy:
            well[device] = ""
    return Changes(left, appeared, ill, well)


def tell(resource: str, changes: Changes) -> None:
    """Logs the changes of one resource."""
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
