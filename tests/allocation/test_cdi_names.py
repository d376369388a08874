"""The names of CDI devices that a container gets stay in the specification for as long as it needs them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kit.allocator import CARD, Supply, gone, own_nodes
from kit.waiting import until

from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.injector import MAX_SETS
from devhost.backend import Device
from devhost.backend.model import HEALTHY
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of
from devhost.planning.timing import ALLOCATION as NODE

GRACE = NODE.grace


class Scene(Supply):
    """A resource with CDI injection; its devices are files of /dev.

    Args:
        place: the directory of the specification.
        most_sets: sets of devices that it keeps.
        listing: whether a container gets a variable with all its devices, which makes sets of them.
    """

    def __init__(self, place: Path, most_sets: int = MAX_SETS, *, listing: bool = False) -> None:
        self.files = SpecFiles(place)
        super().__init__(Path("/"), specs=self.files, most_sets=most_sets)
        if listing:
            self.answer = lambda devices: replace(
                own_nodes(devices), env={"CARDS": ",".join(device.id for device in devices)}
            )
        self.offers: list[Offer] = []

    def offer(self, *names: str) -> None:
        self.offers = [Offer(Device(name)) for name in names]
        self.injection.want(self.offers, lambda device: HEALTHY)
        self.publish()

    def publish(self) -> None:
        offers, verdict = self.injection.listable(self.offers, lambda device: HEALTHY)
        self.inventory.update(units(Of.EACH, offers), verdict, gone)

    def named(self) -> set[str]:
        """The names that the specification has now."""
        path = self.files.path(CARD)
        return {one["name"] for one in json.loads(path.read_text())["devices"]} if path.exists() else set()


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


async def test_a_device_that_leaves_the_list_during_allocate_keeps_its_name(scene) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.healthy() == {"null", "zero"})
    device = Device("null")
    with scene.inventory.reserved({"null": [device]}):
        granted = await scene.backend.call(5.0, scene.backend.ask, [device], scene.backend.terms)
        rendered = scene.injection.render([device], granted, scene.backend.terms)
        scene.offer("zero")
        scene.now += GRACE
        scene.publish()
        assert scene.inventory.snapshot.entries.keys() == {"zero"}
        answer = await scene.injection.inject(rendered, ["null"])
        assert answer.edits.cdi_devices == (f"{scene.injection.kind}=null",)
        assert scene.named() == {"null", "zero"}


async def test_a_name_goes_once_no_container_has_its_device(scene) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.healthy() == {"null", "zero"})
    await scene.allocate("null")
    scene.hear(card="null")
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


async def test_devices_that_are_known_one_by_one_are_asked_for_together_only(scene) -> None:
    scene.offer("null", "zero")
    await until(lambda: scene.healthy() == {"null", "zero"})
    scene.asked.clear()
    answer = await scene.allocate("null", "zero")
    assert scene.asked == [["null", "zero"]]
    assert len(answer.edits.cdi_devices) == 2


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_set_that_a_container_has_stays_however_many_others_are_made(tmp_path, restarted) -> None:
    devices = ["null", "zero", "full", "random", "tty"]
    async with running(Scene(tmp_path, 1, listing=True)) as scene:
        scene.offer(*devices)
        await until(lambda: scene.healthy() == set(devices))
        answer = await scene.allocate("null", "zero")
        (name,) = (device.rpartition("=")[2] for device in answer.edits.cdi_devices)
        assert name not in devices
        if not restarted:
            await make_sets(scene)
            assert name in scene.named()
    if restarted:
        async with running(Scene(tmp_path, 1, listing=True)) as scene:
            scene.hear(card="null zero")
            scene.offer(*devices)
            await until(lambda: scene.healthy() == set(devices))
            await make_sets(scene)
            assert name in scene.named()


async def make_sets(scene: Scene) -> None:
    """Gives other containers other sets of devices, more than the specification keeps."""
    before = scene.named()
    for pair in (["full", "random"], ["random", "tty"], ["full", "tty"]):
        await scene.allocate(*pair)
        assert scene.named() - before
