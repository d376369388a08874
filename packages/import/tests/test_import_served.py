"""Import, start, allocate: a container gets from devhost what the peer's plugin gives it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import peer_machines as machines
import pytest
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from importing import HERE, installed, run

from devhost.kubelet.api import api_pb2

if not {"udev", "gpu", "sriov", "rdma", "fpga"} <= installed().installed.keys():
    pytest.skip("the results are for all of devhost's backends", allow_module_level=True)

if not machines.PLUGINS.is_dir():
    pytest.skip("the machines of the backends' tests are not here", allow_module_level=True)

DGX = "0000:07:00.0"
DIRECTORY = "/var/run/nvidia-container-devices"


@dataclass(frozen=True)
class Case:
    """A real configuration, its machine, and the peer's answer for one device of a resource."""

    peer: str
    file: str
    resource: str
    nodes: Mapping[str, str]
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: Mapping[str, str] = field(default_factory=dict)
    machine: Callable[[Path], Tree] | None = None
    arguments: str = ""


NVIDIA = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm")
CASES = [
    Case(
        "akri",
        "data/akri/udev-video.yaml",
        "akri.sh/akri-udev-video",
        {"/dev/video0": "rwm"},
        {"UDEV_DEVNODE": "/dev/video0"},
        machine=machines.board,
    ),
    Case(
        "amd-device-plugin",
        "data/amd-device-plugin/daemonset.yaml",
        "amd.com/gpu",
        dict.fromkeys(("/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"), "rw"),
        machine=machines.instinct,
    ),
    Case(
        "generic-device-plugin",
        "data/generic-device-plugin/daemonset.yaml",
        "squat.ai/fuse",
        {"/dev/fuse": "mrw"},
        machine=machines.board,
        arguments="--domain squat.ai",
    ),
    Case(
        "gke-device-plugin",
        "data/gke-device-plugin/daemonset.yaml",
        "nvidia.com/gpu",
        dict.fromkeys(NVIDIA, "mrw"),
        mounts={"/home/kubernetes/bin/nvidia": "/usr/local/nvidia"},
    ),
    Case(
        "intel-device-plugins",
        "inputs/intel-device-plugins/gpu-daemonset.yaml",
        "gpu.intel.com/xe",
        dict.fromkeys(("/dev/dri/card1", "/dev/dri/renderD129"), "rw"),
        mounts=dict.fromkeys(
            ("/dev/dri/by-path/pci-0000:03:00.0-card",), "/dev/dri/by-path/pci-0000:03:00.0-card"
        ),
        machine=machines.graphics,
    ),
    Case(
        "kubevirt",
        "data/kubevirt/permitted.yaml",
        "nvidia.com/TU104GL_Tesla_T4",
        {"/dev/vfio/vfio": "mrw", "/dev/vfio/20": "mrw"},
        {"PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4": "0000:65:00.0"},
        machine=machines.virtual_machines,
    ),
    Case(
        "nvidia-device-plugin",
        "data/nvidia-device-plugin/daemonset-cpumanager.yaml",
        "nvidia.com/gpu",
        dict.fromkeys(NVIDIA, "rw"),
        {"NVIDIA_VISIBLE_DEVICES": "{uuid}"},
    ),
    Case(
        "nvidia-device-plugin",
        "inputs/nvidia-device-plugin/policy-without-cdi.yaml",
        "nvidia.com/gpu",
        dict.fromkeys(NVIDIA, "rw"),
        {"NVIDIA_VISIBLE_DEVICES": DIRECTORY, "NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled"},
        {"/dev/null": DIRECTORY + "/{uuid}"},
    ),
    Case(
        "rdma-shared-dev-plugin",
        "data/rdma-shared-dev-plugin/example.yaml",
        "rdma/hca_shared_devices_a",
        dict.fromkeys(("/dev/infiniband/uverbs0", "/dev/infiniband/umad0", "/dev/infiniband/rdma_cm"), "rwm"),
        machine=machines.fabric,
    ),
    Case(
        "smarter-device-manager",
        "data/smarter-device-manager/configmap-rpi.yaml",
        "smarter-devices/ttyUSB0",
        {"/dev/ttyUSB0": "rw"},
        machine=machines.board,
    ),
    Case(
        "sriov-network-device-plugin",
        "data/sriov-network-device-plugin/configmap.yaml",
        "intel.com/intel_sriov_dpdk",
        {"/dev/vfio/vfio": "rw", "/dev/vfio/42": "rw"},
        {"PCIDEVICE_INTEL_COM_INTEL_SRIOV_DPDK": "0000:3b:02.2"},
        machine=machines.adapters,
    ),
]


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub NVML of the gpu backend's tests."""
    stub = machines.of_plugin("gpu", "gpu_nvml")
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    if stub.compiler() is None:
        pytest.skip("no C compiler to build the stub NVML with")
    library: Path = stub.build(tmp_path_factory.mktemp("nvml"))
    return library


async def allocated(node: Node, case: Case) -> api_pb2.ContainerAllocateResponse:
    """What a container gets for one device of the resource."""
    done = run(case.peer, (HERE / case.file).read_bytes(), *case.arguments.split())
    assert done.exit_code == 0, (done.output, done.exception)
    node.configure(done.stdout.split("version: 1\n", 1)[1])
    async with node.served():
        await node.until(lambda: node.kubelet.allocatable().get(case.resource))
        return await node.container({case.resource: 1})


def compare(given: api_pb2.ContainerAllocateResponse, case: Case, uuid: str = "") -> None:
    nodes = {one.host_path: one.permissions for one in given.devices}
    mounts = {one.host_path: one.container_path for one in given.mounts}
    assert case.nodes.items() <= nodes.items()
    assert {name: value.format(uuid=uuid) for name, value in case.envs.items()}.items() <= given.envs.items()
    assert {path: value.format(uuid=uuid) for path, value in case.mounts.items()}.items() <= mounts.items()


@pytest.mark.parametrize("case", [one for one in CASES if one.machine], ids=lambda one: one.peer)
async def test_a_container_gets_what_the_peer_gives(tmp_path: Path, case: Case) -> None:
    async with Node(tmp_path) as node:
        assert case.machine is not None
        case.machine(node.root)
        compare(await allocated(node, case), case)


@pytest.mark.parametrize("case", [one for one in CASES if not one.machine], ids=lambda one: one.file)
async def test_a_container_gets_the_gpu_that_nvidias_plugins_give(
    tmp_path: Path, nvml: Path, monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    machine = machines.of_plugin("gpu", "gpu_nvidia").NvidiaMachine(tmp_path / "root", nvml)
    monkeypatch.setenv("NVML_STUB", str(machine.nvml.file))
    machine.gpu(DGX)
    for name in ("nvidiactl", "nvidia-uvm", "null"):
        machine.tree.file(f"/dev/{name}", "c1:3")
    machine.tree.file("/home/kubernetes/bin/nvidia/lib64/libcuda.so.1", "")
    async with Node(tmp_path) as node:
        compare(await allocated(node, case), case, machine.uuids[DGX])


async def test_a_machine_that_requests_a_gpu_and_its_audio_gets_both_of_one_card(tmp_path: Path) -> None:
    functions = {"nvidia.com/gpu": "10de:1eb8", "nvidia.com/audio": "10de:10f8"}
    devices = [{"pciVendorSelector": ids, "resourceName": name} for name, ids in functions.items()]
    text = run("kubevirt", json.dumps({"permittedHostDevices": {"pciHostDevices": devices}})).stdout
    async with Node(tmp_path) as node:
        tree = machines.of_plugin("sriov", "sriov_tree").SriovTree(node.root)
        for bus in ("65", "66"):
            for number, ids in enumerate(functions.values()):
                tree.vfio(tree.function(f"0000:{bus}:00.{number}", ids, "vfio-pci", group=int(bus)))
        node.configure(text.split("version: 1\n", 1)[1])
        async with node.served(dict.fromkeys(functions, 2)):
            given = await node.container(dict.fromkeys(functions, 1))
    assert given.envs["PCI_RESOURCE_NVIDIA_COM_GPU"] == "0000:65:00.0"
    assert given.envs["PCI_RESOURCE_NVIDIA_COM_AUDIO"] == "0000:65:00.1"
