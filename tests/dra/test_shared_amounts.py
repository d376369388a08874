"""Claims that share a device by amount: together they never have more of it than there is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.claims import POOL, CardOptions, Cards, Scene, config, result, uid
from kit.dra import DraNode

from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend import AllocateRequest, Attribute, Backend, Device, Edits, Mount, option
from devhost.backend.model import ClaimHolder
from devhost.dra.now import MOST_SHARED
from devhost.planning.amounts import ENV, NO_LIMIT, Amount, Limit, used_of
from devhost.planning.claims import held_by_claims
from devhost.planning.settings import Share
from devhost.telemetry.ask import read
from devhost.telemetry.document import DraStatus

GIB = 2**30
MEMORY = Amount("memory", GIB, GIB, usual=4 * GIB, attribute="memory", unit=2**20)
CORES = Amount("cores", 1, usual=1, total=100)
VARIABLES = Limit(
    ENV, {"MEMORY": "{consumed.memory}", "CORES": "{consumed.cores}"}, {"memory": GIB, "cores": 1}
)
SIZE = 80


class SharingScene(Scene):
    """The cards ``a`` to ``d`` with 80 GiB and 100 cores each, and they are shared by amount."""

    def __init__(
        self,
        place: Path,
        kind: type[Cards] = Cards,
        limit: Limit = VARIABLES,
        options: object = CardOptions(),
    ) -> None:
        super().__init__(place, kind, options=options)
        self.entry = replace(self.entry, share=Share(amounts=(MEMORY, CORES), limit=limit))
        self.backend = ResourceBackend(self.entry.name, self.scanner, self.entry)
        for name in "abcd":
            self.resize(name, SIZE)

    def resize(self, name: str, memory: int) -> None:
        """Makes a card have this much memory, in GiB."""
        self.offer(name)
        offered = self.resources.offered[name]
        device = Device(name, {"memory": memory * 1024} if memory else {})
        self.resources.offered[name] = replace(offered, device=device)

    async def restarted(self) -> None:
        """Ends devhost and starts it again."""
        self.restart()
        for record in await self.files.read_all():
            self.ledger.prepared(record.claim, record.devices, record.driver)

    def shares(self, number: int, *wanted: tuple[str, str, int | str], **more: Any) -> ClaimHolder:
        """A claim that uses so many GiB of some cards, each with its request."""
        results = [
            use(request, card, amount, f"s-{number}-{n}") for n, (request, card, amount) in enumerate(wanted)
        ]
        return self.claim(number, *results, **more)


def use(request: str, card: str, memory: int | str, share: str, cores: str = "1") -> dict[str, Any]:
    """A part of a card that a scheduler has allocated."""
    amount = memory if isinstance(memory, str) else f"{memory}Gi"
    return result(request, card, shareID=share, consumedCapacity={"memory": amount, "cores": cores})


@pytest.fixture
async def scenes(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[SharingScene] = []

    async def make(kind: type[Cards] = Cards, **more: Any) -> SharingScene:
        made.append(SharingScene(tmp_path, kind, **more))
        await made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
async def scene(scenes: Any) -> SharingScene:
    made: SharingScene = await scenes()
    return made


@pytest.mark.conformance(125)
async def test_claims_fill_a_device_to_the_last_step_and_no_further(scene: SharingScene) -> None:
    first = scene.shares(1, ("gpu", "a", 40))
    await scene.devices(first)
    await scene.devices(scene.shares(2, ("gpu", "a", 39)))
    refused = await scene.error(scene.shares(3, ("gpu", "a", 2)))
    assert "a cannot be allocated: 1Gi of 80Gi memory is free, and the claim needs 2Gi" in refused
    await scene.devices(scene.shares(4, ("gpu", "a", 1)))
    await scene.unprepare(first)
    await scene.devices(scene.shares(3, ("gpu", "a", 2)))


async def test_every_capacity_counts(scene: SharingScene) -> None:
    await scene.devices(scene.claim(1, use("gpu", "a", 1, "s", cores="60")))
    refused = await scene.error(scene.claim(2, use("gpu", "a", 1, "t", cores="41")))
    assert "40 of 100 cores is free, and the claim needs 41" in refused


@pytest.mark.conformance(126)
async def test_containers_learn_what_their_claim_uses(scene: SharingScene) -> None:
    ref = scene.claim(1, use("gpu", "a", 4, "s", cores="25"))
    found = scene.container(ref, await scene.devices(ref))
    assert found == {"CARD_A_MODE": "safe", "MEMORY": "4", "CORES": "25"}


async def test_two_parts_of_one_device_are_one_limit(scene: SharingScene) -> None:
    ref = scene.shares(1, ("gpu", "a", 4), ("gpu", "a", 6))
    devices = await scene.devices(ref)
    assert [one.share for one in devices] == ["s-1-0", "s-1-1"]
    assert devices[0].cdi_ids[0] != devices[1].cdi_ids[0]
    assert scene.container(ref, devices)["MEMORY"] == "10"
    assert "70Gi of 80Gi" in await scene.error(scene.shares(2, ("gpu", "a", 71)))
    assert "80Gi of 80Gi" in await scene.error(scene.shares(3, ("gpu", "b", 40), ("gpu", "b", 41)))


async def test_a_claim_without_amounts_has_all_of_the_device(scene: SharingScene) -> None:
    """As a claim that was allocated before the device was shared."""
    ref = scene.claim(1, result("gpu", "a"))
    assert scene.container(ref, await scene.devices(ref))["MEMORY"] == str(SIZE)
    assert "0 of 80Gi" in await scene.error(scene.shares(2, ("gpu", "a", 1)))


async def test_amounts_are_rounded_up(scene: SharingScene) -> None:
    ref = scene.claim(1, use("gpu", "a", str(4 * GIB + 1), "s", cores="1500m"))
    (one,) = await scene.devices(ref)
    assert [(part.name, part.amount) for part in one.parts] == [("memory", 4 * GIB + 1), ("cores", 2)]


async def test_an_amount_that_is_no_quantity_is_refused(scene: SharingScene) -> None:
    assert "4e-9 is no quantity of memory" in await scene.error(scene.shares(1, ("gpu", "a", "4e-9")))


async def test_administrative_access_uses_nothing_and_has_no_limit(scene: SharingScene) -> None:
    await scene.devices(scene.shares(1, ("gpu", "a", SIZE)))
    ref = scene.claim(2, result("monitor", "a", adminAccess=True))
    assert "MEMORY" not in scene.container(ref, await scene.devices(ref))
    scene.resize("b", 0)
    assert await scene.devices(scene.claim(3, result("monitor", "b", adminAccess=True)))


@pytest.mark.conformance(125)
async def test_prepare_is_idempotent_also_after_a_restart_and_on_a_device_that_shrank(
    scene: SharingScene,
) -> None:
    ref = scene.shares(1, ("gpu", "a", 60))
    other = scene.shares(2, ("gpu", "a", 20))
    before = await scene.devices(ref)
    await scene.devices(other)
    assert await scene.devices(ref) == before
    await scene.restarted()
    assert await scene.devices(ref) == before
    scene.resize("a", 40)
    assert await scene.devices(ref) == before
    assert "0 of 40Gi" in await scene.error(scene.shares(3, ("gpu", "a", 1)))
    await scene.unprepare(ref)
    await scene.devices(scene.shares(3, ("gpu", "a", 20)))


async def test_a_device_that_has_too_little_or_nothing_known_is_refused(scene: SharingScene) -> None:
    scene.resize("a", 0)
    reason = "it has no memory, of which share.capacity gives claims an amount"
    assert (
        await scene.error(scene.shares(1, ("gpu", "a", 1))) == f"device {POOL}/a is not available: {reason}"
    )


@pytest.mark.conformance(126)
async def test_two_requests_cannot_have_limits_on_different_devices(scene: SharingScene) -> None:
    """A container with both would have one variable, and no limit on the other device."""
    refused = await scene.error(scene.shares(1, ("x", "a", 1), ("y", "b", 1)))
    assert refused.startswith("requests x and y have different devices, and one container can have one limit")
    assert await scene.devices(scene.shares(2, ("x", "a", 1), ("y", "a", 2)))
    admin = result("z", "b", adminAccess=True)
    assert await scene.devices(scene.claim(3, use("x", "a", 1, "s"), admin))


async def test_requests_without_a_limit_may_have_different_devices(scenes: Any) -> None:
    scene = await scenes(limit=NO_LIMIT)
    ref = scene.shares(1, ("x", "a", 1), ("y", "b", 1))
    assert scene.container(ref, await scene.devices(ref)) == {"CARD_A_MODE": "safe", "CARD_B_MODE": "safe"}


async def test_the_variables_of_the_backend_are_never_replaced(scenes: Any) -> None:
    limit = Limit(ENV, {"CARD_A_MODE": "{consumed.memory}"}, {"memory": 1, "cores": 1})
    scene = await scenes(limit=limit)
    refused = await scene.error(scene.shares(1, ("gpu", "a", 1)))
    assert "the backend sets CARD_A_MODE, and so does share.limit of the entry" in refused


class Sized(Backend):
    """Cards whose memory is the number in a file of the tree."""

    name = "sized"
    attributes: ClassVar = {"memory": Attribute(int, "memory", 1, unit="Mi")}

    def discover(self) -> list[Device]:
        memory = int((self.context.root / "memory").read_text())
        more = int((self.context.root / "more").read_text()) if (self.context.root / "more").exists() else 0
        return [Device(f"c{number}", {"memory": memory}) for number in range(1 + more)]

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(env={"CARD": request.devices[0].id})


@pytest.fixture
async def node() -> AsyncIterator[DraNode]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:  # tmp_path is too long
        made = DraNode(Path(directory), kind=Sized)
        (made.node.root / "memory").write_text("8192")
        made.configure(
            "{name: example.com/card, backend: sized, serve: dra, share: {capacity: {memory: {min: 1Gi, "
            "step: 1Gi, unit: Gi}}, limit: {env: {LIMIT: '{consumed.memory}'}}}}"
        )
        async with made, made.node.served():
            await made.node.until(made.published)
            await made.register()
            yield made


def capacity_of(node: DraNode) -> Any:
    report = node.report()
    assert report is not None
    (memory,) = report["pools"][0]["devices"][0]["capacity"]
    assert memory["name"] == "memory"
    assert read(report, DraStatus)
    return {key: value for key, value in memory.items() if key != "name"}


async def test_a_node_publishes_limits_and_reports_what_claims_use(node: DraNode) -> None:
    (device,) = node.slices()[0]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"] == {
        "value": "8Gi",
        "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}},
    }
    name = node.name_of("c0")
    five, four, three = (
        node.allocate(f"uses-{amount}", name, share=f"s-{amount}", consumed={"memory": f"{amount}Gi"})
        for amount in (5, 4, 3)
    )
    answers = await node.prepare(five)
    (edits,) = node.edits(answers[five.uid])
    assert sorted(edits["env"]) == ["CARD=c0", "LIMIT=5"]
    refused = (await node.prepare(four))[four.uid].error
    assert "3Gi of 8Gi memory is free, and the claim needs 4Gi" in refused
    assert not (await node.prepare(three))[three.uid].error
    assert capacity_of(node) == {"total": "8Gi", "used": "8Gi", "free": "0"}
    shown = {name: [*samples] for name, samples in node.host.now().dra.gauges()}
    labels = ("example.com/card", "c0", "memory")
    assert shown["device_capacity"] == shown["device_capacity_used"] == [(labels, 8 * GIB)]
    await node.unprepare(five)
    assert capacity_of(node) == {"total": "8Gi", "used": "3Gi", "free": "5Gi"}


async def test_a_claim_with_two_parts_of_a_device_shows_it_once(node: DraNode) -> None:
    name = node.name_of("c0")
    claim = node.allocate("two", name, name, share="s", consumed={"memory": "2Gi"})
    assert not (await node.prepare(claim))[claim.uid].error
    report = node.report()
    assert [one["device"] for one in report["claims"][0]["devices"]] == ["c0"]
    assert [one["claim"] for one in report["pools"][0]["devices"][0]["claims"]] == ["two"]
    assert capacity_of(node)["used"] == "4Gi"


async def test_metrics_have_a_bounded_number_of_devices_of_a_resource(node: DraNode) -> None:
    (node.node.root / "more").write_text(str(MOST_SHARED))
    node.node.look("sized")
    await node.until(lambda: len(node.published()["example.com/card"]) == MOST_SHARED + 1)
    assert len(list(dict(node.host.now().dra.gauges())["device_capacity"])) == MOST_SHARED


async def test_a_device_that_changes_is_published_with_what_it_has(node: DraNode) -> None:
    claim = node.allocate("six", node.name_of("c0"), share="s", consumed={"memory": "6Gi"})
    assert not (await node.prepare(claim))[claim.uid].error
    (node.node.root / "memory").write_text("4096")
    node.node.look("sized")
    await node.until(lambda: node.slices()[0]["devices"][0]["capacity"]["memory"]["value"] == "4Gi")
    assert capacity_of(node) == {"total": "4Gi", "used": "6Gi", "free": "0"}
    assert not (await node.prepare(claim))[claim.uid].error


@dataclass(frozen=True)
class LimitedOptions(CardOptions):
    server: str = option("/run/server", "Where its server is; none if empty.")

    @property
    def limits(self) -> Mapping[str, Collection[str]]:
        return {"mps": ("memory", "cores")} if self.server else {}


class Limited(Cards):
    """Cards with a server that limits containers."""

    ResourceOptions = LimitedOptions
    takes_shares = True

    def allocate(self, request: AllocateRequest) -> Edits:
        assert not request.shares
        found = {name: one["memory"] for name, one in request.consumed.items()}
        env = {
            f"LIMIT_{name.upper()}": f"{one.amount // GIB}/{one.total // GIB}" for name, one in found.items()
        }
        return Edits(env=env, mounts=(Mount(request.options.server, "/run/server"),))


async def test_a_backend_learns_what_claims_use(scenes: Any) -> None:
    scene = await scenes(Limited, limit=Limit("mps"), options=LimitedOptions(server="/proc"))
    ref = scene.shares(1, ("gpu", "a", 4), ("gpu", "b", 6), ("gpu", "a", 1))
    assert scene.container(ref, await scene.devices(ref)) == {"LIMIT_A": "5/80", "LIMIT_B": "6/80"}


@pytest.mark.conformance(126)
async def test_without_what_limits_containers_a_claim_is_refused_and_the_device_unhealthy(
    scenes: Any,
) -> None:
    scene = await scenes(Limited, limit=Limit("mps"), options=LimitedOptions(server="/absent"))
    refused = await scene.error(scene.shares(1, ("gpu", "a", 4)))
    assert refused == "example.com/card: /absent does not exist on the node"
    assert scene.scanner.denied == {"a": ["/absent"]}
    assert not scene.left


@pytest.mark.conformance(126)
async def test_a_class_cannot_remove_what_limits_containers(scenes: Any) -> None:
    scene = await scenes(Limited, limit=Limit("mps"), options=LimitedOptions(server="/proc"))
    ref = scene.claim(1, use("gpu", "a", 4, "s"), config=[config({"server": ""})])
    refused = await scene.error(ref)
    assert refused.endswith("mps, which limits containers of example.com/card, is not in its configuration")


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("prepare"),
            st.integers(1, 6),
            st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), min_size=1, max_size=3),
        ),
        st.tuples(st.just("unprepare"), st.integers(1, 6), st.just([])),
        st.tuples(st.just("restart"), st.just(0), st.just([])),
    ),
    max_size=14,
)


@pytest.mark.conformance(125)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(steps)
def test_parts_of_a_device_are_never_more_than_it_has_for_any_scheduler(
    sequence: Sequence[tuple[str, int, Sequence[tuple[str, int]]]],
) -> None:
    """Against a model, over restarts; and what the files record is what the claims have."""

    async def run(place: Path) -> None:
        scene = SharingScene(place, limit=NO_LIMIT)
        await scene.start()
        model: dict[int, list[tuple[str, int]]] = {}
        try:
            for action, number, parts in sequence:
                if action == "restart":
                    await scene.restarted()
                elif action == "unprepare":
                    await scene.unprepare(ClaimHolder("team", f"claim-{number}", uid(number)))
                    model.pop(number, None)
                else:
                    wanted = model.get(number, list(parts))  # an allocation does not change
                    used = [part for other, some in model.items() if other != number for part in some]
                    fits = all(total([*used, *wanted], card) <= SIZE for card in "ab")
                    ref = scene.shares(number, *(("gpu", card, amount) for card, amount in wanted))
                    (answer,) = await scene.prepare(ref)
                    assert (not isinstance(answer, str)) == fits, answer
                    if fits:
                        model[number] = wanted
                recorded = [
                    (one.key[1], one.parts[0].amount // GIB)
                    for record in scene.files.records.values()
                    for one in record.devices
                ]
                assert sorted(recorded) == sorted(part for some in model.values() for part in some)
                for card in "ab":
                    assert total(recorded, card) <= SIZE
                    totals = {"memory": SIZE * GIB}
                    held = held_by_claims(scene.node.allocations.held()).get(("cards", card), ())
                    assert used_of(totals, (one.parts for one in held)) == {
                        "memory": total(recorded, card) * GIB
                    }
        finally:
            scene.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


def total(parts: Sequence[tuple[str, int]], card: str) -> int:
    return sum(amount for name, amount in parts if name == card)


async def test_an_edit_changes_what_claims_may_use(node: DraNode) -> None:
    claim = node.allocate("six", node.name_of("c0"), share="s", consumed={"memory": "6Gi"})
    assert not (await node.prepare(claim))[claim.uid].error
    node.configure(
        "{name: example.com/card, backend: sized, serve: dra, share: {capacity: {memory: {min: 2Gi, "
        "step: 1Gi}, cores: {total: 10, min: 1}}, limit: none}}"
    )

    def capacity() -> dict[str, str]:
        (device,) = node.slices()[0]["devices"]
        return {name: one["value"] for name, one in device["capacity"].items()}

    await node.until(lambda: capacity() == {"memory": "8Gi", "cores": "10"})
    more = node.allocate("two", node.name_of("c0"), share="t", consumed={"memory": "2Gi", "cores": "1"})
    refused = (await node.prepare(more))[more.uid].error
    assert "0 of 10 cores is free, and the claim needs 1" in refused
    await node.unprepare(claim)
    assert not (await node.prepare(more))[more.uid].error
