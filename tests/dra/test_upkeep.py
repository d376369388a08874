"""The files of claims follow the pods of the kubelet, also after someone emptied their directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import DraState
from kit.claims import DRIVER, KIND, POOL, Scene, config, result, uid
from kit.waiting import until

from devhost.allocation.claims import ClaimedDevice
from devhost.allocation.leases import ClaimUse, ClaimUseDevice, Listing
from devhost.backend.model import ClaimHolder, unhealthy
from devhost.dra.kube import ApiError
from devhost.dra.prepare import READS
from devhost.dra.upkeep import GRACE, MAX_BYTES, KubeletClaims, Upkeep
from devhost.planning.claims import claims_of, held_by_claims


class Node:
    """A scene, and the lists of its kubelet."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.now = 1000.0
        self.claims: dict[tuple[str, str], ClaimUse] = {}
        self.start_again()

    def start_again(self) -> None:
        """Another run of devhost, which has not read the files yet."""
        scene = self.scene
        scene.restart(clock=lambda: self.now)
        kubelet = KubeletClaims(scene.place / "kubelet" / "plugins")
        self.upkeep = Upkeep(
            scene.preparer, scene.files, scene.ledger, scene.resources, kubelet, questions=0.2
        )

    def runs(self, ref: ClaimHolder, *names: str, driver: str = DRIVER, device: str = "") -> None:
        """A pod uses a claim with these CDI names, of a device."""
        self._uses(ref, ClaimUseDevice(driver, POOL, device, cdi_names=names))

    def _uses(self, ref: ClaimHolder, *devices: ClaimUseDevice) -> None:
        self.claims[ref.namespace, ref.name] = ClaimUse((), devices)

    async def used(self, *results: Mapping[str, Any]) -> ClaimHolder:
        """A prepared claim with these results, which a pod uses."""
        ref = self.scene.claim(1, *results)
        await self.prepared(ref)
        return ref

    async def prepared(self, ref: ClaimHolder) -> tuple[ClaimedDevice, ...]:
        """Prepares a claim, which a pod then uses."""
        devices = tuple(await self.scene.devices(ref))
        used = (ClaimUseDevice(DRIVER, one.pool, one.device, cdi_names=one.cdi_ids) for one in devices)
        self._uses(ref, *used)
        return devices

    async def lists(self, after: float = 15.0, pods: int = 1) -> None:
        """Time passes, and the kubelet lists its pods."""
        self.now += after
        await self.upkeep.follow(self.listing(self.now, pods))

    def listing(self, began: float, pods: int = 1) -> Listing:
        """A list of the pods as they are now."""
        return Listing((1,), began, pods, {}, claims=dict(self.claims))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    scene = await Scene(tmp_path).start()
    yield Node(scene)
    scene.close()


@pytest.mark.conformance(93)
async def test_a_directory_that_was_emptied_is_restored_at_the_next_list(node: Node) -> None:
    ref = await node.used(result("gpu", "a"))
    text = node.scene.file(ref).read_text()
    node.scene.file(ref).unlink()
    node.scene.api.down = True
    await node.lists()
    assert node.scene.file(ref).read_text() == text


async def test_a_claim_whose_file_cannot_be_restored_is_named_until_it_is(node: Node, caplog: Any) -> None:
    ref = await node.used(result("gpu", "a"))
    file = node.scene.file(ref)
    for _ in range(2):
        file.unlink()
        (file / "in the way").mkdir(parents=True)
        await node.lists()
        await node.lists()
        ((claim, reason),) = node.upkeep.failures
        assert claim == str(ref) and reason.startswith(f"its CDI file may be missing: cannot write {file}: ")
        (file / "in the way").rmdir()
        file.rmdir()
        await node.lists()
        assert node.upkeep.failures == () and file.is_file()
    assert caplog.messages.count("the CDI file of a claim may be missing") == 2


async def test_a_claim_that_cannot_be_asked_for_is_named_until_it_is(node: Node, caplog: Any) -> None:
    ref = await node.used(result("gpu", "a"))
    node.claims.clear()
    node.scene.api.error = ApiError(403, "Forbidden")
    await node.lists()
    for _ in range(2):
        await node.lists(GRACE)
    ((claim, reason),) = node.upkeep.failures
    assert claim == str(ref) and reason.startswith("it may be gone, but stays prepared: ")
    node.scene.api.error = None
    await node.lists(GRACE)
    assert node.upkeep.failures == () and node.scene.left
    assert caplog.messages.count("a claim that may be gone stays prepared") == 1


async def test_a_claim_that_was_released_is_not_restored(node: Node) -> None:
    ref = await node.used(result("gpu", "a"))
    await node.scene.unprepare(ref)
    await node.lists()
    assert node.scene.left == []


@pytest.mark.conformance(93)
async def test_a_directory_emptied_while_devhost_was_down_is_rebuilt_from_two_lists(node: Node) -> None:
    scene = node.scene
    ref = scene.claim(1, result("gpu", "a"), result("gpu", "b"), config=[config({"mode": "fast"})])
    devices = await node.prepared(ref)
    spec = scene.spec(ref)
    scene.file(ref).unlink()
    node.start_again()
    scene.offer("a", unhealthy("it is hot"))
    await node.lists()
    assert scene.left == []
    await node.lists()
    assert scene.spec(ref) == spec and scene.held == ["a", "b"]
    assert scene.cards.prepared == [["a", "b"]]  # only once: containers use them
    assert await scene.devices(ref) == devices


async def test_rebuilding_waits_for_the_api_server(node: Node) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    scene.file(ref).unlink()
    node.start_again()
    scene.api.down = True
    await node.lists()
    await node.lists()
    assert scene.left == []
    scene.api.down = False
    await node.lists()
    assert scene.held == ["a"]


async def test_a_claim_released_after_a_list_began_is_not_rebuilt_from_it(node: Node) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    scene.file(ref).unlink()
    node.start_again()
    await node.lists()
    began = node.now + 15
    node.now = began + 1
    assert await scene.unprepare(ref) == [""]
    await node.upkeep.follow(node.listing(began))
    assert scene.left == [] and scene.held == []


async def test_a_released_claim_that_the_kubelet_still_lists_holds_nothing_until_it_is_prepared(
    node: Node,
) -> None:
    """The kubelet forgets a claim after the answer to Unprepare."""
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    assert await scene.unprepare(ref) == [""]
    for _ in range(3):
        await node.lists()
        assert scene.left == [] and scene.held == []
    await node.prepared(ref)
    scene.file(ref).unlink()
    await scene.files.read_again()
    await node.lists()
    await node.lists()
    assert scene.left == [scene.file(ref).name] and scene.held == ["a"]


async def test_a_release_during_rebuilding_leaves_nothing(node: Node) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    scene.file(ref).unlink()
    node.start_again()
    await node.lists()
    scene.api.gate.clear()
    scene.api.gets.clear()
    rebuilding = asyncio.create_task(node.lists())
    await until(lambda: scene.api.gets)
    assert await scene.unprepare(ref) == [""]
    scene.api.gate.set()
    await rebuilding
    assert scene.left == [] and scene.held == []


async def test_claims_of_other_drivers_and_odd_names_are_ignored(node: Node) -> None:
    scene = node.scene
    ref = scene.claim(1, result("gpu", "a"))
    node.runs(ref, f"other.example.com/claim={uid(1)}-gpu-0", driver="other.example.com")
    odd = ClaimHolder("team", "odd", uid(1))
    node.runs(odd, "", f"{KIND}=", f"{KIND}=../..-0", f"x={uid(1)}-a-0")
    for _ in range(3):
        await node.lists()
    assert scene.left == [] and scene.api.gets == []


@pytest.mark.conformance(94)
async def test_a_record_without_pod_and_claim_is_removed_after_the_grace(node: Node) -> None:
    scene, _ref = node.scene, await node.used(result("gpu", "a"))
    await node.lists()
    node.claims.clear()
    scene.api.claims.clear()
    await node.lists()
    await node.lists(GRACE - 1)
    assert scene.held == ["a"]
    await node.lists(1)
    assert scene.left == [] and scene.held == []


async def test_the_record_of_a_claim_whose_name_another_one_has_now_is_removed(node: Node) -> None:
    scene = node.scene
    await node.prepared(scene.claim(1, result("gpu", "a"), name="same"))
    node.claims.clear()
    await node.prepared(scene.claim(2, result("gpu", "b"), name="same"))
    await node.lists()
    await node.lists(GRACE)
    assert scene.left == [f"devhost-dra_{uid(2)}.json"] and scene.held == ["b"]


@pytest.mark.parametrize("keeps", ["claim", "pod", "unreachable", "forbidden", "no claim", "no pods", "back"])
async def test_a_record_stays_while_anything_may_need_it(node: Node, keeps: str) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    running = dict(node.claims)
    if keeps != "claim":
        scene.api.claims.clear()
    if keeps != "pod":
        node.claims.clear()
    if keeps == "no claim":  # a proxy answers something else
        scene.api.claims[ref.namespace, ref.name] = {}
    scene.api.down = keeps == "unreachable"
    scene.api.error = ApiError(403, "Forbidden") if keeps == "forbidden" else None
    for number in range(4):
        node.claims = dict(running) if keeps == "pod" or (keeps == "back" and number % 2) else {}
        await node.lists(GRACE, pods=0 if keeps == "no pods" else 1)
    assert scene.left == [f"devhost-dra_{ref.uid}.json"] and scene.held == ["a"]


async def test_the_api_server_is_asked_once_in_a_grace_about_a_claim_that_exists(node: Node) -> None:
    scene = node.scene
    await node.prepared(scene.claim(1, result("gpu", "a")))
    node.claims.clear()
    scene.api.gets.clear()
    for _ in range(80):
        await node.lists(GRACE / 8)
    assert len(scene.api.gets) == 9


async def test_a_record_stays_while_the_kubelet_has_the_claim(node: Node, caplog: Any) -> None:
    """A pod that was force-deleted is in no list, and its claim is gone, while its containers still end."""
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    kubelet = DraState(scene.place / "kubelet")
    kubelet.write(ref.uid)
    node.claims.clear()
    scene.api.claims.clear()
    for _ in range(3):
        await node.lists(GRACE)
    assert scene.held == ["a"]
    assert [str(claim) for claim in node.upkeep.kept.values()] == ["ResourceClaim team/claim-1"]
    assert caplog.messages.count("a claim that is gone stays prepared") == 1
    kubelet.write()
    await node.lists()
    assert scene.held == [] and scene.left == [] and node.upkeep.kept == {}


@pytest.mark.parametrize("damage", ["missing", "cut", "checksum", "large", "directory", "list"])
async def test_a_record_of_the_kubelet_that_cannot_be_used_keeps_nothing(node: Node, damage: str) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    path = DraState(scene.place / "kubelet").write(ref.uid)
    text = path.read_text()
    path.unlink()
    match damage:
        case "cut":
            path.write_text(text[:-9])
        case "checksum":
            path.write_text(text.replace("ClaimUID", "ClaimUid"))
        case "large":
            path.write_text(text + " " * MAX_BYTES)
        case "directory":
            path.mkdir()
        case "list":
            path.write_text("[1, 2]")
    node.claims.clear()
    scene.api.claims.clear()
    await node.lists()
    await node.lists(GRACE)
    assert scene.held == []


async def test_a_claim_without_record_holds_its_device_as_soon_as_one_list_names_it(node: Node) -> None:
    scene, ref = node.scene, await node.used(result("gpu", "a"))
    scene.file(ref).write_text("damaged")
    node.start_again()
    scene.api.down = True
    await node.lists()
    scene.api.down = False
    assert claims_of(held_by_claims(scene.node.allocations.held())["cards", "a"]) == [ref]
    assert "a claim holds it" in await scene.error(scene.claim(2, result("gpu", "a")))
    assert await scene.unprepare(ref) == [""]
    node.claims.clear()
    await scene.devices(scene.claim(2, result("gpu", "a")))


async def test_a_claim_without_record_that_no_list_names_any_longer_is_released_after_the_grace(
    node: Node,
) -> None:
    scene = node.scene
    node.runs(scene.claim(1), f"{KIND}={uid(1)}-gpu-0", device="a")
    await node.lists()
    node.claims.clear()
    await node.lists()
    await node.lists(GRACE - 1)
    assert scene.held == ["a"]
    await node.lists(1)
    assert scene.held == []


async def test_one_pass_asks_about_many_records_at_once_and_ends_in_time(node: Node) -> None:
    scene = node.scene
    for number in range(1, 31):
        await node.prepared(scene.claim(number, result("gpu", "a", adminAccess=True)))
    node.claims.clear()
    await node.lists()
    scene.api.gate.clear()
    scene.api.gets.clear()
    async with asyncio.timeout(60):
        await node.lists(GRACE)
    assert len(scene.api.gets) == READS
