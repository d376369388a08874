"""Status documents of tests, as JSON."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from devhost.host.host import Host
from devhost.host.shown.status import captured
from devhost.telemetry.ask import read
from devhost.telemetry.document import (
    BackendStatus,
    DeviceStatus,
    EntryStatus,
    ResourceStatus,
    StatusDocument,
    form,
    json_line,
)

Json = dict[str, Any]
"""A JSON object."""

_EMPTY = {str: "", int: 0, float: 0.0, bool: False}


def status(host: Host) -> Json:
    """The present document of a host."""
    found: Json = json.loads(json_line(captured(host)()))
    return found


def rows(host: Host) -> dict[str, Json]:
    """What that document has of each device that a resource offers, by token."""
    return {row["id"]: row for resource in status(host)["resources"] for row in resource["devices"]}


def document_of(json: Any) -> StatusDocument:
    """The document that a command reads from this JSON; what a test leaves out is empty."""
    return read(completed(json), StatusDocument)


def completed(json: Json, kind: Any = StatusDocument) -> Json:
    """This JSON with everything that a test leaves out, empty."""
    found: Json = _completing(kind)(json)
    return found


def device(name: str, reason: str = "", holder: str = "", **more: object) -> Json:
    """One device: with a ``reason`` it is Unhealthy; ``holder`` is ``namespace/pod/container``."""
    made = {"id": name, "device": name.partition("::")[0], "health": "Unhealthy" if reason else "Healthy"}
    made |= {"reason": reason, "allocated": bool(holder)}
    words = zip(("namespace", "pod", "container"), holder.split("/"), strict=False)
    return completed({**made, "holder": dict(words) if holder else None, **more}, DeviceStatus)


def resource(name: str, backend: str, devices: Iterable[Json], **more: object) -> Json:
    """A registered resource with these devices; ``more`` replaces keys of a resource without problems."""
    listed = list(devices)
    made = {"name": name, "backend": backend, "entry": "resources[0]", "devices": listed, "revision": 3}
    made |= {"capacity": len(listed), "allocatable": sum(one["health"] == "Healthy" for one in listed)}
    made |= {"socket": "x.sock", "state": "registered", "streams": 1, "registrations": 1}
    return completed({**made, **more}, ResourceStatus)


def entry(number: int, name: str, backend: str, devices: int = 0, **more: object) -> Json:
    """An entry of the configuration, which has its devices."""
    made = {"entry": f"resources[{number}]", "name": name, "backend": backend, "devices": devices}
    return completed({**made, "state": "served", "resources": [name], **more}, EntryStatus)


def backend(name: str, count: int, **more: object) -> Json:
    """A backend without problems."""
    return completed({"name": name, "state": "ok", "devices": count, **more}, BackendStatus)


def problem(kind: str, subject: str, reason: str, since: str | None = None, count: int = 1) -> Json:
    """One problem, by default of an unknown age."""
    return {"kind": kind, "subject": subject, "reason": reason, "since": since, "count": count}


def document(*resources: Json, started: str = "2026-11-20T09:00:00Z", **more: Json | list[Json]) -> Json:
    """A document of a host with these resources where nothing is wrong."""
    reload = {"at": started, "result": "ok"}
    made: Json = {
        "devhost": {"version": "0.1.0", "pid": 4711, "startedAt": started, "root": "/", "lastReload": reload},
        "kubelet": {
            "dir": "/var/lib/kubelet/device-plugins",
            "socket": "present",
            "podResources": {"known": True},
        },
        "resources": resources,
        "entries": [
            entry(number, one["name"], one["backend"], len(one["devices"]))
            for number, one in enumerate(resources)
        ],
    }
    return completed({**made, **more})


@cache  # tests make documents of thousands of devices
def _completing(kind: Any) -> Callable[[Any], Any]:
    """The function that adds what JSON of this type leaves out."""
    if get_origin(kind) is Sequence:
        each = _completing(get_args(kind)[0])
        return lambda json: [each(one) for one in json or ()]
    if get_origin(kind) is types.UnionType:
        given = _completing(get_args(kind)[0])
        return lambda json: None if json is None else given(json)
    if is_dataclass(kind):
        return _completing_object(kind)
    empty = _EMPTY.get(kind, "")
    return lambda json: empty if json is None else json


def _completing_object(kind: Any) -> Callable[[Any], Any]:
    hints, found = get_type_hints(kind), form(kind)
    values = {key: _completing(hints[name]) for name, key in found.keys.items()}

    def complete(json: Any) -> Json:
        json = json or {}
        return {
            key: value(json.get(key))
            for key, value in values.items()
            if key in json or key not in found.optional
        }

    return complete
