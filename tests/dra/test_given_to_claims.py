"""What the containers of a claim were given stays its own, over restarts of devhost."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kit.dra import DRIVER, Cards, DraNode
from status_values import status

from devhost.backend import Device, DeviceNode, Edits
from devhost.backend.claim import node as node_claim

CLAIMED = "{name: example.com/card, backend: cards, serve: dra}"
RESOURCE = "example.com/card"
NULL, ZERO = "/dev/ttyUSB0", "/dev/ttyUSB1"


class WithNodes(Cards):
    """Cards with a node each: an id and a path in a line."""

    def discover(self) -> list[Device]:
        lines = map(str.split, (self.context.root / "cards").read_text().splitlines())
        return [Device(name, {"model": path}, claims=frozenset({node_claim(path)})) for name, path in lines]

    def allocate(self, request: Any) -> Edits:
        return Edits(nodes=tuple(DeviceNode(str(one.attributes["model"])) for one in request.devices))


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    made = DraNode(place, kind=WithNodes)
    (made.node.root / "dev").mkdir()
    for path, target in ((NULL, "null"), (ZERO, "zero")):
        link = made.node.root / path.lstrip("/")
        link.symlink_to(os.path.relpath(f"/dev/{target}", link.parent))
    made.cards(f"c0 {NULL}", f"c1 {ZERO}")
    async with made:
        yield made


def reason(node: DraNode, card: str) -> str:
    found = [one for one in status(node.host)["problems"] if one["subject"] == f"{RESOURCE} {card}"]
    return found[0]["reason"] if found else ""


async def test_a_second_claim_never_gets_the_node_that_the_first_ones_containers_were_given(
    node: DraNode,
) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        first = node.allocate("one", node.name_of("c0"))
        second = node.allocate("two", node.name_of("c1"))
        await node.prepared(first)
    node.cards(f"c0 {ZERO}", f"c1 {NULL}")
    async with node.served():
        told = f"a container was given {NULL} for c0, which is {ZERO} now"
        advice = f"restart the container or delete the pod ({NULL} is c1 now)"
        await node.until(lambda: reason(node, "c0") == f"{told}: {advice}")
        await node.until(lambda: node.host.planned)
        health = node.host.dra.front_ends[DRIVER].inventory.devices()
        assert [(one.healthy, one.message) for one in health] == [(False, reason(node, "c0"))]
        error = await node.refusal(second)
        assert f"node:{NULL} is in use" in error
        await node.released(first)
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await node.prepared(second)
