"""Several DRA drivers in one file: each has its own slices and claims, and one ledger has all of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from kit.dra import DRIVER, SLICES, Cards, DraNode
from scraped_series import value
from status_values import Json, document_of, status

from devhost.allocation.cdi.spec import claim_kind
from devhost.backend import Device
from devhost.cli.status_report import show
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.dra.slices import Pool
from devhost.planning.settings import DraOptions
from devhost.telemetry.page.content import content

OTHER = "gpu.example.org"
CARD, LINK = "example.com/card", "example.com/link"
CARDS = f"{{name: {CARD}, backend: cards, where: {{model: c0}}, serve: dra}}"
LINKS = f"{{name: {LINK}, backend: cards, where: {{model: c1}}, serve: dra, dra: {{driver: {OTHER}}}}}"
PLUGIN = LINKS.replace("serve: dra", "serve: plugin")
BOTH = {DRIVER: {"c0"}, OTHER: {"c1"}}


class Models(Cards):
    """Each card is another model."""

    def discover(self) -> list[Device]:
        return [replace(one, attributes={"model": one.id}) for one in super().discover()]


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    async with DraNode(place, kind=Models) as made:
        made.configure(CARDS, LINKS)
        yield made


def claim_of_both(node: DraNode, name: str = "both") -> v1.Claim:
    return node.allocate(name, node.name_of("c0"), node.name_of("c1"), drivers=(DRIVER, OTHER))


async def prepared(node: DraNode, claim: v1.Claim, driver: str) -> Sequence[str]:
    """The names of the devices that a driver prepares for a claim."""
    answer = (await node.prepare(claim, driver=driver))[claim.uid]
    assert not answer.error
    return [one.device_name for one in answer.devices]


def claims(node: DraNode) -> list[Json]:
    report = node.report()
    return [device for claim in report["claims"] for device in claim["devices"]] if report else []


async def test_each_driver_publishes_the_resources_of_its_entries(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        await node.register(DRIVER)
        await node.until(
            lambda: (
                (now := node.report())
                and [one["state"] for one in now.get("drivers", ())] == ["registered", "waiting"]
            )
        )
        assert (now := node.report()) and now["state"] == "waiting"
        await node.register(OTHER)
        assert {(spec["driver"], spec["pool"]["resourceSliceCount"]) for spec in node.slices()} == {
            (DRIVER, 1),
            (OTHER, 1),
        }
        await node.until(lambda: (now := node.report()) and now["state"] == "registered")
        report = node.report()
        assert report is not None
        assert [one["driver"] for one in report["drivers"]] == [DRIVER, OTHER]
        assert {(one["resource"], one["driver"]) for one in report["pools"]} == {
            (CARD, DRIVER),
            (LINK, OTHER),
        }


async def test_every_output_has_each_driver(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        await node.register()
        await node.until(lambda: (report := node.report()) and report["syncedAt"])
        host, now = node.host, datetime.now(UTC)
        await node.until(lambda: f"DRA driver: {OTHER} (" in host.ready()[1])
        document = status(host)
        for text in (show(document_of(document), now), str(content(document_of(document), "node-1", now))):
            assert all(driver in text for driver in BOTH)
            assert ("registered" in text, "waiting" in text) == (True, True)
        slices = [value(host.metrics, "devhost_dra_slices", driver=driver) for driver in BOTH]
        assert slices == [1, 1]


async def test_a_claim_with_devices_of_two_drivers_is_prepared_by_each_for_its_own(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = claim_of_both(node)
        assert await prepared(node, claim, DRIVER) == [node.name_of("c0")[1]]
        assert await prepared(node, claim, OTHER) == [node.name_of("c1")[1]]
        assert len(list(node.node.cdi.glob("*dra_*.json"))) == 2, "the specification of a driver has its kind"
        for driver, card in ((DRIVER, "c0"), (OTHER, "c1")):
            other = node.allocate(f"late-{card}", node.name_of(card), drivers=(driver,))
            assert "a claim holds it" in await node.refusal(other, driver=driver)


async def test_what_one_driver_releases_leaves_the_devices_of_the_other_held(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = claim_of_both(node)
        for driver in BOTH:
            await prepared(node, claim, driver)
        await node.released(claim, driver=DRIVER)
        free = node.allocate("free", node.name_of("c0"))
        await prepared(node, free, DRIVER)
        held = node.allocate("held", node.name_of("c1"), drivers=(OTHER,))
        assert "a claim holds it" in await node.refusal(held, driver=OTHER)
        assert await prepared(node, claim, OTHER), "its file is there still"


async def test_a_driver_that_prepared_nothing_of_a_claim_releases_nothing(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = claim_of_both(node)
        await prepared(node, claim, DRIVER)
        await node.released(claim, driver=OTHER)
        assert len(list(node.node.cdi.glob("*dra_*.json"))) == 1
        assert [one["device"] for one in claims(node)] == ["c0"]


async def test_both_parts_of_a_claim_are_held_after_a_restart(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = claim_of_both(node)
        for driver in BOTH:
            await prepared(node, claim, driver)
    async with node.served(drivers=BOTH):
        assert sorted(one["device"] for one in claims(node)) == ["c0", "c1"]
        for driver in BOTH:
            await node.released(claim, driver=driver)
        assert not list(node.node.cdi.glob("*dra_*.json"))
        assert claims(node) == []


async def test_a_resource_moves_to_another_driver_once_its_claim_is_released(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = node.allocate("one", node.name_of("c1"), drivers=(OTHER,))
        await prepared(node, claim, OTHER)
        await node.reload(CARDS, LINKS.replace(OTHER, DRIVER))
        await node.until(lambda: not node.drivers().get(OTHER))
        await node.until(lambda: [one.held_by for one in node.moving() if one.held_by])
        await node.settled()
        assert node.drivers()[DRIVER] == {"c0"}
        await node.released(claim, driver=OTHER)
        node.delete_claim("one")
        await node.until(lambda: node.drivers() == {DRIVER: {"c0", "c1"}})


async def test_a_move_to_another_driver_is_shown_once_and_by_the_driver_that_is_left(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = node.allocate("one", node.name_of("c1"), drivers=(OTHER,))
        await prepared(node, claim, OTHER)
        await node.reload(CARDS, LINKS.replace(OTHER, DRIVER))
        await node.until(lambda: node.moving())
        host = node.host
        await node.until(lambda: [one.resource for one in host.dra.moves] == [LINK])
        leaving = {name: len(one.inventory.now.moves) for name, one in host.dra.front_ends.items()}
        assert leaving == {DRIVER: 0, OTHER: 1}


async def test_a_driver_that_left_the_file_ends_when_its_last_claim_is_released(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = node.allocate("one", node.name_of("c1"), drivers=(OTHER,))
        await prepared(node, claim, OTHER)
        await node.reload(CARDS)
        await node.until(lambda: OTHER not in node.drivers())
        node.delete_claim("one")
        sides = node.host.dra.sides
        assert sides is not None
        await node.until(lambda: not sides.record(OTHER))
        await node.settled()
        assert node.options.registration_socket(OTHER).exists(), "its pod could not end"
        await node.released(claim, driver=OTHER)
        await node.until(lambda: not node.options.registration_socket(OTHER).exists())
        await node.until(lambda: not node.options.service_socket(OTHER).exists())
        await node.until(lambda: (report := node.report()) and "drivers" not in report)
        assert node.drivers() == {DRIVER: {"c0"}}


async def test_a_driver_that_left_the_file_while_devhost_was_down_is_withdrawn(node: DraNode) -> None:
    async with node.served(drivers=BOTH):
        claim = node.allocate("one", node.name_of("c1"), drivers=(OTHER,))
        await prepared(node, claim, OTHER)
    async with node.served(CARDS):
        await node.until(lambda: node.drivers() == {DRIVER: {"c0"}})
        await node.released(claim, driver=OTHER)
        node.delete_claim("one")
        await node.until(lambda: not node.options.registration_socket(OTHER).exists())


async def test_a_driver_that_another_program_serves_is_not_published_and_the_others_are(
    node: DraNode,
) -> None:
    foreign = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"node-1-{OTHER}-x7k2p"},
        "spec": {
            "driver": OTHER,
            "nodeName": "node-1",
            "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [],
        },
    }
    node.server.put(SLICES, foreign)
    async with node.served():
        await node.until(lambda: node.drivers().get(DRIVER) == {"c0"})
        await node.until(
            lambda: (
                (report := node.report())
                and [bool(one["error"]) for one in report["drivers"]] == [False, True]
            )
        )
        assert node.drivers()[OTHER] == set()
        assert f"another program publishes devices as {OTHER}" in str(node.report())


async def test_a_resource_of_the_device_plugin_moves_to_the_driver_of_its_entry(node: DraNode) -> None:
    async with node.served(CARDS, PLUGIN, offers={LINK: 1}):
        await node.reload(CARDS, LINKS)
        node.kubelet_reports(**{"example_com__link": 0})
        await node.until(lambda: node.drivers() == BOTH)


@pytest.mark.parametrize("names", [("a-b.c", "a.b-c"), ("1.a", "x1.a"), ("d" * 63, "d" * 62 + "e")])
def test_drivers_with_similar_names_share_no_socket_no_slice_and_no_kind(names: tuple[str, str]) -> None:
    options = DraOptions(Path("/r"), Path("/p"), "node-1")
    for named in (
        claim_kind,
        options.service_socket,
        options.registration_socket,
        options.record,
        lambda driver: Pool(driver, "node-1", CARD, "cards").object_name(0),
    ):
        one, two = map(named, names)
        assert one != two
