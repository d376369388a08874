"""NVML answers, but no program could start: the fabric, confidential computing, and licenses of vGPUs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from devhost_gpu.options import GpuOptions
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

A, B = DGX[:2]
Open = Callable[..., NvidiaDesk]

NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
UNREGISTERED = (
    "it is not registered with the fabric manager of the NVSwitches, and CUDA programs fail with error 802: "
    "is nvidia-fabricmanager running?"
)
UNLINKED = (
    "none of its NVLinks to the NVSwitches is active, and CUDA programs fail with error 802: "
    "is nvidia-fabricmanager running?"
)
NOT_READY = "confidential GPUs are not ready: verify them, then run nvidia-smi conf-compute -srs 1"
PROHIBITED = "its compute mode is Prohibited: run nvidia-smi -c DEFAULT"
UNLICENSED = "this vGPU has no license: check nvidia-gridd and its client token"


@pytest.mark.parametrize("state", [NOT_STARTED, IN_PROGRESS])
def test_gpus_without_their_fabric_manager_are_unhealthy_until_it_runs(
    nvidia: NvidiaMachine, at: Open, state: int
) -> None:
    gpus = [nvidia.gpu(A, fabric_state=state), nvidia.gpu(B, fabric_state=state)]
    desk = at(nvidia, hold=0.0)
    assert desk.probe() == dict.fromkeys(gpus, UNREGISTERED)
    assert [device.health.reason for device in desk.look().values()] == [UNREGISTERED] * 2
    for uuid in gpus:
        nvidia.nvml.gpus[uuid]["fabric_state"] = COMPLETED
    nvidia.nvml.write()
    assert desk.probe() == {}
    assert all(device.health for device in desk.look().values())


@pytest.mark.parametrize(
    ("status", "health", "reason"),
    [
        (0, 0, ""),
        (3, 0, ""),  # degraded: it works without the fabric
        (999, 0, "the fabric manager refused it (NVML error 999): see its log"),
        (0, 1 << 4, "a route to its NVSwitches is unhealthy: see the log of nvidia-fabricmanager"),
        (0, 2 << 4, ""),
        (0, 0b1001, ""),  # less bandwidth, and a route that recovers
    ],
)
def test_a_registered_gpu_is_unhealthy_only_if_the_fabric_manager_refused_it(
    nvidia: NvidiaMachine, at: Open, status: int, health: int, reason: str
) -> None:
    uuid = nvidia.gpu(A, fabric_state=COMPLETED, fabric_status=status, fabric_health=health)
    assert at(nvidia).probe() == ({uuid: reason} if reason else {})


def test_a_gpu_that_has_no_fabric_is_healthy(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A, fabric_state=0, fabric_status=999)
    nvidia.gpu(B)
    assert at(nvidia).probe() == {}


@pytest.mark.parametrize("error", [13, 25])
def test_an_older_driver_reports_the_fabric_by_its_older_function(
    nvidia: NvidiaMachine, at: Open, error: int
) -> None:
    uuid = nvidia.gpu(A, fabric_state=IN_PROGRESS)
    nvidia.nvml.fault("nvmlDeviceGetGpuFabricInfoV", error=error)
    assert at(nvidia).probe() == {uuid: UNREGISTERED}


def test_a_driver_without_these_functions_finds_no_fault(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A, fabric_state=IN_PROGRESS, virtualization=2, licensed=0)
    nvidia.nvml.system |= {"confidential": 1, "ready": 0}
    for call in (
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetGpuFabricInfo",
        "nvmlSystemGetConfComputeSettings",
        "nvmlSystemGetConfComputeState",
        "nvmlDeviceGetGridLicensableFeatures_v4",
    ):
        nvidia.nvml.fault(call, error=13)
    assert at(nvidia).probe() == {}


def with_switches(machine: NvidiaMachine) -> None:
    (machine.root / "proc/driver/nvidia-nvswitch/devices/0000:c1:00.0").mkdir(parents=True)


def test_links_to_switches_that_are_all_inactive_mean_that_the_fabric_manager_is_missing(
    nvidia: NvidiaMachine, at: Open
) -> None:
    """GPUs before Hopper report nothing about the fabric."""
    linked, unlinked = nvidia.gpu(A), nvidia.gpu(B)
    nvidia.gpu(DGX[2], mig=1)  # which turns links off
    nvidia.nvml.link(linked, "switch", 12)
    nvidia.nvml.write()
    desk = at(nvidia)
    desk.look()
    assert desk.probe() == {}  # without NVSwitches links may be inactive
    with_switches(nvidia)
    desk.look()
    assert desk.probe() == {unlinked: UNLINKED}


def test_without_nvlinks_switches_make_no_gpu_unhealthy(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    with_switches(nvidia)
    desk = at(nvidia)
    desk.look()
    assert desk.probe() == {}


@pytest.mark.parametrize("mode", [{"confidential": 1}, {"confidential": 0, "protected_pcie": 1}])
@pytest.mark.parametrize("older", [False, True])
def test_confidential_gpus_are_unhealthy_until_they_are_ready(
    nvidia: NvidiaMachine, at: Open, mode: dict[str, object], older: bool
) -> None:
    uuid = nvidia.gpu(A)
    nvidia.nvml.system |= {**mode, "ready": 0}
    if older:
        nvidia.nvml.fault("nvmlSystemGetConfComputeSettings", error=13)
    nvidia.nvml.write()
    desk = at(nvidia, hold=0.0)
    assert desk.probe() == ({} if older and not mode["confidential"] else {uuid: NOT_READY})
    nvidia.nvml.system["ready"] = 1
    nvidia.nvml.write()
    assert desk.probe() == {}


def test_other_gpus_need_not_be_ready(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.gpu(A)
    nvidia.nvml.system |= {"confidential": 0, "ready": 0}
    nvidia.nvml.write()
    assert at(nvidia).probe() == {}


def test_a_vgpu_is_unhealthy_until_it_has_its_license(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, virtualization=2, licensed=0)
    nvidia.gpu(B, virtualization=1, licensed=0)  # passed through: it needs no license
    nvidia.gpu(DGX[2], virtualization=2)  # a vGPU that needs none
    desk = at(nvidia, hold=0.0)
    assert desk.probe() == {uuid: UNLICENSED}
    nvidia.nvml.gpus[uuid]["licensed"] = 1
    nvidia.nvml.write()
    assert desk.probe() == {}


def test_a_gpu_whose_compute_mode_lets_no_program_run_is_unhealthy(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.gpu(A, compute_mode=2)
    nvidia.gpu(B, compute_mode=3)  # one process at a time
    assert at(nvidia).probe() == {uuid: PROHIBITED}


@pytest.mark.parametrize(
    ("checks", "reason"),
    [
        (("compute",), PROHIBITED),
        (("fabric",), UNREGISTERED),
        (("confidential",), NOT_READY),
        (("license",), UNLICENSED),
        ("none", ""),
    ],
)
def test_each_of_these_checks_can_be_chosen(
    nvidia: NvidiaMachine, at: Open, checks: tuple[str, ...], reason: str
) -> None:
    uuid = nvidia.gpu(A, fabric_state=IN_PROGRESS, virtualization=2, licensed=0, compute_mode=2)
    nvidia.nvml.system |= {"confidential": 1, "ready": 0}
    nvidia.nvml.write()
    assert at(nvidia, GpuOptions(health_checks=checks)).probe() == ({uuid: reason} if reason else {})
