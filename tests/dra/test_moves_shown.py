"""A planned move of many devices is a few lines in every output, and no problem."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.kubelet.faults import Gate, Point
from kit.dra import DraNode
from status_values import document_of, status

from devhost.cli.running_host import View, answer
from devhost.cli.scan_once import ScanResult
from devhost.cli.status_report import show
from devhost.host.shown.problems import problems
from devhost.planning.claims import UNNAMED
from devhost.planning.plan import Plan
from devhost.planning.settings import Settings
from devhost.telemetry.page.content import render

RESOURCE = "example.com/card"
PLUGIN = "{name: example.com/card, backend: cards}"
DRA = "{name: example.com/card, backend: cards, serve: dra}"
RENAMED = "{name: example.com/other, backend: cards}"
LINES = 30
"""The most lines that the status of this node has, however many devices move."""


@pytest.mark.parametrize("count", [39, 400])
@pytest.mark.parametrize(("before", "after"), [(PLUGIN, DRA), (DRA, PLUGIN)], ids=["to-dra", "to-plugin"])
async def test_a_move_is_a_few_lines_and_no_problem(place: Path, count: int, before: str, after: str) -> None:
    async with DraNode(place) as node:
        node.cards(*(f"c{n}" for n in range(count)))
        async with node.served(before):
            if before == PLUGIN:
                await node.node.offers({RESOURCE: count})
                node.kubelet_reports(example_com__card=count)
            else:
                await node.register()
                await node.until(lambda: len(node.published().get(RESOURCE, ())) == count)
                claims = [node.allocate(f"used-{n}", node.name_of(f"c{n}")) for n in range(count)]
            await node.reload(after)
            await node.until(lambda: len(node.moving()) == count)
            await node.register()
            host = node.host
            await node.until(lambda: problems(host.now()).shown == [])
            document = status(host)
            assert document["dra"] is not None
            (move,) = document["dra"]["moves"]
            assert (move["resource"], len(move["devices"]), move["stuck"]) == (RESOURCE, count, False)
            assert [one["state"] for one in document["entries"]] == ["moving"]
            for everything in (False, True):
                text = show(document_of(document), datetime.now(UTC), everything=everything)
                assert len(text.splitlines()) <= LINES, text
                assert "c0, c1, c2 and " in text
            page = render(document_of(document), "n1", datetime.now(UTC)).part
            assert page.count("<tr") <= LINES
            if before == DRA:
                for claim in claims:
                    node.delete_claim(claim.name)


async def test_after_a_restart_no_device_moves_only_because_its_backend_is_still_looking(place: Path) -> None:
    async with DraNode(place) as node:
        node.configure(DRA)
        hang = node.node.root / "hang"
        async with node.served():
            await node.register()
            await node.until(lambda: len(node.published().get(RESOURCE, ())) == 2)
        hang.touch()
        async with node.served():
            await node.register()
            document = status(node.host)
            assert document["dra"] is not None
            assert (document["dra"]["moving"], document["dra"]["moves"]) == ([], [])
            claim = node.allocate("early", node.name_of("c0"))
            assert "still looking for devices (cards)" in await node.refusal(claim)
            hang.unlink()
            await node.until(lambda: node.host.ready()[0])
            assert node.moving() == []


@pytest.mark.parametrize(
    "after", [DRA, DRA.replace("card,", "other,"), RENAMED], ids=["to-dra", "to-dra-renamed", "renamed"]
)
async def test_no_reason_calls_a_holder_unnamed_once_the_kubelet_has_named_it(
    place: Path, after: str
) -> None:
    """A container gets a device, and the device moves before the kubelet lists who has it."""
    async with DraNode(place) as node:
        node.configure(PLUGIN)
        unlisted = Gate()
        async with node.served(offers={RESOURCE: 2}):
            node.node.kubelet.faults.inject(Point.POD_RESOURCES, unlisted.wait, times=None)
            await node.node.container({RESOURCE: 1}, keep=True)
            await node.reload(after)
            host = node.host
            await node.until(lambda: any(UNNAMED in row["reason"] for row in _reasons(status(host))))
            unlisted.open()

            def named() -> list[Any]:
                return [row for row in _reasons(status(host)) if "a pod holds it" in row["reason"]]

            await node.until(named)
            await node.until(lambda: not any(UNNAMED in row["reason"] for row in _reasons(status(host))))
            assert named() and all(row["heldBy"][0]["pod"] == "pod-0" for row in named())


async def test_a_move_back_names_the_claim_for_which_it_waits(place: Path) -> None:
    """Also one that is not prepared; and the commands for a device show it as its holder."""
    async with DraNode(place) as node, node.served(DRA):
        await node.register()
        await node.until(lambda: len(node.published().get(RESOURCE, ())) == 2)
        node.allocate("used", node.name_of("c0"))
        await node.reload(PLUGIN)
        host = node.host
        named = "waits for the ResourceClaim that has it allocated (ResourceClaim default/used)"
        await node.until(
            lambda: (
                len(status(host)["refusals"]) == 1
                and named in show(document_of(status(host)), datetime.now(UTC))
            )
        )
        document = status(host)
        assert document["dra"] is not None
        claim = {"namespace": "default", "pod": "", "container": "", "claim": "used"}
        for rows in (document["dra"]["moving"], document["refusals"]):
            assert [row["heldBy"] for row in rows] == [[claim]]
        device = node.node.devices("cards")["c0"]
        seen = View(ScanResult(Settings(), Plan(), {}), answer(document_of(document)), "", same_config=True)
        assert seen.holders("cards", device) == [(RESOURCE, "ResourceClaim default/used")]


async def test_a_device_that_moves_while_a_pod_holds_it_is_no_problem(place: Path) -> None:
    async with DraNode(place) as node, node.served(PLUGIN, offers={RESOURCE: 2}):
        await node.node.container({RESOURCE: 1}, keep=True)
        await node.reload(DRA)
        host = node.host
        await node.register()
        (held,) = node.node.kubelet.in_use(RESOURCE)
        await node.until(lambda: _listed(status(host)) == _moving(status(host)) == [held])
        await node.until(lambda: problems(host.now()).shown == [])
        assert _listed(status(host)) == _moving(status(host)) == [held]


def _listed(document: Any) -> list[str]:
    return [one["id"] for one in document["resources"][0]["devices"]]


def _moving(document: Any) -> list[str]:
    return [one["device"] for one in (document["dra"] or {"moving": []})["moving"]]


def _reasons(value: Any) -> Iterator[Any]:
    """Every row of a document that has a reason."""
    if isinstance(value, dict):
        if value.get("reason"):
            yield value
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _reasons(one)
