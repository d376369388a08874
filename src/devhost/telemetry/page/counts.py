"""Counts the devices of a status document, and orders resources and devices, the worst first. Pure.

A resource may list a device several times, as shares, or many devices as one token. The page counts devices.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from devhost.backend.sysfs import natural
from devhost.telemetry.document import DeviceStatus, ResourceStatus, StatusDocument

ALL = "all"
"""The device of a row that represents all devices of its resource (``DeviceStatus``)."""


class Rank(IntEnum):
    """The order of rows."""

    PROBLEM = 0
    """It has a problem."""
    UNHEALTHY = 1
    HELD = 2
    """A container has it, or one of its devices."""
    HEALTHY = 3
    """It is healthy and free: a row that needs no attention."""

    @property
    def style(self) -> str | None:
        """The class of a row."""
        return {Rank.HEALTHY: "quiet", Rank.HELD: None}.get(self, "unhealthy")


class Physical(NamedTuple):
    """One device: whether any share of it is healthy, and whether any is in use."""

    healthy: bool
    used: bool

    def merged(self, other: Physical | None) -> Physical:
        """The same device with what another share of it shows."""
        return Physical(self.healthy or other.healthy, self.used or other.used) if other else self


class Counts(NamedTuple):
    """How many devices a resource has."""

    devices: int
    healthy: int
    used: int


def rank(healthy: bool, used: bool) -> Rank:
    return (Rank.HELD if used else Rank.HEALTHY) if healthy else Rank.UNHEALTHY


def rank_of(device: DeviceStatus) -> Rank:
    """The rank of one row of a resource."""
    return rank(device.health == "Healthy", device.allocated)


def physical(resource: ResourceStatus) -> dict[str, Physical]:
    """The devices of a resource, by the backend's id."""
    found: dict[str, Physical] = {}
    if resource.together and any(one.device == ALL for one in resource.devices):
        given = {id_ for one in resource.devices if one.allocated for id_ in one.given}
        for member in resource.together:
            found[member.device] = Physical(member.health == "Healthy", member.device in given)
        return found
    for device in resource.devices:
        one = Physical(device.health == "Healthy", device.allocated)
        found[device.device] = one.merged(found.get(device.device))
    return found


def counted(resource: ResourceStatus) -> Counts:
    """The number of devices of a resource."""
    found = physical(resource).values()
    return Counts(len(found), sum(one.healthy for one in found), sum(one.used for one in found))


def worst_first(document: StatusDocument) -> list[tuple[Rank, ResourceStatus]]:
    """The resources, those with problems first."""
    subjects = {problem.subject.partition(" ")[0] for problem in document.problems}

    def ranked(resource: ResourceStatus) -> Rank:
        if resource.name in subjects or resource.last_error:
            return Rank.PROBLEM
        return min(map(rank_of, resource.devices), default=Rank.HEALTHY)

    found = [(ranked(resource), resource) for resource in document.resources]
    return sorted(found, key=lambda one: (one[0], natural(one[1].name)))
