"""The node for tests of backends: it serves the configuration and returns the results."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.node import Node

from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, unhealthy
from devhost.backend.errors import ConfigError

CARD = "example.com/card"
ENTRY = f"resources: [{{name: {CARD}, backend: card}}]"


class Card(Backend):
    name = "card"

    def discover(self) -> list[Device]:
        names = sorted(path.name for path in (self.context.root / "dev").glob("card*"))
        return [Device(name) for name in names] or [Device("none", health=unhealthy("there is no card"))]

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(tuple(DeviceNode(f"/dev/{device.id}") for device in request.devices))

    def device_info(self, device: Device, request: AllocateRequest) -> dict[str, object]:
        return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": device.id}}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Card) as made:
        (made.root / "dev").mkdir(parents=True)
        (made.root / "dev/card0").touch()
        made.configure(ENTRY)
        yield made


async def test_a_container_gets_the_edits_and_the_device_info_of_the_backend(node: Node) -> None:
    async with node.served({CARD: 1}, only=True):
        started = await node.container({CARD: 1}, keep=True)
        assert [one.host_path for one in started.devices] == ["/dev/card0"]
        (told,) = node.device_infos().values()
        assert told["pci"] == {"pci-address": "card0"}


async def test_a_node_works_in_a_directory_with_a_long_path_and_leaves_no_socket(tmp_path: Path) -> None:
    async with Node(tmp_path / ("a" * 100), Card) as node:
        (node.root / "dev").mkdir(parents=True)
        (node.root / "dev/card0").touch()
        node.configure(ENTRY)
        async with node.served():
            await node.offers({CARD: 1})
        sockets = node.kubelet.directory.parent
        assert sockets.is_dir()
    assert not sockets.exists()


async def test_a_pod_ends_unless_it_is_kept(node: Node) -> None:
    async with node.served({CARD: 1}):
        for _ in range(2):
            await node.container({CARD: 1})


async def test_a_change_of_the_machine_appears_after_the_next_scan(node: Node) -> None:
    async with node.served({CARD: 1}):
        (node.root / "dev/card0").unlink()
        node.look("card")
        await node.until(lambda: "none" in node.devices("card"))
        assert node.devices("card")["none"].health.reason == "there is no card"
        assert node.devices("other") == {}


async def test_a_file_is_treated_as_a_node_in_a_specification(node: Node) -> None:
    node.configure(f"resources: [{{name: {CARD}, backend: card, inject: cdi}}]")
    async with node.served({CARD: 1}):
        started = await node.container({CARD: 1})
        (edits,) = node.specified([one.name for one in started.cdi_devices])
        assert [one["path"] for one in edits["deviceNodes"]] == ["/dev/card0"]
        with pytest.raises(KeyError):
            node.specified(["example.com/card=none"])


async def test_a_reload_returns_the_errors_in_the_file(node: Node) -> None:
    async with node.served({CARD: 1}):
        node.configure(f"resources: [{{name: {CARD}, backend: crad}}]")
        (complaint,) = await node.reload()
        assert "did you mean card?" in complaint
        node.configure(ENTRY)
        assert not await node.reload()


async def test_a_node_can_be_served_again_after_a_restart(node: Node) -> None:
    for _ in range(2):
        async with node.served():
            await node.offers({CARD: 1})


async def test_an_invalid_file_is_reported_at_once(node: Node) -> None:
    node.configure("resources: 1")
    with pytest.raises(ConfigError, match="must be a list"):
        async with node.served():
            pass


async def test_using_a_node_that_does_not_run_is_an_error(node: Node) -> None:
    with pytest.raises(AssertionError, match="devhost does not run"):
        node.devices("card")
