"""Functions of a modelled machine through a whole host: what a pod and its network plugin see."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sriov_network as network
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.node import Node

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
    return {name: document["pci"] for name, document in node.device_infos().items()}


async def test_a_container_with_two_resources_finds_both_and_so_does_its_network_plugin(node: Node) -> None:
    async with node.served({NET: 2, DPDK: 2}, only=True):
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


async def test_the_functions_of_one_card_are_one_device(node: Node) -> None:
    node.configure(
        RESOURCES.replace("driver: vfio-pci}", "driver: vfio-pci}\n  share: {of: pciSlot, members: 2}")
    )
    async with node.served({NET: 2, DPDK: 1}, only=True):
        assert (await node.kubelet.admit("pod", "main", DPDK, 1)).device_ids == ("0000:5e:02",)
        started = await node.kubelet.start_container("pod", "main")
        assert started.envs["PCIDEVICE_INTEL_COM_SRIOV_DPDK"] == "0000:5e:02.2,0000:5e:02.3"
        paths = {device.container_path for device in started.devices}
        assert paths >= {"/dev/vfio/62", "/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"}


async def test_variables_have_the_same_names_with_cdi(node: Node) -> None:
    node.configure(RESOURCES.replace("driver: iavf}", "driver: iavf}\n  inject: cdi"))
    async with node.served({NET: 2, DPDK: 2}, only=True):
        await node.kubelet.admit("pod", "main", NET, 2)
        (file,) = node.cdi.glob("*.json")
        text = file.read_text()
        assert '"PCIDEVICE_INTEL_COM_SRIOV_NET=0000:5e:02.0,0000:5e:02.1"' in text
        assert '"PCIDEVICE_INTEL_COM_SRIOV-NET=0000:5e:02.0,0000:5e:02.1"' in text
        assert len(node.device_infos()) == 2


def asking(**keys: str) -> str:
    """The entries with further keys, by what their functions are bound to: ``vfio="rdma: true"``."""
    text = RESOURCES
    for driver, more in keys.items():
        name = {"vfio": "vfio-pci"}.get(driver, driver)
        text = text.replace(f"where: {{driver: {name}}}", f"where: {{driver: {name}}}\n  {more}")
    return text


async def test_a_pod_whose_function_lacks_a_node_is_refused_by_name_and_leaves_no_file(node: Node) -> None:
    for path in ("dev/vhost-net", "dev/net/tun"):
        (node.root / path).parent.mkdir(exist_ok=True)
        (node.root / path).touch()
    node.configure(asking(iavf="vhostNet: true"))
    async with node.served({NET: 2, DPDK: 2}, only=True):
        (node.root / "dev/vhost-net").unlink()  # without an event
        with pytest.raises(UnexpectedAdmissionError, match="/dev/vhost-net does not exist"):
            await node.kubelet.admit("pod", "main", NET, 1)
        assert node.device_infos() == {}


async def test_vhost_net_concerns_only_the_entry_that_requests_it(node: Node) -> None:
    """In sriov-network-device-plugin ``needVhostNet`` also belongs to one resource."""
    node.configure(asking(vfio="vhostNet: true"))
    async with node.served():
        await node.kubelet.wait_for(lambda: node.kubelet.capacity() == {NET: 2, DPDK: 2})
        assert node.kubelet.allocatable() == {NET: 2, DPDK: 0}
        reason = "/dev/vhost-net does not exist (is module vhost_net loaded?)"
        assert node.devices("sriov")["0000:5e:02.2"].unusable_for["vhostNet"] == reason
        for path in ("dev/vhost-net", "dev/net/tun"):
            (node.root / path).parent.mkdir(exist_ok=True)
            (node.root / path).touch()
        node.look("sriov")
        await node.offers({NET: 2, DPDK: 2})
        both = await node.container({NET: 1, DPDK: 1})
        assert "/dev/vhost-net" in {device.host_path for device in both.devices}
        alone = await node.container({NET: 1})
        assert list(alone.devices) == []
        (info,) = json.loads(alone.envs["PCIDEVICE_INTEL_COM_SRIOV_NET_INFO"]).values()
        assert "vhost" not in info


async def test_the_info_of_an_entry_never_reaches_pods_of_another(node: Node) -> None:
    """``additionalInfo`` of sriov-network-device-plugin is of one resource too, and may be its secret."""
    node.configure(asking(iavf='info: {"*": {token: net}}', vfio='info: {"0000:5e:02.2": {token: dpdk}}'))
    async with node.served({NET: 2, DPDK: 2}):
        started = await node.container({NET: 1, DPDK: 1}, keep=True)
        net, dpdk = (
            json.loads(started.envs[f"PCIDEVICE_INTEL_COM_SRIOV_{name}_INFO"]) for name in ("NET", "DPDK")
        )
        assert [one["extra"] for one in net.values()] == [{"token": "net"}]
        assert [one["extra"] for one in dpdk.values()] == [{"token": "dpdk"}]
        assert "token" not in str(node.device_infos())
        alone = await node.container({NET: 1})
        assert "dpdk" not in str(alone.envs)


async def test_kubevirt_concerns_only_the_entry_that_requests_it(node: Node) -> None:
    node.configure(asking(vfio="kubevirt: true"))
    async with node.served({NET: 2, DPDK: 2}):
        dpdk, net = await node.container({DPDK: 1}), await node.container({NET: 1})
        assert dpdk.envs["PCI_RESOURCE_INTEL_COM_SRIOV_DPDK"] == "0000:5e:02.2"
        rights = {device.host_path: device.permissions for device in dpdk.devices}
        assert rights["/dev/vfio/vfio"] == rights["/dev/vfio/62"] == "mrw"
        assert not [name for name in net.envs if name.startswith("PCI_RESOURCE")]


RDMA, ETHERNET = "nvidia.com/rdma", "nvidia.com/ethernet"
SWITCH = f"""
resources:
- name: {ETHERNET}
  backend: sriov
  where: {{pciBusID: "0000:3b:00.2"}}
- name: {RDMA}
  backend: sriov
  where: {{pciBusID: "0000:3b:00.3"}}
  rdma: true
"""
VERBS = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.3/infiniband_verbs"


@pytest.fixture
async def switch(tmp_path: Path) -> AsyncIterator[Node]:
    """A machine whose functions all have RDMA devices, of which one resource hands them out."""
    async with Node(tmp_path) as made:
        network.mlx5_switchdev(made.root)
        made.configure(SWITCH)
        yield made


async def test_rdma_nodes_concern_only_the_entry_that_requests_them(switch: Node) -> None:
    async with switch.served({RDMA: 1, ETHERNET: 1}, only=True):
        started = await switch.container({RDMA: 1}, keep=True)
        assert "/dev/infiniband/rdma_cm" in {device.host_path for device in started.devices}
        plain = await switch.container({ETHERNET: 1}, keep=True)
        assert list(plain.devices) == []
        assert {name: "rdma-device" in place for name, place in places(switch).items()} == {
            "nvidia.com-ethernet-0000:3b:00.2-device.json": False,
            "nvidia.com-rdma-0000:3b:00.3-device.json": True,
        }


async def test_with_cdi_rdma_nodes_concern_only_the_entry_that_requests_them(switch: Node) -> None:
    switch.configure(SWITCH.replace("  backend: sriov", "  backend: sriov\n  inject: cdi"))
    async with switch.served({RDMA: 1, ETHERNET: 1}, only=True):
        given = {}
        for resource in (RDMA, ETHERNET):
            started = await switch.container({resource: 1})
            given[resource] = switch.specified([one.name for one in started.cdi_devices])
        assert "/dev/infiniband/rdma_cm" in str(given[RDMA])
        assert "infiniband" not in str(given[ETHERNET])


@pytest.mark.parametrize(("key", "nodes"), [("", True), ("  rdma: false\n", False)])
async def test_an_entry_that_selects_rdma_functions_gives_their_nodes_by_default(
    switch: Node, key: str, nodes: bool
) -> None:
    """``isRdma: true`` of sriov-network-device-plugin selects and gives, too."""
    where = '{pciBusID: "0000:3b:00.3", isRdma: true}'
    switch.configure(f"resources:\n- name: {RDMA}\n  backend: sriov\n  where: {where}\n{key}")
    async with switch.served({RDMA: 1}):
        assert bool((await switch.container({RDMA: 1})).devices) is nodes


async def test_without_verbs_a_function_is_unhealthy_only_for_entries_with_rdma(switch: Node) -> None:
    """Pools of sriov-network-device-plugin without ``isRdma`` do not care for ib_uverbs either."""
    nodes = switch.root / VERBS
    hidden = nodes.rename(switch.root / "hidden")
    async with switch.served():
        await switch.kubelet.wait_for(lambda: switch.kubelet.capacity() == {RDMA: 1, ETHERNET: 1})
        assert switch.kubelet.allocatable() == {RDMA: 0, ETHERNET: 1}
        assert switch.devices("sriov")["0000:3b:00.3"].health.healthy
        switch.configure(SWITCH.replace("  rdma: true\n", ""))
        assert not await switch.reload()
        await switch.offers({RDMA: 1, ETHERNET: 1})
        plain = await switch.container({RDMA: 1})
        assert list(plain.devices) == []
        switch.configure(SWITCH)
        assert not await switch.reload()
        await switch.offers({RDMA: 0, ETHERNET: 1})
        hidden.rename(nodes)
        switch.look("sriov")
        await switch.offers({RDMA: 1, ETHERNET: 1})
