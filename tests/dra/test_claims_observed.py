"""What claims hold, as the audit trail of examples/observers has it: a host, a kubelet, an API server."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet import ClaimDevice
from kit.dra import DRIVER, DraNode

EXAMPLE = Path(__file__).parents[2] / "examples" / "observers" / "audit.py"
RESOURCE = "example.com/card"


class AuditedNode(DraNode):
    """The node, with the audit trail as an observer."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.trail = place / "audit" / "audit.jsonl"
        observers = place / "observers"
        observers.mkdir()
        shutil.copy(EXAMPLE, observers)
        entry = f"{{name: {RESOURCE}, backend: cards, serve: dra}}"
        self.node.configure(
            f"dra: {{driver: {DRIVER}}}\nbackendPaths: [{observers}]\nresources:\n  - {entry}\n"
        )

    def lines(self) -> list[dict[str, Any]]:
        """The lines about claims, and starts."""
        lines = map(json.loads, self.trail.read_text().splitlines()) if self.trail.exists() else ()
        return [one for one in lines if one["event"] in ("started", "prepared", "unprepared")]

    async def events(self, *events: str) -> Sequence[dict[str, Any]]:
        """The lines, once they are of these events."""
        await self.node.until(lambda: [one["event"] for one in self.lines()] == [*events])
        return self.lines()


@pytest.fixture
async def node(place: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AuditedNode]:
    monkeypatch.setenv("DEVHOST_AUDIT_FILE", str(place / "audit" / "audit.jsonl"))
    async with AuditedNode(place) as made:
        yield made


async def test_the_trail_has_what_a_claim_gets_and_releases_with_its_pods(node: AuditedNode) -> None:
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        place = node.name_of("c0")
        claim = node.allocate("one", place, pod="pod-1")
        (prepared,) = (await node.prepare(claim))[claim.uid].devices
        await node.events("started", "prepared")
        used = ClaimDevice(DRIVER, *place, tuple(prepared.cdi_device_ids))
        node.node.kubelet.use_claim("pod-2", "main", "one", [used])
        first, again = (await node.events("started", "prepared", "prepared"))[1:]
        assert (first["pods"], again["pods"]) == (["pod-1"], ["pod-1", "pod-2"])
        about = {"resource": RESOURCE, "backend": "cards", "device": "c0", "shares": 1}
        about |= {"namespace": "default", "claim": "one", "uid": claim.uid}
        assert first.items() >= about.items() <= again.items()
        # again, when nothing else makes devhost look at what has changed
        node.node.kubelet.use_claim("pod-3", "main", "one", [used])
        *_, third = await node.events("started", "prepared", "prepared", "prepared")
        assert third["pods"] == ["pod-1", "pod-2", "pod-3"]
        await node.released(claim)
        *_, last = await node.events("started", *["prepared"] * 3, "unprepared")
        assert last.items() >= {**about, "pods": ["pod-1", "pod-2", "pod-3"]}.items()


async def test_what_cannot_be_prepared_is_no_event(node: AuditedNode) -> None:
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        one, two = (node.allocate(name, node.name_of("c0")) for name in ("one", "two"))
        await node.prepared(one)
        assert await node.refusal(two)
        await node.released(one)
        assert {line["claim"] for line in (await node.events("started", "prepared", "unprepared"))[1:]} == {
            "one"
        }


async def test_after_a_restart_the_trail_has_what_claims_still_hold(node: AuditedNode) -> None:
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("one", node.name_of("c0"), node.name_of("c1"))
        await node.prepared(claim)
        await node.events("started", "prepared", "prepared")
    await node.node.kubelet.stop()
    async with node.served():
        _, *lines = await node.events("started", *["prepared"] * 4)
        assert sorted(line["device"] for line in lines) == ["c0", "c0", "c1", "c1"]
