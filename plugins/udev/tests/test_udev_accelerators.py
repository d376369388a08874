"""The ready configurations of accelerators: a container gets what the vendor's plugin gives."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from program import devhost

EXAMPLES = Path(__file__).parents[3] / "config/examples/accelerators"
GAUDI = EXAMPLES / "intel-gaudi.yaml"


def explained(file: Path, resource: str, root: Path) -> str:
    """What ``devhost explain`` shows of a resource on a machine without the hardware."""
    return devhost("explain", resource, "--config", file, "--root", root).stdout


def gaudi(machine: Tree, card: int, module: int, *, is_older: bool) -> Path:
    """A card and the file with its status.

    Linux gives the first node the PCI function as its parent, earlier drivers give neither node one
    (habanalabs, ``device_init_cdev``); both give the attributes (Documentation/ABI, sysfs-driver-habanalabs).
    """
    address = f"0000:{0x19 + card:02x}:00.0"
    function = f"pci0000:{address[5:7]}/{address}"
    facts = {"module_id": str(module), "status": "operational", "pci_addr": address}
    path = machine.pci(
        function, driver="habanalabs", vendor="0x1da3", device="0x1020", files={} if is_older else facts
    )
    parent = "virtual" if is_older else function
    step = 2 if is_older else 1
    own = {f"device/{name}": text for name, text in facts.items()} if is_older else {}
    name = f"accel{card}"
    node = machine.device(f"{parent}/accel/{name}", "accel", f"accel/{name}", f"261:{step * card}", own)
    control = f"accel_controlD{card}"
    machine.device(f"virtual/accel/{control}", "accel", f"accel/{control}", f"510:{step * card + 1}")
    return machine.root / (f"{node}/device/status" if is_older else f"{path}/status").lstrip("/")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        made.configure(GAUDI.read_text(encoding="utf-8").replace("version: 1\n", ""))
        yield made


@pytest.mark.parametrize("is_older", [False, True], ids=["Linux", "older driver"])
async def test_a_container_gets_the_nodes_and_variables_of_habanas_plugin(node: Node, is_older: bool) -> None:
    machine = Tree(node.root)
    modules = [2, 0, 1]
    for card, module in enumerate(modules):
        gaudi(machine, card, module, is_older=is_older)
    async with node.served({"habana.ai/gaudi": 3}, only=True):
        for count in (1, 2, 3):
            started = await node.container({"habana.ai/gaudi": count})
            cards = sorted(
                n for n in range(3) if any(f"accel{n}" in one.host_path for one in started.devices)
            )
            assert len(cards) == count
            some = {"HABANA_VISIBLE_MODULES": ",".join(str(modules[n]) for n in cards)} if count < 3 else {}
            assert dict(started.envs) == some | {
                "HABANA_VISIBLE_DEVICES": ",".join(map(str, cards)),
                "HL_VISIBLE_DEVICES": ",".join(f"/dev/accel/accel{n}" for n in cards),
            }
            assert {(one.host_path, one.container_path, one.permissions) for one in started.devices} == {
                (path, path, "rw")
                for n in cards
                for path in (f"/dev/accel/accel{n}", f"/dev/accel/accel_controlD{n}")
            }
            assert not (started.mounts or started.annotations or started.cdi_devices)


async def test_a_gaudi_is_unhealthy_while_its_driver_reports_a_fault(node: Node) -> None:
    machine = Tree(node.root)
    states = [gaudi(machine, card, card, is_older=False) for card in range(2)]
    async with node.served({"habana.ai/gaudi": 2}):
        states[0].write_text("in device reset\n")
        node.look()
        await node.until(lambda: node.kubelet.healthy("habana.ai/gaudi") == {"gaudi-0000:1a:00.0"})
        states[0].write_text("operational\n")
        node.look()
        await node.offers({"habana.ai/gaudi": 2})


def test_without_a_gaudi_explain_gives_the_reason(tmp_path: Path) -> None:
    Tree(tmp_path)
    assert explained(GAUDI, "habana.ai/gaudi", tmp_path).startswith("habana.ai/gaudi (resources[0]): ")
