"""Both front ends of one host, with a simulated kubelet and a simulated API server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_testing.dra import Claim, DraKubelet, Rival
from devhost_testing.dra.api_objects import claims as claims_of
from devhost_testing.kubelet import ClaimDevice
from kit.dra import DRIVER, NODE, QUICK, SLICES, Cards, Cluster, DraNode
from kit.waiting import background, until
from status_values import status

from devhost.allocation.allocations import Allocations, Listing
from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.backend import Device
from devhost.dra.api import dra_v1_pb2 as v1
from devhost.dra.front_end import DraFrontEnd
from devhost.dra.inventory import REMEMBERED
from devhost.dra.server import RESEND
from devhost.host.dra_side import access
from devhost.host.shown.problems import problems
from devhost.planning.sides import Sides
from devhost.runtime.tasks import BUG
from devhost.telemetry.metrics import Metrics

CARD = "{name: example.com/card, backend: cards}"
CLAIMED = "{name: example.com/card, backend: cards, serve: dra}"
RESOURCE = "example.com/card"
CORDONED = '{"devices": ["%s"], "kind": "cordon", "reason": "fan", "by": "alice"}'


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    async with DraNode(place) as made:
        yield made


@pytest.fixture
def verdict(node: DraNode, tmp_path: Path) -> Path:
    """Where an operator's verdict goes."""
    node.node.state = tmp_path / "state"
    file = node.node.state / "verdicts/a.json"
    file.parent.mkdir(parents=True)
    return file


async def test_devices_are_published_and_a_claim_gets_what_a_container_needs(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("one", node.name_of("c0"))
        answer = (await node.prepare(claim))[claim.uid]
        assert any("CARDS=c0" in edits.get("env", ()) for edits in node.edits(answer))
        assert node.node.kubelet.allocatable() == {}
        await node.released(claim)
        with pytest.raises(KeyError):
            node.edits(answer)


@pytest.mark.conformance(67)
async def test_a_restart_writes_nothing(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        await node.synced()
    before = len(node.server.writes)
    async with node.served():
        await node.synced()
        claim = node.allocate("one", node.name_of("c1"))
        await node.prepared(claim)
    assert len(node.server.writes) == before


class Functions(Cards):
    """A physical function and its virtual functions, as the file ``cards`` lists them."""

    def discover(self) -> list[Device]:
        names = (self.context.root / "cards").read_text().split()
        whole = frozenset({"node:/dev/pf"})
        return [
            Device(name, claims=whole, withheld="it has parts", divided=True)
            if name == "pf"
            else Device(name, part_of=whole)
            for name in names
        ]


@pytest.mark.conformance(124)
async def test_a_part_of_a_held_device_stays_published_and_prepare_refuses_it(place: Path) -> None:
    async with DraNode(place, kind=Functions) as node:
        node.cards("pf", "vf0", "vf1")
        node.configure("{name: example.com/card, backend: cards, serve: dra, dra: {counters: true}}")
        async with node.served(published={RESOURCE: {"pf", "vf0", "vf1"}}):
            await node.synced()
            writes = len(node.server.writes)
            one, other = node.allocate("one", node.name_of("pf")), node.allocate("other", node.name_of("vf1"))
            await node.prepared(one)
            refused = await node.refusal(other)
            assert "node:/dev/pf is in use: a claim holds pf" in refused
            await node.released(one)
            await node.prepared(other)
            refused = await node.refusal(one)
            assert "node:/dev/pf is in use: a claim holds vf1" in refused
            assert len(node.server.writes) == writes


async def test_an_unhealthy_device_has_a_taint_until_it_is_healthy(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        node.cards("c0 ill", "c1")
        node.node.look("cards")

        await node.until(lambda: [*node.taints()] == ["c0"])
        claim = node.allocate("one", node.name_of("c0"))
        assert "unhealthy: it is hot" in await node.refusal(claim)


async def test_a_cordoned_device_has_a_taint_and_is_no_problem(node: DraNode, verdict: Path) -> None:
    node.configure(CLAIMED)
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        verdict.write_text(CORDONED % "c0")
        cordoned = {"c0": [("cordoned-by-alice-fan", "NoSchedule")]}
        await node.until(lambda: node.taints("value", "effect") == cordoned)
        claim = node.allocate("one", node.name_of("c0"))
        assert "unhealthy: cordoned by alice: fan" in await node.refusal(claim)
        assert not any(kind == "device" for kind, _, _ in wrong(node))
        verdict.unlink()
        await node.until(lambda: not node.taints())
        await node.prepared(claim)


async def test_an_entry_chooses_the_taint_of_a_cause(node: DraNode, verdict: Path) -> None:
    node.configure(CLAIMED[:-1] + ", dra: {taints: {cordoned: NoExecute}}}")
    verdict.write_text(CORDONED % "c0")
    node.cards("c0", "c1 ill")
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        cordoned = [(f"{DRIVER}/cordoned", "NoExecute")]
        unhealthy = [(f"{DRIVER}/unhealthy", "NoSchedule")]
        await node.until(lambda: node.taints("key", "effect") == {"c0": cordoned, "c1": unhealthy})


async def test_a_device_that_is_unplugged_while_a_claim_holds_it_is_gone_and_does_not_move(
    node: DraNode,
) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        claim, late = (node.allocate(name, node.name_of("c0")) for name in ("used", "late"))
        await node.prepared(claim)
        node.cards("c1")
        node.node.look("cards")
        await node.until(lambda: node.published() == {RESOURCE: {"c1"}})
        await node.until(lambda: [one.key[1] for one in node.moving()] == ["c0"])
        document = status(node.host)
        dra = document["dra"]
        assert dra is not None and dra["moving"] == dra["moves"] == []
        reason = "the device is gone, and a claim holds it"
        holder = {"namespace": "default", "pod": "", "container": "", "claim": "used"}
        shown = {one["device"]: (one["reason"], one["claims"]) for one in dra["pools"][0]["devices"]}
        assert shown == {"c0": (reason, [holder]), "c1": ("", [])}
        (problem,) = [one for one in document["problems"] if one["kind"] == "device"]
        assert (problem["subject"], problem["reason"]) == (f"{RESOURCE} c0", reason)
        assert problem["heldBy"] == [holder]
    async with node.served():
        await node.synced()
        pool = dra["pools"][0]["pool"]
        error = f"device {pool}/c0 is not available: the device is gone"
        assert await node.refusal(late) == error
        node.cards("c0", "c1")
        node.node.look("cards")
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await node.until(lambda: not any(kind == "device" for kind, _, _ in wrong(node)))


async def test_the_names_of_many_former_devices_are_forgotten_oldest_first(node: DraNode) -> None:
    node.configure(CLAIMED)
    batches = [[f"{batch}{number}" for number in range(REMEMBERED // 2)] for batch in "abcd"]
    names = {}
    async with node.served():
        for batch in batches:
            node.cards(*batch)
            node.node.look("cards")
            await node.until(lambda batch=batch: node.published() == {RESOURCE: set(batch)})
            names |= {card: node.name_of(card) for card in (batch[0], batch[-1])}
            await node.until(lambda: not node.host.dra.sides.withdrawn(DRIVER))

        claims = {card: node.allocate(card, name) for card, name in names.items()}

        async def error(card: str) -> str:
            return (await node.prepare(claims[card]))[claims[card].uid].error

        async with asyncio.timeout(60):
            while not (await error(batches[0][-1])).endswith("devhost has no such device"):
                await asyncio.sleep(0.05)
        for known in ("b0", batches[2][-1]):
            assert (await error(known)).endswith("the device is gone")
        assert await error("d0") == ""


async def test_the_claims_of_one_pod_get_all_functions_of_an_iommu_group_and_others_none(
    node: DraNode,
) -> None:
    node.cards("a 7", "b 7", "c 8")
    async with node.served(CLAIMED, published={RESOURCE: {"a", "b", "c"}}):
        first = node.allocate("first", node.name_of("a"), pod="vm")
        await node.prepared(first)
        await node.until(lambda: [*node.taints()] == ["b"])
        other = node.allocate("other", node.name_of("b"), pod="another")
        assert await node.refusal(other) == (
            f"{RESOURCE}: b cannot be allocated: its IOMMU group is in use by another pod"
        )
        second = node.allocate("second", node.name_of("b"), pod="vm")
        await node.prepared(second)
        await node.until(lambda: not node.taints())
        assert not (await node.unprepare(first, second))[first.uid].error
        await node.prepared(other)


async def test_a_cause_without_effect_does_not_hide_that_another_pod_has_the_device(
    node: DraNode, verdict: Path
) -> None:
    node.cards("a 7", "b 7")
    node.configure(CLAIMED[:-1] + ", dra: {taints: {cordoned: None, held: NoSchedule}}}")
    verdict.write_text(CORDONED % "b")
    async with node.served(published={RESOURCE: {"a", "b"}}):
        cordoned, held = (f"{DRIVER}/cordoned", "None"), (f"{DRIVER}/held", "NoSchedule")
        await node.until(lambda: node.taints("key", "effect") == {"b": [cordoned]})
        first = node.allocate("first", node.name_of("a"), pod="vm")
        await node.prepared(first)
        await node.until(lambda: sorted(node.taints("key", "effect").get("b", ())) == [cordoned, held])


@pytest.mark.conformance(111)
async def test_a_resource_moves_to_dra_device_by_device(node: DraNode) -> None:
    """A free device joins once the Node no longer offers it; one that a pod holds, once the pod has ended."""
    async with node.served(CARD, offers={RESOURCE: 2}):
        node.kubelet_reports(example_com__card=2)
        await node.node.container({RESOURCE: 1}, keep=True)
        (held,) = node.node.kubelet.in_use(RESOURCE)
        await node.until(lambda: node.host.allocations.of(RESOURCE).leases.holder(held))
        (free,) = {"c0", "c1"} - {held}
        await node.reload(CLAIMED)
        await node.node.offers({RESOURCE: 0})
        await node.settled()
        assert node.published() == {}
        assert {one.key[1] for one in node.moving()} == {held, free}
        node.kubelet_reports(example_com__card=0)
        await node.until(lambda: node.published() == {RESOURCE: {free}})
        assert node.moving() == []
        node.node.kubelet.release("pod-0")
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await node.until(lambda: node.host.services == {})


@pytest.mark.conformance(111)
async def test_a_resource_moves_to_the_device_plugin_device_by_device(node: DraNode) -> None:
    """A free device is listed once no claim can have it; one that a claim has, once it is deallocated."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        late, used = node.allocate("late", node.name_of("c0")), node.allocate("used", node.name_of("c1"))
        await node.prepared(used)
        await node.reload(CARD)
        await node.until(lambda: node.slices() == [])
        await node.settled(0.6)
        assert node.node.kubelet.allocatable().get(RESOURCE, 0) == 0
        assert not await node.refusal(late), "its pod was scheduled before the move"
        for claim in (late, used):
            node.delete_claim(claim.name)
            await node.unprepare(claim)
        await node.node.offers({RESOURCE: 2})


NO_NODE = {
    b"{}": "metadata.uid of the Node node-1 is missing",
    b'{"metadata": {"uid": "u"}, "status": {"allocatable": {"example.com/card": "two"}}}': (
        "status.allocatable.example.com/card of the Node node-1 is no quantity"
    ),
}


@pytest.mark.conformance(111)
@pytest.mark.parametrize("body", NO_NODE)
async def test_a_node_that_cannot_be_read_keeps_devices_with_the_plugin(node: DraNode, body: bytes) -> None:
    """Read as one that offers nothing, it would let the devices be on both sides."""
    async with node.served(CARD, offers={RESOURCE: 2}):
        node.kubelet_reports(example_com__card=2)
        node.server.answer_at(f"/api/v1/nodes/{NODE}", body)
        await node.reload(CLAIMED)
        await node.until(lambda: NO_NODE[body] in json.dumps(node.report()))
        await node.settled()
        assert node.published() == {}
        node.server.answer_at(f"/api/v1/nodes/{NODE}", None)
        node.kubelet_reports(example_com__card=0)
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})


async def moving_back(node: DraNode) -> v1.Claim:
    """A resource moves to the device plugin, but for the device of a claim, which is returned."""
    await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
    claim = node.allocate("late", node.name_of("c0"))
    await node.reload(CARD)
    await node.node.offers({RESOURCE: 1})
    return claim


@pytest.mark.conformance(111)
async def test_a_claim_that_cannot_be_read_keeps_its_device(node: DraNode) -> None:
    """Read as another claim of this name, it would let its device be on both sides."""
    async with node.served(CLAIMED):
        claim = await moving_back(node)
        path = f"{claims_of('default')}/late"
        node.server.answer_at(path, b"{}")
        await node.until(lambda: "metadata.uid of a ResourceClaim is missing" in json.dumps(node.report()))
        await node.settled()
        assert node.node.kubelet.healthy(RESOURCE) == {"c1"}
        node.server.answer_at(path, None)
        node.delete_claim(claim.name)
        await node.node.offers({RESOURCE: 2})


@pytest.mark.conformance(111)
async def test_a_move_goes_on_after_a_restart(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("late", node.name_of("c0"))
    async with node.served(CARD, offers={RESOURCE: 1}):
        assert node.node.kubelet.healthy(RESOURCE) == {"c1"}
        await node.settled()
    async with node.served():
        await node.settled()
        assert node.node.kubelet.healthy(RESOURCE) <= {"c1"}
        node.delete_claim(claim.name)
        await node.node.offers({RESOURCE: 2})


@pytest.mark.conformance(111)
async def test_a_claim_allocated_before_a_move_is_prepared_after_a_restart(node: DraNode) -> None:
    """Its pod was scheduled before the move; the device would wait for that claim for ever."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        late, none = node.allocate("late", node.name_of("c0")), node.allocate("none", node.name_of("c1"))
    async with node.served(CARD):
        await node.until(lambda: node.slices() == [])
        answer = (await node.prepare(late))[late.uid]
        assert any("CARDS=c0" in edits.get("env", ()) for edits in node.edits(answer))
    async with node.served():
        await node.synced()
        assert not await node.refusal(none), "the slices were gone before this start"
        for claim in (late, none):
            node.delete_claim(claim.name)
            await node.unprepare(claim)
        await node.node.offers({RESOURCE: 2})


async def test_devices_are_not_published_after_a_start_while_the_node_offers_more_than_is_listed(
    node: DraNode,
) -> None:
    """An earlier run may have listed them: the scheduler has pods for them on their way."""
    node.kubelet_reports(example_com__card=2)
    async with node.served(CLAIMED):
        await node.settled()
        assert node.published() == {}
        node.kubelet_reports(example_com__card=0)
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})


async def test_a_claim_holds_its_device_after_a_restart_without_dra(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("used", node.name_of("c0"))
        await node.prepared(claim)
    node.node.configure(f"resources: [{CARD}]")
    async with node.served(offers={RESOURCE: 1}):
        assert node.node.kubelet.healthy(RESOURCE) == {"c1"}
        node.delete_claim(claim.name)
        await node.released(claim)
        await node.node.offers({RESOURCE: 2})


async def test_slices_that_a_starting_kubelet_deletes_come_back(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        await node.until(lambda: node.server.watches)
        node.server.remove(SLICES)
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})


async def test_without_the_api_server_all_else_works(node: DraNode) -> None:
    node.configure("{name: example.com/other, backend: cards, where: {model: x100}}", CLAIMED)
    node.server.hang()
    async with node.served(offers={"example.com/other": 2}):
        await node.node.container({"example.com/other": 1})
        ready, reason = node.host.ready()
        assert not ready and "DRA driver" in reason
        node.server.resume()


def wrong(node: DraNode) -> list[tuple[str, str, str]]:
    """Each problem: its kind, what has it, and why."""
    return [(one.kind, one.subject, one.reason) for one in problems(node.host.now()).shown]


async def test_a_missing_kubeconfig_is_a_problem_of_dra_alone_and_heals(
    node: DraNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.configure("{name: example.com/other, backend: cards, where: {model: x100}}", CLAIMED)
    file = node.options.kubeconfig
    assert file is not None
    content = file.read_bytes()
    file.unlink()
    async with node.served(offers={"example.com/other": 2}):
        reason = (
            f"no access to the API server: {file} cannot be read: No such file or directory "
            "(give a kubeconfig file)"
        )
        await node.until(lambda: ("dra", DRIVER, reason) in wrong(node))
        report = node.report()
        assert report is not None and report["error"] == reason
        assert reason in node.host.ready()[1]
        shown = [one for one in caplog.records if one.message == "ResourceSlices are not watched"]
        assert reason in str(vars(shown[0]))
        file.write_bytes(content)
        await node.synced()
        await node.until(lambda: not any(kind == "dra" for kind, _, _ in wrong(node)))


async def test_claims_of_a_resource_that_moved_back_are_released_without_access_to_the_api_server(
    node: DraNode,
) -> None:
    """The kubeconfig is missing at the start; the slices go once it is there."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("one", node.name_of("c0"))
        await node.prepared(claim)
    file = node.options.kubeconfig
    assert file is not None
    content = file.read_bytes()
    file.unlink()
    async with node.served(CARD):
        await node.until(node.options.service_socket(DRIVER).exists)
        await node.released(claim)
        await node.until(lambda: any("no access to the API server" in why for _, _, why in wrong(node)))
        node.delete_claim("one")
        file.write_bytes(content)
        await node.until(lambda: node.published() == {})
        await node.node.offers({RESOURCE: 2})


async def test_a_device_that_waits_for_the_api_server_names_what_it_lacks(node: DraNode) -> None:
    async with node.served(CARD, offers={RESOURCE: 2}):
        node.server.require_token("another")
        await node.reload(CLAIMED)
        await node.until(
            lambda: (
                {one.key[1] for one in node.moving() if "does not accept devhost's credent" in one.waits_for}
                == {"c0", "c1"}
            )
        )
        plan = node.host.replanner
        await node.until(
            lambda: any("does not accept devhost's credentials" in one.reason for one in plan.plan.refusals)
        )
        node.server.require_token("secret")
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await node.until(lambda: not any(kind == "dra" for kind, _, _ in wrong(node)))


async def test_a_claim_learns_that_a_pod_of_the_device_plugin_holds_its_device(node: DraNode) -> None:
    async with node.served(CARD, offers={RESOURCE: 2}):
        await node.node.container({RESOURCE: 2}, keep=True)
        await node.reload(CLAIMED)
        await node.until(node.options.service_socket(DRIVER).exists)
        await node.until(lambda: not node.moving())  # the Node offers none of them any longer
        claim = node.allocate("early", (f"{NODE}/example.com-card", "c0"))
        error = await node.refusal(claim)
        assert "no such device" not in error
        assert "holds it through example.com/card; it is free when that pod ends" in error
        other = node.allocate("other", (f"{NODE}/example.com-card", "c9"))
        assert "no such device" in await node.refusal(other)


async def test_a_task_that_fails_is_a_problem_and_makes_the_node_not_ready(node: DraNode) -> None:
    node.configure(CARD)

    async def work() -> None:
        raise RuntimeError("a secret")

    async with node.served(offers={RESOURCE: 2}):
        assert node.host.ready()[0]
        node.host.tasks.spawn("toy", work)
        await node.until(lambda: ("task", "toy", BUG) in wrong(node))
        assert node.host.ready() == (False, f"failing tasks: toy ({BUG})")


@pytest.mark.conformance(62)
async def test_the_kubelet_is_answered_while_a_backend_hangs(node: DraNode) -> None:
    node.configure(CLAIMED)
    claim = node.allocate("early", ("node-1/example.com-card", "c0"))
    hang = node.node.root / "hang"
    hang.touch()
    async with node.served():
        await node.register()
        assert "devhost is still looking for devices" in await node.refusal(claim)
        hang.unlink()
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await node.prepared(claim)


async def test_a_kubelet_that_does_not_register_the_driver_is_a_problem_until_it_does(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timing = replace(QUICK, dra=replace(QUICK.dra, unregistered=0.5, sockets=0.1))
    async with DraNode(place, timing) as node, node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        directory = node.options.registration_socket(DRIVER).parent
        reason = (
            "the kubelet has not registered it in 0.5 s"
            f" (--plugins-registry must be the directory in which the kubelet looks, not {directory})"
        )
        await node.until(lambda: ("dra", DRIVER, reason) in wrong(node))
        assert status(node.host)["dra"]["reason"] == reason
        await node.register()
        await node.until(lambda: node.host.ready()[0])
        assert not any(kind == "dra" for kind, _, _ in wrong(node))
        assert caplog.messages.count("DRA driver not registered") == 1


async def test_readiness_needs_the_kubelet_and_the_slices(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        missing = "DRA driver: devhost.example.com (the kubelet has not registered it yet)"
        await node.until(lambda: node.host.ready() == (False, missing))
        await node.register()
        await node.until(lambda: node.host.ready()[0])
        assert status(node.host)["dra"]["state"] == "registered"


async def test_a_directory_that_takes_no_files_of_claims_is_a_problem_until_it_does(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        await node.register()
        claim = node.allocate("early", (f"{NODE}/example.com-card", "c0"))
        directory = node.host.configuration.settings.cdi_directory
        directory.write_text("in the way")
        assert (await node.refusal(claim)).startswith(f"cannot write {directory}/")
        ((subject, reason),) = [(where, why) for kind, where, why in wrong(node) if kind == "dra"]
        assert subject == DRIVER and reason.startswith(f"cannot write {directory}")
        directory.unlink()
        node.host.scanners["cards"].request_scan()
        await node.until(lambda: not any(kind == "dra" for kind, _, _ in wrong(node)))
        assert list(directory.iterdir()) == []
        await node.prepared(claim)


async def test_sockets_that_are_removed_are_made_again(node: DraNode) -> None:
    node.configure(CLAIMED)
    socket = node.options.registration_socket(DRIVER)
    async with node.served():
        await node.until(socket.exists)
        socket.unlink()
        await node.until(socket.exists)
    assert not socket.exists(), "the kubelet learns that the driver is gone"


async def test_an_entry_without_devices_has_one_empty_slice(node: DraNode) -> None:
    node.cards()
    async with node.served(CLAIMED):
        await node.until(lambda: len(node.slices()) == 1)
        assert node.published() == {}
        node.cards("c7")
        node.node.look("cards")
        await node.until(lambda: node.published() == {RESOURCE: {"c7"}})


@pytest.mark.conformance(110)
async def test_a_resource_that_leaves_the_file_leaves_no_slice(node: DraNode) -> None:
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        await node.reload("{name: example.com/unused, backend: cards, serve: dra, where: {model: none}}")
        await node.until(
            lambda: {one["pool"]["name"] for one in node.slices()} == {"node-1/example.com-unused"}
        )


async def test_a_prepared_claim_and_a_container_exclude_each_other(node: DraNode) -> None:
    """Also while nothing has been planned since: both checks are in the step that reserves."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        one, two = (node.allocate(name, node.name_of("c0")) for name in ("one", "two"))
        answers = await node.prepare(one, two)
        errors = sorted(answers[claim.uid].error for claim in (one, two))
        assert errors[0] == "" and "a claim holds it" in errors[1]


async def test_a_shared_device_that_pods_use_is_prepared_for_another_claim(node: DraNode) -> None:
    """The kubelet's list names devhost's own driver, too, which holds nothing a second time."""
    node.configure(CLAIMED.replace("serve", "share: {replicas: 2}, serve"))
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        place = node.name_of("c0")
        one, two, three = (node.allocate(name, place, share=f"s-{name}") for name in ("one", "two", "three"))
        (prepared,) = (await node.prepare(one))[one.uid].devices
        used = ClaimDevice(DRIVER, *place, tuple(prepared.cdi_device_ids))
        node.node.kubelet.use_claim("pod-1", "main", "one", [used])
        await node.until(lambda: (report := node.report()) and report["claims"][0]["containers"])
        await node.prepared(two)
        assert "all 2 shares are in use" in await node.refusal(three)


async def test_nothing_is_published_while_another_driver_has_the_socket(node: DraNode) -> None:
    """Two drivers of one name would delete each other's slices for ever."""
    node.configure(CLAIMED)
    socket = node.options.service_socket(DRIVER)
    with Rival(socket):
        async with node.served():
            await node.until(
                lambda: any(
                    f"another process serves {socket}" in one["reason"]
                    for one in status(node.host)["problems"]
                )
            )
            await node.settled()
            assert node.server.writes == []
            assert not node.host.ready()[0]


@pytest.mark.parametrize("has", ["socket", "slice"])
@pytest.mark.parametrize("then", ["another driver", "no driver"])
async def test_a_driver_of_another_program_is_no_problem_once_the_file_does_not_name_it(
    node: DraNode, has: str, then: str
) -> None:
    """Its name was a mistake: devhost has published nothing as this driver."""
    node.configure(CLAIMED)
    if has == "slice":
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": []}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        node.server.put(SLICES, {**kind, "metadata": {"name": "another"}, "spec": spec})
    with Rival(node.options.service_socket(DRIVER)) if has == "socket" else nullcontext():
        async with node.served():
            await node.until(lambda: "another pro" in str(status(node.host)["problems"]))
            if then == "another driver":
                node.node.configure(f"dra: {{driver: other.example.com}}\nresources: [{CLAIMED}]")
            else:
                node.node.configure(f"resources: [{CARD}]")
            await node.reload()
            if then == "another driver":
                await node.until(lambda: node.drivers().get("other.example.com") == {"c0", "c1"})
                await node.register("other.example.com")
            else:
                await node.node.offers({RESOURCE: 2})
            await node.until(lambda: status(node.host)["problems"] == [])


async def test_what_the_other_driver_did_is_known_when_it_has_ended(node: DraNode) -> None:
    node.configure(CLAIMED)
    socket = node.options.service_socket(DRIVER)
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("one", node.name_of("c0"))
        await node.prepared(claim)
    (file,) = node.node.cdi.glob("*dra_*.json")
    content = file.read_text()
    file.unlink()
    with Rival(socket):
        async with node.served():
            await node.until(lambda: (report := node.report()) and report["reason"])
            file.write_text(content)
            socket.unlink()
            await node.until(lambda: (report := node.report()) and report["claims"])
            other = node.allocate("two", node.name_of("c0"))
            assert "a claim holds it" in await node.refusal(other)


async def test_files_of_claims_that_cannot_be_read_are_a_problem_until_they_can(node: DraNode) -> None:
    """Whether the sockets are this process's or not, it must know what another one has prepared."""
    node.configure(CLAIMED)
    socket, files = node.options.service_socket(DRIVER), node.node.cdi
    reason = f"the files of claims cannot be read: cannot read {files}: Too many levels of symbolic links"

    def shown() -> bool:
        return any((kind, who) == ("dra", DRIVER) and reason in why for kind, who, why in wrong(node))

    def is_reported() -> bool:
        report = node.report()
        return report is not None and reason in report["reason"] and reason in node.host.ready()[1]

    with Rival(socket):
        async with node.served():
            await node.until(lambda: "another process serves" in str(wrong(node)))
            files.symlink_to(files)
            taking = asyncio.create_task(node.host.dra.take_over())
            await node.until(shown)
            assert is_reported()
            files.unlink()
            await taking
            assert not shown()
            files.symlink_to(files)
            socket.unlink()
            await node.until(shown)
            assert is_reported()
            files.unlink()
            await node.until(lambda: not shown())


async def one_of_two_claims_in_use(node: DraNode) -> tuple[v1.Claim, v1.Claim]:
    """Two claims for one device: a pod has the first one."""
    place = node.name_of("c0")
    one, two = node.allocate("one", place), node.allocate("two", place)
    (prepared,) = (await node.prepare(one))[one.uid].devices
    used = ClaimDevice(DRIVER, *place, tuple(prepared.cdi_device_ids))
    node.node.kubelet.use_claim("pod-1", "main", "one", [used])
    return one, two


@pytest.mark.parametrize("damage", ["removed", "damaged"])
async def test_a_claim_whose_record_was_lost_while_devhost_was_down_keeps_its_device(
    node: DraNode, damage: str
) -> None:
    """The first Prepare after a start waits for the kubelet's list, which names the claim."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        _, two = await one_of_two_claims_in_use(node)
    (file,) = node.node.cdi.glob("*dra_*.json")
    if damage == "removed":
        file.unlink()
    else:
        file.write_text("damaged")
    async with node.served():
        await node.until(node.options.service_socket(DRIVER).exists)
        for _ in range(3):
            assert await node.refusal(two)
        await node.until(lambda: (report := node.report()) and report["claims"])
        assert "a claim holds it" in await node.refusal(two)


async def test_a_device_is_free_once_its_claim_is_released_though_the_kubelet_still_lists_it(
    node: DraNode,
) -> None:
    """The kubelet forgets the claim after devhost's answer."""
    async with node.served(CLAIMED, published={RESOURCE: {"c0", "c1"}}):
        one, two = await one_of_two_claims_in_use(node)
        await node.until(
            lambda: (report := node.report()) and any(each["containers"] for each in report["claims"])
        )
        await node.released(one)
        await node.prepared(two)


class Pods:
    """The lists of a kubelet that takes its time."""

    def __init__(self) -> None:
        self.listing: Listing | None = None
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def first_list(self, within: float) -> None:
        self.asked.set()
        await self.answer.wait()


async def test_the_first_prepare_waits_for_the_first_list(place: Path) -> None:
    async with Cluster(place) as cluster:
        claim = cluster.allocate("one", ("node-1/example.com-card", "c0"))
        pods = Pods()
        sides = Sides(time.monotonic)
        allocations = Allocations(time.monotonic)
        front_end = DraFrontEnd(
            DRIVER,
            cluster.options,
            access(cluster.options),
            sides=sides,
            claims=allocations.claims,
            files=ClaimFiles(place / "cdi"),
            listed=dict,
            pods=pods,
            replan=lambda: None,
            changed=lambda: None,
            metrics=Metrics(),
        )
        async with background(front_end.serve()):
            await until(cluster.options.service_socket(DRIVER).exists)
            answering = asyncio.create_task(cluster.prepare(claim))
            async with asyncio.timeout(60):
                await pods.asked.wait()
            assert not answering.done()
            pods.answer.set()
            assert (await answering)[claim.uid].error


async def test_the_kubelet_gets_the_health_of_a_device_right_after_prepare(node: DraNode) -> None:
    """It shows the health of a new pod's devices as unknown until then."""
    node.configure(CLAIMED)
    async with node.node.served(), DraKubelet(node.options.plugins_registry) as kubelet:
        await node.until(lambda: node.published() == {RESOURCE: {"c0", "c1"}})
        await kubelet.registered(DRIVER)
        pool, device = node.name_of("c0")
        asked = node.allocate("one", (pool, device))
        await kubelet.prepare(DRIVER, Claim("default", "one", asked.uid, ("req",)))
        # the next complete message would have it anyway
        await kubelet.until(lambda: (pool, device) in kubelet.health(DRIVER), timeout=RESEND / 2)


async def test_moving_back_lists_the_claims_of_the_cluster_once(node: DraNode) -> None:
    async with node.served(CLAIMED):
        claim = await moving_back(node)

        def asked(path: str) -> int:
            return sum(one.path == path for one in node.server.requests)

        await node.until(lambda: asked(f"{claims_of('default')}/late") >= 3)
        # one for each device that left its slice
        assert asked("/apis/resource.k8s.io/v1/resourceclaims") <= 2
        node.delete_claim(claim.name)
        await node.node.offers({RESOURCE: 2})
