"""The backend for GPUs, with DRM devices that really come and go: on PCI, and made by a module."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from lab import drm
from lab.functions import DEVICES, bind, driver_of, remove, rescan
from lab.kernel import run, settle, unload
from lab.lists import changed, check, quiet, shown
from lab.node import Node
from lab.waiting import until

RENDER, DISPLAY = "example.com/render", "example.com/display"
RENDERERS = {
    "name": RENDER,
    "backend": "gpu",
    "where": {"vendor": "other", "renderNode": "*"},
    "whenEmpty": "register",
}
DISPLAYS = {
    "name": DISPLAY,
    "backend": "gpu",
    "where": {"vendor": "other", "not": {"renderNode": "*"}},
    "whenEmpty": "register",
}
VIRTIO, BOCHS = "0x1af4", "0x1234"
SCREEN = {"driver": "secondary-vga", "name": "vga0", "port": "fpga", "vgamem_mb": 16}
"""The display, as ``machine/hardware.py`` has it."""

CYCLES = 10


@pytest.fixture
async def node(tmp_path):
    """A kubelet that says who holds what, and devhost."""
    async with Node(tmp_path, tells=True) as node:
        yield node


@pytest.fixture
async def gpu():
    """The address of the virtio GPU; it is there again after a test that removed it or took its driver."""
    address = await present()
    yield address
    if not (DEVICES / address).exists():
        rescan()
    elif not driver_of(address):
        bind(address, "")
    await present()


@pytest.fixture
async def display(slots):
    """The address of the display, which QEMU can pull; it is plugged again after the test."""
    yield await until("the display has its driver", lambda: drm.owner(BOCHS))
    if SCREEN["name"] not in slots.names():
        await slots.plug(**SCREEN, keep=True)
    settle()


@pytest.fixture
def load():
    """Loads a module, which is gone after the test."""
    loaded = set()

    def load(name):
        loaded.add(name)
        run("modprobe", name)

    yield load
    for name in loaded:
        unload(name)
    settle()


async def present():
    address = await until("the GPU has its driver", lambda: drm.owner(VIRTIO))
    await until("it has both nodes", lambda: len(drm.of(address)) == 2)
    settle()
    return address


async def test_attributes_are_those_of_the_machine(node, gpu):
    node.write(RENDERERS, DISPLAYS)
    found = await node.look()
    whole = found[gpu].attributes
    assert (whole["vendor"], whole["kind"], whole["driver"]) == ("other", "gpu", "virtio_gpu")
    assert (whole["pciBusID"], whole["vendorID"], whole["deviceID"]) == (gpu, "1af4", "1050")
    nodes = {Path(str(whole[name])).name for name in ("renderNode", "cardNode")}
    assert nodes == drm.of(gpu)
    display = found[drm.owner(BOCHS)].attributes
    assert display["driver"].startswith("bochs")
    assert "renderNode" not in display


async def test_a_gpu_that_goes_and_comes_is_listed_and_nothing_else(node, gpu):
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)
    # it is unhealthy for two seconds, and then is no more
    check(await changed(node, RENDER, set, lambda: remove(gpu)), {gpu}, set())
    check(await changed(node, RENDER, lambda: {gpu}, rescan), set(), {gpu})
    assert node.complaints() == []


async def test_a_display_that_is_pulled_and_plugged_is_listed_and_nothing_else(node, display, slots):
    await node.serve(DISPLAYS)
    await node.shows(DISPLAY, healthy=1)
    since = node.kubelet.events.position
    await slots.pull(SCREEN["name"])
    await node.shows(DISPLAY, healthy=0)
    check(shown(node.lists(DISPLAY, since)), {display}, set())
    since = node.kubelet.events.position
    await slots.plug(**SCREEN, keep=True)
    await node.shows(DISPLAY, healthy=1)
    check(shown(node.lists(DISPLAY, since)), set(), {display})
    assert node.complaints() == []


async def test_a_gpu_whose_driver_is_taken_away_is_back_with_its_driver(node, gpu):
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)
    unbind = Path("/sys/bus/pci/drivers/virtio-pci/unbind")
    check(await changed(node, RENDER, set, lambda: unbind.write_text(gpu)), {gpu}, set())
    check(await changed(node, RENDER, lambda: {gpu}, lambda: bind(gpu, "")), set(), {gpu})
    assert node.complaints() == []


async def test_a_container_gets_the_nodes_of_its_gpu_and_a_driver_answers_behind_them(node, gpu):
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)
    allocation = await node.admit("pod", RENDER)
    assert allocation.device_ids == (gpu,)
    given = {spec.host_path: spec for spec in allocation.response.devices}
    assert {Path(path).name for path in given} == drm.of(gpu)
    for path, spec in given.items():
        assert (spec.container_path, spec.permissions) == (path, "rw")
        assert Path(path).is_char_device()
        number = Path(path).stat().st_rdev
        assert (os.major(number), os.minor(number)) == drm.numbers(Path(path).name)
    (render,) = (path for path in given if "render" in path)
    assert drm.driver(render) == "virtio_gpu"


async def test_a_gpu_that_goes_while_a_pod_has_it_stays_until_the_pod_ends(node, gpu):
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)
    await node.admit("pod", RENDER)
    remove(gpu)
    await node.shows(RENDER, healthy=0, total=1)
    assert (await node.device(RENDER, gpu))["allocated"]
    rescan()
    await node.shows(RENDER, healthy=1)
    assert (await node.device(RENDER, gpu))["allocated"]


async def test_an_event_that_changes_nothing_makes_no_list(node, gpu):
    """A driver that gave a card up makes the same event as one whose display was plugged: it is asked."""
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)
    (card,) = (name for name in drm.of(gpu) if name.startswith("card"))
    uevent = drm.CLASS / card / "uevent"
    await quiet(node, RENDER)
    since = node.kubelet.events.position
    uevent.write_text("change")
    await quiet(node, RENDER)
    assert shown(node.lists(RENDER, since)) == []


async def test_a_device_that_a_module_makes_comes_and_goes_with_it(node, gpu, load):
    await node.serve(RENDERERS, DISPLAYS)
    await node.shows(RENDER, healthy=1)
    both = {gpu, "vgem"}
    check(await changed(node, RENDER, lambda: both, lambda: load("vgem")), {gpu}, both)
    (render,) = (name for name in drm.of("vgem") if name.startswith("render"))
    assert drm.driver(f"/dev/dri/{render}") == "vgem"
    before = node.kubelet.healthy(DISPLAY)
    more = before | {"vkms"}
    check(await changed(node, DISPLAY, lambda: more, lambda: load("vkms")), before, more)
    check(await changed(node, RENDER, lambda: {gpu}, lambda: unload("vgem")), both, {gpu})


async def test_ten_times_leave_nothing_behind(node, gpu, load):
    await node.serve(RENDERERS)
    await node.shows(RENDER, healthy=1)

    async def once(*, seen):
        load("vgem")
        if seen:
            await node.shows(RENDER, healthy=2)
        # nobody holds a node open for long, also not who has just asked a new device whether it answers
        await asyncio.to_thread(unload, "vgem")
        if seen:
            await node.shows(RENDER, healthy=1)

    await once(seen=True)
    files, threads = node.open_files(), node.threads()
    for number in range(CYCLES):
        await once(seen=number % 2 == 0)
    await quiet(node, RENDER)  # the last one may still be seen to come, and go two seconds later
    await node.shows(RENDER, healthy=1)
    assert node.kubelet.healthy(RENDER) == {gpu}
    await until("no more files are open", lambda: len(node.open_files()) <= len(files), seen=node.open_files)
    assert not [path for path in node.open_files() if "/dev/dri" in path]
    assert node.threads() < threads + CYCLES  # each time leaving one behind would be as many more
    (resource,) = (await node.status())["resources"]
    assert (resource["capacity"], resource["registrations"]) == (1, 1)
    assert node.complaints() == []
