"""FPGAs of modelled machines through a whole host: what a pod sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import fpga_cards as cards
import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.node import Node
from fpga_backend import Faults, reading
from fpga_tree import OTHER

AF, REGION, DEVELOPMENT = "example.com/af", "example.com/region", "example.com/devel"
INTEL_AF = "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs"
INTEL_OTHER = "fpga.intel.com/af-695.f7d.aVKNtusxV3qMNmj5-qCB9vffQFy9es9yIvFEsLk6zRg"
PORT0, PORT1 = "0000:3f:00.0-port0", "0000:3f:00.0-port1"


@pytest.fixture
async def node(tmp_path: Path, faults: Faults) -> AsyncIterator[Node]:
    async with Node(tmp_path, reading(faults.sysfs)) as made:
        yield made


def resources(*entries: str) -> str:
    return "\n".join(["resources:", *(f"- {{{entry}}}" for entry in entries)])


BY_NAME = resources('name: "fpga.intel.com/{intelName}", backend: fpga, where: {kind: af}')


async def test_pods_of_intels_plugin_find_their_resources_and_get_their_port(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(BY_NAME)
    async with node.served({INTEL_AF: 1, INTEL_OTHER: 1}):
        started = await node.container({INTEL_OTHER: 1})
        assert [device.host_path for device in started.devices] == ["/dev/dfl-port.1"]
        assert started.devices[0].permissions == "rw"
        (variable,) = [name for name in started.envs if name.startswith("FPGA_NODES_")]
        assert variable.startswith("FPGA_NODES_FPGA_INTEL_COM_AF_695_F7D_")
        assert started.envs[variable] == "/dev/dfl-port.1"


async def test_every_fpga_of_a_machine_is_one_plain_resource(node: Node) -> None:
    cards.mixed(node.root)
    node.configure(resources("name: intel.com/fpga, backend: fpga, where: {vendor: intel, kind: af}"))
    async with node.served():
        await node.offers({"intel.com/fpga": 3})


async def test_a_region_gives_its_ports_and_in_development_its_engine(node: Node) -> None:
    cards.mixed(node.root)
    node.configure(
        resources(
            f"name: {REGION}, backend: fpga, where: {{kind: region, driver: intel-fpga-pci}}",
            f"name: {DEVELOPMENT}, backend: fpga, where: {{kind: region}}, development: true",
        )
    )
    async with node.served({REGION: 1, DEVELOPMENT: 1}):
        started = await node.container({REGION: 1, DEVELOPMENT: 1})
        assert sorted(device.host_path for device in started.devices) == [
            *("/dev/dfl-fme.0", "/dev/dfl-port.0", "/dev/dfl-port.1", "/dev/intel-fpga-port.2")
        ]


async def test_a_region_and_its_port_are_never_both_allocated(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(
        resources(
            f"name: {AF}, backend: fpga, where: {{kind: af}}",
            f"name: {REGION}, backend: fpga, where: {{kind: region}}",
        )
    )
    async with node.served():
        await node.offers({AF: 2})


async def test_a_port_that_was_programmed_moves_to_the_resource_of_its_new_function(node: Node) -> None:
    cards.d5005(node.root)
    node.configure(BY_NAME)
    async with node.served():
        await node.until(lambda: len(node.kubelet.allocatable()) == 1)
        file = next((node.root / "sys/devices").rglob("dfl-port.0/afu_id"))
        file.write_text(f"{OTHER}\n")
        node.look("fpga")
        await node.until(
            lambda: sum(node.kubelet.allocatable().values()) == 1 and len(node.kubelet.allocatable()) == 2
        )
        (name,) = [name for name, number in node.kubelet.allocatable().items() if number]
        assert name.startswith("fpga.intel.com/af-934.f7d.")


async def test_a_port_that_is_being_programmed_stays_offered(node: Node, faults: Faults) -> None:
    cards.two_ports(node.root)
    node.configure(BY_NAME)
    async with node.served({INTEL_AF: 1, INTEL_OTHER: 1}):
        faults.set("dfl-port.0/afu_id")
        node.look("fpga")
        await node.until(lambda: node.devices("fpga")[PORT0].attributes["regionState"] == "busy")
        await node.offers({INTEL_AF: 1, INTEL_OTHER: 1})
        assert node.devices("fpga")[PORT0].health


async def test_an_unhealthy_card_is_not_allocated_until_it_recovers(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(BY_NAME)
    register = None
    async with node.served({INTEL_AF: 1, INTEL_OTHER: 1}):
        register = next((node.root / "sys/devices").rglob("dfl-port.0/errors/errors"))
        register.write_text("0x4\n")
        node.look("fpga")
        await node.offers({INTEL_AF: 0, INTEL_OTHER: 1})
        register.write_text("0x0\n")
        node.look("fpga")
        await node.offers({INTEL_AF: 1, INTEL_OTHER: 1})


async def test_a_pod_whose_node_is_another_devices_is_refused_by_name(node: Node) -> None:
    cards.two_ports(node.root)
    node.configure(BY_NAME)
    async with node.served({INTEL_AF: 1, INTEL_OTHER: 1}):
        (node.root / "dev/dfl-port.0").write_text("c10:229\n")
        with pytest.raises(UnexpectedAdmissionError, match=r"/dev/dfl-port\.0 is c10:229, expected c244:1"):
            await node.kubelet.admit("pod", "main", INTEL_AF, 1)


async def test_sockets_of_the_longest_names_can_be_bound(node: Node) -> None:
    """Intel's own socket for such a name has 106 bytes of the 107 there are."""
    cards.two_ports(node.root)
    node.configure(BY_NAME)
    async with node.served({INTEL_AF: 1, INTEL_OTHER: 1}):
        default = "/var/lib/kubelet/device-plugins"
        sockets = [path.name for path in node.kubelet.directory.glob("dh-*.sock")]
        assert sockets
        assert all(len(f"{default}/{name}") <= 107 for name in sockets)
