"""An edited ConfigMap: what changes in the running pod, and what stays."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from onenode.cluster import Cluster
from onenode.offers import FUSE, SHARES
from onenode.release import Release
from onenode.shipped import Shipped
from onenode.waiting import until

KEPT, GONE, NEW = FUSE, "example.com/gone", "example.com/new"


def resource(name: str, shares: int = SHARES, device: str = "/dev/fuse") -> dict[str, Any]:
    return {"name": name, "backend": "udev", "where": {"devNode": device}, "share": {"replicas": shares}}


def document(*resources: dict[str, Any]) -> dict[str, Any]:
    return {"version": 1, "resources": list(resources)}


FIRST = document(resource(KEPT), resource(GONE, device="/dev/null"))


@pytest.fixture(scope="module")
def installed(cluster: Cluster, shipment: Shipped) -> Iterator[Release]:
    with Release(cluster, shipment, {"config": FIRST}) as release:
        yield release


@pytest.fixture
def release(installed: Release) -> Iterator[Release]:
    """With the first configuration, which is restored afterwards."""
    before = installed.text()
    yield installed
    if installed.text() != before:
        installed.change(before)


def test_an_edit_changes_the_resources_in_place(cluster, release, pods):
    """The same container continues; unchanged resources keep their sockets, streams and pods."""
    cluster.shows(KEPT, SHARES)
    cluster.shows(GONE, SHARES)
    holder = pods.create("holder", {KEPT: 1}).running()
    before, kept = release.identity(), release.resource(KEPT)
    lists = release.metric("devhost_lists_total", resource=KEPT)
    release.change(json.dumps(document(resource(KEPT), resource(NEW, 5, "/dev/zero"))))
    cluster.shows(NEW, 5)
    cluster.shows(GONE, 0)
    assert release.identity() == before
    after = release.resource(KEPT)
    same = ("socket", "registrations", "lastRegistration", "streams", "revision")
    assert {key: after[key] for key in same} == {key: kept[key] for key in same}
    assert release.metric("devhost_lists_total", resource=KEPT) == lists
    assert pods.create("new", {NEW: 1}).running().opens("/dev/zero")
    assert holder.opens("/dev/fuse")
    assert cluster.counts(KEPT) == (SHARES, SHARES)


def test_more_shares_are_sent_on_the_same_stream(cluster, release):
    before, kept = release.identity(), release.resource(KEPT)
    release.change(json.dumps(document(resource(KEPT, 7), resource(GONE, device="/dev/null"))))
    cluster.shows(KEPT, 7)
    assert release.identity() == before
    assert release.resource(KEPT)["registrations"] == kept["registrations"]


def test_an_invalid_edit_changes_nothing_and_is_reported_everywhere_with_the_same_text(cluster, release):
    cluster.shows(KEPT, SHARES)
    before, kept = release.identity(), release.resource(KEPT)
    generation = release.status()["devhost"]["generation"]
    release.edit(json.dumps(document({**resource(KEPT), "shares": 5}, resource(GONE, device="/dev/null"))))
    until("devhost refuses the edit", lambda: complaints(release), seen=release.status)
    reason = config_problem(release.status())
    assert "shares" in reason
    until("the log has the complaint", lambda: reason in [line.get("reason") for line in log_lines(release)])
    assert reason == config_problem(json.loads(release.get("/status.json").text))
    assert reason in html.unescape(re.sub(r"<[^>]*>", "", release.get("/").text))
    assert release.metric("devhost_problem_info", kind="config", reason=reason) == 1
    assert release.metric("devhost_problems", kind="config") == 1
    assert release.metric("devhost_config_last_reload_success") == 0
    assert release.get("/readyz").status == 200
    assert release.get("/healthz").status == 200
    cluster.refreshed()
    assert cluster.counts(KEPT) == (SHARES, SHARES)
    assert release.container()["ready"]
    assert release.identity() == before
    assert release.resource(KEPT)["registrations"] == kept["registrations"]
    assert release.status()["devhost"]["generation"] == generation


def test_the_fixed_file_is_accepted_and_ends_the_complaint(release):
    first = release.text()
    release.edit("version: 1\nresources: nonsense\n")
    until("devhost refuses the edit", lambda: complaints(release), seen=release.status)
    release.edit(first)
    until("the complaint has ended", lambda: not complaints(release), seen=release.status)
    assert release.metric("devhost_config_last_reload_success") == 1
    assert release.metric("devhost_problems", kind="config") == 0
    assert release.get("/readyz").status == 200


def complaints(release: Release) -> list[str]:
    """The problem of the file in ``devhost status`` in the container."""
    found: list[str] = release.status().get("devhost", {}).get("lastReload", {}).get("complaints", [])
    return found


def config_problem(document: dict[str, Any]) -> str:
    """Why the file is refused, from the problems of a status document."""
    (reason,) = [problem["reason"] for problem in document["problems"] if problem["kind"] == "config"]
    return str(reason)


def log_lines(release: Release) -> list[dict[str, Any]]:
    return [json.loads(line) for line in release.log().splitlines() if line.startswith("{")]
