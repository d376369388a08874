"""An answer that lasts is given to the next container without another call, until something differs."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kit.allocator import NotingScanner, Supply

from devhost.allocation.allocator import MOST_DEVICES, MOST_KEPT
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.resource_backend import MissingPath
from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, Mount, NoOptions
from devhost.discovery.runner import BackendRunner
from devhost.planning.give import Give, GiveVariable, When
from devhost.planning.settings import Of

NAMES = tuple(f"d{n}" for n in range(MOST_KEPT + 1))


@dataclass(frozen=True)
class Options:
    mode: str = ""


class Node(Supply):
    """A node with many cards, and the allocator of their resource. Files stand for the nodes."""

    def __init__(self, root: Path, kind: type[Backend] = Backend, cdi: Path | None = None) -> None:
        self.files = SpecFiles(cdi or root / "cdi", "")
        super().__init__(root, kind, options=Options(), specs=self.files if cdi else None)
        self.make(NAMES)
        for number, name in enumerate(NAMES):
            self.number(name, number)
        self.edits = Edits(lasting=True)
        self.answer = self.answered
        self.list({name: Device(name) for name in NAMES})

    def answered(self, devices: Sequence[Device]) -> Edits:
        nodes = tuple(DeviceNode(f"/dev/{device.id}", shared=True) for device in devices)
        return replace(self.edits, nodes=nodes + self.edits.nodes)

    def number(self, name: str, number: int) -> None:
        (self.root / "dev" / name).write_text(f"c240:{number}\n")

    def list(self, devices: dict[str, Device], of: Of = Of.EACH) -> None:
        """The backend's last scan and the plan have these devices."""
        self.scanner.devices = devices
        self.show(*devices.values(), of=of)

    async def start(self, *tokens: str) -> list[str]:
        """A container starts and ends; the nodes that it got."""
        granted = await self.allocate(*tokens)
        self.inventory.allocations.release(tokens)
        self.env = granted.edits.env
        return granted.nodes()

    def questions(self) -> list[str]:
        asked, self.asked = self.asked, []
        return [",".join(devices) for devices in asked]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.runner.close()


async def test_the_next_container_gets_a_lasting_answer_without_another_call(node: Node) -> None:
    assert await node.start("d1") == ["/dev/d1"]
    assert await node.start("d1") == ["/dev/d1"]
    assert await node.start("d2") == ["/dev/d2"]
    assert await node.start("d1", "d2") == ["/dev/d1", "/dev/d2"]
    assert node.questions() == ["d1", "d2", "d1,d2"]


async def test_an_answer_that_is_not_declared_as_lasting_does_not_last(node: Node) -> None:
    node.edits = Edits()
    await node.start("d1")
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


async def test_a_node_with_another_number_ends_it(node: Node) -> None:
    await node.start("d1")
    node.number("d1", 77)
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


async def test_a_missing_node_ends_it_and_the_device_is_reported(node: Node) -> None:
    await node.start("d1")
    (node.root / "dev/d1").unlink()
    with pytest.raises(MissingPath, match="/dev/d1 does not exist on the node"):
        await node.start("d1")
    assert node.scanner.denied == {"d1": ["/dev/d1"]}


async def test_a_device_that_was_found_again_ends_it_before_the_plan_has_it(node: Node) -> None:
    await node.start("d1")
    node.scanner.devices = {**node.scanner.devices, "d1": Device("d1")}
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


async def test_a_device_that_the_last_scan_has_not_found_ends_it(node: Node) -> None:
    await node.start("d1")
    node.scanner.devices = {}
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


async def test_other_options_end_it_and_the_same_ones_do_not(node: Node) -> None:
    await node.start("d1")
    node.allocator.follow(node.scanner, replace(node.entry, options=Options()))
    await node.start("d1")
    assert node.questions() == ["d1"]
    node.allocator.follow(node.scanner, replace(node.entry, options=Options("fast")))
    await node.start("d1")
    assert node.questions() == ["d1"]


async def test_what_the_entry_gives_lasts_while_the_number_of_devices_is_the_same(
    node: Node,
) -> None:
    entry = replace(node.entry, give=Give(env={"ID": "{id}", "SOME": GiveVariable("yes", When.PARTIAL)}))
    node.allocator.follow(node.scanner, entry, 1)
    await node.start("d1")
    await node.start("d1")
    assert node.questions() == ["d1"]
    assert node.env == {"ID": "d1"}
    node.allocator.follow(node.scanner, entry, 2)
    await node.start("d1")
    assert node.questions() == ["d1"]
    assert node.env == {"ID": "d1", "SOME": "yes"}


async def test_another_backend_object_ends_it(node: Node) -> None:
    await node.start("d1")
    node.runner.close()
    node.runner = BackendRunner(node.runner.backend_class, NoOptions(), node.root)
    other = NotingScanner(node.runner)
    other.devices = node.scanner.devices
    node.allocator.follow(other, node.entry)
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(Edits(mounts=(Mount("/lib", "/lib", required=False),)), id="a mount"),
        pytest.param(
            Edits((DeviceNode("/dev/absent", required=False),)), id="an optional node that is not there"
        ),
        pytest.param(Edits((DeviceNode("/dev/d2", required=False),)), id="an optional node"),
        pytest.param(Edits((DeviceNode("/dev/text"),)), id="a path that is no node"),
    ],
)
async def test_an_answer_with_more_than_nodes_that_are_there_does_not_last(node: Node, more: Edits) -> None:
    (node.root / "dev/text").write_text("no number\n")
    (node.root / "lib").mkdir()
    node.edits = replace(more, lasting=True)
    await node.start("d1")
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]


async def test_a_device_that_is_described_for_network_plugins_is_asked_for_each_time(tmp_path: Path) -> None:
    class Port(Backend):
        def device_info(self, device: Device, request: AllocateRequest) -> None:
            """Network plugins are told nothing."""

    node = Node(tmp_path, Port)
    await node.start("d1")
    await node.start("d1")
    assert node.questions() == ["d1", "d1"]
    node.runner.close()


@pytest.mark.root
async def test_a_specification_has_the_mode_that_a_node_has_now(tmp_path: Path) -> None:
    node = Node(tmp_path, cdi=tmp_path / "cdi")
    card = tmp_path / "dev/d1"
    card.unlink()
    os.mknod(card, stat.S_IFCHR, os.makedev(1, 3))
    for mode in (0o600, 0o660):
        card.chmod(mode)
        await node.start("d1")
        document = json.loads(node.files.path("example.com/card").read_text())
        (made,) = document["devices"][0]["containerEdits"]["deviceNodes"]
        assert made["fileMode"] == mode
    node.runner.close()
    node.files.close()


async def test_tokens_for_all_devices_are_asked_for_each_time(node: Node) -> None:
    node.list({name: Device(name) for name in NAMES[:2]}, Of.ALL)
    (token,) = list(node.inventory.snapshot.entries)[:1]
    await node.start(token)
    await node.start(token)
    assert node.questions() == ["d0,d1", "d0,d1"]


async def test_at_most_so_many_devices_are_in_an_answer_that_is_kept(node: Node) -> None:
    for several, asked in ((MOST_DEVICES, 1), (MOST_DEVICES + 1, 2)):
        await node.start(*NAMES[:several])
        await node.start(*NAMES[:several])
        assert len(node.questions()) == asked


async def test_at_most_so_many_answers_are_kept(node: Node) -> None:
    for name in NAMES[:MOST_KEPT]:
        await node.start(name)
    await node.start(NAMES[0])
    assert len(node.questions()) == MOST_KEPT, "all of them were kept"
    await node.start(NAMES[MOST_KEPT])
    await node.start(NAMES[0])
    assert node.questions() == [NAMES[MOST_KEPT], NAMES[0]], "another one replaced them"
