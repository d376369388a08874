"""GPUs that containers share through NVIDIA's MPS, or limited by HAMi: what each gets, and when it can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from devhost_testing.node import Node
from gpu_nvidia import DGX, NvidiaMachine
from gpu_setup import gpu_timed

from devhost.backend.errors import ConfigError
from devhost.config import load
from devhost.discovery import catalog
from devhost.kubelet.api import api_pb2

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
MEMORY = 81920
"""MiB of each GPU of the machine."""


class MpsNode(Node):
    """A machine with GPUs, on which MPS servers start and end."""

    def __init__(self, place: Path, root: Path | None = None) -> None:
        super().__init__(place, gpu_timed(mps_check=0.1), root=root)

    @asynccontextmanager
    async def serving(self, *entries: str, labels: str = "{write: false}") -> AsyncIterator[None]:
        """devhost with these entries, until left."""
        lines = "".join(f"- {entry}\n" for entry in entries)
        self.configure(f"labels: {labels}\nresources:\n{lines}")
        async with self.served():
            yield

    def server(self, directory: str) -> Path:
        """Starts one with its pipes in this directory."""
        made = self.root / directory.lstrip("/")
        made.mkdir(parents=True, exist_ok=True)
        (made / "control").touch()
        return made / "control"

    def daemon(self, resource: str, root: str = "/run/nvidia/mps") -> Path:
        """Starts a server as NVIDIA's mps-control-daemon does."""
        (self.root / root.lstrip("/") / "shm").mkdir(parents=True, exist_ok=True)
        return self.server(f"{root}/{resource}/pipe")


def entry(name: str, more: str = "", where: str = "kind: gpu") -> str:
    return f'{{name: "{name}", backend: gpu, where: {{vendor: nvidia, {where}}}{more}}}'


EXAMPLE = Path(__file__).parents[3] / "config/examples/gpu-gke.yaml"
NVIDIAS = ", mps: {root: /run/nvidia/mps}"
GOOGLES = ", mps: {pipeDirectory: /tmp/nvidia-mps}"
FOUR = ", share: {replicas: 4}"


def first(where: str = "kind: gpu") -> str:
    return f'{where}, pciBusID: "{DGX[0]}"'


@pytest.fixture
async def node(tmp_path: Path, nvidia: NvidiaMachine) -> AsyncIterator[MpsNode]:
    for address in DGX[:2]:
        nvidia.gpu(address, memory_mib=MEMORY)
    async with MpsNode(tmp_path) as made:
        yield made


def mounts(started: api_pb2.ContainerAllocateResponse) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in started.mounts}


def limits(started: api_pb2.ContainerAllocateResponse) -> dict[str, str]:
    return {name: value for name, value in started.envs.items() if name.startswith("CUDA_MPS_")}


async def test_clients_of_nvidia_s_daemon_get_the_server_of_their_resource(node: MpsNode) -> None:
    """Paths and variable are those of NVIDIA's plugin; the daemon itself has set the limits."""
    node.daemon(GPU)
    node.daemon(SHARED)
    async with node.serving(
        entry(GPU, FOUR + NVIDIAS, first()), entry(SHARED, ", share: {replicas: 2}" + NVIDIAS)
    ):
        await node.offers({GPU: 4, SHARED: 2})
        for resource in (GPU, SHARED):
            started = await node.container({resource: 1})
            assert limits(started) == {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/{resource}/pipe"}
            assert mounts(started) == {
                f"/mps/{resource}/pipe": f"/run/nvidia/mps/{resource}/pipe",
                "/dev/shm": "/run/nvidia/mps/shm",
            }
            assert not any(mount.read_only for mount in started.mounts)


async def test_a_resource_without_mps_gets_no_mps_settings(node: MpsNode) -> None:
    node.daemon(SHARED)
    async with node.serving(entry(SHARED, FOUR + NVIDIAS, first()), entry(GPU)):
        await node.offers({SHARED: 4, GPU: 1})
        started = await node.container({GPU: 1})
        assert not mounts(started) and not limits(started)


@pytest.mark.parametrize(
    ("count", "threads", "memory"), [(1, "25", MEMORY // 4), (2, "50", MEMORY // 2), (4, "100", MEMORY)]
)
async def test_clients_of_one_server_get_limits_by_the_shares_they_ask_for(
    node: MpsNode, count: int, threads: str, memory: int
) -> None:
    """As with Google's plugin: without these a client of a server of the node is not limited at all."""
    node.server("/tmp/nvidia-mps")
    async with node.serving(entry(GPU, FOUR + GOOGLES, first())):
        await node.offers({GPU: 4})
        started = await node.container({GPU: count})
        assert limits(started) == {
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={memory}M",
        }
        assert mounts(started) == {"/tmp/nvidia-mps": "/tmp/nvidia-mps"}


async def test_a_server_in_another_directory_is_named_to_its_clients(node: MpsNode) -> None:
    node.server("/run/mps")
    (node.root / "run/shm").mkdir()
    where = ", mps: {pipeDirectory: /run/mps/, shmDirectory: /run/shm}"
    async with node.serving(entry(GPU, FOUR + where, first())):
        await node.offers({GPU: 4})
        started = await node.container({GPU: 1})
        assert started.envs["CUDA_MPS_PIPE_DIRECTORY"] == "/run/mps"
        assert mounts(started) == {"/run/mps": "/run/mps", "/dev/shm": "/run/shm"}


async def test_shares_of_two_gpus_are_limited_on_each_of_them(node: MpsNode) -> None:
    node.server("/tmp/nvidia-mps")
    async with node.serving(entry(GPU, FOUR + GOOGLES + ", prefer: distinct")):
        await node.offers({GPU: 8})
        got = limits(await node.container({GPU: 2}))
        assert got["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        assert got["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"0={MEMORY // 4}M,1={MEMORY // 4}M"


async def test_by_cdi_containers_get_the_limits_of_the_shares_they_ask_for(node: MpsNode) -> None:
    node.server("/tmp/nvidia-mps")
    async with node.serving(entry(GPU, FOUR + GOOGLES + ", inject: cdi", first())):
        await node.offers({GPU: 4})
        for count in (1, 2, 1):
            started = await node.container({GPU: count}, keep=True)
            edits = node.specified([one.name for one in started.cdi_devices])
            env = [line for one in edits for line in one["env"]]
            assert f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={25 * count}" in env


async def test_mig_instances_are_unusable_through_mps_whether_its_server_runs_or_not(
    node: MpsNode, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(DGX[2])
    nvidia.mig(DGX[2], 7, 0)
    node.daemon(MIG)
    async with node.serving(entry(MIG, FOUR + NVIDIAS, "kind: mig")):
        await node.until(lambda: node.kubelet.capacity().get(MIG) == 4)
        assert node.kubelet.allocatable().get(MIG, 0) == 0
        (instance,) = [one for one in node.devices("gpu").values() if one.attributes["kind"] == "mig"]
        assert instance.unusable_for[f"mps:{MIG}"] == "mps is for whole NVIDIA GPUs, which this is not"


async def test_gpus_wait_for_their_server_in_resources_that_share_them_through_it(node: MpsNode) -> None:
    async with node.serving(entry(SHARED, FOUR + NVIDIAS, first()), entry(GPU)):
        await node.offers({GPU: 1})
        await node.until(lambda: node.kubelet.capacity().get(SHARED) == 4)
        assert node.kubelet.allocatable().get(SHARED, 0) == 0
        assert {device.unusable_for[f"mps:{SHARED}"] for device in node.devices("gpu").values()} == {
            f"the MPS server of {SHARED} is not running: /run/nvidia/mps/{SHARED}/pipe/control does not exist"
        }
        control = node.daemon(SHARED)
        await node.offers({SHARED: 4, GPU: 1})
        control.unlink()
        await node.until(lambda: node.kubelet.allocatable().get(SHARED, 0) == 0)
        assert node.kubelet.allocatable()[GPU] == 1


async def test_gpus_wait_for_hami_and_each_container_gets_its_share(node: MpsNode) -> None:
    hami = ", hami: {directory: /opt/vgpu}"
    async with node.serving(entry(SHARED, FOUR + hami, first()), entry(GPU)):
        await node.offers({GPU: 1})
        await node.until(lambda: node.kubelet.capacity().get(SHARED) == 4)
        assert node.kubelet.allocatable().get(SHARED, 0) == 0
        assert {device.unusable_for["hami:/opt/vgpu"] for device in node.devices("gpu").values()} == {
            "HAMi is not installed: /opt/vgpu/libvgpu.so does not exist"
        }
        directory = node.root / "opt/vgpu"
        directory.mkdir(parents=True)
        (node.root / "tmp/vgpulock").mkdir(parents=True)
        (directory / "ld.so.preload").touch()
        (directory / "libvgpu.so").touch()
        await node.offers({SHARED: 4, GPU: 1})
        started = await node.container({SHARED: 1})
        assert started.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{MEMORY // 4}m"
        assert started.envs["CUDA_DEVICE_SM_LIMIT"] == "25"
        assert mounts(started)["/etc/ld.so.preload"] == "/opt/vgpu/ld.so.preload"


async def test_the_example_for_gke_gives_what_google_s_plugin_gives(
    tmp_path: Path, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(DGX[0], memory_mib=MEMORY)
    for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/home/kubernetes/bin/nvidia/lib64/libcuda.so"):
        nvidia.tree.file(path, "")
    text = EXAMPLE.read_text()
    async with MpsNode(tmp_path) as node:
        node.configure(text.partition("version: 1\n")[2])
        async with node.served({GPU: 1}):
            started = await node.container({GPU: 1})
            assert sorted(one.container_path for one in started.devices) == [
                "/dev/nvidia-uvm",
                "/dev/nvidia0",
                "/dev/nvidiactl",
            ]
            assert {one.permissions for one in started.devices} == {"mrw"}
            assert mounts(started) == {"/usr/local/nvidia": "/home/kubernetes/bin/nvidia"}
            assert not started.envs
            nvidia.nvml.event(nvidia.uuids[DGX[0]], 63)
            nvidia.nvml.event(nvidia.uuids[DGX[0]], 48)
            await node.until(lambda: node.kubelet.allocatable().get(GPU) == 0)


def refused(tmp_path: Path, text: str) -> str:
    """The one line that the file is refused with."""
    file = tmp_path / "devhost.yaml"
    file.write_text(f"version: 1\n{text}")
    with pytest.raises(ConfigError) as error:
        load(file, catalog.load)
    (complaint,) = error.value.diagnostics
    return str(complaint)


@pytest.mark.parametrize(
    ("mps", "complaint"),
    [
        ("{}", "mps: must have either root or pipeDirectory"),
        ("{root: /run/mps, pipeDirectory: /tmp/mps}", "mps: must have either root or pipeDirectory"),
        ("{root: run/mps}", 'mps.root: "run/mps" is not absolute'),
        ("{root: /run/mps, shmDirectory: /shm}", "mps.shmDirectory: belongs to pipeDirectory"),
    ],
)
def test_a_server_that_is_named_badly_is_refused_in_one_line(
    tmp_path: Path, mps: str, complaint: str
) -> None:
    assert complaint in refused(tmp_path, f"resources:\n- {entry(GPU, f', mps: {mps}')}")


def test_a_server_for_a_name_that_is_made_of_attributes_is_refused(tmp_path: Path) -> None:
    line = refused(tmp_path, f"resources:\n- {entry('nvidia.com/{product}', NVIDIAS)}")
    reason = "needs an entry with a plain name, but nvidia.com/{product} is a template"
    assert f"resources[0].mps: {reason}" in line


@pytest.mark.parametrize("key", ["mpsPipeDirectory", "mpsShmDirectory"])
def test_a_former_option_is_refused_with_its_replacement(tmp_path: Path, key: str) -> None:
    text = f"backends: {{gpu: {{{key}: /run/mps/pipe}}}}\nresources:\n- {entry(GPU)}"
    line = refused(tmp_path, text)
    assert f'unknown key "{key}"' in line
    assert "in the key mps of an entry" in line


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("passDeviceSpecs", "add device-specs to deviceListStrategy"),
        ("migStrategy", "where: {kind: mig}"),
        ("failOnInitError", "remove it"),
        ("sharing", "share: {replicas: 10}"),
        ("sharedDevNum", "share: {replicas: 10}"),
    ],
)
def test_a_setting_of_another_plugin_is_refused_with_its_replacement(
    tmp_path: Path, key: str, instead: str
) -> None:
    line = refused(tmp_path, f"backends: {{gpu: {{{key}: x}}}}\nresources:\n- {entry(GPU)}")
    assert f'unknown key "{key}"' in line and instead in line
