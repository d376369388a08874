"""`share: {of: <attribute>}` with `serve: dra`: a claim gets all devices of a unit, or none of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.dra import Cards, DraNode

from devhost.backend import Attribute, Device
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.host.shown.problems import problems

RESOURCE = "example.com/card"
PLUGIN = "{name: example.com/card, backend: cards}"
UNITS = "{name: example.com/card, backend: cards, serve: dra, share: {of: chip, members: 2}}"
SHARED = "{name: example.com/card, backend: cards, serve: dra, share: {of: chip, replicas: 2}}"
CHIPS = {RESOURCE: {"chip0", "chip1"}}
BOTH = ("chip0-0", "chip0-1", "chip1-0", "chip1-1")
PAIR = "CARDS=chip0-0,chip0-1"


class Chips(Cards):
    """The functions of chips: ``chip0-1`` is function 1 of chip0, or of the chip in the file ``moved``."""

    attributes: ClassVar = {
        **Cards.attributes,
        "chip": Attribute(str, "chip", "chip0"),
        "function": Attribute(int, "function", "1"),
    }

    def discover(self) -> list[Device]:
        moved = self.context.root / "moved"
        found = []
        for device in super().discover():
            chip, _, function = device.id.partition("-")
            if moved.exists() and device.id == "chip0-1":
                chip = moved.read_text()
            more = {"chip": chip, "function": int(function)}
            found.append(replace(device, attributes={**device.attributes, **more}))
        return found


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    async with DraNode(place, kind=Chips) as made:
        made.cards(*BOTH)
        made.configure(UNITS)
        yield made


def devices(node: DraNode) -> dict[str, Mapping[str, Any]]:
    """The devices in slices by id."""
    return {
        device["attributes"]["id"]["string"]: device
        for spec in node.slices()
        for device in spec.get("devices", ())
    }


def taint(node: DraNode, unit: str) -> str:
    """The words of the taint of a unit."""
    return "".join(one["value"] for one in devices(node).get(unit, {}).get("taints", ()))


async def prepared(node: DraNode, claim: v1.Claim) -> v1.NodePrepareResourceResponse:
    return (await node.prepare(claim))[claim.uid]


def given(node: DraNode, answer: v1.NodePrepareResourceResponse) -> list[str]:
    """The variables of the backend that containers get."""
    return [one for edits in node.edits(answer) for one in edits.get("env", ()) if one.startswith("CARDS")]


async def test_a_unit_is_one_device_with_what_its_members_share(node: DraNode) -> None:
    async with node.served(published=CHIPS):
        attributes = devices(node)["chip0"]["attributes"]
        assert attributes["chip"] == {"string": "chip0"} and "function" not in attributes
        claim = node.allocate("one", node.name_of("chip0"))
        answer = await prepared(node, claim)
        (device,) = answer.devices
        assert (len(device.cdi_device_ids), given(node, answer)) == (1, [PAIR])


async def test_two_units_in_one_request_give_every_member_once(node: DraNode) -> None:
    async with node.served(published=CHIPS):
        claim = node.allocate("one", node.name_of("chip0"), node.name_of("chip1"))
        answer = await prepared(node, claim)
        assert given(node, answer) == [f"CARDS={','.join(BOTH)}"]


async def test_what_an_entry_gives_counts_a_unit_as_one_device(node: DraNode) -> None:
    node.configure(
        UNITS.replace("share:", 'give: {env: {"CARDS_{index}": "{id} {function} of {count}"}}, share:')
    )
    async with node.served(published=CHIPS):
        answer = await prepared(node, node.allocate("one", node.name_of("chip1")))
        assert "CARDS_0=chip1 0 of 1,chip1 1 of 1" in given(node, answer)


async def test_an_unhealthy_member_makes_the_unit_unhealthy_and_is_named(node: DraNode) -> None:
    async with node.served(published=CHIPS):
        node.cards(BOTH[0], f"{BOTH[1]} ill", *BOTH[2:])
        node.node.look("cards")
        await node.until(lambda: taint(node, "chip0") == "chip-it-is-hot")
        assert not taint(node, "chip1")
        shown = [(one.subject, one.reason) for one in problems(node.host.now()).shown]
        assert (f"{RESOURCE} chip0", "chip0-1: it is hot") in shown
        claim = node.allocate("one", node.name_of("chip0"))
        assert "unhealthy: chip0-1: it is hot" in await node.refusal(claim)


async def test_a_unit_that_lacks_a_member_is_unhealthy_until_it_is_there(node: DraNode) -> None:
    node.cards(*BOTH[1:])
    async with node.served(published=CHIPS):
        await node.until(lambda: taint(node, "chip0") == "of-members")
        claim = node.allocate("one", node.name_of("chip0"))
        assert "1 of 2 members" in await node.refusal(claim)
        node.cards(*BOTH)
        node.node.look("cards")
        await node.until(lambda: not taint(node, "chip0"))
        assert given(node, await prepared(node, claim)) == [PAIR]


async def test_a_prepared_claim_gives_nothing_while_a_member_is_gone(node: DraNode) -> None:
    async with node.served(published=CHIPS):
        claim = node.allocate("one", node.name_of("chip0"))
        answer = await prepared(node, claim)
        node.cards(BOTH[0], *BOTH[2:])
        node.node.look("cards")
        await node.until(lambda: given(node, answer) == [])
        assert "the device is gone" in await node.refusal(claim)
        node.cards(*BOTH)
        node.node.look("cards")
        await node.until(lambda: given(node, answer) == [PAIR])


async def test_after_a_restart_a_claim_has_the_members_that_it_had(node: DraNode) -> None:
    async with node.served(published=CHIPS):
        claim = node.allocate("one", node.name_of("chip0"))
        answer = await prepared(node, claim)
    node.cards(*BOTH, "chip0-2")
    async with node.served():
        await node.until(lambda: taint(node, "chip0") == "members-expected")
        again = await prepared(node, claim)
        assert (again.devices, given(node, again)) == (answer.devices, [PAIR])
        other = node.allocate("two", node.name_of("chip0"))
        assert await node.refusal(other)
        await node.released(claim)


async def test_a_member_that_a_claim_has_is_in_no_other_unit_until_it_is_released(node: DraNode) -> None:
    async with node.served(UNITS.replace(", members: 2", ""), published=CHIPS):
        claim = node.allocate("one", node.name_of("chip0"))
        await node.prepared(claim)
        (node.node.root / "moved").write_text("chip1")
        node.node.look("cards")
        await node.until(lambda: taint(node, "chip1").startswith("a-claim-holds-chip"))
        other = node.allocate("two", node.name_of("chip1"))
        assert "a claim holds it" in await node.refusal(other)
        await node.unprepare(claim)
        await node.until(lambda: not taint(node, "chip1"))
        assert given(node, await prepared(node, other)) == ["CARDS=chip0-1,chip1-0,chip1-1"]


async def test_as_many_claims_as_replicas_have_a_unit(node: DraNode) -> None:
    async with node.served(SHARED, published=CHIPS):
        name = node.name_of("chip0")
        for share in ("a", "b"):
            await node.prepared(node.allocate(share, name, share=share))
        assert "all 2 shares are in use" in (await prepared(node, node.allocate("c", name, share="c"))).error


@pytest.mark.parametrize("restart", [False, True], ids=["reload", "restart"])
async def test_no_member_is_on_the_other_side_while_a_claim_has_the_unit_allocated(
    node: DraNode, restart: bool
) -> None:
    kubelet = node.node.kubelet
    async with node.served(published=CHIPS):
        claim = node.allocate("one", node.name_of("chip0"))
        node.configure(PLUGIN)
        if not restart:
            await node.reload()
            await freed(node)
            assert kubelet.healthy(RESOURCE) == {"chip1-0", "chip1-1"}
            node.delete_claim(claim.name)
            await node.until(lambda: kubelet.healthy(RESOURCE) == {*BOTH})
            return
    async with node.served():
        await freed(node)
        assert kubelet.healthy(RESOURCE) == {"chip1-0", "chip1-1"}
        assert given(node, await prepared(node, claim)) == [PAIR]
        await node.unprepare(claim)
        node.delete_claim(claim.name)
        await node.until(lambda: kubelet.healthy(RESOURCE) == {*BOTH})


async def freed(node: DraNode) -> None:
    """Waits until only the members of chip0 still wait for a claim."""

    def waiting() -> set[str]:
        return {one.key[1] for one in node.moving() if "ResourceClaim that has it" in one.waits_for}

    await node.until(lambda: waiting() == {"chip0-0", "chip0-1"} == {*map(str, ids(node))})
    await node.until(lambda: len(node.node.kubelet.healthy(RESOURCE)) == 2)


def ids(node: DraNode) -> list[str]:
    return [one.key[1] for one in node.moving()]


async def test_units_join_the_slice_once_the_node_offers_no_member(node: DraNode) -> None:
    async with node.served(PLUGIN, offers={RESOURCE: 4}):
        node.kubelet_reports(example_com__card=4)
        await node.reload(UNITS)
        await node.until(lambda: {*ids(node)} == {*BOTH})
        await node.settled()
        assert not node.published().get(RESOURCE)
        node.kubelet_reports(example_com__card=0)
        await node.until(lambda: node.published() == CHIPS)


@pytest.mark.parametrize("claimed", [True, False])
async def test_without_the_record_units_of_an_earlier_run_come_back_right(
    node: DraNode, claimed: bool
) -> None:
    record = node.options.plugins_dir / "devhost.example.com/published.json"
    async with node.served(published=CHIPS):
        before = record.read_bytes()
        claim, late = (node.allocate(name, node.name_of("chip0")) for name in ("used", "late"))
        if claimed:
            await node.prepared(claim)
        slices = node.slices()
    record.unlink()
    async with node.served():
        await node.synced()
        await node.until(lambda: record.exists() and record.read_bytes() == before)
        assert node.moving() == [] and not problems(node.host.now()).shown
        assert node.slices() == slices
        assert bool(await node.refusal(late)) is claimed
        await node.reload(PLUGIN)
        await freed(node)
        assert node.node.kubelet.healthy(RESOURCE) == {"chip1-0", "chip1-1"}
