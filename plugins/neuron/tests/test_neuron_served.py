"""What containers get of Neuron devices and cores, and when these are unhealthy."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from devhost_neuron.backend import Neuron
from devhost_testing.fixtures import BackendFixture, by_id, request
from devhost_testing.node import Node
from neuron_tree import ERRORS, INF2_RING, TRN1_TORUS, NeuronTree, inferentia, trainium
from program import devhost

from devhost.backend import Cause, Event

PROFILE = Path(__file__).parents[3] / "config/examples/accelerators/aws-neuron.yaml"
DEVICE, FORMER, CORE = (f"aws.amazon.com/{name}" for name in ("neuron", "neurondevice", "neuroncore"))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that offers whole devices, as the ready configuration does."""
    async with Node(tmp_path) as made:
        made.configure(PROFILE.read_text(encoding="utf-8").replace("version: 1\n", ""))
        yield made


def cores(node: Node, options: str = "{}") -> None:
    """Makes the node offer cores instead."""
    entry = f"{{name: {CORE}, backend: neuron, where: {{kind: core}}}}"
    node.configure(f"backends: {{neuron: {options}}}\nresources: [{entry}]")


def given(answer: Any) -> list[int]:
    """The numbers of the devices that a container got."""
    assert all((one.container_path, one.permissions) == (one.host_path, "rw") for one in answer.devices)
    assert not (answer.mounts or answer.annotations or answer.cdi_devices)
    return sorted(int(one.host_path.removeprefix("/dev/neuron")) for one in answer.devices)


def newly_made(node: Path) -> None:
    """Makes a node newer than it is, so that it stays new for as long as the test takes."""
    os.utime(node, (0, time.time() + 3600))


async def test_a_container_gets_whole_devices_under_either_name(node: Node) -> None:
    inferentia(node.root)
    async with node.served({DEVICE: 12, FORMER: 12}, only=True):
        for name in (DEVICE, FORMER):
            answer = await node.container({name: 3})
            assert len(given(answer)) == 3
            assert not answer.envs


async def test_cores_of_one_container_are_of_one_device_if_possible(node: Node) -> None:
    tree = NeuronTree(node.root)
    for number in range(3):
        tree.neuron(number)
    cores(node)
    async with node.served({CORE: 6}, only=True):
        first = await node.container({CORE: 1}, keep=True)
        both = await node.container({CORE: 2}, keep=True)
        last = await node.container({CORE: 1}, keep=True)
        assert given(first) == given(last) != given(both)
        assert both.envs["NEURON_RT_VISIBLE_CORES"] == "0,1"
        assert {one.envs["NEURON_RT_VISIBLE_CORES"] for one in (first, last)} == {"0", "1"}


@pytest.mark.parametrize(
    ("names", "nodes", "visible"),
    [
        (["neuron2-core0"], [2], "0"),
        (["neuron2-core1", "neuron1-core1"], [1, 2], "1,3"),
        (["neuron0-core1", "neuron2-core0", "neuron2-core1"], [0, 2], "1,2,3"),
    ],
)
def test_cores_have_the_numbers_that_they_have_in_the_container(
    tmp_path: Path, names: list[str], nodes: list[int], visible: str
) -> None:
    tree = NeuronTree(tmp_path)
    for number in range(3):
        tree.neuron(number)
    with BackendFixture(Neuron) as looking:
        backend = looking(tmp_path)
        found = by_id(backend)
        edits = backend.allocate(request(backend, [found[name] for name in names]))
    assert [node.path for node in edits.nodes] == [f"/dev/neuron{number}" for number in nodes]
    assert edits.env == {"NEURON_RT_VISIBLE_CORES": visible}


async def test_two_physical_cores_are_one_if_the_options_join_them(node: Node) -> None:
    NeuronTree(node.root).neuron(5, cores=8, model="Trainium2", family="Trn2")
    cores(node, "{coreSize: 2}")
    async with node.served({CORE: 4}, only=True):
        answer = await node.container({CORE: 4})
        assert given(answer) == [5]
        assert dict(answer.envs) == {"NEURON_RT_VISIBLE_CORES": "0,1,2,3"}


@pytest.mark.parametrize(("count", "links"), [(2, 1), (4, 4), (8, 12)])
async def test_a_container_gets_devices_of_a_torus_that_are_connected(
    node: Node, count: int, links: int
) -> None:
    trainium(node.root)
    async with node.served({DEVICE: 16}):
        await node.container({DEVICE: 1}, keep=True)
        found = given(await node.container({DEVICE: count}))
        assert sum(b in TRN1_TORUS[a] for a, b in combinations(found, 2)) == links
        assert found == list(range(found[0], found[0] + count))


async def test_two_devices_of_a_ring_are_neighbours(node: Node) -> None:
    inferentia(node.root)
    async with node.served({DEVICE: 12}):
        for _ in range(6):
            one, other = given(await node.container({DEVICE: 2}, keep=True))
            assert other in INF2_RING[one]


@pytest.mark.parametrize("error", ERRORS)
async def test_uncorrected_errors_make_a_device_unhealthy(node: Node, error: str) -> None:
    tree = inferentia(node.root)
    async with node.served({DEVICE: 12}):
        tree.error(3, error)
        node.look()
        await node.offers({DEVICE: 11, FORMER: 11})
        tree.error(3, error, 0)
        node.look()
        await node.offers({DEVICE: 12})


async def test_a_device_whose_reset_failed_is_unhealthy_with_its_cores(node: Node) -> None:
    tree = NeuronTree(node.root)
    tree.neuron(0)
    path = tree.neuron(1)
    cores(node)
    async with node.served({CORE: 4}):
        tree.file(f"{path}/reset", "2")
        node.look()
        await node.offers({CORE: 2})
        tree.file(f"{path}/reset", "0")  # it is being reset: opening it waits
        node.look()
        await node.offers({CORE: 4})


async def test_a_device_without_its_node_is_unhealthy(node: Node) -> None:
    inferentia(node.root)
    place, aside = node.root / "dev/neuron7", node.root / "aside"
    async with node.served({DEVICE: 12}):
        place.rename(aside)
        node.look()
        await node.offers({DEVICE: 11})
        aside.rename(place)
        node.look()
        await node.offers({DEVICE: 12})


async def test_a_device_is_offered_once_the_driver_has_made_all_of_it(tmp_path: Path) -> None:
    """No uevent follows, and before, reading its files crashes the kernel."""
    tree = NeuronTree(tmp_path)
    tree.neuron(0)
    path = tree.neuron(1, cores=1)
    shutil.rmtree(tmp_path / f"{path}/stats/power".lstrip("/"))
    newly_made(tmp_path / "dev/neuron1")
    with BackendFixture(Neuron) as looking:
        backend = looking(tmp_path)
        assert by_id(backend).keys() == {"neuron0", "neuron0-core0", "neuron0-core1"}
        async with asyncio.timeout(60):
            assert await anext(backend.watch()) == Event()
        tree.neuron(1)
        assert len(by_id(backend)) == 6


def test_a_device_of_an_earlier_driver_is_offered_by_its_age(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path)
    shutil.rmtree(tmp_path / f"{tree.neuron(0)}/stats/power".lstrip("/"))
    newly_made(tmp_path / "dev/neuron0")
    with BackendFixture(Neuron) as looking:
        backend = looking(tmp_path)
        assert not backend.discover()
        os.utime(tmp_path / "dev/neuron0", (0, 0))
        assert by_id(backend).keys() == {"neuron0", "neuron0-core0", "neuron0-core1"}


def test_errors_are_named_for_the_device_and_its_cores(tmp_path: Path) -> None:
    inferentia(tmp_path).error(3, count=2)
    with BackendFixture(Neuron) as looking:
        backend = looking(tmp_path)
        found = backend.probe(backend.discover())
    reasons = {name: health.reason for name, health in found.items() if not health}
    names = ("neuron3", "neuron3-core0", "neuron3-core1")
    assert reasons == dict.fromkeys(names, "mem_ecc_uncorrected is 2")
    assert found["neuron3"].causes == {Cause.ECC}


def test_a_chip_without_its_driver_is_named(tmp_path: Path) -> None:
    tree = NeuronTree(tmp_path)
    tree.function("0000:00:1e.0", "1d0f:7164", pci_class="0x120000")
    tree.function("0000:00:1f.0", "1d0f:7164", "neuron-driver", pci_class="0x120000")
    tree.function("0000:00:05.0", "1d0f:ec20")
    with BackendFixture(Neuron) as looking:
        (found,) = looking(tmp_path).missing_drivers()
    assert found.subject == "0000:00:1e.0 (1d0f:7164)"


def test_without_the_hardware_explain_gives_the_reason(tmp_path: Path) -> None:
    NeuronTree(tmp_path)
    done = devhost("explain", DEVICE, "--config", PROFILE, "--root", tmp_path)
    assert done.stdout.startswith(f"{DEVICE} (resources[0]): 0 devices; ")
