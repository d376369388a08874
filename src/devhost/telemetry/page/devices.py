"""The devices of each resource: counted, ordered, the worst first, and as HTML.

A resource may list a device several times, as shares, or many devices as one token. The page counts devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import IntEnum
from typing import NamedTuple

from markupsafe import Markup

from devhost.backend.sysfs import natural
from devhost.telemetry.document import DepartedStatus, DeviceStatus, ResourceStatus, StatusDocument
from devhost.telemetry.tables import HIDDEN_POD, Alike, alike, fair, held_by, numbered, reason, together

from .markup import Content, Row, joined, since, table, tag

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


MOST = 200
"""The maximum number of rows of a table."""
FEWEST = 10
"""Rows that each resource may have, regardless of the number of resources."""
IN_ALL = 1000
"""Rows of devices of all resources together, which a phone can render quickly."""
FEW = 40
"""Up to this total number of devices the part of every resource is open."""


def devices(document: StatusDocument, now: datetime, pods: bool) -> Markup | None:
    """The section with a collapsible part for each resource; empty without resources.

    ``pods`` is whether the document names pods.
    """
    found = document.resources
    if not found:
        return None
    most = max(FEWEST, min(MOST, IN_ALL // len(found)))
    few = sum(len(resource.devices) for resource in found) <= FEW
    known = document.kubelet.pod_resources.known
    parts = [
        _resource(
            resource, now, most, few, lambda device: held_by(device, known, *(() if pods else (HIDDEN_POD,)))
        )
        for _, resource in worst_first(document)
    ]
    return tag(
        "section", tag("h2", "Devices", id="devices"), *parts, aria_labelledby="devices", data_key="devices"
    )


def anchor(resource: str) -> str:
    """The id of a resource's part; a valid resource name is also valid in an id."""
    return f"r-{resource}"


def health(word: str) -> Markup:
    """A word for health or state, with its colour and shape."""
    style = {"Healthy": "good", "ok": "good", "registered": "good", "Unhealthy": "bad", "degraded": "bad"}
    style |= {"failed": "bad", "lost": "bad", "paused": "bad"}
    return tag("span", word, class_=f"state {style.get(word, 'pending')}")


def shares(resource: ResourceStatus, found: Counts) -> str:
    """The healthy ones of the tokens of a resource; empty if they are its devices."""
    if resource.capacity == found.devices:
        return ""
    return f"{resource.allocatable}/{resource.capacity}"


def more(count: int, what: str) -> Markup | None:
    """The line below a table with the number of omitted rows."""
    if count <= 0:
        return None
    return tag("p", f"{count:,} more {what}: ", tag("a", "/status.json", href="status.json"), class_="more")


def _resource(
    resource: ResourceStatus, now: datetime, most: int, few: bool, holder: Callable[[DeviceStatus], str]
) -> Markup:
    name, unhealthy = resource.name, resource.allocatable < resource.capacity
    found = counted(resource)
    handed_out = shares(resource, found)
    count = f"{found.healthy} of {found.devices} healthy, {found.used} in use"
    if handed_out:
        count = f"{count}, {handed_out} shares healthy"
    summary = tag("summary", tag("h3", name), " ", tag("span", count, class_="count"))
    return tag(
        "details",
        summary,
        _devices(resource, now, most, few, holder),
        _together(resource, most),
        _departed(resource, now),
        id=anchor(name),
        data_name=name,
        open=few or unhealthy or bool(resource.departed),
    )


def _in_order(devices: Sequence[DeviceStatus], *, healthy: bool) -> list[DeviceStatus]:
    found = [device for device in devices if (device.health == "Healthy") is healthy]
    return sorted(found, key=lambda device: natural(device.id))


def _ill_first(devices: Sequence[DeviceStatus], most: int) -> tuple[list[Alike], Markup | None]:
    """The rows to show, and the number of devices that are in none of them."""
    unhealthy = _in_order(devices, healthy=False)
    rows = [Alike(device, 0) for device in unhealthy] if len(devices) <= most else alike(unhealthy)
    shown = fair(rows, most, lambda row: row.first.device)
    if room := most - len(shown):
        healthy = sorted(_in_order(devices, healthy=True), key=rank_of)
        shown += [Alike(device, 0) for device in healthy[:room]]
    hidden = len(devices) - sum(1 + one.more for one in shown)
    return shown, more(hidden, "healthy devices" if room else "devices")


def _devices(
    resource: ResourceStatus, now: datetime, most: int, few: bool, holder: Callable[[DeviceStatus], str]
) -> Markup:
    """The devices of a resource; beside others, the healthy and free ones are folded, unless ``few``."""
    if not resource.devices:
        return tag("p", "No device.", class_="nothing")
    shown, hidden = _ill_first(resource.devices, most)
    rows = [
        Row(
            (
                one.name,
                health(one.first.health),
                since(one.first.since, now),
                _numa(one.first.numa_nodes),
                holder(one.first),
                reason(one.first),
            ),
            {"data-key": one.first.id, "class": rank_of(one.first).style},
        )
        for one in shown
    ]
    noted = sum(rank_of(one.first) is not Rank.HEALTHY for one in shown)
    headers = ("Device", "Health", "Since", "NUMA", "Held by", "Reason")
    caption = f"Devices of {resource.name}"

    def listed(caption: str, rows: Sequence[Row]) -> Markup | None:
        wide = ("Held by", "Reason")
        return table(caption, headers, rows, wide=wide, style="devices", headed=True)

    if few or not noted or noted == len(rows):
        return joined([listed(caption, rows), hidden])
    free = f"{len(rows) - noted} healthy and free"
    folded = tag(
        "details",
        tag("summary", free, class_="count"),
        listed(f"Healthy and free devices of {resource.name}", rows[noted:]),
        id=f"{anchor(resource.name)}-free",
        data_name=resource.name,
    )
    return joined([listed(caption, rows[:noted]), folded, hidden])


def _together(resource: ResourceStatus, most: int) -> Markup | None:
    if not resource.together:
        return None
    # sorted by id first: the second sort keeps this order for devices with the same health
    members = sorted(resource.together, key=lambda member: natural(member.device))
    members.sort(key=lambda member: member.health == "Healthy")
    shown, others = members[:most], members[most:]
    rows = [
        Row(
            (member.device, health(member.health), _numa(member.numa_nodes), member.reason),
            {"data-key": member.device, "class": rank(member.health == "Healthy", False).style},
        )
        for member in shown
    ]
    caption = f"Devices of {resource.name} that are handed out together"
    listed = table(caption, ("Together", "Health", "NUMA", "Reason"), rows, wide=("Reason",), style="devices")
    healthy = "healthy " if others and others[0].health == "Healthy" else ""
    return joined([listed, more(len(others), f"{healthy}devices handed out together")])


def _departed(resource: ResourceStatus, now: datetime) -> Markup | None:
    found = together(resource.departed, reason)
    rows = [_left(resource.name, departed, others, now) for departed, others in found]
    caption = f"Recently left {resource.name}"
    return table(caption, ("Left recently", "Ago", "Reason"), rows, wide=("Reason",), style="devices")


def _left(resource: str, departed: DepartedStatus, others: int, now: datetime) -> Row:
    device = numbered(departed.device, others)
    text = f"{resource} {device} left: {reason(departed)}"
    return Row(
        (device, since(departed.at, now), reason(departed)),
        {"data-key": departed.device, "data-news": f"left {resource} {device}", "data-announce": text},
    )


def _numa(nodes: Sequence[int]) -> Content:
    return ", ".join(map(str, nodes))
