"""What became of the devices of one resource from one list to the next, and what the log says of it.

One line for each device and change, whatever the number of its tokens; where very many change at once,
:data:`NAMED` lines of a kind and a count of the other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from devhost.backend.incident import Incident
from devhost.backend.model import Device, Health
from devhost.telemetry import log as telemetry

NAMED = 20
"""Devices that the log names at most for each kind of change between two lists."""

REASONS = 4
"""Reasons told of one device at most until it is well again: it may be one of hundreds."""

log = telemetry.get(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """One of the devices a token stands for, and its own health."""

    device: Device
    health: Health


@dataclass(frozen=True, slots=True)
class Changes:
    """Devices by id, each with the reason where there is one. What appears ill is in ``ill`` too.

    ``otherwise`` has those that stay ill, for another reason than before. ``before`` and ``after`` are the
    devices that may have changed, as they were and as they are. Where the ``whole`` list begins or ends, all
    of them appear or leave.
    """

    left: Mapping[str, str]
    appeared: Mapping[str, str]
    ill: Mapping[str, str]
    otherwise: Mapping[str, str]
    well: Mapping[str, str]
    before: Mapping[str, Member]
    after: Mapping[str, Member]
    whole: bool = False


def beginning(devices: Mapping[str, Member]) -> Changes:
    """What the first list of a resource says of its devices."""
    ill = {name: member.health.reason for name, member in devices.items() if not member.health.healthy}
    return Changes({}, dict.fromkeys(devices, ""), ill, {}, {}, {}, devices, whole=True)


def ending(devices: Mapping[str, Member]) -> Changes:
    """What becomes of the devices of a resource that leaves."""
    reason = "the resource has left the configuration"
    return Changes(dict.fromkeys(devices, reason), {}, {}, {}, {}, devices, {}, whole=True)


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
    otherwise: dict[str, str] = {}
    well: dict[str, str] = {}
    for device in before:
        if device not in after and device not in unchanged:
            left[device] = why_gone(device)
    for device, member in after.items():
        was, health = before.get(device), member.health
        if was is None:
            appeared[device] = ""
        if health.healthy:
            if was is not None and not was.health.healthy:
                well[device] = ""
        elif was is None or was.health.healthy:
            ill[device] = health.reason
        elif was.health.reason != health.reason:
            otherwise[device] = health.reason
    return Changes(left, appeared, ill, otherwise, well, before, after)


class _Write(Protocol):
    def __call__(self, message: str, /, **fields: object) -> None: ...


class DeviceLog:
    """Logs what becomes of the devices of one resource.

    Args:
        resource: its name.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._again: dict[str, Incident] = {}  # of those that had another reason since they fell ill

    def tell(self, changes: Changes) -> None:
        """Logs them; where all devices come or go another line says so, and only who is ill is told here."""
        if self._again:
            for device in (*changes.left, *changes.ill, *changes.well):
                self._again.pop(device, None)
        otherwise = {
            device: reason
            for device, reason in changes.otherwise.items()
            if self._told(device, changes.before[device]).news(reason)
        }
        if not changes.whole:
            self._lines(log.info, changes.left, "device left", "more devices left")
            self._lines(log.info, changes.appeared, "device appeared", "more devices appeared")
        self._lines(log.warning, changes.ill, "device is unhealthy", "more devices are unhealthy")
        self._lines(
            log.warning,
            otherwise,
            "device is unhealthy for another reason",
            "more devices are unhealthy for another reason",
        )
        self._lines(log.info, changes.well, "device is healthy again", "more devices are healthy again")

    def _told(self, device: str, before: Member) -> Incident:
        episode = self._again.get(device)
        if episode is None:
            episode = self._again[device] = Incident(REASONS)
            episode.news(before.health.reason)
        return episode

    def _lines(self, write: _Write, devices: Mapping[str, str], one: str, more: str) -> None:
        for device, reason in islice(devices.items(), NAMED):
            fields = {"reason": reason} if reason else {}
            write(one, resource=self._resource, device=device, **fields)
        if len(devices) > NAMED:
            write(more, resource=self._resource, devices=len(devices) - NAMED)
