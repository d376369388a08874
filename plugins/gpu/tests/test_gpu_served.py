"""GPUs of every vendor through a whole host: what a container ends up with, direct and by CDI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gpu_amd
import gpu_intel
import pytest
from gpu_ctk import install
from gpu_desk import Looking, by_id
from gpu_nvidia import DGX, NvidiaMachine

from devhost.cdi import HostNode
from devhost.host import Host
from devhost.kubelet.api import api_pb2
from devhost.loading import load
from devhost.testing.kubelet import KubeletSimulator

NVIDIA, MIG, AMD, INTEL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "gpu.intel.com/xe"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
CONTROL = ["/dev/nvidia-uvm", "/dev/nvidiactl"]


class Node:
    """A machine with devhost and a kubelet on it."""

    def __init__(self, place: Path, root: Path) -> None:
        self.root = root
        self.cdi = place / "cdi"
        self.config = place / "devhost.yaml"
        self.kubelet_dir = place / "kubelet"
        self.kubelet_dir.mkdir()
        self.kubelet = KubeletSimulator(self.kubelet_dir, "1.37", pod_resources=place / "pod-resources")

    @asynccontextmanager
    async def serving(self, options: str, *resources: str) -> AsyncIterator[Host]:
        """devhost with these options and entries, until left."""
        entries = "".join(f"- {entry}\n" for entry in resources)
        self.config.write_text(
            f"version: 1\ncdi: {{directory: {self.cdi}}}\nbackends: {{gpu: {options}}}\nresources:\n{entries}"
        )
        host = Host(
            self.config,
            load(self.config),
            lambda: load(self.config),
            self.kubelet_dir,
            self.root,
            pod_resources=self.kubelet_dir.parent / "pod-resources",
        )
        task = asyncio.create_task(host.run())
        await self.kubelet.start()
        try:
            yield host
        finally:
            await self.kubelet.stop()
            host.stop()
            await asyncio.wait_for(task, 30)

    async def has(self, **counts: int) -> None:
        """Waits until the node has so many of each resource; of those not named it may have any."""
        wanted = {name.replace("__", "/").replace("_", "."): count for name, count in counts.items()}
        await self.until(lambda: wanted.items() <= self.kubelet.allocatable().items())

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.kubelet.wait_for(condition, 30)

    async def container(self, resource: str, count: int) -> Any:
        """What a container gets that asks for so many."""
        await self.kubelet.admit("pod", "main", resource, count)
        started = await self.kubelet.start_container("pod", "main")
        self.kubelet.release("pod")
        return started

    def specified(self, names: list[str]) -> list[dict[str, Any]]:
        """What the files in the directory say of these names."""
        found = {}
        for file in self.cdi.glob("*.json"):
            document = json.loads(file.read_text())
            for device in document["devices"]:
                found[f"{document['kind']}={device['name']}"] = device["containerEdits"]
        return [found[name] for name in names]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path, tmp_path / "root")


@pytest.fixture
def station(node: Node, nvidia: NvidiaMachine) -> Node:
    """Two GPUs, and a third one that is two MIG instances."""
    for address in DGX[:3]:
        nvidia.gpu(address)
    nvidia.mig(DGX[2], 7, 0)
    nvidia.mig(DGX[2], 8, 0)
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        nvidia.tree.file(f"/dev/{name}", "c1:3")
    return node


@pytest.fixture
def plain_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files stand for device nodes, which only root can make."""
    monkeypatch.setattr("devhost.cdi.host_node", lambda path, root: HostNode(path, 0o660, 0, 44))


def entry(name: str, where: str, more: str = "") -> str:
    return f'{{name: "{name}", backend: gpu, where: {{{where}}}{more}}}'


GPUS = entry(NVIDIA, "vendor: nvidia, kind: gpu")
PARTS = entry("nvidia.com/mig-{profile}", "vendor: nvidia, kind: mig")


def paths(started: api_pb2.ContainerAllocateResponse) -> list[str]:
    return sorted(device.container_path for device in started.devices)


async def test_nvidia_s_runtime_is_told_gpus_and_mig_instances_by_uuid(
    station: Node, nvidia: NvidiaMachine
) -> None:
    async with station.serving("{}", GPUS, PARTS):
        await station.has(nvidia_com__gpu=2)
        await station.until(lambda: station.kubelet.allocatable().get(MIG) == 2)
        both = await station.container(NVIDIA, 2)
        assert both.envs[VISIBLE].split(",") == [nvidia.uuids[address] for address in DGX[:2]]
        part = await station.container(MIG, 1)
        assert part.envs[VISIBLE] in nvidia.nvml.migs
        assert not part.devices and not part.mounts


async def test_nvidia_s_nodes_are_given_where_that_is_asked_for(station: Node, nvidia: NvidiaMachine) -> None:
    async with station.serving("{deviceListStrategy: [device-specs, volume-mounts]}", GPUS, PARTS):
        await station.until(lambda: station.kubelet.allocatable().get(MIG) == 2)
        await station.has(nvidia_com__gpu=2)
        started = await station.container(NVIDIA, 2)
        assert paths(started) == sorted([*CONTROL, "/dev/nvidia0", "/dev/nvidia1"])
        directory = "/var/run/nvidia-container-devices"
        assert started.envs[VISIBLE] == directory
        assert {mount.container_path for mount in started.mounts} == {
            f"{directory}/{nvidia.uuids[address]}" for address in DGX[:2]
        }
        part = await station.container(MIG, 1)
        caps = [path for path in paths(part) if "nvidia-caps" in path]
        assert len(caps) == 2
        assert sorted([*CONTROL, "/dev/nvidia2", *caps]) == paths(part)


@pytest.mark.usefixtures("plain_nodes")
async def test_nvidia_s_nodes_come_by_cdi_as_they_come_directly(station: Node) -> None:
    async with station.serving(
        "{deviceListStrategy: [device-specs, envvar]}",
        entry(NVIDIA, "vendor: nvidia, kind: gpu", ", inject: cdi"),
    ):
        await station.has(nvidia_com__gpu=2)
        started = await station.container(NVIDIA, 2)
        assert not started.envs and not started.devices
        (edits,) = station.specified([device.name for device in started.cdi_devices])
        assert len(edits["env"]) == 1 and edits["env"][0].count("GPU-") == 2
        assert sorted(one["path"] for one in edits["deviceNodes"]) == sorted(
            [*CONTROL, "/dev/nvidia0", "/dev/nvidia1"]
        )


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_names_of_nvidia_s_own_specification_are_passed_on(
    station: Node, nvidia: NvidiaMachine, inject: str
) -> None:
    uuids = [nvidia.uuids[address] for address in DGX[:2]]
    listed = "".join(f"- name: {uuid}\n" for uuid in uuids)
    nvidia.tree.file("/etc/cdi/nvidia.yaml", f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{listed}")
    where = f"deviceListStrategy: cdi, cdiDirectories: [/etc/cdi, {station.cdi}]"
    async with station.serving(
        f"{{{where}}}", entry(NVIDIA, "vendor: nvidia, kind: gpu", f", inject: {inject}")
    ):
        await station.has(nvidia_com__gpu=2)
        started = await station.container(NVIDIA, 2)
        assert [device.name for device in started.cdi_devices] == [f"nvidia.com/gpu={uuid}" for uuid in uuids]
        assert not started.envs and not started.devices


async def test_a_specification_by_nvidia_ctk_is_written_before_a_gpu_is_offered(
    station: Node, nvidia: NvidiaMachine, tmp_path: Path
) -> None:
    uuids = [nvidia.uuids[address] for address in DGX[:2]]
    install(station.root, tmp_path / "ctk", names=[*uuids, *nvidia.nvml.migs], control=CONTROL)
    where = f"deviceListStrategy: cdi, cdiDirectories: [{station.cdi}]"
    async with station.serving(f"{{{where}}}", GPUS):
        await station.has(nvidia_com__gpu=2)
        started = await station.container(NVIDIA, 1)
        (edits,) = station.specified([device.name for device in started.cdi_devices])
        assert edits["deviceNodes"]


async def test_gpus_that_no_specification_names_are_unhealthy_and_no_pod_gets_them(station: Node) -> None:
    where = f"deviceListStrategy: cdi, cdiDirectories: [{station.cdi}]"
    async with station.serving(f"{{{where}}}", GPUS):
        await station.until(lambda: NVIDIA in station.kubelet.capacity())
        assert station.kubelet.allocatable().get(NVIDIA, 0) == 0


@pytest.mark.usefixtures("plain_nodes")
@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_an_amd_card_comes_with_the_node_for_computing(node: Node, inject: str) -> None:
    gpu_amd.mi210(node.root)
    async with node.serving("{}", entry(AMD, "vendor: amd", f", inject: {inject}")):
        await node.has(amd_com__gpu=4)
        started = await node.container(AMD, 2)
        if inject == "direct":
            got = paths(started)
        else:
            parts = node.specified([device.name for device in started.cdi_devices])
            got = sorted({one["path"] for part in parts for one in part["deviceNodes"]})
        assert "/dev/kfd" in got
        assert len(got) == len(set(got)) == 5


@pytest.mark.usefixtures("plain_nodes")
@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_an_intel_card_is_found_by_both_its_names(node: Node, inject: str) -> None:
    tree = gpu_intel.arc(node.root)
    for kind in ("card", "render"):
        tree.file(f"/dev/dri/by-path/pci-0000:03:00.0-{kind}", "")
    async with node.serving("{}", entry(INTEL, "vendor: intel, driver: xe", f", inject: {inject}")):
        await node.has(gpu_intel_com__xe=1)
        started = await node.container(INTEL, 1)
        if inject == "direct":
            nodes, mounts = paths(started), sorted(mount.container_path for mount in started.mounts)
        else:
            (edits,) = node.specified([device.name for device in started.cdi_devices])
            nodes = sorted(one["path"] for one in edits["deviceNodes"])
            mounts = sorted(mount["containerPath"] for mount in edits["mounts"])
        assert {"/dev/dri/card1", "/dev/dri/renderD129"} <= set(nodes)
        assert mounts == [f"/dev/dri/by-path/pci-0000:03:00.0-{kind}" for kind in ("card", "render")]


async def test_the_gpus_of_a_container_are_those_that_nvlink_joins(
    station: Node, nvidia: NvidiaMachine
) -> None:
    third = nvidia.gpu(DGX[3])
    nvidia.nvml.link(nvidia.uuids[DGX[0]], third, 2)
    nvidia.nvml.write()
    wanted = {nvidia.uuids[DGX[0]], third}
    async with station.serving("{}", GPUS):
        await station.has(nvidia_com__gpu=3)
        async with asyncio.timeout(20):  # links are read after the first list
            while True:
                started = await station.container(NVIDIA, 2)
                if set(started.envs[VISIBLE].split(",")) == wanted:
                    break
                await asyncio.sleep(0.05)


# Sharing


async def test_a_gpu_that_a_container_has_twice_is_told_once(station: Node, nvidia: NvidiaMachine) -> None:
    shared = entry(
        "nvidia.com/gpu.shared", f'vendor: nvidia, kind: gpu, pciBusID: "{DGX[0]}"', ", share: {replicas: 3}"
    )
    async with station.serving("{deviceListStrategy: [envvar, device-specs]}", shared):
        await station.until(lambda: station.kubelet.allocatable().get("nvidia.com/gpu.shared") == 3)
        started = await station.container("nvidia.com/gpu.shared", 2)
        assert started.envs[VISIBLE] == nvidia.uuids[DGX[0]]
        assert paths(started) == sorted([*CONTROL, "/dev/nvidia0"])


async def test_what_ails_a_gpu_ails_its_replicas_and_nothing_else(
    station: Node, nvidia: NvidiaMachine
) -> None:
    shared = entry(NVIDIA, "vendor: nvidia, kind: gpu", ", share: {replicas: 4}")
    async with station.serving("{}", shared, PARTS):
        await station.has(nvidia_com__gpu=8)
        await station.until(lambda: station.kubelet.allocatable().get(MIG) == 2)
        nvidia.nvml.event(nvidia.uuids[DGX[0]], 79)
        await station.until(lambda: station.kubelet.allocatable()[NVIDIA] == 4)
        assert station.kubelet.capacity()[NVIDIA] == 8
        assert station.kubelet.allocatable()[MIG] == 2
        started = await station.container(NVIDIA, 4)
        assert started.envs[VISIBLE] == nvidia.uuids[DGX[1]]


async def test_how_often_a_gpu_is_handed_out_may_depend_on_what_it_is(
    station: Node, nvidia: NvidiaMachine
) -> None:
    share = f', share: {{replicas: 2, overrides: [{{where: {{pciBusID: "{DGX[1]}"}}, replicas: 5}}]}}'
    async with station.serving("{}", entry(NVIDIA, "vendor: nvidia, kind: gpu", share)):
        await station.has(nvidia_com__gpu=7)


async def test_distinct_means_different_physical_gpus_for_mig_instances_and_replicas(
    station: Node, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(DGX[3])
    nvidia.mig(DGX[3], 7, 0)
    nvidia.mig(DGX[3], 8, 0)
    more = ", prefer: distinct, share: {replicas: 2}"
    async with station.serving("{}", entry("nvidia.com/mig-{profile}", "vendor: nvidia, kind: mig", more)):
        await station.until(lambda: station.kubelet.allocatable().get(MIG) == 8)
        started = await station.container(MIG, 2)
        given = started.envs[VISIBLE].split(",")
        parents = {nvidia.nvml.migs[uuid]["parent"] for uuid in given}
        assert parents == {nvidia.uuids[DGX[2]], nvidia.uuids[DGX[3]]}


async def test_distinct_means_different_physical_gpus_for_partitions(node: Node, looking: Looking) -> None:
    gpu_amd.mi300x(node.root, "DPX", "NPS1", count=4)
    known = by_id(looking(node.root))
    async with node.serving("{}", entry(AMD, "vendor: amd", ", prefer: distinct")):
        await node.has(amd_com__gpu=8)
        allocation = await node.kubelet.admit("pod", "main", AMD, 4)
        assert len({known[name].attributes["parent"] for name in allocation.device_ids}) == 4


# What goes wrong


async def test_a_node_that_vanishes_refuses_the_pod_by_name(station: Node, nvidia: NvidiaMachine) -> None:
    async with station.serving("{deviceListStrategy: device-specs}", GPUS):
        await station.has(nvidia_com__gpu=2)
        (station.root / "dev/nvidia-uvm").unlink()
        with pytest.raises(Exception, match="/dev/nvidia-uvm does not exist on the node"):
            await station.kubelet.admit("pod", "main", NVIDIA, 1)
