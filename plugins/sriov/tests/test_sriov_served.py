"""Functions of a modelled machine through a whole host: what a pod and its network plugin see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sriov_network as network

from devhost.testing.kubelet import UnexpectedAdmissionError
from devhost.testing.serving import Node

NET, DPDK = "intel.com/sriov-net", "intel.com/sriov_dpdk"


RESOURCES = f"""
resources:
- name: {NET}
  backend: sriov
  where: {{driver: iavf}}
- name: {DPDK}
  backend: sriov
  where: {{driver: vfio-pci}}
"""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path) as made:
        network.i40e_with_vfio(made.root)
        made.configure(RESOURCES)
        yield made


def places(node: Node) -> dict[str, dict[str, str]]:
    """What network plugins read of functions, by the name of the file."""
    return {name: document["pci"] for name, document in node.told().items()}


async def test_a_container_with_two_resources_finds_both_and_so_does_its_network_plugin(node: Node) -> None:
    async with node.served():
        # of two functions in one IOMMU group one is offered
        await node.offers({NET: 2, DPDK: 1}, only=True)
        net = await node.kubelet.admit("pod", "main", NET, 1)
        await node.kubelet.admit("pod", "main", DPDK, 1)
        started = await node.kubelet.start_container("pod", "main")
        (vf,) = net.device_ids
        assert started.envs["PCIDEVICE_INTEL_COM_SRIOV_NET"] == vf
        assert started.envs["PCIDEVICE_INTEL_COM_SRIOV-NET"] == vf
        assert started.envs["PCIDEVICE_INTEL_COM_SRIOV_DPDK"] == "0000:5e:02.2"
        info = json.loads(started.envs["PCIDEVICE_INTEL_COM_SRIOV_DPDK_INFO"])
        assert info["0000:5e:02.2"]["vfio"]["dev-mount"] == "/dev/vfio/62"
        assert "/dev/vfio/62" in {device.container_path for device in started.devices}
        assert not [name for name in started.envs if "{" in name]
        place = {"pf-pci-address": "0000:5e:00.0"}
        assert places(node) == {
            f"intel.com-sriov-net-{vf}-device.json": {"pci-address": vf, **place},
            "intel.com-sriov_dpdk-0000:5e:02.2-device.json": {"pci-address": "0000:5e:02.2", **place},
        }


async def test_by_cdi_the_variables_bear_the_same_names(node: Node) -> None:
    node.configure(RESOURCES.replace("driver: iavf}", "driver: iavf}\n  inject: cdi"))
    async with node.served():
        await node.offers({NET: 2, DPDK: 1}, only=True)
        await node.kubelet.admit("pod", "main", NET, 2)
        (file,) = node.cdi.glob("*.json")
        text = file.read_text()
        assert '"PCIDEVICE_INTEL_COM_SRIOV_NET=0000:5e:02.0,0000:5e:02.1"' in text
        assert "{RESOURCE" not in text
        assert len(node.told()) == 2


async def test_a_pod_whose_function_lacks_a_node_is_refused_by_name_and_leaves_no_file(node: Node) -> None:
    for path in ("dev/vhost-net", "dev/net/tun"):
        (node.root / path).parent.mkdir(exist_ok=True)
        (node.root / path).touch()
    node.configure("backends: {sriov: {vhostNet: true}}" + RESOURCES)
    async with node.served():
        await node.offers({NET: 2, DPDK: 1}, only=True)
        (node.root / "dev/vhost-net").unlink()  # nobody tells of it
        with pytest.raises(UnexpectedAdmissionError, match="/dev/vhost-net does not exist"):
            await node.kubelet.admit("pod", "main", NET, 1)
        assert node.told() == {}


async def test_functions_are_unhealthy_while_a_node_that_the_options_ask_for_is_missing(node: Node) -> None:
    node.configure("backends: {sriov: {vhostNet: true}}" + RESOURCES)
    async with node.served():
        await node.kubelet.wait_for(lambda: node.kubelet.capacity() == {NET: 2, DPDK: 1})
        assert node.kubelet.allocatable() == {NET: 0, DPDK: 0}
        health = node.devices("sriov")["0000:5e:02.0"].health
        assert health.reason == "/dev/vhost-net does not exist: is module vhost_net loaded?"
