"""The devices of each resource, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from devhost.sysfs import natural
from devhost.telemetry.document import (
    DepartedStatus,
    DeviceStatus,
    MemberStatus,
    ResourceStatus,
    StatusDocument,
)
from devhost.telemetry.wording import held_by

from .hiding import HIDDEN
from .markup import Content, Html, Row, joined, since, table, tag

MOST = 200
"""Rows of any one table."""
FEWEST = 10
"""Rows that a resource may have however many resources there are."""
IN_ALL = 1000
"""Rows of devices of all resources: what a phone draws without effort."""
FEW = 40
"""Devices in all up to which those of every resource are shown unfolded."""

_D = TypeVar("_D", DeviceStatus, MemberStatus)


def devices(document: StatusDocument, now: datetime, pods: bool) -> Html | None:
    """The section with a part to fold for each resource; nothing while there is no resource.

    ``pods`` is whether the document names them.
    """
    found = document["resources"]
    if not found:
        return None
    most = max(FEWEST, min(MOST, IN_ALL // len(found)))
    few = sum(len(resource["devices"]) for resource in found) <= FEW
    known = document["kubelet"]["podResources"]["known"]
    parts = [
        _resource(
            resource, now, most, few, lambda device: held_by(device, known, *(() if pods else (HIDDEN,)))
        )
        for resource in found
    ]
    return tag(
        "section", tag("h2", "Devices", id="devices"), *parts, aria_labelledby="devices", data_key="devices"
    )


def anchor(resource: str) -> str:
    """The id of the part of one resource; names are legal for the kubelet, and so in an id."""
    return f"r-{resource}"


def health(word: str) -> Html:
    """A word for health or state with a colour and a shape of its own."""
    looks = {"Healthy": "good", "ok": "good", "registered": "good", "Unhealthy": "bad", "degraded": "bad"}
    looks |= {"failed": "bad", "lost": "bad", "paused": "bad"}
    return tag("span", word, class_=f"state {looks.get(word, 'pending')}")


def more(count: int, what: str) -> Html | None:
    """The line below a table that says how many rows are not in it."""
    if count <= 0:
        return None
    return tag("p", f"{count:,} more {what}: ", tag("a", "/status.json", href="status.json"), class_="more")


def _resource(
    resource: ResourceStatus, now: datetime, most: int, few: bool, holder: Callable[[DeviceStatus], str]
) -> Html:
    name, ill = resource["name"], resource["allocatable"] < resource["capacity"]
    used = sum(device["allocated"] for device in resource["devices"])
    count = f"{resource['allocatable']} of {resource['capacity']} healthy, {used} in use"
    summary = tag("summary", tag("h3", name), " ", tag("span", count, class_="count"))
    return tag(
        "details",
        summary,
        _devices(resource, now, most, holder),
        _together(resource, most),
        _departed(resource, now),
        id=anchor(name),
        open=few or ill or bool(resource["departed"]),
    )


def _ill_first(found: Sequence[_D], most: int, key: Callable[[_D], str]) -> tuple[list[_D], str]:
    """The rows to show, and what the others are in a word."""
    ill = [one for one in found if one["health"] != "Healthy"]
    well = [one for one in found if one["health"] == "Healthy"]
    ill = sorted(ill, key=lambda one: natural(key(one)))[:most]
    room = most - len(ill)
    shown = ill + (sorted(well, key=lambda one: natural(key(one)))[:room] if room else [])
    return shown, "" if room == 0 else "healthy "


def _devices(
    resource: ResourceStatus, now: datetime, most: int, holder: Callable[[DeviceStatus], str]
) -> Html:
    if not resource["devices"]:
        return tag("p", "No device.", class_="nothing")
    shown, rest = _ill_first(resource["devices"], most, lambda device: device["id"])
    rows = [
        Row(
            (
                device["id"],
                health(device["health"]),
                since(device["since"], now),
                _numa(device["numaNodes"]),
                holder(device),
                device["reason"],
            ),
            {"data-key": device["id"], "class": None if device["health"] == "Healthy" else "ill"},
        )
        for device in shown
    ]
    headers = ("Device", "Health", "Since", "NUMA", "Held by", "Reason")
    caption = f"Devices of {resource['name']}"
    listed = table(caption, headers, rows, wide=("Held by", "Reason"), looks="devices", headed=True)
    return joined([listed, more(len(resource["devices"]) - len(shown), f"{rest}devices")])


def _together(resource: ResourceStatus, most: int) -> Html | None:
    if not resource["together"]:
        return None
    shown, rest = _ill_first(resource["together"], most, lambda member: member["device"])
    rows = [
        Row(
            (member["device"], health(member["health"]), _numa(member["numaNodes"]), member["reason"]),
            {"data-key": member["device"], "class": None if member["health"] == "Healthy" else "ill"},
        )
        for member in shown
    ]
    caption = f"Devices of {resource['name']} that are handed out together"
    listed = table(caption, ("Together", "Health", "NUMA", "Reason"), rows, wide=("Reason",), looks="devices")
    return joined(
        [listed, more(len(resource["together"]) - len(shown), f"{rest}devices handed out together")]
    )


def _departed(resource: ResourceStatus, now: datetime) -> Html | None:
    if not resource["departed"]:
        return None
    rows = [_left(resource["name"], departed, now) for departed in resource["departed"]]
    caption = f"Left {resource['name']} lately"
    return table(caption, ("Left lately", "Ago", "Reason"), rows, wide=("Reason",), looks="devices")


def _left(resource: str, departed: DepartedStatus, now: datetime) -> Row:
    device = departed["device"]
    say = f"{resource} {device} left: {departed['reason']}"
    return Row(
        (device, since(departed["at"], now), departed["reason"]),
        {"data-key": device, "data-news": f"left {resource} {device}", "data-say": say},
    )


def _numa(nodes: Sequence[int]) -> Content:
    return ", ".join(map(str, nodes))
