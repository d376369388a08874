"""Logs the changes of one resource's devices from one list to the next.

There is one line for each device and change, however many tokens a device has. If very many devices change at
once, :data:`NAMED` lines of each kind and a count of the others are logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from devhost.allocation.inventory import Changes, Member
from devhost.backend.incident import Incident
from devhost.backend.model import AnyHolder
from devhost.planning.claims import holder_field
from devhost.runtime.log import get

NAMED = 20
"""Most devices that are logged for each kind of change between two lists."""

REASONS = 4
"""Most reasons that are logged for one device until it is healthy again: it may be one of hundreds."""

log = get(__name__)


class _Write(Protocol):
    def __call__(self, message: str, /, **fields: object) -> None: ...


class DeviceLog:
    """Logs changes of the devices of one resource."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._incidents: dict[str, Incident] = {}  # of devices whose reason has changed since

    def write(self, changes: Changes) -> None:
        """Logs them; if all devices appear or leave, only the unhealthy ones are logged."""
        unhealthy, healthy_again = changes.unhealthy, changes.healthy_again
        if self._incidents:
            for device in (*changes.left, *unhealthy, *healthy_again):
                self._incidents.pop(device, None)
        other_reason = {
            device: reason
            for device, reason in changes.other_reason.items()
            if self._incident(device, changes.before[device]).news(reason)
        }
        if not changes.whole:
            left = {device: reason.text for device, reason in changes.left.items()}
            held_by = {device: reason.held_by for device, reason in changes.left.items()}
            self._lines(log.info, left, "device left", "more devices left", held_by)
            self._lines(log.info, changes.appeared, "device appeared", "more devices appeared")
        self._lines(log.warning, unhealthy, "device is unhealthy", "more devices are unhealthy")
        self._lines(
            log.warning,
            other_reason,
            "device is unhealthy for another reason",
            "more devices are unhealthy for another reason",
        )
        self._lines(log.info, healthy_again, "device is healthy again", "more devices are healthy again")

    def _incident(self, device: str, before: Member) -> Incident:
        incident = self._incidents.get(device)
        if incident is None:
            incident = self._incidents[device] = Incident(REASONS)
            incident.news(before.health.reason or "")
        return incident

    def _lines(
        self,
        write: _Write,
        devices: Mapping[str, str],
        one: str,
        more: str,
        held_by: Mapping[str, Sequence[AnyHolder]] = MappingProxyType({}),
    ) -> None:
        for device, reason in islice(devices.items(), NAMED):
            fields = {"reason": reason, **holder_field(held_by.get(device, ()))} if reason else {}
            write(one, resource=self._resource, device=device, **fields)
        if len(devices) > NAMED:
            write(more, resource=self._resource, devices=len(devices) - NAMED)
