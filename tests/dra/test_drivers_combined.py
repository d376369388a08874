"""What several drivers offer together: units, amounts and counters, each of another driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.dra import DRIVER, Cards, DraNode
from status_values import document_of, status

from devhost.backend import Attribute, Device
from devhost.cli.status_report import show
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.telemetry.page.content import content

OTHER = "gpu.example.org"
CHIP, MEMORY = "example.com/chip", "example.com/memory"
UNITS = (
    f"{{name: {CHIP}, backend: cards, where: {{model: chip}}, serve: dra, share: {{of: chip, members: 2}}}}"
)
AMOUNTS = (
    f"{{name: {MEMORY}, backend: cards, where: {{model: memory}}, serve: dra, dra: {{driver: {OTHER}}}, "
    "share: {capacity: {memory: {min: 1Gi}}, limit: none}}"
)
PAIR = ("chip0-0", "chip0-1")
EACH = {DRIVER: {"chip0"}, OTHER: {"m0"}}


class Mixed(Cards):
    """Chips with functions, and cards with 8 GiB of memory."""

    attributes: ClassVar = {
        **Cards.attributes,
        "chip": Attribute(str, "chip", "chip0"),
        "memory": Attribute(int, "memory", "8192", unit="Mi"),
    }

    def discover(self) -> list[Device]:
        found = []
        for device in super().discover():
            chip, _, function = device.id.partition("-")
            more: dict[str, Any] = {"model": "net" if chip == "n0" else "memory", "memory": 8192}
            if function:
                more = {"model": "chip", "chip": chip}
            found.append(replace(device, attributes=more))
        return found


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    async with DraNode(place, kind=Mixed) as made:
        made.cards(*PAIR, "m0")
        made.configure(UNITS, AMOUNTS)
        yield made


def of_both(node: DraNode, name: str = "both", amount: str = "6Gi") -> v1.Claim:
    return node.allocate(
        name,
        node.name_of("chip0"),
        node.name_of("m0"),
        drivers=(DRIVER, OTHER),
        share=name,
        consumed={"memory": amount},
    )


async def errors(node: DraNode, claim: v1.Claim) -> list[str]:
    return [await node.refusal(claim, driver=one) for one in EACH]


def held(node: DraNode) -> dict[str, tuple[str, ...]]:
    claims = node.host.allocations.claims
    found: dict[str, set[str]] = {}
    for one in claims.held():
        found.setdefault(one.side[1], set()).add(one.device.id)
    return {driver: tuple(sorted(names)) for driver, names in found.items()}


def shows(node: DraNode) -> str:
    """What `devhost status` prints; the page has the same document."""
    document, now = status(node.host), datetime.now(UTC)
    assert "both" in str(content(document_of(document), "node-1", now))
    return show(document_of(document), now)


HELD = {DRIVER: PAIR, OTHER: ("m0",)}


async def test_a_claim_has_a_unit_of_one_driver_and_an_amount_of_another_over_a_restart(
    node: DraNode,
) -> None:
    async with node.served(drivers=EACH):
        claim = of_both(node)
        assert await errors(node, claim) == ["", ""]
    async with node.served(drivers=EACH):
        await node.until(lambda: held(node) == HELD)
        assert await errors(node, claim) == ["", ""]
        late = of_both(node, "late", "3Gi")
        assert "2Gi of 8Gi memory is free, and the claim needs 3Gi" in (await errors(node, late))[1]
        shown = shows(node)
        assert "memory 6Gi of 8Gi" in shown and "default/both" in shown
        for driver in EACH:
            await node.released(claim, driver=driver)
        assert await errors(node, late) == ["", ""]


async def test_limits_of_two_drivers_with_the_same_variables_are_refused(node: DraNode) -> None:
    """A container with both devices would have one variable, and no limit on the other device."""

    def limited(name: str, model: str, driver: str) -> str:
        share = "{capacity: {memory: {min: 1Gi}}, limit: {env: {LIMIT: '{consumed.memory}'}}}"
        where = f"where: {{model: {model}}}, serve: dra, dra: {{driver: {driver}}}"
        return f"{{name: example.com/{name}, backend: cards, {where}, share: {share}}}"

    node.cards("m0", "n0")
    async with node.served(limited("m", "memory", DRIVER), limited("n", "net", OTHER)):
        await node.until(lambda: node.drivers() == {DRIVER: {"m0"}, OTHER: {"n0"}})
        places = node.name_of("m0"), node.name_of("n0")
        both = node.allocate("b", *places, drivers=(DRIVER, OTHER), share="s", consumed={"memory": "1Gi"})
        assert all("one container can have one limit" in text for text in await errors(node, both))
        alone = node.allocate("a", places[1], drivers=(OTHER,), share="t", consumed={"memory": "1Gi"})
        await node.prepared(alone, driver=OTHER)


async def test_one_request_for_several_limited_devices_is_no_conflict_for_another_driver(
    node: DraNode,
) -> None:
    limited = "share: {capacity: {memory: {min: 1Gi}}, limit: {env: {LIMIT: '{consumed.memory}'}}}"
    memory, net = "where: {model: memory}, serve: dra", "where: {model: net}, serve: dra"
    node.cards("m0", "m1", "n0")
    node.configure(
        f"{{name: example.com/m, backend: cards, {memory}, {limited}}}",
        f"{{name: example.com/n, backend: cards, {net}, dra: {{driver: {OTHER}}}}}",
    )
    async with node.served():
        await node.until(lambda: node.drivers() == {DRIVER: {"m0", "m1"}, OTHER: {"n0"}})
        places = [node.name_of(name) for name in ("m0", "m1", "n0")]
        drivers = (DRIVER, DRIVER, OTHER)
        claim = node.allocate("both", *places, drivers=drivers, share="s", consumed={"memory": "1Gi"})
        assert await errors(node, claim) == ["", ""]


@pytest.mark.parametrize("restart", [False, True], ids=["reload", "restart"])
async def test_drivers_change_places_while_a_claim_has_devices_of_both(node: DraNode, restart: bool) -> None:
    changed = (
        UNITS.replace("serve: dra,", f"serve: dra, dra: {{driver: {OTHER}}},"),
        AMOUNTS.replace(OTHER, DRIVER),
    )
    async with node.served(drivers=EACH):
        claim = of_both(node)
        assert await errors(node, claim) == ["", ""]
        node.configure(*changed)
        if not restart:
            await node.reload()
            await moved(node, claim)
    if restart:
        async with node.served():
            await moved(node, claim)


async def moved(node: DraNode, claim: v1.Claim) -> None:
    await node.until(lambda: len([one for one in node.moving() if one.held_by]) == 3)
    assert not any(node.drivers().values())
    assert held(node) == HELD
    assert "the ResourceClaim that has it allocated (ResourceClaim default/both)" in shows(node)
    assert await errors(node, claim) == ["", ""]
    for driver in EACH:
        await node.released(claim, driver=driver)
    assert await errors(node, claim) == ["", ""], "its claim has the devices allocated still"
    assert held(node) == HELD
    for driver in EACH:
        await node.released(claim, driver=driver)
    node.delete_claim(claim.name)
    await node.until(lambda: node.drivers() == {DRIVER: {"m0"}, OTHER: {"chip0"}})
    assert not node.moving()
    claim = node.allocate("new", node.name_of("chip0"), drivers=(OTHER,))
    await node.prepared(claim, driver=OTHER)


async def test_a_unit_goes_from_the_plugin_through_two_drivers_and_back(node: DraNode) -> None:
    plugin = UNITS.replace("serve: dra", "serve: plugin")
    second = UNITS.replace("serve: dra,", f"serve: dra, dra: {{driver: {OTHER}}},")
    async with node.served(plugin, AMOUNTS, offers={CHIP: 1}):
        await node.reload(UNITS, AMOUNTS)
        node.kubelet_reports(example_com__chip=0)
        await node.until(lambda: node.drivers() == EACH)
        claim = node.allocate("one", node.name_of("chip0"))
        await node.prepared(claim)
        await node.reload(second, AMOUNTS)
        await node.until(lambda: len([one for one in node.moving() if one.held_by]) == 2)
        await node.reload(plugin, AMOUNTS)
        await node.settled()
        assert not node.node.kubelet.healthy(CHIP)
        await node.unprepare(claim)
        node.delete_claim("one")
        await node.until(lambda: len(node.node.kubelet.healthy(CHIP)) == 1)
        await node.reload(second, AMOUNTS)
        node.kubelet_reports(example_com__chip=0)
        await node.until(lambda: node.drivers().get(OTHER) == {"chip0", "m0"})
        assert not node.drivers().get(DRIVER)
