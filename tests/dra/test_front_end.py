"""Both front ends of one host, with a simulated kubelet and a simulated API server."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from dra_node import DraNode

CARD = "{name: example.com/card, backend: cards}"
CLAIMED = "{name: example.com/card, backend: cards, serve: dra}"
RESOURCE = "example.com/card"


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:  # tmp_path is too long for a socket
        yield Path(directory)


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    async with DraNode(place) as made:
        yield made


async def test_devices_are_published_and_a_claim_gets_what_a_container_needs(node: DraNode) -> None:
    node.configure(CLAIMED)
    async with node.node.served():
        await node.node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        claim = node.allocate("one", node.name_of("c0"))
        answer = (await node.prepare(claim))[claim.uid]
        assert any("CARDS=c0" in edits.get("env", ()) for edits in node.edits(answer))
        assert node.node.kubelet.allocatable() == {}
        assert not (await node.unprepare(claim))[claim.uid].error
        with pytest.raises(KeyError):
            node.edits(answer)
