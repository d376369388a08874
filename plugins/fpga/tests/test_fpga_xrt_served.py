"""Cards of XRT's and chips with zocl through a whole host: what a pod sees."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import fpga_kernel
import fpga_xrt
import pytest
from devhost_fpga.backend import Fpga
from devhost_testing.node import Node

XDMA, QDMA = "amd.com/xilinx_u280_gen3x16_xdma_base_1-0", "amd.com/xilinx_u280_gen3x16_qdma_base_1-0"
USER = "/sys/devices/pci0000:af/0000:af:00.1"

BY_NAME = """\
resources:
- {name: "amd.com/{xilinxName}", backend: fpga, where: {vendor: xilinx, kind: card}}
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Fpga) as made:
        yield made


async def test_pods_of_xilinx_plugin_find_their_resources_and_get_no_management_node(node: Node) -> None:
    fpga_xrt.alveo_u280(node.root)
    node.configure(BY_NAME)
    async with node.served({XDMA: 1, QDMA: 1}, only=True):
        started = await node.container({QDMA: 1})
        assert [device.host_path for device in started.devices] == [
            "/dev/dri/renderD129",
            "/dev/xfpga/dma.qdma.u.55297.0",
        ]


async def test_a_resource_for_management_gives_both_nodes_and_cannot_be_shared(node: Node) -> None:
    fpga_xrt.alveo_u250(node.root)
    node.configure(
        "resources:\n- {name: example.com/card, backend: fpga, where: {kind: card}, management: true}\n"
    )
    async with node.served({"example.com/card": 1}):
        started = await node.container({"example.com/card": 1})
        assert [device.host_path for device in started.devices] == [
            "/dev/dri/renderD128",
            "/dev/xclmgmt15104",
        ]


async def test_a_reset_in_a_pod_takes_one_card_for_a_while_and_leaves_its_resource(node: Node) -> None:
    """With Xilinx's plugin every card of the node was gone until its pod was deleted."""
    tree = fpga_xrt.alveo_u280(node.root)
    node.configure(BY_NAME)
    async with node.served({XDMA: 1, QDMA: 1}, only=True):
        await node.container({XDMA: 1})
        render, kept = node.root / "dev/dri/renderD128", node.root / "kept"
        kept.hardlink_to(render)
        tree.reset_begins(USER)
        node.look("fpga")
        await node.offers({XDMA: 0, QDMA: 1}, only=True)
        tree.user(USER, "xilinx_u280_gen3x16_xdma_base_1", serial="21770205K01Y")
        kept.replace(render)  # a reset changes no device number, which a tree has by the file
        node.look("fpga")
        await node.offers({XDMA: 1, QDMA: 1}, only=True)


@pytest.mark.parametrize(
    "text",
    [
        BY_NAME,
        "backends: {fpga: {u30Unit: fpga}}\nresources:\n"
        "- {name: amd.com/ama_u30, backend: fpga, where: {serial: XFL1YV0M20E0}, share: {of: all}}\n",
    ],
    ids=["default", "by an entry"],
)
async def test_a_pod_of_xilinx_plugin_gets_both_fpgas_of_a_u30(node: Node, text: str) -> None:
    """`amd.com/ama_u30: 1` is a whole card there (`U30AllocUnit=Card`)."""
    fpga_xrt.alveo_u30(node.root)
    node.configure(text)
    async with node.served({"amd.com/ama_u30": 1}):
        started = await node.container({"amd.com/ama_u30": 1})
        assert [device.host_path for device in started.devices] == [
            "/dev/dri/renderD128",
            "/dev/dri/renderD129",
        ]


async def test_a_u30_with_one_fpga_held_from_before_goes_to_no_other_pod(node: Node) -> None:
    """Earlier versions offered each FPGA, under its PCI address."""
    fpga_xrt.alveo_u30(node.root)
    node.configure("backends: {fpga: {u30Unit: fpga}}\n" + BY_NAME)
    async with node.served({"amd.com/ama_u30": 2}):
        await node.kubelet.admit("old", "main", "amd.com/ama_u30", 1)
    node.configure(BY_NAME)
    async with node.served():
        await node.kubelet.wait_for(
            lambda: any(device.id.startswith("u30-") for device in node.kubelet.devices("amd.com/ama_u30"))
        )
        await node.until(lambda: not node.kubelet.healthy("amd.com/ama_u30"))
        node.kubelet.release("old")
        await node.offers({"amd.com/ama_u30": 1})


async def test_a_region_and_an_inner_region_are_never_both_allocated(node: Node) -> None:
    fpga_kernel.nested(node.root)
    node.configure("resources:\n- {name: example.com/part, backend: fpga, where: {kind: region}}\n")
    async with node.served():
        await node.until(lambda: len(node.devices("fpga")) == 3)
        await node.until(lambda: node.kubelet.allocatable().get("example.com/part"))
        started = await node.container({"example.com/part": node.kubelet.allocatable()["example.com/part"]})
        given = {device.host_path for device in started.devices}
        assert given in ({"/dev/uio0"}, {"/dev/uio1", "/dev/uio2"})
