"""The names of CDI devices that a container gets stay in the specification for as long as it needs them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from allocated import allocated
from allocator_scene import NotingScanner

from devhost.allocation.allocations import Allocations, Listing
from devhost.allocation.allocator import Allocator
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.injector import MAX_SETS, CdiInjection
from devhost.allocation.inventory import Inventory
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, NoOptions
from devhost.backend.model import HEALTHY, Holder
from devhost.discovery.runner import BackendRunner
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of, ResourceSettings
from devhost.planning.timing import ALLOCATION as NODE

APART = NODE.release_gap
GRACE = NODE.grace

CARD = "example.com/card"
POD = Holder("default", "pod", "main")


class Scene:
    """A resource with CDI injection; its devices are files of /dev.

    Args:
        place: the directory of the specification.
        most_sets: sets of devices that it keeps.
        listing: whether a container gets a variable with all its devices, which makes sets of them.
    """

    def __init__(self, place: Path, most_sets: int = MAX_SETS, *, listing: bool = False) -> None:
        scene = self
        self.now = 100.0
        self.asked: list[list[str]] = []

        class Card(Backend):
            name = "card"

            def discover(self) -> list[Device]:
                return []

            def allocate(self, request: AllocateRequest) -> Edits:
                scene.asked.append([device.id for device in request.devices])
                nodes = tuple(DeviceNode(f"/dev/{device.id}") for device in request.devices)
                names = ",".join(device.id for device in request.devices)
                return Edits(nodes, env={"CARDS": names} if listing else {})

        self.runner = BackendRunner(Card, NoOptions(), Path("/"))
        self.allocations = Allocations(lambda: self.now)
        self.inventory = Inventory(
            lambda: self.now, lambda: self.now, allocations=self.allocations.of(CARD), backend="card"
        )
        entry = ResourceSettings(0, CARD, "card")
        self.backend = ResourceBackend(CARD, NotingScanner(self.runner), entry)
        self.files = SpecFiles(place)
        self.injection = CdiInjection(
            self.backend, self.inventory, self.files, self.publish, most_sets=most_sets
        )
        self.allocator = Allocator(self.inventory, self.backend, entry, self.injection)
        self.offers: list[Offer] = []

    def offer(self, *names: str) -> None:
        self.offers = [Offer(Device(name)) for name in names]
        self.injection.want(self.offers, lambda device: HEALTHY)
        self.publish()

    def publish(self) -> None:
        offers, verdict = self.injection.listable(self.offers, lambda device: HEALTHY)
        self.inventory.update(units(Of.EACH, offers), verdict, lambda device: Reason("gone"))

    def hear(self, *tokens: str) -> None:
        self.now += APART
        self.allocations.apply(Listing((1, 2, 3), self.now, 3, {CARD: dict.fromkeys(tokens, POD)}))

    def listed(self) -> set[str]:
        return {name for name, entry in self.inventory.snapshot.entries.items() if entry.health.healthy}

    def named(self) -> set[str]:
        """The names that the specification has now."""
        path = self.files.path(CARD)
        return {one["name"] for one in self.specification(path)["devices"]} if path.exists() else set()

    @staticmethod
    def specification(path: Path) -> Any:
        return json.loads(path.read_text())


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    scene.runner.discover([])
    task = asyncio.create_task(scene.injection.run())
    yield scene
    scene.injection.stop()
    await task
    scene.files.close()
    scene.runner.close()


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running(Scene(tmp_path)) as scene:
        yield scene


async def test_a_device_that_leaves_the_list_during_allocate_keeps_its_name(scene, until) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.listed() == {"null", "zero"})
    device = Device("null")
    with scene.inventory.reserved({"null": [device]}):
        granted = await scene.backend.call(5.0, scene.backend.ask, [device], scene.backend.terms)
        rendered = scene.injection.render([device], granted, scene.backend.terms)
        scene.offer("zero")
        scene.now += GRACE
        scene.publish()
        assert scene.inventory.snapshot.entries.keys() == {"zero"}
        answer = await rendered.inject(["null"])
        assert answer.edits.cdi_devices == (f"{scene.injection.kind}=null",)
        assert scene.named() == {"null", "zero"}


async def test_a_name_goes_once_no_container_has_its_device(scene, until) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.listed() == {"null", "zero"})
    await allocated(scene.allocator, ["null"])
    scene.hear("null")
    scene.offer("zero")
    scene.now += GRACE
    scene.offer("zero")
    await until(lambda: scene.asked)
    assert scene.named() == {"null", "zero"}
    scene.hear()
    scene.hear()  # two lists without it show that the pod has ended
    scene.offer("zero")
    scene.offer("zero")
    await until(lambda: scene.named() == {"zero"})


async def test_devices_that_are_known_one_by_one_are_asked_for_together_only(scene, until) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.listed() == {"null", "zero"})
    scene.asked.clear()
    answer = await allocated(scene.allocator, ["null", "zero"])
    assert scene.asked == [["null", "zero"]]
    assert len(answer.edits.cdi_devices) == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_set_that_a_container_has_stays_however_many_others_are_made(
    tmp_path, until, restarted
) -> None:
    devices = ["null", "zero", "full", "random", "tty"]
    async with running(Scene(tmp_path, 1, listing=True)) as scene:
        scene.offer(*devices)
        await until(lambda: scene.listed() == set(devices))
        answer = await allocated(scene.allocator, ["null", "zero"])
        (name,) = (device.rpartition("=")[2] for device in answer.edits.cdi_devices)
        assert name not in devices
        if not restarted:
            await make_sets(scene)
            assert name in scene.named()
    if restarted:
        async with running(Scene(tmp_path, 1, listing=True)) as scene:
            scene.hear("null", "zero")
            scene.offer(*devices)
            await until(lambda: scene.listed() == set(devices))
            await make_sets(scene)
            assert name in scene.named()


async def make_sets(scene: Scene) -> None:
    """Gives other containers other sets of devices, more than the specification keeps."""
    before = scene.named()
    for pair in (["full", "random"], ["random", "tty"], ["full", "tty"]):
        await allocated(scene.allocator, pair)
        assert scene.named() - before
