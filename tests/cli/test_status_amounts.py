"""``devhost status`` shows what claims use of devices that they share by amount."""

from __future__ import annotations

from typing import Any

from status_document import NOW, document
from status_values import Json, document_of

from devhost.cli.status_report import show


def offered(**more: Any) -> Json:
    found = document([])
    one = {"device": "d0", "name": "d0", "slice": "s", "health": "Healthy", "reason": "", "replicas": 8}
    pools = [{"resource": "a.b/c", "devices": [{**one, **more}]}]
    found["dra"] = {"driver": "d.e", "state": "registered", "slices": 1, "writes": 1, "pools": pools}
    return found


def rows(found: Json) -> list[list[str]]:
    return [line.split() for line in show(document_of(found), NOW).splitlines()]


def test_a_shared_device_is_listed_with_what_is_in_use() -> None:
    capacity = [
        {"name": "memory", "total": "8Gi", "used": "5Gi", "free": "3Gi"},
        {"name": "cores", "total": "10", "used": "2", "free": "8"},
    ]
    shown = rows(offered(capacity=capacity))
    place = shown.index(["RESOURCE", "SHARED", "DEVICE", "IN", "USE"])
    assert " ".join(shown[place + 1]) == "a.b/c d0 memory 5Gi of 8Gi, cores 2 of 10"


def test_without_shared_devices_there_is_no_such_table() -> None:
    assert not any("SHARED" in row for row in rows(offered()))
