"""Functions of a modelled machine through a whole host: what a pod and its network plugin see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import sriov_network as network

from devhost.host import Host
from devhost.loading import load
from devhost.testing.kubelet import KubeletSimulator, UnexpectedAdmissionError

NET, DPDK = "intel.com/sriov-net", "intel.com/sriov_dpdk"


class Node:
    """A machine with devhost and a kubelet on it."""

    def __init__(self, place: Path) -> None:
        self.root = place / "root"
        self.config = place / "devhost.yaml"
        self.infos = place / "devinfo"
        self.kubelet_dir = place / "kubelet"
        self.kubelet_dir.mkdir()
        self.kubelet = KubeletSimulator(self.kubelet_dir, "1.37", pod_resources=place / "pod-resources")
        network.i40e_with_vfio(self.root)

    def configure(self, options: str = "{}", more: str = "") -> None:
        self.config.write_text(f"""
version: 1
deviceInfo: {{directory: {self.infos}}}
backends: {{sriov: {options}}}
resources:
- name: {NET}
  backend: sriov
  where: {{driver: iavf}}
- name: {DPDK}
  backend: sriov
  where: {{driver: vfio-pci}}
{more}""")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Host]:
        host = Host(
            self.config,
            load(self.config),
            lambda: load(self.config),
            self.kubelet_dir,
            self.root,
            pod_resources=self.kubelet_dir.parent / "pod-resources",
        )
        task = asyncio.create_task(host.run())
        try:
            yield host
        finally:
            host.stop()
            await asyncio.wait_for(task, 20)

    def told(self) -> dict[str, dict[str, str]]:
        """What network plugins read, by the name of the file."""
        files = (path for path in self.infos.glob("*-device.json"))
        return {path.name: json.loads(path.read_text())["pci"] for path in files}


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.kubelet.start()
    yield made
    await made.kubelet.stop()


async def test_a_container_with_two_resources_finds_both_and_so_does_its_network_plugin(node: Node) -> None:
    node.configure()
    async with node.served():
        # of two functions in one IOMMU group one is offered
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {NET: 2, DPDK: 1}, 10)
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
        assert node.told() == {
            f"intel.com-sriov-net-{vf}-device.json": {"pci-address": vf, **place},
            "intel.com-sriov_dpdk-0000:5e:02.2-device.json": {"pci-address": "0000:5e:02.2", **place},
        }


async def test_by_cdi_the_variables_bear_the_same_names(node: Node, tmp_path: Path) -> None:
    node.configure(more=f"cdi: {{directory: {tmp_path / 'cdi'}}}\n")
    node.config.write_text(node.config.read_text().replace("driver: iavf}", "driver: iavf}\n  inject: cdi"))
    async with node.served():
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {NET: 2, DPDK: 1}, 10)
        await node.kubelet.admit("pod", "main", NET, 2)
        (file,) = (tmp_path / "cdi").glob("*.json")
        text = file.read_text()
        assert '"PCIDEVICE_INTEL_COM_SRIOV_NET=0000:5e:02.0,0000:5e:02.1"' in text
        assert "{RESOURCE" not in text
        assert len(node.told()) == 2


async def test_a_pod_whose_function_lacks_a_node_is_refused_by_name_and_leaves_no_file(node: Node) -> None:
    for path in ("dev/vhost-net", "dev/net/tun"):
        (node.root / path).parent.mkdir(exist_ok=True)
        (node.root / path).touch()
    node.configure(options="{vhostNet: true}")
    async with node.served():
        await node.kubelet.wait_for(lambda: node.kubelet.allocatable() == {NET: 2, DPDK: 1}, 10)
        (node.root / "dev/vhost-net").unlink()  # nobody tells of it
        with pytest.raises(UnexpectedAdmissionError, match="/dev/vhost-net does not exist"):
            await node.kubelet.admit("pod", "main", NET, 1)
        assert node.told() == {}


async def test_functions_are_unhealthy_while_a_node_that_the_options_ask_for_is_missing(node: Node) -> None:
    node.configure(options="{vhostNet: true}")
    async with node.served() as host:
        await node.kubelet.wait_for(lambda: node.kubelet.capacity() == {NET: 2, DPDK: 1}, 10)
        assert node.kubelet.allocatable() == {NET: 0, DPDK: 0}
        health = host.discoveries["sriov"].devices["0000:5e:02.0"].health
        assert health.reason == "/dev/vhost-net does not exist: is module vhost_net loaded?"
