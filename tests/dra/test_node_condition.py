"""The condition of the node and its startup taints: what is written, how often, and what is left alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import ApiServer
from kit.clock import FakeClock
from kit.publisher import Talking
from kit.waiting import background
from status_values import Json, document_of

from devhost.backend.errors import UsageError
from devhost.dra.node_condition import (
    GAP,
    HEARTBEAT,
    LONGEST,
    PATIENCE,
    BootRecord,
    NodeCondition,
    State,
    Taint,
    startup_taints,
    state_of,
)

PATH = "/api/v1/nodes/n1"
NAME = "example.com/card"
HOUR = 3600.0
MOST = 28
"""Writes in an hour, as the documentation promises."""
STARTING = "example.com/starting"
READY = "pods can request all devices that the configuration asks for"


def document(reason: str = "", state: str = "served", count: int = 1) -> Json:
    """What decides whether a node is ready; without a reason it is."""
    return {"entries": [{"name": NAME, "state": state, "reason": reason}] * count}


class Scene(Talking):
    """One node, and the devhosts that run on it one after another."""

    def __init__(self, server: ApiServer, place: Path) -> None:
        super().__init__(server, FakeClock())
        self.place = place
        self.boot = place / "boot_id"
        self.boot.write_text("first")
        self.document: Json | None = document()
        self.condition: NodeCondition
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        server.put(PATH, {"metadata": {"name": "n1"}, "status": {"conditions": [ready]}})
        self.ready = ready

    @asynccontextmanager
    async def running(self, *taints: Taint) -> AsyncIterator[NodeCondition]:
        self.condition = NodeCondition(
            "n1",
            taints,
            self.connect(),
            BootRecord(self.place / "state", "n1", self.boot),
            self.capture,
            clock=self.clock,
            wall=lambda: self.clock.now,
        )
        async with background(self.condition.run()):
            yield self.condition

    def capture(self) -> Any:
        found = self.document
        return (lambda: document_of(found)) if found else None

    async def shows(self, found: Json | None) -> None:
        """Something has changed in devhost, and has been looked at."""
        self.document = found
        self.condition.wake()
        await self.passes(GAP)

    def _busy(self) -> bool:
        """Also while a thread uses the record: then nothing is due."""
        return super()._busy() or not self.clock.timers

    @property
    def conditions(self) -> dict[str, dict[str, Any]]:
        (node,) = self.server.stored(PATH)
        return {one["type"]: one for one in node["status"]["conditions"]}

    @property
    def written(self) -> dict[str, Any]:
        """The condition that the node has; empty if it has none."""
        return self.conditions.get("DevicesReady", {})

    def taint(self, *keys: str, effect: str = "NoSchedule") -> None:
        """Makes these the taints of the node."""
        taints = [{"key": key, "effect": effect, "value": "yes"} for key in keys]
        self.server.put(PATH, {"metadata": {"name": "n1"}, "spec": {"taints": taints}})

    @property
    def tainted(self) -> list[str]:
        (node,) = self.server.stored(PATH)
        return [one["key"] for one in node["spec"]["taints"]]


@pytest.fixture
def scene(server: ApiServer, tmp_path: Path) -> Scene:
    return Scene(server, tmp_path)


async def test_a_patch_has_the_condition_and_nothing_else(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(1.0)

    at = "1970-01-01T00:16:40Z"
    wanted = {
        "type": "DevicesReady",
        "status": "True",
        "reason": "DevicesReady",
        "message": READY,
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }
    (write,) = scene.server.writes
    assert (write.verb, write.path) == ("patch", f"{PATH}/status")
    assert write.body == {"status": {"conditions": [wanted]}}
    assert scene.server.requests[-1].headers["content-type"] == "application/strategic-merge-patch+json"
    assert scene.conditions == {"Ready": scene.ready, "DevicesReady": wanted}


async def test_a_change_is_written_at_once_and_moves_the_transition_only_with_the_status(
    scene: Scene,
) -> None:
    async with scene.running():
        await scene.passes(60.0)
        await scene.shows(document("1 of 2 devices"))
        first = scene.written
        assert (first["status"], first["reason"]) == ("False", "DevicesNotReady")
        assert first["message"] == f"{NAME}: 1 of 2 devices"
        assert first["lastTransitionTime"] == first["lastHeartbeatTime"]
        await scene.passes(60.0)
        await scene.shows(document("0 devices"))
        second = scene.written
        assert second["message"] == f"{NAME}: 0 devices"
        assert second["lastTransitionTime"] == first["lastTransitionTime"] < second["lastHeartbeatTime"]


async def test_without_a_change_the_node_is_written_every_five_minutes(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(HOUR + 1.0)
        for _ in range(20):
            await scene.shows(document())

    assert len(scene.server.writes) == 1 + HOUR / HEARTBEAT
    assert {one.verb for one in scene.server.writes} == {"patch"}
    reads = [one for one in scene.server.requests if one.method == "GET"]
    assert len(reads) == 1, "what was written is known from the answers"


@pytest.mark.parametrize("what", ["status", "message"])
async def test_flapping_devices_cause_a_bounded_number_of_writes(scene: Scene, what: str) -> None:
    other = document("1 of 2 devices")
    async with scene.running():
        for number in range(int(HOUR / GAP)):
            flapped = document(f"{number} of 800 devices") if what == "message" else other
            await scene.shows(flapped if number % 2 or what == "message" else document())

    assert 12 <= len(scene.server.writes) <= MOST


async def test_a_change_of_the_status_has_a_permit_while_messages_change(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(PATIENCE)
        for number in range(40):
            await scene.shows(document(f"{number} of 800 devices"))
        assert scene.written["message"] != f"{NAME}: 39 of 800 devices"
        await scene.shows(document())
        assert scene.written["status"] == "True"


async def test_a_condition_that_was_removed_comes_back_with_the_next_heartbeat(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(10.0)
        before = scene.written
        scene.server.put(PATH, {"metadata": {"name": "n1"}, "status": {"conditions": [scene.ready]}})
        await scene.passes(HEARTBEAT)

    assert scene.written["lastTransitionTime"] == before["lastTransitionTime"]
    assert scene.conditions["Ready"] == scene.ready


async def test_a_restart_leaves_the_condition_until_everything_had_time_to_register(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(1.0)
    scene.document = None
    async with scene.running():
        await scene.shows(document("the kubelet does not read the list"))
        assert scene.written["status"] == "True"
        await scene.passes(PATIENCE)
        assert scene.written["status"] == "False"


async def test_after_a_boot_the_condition_is_unknown_until_devices_were_looked_for(scene: Scene) -> None:
    async with scene.running():
        await scene.passes(1.0)
    scene.boot.write_text("second")
    scene.document = None
    async with scene.running():
        await scene.passes(0.5)
        assert (scene.written["status"], scene.written["reason"]) == ("Unknown", "LookingForDevices")
        await scene.shows(document("looking for devices", "waiting"))
        assert scene.written["status"] == "Unknown"
        await scene.shows(document())
        assert scene.written["status"] == "True"


async def test_a_startup_taint_is_removed_once_per_boot_when_everything_is_ready(scene: Scene) -> None:
    taint = Taint(STARTING)
    scene.taint(STARTING, "example.com/other")
    scene.document = document("1 of 2 devices")
    async with scene.running(taint):
        await scene.passes(HEARTBEAT)
        assert scene.tainted == [STARTING, "example.com/other"]
        await scene.shows(document())
        assert scene.tainted == ["example.com/other"]
        scene.taint(STARTING)
        await scene.passes(HOUR)
    async with scene.running(taint):
        await scene.passes(HOUR)
        assert scene.tainted == [STARTING]
    scene.boot.write_text("second")
    async with scene.running(taint):
        await scene.passes(1.0)
        assert scene.tainted == []


async def test_a_node_that_was_created_again_loses_its_startup_taint_again(scene: Scene) -> None:
    async with scene.running(Taint(STARTING)):
        await scene.passes(1.0)
        scene.server.remove(PATH)
        scene.server.node("n1")
        scene.taint(STARTING)
        await scene.passes(2 * HEARTBEAT)
        assert scene.tainted == []


async def test_only_the_effect_that_is_named_is_removed(scene: Scene) -> None:
    scene.taint(STARTING, effect="NoExecute")
    async with scene.running(Taint(STARTING, "NoSchedule")):
        await scene.passes(1.0)
    assert scene.tainted == [STARTING]


async def test_the_removal_names_the_version_of_the_node_whose_taints_it_read(scene: Scene) -> None:
    scene.taint(STARTING)
    async with scene.running(Taint(STARTING)):
        await scene.passes(1.0)
    (removal,) = [one for one in scene.server.writes if one.path == PATH]
    assert removal.body["spec"] == {"taints": []}
    assert removal.body["metadata"]["resourceVersion"], "the API server refuses it if the node has changed"


async def test_a_conflict_is_tried_again(scene: Scene) -> None:
    scene.taint(STARTING)
    scene.document = document("0 devices")
    async with scene.running(Taint(STARTING)) as condition:
        await scene.passes(HEARTBEAT)
        scene.server.fail_next(409, methods=("PATCH",))
        await scene.shows(document())
        assert "HTTP 409" in condition.failures.reason
        await scene.passes(60.0)
        assert condition.failures.reason == ""
        assert scene.tainted == []


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        ("absent", "(HTTP 404)"),
        ("forbidden", "permission denied to patch nodes"),
        ("unreachable", "cannot use the API server"),
    ],
)
async def test_a_node_that_cannot_be_written_is_one_problem_and_no_busy_loop(
    scene: Scene, failure: str, shown: str
) -> None:
    if failure == "absent":
        scene.server.remove(PATH)
    elif failure == "forbidden":
        scene.server.fail_next(403, n=1000, methods=("PATCH",))
    async with scene.running() as condition:
        if failure == "unreachable":
            await scene.server.stop()
        for _ in range(100):
            await scene.shows(document())
        await scene.passes(HOUR)
        assert shown in condition.failures.reason
        assert scene.server.writes == []
        assert len(scene.server.requests) <= 80
        if failure == "absent":
            scene.server.node("n1")
            await scene.passes(HEARTBEAT)
            assert condition.failures.reason == ""
            assert scene.written["status"] == "True"


async def test_a_record_that_cannot_be_written_is_a_problem_and_the_condition_is_kept(scene: Scene) -> None:
    (scene.place / "state").write_text("a file")
    async with scene.running() as condition:
        await scene.passes(HEARTBEAT)
        assert "the state directory must be writable" in condition.failures.reason
        assert scene.written["status"] == "True"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1}', '{"version": 2, "boot": "first"}'])
def test_a_damaged_record_is_none(tmp_path: Path, content: str) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first")
    record = BootRecord(tmp_path, "n1", boot)
    assert record.file is not None
    record.file.write_text(content)
    assert record.read().boot == ""


def test_a_message_has_the_reasons_that_fit_and_the_number_of_the_others() -> None:
    few = state_of(document_of(document("0 devices", count=3)))
    assert few == State("False", "DevicesNotReady", "; ".join([f"{NAME}: 0 devices"] * 3))
    many = state_of(document_of(document("é" * 150, count=100)))
    assert len(many.message.encode()) <= LONGEST
    assert many.message.count(NAME) == 3
    assert many.message.endswith(" (and 97 more)")
    long = state_of(document_of(document("é" * 5000, count=2)))
    assert LONGEST - 2 <= len(long.message.encode()) <= LONGEST
    assert long.message.endswith("é… (and 1 more)")
    room = LONGEST - len(f"{NAME}: ")
    assert state_of(document_of(document("x" * room))).message.endswith("x")
    longer = state_of(document_of(document("x" * (room + 1)))).message
    assert len(longer.encode()) == LONGEST and longer.endswith("x…")


def test_taints_are_keys_with_or_without_an_effect() -> None:
    assert startup_taints("") == ()
    assert startup_taints("a,example.com/b:NoExecute") == (Taint("a"), Taint("example.com/b", "NoExecute"))


@pytest.mark.parametrize("text", ["a b", "a:", "a:Never", "/a", "a=b:NoSchedule", "example.com/"])
def test_what_cannot_be_a_taint_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no taint"):
        startup_taints(text)
