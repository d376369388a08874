"""GPUs of every vendor through a whole host: what a container gets, direct and by CDI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gpu_amd
import gpu_intel
import pytest
from devhost_testing.fixtures import BackendFixture, by_id
from devhost_testing.node import Node
from gpu_ctk import install
from gpu_nvidia import DGX, NvidiaMachine
from status_values import status

from devhost.kubelet.api import api_pb2

NVIDIA, MIG, AMD, INTEL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "gpu.intel.com/xe"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
WAITS = "0000:0c:00.0 keeps SPX instead of CPX while pods hold 0000:0c:00.0"
HOLDER = {"namespace": "default", "pod": "pod", "container": "main"}
CONTROL = ["/dev/nvidia-uvm", "/dev/nvidiactl"]


class GpuNode(Node):
    """A machine whose GPUs are offered."""

    @asynccontextmanager
    async def serving(self, options: str, *resources: str) -> AsyncIterator[None]:
        """devhost with these options and entries, until left."""
        entries = "".join(f"- {entry}\n" for entry in resources)
        self.configure(f"backends: {{gpu: {options}}}\nresources:\n{entries}")
        async with self.served():
            yield


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[GpuNode]:
    async with GpuNode(tmp_path) as made:
        yield made


@pytest.fixture
def station(node: GpuNode, nvidia: NvidiaMachine) -> GpuNode:
    """Two GPUs, and a third one that is two MIG instances."""
    for address in DGX[:3]:
        nvidia.gpu(address)
    nvidia.mig(DGX[2], 7, 0)
    nvidia.mig(DGX[2], 8, 0)
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        nvidia.tree.file(f"/dev/{name}", "c1:3")
    return node


def entry(name: str, where: str, more: str = "") -> str:
    return f'{{name: "{name}", backend: gpu, where: {{{where}}}{more}}}'


GPUS = entry(NVIDIA, "vendor: nvidia, kind: gpu")
PARTS = entry("nvidia.com/mig-{profile}", "vendor: nvidia, kind: mig")


def paths(started: api_pb2.ContainerAllocateResponse) -> list[str]:
    return sorted(device.container_path for device in started.devices)


async def test_nvidias_runtime_gets_gpus_and_mig_instances_by_uuid(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    async with station.serving("{}", GPUS, PARTS):
        await station.offers({"nvidia.com/gpu": 2})
        await station.offers({MIG: 2})
        both = await station.container({NVIDIA: 2})
        assert both.envs[VISIBLE].split(",") == [nvidia.uuids[address] for address in DGX[:2]]
        part = await station.container({MIG: 1})
        assert part.envs[VISIBLE] in nvidia.nvml.migs
        assert not part.devices and not part.mounts


async def test_containers_get_nvidias_nodes_if_that_is_requested(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    async with station.serving("{deviceListStrategy: [device-specs, volume-mounts]}", GPUS, PARTS):
        await station.offers({MIG: 2})
        await station.offers({"nvidia.com/gpu": 2})
        started = await station.container({NVIDIA: 2})
        assert paths(started) == sorted([*CONTROL, "/dev/nvidia0", "/dev/nvidia1"])
        directory = "/var/run/nvidia-container-devices"
        assert started.envs[VISIBLE] == directory
        assert {mount.container_path for mount in started.mounts} == {
            f"{directory}/{nvidia.uuids[address]}" for address in DGX[:2]
        }
        part = await station.container({MIG: 1})
        caps = [path for path in paths(part) if "nvidia-caps" in path]
        assert len(caps) == 2
        assert sorted([*CONTROL, "/dev/nvidia2", *caps]) == paths(part)


async def test_nvidia_s_nodes_come_by_cdi_as_they_come_directly(station: GpuNode) -> None:
    async with station.serving(
        "{deviceListStrategy: [device-specs, envvar]}",
        entry(NVIDIA, "vendor: nvidia, kind: gpu", ", inject: cdi"),
    ):
        await station.offers({"nvidia.com/gpu": 2})
        started = await station.container({NVIDIA: 2})
        assert not started.envs and not started.devices
        (edits,) = station.specified([device.name for device in started.cdi_devices])
        assert len(edits["env"]) == 1 and edits["env"][0].count("GPU-") == 2
        assert sorted(one["path"] for one in edits["deviceNodes"]) == sorted(
            [*CONTROL, "/dev/nvidia0", "/dev/nvidia1"]
        )


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_names_of_nvidia_s_own_specification_are_passed_on(
    station: GpuNode, nvidia: NvidiaMachine, inject: str
) -> None:
    uuids = [nvidia.uuids[address] for address in DGX[:2]]
    listed = "".join(f"- name: {uuid}\n" for uuid in uuids)
    nvidia.tree.file("/etc/cdi/nvidia.yaml", f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{listed}")
    where = f"deviceListStrategy: cdi, cdiDirectories: [/etc/cdi, {station.cdi}]"
    async with station.serving(
        f"{{{where}}}", entry(NVIDIA, "vendor: nvidia, kind: gpu", f", inject: {inject}")
    ):
        await station.offers({"nvidia.com/gpu": 2})
        started = await station.container({NVIDIA: 2})
        assert [device.name for device in started.cdi_devices] == [f"nvidia.com/gpu={uuid}" for uuid in uuids]
        assert not started.envs and not started.devices


async def test_a_specification_by_nvidia_ctk_is_written_before_a_gpu_is_offered(
    station: GpuNode, nvidia: NvidiaMachine, tmp_path: Path
) -> None:
    uuids = [nvidia.uuids[address] for address in DGX[:2]]
    install(station.root, tmp_path / "ctk", names=[*uuids, *nvidia.nvml.migs], control=CONTROL)
    where = f"deviceListStrategy: cdi, cdiDirectories: [{station.cdi}]"
    async with station.serving(f"{{{where}}}", GPUS):
        await station.offers({"nvidia.com/gpu": 2})
        started = await station.container({NVIDIA: 1})
        (edits,) = station.specified([device.name for device in started.cdi_devices])
        assert edits["deviceNodes"]


async def test_gpus_that_no_specification_names_are_unhealthy_and_no_pod_gets_them(station: GpuNode) -> None:
    where = f"deviceListStrategy: cdi, cdiDirectories: [{station.cdi}]"
    async with station.serving(f"{{{where}}}", GPUS):
        await station.until(lambda: NVIDIA in station.kubelet.capacity())
        assert station.kubelet.allocatable().get(NVIDIA, 0) == 0


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_an_amd_card_comes_with_the_node_for_computing(node: GpuNode, inject: str) -> None:
    gpu_amd.mi210(node.root)
    async with node.serving("{}", entry(AMD, "vendor: amd", f", inject: {inject}")):
        await node.offers({"amd.com/gpu": 4})
        started = await node.container({AMD: 2})
        if inject == "direct":
            got = paths(started)
        else:
            parts = node.specified([device.name for device in started.cdi_devices])
            got = sorted({one["path"] for part in parts for one in part["deviceNodes"]})
        assert "/dev/kfd" in got
        assert len(got) == len(set(got)) == 5


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_an_intel_card_is_found_by_both_its_names(node: GpuNode, inject: str) -> None:
    tree = gpu_intel.arc(node.root)
    for kind in ("card", "render"):
        tree.file(f"/dev/dri/by-path/pci-0000:03:00.0-{kind}", "")
    async with node.serving("{}", entry(INTEL, "vendor: intel, driver: xe", f", inject: {inject}")):
        await node.offers({"gpu.intel.com/xe": 1})
        started = await node.container({INTEL: 1})
        if inject == "direct":
            nodes, mounts = paths(started), sorted(mount.container_path for mount in started.mounts)
        else:
            (edits,) = node.specified([device.name for device in started.cdi_devices])
            nodes = sorted(one["path"] for one in edits["deviceNodes"])
            mounts = sorted(mount["containerPath"] for mount in edits["mounts"])
        assert {"/dev/dri/card1", "/dev/dri/renderD129"} <= set(nodes)
        assert mounts == [f"/dev/dri/by-path/pci-0000:03:00.0-{kind}" for kind in ("card", "render")]


async def test_the_gpus_of_a_container_are_those_that_nvlink_joins(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    third = nvidia.gpu(DGX[3])
    nvidia.nvml.link(nvidia.uuids[DGX[0]], third, 2)
    nvidia.nvml.write()
    wanted = {nvidia.uuids[DGX[0]], third}
    async with station.serving("{}", GPUS):
        await station.offers({"nvidia.com/gpu": 3})
        async with asyncio.timeout(60):  # links are read after the first list
            while True:
                started = await station.container({NVIDIA: 2})
                if set(started.envs[VISIBLE].split(",")) == wanted:
                    break
                await asyncio.sleep(0.05)


# Sharing


async def test_a_gpu_that_a_container_has_twice_is_named_once(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    shared = entry(
        "nvidia.com/gpu.shared", f'vendor: nvidia, kind: gpu, pciBusID: "{DGX[0]}"', ", share: {replicas: 3}"
    )
    async with station.serving("{deviceListStrategy: [envvar, device-specs]}", shared):
        await station.offers({"nvidia.com/gpu.shared": 3})
        started = await station.container({"nvidia.com/gpu.shared": 2})
        assert started.envs[VISIBLE] == nvidia.uuids[DGX[0]]
        assert paths(started) == sorted([*CONTROL, "/dev/nvidia0"])


async def test_a_fault_of_a_gpu_only_affects_its_replicas(station: GpuNode, nvidia: NvidiaMachine) -> None:
    shared = entry(NVIDIA, "vendor: nvidia, kind: gpu", ", share: {replicas: 4}")
    async with station.serving("{}", shared, PARTS):
        await station.offers({"nvidia.com/gpu": 8})
        await station.offers({MIG: 2})
        nvidia.nvml.event(nvidia.uuids[DGX[0]], 79)
        await station.offers({NVIDIA: 4})
        assert station.kubelet.capacity()[NVIDIA] == 8
        assert station.kubelet.allocatable()[MIG] == 2
        started = await station.container({NVIDIA: 4})
        assert started.envs[VISIBLE] == nvidia.uuids[DGX[1]]


async def test_how_often_a_gpu_is_handed_out_may_depend_on_what_it_is(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    share = f', share: {{replicas: 2, overrides: [{{where: {{pciBusID: "{DGX[1]}"}}, replicas: 5}}]}}'
    async with station.serving("{}", entry(NVIDIA, "vendor: nvidia, kind: gpu", share)):
        await station.offers({"nvidia.com/gpu": 7})


async def test_distinct_means_different_physical_gpus_for_mig_instances_and_replicas(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(DGX[3])
    nvidia.mig(DGX[3], 7, 0)
    nvidia.mig(DGX[3], 8, 0)
    more = ", prefer: distinct, share: {replicas: 2}"
    async with station.serving("{}", entry("nvidia.com/mig-{profile}", "vendor: nvidia, kind: mig", more)):
        await station.offers({MIG: 8})
        started = await station.container({MIG: 2})
        given = started.envs[VISIBLE].split(",")
        parents = {nvidia.nvml.migs[uuid]["parent"] for uuid in given}
        assert parents == {nvidia.uuids[DGX[2]], nvidia.uuids[DGX[3]]}


async def test_distinct_means_different_physical_gpus_for_partitions(
    node: GpuNode, looking: BackendFixture
) -> None:
    gpu_amd.mi300x(node.root, "DPX", "NPS1", count=4)
    known = by_id(looking(node.root))
    async with node.serving("{}", entry(AMD, "vendor: amd", ", prefer: distinct")):
        await node.offers({"amd.com/gpu": 8})
        allocation = await node.kubelet.admit("pod", "main", AMD, 4)
        assert len({known[name].attributes["parent"] for name in allocation.device_ids}) == 4


async def test_a_gpu_that_a_pod_holds_is_partitioned_when_the_pod_ends(node: GpuNode) -> None:
    """The test plays the driver: in a tree, a written mode changes nothing by itself."""
    tree = gpu_amd.mi300x(node.root, count=1)
    file = node.root / "sys/bus/pci/devices/0000:0c:00.0/current_compute_partition"
    resource = entry("amd.com/{profile}", "vendor: amd")
    provisioning = {"state": "waiting", "reason": WAITS, "heldBy": [HOLDER]}

    def shown() -> dict[str, Any]:
        found = [one["provisioning"] for one in status(node.host)["backends"] if one["name"] == "gpu"]
        one = found[0] if found and found[0] else {}
        return {key: value for key, value in one.items() if key in provisioning and value}

    async with node.serving("{}", resource):
        await node.offers({"amd.com/spx_nps1": 1})
        await node.kubelet.admit("pod", "main", "amd.com/spx_nps1", 1)
        assert shown() == {}
        node.configure(f"backends: {{gpu: {{partitions: [{{compute: CPX}}]}}}}\nresources: [{resource}]")
        await node.until(lambda: shown() == provisioning)
        assert file.read_text().strip() == "SPX"
        node.kubelet.release("pod")
        await node.until(lambda: file.read_text().strip() == "CPX")
        gpu_amd.partition(tree, "CPX", 1)
        node.look("gpu")
        await node.offers({"amd.com/cpx_nps1": 8})
        await node.until(lambda: shown() == {"state": "ok"})
    async with node.served():  # a restart changes nothing
        await node.until(lambda: shown() == {"state": "ok"})
        await node.offers({"amd.com/cpx_nps1": 8})


# What goes wrong


async def test_a_missing_nvidia_uvm_is_accepted_if_the_runtime_creates_it(
    station: GpuNode, nvidia: NvidiaMachine
) -> None:
    """After boot it may not exist yet: NVIDIA's plugin leaves it out, and NVIDIA's runtime creates it."""
    (station.root / "dev/nvidia-uvm").unlink()
    async with station.serving("{deviceListStrategy: [envvar, device-specs]}", GPUS):
        await station.offers({"nvidia.com/gpu": 2})
        started = await station.container({NVIDIA: 2})
        assert paths(started) == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl"]
        assert station.kubelet.allocatable()[NVIDIA] == 2


async def test_the_firmware_interface_of_an_intel_card_is_for_the_monitoring_resource(node: GpuNode) -> None:
    """As with Intel's plugin, whose ``monitoring`` resource is all cards with their ``/dev/mei*``."""
    gpu_intel.arc(node.root)
    monitoring = ", firmware: true, exclusive: false, share: {replicas: 1, of: all}"
    async with node.serving(
        "{}",
        entry(INTEL, "vendor: intel, driver: xe", ", exclusive: false"),
        entry("gpu.intel.com/monitoring", "vendor: intel", monitoring),
    ):
        await node.offers({INTEL: 1, "gpu.intel.com/monitoring": 1})
        assert not [path for path in paths(await node.container({INTEL: 1})) if "mei" in path]
        assert "/dev/mei1" in paths(await node.container({"gpu.intel.com/monitoring": 1}))


async def test_a_node_that_vanishes_refuses_the_pod_by_name(station: GpuNode, nvidia: NvidiaMachine) -> None:
    async with station.serving("{deviceListStrategy: device-specs}", GPUS):
        await station.offers({"nvidia.com/gpu": 2})
        (station.root / "dev/nvidia-uvm").unlink()
        with pytest.raises(Exception, match="/dev/nvidia-uvm does not exist on the node"):
            await station.kubelet.admit("pod", "main", NVIDIA, 1)
