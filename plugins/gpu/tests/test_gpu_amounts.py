"""What limits a container whose claim uses amounts of NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_gpu.backend import unusable
from devhost_gpu.discovery import AMD, NVIDIA
from devhost_gpu.nvidia.allocation import edits
from devhost_gpu.nvidia.cards import NvidiaFacts
from devhost_gpu.options import GpuOptions, GpuResourceOptions, Hami, Mps
from devhost_gpu.vendor import Card, ContainerRequest
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

from devhost.backend import AllocateRequest, AllocationError, Consumed, Device, Edits, Mount, OptionError
from devhost.backend.sysfs import Sysfs
from devhost.config import load
from devhost.discovery import catalog

GIB = 2**30
DAEMON = GpuResourceOptions(mps=Mps(root="/run/mps"))
SERVER = GpuResourceOptions(mps=Mps(pipe_directory="/tmp/nvidia-mps"))
HAMI = GpuResourceOptions(hami=Hami("/opt/vgpu/"))


def gpu(number: int) -> Card:
    facts = NvidiaFacts(f"GPU-{number}", f"GPU-{number}", f"0000:0{number}:00.0", str(number), number)
    return Card(Device(f"gpu{number}", {"memory": 81920}), NVIDIA, facts)


def limited(options: GpuResourceOptions, **amounts: tuple[int | None, int | None]) -> Edits:
    """What a container gets with so many GiB and cores of some GPUs."""
    consumed = {
        name: {
            **({"memory": Consumed(memory * GIB, 80 * GIB)} if memory is not None else {}),
            **({"cores": Consumed(cores, 200)} if cores is not None else {}),
        }
        for name, (memory, cores) in amounts.items()
    }
    cards = [gpu(int(name[-1])) for name in amounts]
    request = ContainerRequest(GpuOptions(), Sysfs(Path("/nowhere")), options, {}, consumed)
    return edits(cards, request)


def variables(given: Edits) -> dict[str, str]:
    return {name: value for name, value in given.env.items() if name.startswith("CUDA_")}


@pytest.mark.conformance(126)
@pytest.mark.parametrize(
    ("options", "more"),
    [(SERVER, {}), (DAEMON, {"CUDA_MPS_PIPE_DIRECTORY": "/mps//pipe"})],
)
def test_mps_limits_each_gpu_in_the_order_of_cuda(options: GpuResourceOptions, more: dict[str, str]) -> None:
    """Also beside NVIDIA's daemon, which gives all clients of a GPU one limit."""
    given = limited(options, gpu2=(4, 50), gpu1=(6, 100))
    assert variables(given) == more | {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6144M,1=4096M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }


@pytest.mark.conformance(126)
def test_hami_limits_each_gpu_and_comes_with_its_library() -> None:
    given = limited(HAMI, gpu2=(4, 50), gpu1=(6, 100))
    assert variables(given) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "6144m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "4096m",
        "CUDA_DEVICE_SM_LIMIT": "25",
    }
    assert given.mounts == (
        Mount("/opt/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so"),
        Mount("/opt/vgpu/ld.so.preload", "/etc/ld.so.preload"),
        Mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),
    )


def test_only_what_claims_share_is_limited() -> None:
    assert variables(limited(SERVER, gpu1=(None, 50))) == {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    assert variables(limited(HAMI, gpu1=(4, None))) == {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}


@pytest.mark.parametrize("options", [SERVER, HAMI])
def test_no_amount_is_written_as_zero_which_would_be_no_limit(options: GpuResourceOptions) -> None:
    found = variables(limited(options, gpu1=(0, 1))).values()
    assert sorted(value.partition("=")[2] or value for value in found) in (["1", "1M"], ["1", "1m"])


def test_no_more_than_all_cores_are_given_of_a_gpu_that_has_fewer_now() -> None:
    assert variables(limited(SERVER, gpu1=(None, 300)))["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"


def test_an_entry_limits_amounts_only_by_what_it_names(tmp_path: Path) -> None:
    assert DAEMON.limits == SERVER.limits == {"mps": ("memory", "cores")}
    assert HAMI.limits == {"hami": ("memory", "cores")}
    file = tmp_path / "devhost.yaml"
    file.write_text(
        "version: 1\ndra: {driver: d.example.com}\nresources:\n"
        "- name: nvidia.com/gpu\n  backend: gpu\n  serve: dra\n  where: {vendor: nvidia}\n"
        "  hami: {directory: /usr/local/vgpu}\n"
        "  share: {capacity: {memory: {min: 1Gi}, cores: {min: 1, total: 100}}, limit: hami}\n"
    )
    (entry,) = load(file, catalog.load).resources
    assert entry.share.limit.by == "hami"


@pytest.mark.parametrize("paths", [("usr/vgpu", "/tmp/vgpulock"), ("/usr/vgpu", "tmp/vgpulock")])
def test_a_relative_path_is_refused(paths: tuple[str, str]) -> None:
    with pytest.raises(OptionError, match="is not absolute"):
        Hami(*paths)


def test_other_vendors_are_unusable_with_what_limits_nvidia_gpus() -> None:
    card = Card(Device("card0"), AMD, None)
    found = unusable(card, {HAMI.hami_use: "", SERVER.mps_use: ""}).unusable_for
    assert found[HAMI.hami_use] == "hami is for NVIDIA GPUs, which this is not"
    assert found[SERVER.mps_use] == "mps is for whole NVIDIA GPUs, which this is not"


@pytest.mark.conformance(126)
@pytest.mark.parametrize(
    ("options", "path", "reason"),
    [
        (SERVER, "/tmp/nvidia-mps/control", "the MPS server of  is not running"),
        (HAMI, "/opt/vgpu/ld.so.preload", "HAMi is not installed: /opt/vgpu/ld.so.preload does not exist"),
    ],
)
def test_a_card_without_what_limits_containers_is_refused_to_a_claim_that_tolerates_it(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk], options: GpuResourceOptions, path: str, reason: str
) -> None:
    nvidia.gpu(DGX[0])
    nvidia.tree.file("/opt/vgpu/libvgpu.so", "")
    desk = at(nvidia)
    (device,) = desk.look().values()
    consumed = {device.id: {"memory": Consumed(GIB, 80 * GIB)}}
    request = AllocateRequest((device,), options, "a.b/c", consumed=consumed)
    with pytest.raises(AllocationError, match=reason):
        desk.backend.allocate(request)
    assert desk.backend.allocate(replace(request, consumed={})).mounts
    nvidia.tree.file(path, "")
    assert variables(desk.backend.allocate(request))
