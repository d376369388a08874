"""A planned move of many devices is a few lines in every output, and no problem."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from dra_node import DraNode

from devhost.cli.status_report import show
from devhost.host.problems import problems
from devhost.host.status import status
from devhost.telemetry.page.skeleton import render

RESOURCE = "example.com/card"
PLUGIN = "{name: example.com/card, backend: cards}"
DRA = "{name: example.com/card, backend: cards, serve: dra}"
LINES = 30
"""The most lines that the status of this node has, however many devices move."""


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="devhost-") as directory:
        yield Path(directory)


@pytest.mark.parametrize("count", [39, 400])
@pytest.mark.parametrize(("before", "after"), [(PLUGIN, DRA), (DRA, PLUGIN)], ids=["to-dra", "to-plugin"])
async def test_a_move_is_a_few_lines_and_no_problem(place: Path, count: int, before: str, after: str) -> None:
    async with DraNode(place) as node:
        node.cards(*(f"c{n}" for n in range(count)))
        node.configure(before)
        async with node.node.served():
            if before == PLUGIN:
                await node.node.offers({RESOURCE: count})
                node.kubelet_reports(example_com__card=count)
            else:
                await node.register()
                await node.node.until(lambda: len(node.published().get(RESOURCE, ())) == count)
                claims = [node.allocate(f"used-{n}", node.name_of(f"c{n}")) for n in range(count)]
            node.configure(after)
            await node.node.reload()
            await node.node.until(lambda: len(node.moving()) == count)
            await node.register()
            host = node.node.host
            await node.node.until(lambda: problems(host).shown == [])
            document = status(host)
            assert document["dra"] is not None
            (move,) = document["dra"]["moves"]
            assert (move["resource"], len(move["devices"]), move["stuck"]) == (RESOURCE, count, False)
            assert [one["state"] for one in document["entries"]] == ["moving"]
            for everything in (False, True):
                text = show(document, datetime.now(UTC), everything=everything)
                assert len(text.splitlines()) <= LINES, text
                assert "c0, c1, c2 and " in text
            page = render(document, "n1", datetime.now(UTC)).part
            assert page.count("<tr") <= LINES
            if before == DRA:
                for claim in claims:
                    node.delete_claim(claim.name)
