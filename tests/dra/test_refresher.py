"""The files of prepared claims follow the paths and numbers of their devices, also after a restart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from devhost_testing import runtime
from kit.claims import DRIVER, Cards, Scene, Together, WithCdi, config, result

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimedDevice
from devhost.backend import Device
from devhost.backend.model import ClaimHolder
from devhost.discovery.scanner import Scanner
from devhost.dra.inventory import DraDevice
from devhost.dra.upkeep import Refresher
from devhost.runtime.reconciler import Retry

NULL, ZERO, FULL = ("c", 1, 3), ("c", 1, 5), ("c", 1, 7)


class Node:
    """A scene whose cards have links as their nodes, and what its containers get at each start."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.listed = True
        self.configured = True
        scene.cards.node = str(scene.place / "node")
        self.become("/dev/null")
        self.restart()

    def restart(self) -> None:
        """Another run of devhost."""
        scene = self.scene
        scene.restart()
        scene.scanner.devices = {name: one.device for name, one in scene.resources.offered.items()}
        self.refresher = Refresher(scene.preparer, self, scene.files)

    def scanner(self, one: ClaimedDevice) -> Scanner | None:
        return self.scene.scanner if self.listed else None

    def present(self, one: ClaimedDevice) -> DraDevice | None:
        device = self.scene.scanner.devices.get(one.key[1])
        if device is None or not self.configured:
            return None
        return replace(self.scene.resources.offered[one.key[1]], device=device)

    def become(self, node: str) -> None:
        """The link leads to another node from now on."""
        link = Path(self.scene.cards.node)
        link.unlink(missing_ok=True)
        link.symlink_to(node)

    def finds(self, **claims: str) -> None:
        """The backend finds these cards, each new, with the node that it claims."""
        self.scene.scanner.devices = {
            name: Device(name, claims=frozenset({f"node:{node}"} if node else ()))
            for name, node in claims.items()
        }

    async def refresh(self) -> bool:
        """Whether every file is right."""
        try:
            await self.refresher.refresh()
        except Retry:
            return False
        return True

    def container(self, devices: Sequence[ClaimedDevice]) -> runtime.Container:
        """What a container that starts now gets."""
        kind = f"{DRIVER}/claim="
        names = [name for one in devices for name in one.cdi_ids if name.startswith(kind)]
        return runtime.by_cdi(self.scene.place / "cdi", names)

    def refusal(self, devices: Sequence[ClaimedDevice]) -> str:
        """Why a container does not start."""
        with pytest.raises(runtime.Refused) as error:
            self.container(devices)
        return str(error.value)

    def record(self, ref: ClaimHolder) -> Any:
        return self.scene.files.records[ref.uid]


async def made(place: Path, kind: type[Cards] = Cards) -> Node:
    return Node(await Scene(place, kind).start())


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = await made(tmp_path)
    yield node
    node.scene.close()


again = pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])


async def come_back(node: Node, *, restarted: bool) -> None:
    if restarted:
        node.restart()
        await node.scene.files.read_all()


@again
async def test_a_file_follows_a_node_that_becomes_another_one(node: Node, restarted: bool) -> None:
    ref = node.scene.claim(1, result("gpu", "a"), config=[config({"mode": "fast"})])
    devices = await node.scene.devices(ref)
    before = node.container(devices)
    node.become("/dev/zero")
    await come_back(node, restarted=restarted)
    record = node.record(ref)
    assert await node.refresh()
    after = node.container(devices)
    assert set(after.numbers.values()) == {ZERO}
    assert after.env == before.env and after.env["CARD_A_MODE"] == "fast"
    assert node.record(ref) == record
    assert await node.scene.devices(ref) == devices
    assert node.scene.cards.prepared == [["a"]]  # containers use it


@again
async def test_a_claim_whose_device_is_gone_gives_nothing_until_it_is_back(
    node: Node, restarted: bool
) -> None:
    ref = node.scene.claim(1, result("gpu", "a"), result("gpu", "b"), result("nic", "c"))
    devices = await node.scene.devices(ref)
    before = node.container(devices)
    await come_back(node, restarted=restarted)
    every = node.scene.scanner.devices
    node.finds(b="", c="", d="/dev/null")
    assert await node.refresh()
    assert node.refusal(devices) == (
        'failed to stat CDI host device "/dev/null/devhost: a is gone": not a directory'
    )
    nics = [one for one in devices if one.base == "nic"]
    assert node.container(nics).numbers  # a container with the other request starts
    files = ClaimFiles(node.scene.place / "cdi", boot_id=node.scene.place / "boot_id")
    assert [record.claim.uid for record in await files.read_all()] == [ref.uid]
    files.close()
    node.scene.scanner.devices = every
    assert await node.refresh()
    assert node.container(devices) == before


async def test_a_device_that_came_back_is_given_again_once_the_api_server_answers(node: Node) -> None:
    """It was gone, and the terms of its claim unknown, when devhost started."""
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    before = node.container(devices)
    await come_back(node, restarted=True)
    node.scene.api.down = True
    every = node.scene.scanner.devices
    node.finds(b="/dev/null")
    assert not await node.refresh()
    assert "a is gone" in node.refusal(devices)
    node.scene.scanner.devices = every
    node.scene.api.down = False
    assert await node.refresh()
    assert node.container(devices) == before


async def test_nothing_is_asked_or_written_while_nothing_changes(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    await node.scene.devices(ref)
    written = node.scene.file(ref).stat().st_ino
    gets = len(node.scene.api.gets)
    node.scene.cards.refuse = {"a"}
    assert await node.refresh() and await node.refresh()
    assert node.scene.file(ref).stat().st_ino == written
    assert len(node.scene.api.gets) == gets


async def test_a_released_claim_is_not_written_again(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    await node.scene.devices(ref)
    node.become("/dev/zero")
    await node.scene.unprepare(ref)
    assert await node.refresh()
    assert node.scene.left == []


async def test_without_the_api_server_a_claim_keeps_what_is_certainly_its_own(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    await come_back(node, restarted=True)
    node.scene.api.down = True
    assert not await node.refresh()
    assert set(node.container(devices).numbers.values()) == {NULL}
    node.finds(a="", b="/dev/null")  # another device has its node by now
    assert not await node.refresh()
    assert "cannot connect to the API server" in node.refusal(devices)
    node.scene.api.down = False
    node.become("/dev/full")
    assert await node.refresh()
    assert set(node.container(devices).numbers.values()) == {FULL}


async def test_a_device_that_its_backend_refuses_keeps_only_an_unchanged_node(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    node.scene.cards.refuse = {"a"}
    node.finds(a="")
    assert not await node.refresh()
    assert set(node.container(devices).numbers.values()) == {NULL}
    spec = node.scene.spec(ref)
    node.finds(a="", b="/dev/null")
    assert not await node.refresh()
    assert "devhost: a is being reset" in node.refusal(devices)
    node.scene.cards.refuse = set()
    assert await node.refresh()
    assert node.scene.spec(ref) == spec


async def test_a_claim_of_a_resource_that_left_the_file_keeps_only_an_unchanged_node(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    await come_back(node, restarted=True)
    node.configured = False
    await node.refresh()
    assert set(node.container(devices).numbers.values()) == {NULL}
    node.finds(a="", b="/dev/null")
    await node.refresh()
    assert "is not configured" in node.refusal(devices)


async def test_a_file_stays_until_the_backend_has_listed_its_devices(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    node.listed = False
    node.finds()
    assert await node.refresh()
    assert node.container(devices).numbers


async def test_devices_that_give_more_together_follow_as_a_whole(tmp_path: Path) -> None:
    node = await made(tmp_path, Together)
    ref = node.scene.claim(1, result("gpu", "a"), result("gpu", "b"))
    devices = await node.scene.devices(ref)
    node.become("/dev/zero")
    assert await node.refresh()
    after = node.container(devices)
    assert set(after.numbers.values()) == {ZERO} and after.env["CARDS"] == "a,b"
    node.finds(b="")
    assert await node.refresh()
    assert "a is gone" in node.refusal(devices)
    node.scene.close()


async def test_a_name_of_another_program_that_the_kubelet_does_not_know_withholds_the_device(
    tmp_path: Path,
) -> None:
    node = await made(tmp_path, WithCdi)
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    node.become("/dev/zero")
    assert await node.refresh() and node.container(devices).numbers
    allocate = Cards.allocate
    cards = node.scene.cards

    def renamed(request: Any) -> Any:
        return replace(allocate(cards, request), cdi_devices=("example.com/extra=other",))

    cards.allocate = renamed  # type: ignore[method-assign]
    node.become("/dev/full")
    await node.refresh()
    assert "it needs example.com/extra=other now: delete the pod" in node.refusal(devices)
    node.scene.close()


async def test_a_file_of_an_earlier_version_gets_numbers_without_being_prepared_again(node: Node) -> None:
    ref = node.scene.claim(1, result("gpu", "a"))
    devices = await node.scene.devices(ref)
    document = node.scene.spec(ref)
    for device in document["devices"]:
        for one in device["containerEdits"].get("deviceNodes", ()):
            del one["type"], one["major"], one["minor"]
    node.scene.file(ref).write_text(json.dumps(document))
    await come_back(node, restarted=True)
    assert await node.refresh()
    (first, *_) = node.scene.spec(ref)["devices"]
    assert first["containerEdits"]["deviceNodes"][0]["major"] == 1
    assert await node.scene.devices(ref) == devices
