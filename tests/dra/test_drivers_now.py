"""What is shown of DRA drivers is a function of the value that was collected, whatever changes later."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from devhost_testing.kubelet.simulator import ClaimDevice
from kit.dra import DRIVER, Cards, DraNode

from devhost.backend import Attribute, Device
from devhost.host.shown.gauges import gauges
from devhost.host.shown.now import Now
from devhost.host.shown.problems import problems, readiness
from devhost.host.shown.status import document
from devhost.telemetry.document import json_line


class Boards(Cards):
    """Cards whose memory claims share, and engines of which one excludes the other."""

    name = "boards"
    attributes: ClassVar = {"model": Attribute(str, "model", "x1"), "memory": Attribute(int, "memory", 1)}

    def discover(self) -> list[Device]:
        memory, node = {"model": "card", "memory": 8 << 30}, frozenset({"node:/dev/engine"})
        cards = [Device(one.id, memory, health=one.health) for one in super().discover()]
        return [*cards, *(Device(name, {"model": "engine"}, claims=node) for name in "ab")]


CARDS = "name: example.com/card, backend: boards, where: {model: card}"
ENGINES = "name: example.com/engine, backend: boards, where: {model: engine}"
SHARED = (
    f"{{{CARDS}, serve: dra, share: {{capacity: {{memory: {{min: 1Gi, step: 1Gi}}}}, "
    "limit: {env: {LIMIT: '{consumed.memory}'}}}}"
)
COUNTED = f"{{{ENGINES}, serve: dra, dra: {{counters: true}}}}"
MOVED = f"{{{ENGINES}}}"


def shown(now: Now) -> list[Any]:
    """Everything that people and programs see of a moment."""
    scraped = [(name, list(samples)) for name, samples in gauges(now, pods=True)]
    return [json_line(document(now)()), problems(now), readiness(now), scraped]


async def test_a_moment_is_shown_as_it_was_after_everything_of_dra_has_changed(place: Path) -> None:
    async with DraNode(place, kind=Boards) as node:
        moments: list[tuple[Now, list[Any]]] = []

        async def until(condition: Any) -> None:
            """Waits until what is shown of DRA is like this, and takes the moment."""
            await node.until(lambda: (report := node.report()) and condition(report))
            now = node.host.now()
            moments.append((now, shown(now)))

        def devices(report: Any) -> dict[str, Any]:
            return {one["device"]: one for pool in report["pools"] for one in pool["devices"]}

        async with node.served(SHARED, COUNTED):
            await until(lambda report: report["syncedAt"] and all(map(len, devices(report))))
            await node.register()
            await until(lambda report: report["state"] == "registered")
            part, engine = node.name_of("c0"), node.name_of("a")
            uses = node.allocate("part", part, share="s", consumed={"memory": "3Gi"})
            holds = node.allocate("whole", engine)
            await node.prepared(uses, holds)
            await until(lambda report: len(report["claims"]) == 2)
            node.node.kubelet.use_claim("train", "main", "whole", [ClaimDevice(DRIVER, *engine)])
            await until(lambda report: any(one["containers"] for one in report["claims"]))
            node.cards("c0 ill", "c2")
            node.node.look("boards")
            await until(lambda report: devices(report)["c0"]["health"] == "Unhealthy")
            await until(lambda report: devices(report)["c2"]["slice"])
            node.cards("c2")
            node.node.look("boards")
            await until(lambda report: "a claim holds it" in devices(report)["c0"]["reason"])
            await node.released(uses)
            await until(lambda report: len(report["claims"]) == 1)
            await node.reload(SHARED, MOVED)
            await until(lambda report: report["moving"] and report["moves"])
            node.server.fail_next(403, n=1000)
            node.cards("c3")
            node.node.look("boards")
            await until(lambda report: report["error"])
            assert [shown(now) for now, _ in moments] == [before for _, before in moments]
            assert len({before[0] for _, before in moments}) == len(moments)
